"""The three jobs of `./run bench port`, each as a program of Spark that a flag changes in one line.

    benchmarks/port_program.py JOB VARIANT FOLDER [--store URL] [--workers N]

JOB is `sessions` (a StatefulProcessor with a timer), `fraud` (a function of groups, arrays in rows) or
`totals` (windows of JSON, joined with a table). VARIANT is `spark` or `dos`. The input is FOLDER/input, the
output FOLDER/output, the checkpoint of the query FOLDER/checkpoint. The program ends when all input is
processed; started again after a kill, it continues. It writes the file FOLDER/session when the session of
Spark is there.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_session import SLOTS, session

import dos

GAP_MS: Final = 600_000
"""A session of a user ends after so long without a click."""
DELAY: Final = "10 seconds"
"""Of the watermarks."""
CLICK: Final = "user string, at timestamp, ms bigint"
SESSION: Final = "user string, begin_ms bigint, end_ms bigint, clicks bigint"
PAYMENT: Final = "card string, ms bigint, amount double, features array<double>"
SCORE: Final = "card string, ms bigint, score double"
PROFILE: Final = "n bigint, mean double"
PAID: Final = ("ms", "amount", "features")
WEIGHTS: Final = np.linspace(-1.0, 1.0, 8)
SALE: Final = "shop string, product int, at timestamp, cents bigint"
Change = Callable[[DataFrame], DataFrame]
"""The line that is changed: nothing, or `dos.frame`."""


# --- sessions of users --------------------------------------------------------------------------------------


class Sessions(StatefulProcessor):  # type: ignore[misc]  # PySpark has no types here
    """Returns each session of a user when it is over."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "begin_ms bigint, end_ms bigint, clicks bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[Any]:  # noqa: N802,N803
        del timerValues
        session = self.session.get() if self.session.exists() else None
        if session is not None:
            self.handle.deleteTimer(session[1] + GAP_MS)
        ended = []
        for ms in sorted(ms for frame in rows for ms in frame["ms"].tolist()):
            if session is not None and ms - session[1] >= GAP_MS:
                ended.append(session)
                session = None
            session = (ms, ms, 1) if session is None else (session[0], ms, session[2] + 1)
        assert session is not None, "a call has rows"
        self.session.update(session)
        self.handle.registerTimer(session[1] + GAP_MS)
        if ended:
            yield self._rows(key, ended)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802,N803
        del timerValues, expiredTimerInfo
        session = self.session.get()
        self.session.clear()
        yield self._rows(key, [session])

    def _rows(self, key: Any, ended: list[Any]) -> pd.DataFrame:
        begins, ends, clicks = zip(*ended, strict=True)
        return pd.DataFrame(
            {"user": [key[0]] * len(ended), "begin_ms": begins, "end_ms": ends, "clicks": clicks}
        )

    def close(self) -> None:
        """Nothing is open."""


def sessions(spark: SparkSession, folder: Path, change: Change) -> DataFrame:
    clicks = change(files(spark, CLICK).parquet(str(folder / "input")))
    timed = clicks.withWatermark("at", DELAY).groupBy("user")
    return timed.transformWithStateInPandas(Sessions(), SESSION, "append", "eventTime")


# --- a score of each payment --------------------------------------------------------------------------------


def scored(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Score each payment by how far its risk is from the mean of the card's payments before."""
    n, mean = state.get if state.exists else (0, 0.0)
    paid = sorted(
        (row for frame in frames for row in zip(*(frame[name] for name in PAID), strict=True)),
        key=itemgetter(0),
    )
    scores = []
    for _, amount, features in paid:
        risk = float((features * WEIGHTS).sum()) * amount
        scores.append(abs(risk - mean) if n else 0.0)
        n += 1
        mean += (risk - mean) / n
    state.update((n, mean))
    yield pd.DataFrame({"card": [key[0]] * len(paid), "ms": [row[0] for row in paid], "score": scores})


def fraud(spark: SparkSession, folder: Path, change: Change) -> DataFrame:
    payments = change(files(spark, PAYMENT).parquet(str(folder / "input")))
    return payments.groupBy("card").applyInPandasWithState(
        scored, SCORE, PROFILE, "append", GroupStateTimeout.NoTimeout
    )


# --- totals of windows --------------------------------------------------------------------------------------


def totals(spark: SparkSession, folder: Path, change: Change) -> DataFrame:
    products = spark.read.parquet(str(folder / "products"))
    sales = change(files(spark, SALE).json(str(folder / "input")))
    known = sales.withWatermark("at", DELAY).join(products, "product")
    sold = known.groupBy(F.window("at", "20 minutes"), "shop").agg(
        F.sum(F.col("cents") * F.col("weight")).alias("sold"),
        F.count("*").alias("sales"),
        F.avg("cents").alias("mean"),
        F.max("category").alias("last_category"),
    )
    return sold.select("window.start", "shop", "sold", "sales", "mean", "last_category")


# --- the program --------------------------------------------------------------------------------------------


JOBS: Final = {"sessions": sessions, "fraud": fraud, "totals": totals}


def files(spark: SparkSession, schema: str) -> Any:
    """Return a reader of one file for each micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=list(JOBS))
    parser.add_argument("variant", choices=["spark", "dos"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", help="the URL of the store, for dos")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # Python workers of Spark import this directory

    def change(df: DataFrame) -> DataFrame:
        if given.variant == "spark":
            return df
        return dos.frame(df, store=given.store, workers=given.workers)

    # Spark has SLOTS tasks at a time. A worker is a task, too, and waits while the query's own task runs.
    slots = SLOTS if given.variant == "spark" else given.workers + 1
    confs = {"spark.sql.session.timeZone": "UTC", "spark.python.authenticate.socketTimeout": "300s"}
    spark = session(given.folder, f"local[{slots}]", confs)
    (given.folder / "session").touch()
    result = JOBS[given.job](spark, given.folder, change)
    writing = result.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    writing = writing.queryName(given.job).option("path", str(given.folder / "output"))
    writing.option("checkpointLocation", str(given.folder / "checkpoint")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()

"""Measure the demo's word count in Spark alone, with its Python state: `applyInPandasWithState`.

spark_baseline.py CORPUS_DIR [SECONDS]

It reads the files of CORPUS_DIR as a stream, one file per micro-batch, and is stopped after SECONDS (60),
before it has read all files once. The settings favor Spark: RocksDB state with changelog checkpoints, as
many shuffle partitions as slots, and a sink that discards its rows. Prints one line of JSON: the words of
all committed micro-batches, the seconds from the start of the query to the last of them, and the rate.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_session import session


def count(key: Any, batches: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield the new count of one word."""
    before = state.get[0] if state.exists else 0
    now = before + sum(len(batch) for batch in batches)
    state.update((now,))
    yield pd.DataFrame({"word": [key[0]], "count": [now]})


def measure(corpus: Path, seconds: float, directory: Path) -> dict[str, float]:
    spark = session(directory)
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(corpus))
    words = (
        lines.select(F.explode(F.split("value", "[ \t\n\x0b\f\r]+")).alias("word"))
        .where("word != ''")
        .observe("words", F.count(F.lit(1)).alias("n"))
    )
    counts = words.groupBy("word").applyInPandasWithState(
        count, "word string, count long", "count long", "update", GroupStateTimeout.NoTimeout
    )
    begun = time.perf_counter()
    query = (
        counts.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    counted, last, batch = 0, 0.0, -1
    while time.perf_counter() - begun < seconds and query.isActive:
        time.sleep(0.05)  # a poll for progress, which Spark reports per micro-batch
        for progress in query.recentProgress:
            if progress["batchId"] > batch and "words" in progress["observedMetrics"]:
                batch, last = progress["batchId"], time.perf_counter() - begun
                counted += progress["observedMetrics"]["words"]["n"]
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        raise RuntimeError(str(failure))
    rate = counted / last if last else 0.0
    return {"words": counted, "seconds": round(last, 2), "words_per_s": round(rate), "batches": batch + 1}


def main() -> None:
    corpus = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with tempfile.TemporaryDirectory(prefix="dos-baseline-") as directory:
        print(json.dumps(measure(corpus, seconds, Path(directory))))


if __name__ == "__main__":
    main()

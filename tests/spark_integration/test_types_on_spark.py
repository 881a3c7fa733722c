"""Types against Spark itself as the oracle: how it groups keys, the mean of decimals, what functions get."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import avg
from pyspark.sql.streaming import StatefulProcessor

from dataflow import CallSink, Count, Graph, InputSource, Mean
from dataflow.schema import parse_schema, type_text
from dataflow.testing import Trial
from dataflow.values.python_rows import micros_of_time

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NAN = float("nan")
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def last_of_each(rows: list[dict[str, Any]], schema: str, key: str, **aggregates: Any) -> dict[str, Any]:
    graph = Graph("types")
    keyed = graph.source("rows", InputSource("rows", schema)).key_by("by", key)
    keyed.aggregate("made", **aggregates).sink("out", CallSink(print))
    trial = Trial(graph, workers=2)
    for at in range(0, len(rows), 7):
        trial.step({"rows": rows[at : at + 7]}, checkpoint=True)
    trial.crash()
    trial.step({}, end=True)
    return {repr(row.pop(key)): row for row in trial.rows("out")}


def test_keys_are_grouped_as_spark_groups_them(spark: SparkSession) -> None:
    schema = "d double, f float, s struct<d:double,t:struct<f:float,a:string>>"
    random = Random(7)
    numbers = [0.0, -0.0, NAN, -NAN, 1.5, float("-inf"), None]
    rows = []
    for _ in range(60):
        inner = random.choice([None, {"f": random.choice(numbers), "a": random.choice(["", "x", None])}])
        s = random.choice([None, {"d": random.choice(numbers), "t": inner}])
        rows.append({"d": random.choice(numbers), "f": random.choice(numbers), "s": s})
    df = spark.createDataFrame([tuple(row.values()) for row in rows], schema).cache()
    for key in ("d", "f", "s"):
        grouped = df.groupBy(key).count().collect()
        truth = {
            repr(row[key].asDict(recursive=True) if key == "s" and row[key] else row[key]): {
                "n": row["count"]
            }
            for row in grouped
        }
        assert last_of_each(rows, schema, key, n=Count()) == truth


def test_the_mean_of_decimals_is_the_one_of_spark(spark: SparkSession) -> None:
    types = [(10, 2), (38, 10), (38, 0), (1, 0), (38, 38), (20, 19), (38, 30), (5, 5)]
    random = Random(11)
    rows: list[dict[str, Any]] = []
    for _ in range(80):
        row: dict[str, Any] = {"key": random.choice("abcdefghij")}
        for at, (precision, scale) in enumerate(types):
            # Few digits before the point: in Spark, a sum of more than 38 digits is an error.
            size = 10 ** min(precision, scale + 1, 36) - 1
            units = random.randint(-size, size)
            row[f"c{at}"] = random.choice([None, Decimal(units).scaleb(-scale)])
        rows.append(row)
    schema = "key string, " + ", ".join(f"c{at} decimal({p},{s})" for at, (p, s) in enumerate(types))
    means = [avg(f"c{at}").alias(f"c{at}") for at in range(len(types))]
    df = spark.createDataFrame([tuple(row.values()) for row in rows], schema).groupBy("key").agg(*means)
    truth = {repr(row["key"]): {f"c{at}": row[f"c{at}"] for at in range(len(types))} for row in df.collect()}
    named = {f"c{at}": Mean(f"c{at}") for at in range(len(types))}
    assert last_of_each(rows, schema, "key", **named) == truth
    for field in parse_schema(df.schema):
        if pa.types.is_decimal(field.type):
            given = parse_schema(schema).field(field.name).type
            assert type_text(named[field.name].result_type(given)) == type_text(field.type)


# --- what functions get, and what becomes of what they give back --------------------------------------------

ZONE = "America/New_York"
SEEN = (
    "at timestamp, k string, nt timestamp_ntz, da date, tags array<string>, aa array<array<int>>,"
    " m map<string,bigint>, s struct<a:bigint,b:double,t:array<timestamp>>, sa array<struct<a:int>>,"
    " de decimal(5,2), f float, b boolean, bi binary, n int, ta array<timestamp>, tm map<timestamp,date>"
)
INSTANTS = [
    datetime(2024, 5, 1, 12, 0, 0, 250_000, UTC),
    datetime(2024, 11, 3, 5, 30, tzinfo=UTC),  # 01:30, which comes again an hour later
    datetime(2024, 11, 3, 6, 30, tzinfo=UTC),
    datetime(2024, 3, 10, 7, 0, tzinfo=UTC),  # 03:00, after the hour that does not exist
]
RETURNED = "k string, back timestamp, told string"


def seen_row(at: datetime, number: int) -> dict[str, Any]:
    naive = datetime(2024, 5, 1, 12)  # noqa: DTZ001
    return {
        "at": at, "k": f"k{number}", "nt": naive, "da": date(2024, 5, 1), "tags": ["p", None],
        "aa": [[1, 2], []], "m": {"u": 1}, "s": {"a": 1, "b": -0.0, "t": [at, None]}, "sa": [{"a": 1}, None],
        "de": Decimal("1.50"), "f": 0.5, "b": True, "bi": b"\x00\xff", "n": 3, "ta": [at],
        "tm": {at: date(2024, 1, 1)},
    }  # fmt: skip


def told(value: Any) -> Any:
    """A value with the types of all of its parts."""
    if isinstance(value, dict):
        return ["dict", [[told(key), told(one)] for key, one in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [*map(told, value)]]
    if isinstance(value, np.ndarray):
        return ["ndarray", str(value.dtype), [*map(told, value)]]
    return [type(value).__name__, repr(value)]


def told_of_frame(frame: pd.DataFrame) -> list[Any]:
    return [[name, str(frame[name].dtype), told(frame[name].iloc[0])] for name in frame.columns]


def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        at = frame["at"].iloc[0]
        state.update((at.to_pydatetime(),))
        text = json.dumps([*told_of_frame(frame), told(state.get), str(key[1])])
        yield pd.DataFrame({"k": [key[0]], "back": [at], "told": [text]})


class Processor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n int")

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Iterator[Any]:
        for row in rows:
            text = json.dumps([[name, told(row[name])] for name in row.__fields__] + [told(key)])
            yield Row(k=row.k, back=row.at, told=text)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("shape", ["function", "rows"])
def test_functions_get_and_give_back_what_they_do_in_spark_in_the_zone_of_the_session(
    shape: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [seen_row(at, number) for number, at in enumerate(INSTANTS)]
    confs = {
        "spark.sql.session.timeZone": ZONE,
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": ROCKS_DB,
    }
    before = {name: spark.conf.get(name) for name in confs}
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        source = str(tmp_path / "rows")
        spark.createDataFrame([tuple(row.values()) for row in rows], SEEN).coalesce(1).write.parquet(source)
        grouped = spark.readStream.schema(SEEN).parquet(source).groupBy("k", "at")
        if shape == "function":
            df = grouped.applyInPandasWithState(function, RETURNED, "last timestamp", "update", "NoTimeout")
        else:
            df = grouped.transformWithState(Processor(), RETURNED, "update", "none")
        writing = df.writeStream.format("memory").queryName(f"seen_{shape}").outputMode("update")
        writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()
        found = spark.table(f"seen_{shape}").selectExpr("k", "unix_micros(back) as back", "told")
        truth = {row.k: (row.back, json.loads(row.told)) for row in found.collect()}
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    ours = _seen_here(shape, rows)
    assert len(truth) == len(ours) == len(rows)
    for key, (back, seen) in ours.items():
        assert back == truth[key][0], key
        for one, other in zip(seen, truth[key][1], strict=True):
            assert one == other, key


def _seen_here(shape: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    graph = Graph("seen")
    source = graph.source("rows", InputSource("rows", SEEN))
    keyed = source.event_time("timed", "at", lateness=timedelta(days=1_000)).key_by("by", "k", "at")
    if shape == "function":
        made = keyed.apply_in_pandas_with_state(
            "made",
            function,
            RETURNED,
            "last timestamp",
            "update",
            time="at",
            time_zone=ZONE,
        )
    else:
        made = keyed.transform_with_state(
            "made", Processor(), RETURNED, "update", "none", time="at", time_zone=ZONE
        )
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": rows}, end=True)
    return {
        row["k"]: (
            micros_of_time(row["back"]),
            json.loads(row["told"]),
        )
        for row in trial.rows("out")
    }

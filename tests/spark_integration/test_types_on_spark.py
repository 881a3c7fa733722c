"""Types against Spark itself as the oracle: how it groups keys, and the mean of decimals."""

from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import avg

from dataflow import CallSink, Count, Graph, InputSource, Mean
from dataflow.schema import parse_schema, type_text
from dataflow.testing import Trial

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
NAN = float("nan")


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

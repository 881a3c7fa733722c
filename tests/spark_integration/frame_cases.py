"""Rows and aggregations for the tests of frames, and the operators of a region on them."""

import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from dataflow import InputSource
from dataflow.testing.trial import Trial
from spark_integration.stateful import INPUT, OUTPUT, Aggregation, StatefulCall, divided

DDL = (
    "k string, a int, b bigint, v double, f float, d decimal(10,2), s string, flag boolean, ts timestamp,"
    " st struct<x:int,y:string>, xs array<int>"
)
START = datetime(2026, 5, 1, 9, tzinfo=UTC)


def rows(count: int = 200, seed: int = 7) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    return [
        (
            maybe(rng.choice("uvwxyz")),
            maybe(rng.randrange(-9, 9)),
            maybe(rng.randrange(10**12)),
            maybe(rng.uniform(-5, 5)),
            maybe(rng.randrange(-40, 40) / 4),
            maybe(Decimal(rng.randrange(-(10**6), 10**6)) / 100),
            maybe(rng.choice(["ä", "b", "cc", "日"])),
            maybe(rng.random() < 0.5),
            maybe(START + timedelta(seconds=rng.randrange(7200))),
            maybe((rng.randrange(5), "y")),
            maybe([1, 2]),
        )
        for _ in range(count)
    ]


def typed(spark: SparkSession) -> DataFrame:
    df = spark.createDataFrame(rows(), DDL).withColumn("st.x", F.col("a") * 100)
    df = df.withColumn("day", F.to_date("ts")).withColumn("text", F.col("ts").cast("string"))
    return df.coalesce(1).cache()


Case = tuple[list[Any], list[Column]]


def computed() -> dict[str, Case]:
    """Aggregations that a region computes: keys and results."""
    c = F.col
    plus, times = (
        F.udf(lambda x: None if x is None else x + 1, "int"),
        F.udf(lambda x: None if x is None else x * 100, "int"),
    )
    return {
        "count()": (["k"], [F.count(F.lit(1)).alias("count")]),
        "count(*)": (["k"], [F.count("*").alias("n"), F.expr("count(*)"), F.expr("count(1)")]),
        "count(col)": (["k"], [F.count("a")]),
        "count(a, s)": (["k"], [F.count(F.struct("a")), F.expr("count(a, s)")]),
        "count(struct), count(array)": (["k"], [F.count("st"), F.count("xs")]),
        "count(when)": (["k"], [F.count(F.when(c("a") > 0, 1)).alias("pos")]),
        "count_if": (["k"], [F.count_if(c("v") > 1), F.count_if("flag"), F.count("flag")]),
        "sum of each number": (["k"], [F.sum(x) for x in "abvfd"]),
        "avg of each number": (["k"], [F.avg(x) for x in "abvf"]),
        "mean of an expression": (["k"], [F.mean(c("a") * 2 + c("v")).alias("m")]),
        "numbers in strings": (["k"], [F.sum(c("a").cast("string")), F.min(c("a").cast("string"))]),
        "min/max of each type": (
            ["k"],
            [f(x) for f in (F.min, F.max) for x in ["a", "b", "v", "d", "s", "flag", "ts"]],
        ),
        "min/max of structs and bytes": (
            ["k"],
            [
                F.max(F.struct("v", "a", "s")).getField("s").alias("last"),
                F.min(F.struct("f", F.struct("flag", "ts").alias("in"))).alias("first"),
                F.max("st"),
                F.min(F.encode("s", "utf-8")).alias("bytes"),
            ],
        ),
        "bool_and, bool_or": (
            ["k"],
            [F.bool_and("flag"), F.bool_or("flag"), F.every("flag"), F.some("flag")],
        ),
        "approx_count_distinct": (["k"], [F.approx_count_distinct("s"), F.approx_count_distinct("a", 0.05)]),
        "expression over aggregates": (
            ["k"],
            [(F.sum("v") / F.count("*")).alias("r"), F.coalesce(F.max("v"), F.lit(0)).alias("m")],
        ),
        "struct of aggregates": (
            ["k"],
            [F.struct(F.min("v").alias("lo"), F.max("v").alias("hi")).alias("range")],
        ),
        "case over aggregates": (["k"], [F.when(F.count("*") > 30, "many").otherwise("few").alias("size")]),
        "SQL text": (
            ["k"],
            [
                F.expr("sum(v) / count(*) as r"),
                F.expr("max(concat('sum(', s, ')'))"),
                F.expr("round(avg(a), 2)"),
            ],
        ),
        "SQL text with filter": (
            ["k"],
            [
                F.expr("sum(v) filter (where a > 0) as s"),
                F.expr("count(*) filter (where flag)"),
                F.expr("count(a) filter (where flag)"),
                F.expr("count(a, flag)"),
            ],
        ),
        "same text, other type": (
            ["k"],
            [F.sum(c("v").cast("int")).alias("i"), F.sum(c("v").cast("double")).alias("d")],
        ),
        "key expression": (
            [(c("a") % 3).alias("m")],
            [F.count("*").alias("n"), ((c("a") % 3) * 10 + F.count("*")).alias("x")],
        ),
        "two keys, one in an expression": (
            ["k", "flag"],
            [F.concat(c("k"), F.lit(":"), F.count("*").cast("string")).alias("t")],
        ),
        "struct field": (["k"], [F.sum("st.x"), F.max(c("st")["y"])]),
        "tumbling window": ([F.window("ts", "10 minutes"), "k"], [F.count("*").alias("count")]),
        "sliding window with offset": (
            ["k", F.window("ts", "1 hour", "20 minutes", "7 minutes")],
            [F.sum("v"), F.sum("d")],
        ),
        "window with a slide just below its size": (
            [F.window("ts", "10 minutes", "9 minutes", "5 minutes")],
            [F.count("*")],
        ),
        "window of text": ([F.window("text", "1 hour")], [F.count("*")]),
        "window of a date": ([F.window("day", "1 hour")], [F.count("*")]),
        "window, alias": ([F.window("ts", "1 day").alias("day")], [F.max("v").alias("top")]),
        "other case": (["K"], [F.expr("SUM(V) as S")]),
        "higher-order function": (["k"], [F.sum(F.aggregate("xs", F.lit(0), lambda x, y: x + y)).alias("n")]),
        "two lambda functions": (
            ["k"],
            [
                F.sum(F.aggregate("xs", F.lit(0), lambda x, y: x + y)).alias("n1"),
                F.sum(F.aggregate("xs", F.lit(0), lambda x, y: x + y * 100)).alias("n2"),
                F.sum(F.aggregate("xs", F.lit(0), lambda x, y: x + x)).alias("n3"),
            ],
        ),
        "function of the user in an argument": (["k"], [F.sum(plus("a")).alias("n")]),
        "two functions of one name": (["k"], [F.sum(plus("a")).alias("p"), F.sum(times("a")).alias("q")]),
        "function of the user as a key": ([plus("a").alias("x"), "a"], [F.count("*"), times("a").alias("y")]),
        "function of the user over aggregates": (["k"], [times(F.sum("a").cast("int")).alias("n")]),
        "count of a null literal": (["k"], [F.count(F.lit(None))]),
        "field st.x and column `st.x`": (["k"], [F.sum("st.x").alias("p"), F.sum("`st.x`").alias("q")]),
        "key with the name of its column": ([(c("a") % 2).alias("a")], [F.sum("a").alias("n")]),
        "key inside and outside": (["a"], [(F.sum("a") + c("a")).alias("n")]),
        "literal only": (["k"], [F.lit(1).alias("one"), F.count("*").alias("n")]),
        "no aggregate": (["k"], [F.upper("k").alias("u")]),
        "alias inside": (["k"], [(F.sum(c("a").alias("z")) * 2).alias("n")]),
        "cast of an aggregate": (["k"], [F.sum("a").cast("string")]),
        "two keys of one expression": ([c("a") % 2, (c("a") % 2).alias("again")], [F.count("*").alias("n")]),
        "global": ([], [F.sum("a").alias("n"), F.count("*").alias("m"), F.count("a"), F.max("`st.x`")]),
        "empty string as a name": (["k"], [F.sum("a").alias("")]),
        "duplicate names": (["k"], [F.sum("a").alias("n"), F.max("a").alias("n")]),
        "an earlier result by its name": (["k"], [F.max("a").alias("x"), (c("x") + 1).alias("y")]),
        "a result that hides a column of the state": (
            ["k"],
            [F.max("a").alias("sum(a)"), F.sum("a").alias("t"), (c("sum(a)") + 1).alias("y")],
        ),
        "results named as the region's columns": (
            [F.window("ts", "1 hour")],
            [F.max("a").alias("window_start"), (c("window_start") + 1).alias("y")],
        ),
    }


def _total(values: pd.Series) -> float:
    return float(values.sum())


ALONE = ("an earlier result by its name", "a result that hides a column of the state", "duplicate names")


def merged() -> dict[str, Case]:
    """The same with all results that have the key `k` in one aggregation, where they could share columns."""
    cases = computed()
    joined = [name for name, (keys, _) in cases.items() if str(keys) == str(["k"]) and name not in ALONE]
    results = [one for name in joined for one in cases[name][1]]
    return {"by k": (["k"], results), **{name: case for name, case in cases.items() if name not in joined}}


def refused() -> dict[str, tuple[Case, str]]:
    """Aggregations that are refused, and what the error says."""
    c = F.col
    mine = F.pandas_udf(_total, "double")
    return {
        "collect_list": (
            (["k"], [F.collect_list("a")]),
            "collect_list is not computed by a region .*transformWith",
        ),
        "first": ((["k"], [F.first("a")]), "first is not computed"),
        "max_by": ((["k"], [F.max_by("a", "ts")]), "max_by is not computed"),
        "stddev in an expression": ((["k"], [F.expr("1 + stddev(v)")]), "stddev is not computed"),
        "percentile": ((["k"], [F.percentile_approx("v", 0.5)]), "percentile_approx is not computed"),
        "of the user": ((["k"], [mine("v")]), "aggregate function .* of the user"),
        "of constants": (([], [F.expr("bit_and(1)")]), "bit_and is not computed"),
        "distinct": ((["k"], [F.count_distinct("a")]), r"count\(DISTINCT ...\).*approx_count_distinct"),
        "distinct in text": ((["k"], [F.expr("count(distinct a)")]), "DISTINCT"),
        "a small error": ((["k"], [F.approx_count_distinct("a", 0.01)]), "0.016; a smaller one"),
        "a small error in text": (
            (["k"], [F.expr("approx_count_distinct(a, 0.01)")]),
            "0.016; a smaller one",
        ),
        "over": ((["k"], [F.sum(F.sum("v")).over(Window.partitionBy())]), "window function"),
        "subquery": ((["k"], [F.sum("a") + F.expr("(select 1)")]), "subquery"),
        "window inside": (
            ([F.window("ts", "1 hour")["start"]], [F.count("*")]),
            "window is used inside another",
        ),
        "window in an argument": ((["k"], [F.max(F.window("ts", "1 hour")["start"])]), "inside another"),
        "session": (
            ([F.session_window("ts", "5 minutes")], [F.count("*")]),
            "session_window is not computed",
        ),
        "literal key": (([F.lit("x")], [F.count("*")]), "a literal is a key"),
        "star": ((["k"], [F.expr("count(*, a)")]), "by a star|INVALID_USAGE_OF_STAR|count"),
        "key of the state's name": (
            ([c("k").alias("sum(a)")], [F.sum("a").alias("n")]),
            r"'sum\(a\)' has the name of",
        ),
        "two keys of one name": (
            ([c("a").alias("x"), c("k").alias("x")], [F.count("*")]),
            "two different keys",
        ),
        "array as a key": (([c("xs")], [F.count("*")]), "aggregate_by_xs cannot be computed by a region"),
        "max of an array": ((["k"], [F.max("xs")]), "cannot be computed by a region.*Max takes"),
        "interval": ((["k"], [F.sum(c("ts") - F.lit(START))]), "sum of interval"),
        "collation": (([F.expr("k collate UTF8_LCASE as k")], [F.count("*")]), "'k' has a collation"),
        "max with a collation": ((["k"], [F.max(F.expr("s collate UTF8_LCASE"))]), "max of string collate"),
    }


def refused_by_spark() -> dict[str, tuple[Case, str]]:
    """Aggregations that Spark refuses, and its condition."""
    c = F.col
    return {
        "not aggregated": ((["k"], [c("v")]), "MISSING_AGGREGATION"),
        "unknown column": ((["k"], [F.sum("nope")]), "UNRESOLVED_COLUMN.WITH_SUGGESTION"),
        "sum of a struct": ((["k"], [F.sum("st")]), "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE"),
        "nested": ((["k"], [F.sum(F.count("a"))]), "NESTED_AGGREGATE_FUNCTION"),
        "unknown function": ((["k"], [F.expr("my_agg(v)")]), "UNRESOLVED_ROUTINE"),
    }


def divide_case(df: DataFrame, case: Case) -> Aggregation:
    keys, results = case
    columns = [F.col(one) if isinstance(one, str) else one for one in keys]
    return divided(df, columns, results, df.groupBy(*keys).agg(*results))


def output_of_trial(call: StatefulCall) -> DataFrame:
    """Return the output of the region's operators for `before`: two workers, several steps, a crash."""
    (before,) = call.before.values()
    spec = call.graph("trial", None).plan().specs[INPUT]
    assert isinstance(spec, InputSource)
    rows = before.toArrow().cast(spec.schema).to_batches(max_chunksize=20)
    trial = Trial(call.graph("trial", None), workers=2)
    middle = len(rows) // 2
    for number, batch in enumerate(rows[:middle]):
        trial.step({INPUT: [batch.slice(0, 10), batch.slice(10)]}, checkpoint=number % 3 == 0)
    trial.step({}, checkpoint=True)
    for batch in rows[middle:]:
        trial.step({INPUT: [batch]})
    trial.crash()
    for batch in rows[middle:]:
        trial.step({INPUT: [batch.slice(3), batch.slice(0, 3)]})
    trial.step({}, end=True, checkpoint=True)
    schema = call.empty_output().schema
    found = [tuple(row[name] for name in schema.names) for row in trial.rows(OUTPUT)]
    return before.sparkSession.createDataFrame(found, schema)


class RandomResults:
    """Random results of an aggregation: expressions over aggregates of expressions."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def some(self, count: int) -> list[Column]:
        return [self.result(2).alias(f"r{index}") for index in range(count)]

    def number(self, depth: int) -> Column:
        rng = self._rng
        if depth == 0 or rng.random() < 0.3:
            return F.col(rng.choice(["a", "b", "v", "f", "st.x", "`st.x`"]))
        one, two = self.number(depth - 1), self.number(depth - 1)
        return rng.choice(
            [
                one + two,
                one - two,
                F.abs(one),
                F.coalesce(one, two),
                F.when(self.condition(depth - 1), one),
                F.when(self.condition(depth - 1), one).otherwise(two),
                one.cast("double"),
                F.expr("cast(a as bigint)"),
            ]
        )

    def condition(self, depth: int) -> Column:
        rng = self._rng
        made = [F.col("flag"), F.col("s") == "b", F.col("k").isNull(), F.col("a") > rng.randrange(-5, 5)]
        if depth > 0:
            one, two = self.condition(depth - 1), self.condition(depth - 1)
            made += [one & two, one | two, ~one, self.number(depth - 1) > self.number(depth - 1)]
        return rng.choice(made)

    def call(self) -> Column:
        rng = self._rng
        function = rng.choice([F.sum, F.avg, F.min, F.max, F.count, F.count, None, None, None])
        if function is not None:
            return function(self.number(2))
        return rng.choice(
            [
                F.count("*"),
                F.count_if(self.condition(1)),
                F.bool_or(self.condition(1)).cast("int"),
                F.bool_and(self.condition(1)).cast("int"),
                F.approx_count_distinct(F.when(self.condition(1), F.col("s"))),
                F.expr("sum(a) filter (where v > 0)"),
                F.expr("count(a, v)"),
            ]
        )

    def result(self, depth: int) -> Column:
        if depth == 0 or self._rng.random() < 0.2:
            return self.call()
        one, two = self.result(depth - 1), self.result(depth - 1)
        return self._rng.choice(
            [
                one + two,
                one - F.coalesce(two, F.lit(0)),
                F.try_divide(one, two),
                F.when(F.count("*") > self._rng.randrange(40), one).otherwise(two),
                F.length(F.coalesce(F.col("k"), F.lit("none"))) + one,
                F.greatest(one, two),
            ]
        )


def plain(value: Any) -> Any:
    """Return the value in a form that is equal if it is equal up to the order of the sum."""
    if hasattr(value, "asDict"):
        return tuple(plain(one) for one in value)
    if isinstance(value, float):
        if math.isnan(value) or abs(value) < 1e-6:
            return "nan" if math.isnan(value) else 0.0
        return float(f"{value:.9g}")
    return value


def table(df: DataFrame) -> list[Any]:
    return sorted((tuple(plain(value) for value in row) for row in df.collect()), key=repr)

"""A program that makes frames through Spark Connect and prints as JSON what they are, for `test_connect.py`,
which makes the same frames in a classic session.

    python -m tests.spark_integration.frames_on_connect sc://HOST:PORT [--all]
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from spark_integration.core.dividing import ExpressionKind
from spark_integration.stateful import expressions_of
from tests.spark_integration.frame_cases import (
    Case,
    divide_case,
    merged,
    output_of_trial,
    refused,
    table,
    typed,
)

SOME = ("by k", "sliding window with offset", "function of the user as a key", "global")


def stream(spark: SparkSession) -> DataFrame:
    made: DataFrame = spark.readStream.format("rate").load()
    return made.selectExpr("timestamp AS at", "value AS v", "value % 3 AS shop")


def _counted(key: Any, _frames: Any, _state: Any) -> Any:
    yield pd.DataFrame({"shop": [key[0]], "n": [1]})


def frames(spark: SparkSession) -> dict[str, dos.RegionFrame]:
    """Frames with a stateful call, of streams and batches."""
    events = dos.frame(stream(spark))
    timed = events.withWatermark("at", "10 minutes")
    sold = timed.groupBy(F.window("at", "1 hour"), "shop").agg((F.sum("v") / F.count("*")).alias("mean"))
    rows = dos.frame(spark.createDataFrame([("a", 1), ("b", 2)], "k string, v int"))
    others = dos.frame(spark.createDataFrame([("a", 5)], "k string, w int"))
    most = rows.groupBy("k").agg(F.sum("v").alias("n"), F.max("v"))
    return {
        "windows": sold.filter(sold["mean"] > 3).select(sold["shop"], (sold["mean"] * 2).alias("twice")),
        "duplicates": timed.dropDuplicates(["v", "at"]),
        "duplicates within the watermark": timed.dropDuplicatesWithinWatermark(["v"]),
        "a function of groups": events.groupBy("shop").applyInPandasWithState(
            _counted, "shop bigint, n int", "n int", "update", "NoTimeout"
        ),
        "an order": most.orderBy(most["n"].desc()).limit(1),
        "a join with another frame": most.join(others, most["k"] == others["k"]).drop(most["k"]),
        "all columns": most.select("*", F.lit(1).alias("one")).na.fill(0),
        "a dict": rows.groupBy("k").agg({"v": "max", "*": "count"}),
        "without keys": rows.agg(F.sum("v")).named("total"),
    }


def region(frame: dos.RegionFrame) -> tuple[str, str]:
    """Return what `explain` says of the region, and the columns of the result."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        frame.explain()
    text = shown.getvalue().partition("== Region ==")[2].partition("== Spark, after the region ==")
    assert "Plan ==" in text[2], "Spark has planned what follows"
    return text[0].strip(), frame.schema.simpleString()


def divided(df: DataFrame, case: Case) -> tuple[str, str, str]:
    """Return the region of an aggregation, the columns before it, and those of its result."""
    call = divide_case(df, case)
    (before,) = call.before.values()
    return (
        call.describe(),
        before.schema.simpleString(),
        call.after(call.empty_output()).schema.simpleString(),
    )


def main(url: str, *, every: bool) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    df = typed(spark)
    said: dict[str, Any] = {"texts": {}, "divided": {}, "rows": {}}
    for name, (keys, results) in merged().items():
        if not (every or name in SOME):
            continue
        texts = [at for at, one in enumerate(results) if _has_text(spark, one)]
        case = keys, [one for at, one in enumerate(results) if at not in texts]
        said["texts"][name] = texts
        if case[1]:
            said["divided"][name] = divided(df, case)
            if every:
                call = divide_case(df, case)
                said["rows"][name] = table(call.after(output_of_trial(call))) == table(call.shadow)
    said["refused"] = {name: _error(partial(divide_case, df, case)) for name, (case, _) in refused().items()}
    said["frames"] = {name: region(one) for name, one in frames(spark).items()}
    said["errors"] = {name: _error(call) for name, call in _wrong(spark, df).items()}
    print(json.dumps(said))


def _has_text(spark: SparkSession, column: Column) -> bool:
    return any(one.kind is ExpressionKind.SQL for one in expressions_of(spark).read(column).walk())


def _wrong(spark: SparkSession, df: DataFrame) -> dict[str, Callable[[], object]]:
    """Calls that raise an error."""
    made = frames(spark)
    windows, most, total = made["windows"], made["an order"], made["without keys"]
    rows = dos.frame(stream(spark))
    timed = rows.withWatermark("at", "10 minutes")
    writer = windows.writeStream.option("checkpointLocation", "/there/is/none")
    stream(spark).createOrReplaceTempView("events")
    kept = spark.sql("select shop, count(*) from events group by shop")

    def texts(*results: Column) -> Callable[[], object]:
        return lambda: divide_case(df, (["k"], list(results)))

    return {
        "run: start": lambda: writer.start("/there/is/none"),
        "run: toTable": lambda: writer.toTable("t"),
        "run: complete": lambda: writer.outputMode("complete").format("console").start(),
        "run: df of a stream": windows.df,
        "run: collect": most.collect,
        "run: show": total.show,
        "run: write": lambda: most.write.parquet("/there/is/none"),
        "run: cache": most.cache,
        "run: two calls": lambda: dos.frame(df).groupBy("k", "a").count().groupBy("k").count(),
        "run: two streams": lambda: timed.join(
            stream(spark).withColumnRenamed("shop", "s"), F.expr("shop = s")
        ),
        "state: a frame of it": lambda: dos.frame(stream(spark).groupBy("shop").count()),
        "state: in a view": lambda: dos.frame(kept),
        "state: select": lambda: rows.select(F.sum("v")),
        "state: SQL text": lambda: rows.selectExpr("sum(v)"),
        "text: a star": texts(F.count(F.expr(" * "))),
        "text: a star of a struct": texts(F.max(F.expr("struct( *)"))),
        "text: a window": texts(F.max(F.expr("WINDOW(ts, '1 hour').start"))),
        "text: a key": lambda: divide_case(df, ([F.expr("a % 2")], [F.count("*")])),
        "text: inside a key": lambda: divide_case(df, ([F.abs(F.expr("a")).alias("x")], [F.count("*")])),
        "text: a result": texts(F.expr("sum(v)")),
        "text: in a result": texts(F.sum("a") + F.expr("k")),
        "spark: a column": lambda: rows.groupBy("nope").agg(F.sum("v")),
        "spark: a column of a row": lambda: rows.select("nope"),
    }


def _error(call: Callable[[], object]) -> str | None:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main(sys.argv[1], every="--all" in sys.argv)

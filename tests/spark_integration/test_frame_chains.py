"""Several stateful calls of a frame, and several streams, in one region, have Spark's rows."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.dividing import FrameError
from tests.spark_integration.frame_cases import START, table
from tests.spark_integration.test_frame import nothing_runs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

Rows = Sequence[tuple[float, str]]
"""Minute and word."""


class Streams:
    """Streams of files, and a program on them with or without the changed line."""

    def __init__(self, spark: SparkSession, folder: Path, names: Sequence[str]) -> None:
        self._spark = spark
        self._folder = folder
        self._names = names
        for name in names:
            (folder / name).mkdir()

    def put(self, number: int, rows: Mapping[str, Rows]) -> None:
        """Add a file, which is a micro-batch, to each stream."""
        for name in self._names:
            lines = [
                {f"{name}At": (START + timedelta(minutes=minute)).isoformat(), name: word}
                for minute, word in rows.get(name, ())
            ]
            hidden = self._folder / f"{number}.json"
            hidden.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
            os.utime(hidden, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
            hidden.rename(self._folder / name / hidden.name)

    def given(self, store: str | None) -> list[Any]:
        found = []
        for name in self._names:
            reader = self._spark.readStream.schema(f"{name}At timestamp, {name} string")
            df = reader.option("maxFilesPerTrigger", 1).json(str(self._folder / name))
            found.append(df if store is None else dos.frame(df, store=store, workers=2))
        return found

    def run(self, program: Callable[..., Any], store: str | None, mode: str = "append") -> list[list[Any]]:
        """Run the program on the files that are there. Return the rows of each micro-batch that has some."""
        batches: list[list[Any]] = []

        def take(df: DataFrame, _batch: int) -> None:
            if rows := sorted((tuple(row) for row in df.collect()), key=repr):
                batches.append(rows)

        writer = program(*self.given(store)).writeStream.outputMode(mode).trigger(availableNow=True)
        place = f"{self._folder}/{'plain' if store is None else 'framed'}-checkpoint"
        writer.option("checkpointLocation", place).foreachBatch(take).start().awaitTermination()
        return batches


def compare(
    streams: Streams, program: Callable[..., Any], store: str, runs: Sequence[Any], mode: str = "append"
) -> list[Any]:
    """Each micro-batch has Spark's rows, in each of the runs on more files. Return them."""
    number, found = 0, []
    for files in runs:
        for rows in files:
            streams.put(number, rows)
            number += 1
        expected = streams.run(program, None, mode)
        assert streams.run(program, store, mode) == expected
        found += expected
    return found


def windowed(words: Any) -> Any:
    counted = words.withWatermark("wordAt", "10 minutes").groupBy(F.window("wordAt", "10 minutes"), "word")
    return counted.agg(F.count("*").alias("n"), F.min("wordAt").alias("first"))


def windows_of_windows(words: Any) -> Any:
    few = windowed(words).drop("first").withColumnRenamed("word", "term").select("n", "term", "window")
    hours = few.groupBy(F.window(F.window_time("window"), "1 hour"), "term")
    return hours.agg(F.sum("n").alias("total"), F.count("n").alias("windows"))


def test_windows_of_windows_have_sparks_rows_in_each_micro_batch(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    first = [
        [(0, "a"), (1, "b"), (9.99, "a"), (10, "a")],
        [(59.9999, "a"), (60, "b"), (35, "b")],
        # The watermark is at the end of an hour and of a window: both are over.
        [(70, "a"), (61, "a")],
        [(62, "b")],
        [(55, "late"), (60, "a")],
    ]
    second = [[(56, "late"), (79, "a")], [(140, "b"), (76, "b")], [(400, "z")]]
    runs = [[{"word": rows} for rows in files] for files in (first, second)]
    streams = Streams(spark, tmp_path, ["word"])
    batches = compare(streams, windows_of_windows, servers.url, runs)
    hours = [{row[0].start for row in batch} for batch in batches]
    assert [len(one) for one in hours] == [1, 1, 1], "each hour is in the micro-batch that ends it"
    assert sum(row[-2] for batch in batches for row in batch) == 14


def counted_once(words: Any) -> Any:
    return words.select("word", F.length("word").alias("n")).dropDuplicates().groupBy("n").count()


def words_of_windows(words: Any) -> Any:
    return windowed(words).select(F.col("word").alias("term")).dropDuplicates()


def windows_of_times(words: Any) -> Any:
    once = words.withWatermark("wordAt", "10 minutes").dropDuplicates(["word", "wordAt"])
    return once.groupBy(F.window("wordAt", "10 minutes"), "word").count()


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        (counted_once, "update"),
        (windows_of_times, "append"),
        pytest.param(words_of_windows, "append", marks=pytest.mark.long),
    ],
)
def test_duplicates_below_and_above_an_aggregation_are_sparks(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, program: Any, mode: str
) -> None:
    first = [
        [(0, "a"), (0, "bb"), (1, "cc"), (2, "a")],
        [(12, "a"), (13, "bb"), (14, "d")],
        [(30, "a"), (29.9999, "a")],
    ]
    second = [[(31, "cc"), (30, "a"), (31, "cc"), (32, "e"), (33, "e")], [(60, "bb")], [(90, "f")]]
    runs = [[{"word": rows} for rows in files] for files in (first, second)]
    batches = compare(Streams(spark, tmp_path, ["word"]), program, servers.url, runs, mode)
    assert len(batches) >= 2
    assert len({row for batch in batches for row in batch}) > 3


def test_three_calls_of_a_batch_have_sparks_rows(
    spark: SparkSession, servers: Servers[ThreadedServer]
) -> None:
    rows = [(START + timedelta(minutes=7 * n), f"w{n % 4}", n % 5) for n in range(60)]
    df = spark.createDataFrame(rows, "at timestamp, word string, v int")

    def program(given: DataFrame) -> DataFrame:
        distinct = given.select("word", "v").dropDuplicates().select(F.col("v").alias("one"), "word")
        counted = distinct.groupBy("one").agg(
            F.count("word").alias("words"), (F.sum("one") + 1).alias("more")
        )
        return counted.drop("more").groupBy("words").agg(F.max("one").alias("most")).filter("most > 0")

    def of_windows(given: DataFrame) -> DataFrame:
        return (
            given.groupBy(F.window("at", "10 minutes")).count().groupBy(F.window("window", "1 hour")).count()
        )

    framed = dos.frame(df, store=servers.url, workers=2)
    for one in (program, of_windows):
        assert table(one(framed)) == table(one(df))


def test_what_lies_between_two_calls_is_plain_or_refused_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    nothing_runs(monkeypatch)
    (words,) = Streams(spark, tmp_path, ["word"]).given("dos://127.0.0.1:9")
    counted = windowed(words)
    hour = F.window("window", "1 hour")
    calls: dict[str, Callable[[], Any]] = {
        "Filter lies between two stateful calls": lambda: counted.filter("n > 1").groupBy(hour).count(),
        "Generate lies between": lambda: (
            counted.select("window", F.explode(F.array("n", "n")).alias("n")).groupBy(hour).count()
        ),
        "'double' is computed between aggregate_by_word_10m": lambda: (
            counted.withColumn("double", F.col("n") * 2).groupBy(hour, "double").count()
        ),
        "'more' is computed between": lambda: (
            windowed(words)
            .groupBy(hour)
            .agg(F.max("n"))
            .select("window", (F.col("max(n)") + 1).alias("more"))
            .groupBy(hour)
            .agg(F.sum("more"))
        ),
        "is computed between": lambda: counted.groupBy(hour).agg(F.sum(F.col("n") * 2)),
        "'true.*is computed between": lambda: counted.groupBy(hour).agg(F.count_if(F.col("n") > 1)),
        "uses its window 'window'": lambda: counted.groupBy("window").count(),
        "window.* of a time that is no window": lambda: counted.groupBy(F.window("first", "1 hour")).count(),
        "withWatermark after a stateful call": lambda: counted.withWatermark("first", "1 hour"),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert "dos.frame(first.df())" in caught.value.remedy or text.startswith("with"), text
    for mode in ("update", "complete"):
        with pytest.raises(AnalysisException) as refused:
            counted.groupBy(hour, "word").count().writeStream.outputMode(mode).format("noop").start()
        assert not isinstance(refused.value, FrameError), "Spark's own condition"
    same = [
        counted.groupBy(F.window(time, "10 minutes"), "word").count()
        for time in ("window", F.window_time("window"))
    ]
    for one in same:
        with pytest.raises(FrameError, match=r"two calls would be named 'aggregate_by_word_10m'.*\.named"):
            one.df()
    same[0].named("again").explain()
    text = capsys.readouterr().out
    assert text.index("aggregate aggregate_by_word_10m") < text.index("aggregate again")


def ads_and_clicks(ads: Any, clicks: Any, delays: tuple[str, str] = ("1 hour", "2 hours")) -> Any:
    seen, clicked = ads.withWatermark("adAt", delays[0]), clicks.withWatermark("clickAt", delays[1])
    condition = "click = ad AND clickAt >= adAt AND clickAt <= adAt + interval 1 hour"
    return seen.join(clicked, F.expr(condition)).withColumn("late", clicked["clickAt"] > seen["adAt"])


def test_a_join_of_two_streams_has_sparks_rows_in_each_micro_batch(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    first = [
        {"ad": [(0, "a"), (5, "b")], "click": [(0, "a"), (-1, "a"), (65, "b")]},
        {"ad": [(10, "a"), (300, "c")], "click": [(60, "a"), (60.0001, "a"), (70, "a"), (200, "x")]},
        # The watermark is 80: that of the clicks, which are slower, although their delay is longer.
        {"ad": [(81, "d"), (180, "d")], "click": [(82, "d"), (79, "x")]},
        {"ad": [(80, "late"), (80.0001, "e")], "click": [(80.0001, "late"), (81, "e"), (141, "d")]},
    ]
    second = [
        {"ad": [(80, "late"), (82, "f")], "click": [(82, "late"), (90, "f"), (142, "d"), (400, "g")]},
        {"ad": [(390, "g")], "click": []},
        {"ad": [], "click": [(330, "c"), (360, "c"), (361, "c")]},
    ]
    streams = Streams(spark, tmp_path, ["ad", "click"])
    batches = compare(streams, ads_and_clicks, servers.url, [first, second])
    begin = START.replace(tzinfo=None)
    found = {(row[1], (row[2] - begin) / timedelta(minutes=1)) for batch in batches for row in batch}
    assert {("a", 0), ("a", 60), ("a", 70), ("d", 82), ("e", 81), ("d", 141), ("c", 360)} <= found
    assert not {("late", 82), ("c", 361), ("a", -1)} & found


def test_a_join_of_streams_that_no_region_computes_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_runs(monkeypatch)
    ads, clicks = Streams(spark, tmp_path, ["ad", "click"]).given("dos://127.0.0.1:9")
    seen, clicked = ads.withWatermark("adAt", "1 hour"), clicks.withWatermark("clickAt", "2 hours")
    equal = "ad = click AND clickAt >= adAt"

    def joined(condition: str, how: str = "inner") -> Callable[[], Any]:
        return lambda: seen.join(clicked, F.expr(condition), how)

    calls: dict[str, Callable[[], Any]] = {
        "the left one has 0 columns with a watermark": lambda: ads.join(clicked, F.expr(equal)),
        "the right one has 0 columns with a watermark": lambda: seen.join(clicks, F.expr(equal)),
        "compared in both directions": joined(equal),
        "compared in both .*directions": joined(f"{equal} AND hour(clickAt) <= hour(adAt) + 1"),
        "both directions": joined(f"{equal} AND clickAt <= date_trunc('hour', adAt) + interval 1 hour"),
        "without equal columns": joined("clickAt BETWEEN adAt AND adAt + interval 1 hour"),
        "LeftOuter join of streams is not computed": joined(equal, "left"),
        "LeftSemi join of streams is not computed": joined(equal, "left_semi"),
        "a stateful call above join_by_ad": lambda: (
            joined(f"{equal} AND clickAt < adAt + interval 1 hour")().groupBy("ad").count()
        ),
        "adds no fixed time": joined(f"{equal} AND clickAt < adAt + make_interval(0, 1)"),
    }
    for text, call in calls.items():
        with pytest.raises(FrameError, match=text) as caught:
            call()
        assert caught.value.remedy, text
    policy = "spark.sql.streaming.multipleWatermarkPolicy"
    inner = joined("ad = click AND clickAt BETWEEN adAt - interval 1 day AND adAt + interval 2 minutes")()
    assert inner._call.divided.reach == timedelta(days=2), "a day of a time zone may be longer"
    spark.conf.set(policy, "max")
    try:
        for call in (inner.df, joined(f"{equal} AND clickAt = adAt")):
            with pytest.raises(FrameError, match=policy):
                call()
    finally:
        spark.conf.unset(policy)


def test_a_join_has_the_delay_of_each_stream_and_keys_that_are_named_by_content(
    spark: SparkSession, tmp_path: Path
) -> None:
    (words,) = Streams(spark, tmp_path, ["word"]).given("dos://127.0.0.1:9")
    left = words.withColumn("n", F.length("word")).withWatermark("wordAt", "1 hour")
    right = words.toDF("at", "term").withColumn("m", F.length("term")).withWatermark("at", "2 hours")
    conditions = ["word = term", "n = m", "at = wordAt"]
    both = [left.join(right, F.expr(" AND ".join(one))) for one in (conditions, conditions[::-1])]
    calls = [one._call.divided for one in both]
    assert {*calls[0].keys} == {*calls[1].keys} == {"#word=term", "#n=m"}
    assert calls[0].reach == timedelta(0)
    specs = calls[0].graph("any", "append").plan().specs
    delays = [specs[f"{calls[0].name}.{side}.time"].lateness for side in ("left", "right")]
    # Less 1 microsecond: a row at the watermark of Spark is late.
    assert [one + timedelta(microseconds=1) for one in delays] == [timedelta(hours=1), timedelta(hours=2)]

"""`through` on a real Spark session: a DataFrame in, a region, a DataFrame out."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_integration as dos
from checkpoint.errors import RegionFailedError
from dataflow import (
    Count,
    FileSink,
    Graph,
    InputSource,
    LogSink,
    LogSource,
    Tumbling,
    UserOperator,
    consistent,
)
from dataflow.errors import SchemaError
from dataflow.schema import parse_schema
from dos_client.blocking import open_store
from dos_protocol.errors import DosError
from dos_server.testing import Servers, ThreadedServer, threaded_store
from spark_integration.errors import (
    NotEnoughSlotsError,
    SchemaMismatchError,
    StoreNotUsableError,
)
from spark_integration.frames import ends_of
from tests.support.examples import run_example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
WORDS = parse_schema("word string")


def counting(name: str, schema: Any = "word string") -> Graph:
    graph = Graph(name)
    words = graph.source("words", InputSource("words", schema))
    words.key_by("by_word", "word").count("counts").sink("totals", LogSink(publish="checkpoint"))
    return graph


def newest(rows: list[Any]) -> dict[str, int]:
    """The last count of each word: counts only grow."""
    found: dict[str, int] = {}
    for word, count in rows:
        found[word] = max(count, found.get(word, 0))
    return found


def test_the_ends_of_a_graph_are_found_or_asked_for_and_columns_that_do_not_fit_are_named() -> None:
    graph = counting("g")
    ends = ends_of(graph, {"": WORDS}, output=None)
    assert (ends.handles, ends.sink, ends.columns.names) == (["words"], "totals", ["word", "count"])
    with pytest.raises(
        SchemaMismatchError, match=r"'word' is int, but string there.*InputSource\('words', df"
    ):
        ends_of(graph, {"": parse_schema("word int")}, output=None)
    with pytest.raises(DosError, match=r"no LogSink named 'totls' \(did you mean 'totals'\?\)"):
        ends_of(graph, {"": WORDS}, output="totls")
    graph.stream("counts").sink("more", LogSink())
    with pytest.raises(DosError, match=r"2 operators of kind LogSink \('more', 'totals'\).*output="):
        ends_of(graph, {"": WORDS}, output=None)
    assert ends_of(graph, {"words": WORDS}, output="more").sink == "more"
    closed = Graph("closed")
    closed.source("words", InputSource("words", WORDS)).sink("files", FileSink("out"))
    with pytest.raises(DosError, match=r"0 operators .* add one, LogSink"):
        ends_of(closed, {"": WORDS}, output=None)


@pytest.mark.every_pyspark
def test_a_frame_that_is_no_stream_returns_whole_and_again_without_being_fed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = ["one", "two", "two", "three", "three", "three"] * 7
    frame = spark.createDataFrame([(word,) for word in words], "word string").repartition(2)
    graph = counting("batch", frame.schema)
    for given in (frame, frame.limit(1)):  # the second time it was done before
        counts = dos.through(given, graph, workers=1, data_dir=tmp_path / "store", name="once")
        assert newest(counts.collect()) == Counter(words)
        assert counts.dos.exception() is None
        counts.dos.stop()


def test_windows_over_a_frame_lose_no_row_whatever_its_width_and_the_order_of_its_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The partitions of a frame are parts of one batch, and wider rows make more parts and steps: with a
    watermark that moved within the batch, rows of later partitions were late.
    """
    count = 40_000
    frame = spark.range(0, count, 1, 3).selectExpr(
        f"timestamp_seconds({count} - id) at", "'k' key", "sha2(string(id), 512) wide"
    )
    graph = Graph("windows")
    rows = graph.source("rows", InputSource("rows", frame.schema))
    timed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
    counts = timed.aggregate("counts", Tumbling("at", timedelta(hours=1)), rows=Count())
    counts.sink("totals", LogSink(publish="checkpoint"))
    found = dos.through(frame, graph, workers=1, data_dir=tmp_path / "store")
    assert sum(row["rows"] for row in found.collect()) == count
    found.dos.stop()


def test_null_keys_are_grouped_as_spark_groups_them_and_null_times_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(0, 900, 1, 3).selectExpr(
        "if(id % 9 = 0, null, timestamp_seconds(id)) at", "if(id % 2 = 0, null, 'k' || id % 5) key"
    )
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", frame.schema))
    timed = rows.event_time("timed", "at", lateness=timedelta(0), on_null="drop").key_by("by_key", "key")
    counts = timed.aggregate("counts", Tumbling("at", timedelta(days=1)), rows=Count())
    counts.sink("totals", LogSink(publish="checkpoint"))
    found = dos.through(frame, graph, workers=2, data_dir=tmp_path / "store")
    expected = frame.where("at is not null").groupBy("key").count().collect()
    assert {row["key"]: row["rows"] for row in found.collect()} == {row[0]: row[1] for row in expected}
    found.dos.stop()


@pytest.mark.every_pyspark
def test_the_stream_of_the_documentation_continues_where_it_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    every: Counter[str] = Counter()
    with threaded_store() as servers:
        places = {"store": servers.url, "data": f"{tmp_path}/"}
        for number in range(2):
            line = f"a b{number} b{number}"
            (tmp_path / "logs" / f"{number}.txt").write_text(f"{line}\n")
            every.update(line.split())
            names = run_example("docs/spark.md", "through", {"spark": spark}, **places)
            query = names["query"]
            query.processAllAvailable()
            query.stop()
            assert newest(spark.read.parquet(f"{tmp_path}/counts").collect()) == every
            names["counts"].dos.stop()


def test_what_is_missing_is_reported_before_anything_is_started(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS word")
    with threaded_store() as servers:
        with pytest.raises(NotEnoughSlotsError, match=r"1 must be left .*stream needs one slot besides"):
            dos.through(stream, counting("g"), workers=6, store=servers.url)
        with open_store(servers.url) as store:
            assert store.list_directories() == []


def test_a_graph_of_several_regions_is_refused_before_anything_is_started(spark: SparkSession) -> None:
    graph = counting("parts")
    graph.stream("words").annotate(consistent(period=0.5))
    again = graph.source("again", LogSource("totals", "word string, count bigint"))
    again.annotate(consistent(period=0.5)).sink("more", LogSink())
    frame = spark.createDataFrame([("one",)], "word string")
    with threaded_store() as servers, open_store(servers.url) as store:
        with pytest.raises(DosError, match=r"'parts' consists of several regions: start it with `run`"):
            dos.through(frame, graph, output="totals", workers=1, store=servers.url)
        assert store.list_directories() == []


def test_a_store_that_is_missing_is_reported(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS word")
    with pytest.raises(StoreNotUsableError, match=r"no server of dos://127\.0\.0\.1:1 answers"):
        dos.through(stream, counting("g"), workers=1, store="dos://127.0.0.1:1")


class Unwilling(UserOperator):
    """Cannot be opened."""

    schema = "word string"

    def open(self, place: Any) -> None:
        raise ValueError("no model here")

    def process(self, batch: Any) -> Any:
        return batch


def raising(batches: Any) -> Any:
    yield from batches
    raise ValueError("a row too many")


def test_what_fails_later_ends_the_region_and_the_same_call_continues(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path
) -> None:
    unwilling = Graph("unwilling")
    words = unwilling.source("words", InputSource("words", WORDS))
    words.apply("unwilling", Unwilling()).sink("out", LogSink())
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS word")
    through = dos.through(stream, unwilling, workers=1, store=servers.url)
    writing = through.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=r"RegionFailedError.*no model here"):
        writing.start().awaitTermination()
    assert isinstance(through.dos.exception(), RegionFailedError)
    through.dos.stop()
    frame = spark.createDataFrame([("one",), ("two",), ("one",)], "word string")
    wrong = frame.mapInArrow(raising, frame.schema)
    with pytest.raises(PySparkException, match="a row too many"):
        dos.through(wrong, counting("late"), workers=1, store=servers.url, name="late")
    assert all(not one.numRunningTasks for one in tasks_at_work(spark))
    counts = dos.through(frame, counting("late"), workers=1, store=servers.url, name="late")
    assert newest(counts.collect()) == {"one": 2, "two": 1}
    counts.dos.stop()


def tasks_at_work(spark: SparkSession) -> list[Any]:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return [stage for stage in stages if stage is not None]


def test_threads_that_did_not_make_the_session_call_it_too_and_at_the_same_time(
    spark: SparkSession, servers: Servers[ThreadedServer]
) -> None:
    together = threading.Barrier(2)
    fresh = [spark.newSession() for _ in range(5)]

    def call(number: int) -> dict[str, int]:
        for session in fresh:  # which knows nothing of the format yet
            together.wait()
            dos.register(session)
        frame = spark.createDataFrame([(f"w{number}",)] * 3, "word string")
        counts = dos.through(frame, counting(f"thread{number}"), workers=1, store=servers.url)
        counts.dos.stop()
        return newest(counts.collect())

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(call, range(2))) == [{"w0": 3}, {"w1": 3}]


def test_a_struct_type_is_a_schema_wherever_one_is_asked_for(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "`a b` string, n struct<x: bigint>, at timestamp, l array<int>")
    ddl = "`a b` string, n struct<x: bigint>, at timestamp, l array<int>"
    assert InputSource("i", frame.schema).schema.equals(parse_schema(ddl))
    with pytest.raises(SchemaError, match=r"a StructType or a string such as .*, not string"):
        parse_schema(frame.schema["a b"].dataType)

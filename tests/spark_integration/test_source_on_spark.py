"""The source `dos` on a real Spark session, over a store of three in memory: what only Spark can show."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpoint import limits
from dataflow.blocking import open_producer
from dos_client.blocking import BlockingStore, open_store
from dos_server.testing import Servers, ThreadedServer
from spark_integration import register
from spark_integration.versions import ADMISSION_CONTROL, FILTER_PUSHDOWN
from tests.dataflow.test_region_trim import dos
from tests.spark_integration.pyspark_versions import refused_before
from tests.spark_integration.stored_data import arrow, lines, write_batches, write_objects, write_steps
from tests.support.examples import run_example

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WORDS = pa.schema([("word", pa.string()), ("count", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
COUNTS = pa.schema([("word", pa.string()), ("count", pa.int64())])
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def store(servers: Servers[ThreadedServer], spark: SparkSession) -> Iterator[BlockingStore]:
    """What all tests of this file read."""
    register(spark)
    with open_store(servers.url) as found:
        steps = {step: [{"word": f"w{step}", "count": step, "at": step * 1_000_000}] for step in range(1, 7)}
        write_steps(found, "words", "counts", 0, steps, WORDS)
        write_steps(found, "words", "counts", 1, {step: [] for step in steps}, WORDS)
        write_objects(found, "logs", {"a.log": b"one\ntwo\n", "b.json": lines([{"n": 1}, {"n": 2}])})
        write_batches(found, "shop", "orders", "till", [[{"n": 7}]], pa.schema([("n", pa.int64())]))
        yield found


def words(spark: SparkSession, servers: Servers[ThreadedServer]) -> Any:
    return spark.read.format("dos").option("output", "counts")


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.every_pyspark
def test_an_output_is_a_table_with_the_columns_that_the_region_gave_it(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    frame = words(spark, servers).load(f"{servers.url}/words")
    assert frame.schema.simpleString() == "struct<word:string,count:bigint,at:timestamp>"
    assert collected(frame.where("count > 4").selectExpr("word", "unix_timestamp(at)")) == [
        ("w5", 5),
        ("w6", 6),
    ]
    assert frame.groupBy().sum("count").collect()[0][0] == 21


def test_a_schema_is_a_ddl_string_or_a_struct_type_and_chooses_columns_by_name(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    ddl = words(spark, servers).schema("count bigint, _step bigint").load(f"{servers.url}/words")
    assert collected(ddl)[:2] == [(1, 1), (2, 2)]
    struct = StructType([StructField("word", StringType()), StructField("count", LongType())])
    assert words(spark, servers).schema(struct).load(f"{servers.url}/words").schema == struct
    named = words(spark, servers).options(columns="word", filter="count = 3").load(f"{servers.url}/words")
    assert collected(named) == [("w3",)]


@pytest.mark.every_pyspark
def test_objects_and_input_handles_are_tables_too(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    text = spark.read.format("dos").option("content", "lines").load(f"{servers.url}/logs/a.log")
    json = (
        spark.read.format("dos").option("content", "json").schema("n int").load(f"{servers.url}/logs/b.json")
    )
    orders = spark.read.format("dos").option("input", "orders").load(f"{servers.url}/shop")
    every = text.union(json.selectExpr("string(n)")).union(orders.selectExpr("string(n)"))
    assert collected(every) == [("1",), ("2",), ("7",), ("one",), ("two",)]


@pytest.mark.every_pyspark
@refused_before(FILTER_PUSHDOWN)
def test_filters_are_pushed_down_where_the_conf_allows_it_and_give_the_same_rows(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    spark.conf.set(PUSHDOWN, "true")
    try:
        register(spark)
        frame = (
            words(spark, servers)
            .load(f"{servers.url}/words")
            .where("count >= 3 AND word <> 'w4' AND at IS NOT NULL")
        )
        assert [row[1] for row in collected(frame)] == [3, 5, 6]
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" not in plan, plan
    finally:
        spark.conf.set(PUSHDOWN, "false")
        register(spark)
    without = words(spark, servers).load(f"{servers.url}/words").where("count >= 3")
    assert "Filter (" in without._jdf.queryExecution().executedPlan().toString()
    assert without.count() == 4


def test_what_is_wrong_is_reported_when_load_is_called(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore
) -> None:
    with pytest.raises(PySparkException, match=r"BadOptionError: .*did you mean 'columns'\?"):
        words(spark, servers).option("colums", "word").load(f"{servers.url}/words")


@pytest.mark.every_pyspark
@refused_before(ADMISSION_CONTROL)
def test_a_stream_of_arrow_objects_says_in_its_progress_how_far_there_is_more(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    streams = [arrow([{"word": f"w{number}", "count": number}], COUNTS) for number in range(4)]
    write_objects(store, "arrows", {"a": b"".join(streams)})
    asked = spark.readStream.format("dos").options(content="arrow", maxRowsPerTrigger="3")
    sink = (
        asked.load(f"{servers.url}/arrows").writeStream.format("parquet").option("path", str(tmp_path / "t"))
    )
    query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    table = pq.read_table(tmp_path / "t")
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [(f"w{n}", n) for n in range(4)]
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert [source["numInputRows"] for source in sources] == [3, 1]
    ends = [json.loads(source["endOffset"])["splits"]["a"]["size"] for source in sources]
    assert ends == [sum(map(len, streams[:3])), sum(map(len, streams))]
    assert [json.loads(source["latestOffset"])["splits"]["a"]["size"] for source in sources] == [ends[1]] * 2


@pytest.mark.every_pyspark
def test_a_query_continues_from_its_checkpoint_and_a_latest_one_begins_with_what_is_new(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    def run(table: str, **options: str) -> list[int]:
        stream = spark.readStream.format("dos").options(input="n", **options).load(f"{servers.url}/continued")
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / table))
        sink = sink.option("checkpointLocation", str(tmp_path / f"{table}-c")).trigger(availableNow=True)
        sink.start().awaitTermination()
        files = (tmp_path / table).glob("*.parquet")
        return sorted(number for file in files for number in pq.read_table(file)["n"].to_pylist())

    numbers = pa.schema([("n", pa.int64())])
    with open_producer(store, "continued", "n", "p", numbers) as producer:
        for first in (0, 3):
            producer.wait_recorded(producer.send([{"n": number} for number in range(first, first + 3)]))
            assert run("all") == list(range(first + 3))
            assert run("new", startingOffset="latest") == list(range(3, first + 3))
    for log in (tmp_path / "all-c" / "commits").glob("*1*"):
        log.unlink()  # as if the driver had died before Spark recorded the commit
    assert run("all") == list(range(6)), "the file sink ignores a micro-batch that it has"
    assert run("all") == list(range(6))


@refused_before(ADMISSION_CONTROL)
def test_above_a_damaged_checkpoint_of_spark_a_query_has_each_row_or_fails(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    """Micro-batches are idempotent by their number, as every user of foreachBatch must make them."""
    batches: dict[int, list[int]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        batches[number] = [row["n"] for row in frame.collect()]

    def run(checkpoint: Path, rows: int) -> None:
        options = {"input": "n", "maxRowsPerTrigger": str(rows)}
        stream = spark.readStream.format("dos").options(**options).load(f"{servers.url}/damaged")
        sink = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        sink.trigger(availableNow=True).start().awaitTermination()

    with open_producer(store, "damaged", "n", "p", pa.schema([("n", pa.int64())])) as producer:
        for first in (0, 3, 6):
            producer.wait_recorded(producer.send([{"n": number} for number in range(first, first + 3)]))
        run(tmp_path / "c", 3)
        producer.wait_recorded(producer.send([{"n": 9}]))
    done = dict(batches)
    assert done == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}
    for last, lost, emptied, continues in (
        (2, ["commits/2"], [], True),
        (0, ["commits/1", "commits/2", "offsets/1", "offsets/2"], [], True),  # an older copy
        (2, ["commits/2", "offsets/1"], [], False),
        (2, [], ["offsets/2"], False),
    ):
        checkpoint = tmp_path / f"without {len(lost)} and {len(emptied)}"
        shutil.copytree(tmp_path / "c", checkpoint)
        for name in (*lost, *emptied):
            path = checkpoint / name
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            path.unlink()
        for name in emptied:
            (checkpoint / name).touch()
        before = {number: rows for number, rows in done.items() if number <= last}
        batches.clear()
        batches.update(before)
        if continues:
            run(checkpoint, 100)
            assert sorted(number for rows in batches.values() for number in rows) == list(range(10))
        else:
            with pytest.raises(StreamingQueryException):
                run(checkpoint, 100)
            assert batches == before


# EVIDENCE-OF: P-6
@pytest.mark.every_pyspark
@refused_before(ADMISSION_CONTROL)
def test_a_stopped_query_continues_without_losing_a_row_after_its_input_was_trimmed(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "input_segment_bytes_max", 1)
    monkeypatch.setattr(limits, "trim_poll_s", 0.2)
    numbers = pa.schema([("n", pa.int64())])

    def run() -> None:
        options = {"input": "numbers", "consumer": "report", "consumerRetainSeconds": "0"}
        stream = spark.readStream.format("dos").options(**options).load(f"{servers.url}/trimmed")
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "t"))
        sink = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        sink.start().awaitTermination()

    def status() -> dict[str, Any]:
        done = dos("input", "consumers", servers.url, "trimmed", "numbers", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with open_producer(store, "trimmed", "numbers", "p", numbers) as producer:
        for first in (0, 4, 8):
            for number in range(first, first + 4):
                producer.wait_recorded(producer.send([{"n": number}]))
            run()
            (query,) = status()["queries"]
            # A micro-batch counts when the next one begins: the last one of each run is needed still.
            before = query["positions"]["p"]
            assert before["needs"] < before["read"] + before["lagBytes"]
            deadline = time.monotonic() + 60
            while first == 4 and not status()["splits"][0]["begin"]:
                assert time.monotonic() < deadline, "the input is trimmed while the query is stopped"
                time.sleep(0.2)
    assert sorted(pq.read_table(tmp_path / "t")["n"].to_pylist()) == list(range(12))


def test_the_examples_of_the_page_run(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    store: BlockingStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for worker in (0, 1):
        steps = {step: [{"word": f"w{worker}", "count": 10 * step}] for step in (1, 2)}
        write_steps(store, "wordcount", "counts", worker, steps, COUNTS)
    for name in ("five_minutes", "columns", "stream", "consumer"):
        run_example("docs/spark.md", name, {"spark": spark}, store=servers.url, data=f"{tmp_path}/")
    shown = [
        re.findall(r"\w+", line) for line in capsys.readouterr().out.splitlines() if line.startswith("|")
    ]
    assert shown[:3] == [["word", "count"], ["w0", "20"], ["w1", "20"]]
    assert sorted(shown[4:]) == [["1", "2"], ["2", "2"]]
    table = pq.read_table(tmp_path / "counts")
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [
        ("w0", 10),
        ("w0", 20),
        ("w1", 10),
        ("w1", 20),
    ]

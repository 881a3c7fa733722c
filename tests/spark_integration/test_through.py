"""`through` on a real Spark session: a DataFrame in, a region, a DataFrame out; README's second example."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_integration as dos
from dataflow import FileSink, Graph, InputSource, LogSink
from dataflow.blocking import close_input
from dataflow.errors import SchemaError
from dataflow.schema import parse_schema
from dos_client.blocking import open_store
from dos_server.testing import threaded_store
from spark_integration.errors import (
    NoCheckpointError,
    NoSuchEndError,
    NotEnoughSlotsError,
    SchemaMismatchError,
)
from spark_integration.graph_ends import ends_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
README = Path(__file__).parents[2] / "README.md"
WORDS = parse_schema("word string")


def counting(name: str, schema: Any = "word string") -> Graph:
    graph = Graph(name)
    words = graph.source("words", InputSource("words", schema))
    words.key_by("by_word", "word").count("counts").sink("totals", LogSink(publish="cut"))
    return graph


def newest(rows: list[Any]) -> dict[str, int]:
    """The last count of each word: counts only grow."""
    found: dict[str, int] = {}
    for word, count in rows:
        found[word] = max(count, found.get(word, 0))
    return found


def test_the_ends_of_a_graph_are_found_or_asked_for_and_columns_that_do_not_fit_are_named() -> None:
    graph = counting("g")
    ends = ends_of(graph, WORDS, into=None, output=None)
    assert (ends.handle, ends.sink, ends.columns.names) == ("words", "totals", ["word", "count"])
    with pytest.raises(
        SchemaMismatchError, match=r"'word' is int, and string there.*InputSource\('words', df"
    ):
        ends_of(graph, parse_schema("word int"), into=None, output=None)
    with pytest.raises(NoSuchEndError, match=r"no LogSink named 'totls' \(did you mean 'totals'\?\)"):
        ends_of(graph, WORDS, into=None, output="totls")
    graph.stream("counts").sink("more", LogSink())
    with pytest.raises(NoSuchEndError, match=r"2 operators that are a LogSink \('more', 'totals'\).*output="):
        ends_of(graph, WORDS, into=None, output=None)
    assert ends_of(graph, WORDS, into="words", output="more").sink == "more"
    closed = Graph("closed")
    closed.source("words", InputSource("words", WORDS)).sink("files", FileSink("out"))
    with pytest.raises(NoSuchEndError, match=r"0 operators .* add one, LogSink"):
        ends_of(closed, WORDS, into=None, output=None)


def test_a_frame_that_is_no_stream_comes_back_whole_and_again_without_being_fed_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    words = ["one", "two", "two", "three", "three", "three"] * 7
    frame = spark.createDataFrame([(word,) for word in words], "word string").repartition(2)
    graph = counting("batch", frame.schema)
    for given in (frame, frame.limit(1)):  # the second time it was done before
        counts = dos.through(given, graph, workers=1, data_dir=tmp_path / "store", name="once")
        assert newest(counts.collect()) == Counter(words)
        assert counts.dos.feed is None
        assert counts.dos.exception() is None
        counts.dos.stop()


def test_the_readmes_stream_goes_through_a_region_and_on_where_it_stopped_and_says_why_its_feed_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    found = re.search(r"<!-- example: through -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "logs").mkdir()
    every: Counter[str] = Counter()
    with threaded_store() as servers:
        text = found[1].replace("dos://host1,host2,host3", servers.url).replace('"/data/', f'"{tmp_path}/')
        for number in range(2):
            line = f"a b{number} b{number}"
            (tmp_path / "logs" / f"{number}.txt").write_text(f"{line}\n")
            every.update(line.split())
            names: dict[str, Any] = {"spark": spark}
            exec(compile(text, "README.md", "exec"), names)
            query = names["query"]
            while newest(read(spark, tmp_path)) != every:
                assert query.isActive, query.exception()
                query.processAllAvailable()
            query.stop()
            through = names["counts"].dos
            if number:  # a feed that fails says why
                with open_store(servers.url) as store:
                    close_input(store, "wordcount", "lines")
                (tmp_path / "logs" / "late.txt").write_text("late")
                with pytest.raises(PySparkException, match="InputClosedError"):
                    through.feed.awaitTermination()
                assert "InputClosedError" in str(through.exception())
            through.stop()


def read(spark: SparkSession, tmp_path: Path) -> list[Any]:
    """What is in the table; nothing before its first rows."""
    if not list((tmp_path / "counts").glob("*.parquet")):
        return []
    return spark.read.parquet(f"{tmp_path}/counts").collect()


def test_what_is_missing_is_said_before_anything_is_started(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS word")
    with pytest.raises(NoCheckpointError, match=r"through\(\.\.\., checkpoint="):
        dos.through(stream, counting("g"))
    with threaded_store() as servers:
        with pytest.raises(NotEnoughSlotsError, match=r"1 must be left .*stream needs one slot beside"):
            dos.through(stream, counting("g"), workers=6, store=servers.url, checkpoint="unused")
        with open_store(servers.url) as store:
            assert store.list_directories() == []


def test_a_struct_type_is_a_schema_wherever_one_is_asked_for(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "`a b` string, n struct<x: bigint>, at timestamp, l array<int>")
    ddl = "`a b` string, n struct<x: bigint>, at timestamp, l array<int>"
    assert InputSource("i", frame.schema).schema.equals(parse_schema(ddl))
    with pytest.raises(SchemaError, match=r"a StructType or a string such as .*, not string"):
        parse_schema(frame.schema["a b"].dataType)

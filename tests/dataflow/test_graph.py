"""Building graphs: what a user writes, what it means, what is refused before anything starts."""

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataflow import (
    CallSink,
    Count,
    CountWindow,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    SchemaError,
)
from tests.dataflow.support import word_count


def test_a_word_count_is_a_graph_of_five_named_operators(tmp_path: Path) -> None:
    plan = word_count([tmp_path / "a"], tmp_path / "out").plan()
    assert list(plan.operators) == ["lines", "words", "by_word", "counts", "out"]
    assert plan.schemas["counts"] == pa.schema([("word", pa.string()), ("count", pa.int64())])
    assert plan.operators["counts"] == ("count from (by_word) key (word) gives (word string, count bigint)")


def test_the_fingerprint_does_not_change_with_the_function_and_does_with_name_key_and_schema(
    tmp_path: Path,
) -> None:
    def build(
        name: str = "words", schema: str = "word string, n int", key: str = "word", bonus: int = 0
    ) -> str:
        graph = Graph("g")
        lines = graph.source("lines", FileSource([tmp_path / "a"]))
        words = lines.flat_map(name, lambda row: [(row["line"], bonus)], schema=schema)
        words.key_by("k", key).count("c").sink("out", FileSink(tmp_path))
        return graph.plan().fingerprint

    assert build() == build(bonus=1)
    others = {build(name="w"), build(schema="word string, n bigint"), build(key="n")}
    assert len(others | {build()}) == 4


def test_the_description_of_an_operator_has_the_columns_of_the_rows_that_it_stores() -> None:
    """Also those that its output does not have: its stored table has them."""

    def build(columns: str, **options: Any) -> dict[str, str]:
        graph = Graph("g")
        rows = graph.source("rows", InputSource("rows", columns))
        keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
        keyed.map_state("state", print, time="at", schema="key string", state="n int").sink("a", LogSink())
        counted = keyed.aggregate("counted", CountWindow("at", 3), rows=Count())
        counted.sink("b", LogSink(**options))
        return graph.plan().operators

    before = build("key string, at timestamp")
    after = build("key string, at timestamp, more int")
    changed = {name for name in before if before[name] != after[name]}
    assert {"state", "counted"} <= changed
    assert not changed & {"a", "b"}
    by_step = build("key string, at timestamp", publish="step")
    assert {name for name in before if before[name] != by_step[name]} == {"b"}


def test_a_graph_survives_pickling_with_the_same_plan(tmp_path: Path) -> None:
    graph = word_count([tmp_path / "a"], tmp_path / "out", repeat=3)
    twin = pickle.loads(pickle.dumps(graph))
    assert twin.plan().fingerprint == graph.plan().fingerprint
    assert twin.plan().plan == graph.plan().plan


def test_a_stream_may_be_named_before_it_is_given(tmp_path: Path) -> None:
    graph = Graph("g")
    graph.sink("out", FileSink(tmp_path), graph.stream("upper"))
    lines = graph.source("lines", FileSource([tmp_path / "a"]))
    lines.map("upper", lambda row: row["line"].upper())
    assert [node.name for node in graph.plan().plan.nodes] == ["lines", "upper", "out"]


def test_a_cycle_built_by_names_is_refused(tmp_path: Path) -> None:
    graph = Graph("g")
    lines = graph.source("lines", FileSource([tmp_path / "a"]))
    both = lines.union("both", graph.stream("again"))
    both.map("again", lambda row: row["line"]).sink("out", FileSink(tmp_path))
    with pytest.raises(GraphError, match="cycle") as caught:
        graph.plan()
    assert "again" in str(caught.value)


def test_a_sink_declared_without_a_stream_is_refused(tmp_path: Path) -> None:
    graph = Graph("g")
    graph.source("lines", FileSource([tmp_path / "a"])).sink("out", FileSink(tmp_path))
    graph.sink("lonely", FileSink(tmp_path / "x"))
    with pytest.raises(GraphError, match="sink 'lonely' has no input"):
        graph.plan()


def test_streams_of_two_graphs_do_not_mix(tmp_path: Path) -> None:
    one, two = Graph("one"), Graph("two")
    lines = one.source("lines", FileSource([tmp_path / "a"]))
    with pytest.raises(GraphError, match="stream of graph 'one'"):
        two.sink("out", FileSink(tmp_path), lines)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda s: s.key_by("k", "nope").count("c"),
            "key column 'nope' does not exist; the columns are line",
        ),
        (lambda s: s.key_by("k").count("c"), "at least one column"),
        (lambda s: s.key_by("k", "line", "line").count("c"), "named only once"),
        (
            lambda s: s.map("f", lambda r: 1.5, schema="x double").key_by("k", "x").count("c"),
            "double cannot be a key",
        ),
        (
            lambda s: s.map("n", lambda r: "a", schema="count string").key_by("k", "count").count("c"),
            "named 'count' like the result",
        ),
        (lambda s: s.union("u", s.map("n", lambda r: 1, schema="n int")), "one schema"),
        (lambda s: s.map("l", lambda r: [1], schema="l array<int>"), "no text form"),
        (lambda s: s.map("b", lambda r: b"", schema="b binary"), "no text form"),
    ],
)
def test_operators_that_do_not_fit_their_input_are_refused_by_name(build, words: str, tmp_path: Path) -> None:
    graph = Graph("g")
    build(graph.source("lines", FileSource([tmp_path / "a"]))).sink("out", FileSink(tmp_path))
    with pytest.raises(GraphError) as caught:
        graph.plan()
    assert words in str(caught.value)


def test_what_cannot_be_a_function_or_a_source_is_refused_where_it_is_written(tmp_path: Path) -> None:
    lines = Graph("g").source("lines", FileSource([tmp_path / "a"]))
    with pytest.raises(SchemaError, match="needs a function, not str"):
        lines.map("m", "upper")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="'row', 'batch' or 'pandas'"):
        lines.map("m", len, takes="rows")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="takes must be 'row' or 'batch', not 'pandas'"):
        CallSink(print, takes="pandas")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="at least one file"):
        FileSource([])
    with pytest.raises(SchemaError, match=r"no file matches '/.*/\*\.nothing'"):
        FileSource(str(tmp_path / "*.nothing"))
    with pytest.raises(SchemaError, match="given twice"):
        FileSource([tmp_path / "a", tmp_path / "a"])
    with pytest.raises(SchemaError, match="an integer of 1 or more"):
        FileSource([tmp_path / "a"], repeat=0)

"""How a graph that is not one region is taken apart, and what is refused before anything starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    LogSource,
    Stream,
    UserOperator,
    autonomous,
    consistent,
)
from dataflow.graph.builder import part_options, parts_named, parts_of
from examples.shop import shop
from tests.checkpoint.manifest_samples import a_checkpoint

WORDS = "word string"


def region_of(graph: Graph, name: str, source: Any, **settings: float) -> Stream:
    return graph.source(name, source).annotate(consistent(**settings))  # type: ignore[arg-type]


def test_a_graph_that_is_one_region_is_one_part_of_the_applications_name(tmp_path: Path) -> None:
    graph = Graph("one")
    graph.source("lines", FileSource(tmp_path / "a")).sink("out", FileSink(tmp_path / "out"))
    (part,) = parts_of(graph, "app")
    assert (part.name, part.graph, part.settings) == ("app", graph, consistent())


def test_every_region_has_its_own_name_settings_and_graph(tmp_path: Path) -> None:
    graph = Graph("two")
    lines = region_of(graph, "lines", FileSource(tmp_path / "a"), period=3, max_consecutive_reset_attempts=1)
    lines.map("words", lambda row: row["line"], schema=WORDS).sink("words_out", LogSink())
    again = region_of(graph, "again", LogSource("words_out", WORDS), period=7)
    again.sink("shown", LogSink())
    first, second = parts_of(graph, "app")
    assert [part.name for part in (first, second)] == ["app.lines", "app.again"]
    assert second.reads == ("app.lines",)
    assert second.graph.plan().specs["again"].region == "app.lines"  # type: ignore[attr-defined]
    assert [node.name for node in first.graph.plan().plan.nodes] == ["lines", "words", "words_out"]
    assert part_options(first)["checkpoint_interval_s"] == 3
    assert part_options(first)["max_consecutive_reset_attempts"] == 1
    assert part_options(second)["checkpoint_interval_s"] == 7


def refusal(graph: Graph) -> str:
    with pytest.raises(GraphError) as raised:
        parts_of(graph, "app")
    return str(raised.value)


def test_what_cannot_run_outside_of_a_region_is_refused_with_a_reason(tmp_path: Path) -> None:
    graph = Graph("g")
    region_of(graph, "in_region", InputSource("x", WORDS)).sink("kept", LogSink())
    graph.source("lines", FileSource(tmp_path / "a")).sink("out", FileSink(tmp_path / "out"))
    said = refusal(graph)
    assert "source 'lines' is outside of any consistent region, and after a failure it would be read" in said
    assert "sink 'out' is outside of any consistent region, and publishes its output at checkpoints" in said


class GivesOn(UserOperator):
    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def test_an_operator_that_wants_rows_by_key_has_its_key_by_in_its_own_region() -> None:
    def words(applied: Callable[[Stream], Stream]) -> Graph:
        graph = Graph("g")
        rows = region_of(graph, "rows", InputSource("x", WORDS))
        applied(rows.key_by("by_word", "word")).annotate(autonomous).sink("out", CallSink(print))
        return graph

    assert "'own' needs rows by key, and 'by_word' is in another region" in refusal(
        words(lambda keyed: keyed.apply("own", GivesOn()))
    )
    parts_of(words(lambda keyed: keyed.map("own", lambda row: row)), "app")


def test_logs_that_cannot_be_read_are_refused_with_a_reason() -> None:
    graph = Graph("g")
    region_of(graph, "a", InputSource("x", WORDS)).sink("a_out", LogSink())
    region_of(graph, "b", LogSource("nothing", WORDS)).sink("b_out", LogSink())
    said = refusal(graph)
    assert "source 'b' reads the log of sink 'nothing', and no LogSink of this graph has that name" in said
    alone = Graph("g")
    alone.source("a", LogSource("a_out", WORDS)).sink("a_out", LogSink())
    assert "in the same region: it would wait for itself" in refusal(alone)
    circle = Graph("g")
    region_of(circle, "a", LogSource("b_out", WORDS)).sink("a_out", LogSink())
    region_of(circle, "b", LogSource("a_out", WORDS)).sink("b_out", LogSink())
    assert "regions app.a, app.b read each other's output in a cycle" in refusal(circle)


def test_the_parts_of_a_program_are_named_as_the_regions_that_they_continue() -> None:
    def graph(first: str) -> Graph:
        found = Graph("g")
        region_of(found, first, InputSource("x", WORDS)).key_by("by", "word").count("counts").sink(
            "out", LogSink()
        )
        region_of(found, "again", LogSource("out", WORDS)).sink("shown", LogSink())
        return found

    before = {part.name: part.graph.plan().operators for part in parts_of(graph("rows"), "app")}
    stored = {
        name: a_checkpoint(operators=operators, application="app") for name, operators in before.items()
    }
    assert [part.name for part in parts_named(graph("rows"), "app", {})] == ["app.rows", "app.again"]
    first, second = parts_named(graph("sold"), "app", stored)
    assert [first.name, second.name] == ["app.rows", "app.again"]
    assert second.reads == ("app.rows",), "a log is read from where it is"
    assert second.graph.plan().operators == before["app.again"]


def test_edges_and_names_that_a_log_cannot_carry_are_refused() -> None:
    graph = Graph("g")
    keyed = region_of(graph, "a", InputSource("x", WORDS)).key_by("by", "word")
    keyed.sink("out", LogSink())
    keyed.count("counted").sink("shown", LogSink())
    graph.annotate("counted", autonomous)
    graph.annotate("shown", autonomous)
    assert "sink 'shown' is outside" in refusal(graph)
    named = Graph("g")
    region_of(named, "in", InputSource("x", WORDS)).sink("a.leaves", LogSink())
    region_of(named, "b", InputSource("y", WORDS)).sink("c", LogSink())
    said = refusal(named)
    assert "names that end with '.leaves' are reserved" in said
    assert "'.in' at the end is reserved for inputs" in said


def test_the_shop_of_the_examples_is_two_regions_and_a_board() -> None:
    sales, by_log, board = parts_of(shop(), "shop")
    assert [part.name for part in (sales, by_log, board)] == ["shop.sales", "shop.by_log", "shop.seen"]
    assert board.settings is None
    assert (by_log.reads, board.reads) == (("shop.sales",), ("shop.sales",))
    names = [node.name for node in sales.graph.plan().plan.nodes]
    assert sorted(names) == ["sales", "sales.leaves", "sold"]
    assert part_options(board) == {"without_checkpoints": True}


def own_region(**settings: float) -> Graph:
    """Sales are counted in one region; another has the counts of each minute, and its own checkpoints."""
    graph = Graph("g")
    rows = region_of(graph, "rows", InputSource("x", WORDS), period=1)
    counts = rows.key_by("by_word", "word").count("counts")
    counts.sink("shown", LogSink())
    slow = counts.map("slow", lambda row: row["word"], schema=WORDS)
    slow.annotate(consistent(period=60, own_region=True, **settings))  # type: ignore[arg-type]
    slow.sink("report", LogSink())
    return graph


def test_a_region_of_its_own_reads_the_region_above_it_from_a_log() -> None:
    first, second = parts_of(own_region(), "app")
    assert [part.name for part in (first, second)] == ["app.rows", "app.slow"]
    assert [node.name for node in first.graph.nodes()[0]] == [
        *("rows", "by_word", "counts", "shown", "counts.leaves"),
    ]
    assert [node.name for node in second.graph.nodes()[0]] == ["counts", "slow", "report"]
    log = second.graph.plan().specs["counts"]
    assert isinstance(log, LogSource)
    assert (log.sink, log.region, second.reads) == ("counts.leaves", "app.rows", ("app.rows",))
    assert [part_options(part)["checkpoint_interval_s"] for part in (first, second)] == [1, 60]


def test_the_log_between_regions_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    own_region().explain()
    said = capsys.readouterr().out
    assert "region 2 (NAME.slow): checkpoint every 60 s" in said
    assert said.endswith(
        "logs in the store, with what committed checkpoints cover:\n  counts   from NAME.rows to NAME.slow\n"
    )


def test_a_region_of_its_own_whose_paths_meet_the_region_above_is_refused() -> None:
    graph = own_region()
    both = graph.stream("rows").filter("some", bool).union("both", graph.stream("slow"))
    both.sink("again", LogSink())
    with pytest.raises(GraphError, match="'slow' has own_region=True, and its input 'counts' is in the same"):
        graph.plan()
    both.annotate(consistent(own_region=True))
    assert [part.name for part in parts_of(graph, "app")] == ["app.rows", "app.slow", "app.both"]


def test_a_region_of_its_own_does_not_read_what_could_not_be_replayed() -> None:
    graph = Graph("g")
    region_of(graph, "x", InputSource("x", WORDS)).sink("kept", LogSink())
    outside = graph.source("rows", InputSource("y", WORDS))
    outside.map("own", lambda row: row, schema=WORDS).annotate(consistent(own_region=True)).sink(
        "out", LogSink()
    )
    with pytest.raises(GraphError, match="'own' is in a consistent region and takes input from 'rows'"):
        graph.plan()


def test_explain_refuses_what_run_refuses(tmp_path: Path) -> None:
    graph = Graph("g")
    region_of(graph, "in_region", InputSource("x", WORDS)).sink("kept", LogSink())
    graph.source("lines", FileSource(tmp_path / "a")).sink("out", FileSink(tmp_path / "out"))
    assert "'lines' is outside of any consistent region" in refusal(graph)
    with pytest.raises(GraphError, match="'lines' is outside of any consistent region"):
        graph.explain()
    triggered = Graph("g")
    rows = region_of(triggered, "rows", InputSource("x", WORDS))
    own = rows.map("own", lambda row: row, schema=WORDS)
    own.annotate(consistent(trigger="operator", own_region=True)).sink("out", LogSink())
    for refused in (triggered.explain, lambda: parts_of(triggered, "app")):
        with pytest.raises(GraphError, match="trigger='operator' needs"):
            refused()

"""Broadcast tables: complete on every worker, in effect from the next step on, also if they close a cycle."""

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from dataflow import FileSink, FileSource, Graph, GraphError, LogSink, consistent, limits
from dataflow.errors import UserFault
from dataflow.graph.builder import Stream
from dataflow.limits import WorkerLimits
from dataflow.operators.broadcast_state import BroadcastStateOperator
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files
from tests.dataflow.test_region_processes import finished, hurry, hurry_of, kill, running, unhurried

COLUMNS = pa.schema([("sensor", pa.string()), ("max", pa.int64())])


def rows(*given: tuple[str | None, int | None]) -> pa.RecordBatch:
    sensors, highest = [row[0] for row in given], [row[1] for row in given]
    return pa.record_batch([pa.array(sensors, pa.string()), pa.array(highest, pa.int64())], schema=COLUMNS)


def table() -> BroadcastStateOperator:
    return BroadcastStateOperator(("sensor",), COLUMNS)


# --- one table ----------------------------------------------------------------------------------------------


def test_what_comes_in_a_step_is_in_force_from_the_next_on_and_the_last_row_of_a_key_counts() -> None:
    control = table()
    control.process(rows(("a", 1), ("b", 2), ("a", 3)))
    assert dict(control.table) == {}
    control.begin_step()
    assert dict(control.table) == {"a": {"max": 3}, "b": {"max": 2}}


def test_a_row_of_nulls_takes_its_key_out() -> None:
    control = table()
    control.process(rows(("a", 1), ("b", 2)))
    control.begin_step()
    control.process(rows(("a", None)))
    control.begin_step()
    assert dict(control.table) == {"b": {"max": 2}}


def test_a_checkpoint_has_what_came_in_its_own_step_and_only_what_changed() -> None:
    control, again = table(), table()
    control.process(rows(("a", 1), ("b", 2)))
    again.restore(control.checkpoint())
    assert dict(again.table) == {"a": {"max": 1}, "b": {"max": 2}}
    control.begin_step()
    control.process(rows(("b", None), ("c", 3)))
    assert sorted(control.snapshot().column("sensor").to_pylist()) == ["a", "c"]
    block = control.checkpoint()
    assert sorted(block.column("sensor").to_pylist()) == ["b", "c"]
    again.restore(block)
    assert dict(again.table) == {"a": {"max": 1}, "c": {"max": 3}}
    assert control.checkpoint().num_rows == 0


def test_a_restored_table_is_iterated_like_the_one_that_was_not() -> None:
    """Otherwise a worker that is taken over could make other rows than the one before it."""
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    first, second = BroadcastStateOperator(["word"], schema), BroadcastStateOperator(["word"], schema)
    for words in ("db", "a", "ec"):
        first.process(pa.RecordBatch.from_pylist([{"word": word, "n": 1} for word in words], schema))
        first.begin_step()
        assert [*first.table] == [*first.table.keys()] == sorted(first.table)
    second.restore(first.checkpoint())
    assert [*second.table.items()] == [*first.table.items()]
    assert [*second.table] == ["a", "b", "c", "d", "e"]
    assert len([*second.table.values()]) == 5


def test_a_key_of_several_columns_is_a_tuple_and_a_null_in_it_is_refused() -> None:
    control = BroadcastStateOperator(("sensor", "max"), COLUMNS)
    control.process(rows(("a", 1)))
    control.begin_step()
    assert dict(control.table) == {("a", 1): {}}, "without other columns nothing takes a key out"
    with pytest.raises(UserFault, match=r"the key of a broadcast table \(sensor, max\) is null") as caught:
        control.process(rows(("a", 1), ("b", None)))
    assert caught.value.row == 1


# --- in a region --------------------------------------------------------------------------------------------


def known_words(paths: list[Path], *, cycle: bool, behind: bool) -> Graph:
    """Each word, and how many words the table knew: those of all workers, of the steps before.

    `behind`: the reader is behind an exchange, in the stage in which the rows of the table come.
    """
    graph = Graph("known")
    words = graph.source("lines", FileSource(paths)).flat_map(
        "words", lambda row: row["line"].split(), schema="word string"
    )
    known = graph.broadcast_table("known", graph.stream("sized" if cycle else "words"), "word")
    read = words.key_by("by_word", "word") if behind else words
    sized = read.map(
        "sized",
        lambda row, known: (row["word"], len(known)),
        schema="word string, knew bigint",
        broadcast=known,
    )
    sized.sink("shown", LogSink(publish="step"))
    return graph


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("cycle", [False, True])
def test_every_worker_sees_the_rows_of_all_steps_before_and_none_of_its_own(
    cycle: bool, behind: bool, tmp_path: Path
) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        texts = [
            "\n".join(" ".join(f"w{rng.randrange(60)}" for _ in range(4)) for _ in range(30))
            for _ in range(3)
        ]
        graph = known_words(write_files(tmp_path, texts), cycle=cycle, behind=behind)
        region = OneThreadRegion(graph, 2, rng.randrange)
        # raises OutputDiffersError if a replay saw another table
        region.run_with_trouble(rng, rounds=6, turns=60)
        words_of: dict[int, set[str]] = {}
        knew_in: dict[int, set[int]] = {}
        for output in (output for side in region.sides for output in side.shown):
            for row in rows_shown([output]):
                words_of.setdefault(output.step, set()).add(row["word"])
                knew_in.setdefault(output.step, set()).add(row["knew"])
        assert set.union(*words_of.values()) == {word for text in texts for word in text.split()}
        seen: set[str] = set()
        for step in sorted(words_of):
            assert knew_in[step] == {len(seen)}, f"step {step}"
            seen |= words_of[step]


def not_seen(row: dict, seen: dict) -> bool:
    return row["line"] not in seen


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_words_that_are_given_once_are_given_once_though_a_worker_is_killed(
    shared_store: str, tmp_path: Path
) -> None:
    """`fresh` gives what `seen` does not have, and `seen` is made from it, between two real processes."""
    texts = ["\n".join(f"w{(7 * line + part) % 500}" for line in range(20_000)) for part in range(2)]
    paths = write_files(tmp_path, texts)
    graph = Graph("fresh")
    out = tmp_path / "out"
    slowly = partial(unhurried, hurry_of(out))
    lines = graph.source("files", FileSource(paths)).flat_map(
        "lines", slowly, schema="line string", takes="batch"
    )
    seen = graph.broadcast_table("seen", graph.stream("fresh"), "line")
    fresh = lines.filter("fresh", not_seen, broadcast=seen)
    fresh.key_by("by_line", "line").count("counts").sink("out", FileSink(out))
    small = WorkerLimits(step_bytes_max=4096, batch_bytes_max=4096)
    with running(graph, shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.checkpoints(2)
        kill(control, 0, wipe=True)
        hurry(out)
        assert finished(control), control.status
        assert control.status.incarnation == 2
    found = [row[0] for _, row in rows_of(out)]
    assert sorted(found) == sorted({word for text in texts for word in text.split()})


# --- what a graph may not be --------------------------------------------------------------------------------


def sensors() -> tuple[Graph, Stream]:
    graph = Graph("sensors")
    return graph, graph.source("lines", FileSource(["a.txt"]))


def problem_of(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        graph.plan()
    return str(caught.value)


def test_a_cycle_of_data_ports_is_refused_and_reports_what_closes_one() -> None:
    graph, lines = sensors()
    both = lines.union("both", graph.stream("same"))
    both.map("same", lambda row: row).sink("out", FileSink("out"))
    assert "close the cycle with a broadcast table (graph.broadcast_table)" in problem_of(graph)


def test_a_table_that_nobody_reads_is_refused() -> None:
    graph, lines = sensors()
    graph.broadcast_table("limits", lines, "line")
    lines.sink("out", FileSink("out"))
    assert "broadcast table 'limits' is read by no operator" in problem_of(graph)


@pytest.mark.parametrize("keys", [(), ("nope",), ("line", "line")])
def test_keys_are_columns_of_the_stream(keys: tuple[str, ...]) -> None:
    graph, lines = sensors()
    limits = graph.broadcast_table("limits", lines, *keys)
    lines.map("map", lambda row, _: row, broadcast=limits).sink("out", FileSink("out"))
    assert "one or more key columns, each named once, of line; got: " in problem_of(graph)


def test_a_table_of_another_graph_is_refused() -> None:
    graph, lines = sensors()
    other, others = sensors()
    with pytest.raises(
        GraphError, match=r"broadcast= takes a table from graph\.broadcast_table of this graph"
    ):
        lines.map("map", lambda row, _: row, broadcast=other.broadcast_table("limits", others, "line"))
    assert "the output of source 'lines'" in problem_of(graph)


def test_a_table_and_what_reads_it_are_in_one_region() -> None:
    graph, lines = sensors()
    limits = graph.broadcast_table("limits", graph.source("rules", FileSource(["rules.txt"])), "line")
    kept = lines.annotate(consistent()).filter("kept", lambda row, _: True, broadcast=limits)
    kept.sink("out", FileSink("out"))
    assert "filter 'kept' is in a consistent region and takes input from 'limits'" in problem_of(graph)
    graph.annotate("rules", consistent())
    (region,) = graph.plan().choice.regions
    assert set(region.members) == {"lines", "rules", "limits.rows", "limits", "kept", "out"}


def test_a_table_made_by_chance_makes_what_reads_it_not_deterministic() -> None:
    graph, lines = sensors()
    limits = graph.broadcast_table("limits", lines.map("asks", lambda row: row, deterministic=False), "line")
    kept = lines.filter("kept", lambda row, _: True, broadcast=limits)
    kept.sink("out", LogSink(publish="step"))
    assert "'asks' above it is not deterministic" in problem_of(graph)


def test_a_key_that_cannot_be_one_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("")
    graph = Graph("g")
    lines = graph.source("lines", FileSource(tmp_path / "lines"))
    parts = lines.map("parts", lambda row: {"parts": [row["line"]]}, schema="parts array<string>, n bigint")
    table = graph.broadcast_table("newest", parts, "parts")
    lines.map("read", lambda row, newest: row, schema="line string", broadcast=table).sink("out", LogSink())
    with pytest.raises(GraphError, match=r"control 'newest': a column of type list<.*> cannot be a key"):
        graph.plan()


def test_a_table_has_room_for_so_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "broadcast_rows_max", 2)
    control = table()
    control.process(rows(("a", 1), ("b", 1), ("a", 2)))
    control.begin_step()
    with pytest.raises(UserFault, match="at most 2 keys"):
        control.process(rows(("c", 1)))

"""The watermark of a source that entry points mark: from marks alone, recorded with the step, kept in
checkpoints.
"""

from datetime import timedelta

import pytest

from checkpoint.core.records.divisions import Division
from checkpoint.core.records.inputs import InputPiece, OriginMark
from checkpoint.errors import EntryRefusedError
from dataflow import CallSink, Graph, GraphError, InputSource, MergedLogSource, SchemaError
from dataflow.core.event_time import END, IDLE, UNKNOWN, InputMarks, SourceTime
from dataflow.worker.failures import failure_of
from tests.dataflow.fed_circuit import EPOCH, FedCircuit, a_piece, row

ENTRY = "dos://e1,e2,e3"
SCHEMA = "at timestamp, key string"


def a_mark(split: str, number: int, second: int, *, origin: int, version: int) -> InputPiece:
    time_us = round((EPOCH + timedelta(seconds=second)).timestamp() * 1e6) - 1
    mark = OriginMark(time_us, version, origin, 0)
    return InputPiece(split, number - 1, number, number - 1, 0, b"", mark=mark)


def test_the_watermark_is_the_least_mark_of_the_newest_version() -> None:
    fed = FedCircuit(entry=ENTRY)
    fed.buffer.known(["p", "q"])
    fed.buffer.put(a_piece("p", 1, [row(50)]))
    assert fed.step()[0] == UNKNOWN, "rows promise nothing"
    fed.buffer.put(a_mark("p", 2, 60, origin=1, version=1))
    assert fed.step()[0] == 60
    fed.buffer.put(a_mark("p", 3, 61, origin=1, version=2))
    assert fed.step()[0] == 60, "the second origin has no mark yet"
    fed.buffer.put(a_piece("q", 1, [row(61)]))
    assert fed.step()[0] == 60
    fed.buffer.put(a_mark("q", 2, 62, origin=2, version=2))
    assert fed.step()[0] == 61
    fed.buffer.put(a_mark("p", 4, 70, origin=1, version=2))
    assert fed.step()[0] == 62


def test_a_replay_and_a_checkpoint_have_the_same_marks() -> None:
    fed = FedCircuit(entry=ENTRY)
    fed.buffer.known(["p", "q"])
    fed.buffer.put(a_mark("p", 1, 5, origin=1, version=2))
    fed.buffer.put(a_mark("q", 1, 3, origin=2, version=2))
    assert fed.step()[0] == 3
    at = fed.positions()
    fed.buffer.put(a_piece("p", 2, [row(6)]))
    fed.buffer.put(a_mark("q", 2, 9, origin=2, version=2))
    watermark, division = fed.step()
    assert watermark == 5
    fed.open(at)
    fed.buffer.put(a_piece("p", 2, [row(6)]))
    fed.buffer.put(a_mark("q", 2, 9, origin=2, version=2))
    assert fed.step(Division(2, 0, division))[0] == 5
    fed.buffer.put(a_mark("p", 3, 20, origin=1, version=2))
    assert fed.step()[0] == 9, "the mark of q came from the replayed step"


def test_the_end_and_workers_that_read_nothing() -> None:
    marks = InputMarks()
    marks.marked("s", "p", 7, origin=1, version=1)
    assert marks.of_source("s", SourceTime()).watermark == 7
    assert marks.of_source("s", SourceTime(at_end=True)).watermark == END
    marks.marked("s", "p", 7, origin=1, version=1)
    assert marks.of_source("s", SourceTime(is_read_here=False)).watermark == IDLE
    assert marks.stored() == {}, "another worker has them"


def test_a_region_ends_if_its_entry_points_give_times_in_another_column() -> None:
    assert failure_of(EntryRefusedError("another column")).kind == "manifest", "a retry would find the same"


def test_marks_need_a_source_that_is_marked() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    rows.event_time("timed", "at", marks=True).sink("out", CallSink(print))
    with pytest.raises(GraphError, match="source 'rows' has none for column 'at'"):
        graph.plan()
    two_times = f"{SCHEMA}, at_right timestamp"
    latest = MergedLogSource("out", two_times, region="r", sites={"a": ENTRY}, time=("at", "at_right"))
    graph = Graph("g")
    graph.source("pairs", latest).event_time("timed", "at", marks=True).sink("out", CallSink(print))
    with pytest.raises(GraphError, match="'pairs' has none for column 'at'"):
        graph.plan()  # otherwise a pair whose first time is below the mark would be late
    with pytest.raises(SchemaError, match="time column 'when' does not exist"):
        InputSource("rows", SCHEMA, entry=ENTRY, time="when")
    with pytest.raises(SchemaError, match="exactly one of"):
        rows.event_time("both", "at", lateness=timedelta(0), marks=True)
    with pytest.raises(SchemaError, match="only entry points find rows late"):
        InputSource("rows", SCHEMA, late=True)
    source = InputSource("rows", SCHEMA, entry=ENTRY)
    assert len({source.owner(split, 8) for split in ("p", "q", "r", "s")}) == 1, "one worker reads all"

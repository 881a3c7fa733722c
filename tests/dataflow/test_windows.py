"""Aggregates with time windows (replication-transparency, algorithm 3), and event time, which closes them."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from checkpoint.chains.state_blocks import decode_block
from dataflow import (
    ApproxDistinct,
    CallSink,
    Count,
    CountWindow,
    Graph,
    GraphError,
    InputSource,
    Max,
    SchemaError,
    Sliding,
    Sum,
    Tumbling,
)
from dataflow.errors import OperatorError
from dataflow.operators.windows import Selection
from dataflow.schema import parse_schema
from dataflow.sources.base import SourceBatch
from dataflow.state.scratch import SnapshotSpool
from dataflow.testing import Trial
from dataflow.worker.circuit import OwnPart
from tests.dataflow.trials import SCHEMA, row, second


def windowed(window: Tumbling | Sliding, lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("windowed")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.key_by("by_key", "key").aggregate(
        "made", window, rows=Count(), sum=Sum("x"), most=Max("x"), about=ApproxDistinct("x")
    )
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def test_a_window_is_over_at_the_first_microsecond_after_it() -> None:
    trial = Trial(windowed(Tumbling("at", timedelta(seconds=10))))
    trial.step({"rows": [row(3)]})
    trial.step({"rows": [row(9.999999)]})
    assert trial.rows("out") == []
    trial.step({"rows": [row(10)]})
    (only,) = trial.rows("out")
    assert (only["window_start"], only["window_end"], only["rows"]) == (second(0), second(10), 2)


def test_a_late_row_goes_to_the_side_output_and_changes_nothing() -> None:
    trial = Trial(windowed(Sliding("at", timedelta(seconds=10), timedelta(seconds=5))))
    trial.step({"rows": [row(3), row(12)]}, checkpoint=True)
    assert [(one["window_start"], one["rows"]) for one in trial.rows("out")] == [
        (second(-5), 1),
        (second(0), 1),
    ]
    trial.crash()
    trial.step({"rows": [row(4), row(7, "b")]})
    assert trial.rows("late_out") == [row(4)], "7 is still in a window that is open, 4 in none"
    trial.step({}, end=True)
    rest = {(one["key"], one["window_start"]): one["rows"] for one in trial.rows("out")[2:]}
    assert rest == {("b", second(5)): 1, ("a", second(5)): 1, ("a", second(10)): 1}
    assert trial.counters()[0]["made"]["late_rows"] == 1


def test_the_slowest_worker_says_how_far_event_time_is() -> None:
    trial = Trial(windowed(Tumbling("at", timedelta(seconds=10))), workers=2)
    trial.step({"rows": [[row(3)], [row(4)]]})
    trial.step({"rows": [[row(30)], [row(5)]]})
    assert trial.rows("out") == []
    trial.step({"rows": [[row(31)], [row(21)]]})
    assert [one["rows"] for one in trial.rows("out")] == [3]


def test_punctuation_may_come_in_the_rows() -> None:
    graph = Graph("punctuated")
    source = graph.source("rows", InputSource("rows", "at timestamp, key string, upto timestamp"))
    timed = source.event_time("timed", "at", punctuation="upto")
    made = timed.key_by("by_key", "key").aggregate("made", Tumbling("at", timedelta(seconds=10)), n=Count())
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [{"at": second(25), "key": "a", "upto": None}]})
    trial.step({"rows": [{"at": second(5), "key": "a", "upto": second(8)}]})
    assert trial.rows("out") == []
    trial.step({"rows": [{"at": second(9), "key": "a", "upto": second(9.999999)}]})
    assert [(one["window_start"], one["n"]) for one in trial.rows("out")] == [(second(0), 2)]


def test_windows_of_windows_close_one_after_the_other() -> None:
    graph = Graph("twice")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=timedelta(0))
    first = rows.key_by("by_key", "key").aggregate("first", Tumbling("at", timedelta(seconds=5)), n=Count())
    second_ = first.key_by("again", "key").aggregate(
        "second", Tumbling("window_start", timedelta(seconds=10)), windows=Count(), rows=Sum("n")
    )
    second_.sink("out", CallSink(print))
    trial = Trial(graph, workers=2)
    for number in (1, 2, 6, 9, 11, 16):
        trial.step({"rows": [row(number)]}, checkpoint=True)
        trial.crash()
    trial.step({}, end=True)
    assert [(one["windows"], one["rows"]) for one in trial.rows("out")] == [(2, 4), (2, 2)]


def test_a_window_of_the_times_of_windows_is_over_with_the_last_of_them() -> None:
    graph = Graph("times")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=timedelta(0))
    first = rows.key_by("by_key", "key").aggregate("first", Tumbling("at", timedelta(seconds=5)), n=Count())
    selection = Selection((("k", "key"), ("n", "n")), window_time="time", zeros=(("zero", pa.int32()),))
    columns = first.map(
        "columns", selection, schema="k string, n bigint, time timestamp, zero int", takes="batch"
    )
    made = columns.key_by("again", "k", "zero").aggregate(
        "second", Tumbling("time", timedelta(seconds=10)), windows=Count(), rows=Sum("n")
    )
    made.sink("out", CallSink(print))
    trial = Trial(graph, workers=2)
    for number, windows in ((1, 0), (2, 0), (6, 0), (9.9, 0), (10, 1), (15, 1), (19.999999, 1), (20, 2)):
        trial.step({"rows": [row(number)]}, checkpoint=True)
        trial.crash()
        assert len(trial.rows("out")) == windows, number
    found = [(one["window_start"], one["windows"], one["rows"], one["zero"]) for one in trial.rows("out")]
    assert found == [(second(0), 2, 4, 0), (second(10), 2, 3, 0)]


def test_a_window_above_duplicates_is_over_when_spark_has_it_over() -> None:
    graph = Graph("timed")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    # The watermark of duplicates in Spark is the latest time less the delay, here 1 microsecond.
    timed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key", "at")
    once = timed.dedup("once", Tumbling("at", timedelta(milliseconds=1), timedelta(microseconds=1)))
    selection = Selection((("key", "key"), ("time", "at")), behind_us=1)
    columns = once.map("columns", selection, schema="key string, time timestamp", takes="batch")
    made = columns.key_by("again", "key").aggregate(
        "made", Tumbling("time", timedelta(seconds=10)), n=Count()
    )
    made.sink("out", CallSink(print))
    trial = Trial(graph)
    for number, windows in ((1, 0), (1, 0), (10, 0), (10.000001, 1)):
        trial.step({"rows": [row(number)]})
        assert [one["n"] for one in trial.rows("out")] == [1] * windows, number


def test_windows_that_are_over_leave_no_state() -> None:
    trial = Trial(windowed(Tumbling("at", timedelta(seconds=1))))
    for number in range(50):
        trial.step({"rows": [row(number, key) for key in "abcdef"]}, checkpoint=number % 3 == 0)
    assert trial.counters()[0]["made"]["windows"] == 6


def test_a_row_without_a_time_stops_and_is_named() -> None:
    trial = Trial(windowed(Tumbling("at", timedelta(seconds=1))))
    with pytest.raises(OperatorError, match=r"'timed' failed at .*row 1 of those given: time column 'at' is"):
        trial.step({"rows": [row(1), {"at": None, "key": "a", "x": None}]})


def test_who_waits_for_event_time_must_get_it() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    timed = graph.source("more", InputSource("more", SCHEMA)).event_time("timed", "at", lateness=timedelta(1))
    both = timed.union("both", rows).key_by("by_key", "key")
    both.aggregate("made", Tumbling("at", timedelta(1)), n=Count()).sink("out", CallSink(print))
    with pytest.raises(GraphError, match=r"window 'made' needs event time, .* from source 'rows'; put"):
        graph.plan()


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (Tumbling("when", timedelta(1)), "time column 'when' does not exist; the columns are at, key, x"),
        (
            Tumbling("x", timedelta(1)),
            "time column 'x' must be a timestamp in microseconds or coarser, not double",
        ),
    ],
)
def test_a_time_column_is_a_timestamp_that_exists(window: Tumbling, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        windowed(window).plan()
    assert f"window 'made': {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tumbling("at", timedelta(0)), "a size above 0"),
        (lambda: Tumbling("at", 10), "a timedelta of 0 or more, not 10"),  # type: ignore[arg-type]
        (lambda: Sliding("at", timedelta(1), timedelta(2)), "a slide of at most the size"),
        (lambda: Sliding("at", timedelta(1), timedelta(seconds=1)), "at most 1000 windows"),
    ],
)
def test_windows_that_make_no_sense_are_refused_where_they_are_written(make: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        make()


def test_a_side_output_that_is_missing_is_refused_and_event_time_moves_in_one_way() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    rows.side_output("late", "late").sink("out", CallSink(print))
    with pytest.raises(GraphError, match="source 'rows' has no side output 'late'; it has none"):
        graph.plan()
    for options in ({}, {"lateness": timedelta(1), "punctuation": "at"}):
        with pytest.raises(SchemaError, match="needs exactly one of"):
            rows.event_time("timed", "at", **options)


@pytest.mark.parametrize("columns", [("when", None), ("at", "when")])
def test_event_time_is_of_columns_that_exist(columns: tuple[str, str | None]) -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    moves: Any = {"punctuation": columns[1]} if columns[1] else {"lateness": timedelta(0)}
    rows.event_time("timed", columns[0], **moves).sink("out", CallSink(print))
    with pytest.raises(GraphError, match="event_time 'timed': time column 'when' does not exist"):
        graph.plan()


def test_a_window_is_one_of_ours() -> None:
    keyed = Graph("g").source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError, match=r"a window must be Tumbling\(...\) or Sliding\(...\), not 'day'"):
        keyed.aggregate("made", "day", n=Count())  # type: ignore[arg-type]


def test_a_checkpoint_holds_the_time_of_its_own_step_though_sources_are_ahead() -> None:
    trial = Trial(windowed(Tumbling("at", timedelta(seconds=10))))
    (circuit,) = trial._circuits
    sent = {}
    for step, number in enumerate((3, 7, 25), 1):
        batch = pa.RecordBatch.from_pylist([row(number)], parse_schema(SCHEMA))
        circuit.feed(step, "rows", SourceBatch(batch, (), 1))
        sent[step] = circuit.end_sources(step)
    for step in (1, 2):
        received = {0: [(0, batch) for batch in sent[step][0][0]]}
        circuit.run_stage(
            1, step, received, checkpoint=step == 2, watermarks={0: [circuit.time.to_send(step, 0)]}
        )
    whole = SnapshotSpool()
    taken = OwnPart(snapshot=whole)
    circuit.take_checkpoint(1, taken)
    watermark = int(second(7).timestamp()) * 1_000_000 - 1
    assert taken.blocks["timed~time"].column("mark").to_pylist() == [watermark]
    assert decode_block(dict(whole)["timed~time"]).column("mark").to_pylist() == [watermark]
    assert taken.blocks["made~time"].column("mark").to_pylist() == [watermark]


# --- aggregates with count windows (replication-transparency, algorithm 4) ----------------------------------


def counting(window: CountWindow, lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("counting")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    keyed = rows.key_by("by_key", "key")
    made = keyed.aggregate("made", window, rows=Count(), sum=Sum("x"), last=Max("at"))
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def test_a_late_row_is_not_counted_and_a_window_continues_over_a_crash() -> None:
    trial = Trial(counting(CountWindow("at", 2)))
    trial.step({"rows": [row(1), row(2)]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(0.5), row(3)]}, checkpoint=True, snapshot=True)
    assert trial.rows("late_out") == [row(0.5)]
    assert [one["rows"] for one in trial.rows("out")] == [2]
    trial.crash()
    trial.step({"rows": [row(4, x=5.0)]}, end=True)
    assert [(one["window_number"], one["sum"]) for one in trial.rows("out")] == [(0, 2.0), (1, 6.0)]
    assert trial.counters()[0]["made"]["windows"] == 0


@pytest.mark.parametrize("sizes", [(0, None), (2, 0), (2, 3), (5000, 1)])
def test_windows_that_make_no_sense_are_refused(sizes: tuple[int, int | None]) -> None:
    with pytest.raises(SchemaError):
        CountWindow("at", *sizes)


def test_a_time_column_must_be_there() -> None:
    with pytest.raises(GraphError, match="count_window 'made': time column 'when' does not exist"):
        counting(CountWindow("when", 2)).plan()

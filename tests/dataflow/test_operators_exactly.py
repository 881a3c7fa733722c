"""Operators against a naive evaluator that is exact about boundaries: which step, which row, which order.

Times are microseconds of a tiny range, so that rows meet window ends, watermarks and each other.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Count, CountWindow, Graph, InputSource, Sliding, Stream, Sum, Tumbling
from dataflow.testing import Trial
from tests.dataflow import naive
from tests.dataflow.naive import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "t timestamp, k string, x bigint, tag bigint"
Steps = list[list[Row]]


def micro(number: int) -> timedelta:
    return timedelta(microseconds=number)


def outside(row: Row) -> Row:
    return {**row, "t": EPOCH + micro(row["t"])}


def inside(row: Row) -> Row:
    return {**row, "t": (row["t"] - EPOCH) // micro(1)}


_rows = st.builds(
    lambda t, k, x, tag: {"t": t, "k": k, "x": x, "tag": tag},
    st.integers(0, 12),
    st.sampled_from(["a", "b", None]),
    st.integers(-1, 2),
    st.integers(0, 2),
)
_steps = st.lists(st.lists(_rows, max_size=4), min_size=1, max_size=5)
_lateness = st.integers(0, 3)


def timed(graph: Graph, name: str, lateness: int) -> Stream:
    rows = graph.source(name, InputSource(name, SCHEMA))
    return rows.event_time(f"{name}_timed", "t", lateness=micro(lateness))


def output(made: Stream, *ports: str) -> Graph:
    made.sink("out", CallSink(print))
    for port in ports:
        made.side(port, port).sink(f"{port}_out", CallSink(print))
    return made.graph


def run(
    graph: Graph, inputs: dict[str, Steps], crash: int | None, *, workers: int = 1
) -> tuple[list[list[Row]], Trial]:
    """What each step gave; the last one ends all sources. A checkpoint and a crash follow step `crash`."""
    steps = len(next(iter(inputs.values())))
    trial = Trial(graph, workers=workers)
    given: list[list[Row]] = []
    for index in range(steps):
        known = len(trial.rows("out"))
        rows = {name: [outside(row) for row in part[index]] for name, part in inputs.items()}
        trial.step(rows, cut=index == crash, end=index == steps - 1)
        given.append(trial.rows("out")[known:])
        if index == crash and index < steps - 1:
            trial.crash()
    return given, trial


def plain(value: Any) -> Any:
    """A row with its times as microseconds: equal times of two zone objects print differently."""
    if isinstance(value, dict):
        return {name: plain(cell) for name, cell in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return (value - EPOCH) // micro(1) if isinstance(value, datetime) else value


def same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert sorted(repr(plain(one)) for one in found) == sorted(repr(plain(one)) for one in expected)


_trouble = st.none() | st.integers(0, 4)


@settings(max_examples=60)
@given(steps=_steps, lateness=_lateness, sizes=st.sampled_from([(3, 3), (4, 2), (5, 2)]), crash=_trouble)
def test_windows(steps: Steps, lateness: int, sizes: tuple[int, int], crash: int | None) -> None:
    size, slide = sizes
    window = Tumbling("t", micro(size)) if size == slide else Sliding("t", micro(size), micro(slide))
    stream = timed(Graph("g"), "rows", lateness).key_by("by", "k")
    graph = output(stream.aggregate("made", window, n=Count(), sum=Sum("x")), "late")
    given_, trial = run(graph, {"rows": steps}, crash)
    expected, late = naive.windows(steps, lateness, size, slide)
    for found, wanted in zip(given_, expected, strict=True):
        rows = [
            {
                "k": row["k"],
                "start": (row["window_start"] - EPOCH) // micro(1),
                "end": (row["window_end"] - EPOCH) // micro(1),
                "n": row["n"],
                "sum": row["sum"],
            }
            for row in found
        ]
        same(rows, wanted)
    same([inside(row) for row in trial.rows("late_out")], late)


@settings(max_examples=80)
@given(
    pairs=st.lists(
        st.tuples(st.lists(_rows, max_size=3), st.lists(_rows, max_size=3)), min_size=1, max_size=5
    ),
    lateness=st.tuples(_lateness, _lateness),
    within=st.integers(1, 4),
    crash=_trouble,
)
@example(  # a row stays for exactly as long as a partner may come
    pairs=[
        ([{"t": 0, "k": "a", "x": 1, "tag": 0}], [{"t": 2, "k": "b", "x": 1, "tag": 0}]),
        ([], [{"t": 2, "k": "a", "x": 2, "tag": 0}]),
        ([], []),
    ],
    lateness=(0, 0),
    within=3,
    crash=None,
)
@example(  # nothing of the left is known: its rows are not late, and those of the right wait
    pairs=[
        ([], [{"t": 9, "k": "a", "x": 1, "tag": 0}]),
        ([{"t": 9, "k": "a", "x": 2, "tag": 0}], []),
        ([], []),
    ],
    lateness=(0, 0),
    within=1,
    crash=0,
)
def test_join(
    pairs: list[tuple[list[Row], list[Row]]], lateness: tuple[int, int], within: int, crash: int | None
) -> None:
    lefts, rights = [left for left, _ in pairs], [right for _, right in pairs]
    graph = Graph("g")
    left = timed(graph, "lefts", lateness[0]).key_by("l", "k")
    right = timed(graph, "rights", lateness[1]).key_by("r", "k")
    made = left.join("made", right, times=("t", "t"), within=micro(within), suffix="_r")
    found, trial = run(output(made, "late", "late_right"), {"lefts": lefts, "rights": rights}, crash)
    expected, late, late_right = naive.joined(lefts, rights, lateness, within)
    for one, wanted in zip(found, expected, strict=True):
        rows = [outside(a) | {f"{n}_r": v for n, v in outside(b).items() if n != "k"} for a, b in wanted]
        same(one, rows)
    same([inside(row) for row in trial.rows("late_out")], late)
    same([inside(row) for row in trial.rows("late_right_out")], late_right)


@settings(max_examples=40)
@given(steps=_steps, lateness=_lateness, crash=_trouble)
def test_sort(steps: Steps, lateness: int, crash: int | None) -> None:
    found, trial = run(
        output(timed(Graph("g"), "rows", lateness).sort("made", "t"), "late"), {"rows": steps}, crash
    )
    expected, late = naive.released(steps, lateness)
    assert [[inside(row) for row in step] for step in found] == expected
    same([inside(row) for row in trial.rows("late_out")], late)


@settings(max_examples=60)
@given(steps=_steps, lateness=_lateness, size=st.integers(1, 5), k=st.integers(1, 3), crash=_trouble)
def test_top_k(steps: Steps, lateness: int, size: int, k: int, crash: int | None) -> None:
    stream = timed(Graph("g"), "rows", lateness).key_by("by", "k")
    graph = output(stream.top_k("made", Tumbling("t", micro(size)), k, by="x"), "late")
    found, trial = run(graph, {"rows": steps}, crash)
    expected, late = naive.top_k(steps, lateness, size, k)
    assert [[inside(row) for row in step] for step in found] == expected
    same([inside(row) for row in trial.rows("late_out")], late)


@settings(max_examples=40)
@given(steps=_steps, lateness=_lateness, size=st.integers(1, 5), crash=_trouble)
def test_dedup_with_a_window(steps: Steps, lateness: int, size: int, crash: int | None) -> None:
    stream = timed(Graph("g"), "rows", lateness).key_by("by", "k")
    graph = output(stream.dedup("made", Tumbling("t", micro(size))), "late")
    found, trial = run(graph, {"rows": steps}, crash)
    expected, late = naive.window_dedup(steps, lateness, size)
    for one, wanted in zip(found, expected, strict=True):
        same([inside(row) for row in one], wanted)
    same([inside(row) for row in trial.rows("late_out")], late)


@settings(max_examples=40)
@given(
    steps=_steps, lateness=_lateness, sizes=st.sampled_from([(1, 1), (2, 1), (3, 2), (2, 2)]), crash=_trouble
)
def test_count_windows(steps: Steps, lateness: int, sizes: tuple[int, int], crash: int | None) -> None:
    stream = timed(Graph("g"), "rows", lateness).key_by("by", "k")
    made = stream.aggregate("made", CountWindow("t", sizes[0], slide=sizes[1]), sum=Sum("x"))
    found, _ = run(output(made), {"rows": steps}, crash)
    for one, wanted in zip(found, naive.count_windows(steps, lateness, *sizes), strict=True):
        same(one, wanted)


def at(t: int, k: str, x: int) -> Row:
    return {"t": t, "k": k, "x": x, "tag": 0}


@settings(max_examples=60)
@given(steps=_steps, lateness=_lateness, wait=st.integers(0, 4), crash=_trouble)
@example(steps=[[at(1, "a", 1), at(3, "a", 0), at(9, "b", 0)], []], lateness=0, wait=2, crash=None)
@example(steps=[[at(1, "a", 1), at(4, "b", 0)], []], lateness=0, wait=2, crash=None)
def test_timers(steps: Steps, lateness: int, wait: int, crash: int | None) -> None:
    def on_row(row: Row, state: Any) -> list[Any]:
        state.value = {"n": (state.value["n"] if state.value else 0) + 1}
        if row["x"] > 0:
            state.timer = row["t"] + micro(wait)
        elif row["x"] < 0:
            state.timer = None
        return [(row["k"], row["t"], state.value["n"], 0)]

    def on_timer(key: Row, time: Any, state: Any) -> list[Any]:
        assert state.timer is None, "a timer that went off is not set any more"
        return [(key["k"], time, state.value["n"], 1)]

    stream = timed(Graph("g"), "rows", lateness).key_by("by", "k")
    made = stream.map_state(
        "made",
        on_row,
        on_timer=on_timer,
        time="t",
        state="n bigint",
        schema="k string, t timestamp, n bigint, fired bigint",
    )
    found, _ = run(output(made), {"rows": steps}, crash)
    assert [[tuple(inside(row).values()) for row in step] for step in found] == naive.timers(
        steps, lateness, wait
    )

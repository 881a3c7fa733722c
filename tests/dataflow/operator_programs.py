"""Programs for the comparison with the naive evaluator (`naive.py`): an operator, its parameters, and the
operators above it, each drawn at random.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    InputSource,
    Max,
    Min,
    Sliding,
    Stream,
    Sum,
    Tumbling,
    UserOperator,
)
from tests.dataflow import naive
from tests.dataflow.naive import Division, Made, Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "t timestamp, k string, x bigint, tag bigint"


def micro(number: int) -> timedelta:
    return timedelta(microseconds=number)


def outside(row: Row) -> Row:
    return {**row, "t": EPOCH + micro(row["t"])}


def plain(rows: Sequence[Row]) -> list[Row]:
    """With times as microseconds."""
    return [
        {
            name: (cell - EPOCH) // micro(1) if isinstance(cell, datetime) else cell
            for name, cell in row.items()
        }
        for row in rows
    ]


class Operator(NamedTuple):
    """An operator above a sink, and what it gives."""

    added: Callable[..., Stream]
    naive: Callable[[Division, Mapping[tuple[str, ...], int]], Made]
    """Of a division, and of the sources above each `event_time` with its lateness."""
    in_order: bool = True
    """Whether the rows of a key come in an order that is promised."""
    ports: tuple[str, ...] = ("late",)


Draw = st.DrawFn
_sizes = st.integers(1, 5)


def keyed(added: Callable[[Any], Stream], oracle: Callable[[naive.Stream], Made], **options: Any) -> Operator:
    return Operator(
        lambda stream: added(stream.key_by("by", "k")),
        lambda division, timed: oracle(naive.stream(division, timed)),
        **options,
    )


def windows(draw: Draw) -> Operator:
    size, offset = draw(_sizes), draw(st.integers(0, 2))
    slide = draw(st.integers(1, size))
    times = [micro(one) for one in (size, slide, offset)]
    window = Tumbling("t", times[0], times[2]) if slide == size else Sliding("t", *times)
    return keyed(
        lambda stream: stream.aggregate("made", window, n=Count(), sum=Sum("x")),
        lambda rows: naive.windows(rows, size, slide, offset),
    )


def top_k(draw: Draw) -> Operator:
    size, offset, k = draw(_sizes), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    return keyed(
        lambda stream: stream.top_k("made", Tumbling("t", micro(size), micro(offset)), k, by="x"),
        lambda rows: naive.top_k(rows, size, offset, k),
    )


def dedup(draw: Draw) -> Operator:
    del draw
    return keyed(lambda stream: stream.dedup("made"), naive.first_of_key, ports=())


def dedup_with_a_window(draw: Draw) -> Operator:
    size, offset = draw(_sizes), draw(st.integers(0, 2))
    return keyed(
        lambda stream: stream.dedup("made", Tumbling("t", micro(size), micro(offset))),
        lambda rows: naive.first_of_window(rows, size, offset),
    )


def running_aggregates(draw: Draw) -> Operator:
    del draw
    values = {"n": Count(), "known": Count("x"), "sum": Sum("x"), "least": Min("x"), "largest": Max("x")}
    return keyed(lambda stream: stream.aggregate("made", **values), naive.running, ports=())


def count_windows(draw: Draw) -> Operator:
    size = draw(st.integers(1, 4))
    slide = draw(st.integers(1, size))
    return keyed(
        lambda stream: stream.aggregate("made", CountWindow("t", size, slide=slide), sum=Sum("x")),
        lambda rows: naive.count_windows(rows, size, slide),
        in_order=False,  # windows of one key that are full in one step: which is first is not promised
    )


def map_state(draw: Draw) -> Operator:
    wait, ttl = draw(st.integers(0, 3)), draw(st.sampled_from([None, 1, 2, 3]))
    state_on = draw(st.sampled_from(["memory", "memory", "memory", "disk"]))

    def on_row(row: Row, state: Any) -> list[Any]:
        state.value = {"n": (state.value["n"] if state.value else 0) + 1}
        if (row["x"] or 0) > 0:
            state.timer = row["t"] + micro(wait)
        elif (row["x"] or 0) < 0:
            state.timer = None
        return [(row["k"], row["t"], state.value["n"], 0)]

    def on_timer(key: Row, time: Any, state: Any) -> list[Any]:
        assert state.timer is None, "a timer that went off is not set any more"
        return [(key["k"], time, state.value["n"] if state.value else 0, 1)]

    options: dict[str, Any] = {"state": "n bigint", "schema": "k string, t timestamp, n bigint, fired bigint"}
    options |= {"ttl": None if ttl is None else micro(ttl), "state_on": state_on}
    return keyed(
        lambda stream: stream.map_state("made", on_row, on_timer=on_timer, time="t", **options),
        lambda rows: naive.keyed_function(rows, wait, ttl),
    )


class Numbered(UserOperator):
    """Numbers the rows of each key, and says how far event time is."""

    schema = "k string, t timestamp, n bigint"
    state = "k string, n bigint"

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for row in batch.to_pylist():
            self.counts[row["k"]] = self.counts.get(row["k"], 0) + 1
            yield row["k"], row["t"], self.counts[row["k"]]

    def on_punctuation(self, ts: datetime) -> list[Any]:
        return [] if ts.year > 1970 else [("", ts, 0)]

    def checkpoint(self) -> list[tuple[str, int]]:
        return [*self.counts.items()]

    def reset(self, state: pa.RecordBatch) -> None:
        self.counts = {row["k"]: row["n"] for row in state.to_pylist()}


def apply(draw: Draw) -> Operator:
    del draw
    return Operator(
        lambda stream: stream.key_by("by", "k").apply("made", Numbered()),
        lambda division, timed: naive.own(naive.stream(division, timed), division.workers),
        ports=(),
    )


def sort(draw: Draw) -> Operator:
    """Of each worker: it stands before any exchange."""
    del draw

    def oracle(division: Division, timed: Mapping[tuple[str, ...], int]) -> Made:
        each = [naive.released(naive.stream(division, timed, worker)) for worker in range(division.workers)]
        steps = range(len(division.steps))
        return Made(
            [[row for one in each for row in one.rows[step]] for step in steps],
            [[row for one in each for row in one.late[step]] for step in steps],
        )

    return Operator(lambda stream: stream.sort("made", "t"), oracle)


def join(draw: Draw) -> Operator:
    """Of the first source with the others."""
    within = draw(_sizes)

    def oracle(division: Division, timed: Mapping[tuple[str, ...], int]) -> Made:
        left, right = ({group: timed[group]} for group in timed)
        return naive.joined(naive.stream(division, left), naive.stream(division, right), within)

    def added(left: Stream, right: Stream) -> Stream:
        rights = right.key_by("by_right", "k")
        return left.key_by("by", "k").join(
            "made", rights, times=("t", "t"), within=micro(within), suffix="_r"
        )

    return Operator(added, oracle, in_order=False, ports=("late", "late_right"))


OPERATORS: list[Callable[[Draw], Operator]] = [
    windows,
    top_k,
    dedup,
    dedup_with_a_window,
    running_aggregates,
    count_windows,
    map_state,
    apply,
    sort,
    join,
]


class Program(NamedTuple):
    """An operator, and what stands above it."""

    graph: Graph
    operator: Operator
    timed: dict[tuple[str, ...], int]
    side_outputs_read: bool


@st.composite
def programs(draw: Draw, kind: Callable[[Draw], Operator]) -> Program:
    operator = kind(draw)
    form = "join" if kind is join else draw(st.sampled_from(["one", "one", "one", "union", "union of times"]))
    return program_of(
        operator, form, [draw(st.integers(0, 2)) for _ in "ab"], side_outputs_read=draw(st.booleans())
    )


def program_of(operator: Operator, form: str, lateness: Sequence[int], *, side_outputs_read: bool) -> Program:
    graph = Graph("g")
    sources = ("a",) if form == "one" else ("a", "b")
    streams = [graph.source(name, InputSource(name, SCHEMA)) for name in sources]
    groups: list[tuple[str, ...]] = [(name,) for name in sources]
    if form == "union":
        streams, groups = [streams[0].union("all", streams[1])], [sources]
    timed = dict(zip(groups, lateness, strict=False))
    streams = [
        stream.event_time(f"timed_{'_'.join(group)}", "t", lateness=micro(timed[group]))
        for stream, group in zip(streams, groups, strict=True)
    ]
    if form == "union of times":
        streams = [streams[0].union("all", streams[1])]
    made = operator.added(*streams)
    made.sink("out", CallSink(print))
    for port in operator.ports if side_outputs_read else ():
        made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return Program(graph, operator, timed, side_outputs_read)

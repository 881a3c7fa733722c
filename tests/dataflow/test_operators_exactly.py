"""Operators against a naive evaluator that is exact about boundaries: which step, which row, which order.

One property for all of them. A program is drawn: an operator, its numbers, what stands above it; and how its
rows are divided into splits, workers, batches and steps, with checkpoints and crashes after any of these.
Times are microseconds of a tiny range, so that rows meet window ends, watermarks and each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
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
from dataflow.testing import Trial
from tests.dataflow import naive
from tests.dataflow.naive import Batch, Division, Made, Row

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


# --- programs -----------------------------------------------------------------------------------------------


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
        lambda told: naive.windows(told, size, slide, offset),
    )


def top_k(draw: Draw) -> Operator:
    size, offset, k = draw(_sizes), draw(st.integers(0, 2)), draw(st.integers(1, 3))
    return keyed(
        lambda stream: stream.top_k("made", Tumbling("t", micro(size), micro(offset)), k, by="x"),
        lambda told: naive.top_k(told, size, offset, k),
    )


def dedup(draw: Draw) -> Operator:
    del draw
    return keyed(lambda stream: stream.dedup("made"), naive.first_of_key, ports=())


def dedup_with_a_window(draw: Draw) -> Operator:
    size, offset = draw(_sizes), draw(st.integers(0, 2))
    return keyed(
        lambda stream: stream.dedup("made", Tumbling("t", micro(size), micro(offset))),
        lambda told: naive.first_of_window(told, size, offset),
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
        lambda told: naive.count_windows(told, size, slide),
        in_order=False,  # windows of one key that are full in one step: which is first is not promised
    )


def map_state(draw: Draw) -> Operator:
    wait, ttl = draw(st.integers(0, 3)), draw(st.sampled_from([None, 1, 2, 3]))
    place = draw(st.sampled_from(["memory", "memory", "memory", "disk"]))

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
    options |= {"ttl": None if ttl is None else micro(ttl), "state_on": place}
    return keyed(
        lambda stream: stream.map_state("made", on_row, on_timer=on_timer, time="t", **options),
        lambda told: naive.keyed_function(told, wait, ttl),
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
    sides_taken: bool


@st.composite
def programs(draw: Draw, kind: Callable[[Draw], Operator]) -> Program:
    operator = kind(draw)
    form = "join" if kind is join else draw(st.sampled_from(["one", "one", "one", "union", "union of times"]))
    return program_of(
        operator, form, [draw(st.integers(0, 2)) for _ in "ab"], sides_taken=draw(st.booleans())
    )


def program_of(operator: Operator, form: str, lateness: Sequence[int], *, sides_taken: bool) -> Program:
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
    for port in operator.ports if sides_taken else ():
        made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return Program(graph, operator, timed, sides_taken)


# --- divisions ----------------------------------------------------------------------------------------------


def rows_up_to(time: int) -> st.SearchStrategy[Row]:
    return st.builds(
        lambda t, k, x, tag: {"t": t, "k": k, "x": x, "tag": tag},
        st.integers(0, time),
        st.sampled_from(["a", "a", "b", None]),
        st.sampled_from([-1, 0, 1, 1, 2, None]),
        st.integers(0, 1),
    )


@st.composite
def divisions(draw: Draw, sources: Sequence[str]) -> Division:
    """Any rows, read in any way, with trouble anywhere."""
    workers, count = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(2, 7))
    steps: list[dict[str, list[Batch]]] = [{} for _ in range(count)]
    most, newest = draw(st.sampled_from([(1, 4), (2, 4), (2, 8), (4, 12)]))
    some = st.lists(rows_up_to(newest), max_size=most)
    done: dict[str, dict[str, int]] | None = {} if draw(st.booleans()) else None
    for source in sources:
        if done is None:
            for step in steps:
                batches = draw(st.lists(some, max_size=2))
                step[source] = [Batch("", index % workers, rows) for index, rows in enumerate(batches)]
            continue
        done[source] = {}
        for index in range(draw(st.sampled_from([1, 1, 2, 3]))):
            last = draw(st.sampled_from([count - 1, *range(count)]))
            done[source][f"s{index}"] = last
            for step in steps[: last + 1]:
                if rows := draw(some):
                    step.setdefault(source, []).append(Batch(f"s{index}", index % workers, rows))
    cuts = frozenset(step for step in range(count) if draw(st.booleans()))
    crashes = draw(st.lists(st.integers(0, count - 2), max_size=2))
    return Division(workers, steps, done, cuts, tuple(crashes), draw(st.sampled_from([False, False, True])))


# --- comparison ---------------------------------------------------------------------------------------------


def compare(program: Program, division: Division) -> None:
    """Run it, and compare every step with the naive evaluator, also when it is replayed."""
    expected = program.operator.naive(division, program.timed)
    asides = {"late": expected.late, "late_right": expected.late_right}
    trial = Trial(program.graph, workers=division.workers, splits=division.done)
    crashes, step = list(division.crashes), 0
    while step < len(division.steps):
        known = {sink: len(trial.rows(sink)) for sink in trial.sinks}
        feed(trial, division, step)
        found = {sink: plain(trial.rows(sink)[known[sink] :]) for sink in trial.sinks}
        check_rows(program.operator, found["out"], expected.rows[step])
        for port in program.operator.ports:
            if program.sides_taken:
                assert unordered(found[f"{port}_out"]) == unordered(asides[port][step]), port
        check_dropped(program, trial, [asides[port][: step + 1] for port in program.operator.ports])
        step += 1
        if step - 1 in crashes:
            crashes.remove(step - 1)
            step = trial.crash()


def feed(trial: Trial, division: Division, step: int) -> None:
    given = {
        source: [[outside(row) for row in batch.rows] for batch in batches]
        if division.done is None
        else {batch.split: [outside(row) for row in batch.rows] for batch in batches}
        for source, batches in division.steps[step].items()
    }
    trial.step(
        given,
        checkpoint=step in division.cuts,
        snapshot=step in division.cuts and division.snapshot,
        end=step == len(division.steps) - 1,
        done={
            source: {split for split, last in splits.items() if last == step}
            for source, splits in (division.done or {}).items()
        },
    )


def check_rows(operator: Operator, found: list[Row], expected: Sequence[Any]) -> None:
    if expected and isinstance(expected[0], tuple):
        expected = [dict(zip(found[0] if found else "", row, strict=True)) for row in expected]
    keys = {row["k"] for row in [*found, *expected]}
    for key in keys:
        rows, wanted = ([row for row in part if row["k"] == key] for part in (found, expected))
        assert (rows == wanted) if operator.in_order else unordered(rows) == unordered(wanted), key


def check_dropped(program: Program, trial: Trial, aside: Sequence[Sequence[Sequence[Row]]]) -> None:
    """Late rows that nobody takes are counted, those of replayed steps once."""
    late = sum(len(rows) for port in aside for rows in port)
    dropped = sum(counters["made"].get("late_rows_dropped", 0) for counters in trial.counters())
    assert dropped == (0 if program.sides_taken else late)


def unordered(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
@settings(max_examples=200)
@given(data=st.data())
def test_an_operator_gives_what_the_naive_evaluator_gives(
    kind: Callable[[Draw], Operator], data: st.DataObject
) -> None:
    program = data.draw(programs(kind), label="program")
    sources = [source for group in program.timed for source in group]
    compare(program, data.draw(divisions(sources), label="division"))


def read(
    *steps: Mapping[str, Sequence[Row]], cuts: Sequence[int] = (), crashes: Sequence[int] = ()
) -> Division:
    """By one worker, each step's rows of a source as one batch."""
    batches = [{source: [Batch("", 0, list(rows))] for source, rows in step.items()} for step in [*steps, {}]]
    return Division(1, batches, None, frozenset(cuts), tuple(crashes))


def at(t: int, k: str = "a", x: int = 0) -> Row:
    return {"t": t, "k": k, "x": x, "tag": 0}


EDGES: dict[str, tuple[Callable[[Draw], Operator], list[Any], Division]] = {
    "a row stays for exactly as long as a partner may come": (
        join, [3], read({"a": [at(0)], "b": [at(2, "b")]}, {"b": [at(2)]})
    ),
    "and for as long as one may come is not late": (
        join, [3], read({"a": [at(0)], "b": [at(2, "b")]}, {"b": [at(2), at(3)]}, cuts=[0], crashes=[0])
    ),
    "a timer comes behind the rows of its own time and before later ones": (
        map_state, [2, None, "memory"], read({"a": [at(1, x=1), at(2, "b", 1), at(4, "b"), at(9, "b")]})
    ),
    "a timer that went off before a checkpoint does not go off behind it": (
        map_state,
        [2, None, "memory"],
        read({"a": [at(1, x=1), at(2, "b")]}, {"a": [at(6, "b")]}, cuts=[0, 1], crashes=[1]),
    ),
    "rows that were released before a checkpoint do not come again": (
        sort, [], read({"a": [at(1), at(2)]}, {"a": [at(6)]}, cuts=[0, 1], crashes=[1])
    ),
    "a count window has so many rows and no more": (
        count_windows,
        [3, 2],
        read({"a": [at(time, x=1) for time in range(5)]}),
    ),
    "late rows before a checkpoint stay counted": (
        count_windows, [1, 1], read({"a": [at(5)]}, {"a": [at(1)]}, {"a": [at(1)]}, cuts=[1], crashes=[1])
    ),
    "event time stays where a checkpoint has it": (
        top_k, [1, 0, 1], read({"a": [at(5)]}, {"a": [at(2)]}, cuts=[0], crashes=[0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("edge", EDGES)
def test_an_operator_gives_what_the_naive_evaluator_gives_at_an_edge(edge: str) -> None:
    kind, numbers, division = EDGES[edge]
    drawn = iter(numbers)
    operator = kind(lambda strategy: next(drawn))  # type: ignore[arg-type]
    form = "join" if kind is join else "one"
    compare(program_of(operator, form, [0, 0], sides_taken=False), division)

"""Programs for the comparison with the naive evaluator (`naive.py`): an operator, its parameters, and the
operators above it, each drawn at random.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd
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


MICRO, MILLI = micro(1), micro(1000)


def outside(row: Row, unit: timedelta = MICRO) -> Row:
    return {**row, "t": EPOCH + row["t"] * unit}


def plain(rows: Sequence[Row], unit: timedelta = MICRO) -> list[Row]:
    """With times as numbers of this unit."""
    return [
        {name: (cell - EPOCH) // unit if isinstance(cell, datetime) else cell for name, cell in row.items()}
        for row in rows
    ]


class Operator(NamedTuple):
    """An operator above a sink, and what it gives."""

    added: Callable[..., Stream]
    naive: Callable[[Division, Mapping[tuple[str, ...], int]], Made]
    """Of a division, and of the sources above each `event_time` with its lateness."""
    in_order: bool = True
    """Whether the rows of a key come in an order that is promised."""
    of_all_keys: bool = False
    """Whether the rows of all keys on one worker do."""
    ports: tuple[str, ...] = ("late",)
    unit: timedelta = MICRO
    """Of the times of the naive evaluator."""


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
        of_all_keys=True,
    )


SPARK_COLUMNS = ["k", "t", "n", "rows", "mark"]


def spark_function(wait: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """Counts rows, and sets its timeout `wait` ms after the last row of a call if the x of it is above 0."""

    def counted(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        mark = state.getCurrentWatermarkMs()
        n = state.get[0] if state.exists else 0
        if state.hasTimedOut:
            made = (key[0], EPOCH + mark * MILLI, n, 0, mark)
        else:
            rows = pd.concat([*frames], ignore_index=True)
            state.update((n + len(rows),))
            if rows["x"].iloc[-1] > 0:
                state.setTimeoutTimestamp(int(rows["t"].iloc[-1].timestamp() * 1000) + wait)
            made = (key[0], rows["t"].iloc[0], n + len(rows), len(rows), mark)
        yield pd.DataFrame([made], columns=SPARK_COLUMNS)

    return counted


class SparkProcessor:
    """The same with timers: x above 0 sets one, 2 instead of the others, and -1 deletes all."""

    def __init__(self, wait: int) -> None:
        self.wait = wait

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n bigint")

    def _count(self, rows: int) -> int:
        n: int = (self.n.get() or (0,))[0] + rows
        self.n.update((n,))
        return n

    def _set_timer(self, x: Any, time: datetime) -> None:
        for one in self.handle.listTimers() if x in (-1, 2) else ():
            self.handle.deleteTimer(one)
        if x is not None and x > 0:
            self.handle.registerTimer((time - EPOCH) // MILLI + self.wait)

    def handleInputRows(self, key: Any, rows: Iterator[Any], values: Any) -> Iterator[Any]:
        given = list(rows)
        self._set_timer(given[-1].x, given[-1].t)
        yield key[0], given[0].t, self._count(len(given)), len(given), values.getCurrentWatermarkInMs()

    def handleExpiredTimer(self, key: Any, values: Any, info: Any) -> Iterator[Any]:
        mark = values.getCurrentWatermarkInMs()
        yield key[0], EPOCH + mark * MILLI, (self.n.get() or (0,))[0], 0, info.getExpiryTimeInMs()


class RowByRow(SparkProcessor):
    """Reads one row after the other, so that it gives the same however rows are divided into calls."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], values: Any) -> Iterator[Any]:
        for row in rows:
            self._set_timer(row.x, row.t)
            yield key[0], row.t, self._count(1), 1, values.getCurrentWatermarkInMs()


class OfFrames(SparkProcessor):
    def handleInputRows(self, key: Any, rows: Iterator[Any], values: Any) -> Iterator[Any]:
        table = pd.concat([*rows], ignore_index=True)
        assert key[0] is None or set(table["k"]) == {key[0]}
        self._set_timer(table["x"].iloc[-1], table["t"].iloc[-1].to_pydatetime().replace(tzinfo=UTC))
        made = (key[0], table["t"].iloc[0], self._count(len(table)), len(table))
        yield pd.DataFrame([(*made, values.getCurrentWatermarkInMs())], columns=SPARK_COLUMNS)

    def handleExpiredTimer(self, key: Any, values: Any, info: Any) -> Iterator[Any]:
        for one in super().handleExpiredTimer(key, values, info):
            yield pd.DataFrame([one], columns=SPARK_COLUMNS)


def spark_calls(draw: Draw) -> Operator:
    shape = draw(st.sampled_from(["function", "pandas", "rows", "each row"]))
    calls, wait = draw(st.sampled_from(["row", "group", "group"])), draw(st.integers(0, 3))
    ttl = draw(st.sampled_from([None, None, 1, 2, 3]))
    schema = "k string, t timestamp, n bigint, rows bigint, mark bigint"
    options: dict[str, Any] = {"time": "t", "calls": calls, "ttl": None if ttl is None else ttl * MILLI}
    processors = {"pandas": OfFrames, "rows": SparkProcessor, "each row": RowByRow}

    def added(stream: Any) -> Stream:
        if shape == "function":
            given = (spark_function(wait), schema, "n bigint", "append", "EventTimeTimeout")
            made: Stream = stream.apply_in_pandas_with_state("made", *given, **options)
        else:
            takes = "pandas" if shape == "pandas" else "row"
            processor = (processors[shape](wait), schema, "append", "eventTime")
            made = stream.transform_with_state("made", *processor, takes=takes, **options)
        return made

    return keyed(
        added,
        lambda rows: naive.SparkCalls(wait, ttl, grouped=calls == "group", shape=shape).of(rows),
        of_all_keys=shape != "each row",
        unit=MILLI,
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
        stream.event_time(f"timed_{'_'.join(group)}", "t", lateness=timed[group] * operator.unit)
        for stream, group in zip(streams, groups, strict=True)
    ]
    if form == "union of times":
        streams = [streams[0].union("all", streams[1])]
    made = operator.added(*streams)
    made.sink("out", CallSink(print))
    for port in operator.ports if side_outputs_read else ():
        made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return Program(graph, operator, timed, side_outputs_read)

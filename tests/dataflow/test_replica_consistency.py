"""Operators that a replica may contain give the same rows with the same times, however the rows arrive.

Replica consistency is definition 2 of replication-transparency. T1: the time of a row is greater than every
watermark that was published before it. What is refused: `test_replica_checks.py`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    ApproxDistinct,
    Count,
    Graph,
    Max,
    Mean,
    Min,
    Sliding,
    Stream,
    Sum,
    Tumbling,
    UserOperator,
)
from dataflow.operators.aggregates import Aggregate
from dataflow.sinks.base import SinkSpec
from tests.dataflow.replica_arrangements import (
    ROWS,
    SCHEMA,
    arrangement,
    behind_watermarks,
    canonical,
    micro,
    play,
    timed,
    timed_log,
)
from tests.dataflow.trials import Row

SIZE = micro(4)
NAMES = ["t", "k", "x", "n"]


class Case(NamedTuple):
    """An operator (or several) above a sink."""

    added: Callable[[Stream, Stream], Stream]
    times: tuple[str, ...] = ("t",)
    """Columns of which the latest is the time of a row of its output."""

    def graph(self, sink: SinkSpec | None = None) -> Graph:
        graph = Graph("g")
        self.added(timed(graph, "a"), timed(graph, "b")).sink("out", sink or timed_log(*self.times))
        return graph


def of_one(added: Callable[[Stream], Stream], *times: str) -> Case:
    """A case with an operator of one input: the rows of both sources."""
    return Case(lambda left, right: added(left.union("both", right)), times or ("t",))


def keyed(added: Callable[[Any], Stream], *times: str) -> Case:
    return of_one(lambda stream: added(stream.key_by("by", "k")), *times)


def keys_only(stream: Stream) -> Stream:
    """Columns that can be keys."""
    return stream.map(
        "keys", lambda one: (one["t"], one["k"], one["n"]), schema="t timestamp, k string, n bigint"
    )


def joined(left: Stream, right: Stream) -> Stream:
    options: dict[str, Any] = {"times": ("t", "t"), "within": SIZE, "suffix": "_r"}
    return left.key_by("left", "k").join("pairs", right.key_by("right", "k"), **options)


def joined_by_time(left: Stream, right: Stream) -> Stream:
    """The time of the right row is a key, so it is not in the output."""
    options: dict[str, Any] = {"times": ("t", "t"), "within": SIZE, "suffix": "_r"}
    return left.key_by("left", "t").join("pairs", right.key_by("right", "t"), **options)


def all_aggregates() -> dict[str, Aggregate]:
    numbers = {f"{name}_{column}": one(column) for one, name in AGGREGATES for column in ("x", "n")}
    others = {"rows": Count(), "least": Min("k"), "first": Min("t"), "last": Max("t")}
    return {**numbers, **others, "about": ApproxDistinct("x", precision=5)}


AGGREGATES: list[tuple[Any, str]] = [(Count, "c"), (Sum, "s"), (Mean, "m"), (Min, "min"), (Max, "max")]


def on_row(one: Row, state: Any) -> list[Any]:
    """Adds doubles in the order of the calls, which rounds."""
    n, total = (state.value["n"], state.value["total"]) if state.value else (0, 0.0)
    state.value = {"n": n + 1, "total": total + (one["x"] or 0.0)}
    state.timer = one["t"] + micro(3) if one["n"] else state.timer
    return [(one["t"], one["k"], n + 1, state.value["total"], repr(one["x"]))]


def on_timer(key: Row, time: datetime, state: Any) -> list[Any]:
    return [(time, key["k"], state.value["n"] if state.value else -1, None, "timer")]


def with_state(stream: Any, ttl: timedelta | None = None) -> Stream:
    options: dict[str, Any] = {"time": "t", "state": "n bigint, total double", "ttl": ttl}
    schema = "t timestamp, k string, n bigint, total double, seen string"
    made: Stream = stream.map_state("states", on_row, on_timer=on_timer, schema=schema, **options)
    return made


def numbered_in_pandas(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        n = state.get[0] if state.exists else 0
        state.update((n + 1,))
        yield pd.DataFrame({"t": frame["t"], "k": [key[0]], "n": [n + 1], "x": frame["x"]})


class NumberedProcessor:
    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], times: Any) -> Iterator[Any]:
        for one in rows:
            n = (self.n.get()[0] if self.n.exists() else 0) + 1
            self.n.update((n,))
            yield one["t"], key[0], n, one["x"]


NUMBERED = "t timestamp, k string, n bigint, x double"


class SumUpToNow(UserOperator):
    """Sums the rows of one time and key, when no more of them can come."""

    needs = state = "t timestamp, k string, n bigint"
    schema = "t timestamp, k string, n bigint, total bigint"
    replica_consistent = True

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def process(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.select(["t", "k", "n"]).to_pylist()

    def on_punctuation(self, ts: datetime) -> Iterator[Any]:
        past = [one for one in self.rows if one["t"] <= ts]
        self.rows = [one for one in self.rows if one["t"] > ts]
        for time, key in sorted({(one["t"], one["k"]) for one in past}):
            found = [one["n"] or 0 for one in past if (one["t"], one["k"]) == (time, key)]
            yield time, key, len(found), sum(found)

    def checkpoint(self) -> list[Row]:
        return self.rows

    def reset(self, state: pa.RecordBatch) -> None:
        self.rows = state.to_pylist()


def doubled(one: Row, emit: Callable[..., None]) -> Row:
    if one["n"] == 2:
        emit("odd", {name: one[name] for name in NAMES})
    return one


def windows_of_windows(stream: Any) -> Stream:
    fine = stream.aggregate("fine", Tumbling("t", micro(2)), n=Sum("n"))
    again = fine.key_by("again", "k")
    made: Stream = again.aggregate(
        "coarse", Sliding("window_start", micro(6), micro(3)), n=Sum("n"), c=Count()
    )
    return made


def windows_of_pairs(left: Stream, right: Stream) -> Stream:
    by_n = joined(left, right).key_by("by_n", "n")
    return by_n.aggregate("windows", Tumbling("t_r", SIZE), pairs=Count(), sum=Sum("x_r"))


ACCEPTED: dict[str, Case] = {
    "map": of_one(lambda s: s.map("f", lambda one: {**one, "x": (one["x"] or 0.0) * 3})),
    "map of batches": of_one(
        lambda s: s.map("f", lambda batch: batch, takes="batch", replica_consistent=True)
    ),
    "flat_map": of_one(lambda s: s.flat_map("f", lambda one: [one] * (one["n"] or 0), schema=SCHEMA)),
    "filter": of_one(lambda s: s.filter("f", lambda one: one["n"] != 1, threads=2)),
    "side output of a function": of_one(
        lambda s: s.map(
            "f", doubled, side_outputs={"odd": NUMBERED.replace("n bigint, x double", "x double, n bigint")}
        ).side_output("odd", "odd")
    ),
    "union": Case(lambda left, right: left.union("both", right)),
    "key_by": of_one(lambda s: s.key_by("by", "n", on_null="drop")),
    "null keys": of_one(lambda s: s.key_by("by", "n", on_null="side").side_output("nulls", "null")),
    "tumbling windows": keyed(
        lambda s: s.aggregate("w", Tumbling("t", SIZE), **all_aggregates()), "window_end"
    ),
    "sliding windows": keyed(
        lambda s: s.aggregate("w", Sliding("t", micro(5), micro(2)), **all_aggregates()), "window_end"
    ),
    "windows of windows": keyed(windows_of_windows, "window_end"),
    "join": Case(joined, ("t", "t_r")),
    "join by time": Case(joined_by_time),
    "windows of pairs": Case(windows_of_pairs, ("window_end",)),
    "sort": of_one(lambda s: s.sort("sorted", "t")),
    "dedup by all columns": of_one(lambda s: keys_only(s).key_by("by", "t", "k", "n").dedup("d")),
    "dedup in windows by all columns": of_one(
        lambda s: keys_only(s).key_by("by", "k", "t", "n").dedup("d", Tumbling("t", SIZE))
    ),
    "map_state": keyed(with_state),
    "map_state with ttl": keyed(lambda s: with_state(s, micro(2))),
    "apply_in_pandas_with_state": keyed(
        lambda s: s.apply_in_pandas_with_state(
            "p", numbered_in_pandas, NUMBERED, "n bigint", "append", time="t"
        )
    ),
    "transform_with_state": keyed(
        lambda s: s.transform_with_state("p", NumberedProcessor(), NUMBERED, "append", "none", time="t")
    ),
    "apply": keyed(lambda s: s.apply("own", SumUpToNow())),
}


@pytest.mark.parametrize("name", ACCEPTED)
@settings(max_examples=20)
@given(left=ROWS, right=ROWS, data=st.data())
def test_an_accepted_operator_gives_the_same_rows_and_times_in_any_order_and_steps(
    name: str, left: list[Row], right: list[Row], data: st.DataObject
) -> None:
    case, rows = ACCEPTED[name], {"a": left, "b": right}
    graph, found = case.graph(), []
    for replica in range(2):
        workers = data.draw(st.integers(1, 2), label="workers")
        steps = data.draw(arrangement(rows), label=f"replica {replica}")
        found.append(canonical(play(graph, steps, workers)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ACCEPTED)
@settings(max_examples=30)
@given(left=ROWS, right=ROWS, data=st.data())
def test_the_time_of_a_row_of_an_accepted_operator_is_above_every_earlier_watermark(
    name: str, left: list[Row], right: list[Row], data: st.DataObject
) -> None:
    steps = data.draw(arrangement({"a": left, "b": right}))
    assert behind_watermarks(ACCEPTED[name].graph(), steps, ACCEPTED[name].times) == []

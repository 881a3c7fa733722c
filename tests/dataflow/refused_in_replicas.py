"""Operators that a replica must not contain, each with the problem that is reported and an example.

`DIFFER`: the same rows as two replicas get them, for which they give other rows. `BEHIND`: rows for which an
output has a row behind a watermark that was published before it.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from dataflow import (
    Count,
    CountWindow,
    Max,
    Min,
    Stream,
    Tumbling,
    UserOperator,
)
from dataflow.operators.aggregates import Aggregate
from dataflow.state.accumulators import Accumulator, ExtremeAccumulator
from dataflow.state.key_index import Slots
from tests.dataflow.replica_arrangements import (
    SplitStep,
    mark,
    micro,
    row,
)
from tests.dataflow.test_replica_consistency import Case, joined, keyed, of_one
from tests.dataflow.trials import Row

SIZE = micro(4)


def step_of(*rows: Row, source: str = "a") -> SplitStep:
    return {source: {"s0": list(rows)}}


class Numbered(UserOperator):
    """Numbers the rows in the order of arrival."""

    schema = "t timestamp, number bigint"
    count = 0

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for time in batch.column("t").to_pylist():
            self.count += 1
            yield time, self.count


class Sampled(Numbered):
    deterministic = False


class FirstAccumulator(ExtremeAccumulator):
    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        new = ~self._any.values[slots]
        super().update(slots[new][:1], column.filter(pa.array(new))[:1])


class First(Aggregate):
    """An aggregate that depends on the order, and does not state that it does not."""

    def __init__(self, column: str) -> None:
        self.column = column

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        assert column is not None
        return column

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        assert column is not None
        return FirstAccumulator(name, column, largest=True)


def ranked(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"t": batch.column("t"), "rank": pa.array(range(batch.num_rows))}


def read_by(added: Callable[[Stream, Any], Stream]) -> Case:
    """An operator that reads a broadcast table, made from the right stream."""

    def build(left: Stream, right: Stream) -> Stream:
        return added(left, right.graph.broadcast_table("table", right, "k"))  # type: ignore[attr-defined]

    return Case(build)


counter = itertools.count()
ONE, TWO = row(1, x=1.0), row(2, x=2.0)
PAST: list[list[SplitStep]] = [[step_of(mark(4)), step_of(ONE)], [step_of(ONE), step_of(mark(4))]]
"""A row that a watermark promised not to come, and the same row before the watermark."""
STEPS = [[step_of(ONE, TWO)], [step_of(ONE), step_of(TWO)]]
ORDERS = [[step_of(ONE), step_of(TWO)], [step_of(TWO), step_of(ONE)]]


class Refused(NamedTuple):
    case: Case
    problem: str
    remedy: str
    replicas: list[list[SplitStep]]
    """The same rows as two replicas get them."""


DIFFER: dict[str, Refused] = {
    "count": Refused(
        keyed(lambda s: s.count("op")), r"count 'op' has no window", "use aggregate with a window", STEPS
    ),
    "aggregate": Refused(
        keyed(lambda s: s.aggregate("op", n=Count())),
        r"aggregate 'op' has no window",
        "give it a window",
        STEPS,
    ),
    "dedup": Refused(
        keyed(lambda s: s.dedup("op")),
        r"dedup 'op' .* differ in 't', 'mark', 'x', 'n'",
        "to its key_by",
        ORDERS,
    ),
    "dedup with a window": Refused(
        keyed(lambda s: s.dedup("op", Tumbling("t", SIZE))), r"window_dedup 'op' emits the first", "", ORDERS
    ),
    "broadcast table": Refused(
        read_by(lambda s, table: s.filter("f", lambda one, table: one["k"] in table, broadcast=table)),
        r"control 'table' is a broadcast table",
        "join the rows",
        [
            [step_of(ONE, source="b"), step_of(TWO)],
            [step_of(TWO), step_of(ONE, source="b")],
        ],
    ),
    "late rows": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), n=Count()).side_output("op", "late")),
        r"side 'op' reads the late rows of 'w'",
        "late log of the entry point",
        PAST,
    ),
    "late rows of map_state": Refused(
        keyed(
            lambda s: s.map_state(
                "m", lambda one, state: None, time="t", state="n bigint", schema="n bigint"
            ).side_output("op", "late")
        ),
        r"side 'op' reads the late rows of 'm'",
        "late log of the entry point",
        PAST,
    ),
    "apply": Refused(
        of_one(lambda s: s.apply("op", Numbered())),
        r"apply 'op' runs Numbered",
        "replica_consistent = True",
        ORDERS,
    ),
    "an operator that is not deterministic": Refused(
        of_one(lambda s: s.apply("op", Sampled())),
        r"apply 'op' is not deterministic",
        "random numbers",
        ORDERS,
    ),
    "a function that is not deterministic": Refused(
        of_one(
            lambda s: s.map(
                "op",
                lambda one: (one["t"], next(counter)),
                schema="t timestamp, c bigint",
                deterministic=False,
            )
        ),
        r"map 'op' is not deterministic",
        "random numbers",
        [STEPS[0]] * 2,
    ),
    "a function of batches": Refused(
        of_one(lambda s: s.map("op", ranked, schema="t timestamp, rank bigint", takes="batch")),
        r"map 'op' has a function of batches",
        'use takes="row"; or declare replica_consistent=True',
        STEPS,
    ),
    "an aggregate that depends on the order": Refused(
        keyed(lambda s: s.aggregate("op", Tumbling("t", SIZE), first=First("x")), "window_end"),
        r"window 'op' has the result 'first'",
        "order_independent = True",
        ORDERS,
    ),
}

BEHIND: dict[str, Refused] = {
    "top_k": Refused(
        keyed(lambda s: s.top_k("op", Tumbling("t", SIZE), 1, by="x")),
        r"top_k 'op' emits rows of a window after it is over",
        "window_end",
        [[step_of(ONE, mark(2))]],
    ),
    "count window": Refused(
        keyed(lambda s: s.aggregate("op", CountWindow("t", 2), t=Min("t"))),
        r"count_window 'op' emits results that have no time",
        "window_end",
        [[step_of(ONE, mark(1)), step_of(TWO)]],
    ),
    "window_start": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), n=Count()), "window_start"),
        r"sink 'out' has the time 'window_start', which may be behind",
        r"use time=\['window_end'\]",
        [[step_of(ONE, mark(2))]],
    ),
    "the latest time in a window": Refused(
        keyed(lambda s: s.aggregate("w", Tumbling("t", SIZE), last=Max("t")), "last"),
        r"sink 'out' has the time 'last', which may be behind",
        r"use time=\['window_end'\]",
        [[step_of(ONE, mark(2))]],
    ),
    "one time of a pair": Refused(
        Case(joined, ("t",)),
        r"sink 'out' has the time 't', which may be behind",
        r"use time=\['t', 't_r'\]",
        [[{"a": {"s0": [ONE, mark(2)]}, "b": {"s0": [mark(2)]}}, {"b": {"s0": [row(4)]}}]],
    ),
    "another column than that of the event time": Refused(
        of_one(lambda s: s.filter("f", lambda one: True), "mark"),
        r"sink 'out' has the time 'mark', which may be behind",
        r"use time=\['t'\]",
        [],
    ),
}

"""Operators against a naive evaluator that is exact about boundaries: which step, which row, which order.

One property for all of them. A program is drawn: an operator, its numbers, what stands above it; and how its
rows are divided into splits, workers, batches and steps, with checkpoints and crashes after any of these.
Times are microseconds of a tiny range, so that rows meet window ends, watermarks and each other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataflow.exact_comparison import compare, divisions
from tests.dataflow.naive import Batch, Division, Row
from tests.dataflow.operator_programs import (
    OPERATORS,
    Draw,
    Operator,
    count_windows,
    join,
    map_state,
    program_of,
    programs,
    sort,
    top_k,
)


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
    *steps: Mapping[str, Sequence[Row]], checkpoints: Sequence[int] = (), crashes: Sequence[int] = ()
) -> Division:
    """By one worker, each step's rows of a source as one batch."""
    batches = [{source: [Batch("", 0, list(rows))] for source, rows in step.items()} for step in [*steps, {}]]
    return Division(1, batches, None, frozenset(checkpoints), tuple(crashes))


def at(t: int, k: str = "a", x: int = 0) -> Row:
    return {"t": t, "k": k, "x": x, "tag": 0}


EDGES: dict[str, tuple[Callable[[Draw], Operator], list[Any], Division]] = {
    "a row stays for exactly as long as a partner may come": (
        join, [3], read({"a": [at(0)], "b": [at(2, "b")]}, {"b": [at(2)]})
    ),
    "and for as long as one may come is not late": (
        join,
        [3],
        read({"a": [at(0)], "b": [at(2, "b")]}, {"b": [at(2), at(3)]}, checkpoints=[0], crashes=[0]),
    ),
    "a timer comes behind the rows of its own time and before later ones": (
        map_state, [2, None, "memory"], read({"a": [at(1, x=1), at(2, "b", 1), at(4, "b"), at(9, "b")]})
    ),
    "a timer that went off before a checkpoint does not go off behind it": (
        map_state,
        [2, None, "memory"],
        read({"a": [at(1, x=1), at(2, "b")]}, {"a": [at(6, "b")]}, checkpoints=[0, 1], crashes=[1]),
    ),
    "rows that were released before a checkpoint do not come again": (
        sort, [], read({"a": [at(1), at(2)]}, {"a": [at(6)]}, checkpoints=[0, 1], crashes=[1])
    ),
    "a count window has so many rows and no more": (
        count_windows,
        [3, 2],
        read({"a": [at(time, x=1) for time in range(5)]}),
    ),
    "late rows before a checkpoint stay counted": (
        count_windows,
        [1, 1],
        read({"a": [at(5)]}, {"a": [at(1)]}, {"a": [at(1)]}, checkpoints=[1], crashes=[1]),
    ),
    "event time stays where a checkpoint has it": (
        top_k, [1, 0, 1], read({"a": [at(5)]}, {"a": [at(2)]}, checkpoints=[0], crashes=[0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("edge", EDGES)
def test_an_operator_gives_what_the_naive_evaluator_gives_at_an_edge(edge: str) -> None:
    kind, numbers, division = EDGES[edge]
    drawn = iter(numbers)
    operator = kind(lambda strategy: next(drawn))  # type: ignore[arg-type]
    form = "join" if kind is join else "one"
    compare(program_of(operator, form, [0, 0], side_outputs_read=False), division)

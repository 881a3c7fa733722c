"""Operators against a naive evaluator that is exact about boundaries: which step, which row, which order.

One property for all of them. A program is drawn: an operator, its numbers, what stands above it; and how its
rows are divided into splits, workers, batches and steps, with checkpoints and crashes after any of these.
Times are microseconds of a tiny range, so that rows meet window ends, watermarks and each other.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.operators import sorting
from tests.dataflow.exact_comparison import check_rows, compare, divisions, rows_up_to
from tests.dataflow.naive import Batch, Division, Row
from tests.dataflow.operator_programs import (
    OPERATORS,
    Draw,
    Operator,
    count_windows,
    join,
    map_state,
    micro,
    outside,
    plain,
    program_of,
    programs,
    sort,
    top_k,
    windows,
)
from tests.dataflow.trials import play_with_trouble, timely, together


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
@settings(max_examples=200)
@given(data=st.data())
def test_an_operator_gives_what_the_naive_evaluator_gives(
    kind: Callable[[Draw], Operator], data: st.DataObject
) -> None:
    program = data.draw(programs(kind), label="program")
    sources = [source for group in program.timed for source in group]
    compare(program, data.draw(divisions(sources), label="division"))


@pytest.mark.parametrize(
    "kind", [windows, top_k, count_windows, map_state, sort, join], ids=lambda kind: kind.__name__
)
@settings(max_examples=60)
@given(data=st.data())
def test_the_rows_of_an_operator_depend_on_its_input_only(
    kind: Callable[[Draw], Operator], data: st.DataObject
) -> None:
    """Not on order, batches, steps, workers, crashes, or another number of workers after a crash."""
    operator = kind(data.draw)
    rows = {
        source: data.draw(st.lists(rows_up_to(12), max_size=14)) for source in ("ab" if kind is join else "a")
    }
    given_ = [data.draw(timely(one, [*map(outside, rows[one])], "t", micro(1))) for one in rows]
    form = "join" if kind is join else "one"
    program = program_of(operator, form, [late // micro(1) for _, late in given_], side_outputs_read=False)
    steps = together(given_[0][0], given_[-1][0]) if kind is join else given_[0][0]
    few = data.draw(st.sampled_from([2, 1000]), label="rows after which top_k deletes others")
    with mock.patch.object(sorting, "_prune_rows_min", few):
        trial = play_with_trouble(program.graph, steps, data, end=True)
    expected = operator.naive(read(rows), dict.fromkeys(program.timed, 100))
    check_rows(operator._replace(in_order=False), plain(trial.rows("out")), [*chain(*expected.rows)])
    assert not any(one["made"].get("rows") or one["made"].get("late_rows") for one in trial.counters())


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

"""Operators against a naive evaluator that is exact about boundaries: which step, which row, which order.

One property for all of them. A program is drawn: an operator, its numbers, what stands above it; and how its
rows are divided into splits, workers, batches and steps, with checkpoints and crashes after any of these.
Times are microseconds of a tiny range, so that rows meet window ends, watermarks and each other.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.operators import sorting
from dataflow.testing import Trial
from tests.dataflow.naive import Batch, Division, Row
from tests.dataflow.operator_programs import (
    OPERATORS,
    Draw,
    Operator,
    Program,
    count_windows,
    join,
    map_state,
    micro,
    outside,
    plain,
    program_of,
    programs,
    sort,
    spark_calls,
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


@settings(max_examples=120)
@given(data=st.data())
def test_each_call_of_a_function_for_spark_gets_the_rows_that_the_naive_evaluator_gives_it(
    data: st.DataObject,
) -> None:
    """With a call for each row or each group; the same calls in replayed steps, also on other workers."""
    program = data.draw(programs(spark_calls), label="program")
    sources = [source for group in program.timed for source in group]
    division = data.draw(divisions(sources, crowded=True), label="division")
    if division.done is None:  # such rows have no split: event time depends on which worker reads them
        compare(program, division)
    else:
        compare(program, division, lambda _: data.draw(st.integers(1, 4), label="workers from now on"))


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
    "a call ends at a timer, and its rest comes at its place among the other calls": (
        spark_calls,
        ["function", "group", 2, None],
        read({"a": [at(1, x=1), at(2, "b")]}, {"a": [at(3), at(9), at(5, "c"), at(12, "b")]}),
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


# --- the comparison with the naive evaluator (`naive.py`): inputs that are divided at -----------------------


def rows_up_to(time: int) -> st.SearchStrategy[Row]:
    return st.builds(
        lambda t, k, x, tag: {"t": t, "k": k, "x": x, "tag": tag},
        st.integers(0, time),
        st.sampled_from(["a", "a", "b", None]),
        st.sampled_from([-1, 0, 1, 1, 2, None]),
        st.integers(0, 1),
    )


@st.composite
def divisions(draw: Draw, sources: Sequence[str], *, crowded: bool = False) -> Division:
    """Any rows, read in any way, with trouble anywhere. crowded: many rows in each step, few of them late."""
    workers, count = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(2, 4 if crowded else 7))
    steps: list[dict[str, list[Batch]]] = [{} for _ in range(count)]
    most, newest = draw(st.sampled_from([(8, 12)] if crowded else [(1, 4), (2, 4), (2, 8), (4, 12)]))
    some = st.lists(rows_up_to(newest), min_size=most // 2 if crowded else 0, max_size=most)
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
    for index, step in enumerate(steps if crowded else ()):
        for row in (row for batches in step.values() for batch in batches for row in batch.rows):
            row["t"] += 6 * index
    checkpoints = frozenset(step for step in range(count) if draw(st.booleans()))
    crashes = draw(st.lists(st.integers(0, count - 2), max_size=2))
    return Division(
        workers, steps, done, checkpoints, tuple(crashes), draw(st.sampled_from([False, False, True]))
    )


def compare(
    program: Program, division: Division, workers_from: Callable[[int], int] = lambda workers: workers
) -> None:
    """Run it, and compare every step with the naive evaluator, also when it is replayed. `workers_from`: the
    number of workers after a crash, if there is a checkpoint.
    """
    expected = program.operator.naive(division, program.timed)
    side_outputs = {"late": expected.late, "late_right": expected.late_right}
    trial = Trial(program.graph, workers=division.workers, splits=division.done)
    crashes, step, workers = list(division.crashes), 0, division.workers
    while step < len(division.steps):
        known = {sink: len(trial.rows(sink)) for sink in trial.sinks}
        feed(trial, division, step, program.operator.unit)
        unit = program.operator.unit
        found = {sink: plain(trial.rows(sink)[known[sink] :], unit) for sink in trial.sinks}
        check_rows(program.operator, found["out"], expected.rows[step], workers=workers)
        for port in program.operator.ports:
            if program.side_outputs_read:
                assert unordered(found[f"{port}_out"]) == unordered(side_outputs[port][step]), port
        check_dropped(program, trial, [side_outputs[port][: step + 1] for port in program.operator.ports])
        step += 1
        if step - 1 in crashes:
            crashes.remove(step - 1)
            before = workers
            if any(one < step for one in division.checkpoints):
                workers = workers_from(workers)
            step = trial.crash() if workers == before else trial.rescale(workers)


def feed(trial: Trial, division: Division, step: int, unit: timedelta) -> None:
    given = {
        source: [[outside(row, unit) for row in batch.rows] for batch in batches]
        if division.done is None
        else {batch.split: [outside(row, unit) for row in batch.rows] for batch in batches}
        for source, batches in division.steps[step].items()
    }
    trial.step(
        given,
        checkpoint=step in division.checkpoints,
        snapshot=step in division.checkpoints and division.snapshot,
        end=step == len(division.steps) - 1,
        done={
            source: {split for split, last in splits.items() if last == step}
            for source, splits in (division.done or {}).items()
        },
    )


def check_rows(operator: Operator, found: list[Row], expected: Sequence[Any], *, workers: int = 2) -> None:
    if expected and isinstance(expected[0], tuple):
        expected = [dict(zip(found[0] if found else "", row, strict=True)) for row in expected]
    if operator.of_all_keys and workers == 1:
        assert found == [*expected]
    keys = {row["k"] for row in [*found, *expected]}
    for key in keys:
        rows, wanted = ([row for row in part if row["k"] == key] for part in (found, expected))
        assert (rows == wanted) if operator.in_order else unordered(rows) == unordered(wanted), key


def check_dropped(program: Program, trial: Trial, late_of_ports: Sequence[Sequence[Sequence[Row]]]) -> None:
    """Late rows that nobody takes are counted, those of replayed steps once."""
    late = sum(len(rows) for port in late_of_ports for rows in port)
    dropped = sum(counters["made"].get("late_rows_dropped", 0) for counters in trial.counters())
    assert dropped == (0 if program.side_outputs_read else late)


def unordered(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)

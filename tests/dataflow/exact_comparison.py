"""The comparison with the naive evaluator (`naive.py`): inputs that are divided at random into splits,
workers, batches and steps, with checkpoints and crashes, and the comparison of every step.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dataflow.testing import Trial
from tests.dataflow.naive import Batch, Division, Row
from tests.dataflow.operator_programs import Draw, Operator, Program, outside, plain


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
    checkpoints = frozenset(step for step in range(count) if draw(st.booleans()))
    crashes = draw(st.lists(st.integers(0, count - 2), max_size=2))
    return Division(
        workers, steps, done, checkpoints, tuple(crashes), draw(st.sampled_from([False, False, True]))
    )


def compare(program: Program, division: Division) -> None:
    """Run it, and compare every step with the naive evaluator, also when it is replayed."""
    expected = program.operator.naive(division, program.timed)
    side_outputs = {"late": expected.late, "late_right": expected.late_right}
    trial = Trial(program.graph, workers=division.workers, splits=division.done)
    crashes, step = list(division.crashes), 0
    while step < len(division.steps):
        known = {sink: len(trial.rows(sink)) for sink in trial.sinks}
        feed(trial, division, step)
        found = {sink: plain(trial.rows(sink)[known[sink] :]) for sink in trial.sinks}
        check_rows(program.operator, found["out"], expected.rows[step])
        for port in program.operator.ports:
            if program.side_outputs_read:
                assert unordered(found[f"{port}_out"]) == unordered(side_outputs[port][step]), port
        check_dropped(program, trial, [side_outputs[port][: step + 1] for port in program.operator.ports])
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
        checkpoint=step in division.checkpoints,
        snapshot=step in division.checkpoints and division.snapshot,
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


def check_dropped(program: Program, trial: Trial, late_of_ports: Sequence[Sequence[Sequence[Row]]]) -> None:
    """Late rows that nobody takes are counted, those of replayed steps once."""
    late = sum(len(rows) for port in late_of_ports for rows in port)
    dropped = sum(counters["made"].get("late_rows_dropped", 0) for counters in trial.counters())
    assert dropped == (0 if program.side_outputs_read else late)


def unordered(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)

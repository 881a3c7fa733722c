"""Run a graph in this process, without Spark, store or files: for tests of dataflows.

trial = Trial(graph, workers=2)
trial.step({"orders": [{"item": "tea", "price": 3}]}, checkpoint=True)
trial.step({"orders": [{"item": "tea", "price": 4}]})
trial.crash()                                   # back to the checkpoint; the second step is lost
trial.step({"orders": [{"item": "tea", "price": 4}]})
assert trial.rows("sold")[-1] == {"item": "tea", "count": 2}

assert_crash_safe(graph, {"orders": [{"item": "tea", "price": 3}, CRASH, {"item": "tea", "price": 4}]})
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

from dataflow.graph.builder import Graph
from dataflow.graph.plan import GraphPlan
from dataflow.operators.apply import ApplySpec
from dataflow.testing.trial import Rows, Trial


class _Crash(Enum):
    CRASH = "CRASH"


CRASH: Final = _Crash.CRASH
"""A marker among the rows of a source: all workers crash here."""
MarkedRows: TypeAlias = "Sequence[Mapping[str, Any] | Literal[_Crash.CRASH]]"


def assert_crash_safe(
    graph: Graph,
    inputs: Mapping[str, MarkedRows],
    *,
    workers: int = 2,
    rows_per_step: int = 2,
    steps_per_checkpoint: int = 2,
    splits: int = 1,
) -> Trial:
    """Run the graph with and without crashes, and compare the output of its sinks. All sources end at the
    end.

        assert_crash_safe(graph, {"orders": [{"item": "tea"}, CRASH, {"item": "tea"}]})
        assert_crash_safe(graph, {"orders": orders})    # with a crash at each row, one after the other
        assert_crash_safe(graph, {"orders": orders}, splits=3)    # the same, in three orders of reading

    At each CRASH all workers crash after the rows before it were processed, once, and continue from the last
    checkpoint. Without any CRASH there is a run for each row of each source, with a crash before it, and one
    after the last row; so a few rows suffice. A step reads `rows_per_step` rows of each source, each as a
    separate batch, dealt to the workers in turn.

    splits: the rows of each source are dealt to this many splits in turn, as if they were in that many files,
    which are read in turns, from the first to the last, and from the last to the first. The sinks must get
    the same rows each time: a graph fails in which event time loses rows of splits that are read later.

    Returns the trial without a crash, for further assertions. Raises GraphError; OperatorError;
    AssertionError, which names the crash, the sink, and missing or extra rows, or the operator and the files
    that differ.
    """
    rows = {name: [row for row in given if row is not CRASH] for name, given in inputs.items()}
    marked = {
        (name, index - given[:index].count(CRASH))
        for name, given in inputs.items()
        for index, row in enumerate(given)
        if row is CRASH
    }
    every = [{(name, row)} for name, given in rows.items() for row in range(len(given) + 1)]
    sizes = (workers, rows_per_step, steps_per_checkpoint)
    first: Trial | None = None
    for order, dealt in _orders(rows, splits).items():
        expected = _crashing(graph, dealt, set(), sizes)
        if first is not None:
            _compare(graph, first, expected, f"with the splits of each source read {order}")
        first = first or expected
        for crashes in [marked] if marked else every:
            crash_text = " and ".join(f"row {row} of source {name!r}" for name, row in sorted(crashes))
            _compare(
                graph, expected, _crashing(graph, dealt, crashes, sizes), f"with a crash before {crash_text}"
            )
    assert first is not None
    return first


def _orders(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], splits: int
) -> dict[str, dict[str, list[tuple[str, Mapping[str, Any]]]]]:
    """Return order of reading, as text -> source -> (split, row) as they are read. A single split is ""."""
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}")
    if splits == 1:
        return {"in turns": {name: [("", row) for row in given] for name, given in rows.items()}}
    dealt = {
        name: [(f"split{index % splits}", row) for index, row in enumerate(given)]
        for name, given in rows.items()
    }
    forward = {name: sorted(given, key=lambda one: one[0]) for name, given in dealt.items()}
    backward = {name: sorted(given, key=lambda one: one[0], reverse=True) for name, given in dealt.items()}
    return {"in turns": dealt, "from the first to the last": forward, "from the last to the first": backward}


def _crashing(
    graph: Graph,
    rows: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]],
    crashes: set[tuple[str, int]],
    sizes: tuple[int, int, int],
) -> Trial:
    """Run the graph; all workers crash before row n of a source, for each (source, n)."""
    workers, rows_per_step, steps_per_checkpoint = sizes
    splits = {name: sorted({split for split, _ in given} - {""}) for name, given in rows.items()}
    trial = Trial(graph, workers=workers, splits={name: found for name, found in splits.items() if found})
    waiting = sorted(crashes, key=lambda crash: crash[1])
    steps = max((-(-len(given) // rows_per_step) for given in rows.values()), default=0)
    step = 0
    while step <= steps:
        begin, end = step * rows_per_step, (step + 1) * rows_per_step
        part = {name: list(given[begin:end]) for name, given in rows.items()}
        if waiting and (waiting[0][1] < end or step == steps):
            source, at = waiting.pop(0)
            part[source] = part[source][: max(at - begin, 0)]
            trial.step({name: _step_input(taken) for name, taken in part.items()})
            step = trial.crash()
            continue
        step += 1
        done = {
            name: set(found) - {split for split, _ in rows[name][end:]}
            for name, found in splits.items()
            if found
        }
        given = {name: _step_input(taken) for name, taken in part.items()}
        trial.step(given, checkpoint=step % steps_per_checkpoint == 0, end=step > steps, done=done)
    return trial


def _step_input(taken: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    if not taken or not taken[0][0]:
        return [[row] for _, row in taken]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for split, row in taken:
        found.setdefault(split, []).append(row)
    return found


def _compare(graph: Graph, expected: Trial, found: Trial, what: str) -> None:
    for operator, worker in expected.directories:
        without, with_crash = expected.files(operator, worker), found.files(operator, worker)
        other = sorted(
            name for name in without.keys() | with_crash.keys() if without.get(name) != with_crash.get(name)
        )
        if other:
            raise AssertionError(
                f"{what}, worker {worker} of operator {operator!r} has other files than"
                f" without: {', '.join(map(repr, other[:3]))}{' ...' if len(other) > 3 else ''}"
            )
    for sink in expected.sinks:
        missing, extra = Counter(map(repr, expected.rows(sink))), Counter(map(repr, found.rows(sink)))
        missing, extra = missing - extra, extra - missing
        if missing or extra:
            differences = [
                f"{label}: {', '.join(sorted(rows.elements())[:3])}{' ...' if rows.total() > 3 else ''}"
                for label, rows in (("missing", missing), ("too many", extra))
                if rows
            ]
            hidden = ", ".join(map(repr, _without_state(graph.plan(), sink)))
            raise AssertionError(
                f"{what}, sink {sink!r} got other rows than without; {'; '.join(differences)}."
                f" Does an operator keep data outside of its state{hidden and f' (none declared: {hidden})'},"
                " or depend on a clock or random numbers?"
            )


def _without_state(plan: GraphPlan, sink: str) -> list[str]:
    """Return the operators of the user whose rows reach a sink, and that declare no state."""
    specs = {name: plan.specs[name] for name in plan.operators_above(sink)}
    users = {name: spec.operator for name, spec in specs.items() if isinstance(spec, ApplySpec)}
    return sorted(name for name, user in users.items() if user.state is None)


__all__ = ["CRASH", "Rows", "Trial", "assert_crash_safe"]

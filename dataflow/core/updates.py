"""Find the streams that carry updates: rows that replace an earlier row of the same key.

A running `count` or `aggregate` emits a row for a key in each step in which the key occurs. The number of
these rows depends on the size of the steps; only the last row of a key is a result. An operator that treats
every row as a separate fact (a sum, a window, a join) would return results that depend on the step size.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from dataflow.core.plan import KIND_RULES, NodeSpec, OperatorKind


class OnUpdates(Enum):
    """How an operator handles a stream of updates."""

    PASSES = auto()
    """Its output carries updates if an input does."""
    TAKES = auto()
    """It handles updates correctly and emits none."""
    REFUSES = auto()
    """It treats each row as a separate fact: with updates the results would depend on the step size."""


ON_UPDATES: Final[dict[OperatorKind, OnUpdates]] = {
    OperatorKind.SOURCE: OnUpdates.PASSES,
    OperatorKind.MAP: OnUpdates.PASSES,
    OperatorKind.FLAT_MAP: OnUpdates.PASSES,
    OperatorKind.FILTER: OnUpdates.PASSES,
    OperatorKind.UNION: OnUpdates.PASSES,
    OperatorKind.KEY_BY: OnUpdates.PASSES,
    OperatorKind.BROADCAST: OnUpdates.PASSES,
    OperatorKind.CONTROL: OnUpdates.TAKES,
    OperatorKind.COUNT: OnUpdates.REFUSES,
    OperatorKind.AGGREGATE: OnUpdates.REFUSES,
    OperatorKind.EVENT_TIME: OnUpdates.PASSES,
    OperatorKind.WINDOW: OnUpdates.REFUSES,
    OperatorKind.COUNT_WINDOW: OnUpdates.REFUSES,
    OperatorKind.SORT: OnUpdates.REFUSES,
    OperatorKind.JOIN: OnUpdates.REFUSES,
    OperatorKind.TOP_K: OnUpdates.REFUSES,
    OperatorKind.MAP_STATE: OnUpdates.REFUSES,
    OperatorKind.APPLY: OnUpdates.PASSES,
    OperatorKind.DEDUP: OnUpdates.REFUSES,
    OperatorKind.WINDOW_DEDUP: OnUpdates.REFUSES,
    OperatorKind.SIDE: OnUpdates.PASSES,
    OperatorKind.SINK: OnUpdates.TAKES,
}
assert set(ON_UPDATES) == set(OperatorKind)
MAKES_UPDATES: Final = frozenset({OperatorKind.COUNT, OperatorKind.AGGREGATE})


def sources_of_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> dict[int, int]:
    """Return operator -> the operator whose updates its output carries.

    Operators without updates are left out.

    reads: a source -> the sink of the same graph whose output it reads.
    """
    origin: dict[int, int] = {i: i for i, node in enumerate(nodes) if node.kind in MAKES_UPDATES}
    changed = True
    while changed:  # a source that reads a sink may be listed before it
        changed = False
        for index, node in enumerate(nodes):
            if index in origin or ON_UPDATES[node.kind] is not OnUpdates.PASSES:
                continue
            above = nodes[reads[index]].inputs if index in reads else node.inputs
            source = next((origin[one] for one in above if one in origin), None)
            if source is not None:
                origin[index], changed = source, True
    return origin


def update_problems(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> list[str]:
    """Return one line for each operator that would be wrong on the updates that reach it."""
    origin = sources_of_updates(nodes, reads)
    problems = []
    for node in nodes:
        source = next((origin[one] for one in node.inputs if one in origin), None)
        if source is None or ON_UPDATES[node.kind] is not OnUpdates.REFUSES:
            continue
        maker = nodes[source]
        problems.append(
            f"{node.kind.value} {node.name!r} takes each row as a new one, and {maker.kind.value}"
            f" {maker.name!r} above it emits updates: a new row for a key in each step, which replaces the"
            " previous one, so the result would depend on the step size; give"
            f" {maker.name!r} a window (Tumbling, Sliding or CountWindow), which emits each result once, or"
            f" compute {node.name!r} from the rows before {maker.name!r}"
        )
    return problems


def carries_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> frozenset[str]:
    """Return the names of the operators whose output carries updates."""
    return frozenset(
        nodes[index].name
        for index in sources_of_updates(nodes, reads)
        if KIND_RULES[nodes[index].kind].has_output
    )

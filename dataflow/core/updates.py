"""Which streams carry updates: rows that replace an earlier row of the same key.

A running `count` or `aggregate` gives a row for a key in each step in which the key came. How many rows that
is depends on the size of the steps; only the last row of a key is a result. An operator that treats every row
as a fact of its own (a sum, a window, a join) would give results that depend on the size of steps.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from dataflow.core.plan import KIND_RULES, Kind, NodeSpec


class OnUpdates(Enum):
    """What an operator does with a stream of updates."""

    PASSES = auto()
    """Its output carries updates if an input does."""
    TAKES = auto()
    """Updates are right here, and end here."""
    REFUSES = auto()
    """Each row counts as one: with updates the results would depend on the size of steps."""


ON_UPDATES: Final[dict[Kind, OnUpdates]] = {
    Kind.SOURCE: OnUpdates.PASSES,
    Kind.MAP: OnUpdates.PASSES,
    Kind.FLAT_MAP: OnUpdates.PASSES,
    Kind.FILTER: OnUpdates.PASSES,
    Kind.UNION: OnUpdates.PASSES,
    Kind.KEY_BY: OnUpdates.PASSES,
    Kind.BROADCAST: OnUpdates.PASSES,
    Kind.CONTROL: OnUpdates.TAKES,
    Kind.COUNT: OnUpdates.REFUSES,
    Kind.AGGREGATE: OnUpdates.REFUSES,
    Kind.EVENT_TIME: OnUpdates.PASSES,
    Kind.WINDOW: OnUpdates.REFUSES,
    Kind.COUNT_WINDOW: OnUpdates.REFUSES,
    Kind.SORT: OnUpdates.REFUSES,
    Kind.JOIN: OnUpdates.REFUSES,
    Kind.TOP_K: OnUpdates.REFUSES,
    Kind.MAP_STATE: OnUpdates.REFUSES,
    Kind.APPLY: OnUpdates.PASSES,
    Kind.DEDUP: OnUpdates.REFUSES,
    Kind.WINDOW_DEDUP: OnUpdates.REFUSES,
    Kind.SIDE: OnUpdates.PASSES,
    Kind.SINK: OnUpdates.TAKES,
}
assert set(ON_UPDATES) == set(Kind)
MAKES_UPDATES: Final = frozenset({Kind.COUNT, Kind.AGGREGATE})


def sources_of_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> dict[int, int]:
    """Operator -> the operator whose updates its output carries; operators that give rows are left out.

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
            found = next((origin[one] for one in above if one in origin), None)
            if found is not None:
                origin[index], changed = found, True
    return origin


def update_problems(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> list[str]:
    """Operators that would be wrong on the updates that reach them, one line each."""
    origin = sources_of_updates(nodes, reads)
    problems = []
    for node in nodes:
        found = next((origin[one] for one in node.inputs if one in origin), None)
        if found is None or ON_UPDATES[node.kind] is not OnUpdates.REFUSES:
            continue
        maker = nodes[found]
        problems.append(
            f"{node.kind.value} {node.name!r} takes each row as a new one, and {maker.kind.value}"
            f" {maker.name!r} above it gives updates: a new row for a key in each step, which replaces the"
            " one before, so the result would depend on the size of steps; give"
            f" {maker.name!r} a window (Tumbling, Sliding or CountWindow), which gives each result once, or"
            f" compute {node.name!r} from the rows before {maker.name!r}"
        )
    return problems


def carries_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> frozenset[str]:
    """Names of the operators whose output carries updates."""
    return frozenset(
        nodes[index].name
        for index in sources_of_updates(nodes, reads)
        if KIND_RULES[nodes[index].kind].has_output
    )

"""Decide which sources wait until a broadcast table is complete. Pure: operator names to source names.

A table with `complete_first` is complete when all sources that it is computed from are at their end on all
workers. Until then the sources whose rows reach a reader of the table are not read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dataflow.core.plan import NodePlan


@dataclass(frozen=True, slots=True)
class PendingTables:
    """Which sources wait for which tables, in one graph."""

    made_from: Mapping[str, frozenset[str]]
    """The `broadcast` operator of a table -> the sources that its rows come from."""
    waits_for: Mapping[str, frozenset[str]]
    """Source -> the `broadcast` operators of the tables that it waits for.

    Sources that wait for none are left out.
    """

    def problems(self) -> list[str]:
        """Return one line for each source that would wait for itself."""
        found = []
        for source in self.waits_for:
            reached: set[str] = set()
            todo = [source]
            while todo:
                for table in self.waits_for.get(todo.pop(), ()):
                    todo += self.made_from[table] - reached
                    reached |= self.made_from[table]
            if source in reached:
                tables = ", ".join(
                    repr(table.removesuffix(".rows")) for table in sorted(self.waits_for[source])
                )
                found.append(
                    f"source {source!r} waits until broadcast table {tables} is complete"
                    f" (complete_first=True), and the table waits for source {source!r}: a deadlock; leave"
                    " out complete_first, or compute the table from a separate source"
                )
        return found


def find_waiting(nodes: Sequence[NodePlan], first: Collection[str]) -> PendingTables:
    """Return which sources wait. first: tables with complete_first. `nodes`: inputs precede consumers."""
    above: dict[str, frozenset[str]] = {}
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        above[node.name] = frozenset().union(*(above[name] for name in node.inputs)) or frozenset({node.name})
    broadcasts = {table: by_name[table].inputs[0] for table in first}
    waits_for: dict[str, frozenset[str]] = {}
    for node in nodes:
        waits = frozenset(broadcasts[table] for table in node.broadcast_tables if table in broadcasts)
        for source in above[node.name] if waits else ():
            waits_for[source] = waits_for.get(source, frozenset()) | waits
    return PendingTables({rows: above[rows] for rows in broadcasts.values()}, waits_for)


__all__ = ["PendingTables", "find_waiting"]

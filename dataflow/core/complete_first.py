"""Which sources wait until a control table is complete. Pure.

Rules of this file: names of operators to names of sources; what is read when is the worker's.

A table with `complete_first` is complete when all sources that it is made from are at their end on all
workers. Until then nothing is read of the sources whose rows reach an operator that reads the table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dataflow.core.plan import NodePlan


@dataclass(frozen=True, slots=True)
class PendingTables:
    """The tables of a graph that are to be complete first."""

    made_from: Mapping[str, frozenset[str]]
    """What brings the rows of a table to the workers (its `broadcast`) -> the sources that they come from."""
    held: Mapping[str, frozenset[str]]
    """Source -> the broadcasts of the tables that it waits for; sources that wait for none are left out."""

    def problems(self) -> list[str]:
        """Tables that would wait for themselves, each as one line."""
        found = []
        for source in self.held:
            reached: set[str] = set()
            todo = [source]
            while todo:
                for table in self.held.get(todo.pop(), ()):
                    todo += self.made_from[table] - reached
                    reached |= self.made_from[table]
            if source in reached:
                tables = ", ".join(repr(table.removesuffix(".rows")) for table in sorted(self.held[source]))
                found.append(
                    f"source {source!r} waits until control table {tables} is complete (complete_first=True),"
                    f" and that waits for source {source!r}: neither would ever begin; leave complete_first"
                    " out, or make the table from a source of its own"
                )
        return found


def find_waiting(nodes: Sequence[NodePlan], first: Collection[str]) -> PendingTables:
    """first: the control tables that are to be complete first. `nodes` in an order in which inputs come
    first.
    """
    above: dict[str, frozenset[str]] = {}
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        above[node.name] = frozenset().union(*(above[name] for name in node.inputs)) or frozenset({node.name})
    broadcasts = {table: by_name[table].inputs[0] for table in first}
    held: dict[str, frozenset[str]] = {}
    for node in nodes:
        waits = frozenset(broadcasts[table] for table in node.broadcast_tables if table in broadcasts)
        for source in above[node.name] if waits else ():
            held[source] = held.get(source, frozenset()) | waits
    return PendingTables({rows: above[rows] for rows in broadcasts.values()}, held)


__all__ = ["PendingTables", "find_waiting"]

"""Operators that may return other rows when they run again, or when they run at another site. Pure.

    deterministic        the same rows in the same order and steps give the same rows: a replay does
    replica consistent   the same rows with the same times, in any order and division into steps, and with
                         watermarks that advance in any steps, give the same multiset of rows: replicas do

Replica consistency is definition 2 of replication-transparency. It implies the first.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dataflow.core.plan import NodeSpec
from dataflow.core.regions import consumers_of


class ReplicaProblem(NamedTuple):
    """Why two replicas of an operator may return other rows, as text after the operator's name, and what to
    write instead.
    """

    reason: str
    remedy: str


def not_deterministic(nodes: Sequence[NodeSpec], starts: Iterable[int]) -> dict[int, str]:
    """Return the operators `starts` and everything downstream of them -> the name of one of `starts` above
    it.
    """
    consumers = consumers_of(nodes)
    todo = [(index, nodes[index].name) for index in starts]
    found: dict[int, str] = {}
    while todo:
        index, above = todo.pop()
        if index not in found:
            found[index] = above
            todo += [(consumer, above) for consumer in consumers[index]]
    return found

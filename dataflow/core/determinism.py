"""Find the operators that may return other rows when they run again. Pure."""

from collections.abc import Iterable, Sequence

from dataflow.core.plan import NodeSpec
from dataflow.core.regions import consumers_of


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

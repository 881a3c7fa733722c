"""Which operators may give other rows when they are run again.

Rules of this file: operators as (name, kind, inputs, control tables), and which of them say it of themselves.
"""

from collections.abc import Iterable, Sequence

from dataflow.core.plan import NodeSpec
from dataflow.core.regions import consumers_of


def not_deterministic(nodes: Sequence[NodeSpec], starts: Iterable[int]) -> dict[int, str]:
    """The operators `starts` and all that is made from what they give, each with the name of one of them that
    it is made from.
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

"""Checks of a graph that need the descriptions of its operators, beside their names and inputs.

Rules of this file: operators and their inputs to words; nothing runs.
"""

from collections.abc import Sequence

from checkpoint.core.outputs import Publish
from dataflow.core.determinism import not_deterministic
from dataflow.core.plan import Kind, NodeSpec, in_order
from dataflow.operators.base import OperatorSpec
from dataflow.sinks.log import LogSink


def time_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """Who waits for event time must get it: an `event_time` on every way to it from a source."""
    without: dict[int, str | None] = {}
    """Operator -> a source from which its input comes without event time, if there is one."""
    problems = []
    for index in in_order(nodes):
        node = nodes[index]
        found = next((name for above in node.inputs if (name := without[above])), None)
        if node.kind is Kind.SOURCE:
            found = node.name
        elif node.kind is Kind.EVENT_TIME:
            found = None
        without[index] = found
        if specs[index].needs_time and found is not None:
            problems.append(
                f"{node.kind.value} {node.name!r} waits for event time, and none comes to it from source"
                f" {found!r}; put stream.event_time(name, column, lateness=...) between them"
            )
    return problems


def shown_by_step_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """What was shown by step must be made again as it was."""
    starts = [index for index, spec in enumerate(specs) if not spec.deterministic]
    unsure = not_deterministic(nodes, starts)
    return [
        f"sink {nodes[index].name!r} shows its output by step, and {unsure[index]!r} above it is not"
        " deterministic: after a failure it would make other rows than were shown; use"
        ' LogSink(publish="cut")'
        for index, spec in enumerate(specs)
        if index in unsure and isinstance(spec, LogSink) and spec.publish is Publish.STEP
    ]

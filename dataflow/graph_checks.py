"""Checks of a graph that need the descriptions of its operators, beside their names and inputs.

Rules of this file: operators and their inputs to words; nothing runs.
"""

from collections.abc import Mapping, Sequence

from checkpoint.core.outputs import Publish
from dataflow.core.delivery import Delivery
from dataflow.core.determinism import not_deterministic
from dataflow.core.plan import Kind, NodeSpec, in_order
from dataflow.core.regions import Choice
from dataflow.errors import DeliveryError
from dataflow.operators.base import OperatorSpec
from dataflow.sinks.base import SinkSpec
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


def delivery_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """A region promises no more of its sinks than they can give."""
    problems = []
    for region in choice.regions:
        for name in region.members:
            spec, wanted = specs[name], region.settings.delivery
            try:
                if isinstance(spec, SinkSpec):
                    spec.delivers(wanted)
            except DeliveryError as error:
                problems.append(
                    f"sink {name!r} is in a region with delivery={wanted!r}, and a {type(spec).__name__}"
                    f" {error.args[0]}; {error.remedy}"
                )
    return problems


def sink_deliveries(choice: Choice, specs: Mapping[str, OperatorSpec]) -> dict[str, Delivery]:
    """What each sink of a graph without such problems gives."""
    found: dict[str, Delivery] = {}
    for name, spec in specs.items():
        if isinstance(spec, SinkSpec):
            region = next((region for region in choice.regions if name in region.members), None)
            found[name] = "at-most-once" if region is None else spec.delivers(region.settings.delivery)
    return found


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

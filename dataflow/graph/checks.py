"""Checks of a graph that need the descriptions of its operators, beside their names and inputs.

Rules of this file: operators and their inputs to words; nothing runs.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from checkpoint import Publish
from checkpoint.chains.directory_store import directory_name_bytes_max
from dataflow.core.delivery import Delivery
from dataflow.core.determinism import not_deterministic
from dataflow.core.plan import EXCHANGES, KIND_RULES, NodeSpec, OperatorKind, in_order
from dataflow.core.regions import Choice
from dataflow.errors import DeliveryError, SchemaError
from dataflow.graph.plan import GraphPlan
from dataflow.operators.base import OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.operators.key_by import KeyBySpec, check_keyed_alike
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.log import LogSource


def time_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """Who waits for event time must get it: an `event_time` on every way to it from a source. And it gets the
    right one: lateness is promised for each split of a source, so an `event_time` must know the split of each
    row, which nobody knows behind an exchange or an operator with state.
    """
    without: dict[int, str | None] = {}
    """Operator -> a source from which its input comes without event time, if there is one."""
    mixed: dict[int, str | None] = {}
    """Operator -> what mixes the rows of splits above its output, if anything does."""
    problems = []
    for index in in_order(nodes):
        node = nodes[index]
        mixes = node.kind in EXCHANGES or KIND_RULES[node.kind].has_effect
        above = next((name for above in node.inputs if (name := mixed[above])), None)
        mixed[index] = above or (node.name if mixes else None)
        if node.kind is OperatorKind.EVENT_TIME and above is not None:
            problems.append(
                f"event_time {node.name!r} is behind {above!r}, where the rows of several splits are mixed,"
                " and lateness is promised for each split; put event_time between the source and it, or let"
                " a region of its own read the rows from a LogSink"
            )
        found = next((name for above in node.inputs if (name := without[above])), None)
        if node.kind is OperatorKind.SOURCE:
            found = node.name
        elif node.kind is OperatorKind.EVENT_TIME:
            found = None
        without[index] = found
        if specs[index].needs_time and found is not None:
            problems.append(
                f"{node.kind.value} {node.name!r} waits for event time, and none comes to it from source"
                f" {found!r}; put stream.event_time(name, column, lateness=...) between them"
            )
    return problems


def reads_of_sinks(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> dict[int, int]:
    """Source -> the sink of the same graph whose output log it reads."""
    sinks = {node.name: index for index, node in enumerate(nodes) if node.kind is OperatorKind.SINK}
    return {
        index: sinks[spec.sink]
        for index, spec in enumerate(specs)
        if isinstance(spec, LogSource) and spec.region is None and spec.sink in sinks
    }


def shared_key_problems(
    nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec], schemas: Mapping[str, pa.Schema | None]
) -> list[str]:
    """Of an operator of the user's with several inputs all are keyed alike, or none: or rows that belong
    together would be on different workers.
    """
    problems = []
    for node in nodes:
        if node.kind is not OperatorKind.APPLY or len(node.inputs) < 2:
            continue
        keys: list[list[pa.DataType]] = []
        apart = []
        for source in node.inputs:
            spec, columns = specs[source], schemas[nodes[source].name]
            if not isinstance(spec, KeyBySpec) or columns is None:
                apart.append(nodes[source].name)
                continue
            keys.append([columns.field(name).type for name in spec.keys])
        who = f"{node.kind.value} {node.name!r}"
        if keys and apart:
            keyed = ", ".join(repr(nodes[one].name) for one in node.inputs if nodes[one].name not in apart)
            problems.append(
                f"{who} has inputs by key ({keyed}) and inputs that are not ({', '.join(map(repr, apart))}),"
                " so rows that belong together would be on different workers; put a key_by before each of"
                " them, or before none"
            )
            continue
        try:
            check_keyed_alike(keys)
        except SchemaError as error:
            problems.append(f"{who}: {error}")
    return problems


def region_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """What cannot be in the region it is in, or outside of any."""
    return _delivery_problems(choice, specs) + _directory_problems(choice, specs)


def _directory_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """Files are cut and restored with a region, and recorded in a chain that has the operator's name."""
    problems = []
    for name in (name for name, spec in specs.items() if spec.keeps_files):
        if name in choice.outside:
            problems.append(
                f"operator {name!r} keeps files and is outside of any consistent region: there are no cuts"
                " with which they could be restored; annotate it as consistent(...)"
            )
        if len(name) > directory_name_bytes_max:
            problems.append(
                f"operator {name!r} keeps files, and its name has {len(name)} characters, more than"
                f" {directory_name_bytes_max}: their chain has it in its name; rename it"
            )
    return problems


def _delivery_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
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


def complete_first_problems(plan: GraphPlan) -> list[str]:
    """A table that is to be complete first waits for no source that waits for it, and a failure loses none of
    its rows.
    """
    problems = plan.waiting.problems()
    for name, spec in plan.specs.items():
        if not isinstance(spec, BroadcastStateSpec) or not spec.complete_first:
            continue
        region = next((one for one in plan.choice.regions if name in one.members), None)
        if region is None or region.settings.delivery == "at-most-once":
            where = (
                "outside of any consistent region" if region is None else 'in a region with "at-most-once"'
            )
            problems.append(
                f"control table {name!r} is to be complete first and is {where}, where a failure loses rows"
                " of it; leave complete_first out, or choose another delivery or region"
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
        ' LogSink(publish="checkpoint")'
        for index, spec in enumerate(specs)
        if index in unsure and isinstance(spec, LogSink) and spec.publish is Publish.STEP
    ]

"""Checks of a graph that need the descriptions of its operators, not only names and inputs.

They map operators and inputs to problem texts; nothing runs.
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
from dataflow.operators.event_time import EventTimeSpec
from dataflow.operators.routing import KeyBySpec, check_keyed_alike
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec
from dataflow.sources.log import LogSource


def time_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """Check that operators that need event time get it, and that it is correct.

    Every path from a source to such an operator needs an `event_time`. Lateness is promised for each split of
    a source, so an `event_time` must know the split of each row, which is lost after an exchange or an
    operator with state.
    """
    without: dict[int, str | None] = {}
    """Operator -> a source from which its input arrives without event time, if there is one."""
    mixed: dict[int, str | None] = {}
    """Operator -> the operator above its output that mixes rows of several splits, if there is one."""
    problems = []
    for index in in_order(nodes):
        node = nodes[index]
        mixes = node.kind in EXCHANGES or KIND_RULES[node.kind].has_effect
        above = next((name for above in node.inputs if (name := mixed[above])), None)
        mixed[index] = above or (node.name if mixes else None)
        if node.kind is OperatorKind.EVENT_TIME and above is not None:
            problems.append(
                f"event_time {node.name!r} is below {above!r}, which mixes the rows of several splits,"
                " and lateness is promised for each split; put event_time between the source and it, or read"
                " the rows from a LogSink in a separate region"
            )
        problems += _mark_problems(nodes, specs, index)
        untimed = next((name for above in node.inputs if (name := without[above])), None)
        if node.kind is OperatorKind.SOURCE:
            untimed = node.name
        elif node.kind is OperatorKind.EVENT_TIME:
            untimed = None
        without[index] = untimed
        if specs[index].needs_time and untimed is not None:
            problems.append(
                f"{node.kind.value} {node.name!r} needs event time, and gets none from source"
                f" {untimed!r}; put stream.event_time(name, column, lateness=...) between them"
            )
    return problems


def _mark_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec], index: int) -> list[str]:
    """Check that the sources above an `event_time` by marks are marked, and by which column."""
    spec = specs[index]
    if not isinstance(spec, EventTimeSpec) or not spec.marks:
        return []
    todo, problems = list(nodes[index].inputs), []
    while todo:
        above = todo.pop()
        source = specs[above]
        todo += nodes[above].inputs
        if nodes[above].kind is OperatorKind.SOURCE and getattr(source, "time", None) != spec.column:
            problems.append(
                f"event_time {nodes[index].name!r} takes its watermark from marks, and source"
                f" {nodes[above].name!r} has none for column {spec.column!r}; read it with"
                f" InputSource(..., entry='dos://...', time={spec.column!r}), or pass lateness instead; a"
                " merged log has marks for a time of one column: before the sink of its replicas, compute the"
                " latest of several"
            )
    return problems


def reads_of_sinks(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> dict[int, int]:
    """Return source -> the sink of the same graph whose output log it reads."""
    sinks = {node.name: index for index, node in enumerate(nodes) if node.kind is OperatorKind.SINK}
    return {
        index: sinks[spec.sink]
        for index, spec in enumerate(specs)
        if isinstance(spec, LogSource) and spec.region is None and spec.sink in sinks
    }


def shared_key_problems(
    nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec], schemas: Mapping[str, pa.Schema | None]
) -> list[str]:
    """Check that all inputs of a user operator are keyed alike, or none is.

    Otherwise rows that belong together would be on different workers.
    """
    problems = []
    for node in nodes:
        if node.kind is not OperatorKind.APPLY or len(node.inputs) < 2:
            continue
        keys: list[list[pa.DataType]] = []
        unkeyed = []
        for source in node.inputs:
            spec, columns = specs[source], schemas[nodes[source].name]
            if not isinstance(spec, KeyBySpec) or columns is None:
                unkeyed.append(nodes[source].name)
                continue
            keys.append([columns.field(name).type for name in spec.keys])
        label = f"{node.kind.value} {node.name!r}"
        if keys and unkeyed:
            keyed = ", ".join(repr(nodes[one].name) for one in node.inputs if nodes[one].name not in unkeyed)
            problems.append(
                f"{label} has keyed inputs ({keyed}) and inputs without keys"
                f" ({', '.join(map(repr, unkeyed))}), so rows that belong together would be on different"
                " workers; put a key_by before each of them, or before none"
            )
            continue
        try:
            check_keyed_alike(keys)
        except SchemaError as error:
            problems.append(f"{label}: {error}")
    return problems


def region_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """Return problems of operators that do not fit their region, or that need one."""
    problems = [
        f"operator {name!r} requests checkpoints and is outside of any consistent region, where there are"
        " none; annotate it as consistent(...)"
        for name in choice.outside
        if not isinstance(specs[name], SourceSpec) and specs[name].can_trigger
    ]
    return problems + _delivery_problems(choice, specs) + _directory_problems(choice, specs)


def _directory_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """Check operators with files: a region restores them, and their chain carries the operator's name."""
    problems = []
    for name in (name for name, spec in specs.items() if spec.keeps_files):
        if name in choice.outside:
            problems.append(
                f"operator {name!r} keeps files and is outside of any consistent region, where no checkpoint"
                " could restore them; annotate it as consistent(...)"
            )
        if len(name) > directory_name_bytes_max:
            problems.append(
                f"operator {name!r} keeps files, and its name has {len(name)} characters, more than"
                f" {directory_name_bytes_max} (the name is part of a chain name); rename it"
            )
    return problems


def _delivery_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """Check that each sink supports the delivery of its region."""
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
    """Check that no table with complete_first waits for itself, and that a failure loses none of its rows."""
    problems = plan.waiting.problems()
    for name, spec in plan.specs.items():
        if not isinstance(spec, BroadcastStateSpec) or not spec.complete_first:
            continue
        region = next((one for one in plan.choice.regions if name in one.members), None)
        if region is None or region.settings.delivery == "at-most-once":
            placement = (
                "outside of any consistent region" if region is None else 'in a region with "at-most-once"'
            )
            problems.append(
                f"broadcast table {name!r} with complete_first is {placement}, where a failure loses rows of"
                " it; leave out complete_first, or choose another delivery or region"
            )
    return problems


def sink_deliveries(choice: Choice, specs: Mapping[str, OperatorSpec]) -> dict[str, Delivery]:
    """Return sink -> its delivery, for a graph without such problems."""
    deliveries: dict[str, Delivery] = {}
    for name, spec in specs.items():
        if isinstance(spec, SinkSpec):
            region = next((region for region in choice.regions if name in region.members), None)
            deliveries[name] = "at-most-once" if region is None else spec.delivers(region.settings.delivery)
    return deliveries


def publish_by_step_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """Check that output published by step is deterministic: a replay must return the same rows."""
    starts = [index for index, spec in enumerate(specs) if not spec.deterministic]
    unsure = not_deterministic(nodes, starts)
    return [
        f"sink {nodes[index].name!r} publishes by step, and {unsure[index]!r} above it is not"
        " deterministic: after a failure it could return other rows than were published; use"
        ' LogSink(publish="checkpoint")'
        for index, spec in enumerate(specs)
        if index in unsure and isinstance(spec, LogSink) and spec.publish is Publish.STEP
    ]

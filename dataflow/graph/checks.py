"""Checks of a graph that need the descriptions of its operators, not only names and inputs. Nothing runs."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

import pyarrow as pa

from checkpoint import Publish
from checkpoint.chains.directory_store import directory_name_bytes_max
from dataflow.core.plan import EXCHANGES, KIND_RULES, NodePlan, NodeSpec, OperatorKind, in_order
from dataflow.core.regions import Choice, Delivery, not_deterministic
from dataflow.errors import DeliveryError, GraphError, ReplicaError, SchemaError, nearest
from dataflow.graph.plan import GraphPlan
from dataflow.operators.base import OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.operators.event_time import LATE_PORTS, EventTimeSpec, check_time_column, micros_of
from dataflow.operators.functions import MapSpec
from dataflow.operators.join import LEFT, RIGHT, JoinSpec
from dataflow.operators.map_state import MapStateSpec
from dataflow.operators.routing import KeyBySpec, SideOutputSpec, check_keyed_alike
from dataflow.operators.sorting import SortSpec, TopKSpec
from dataflow.operators.windows import START, STOP, CountWindowSpec, Selection, WindowSpec
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec
from dataflow.sources.batches import LOCAL_RECOVERY_OF_BATCHES, BatchSource
from dataflow.sources.stored import LogSource


def time_problems(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> list[str]:
    """Check that every path from a source to an operator that needs event time has an `event_time`, and that
    it is correct.
    """
    # Lateness is promised for each split of a source, so an `event_time` must know the split of each row,
    # which is lost after an exchange or an operator with state.
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
    """Check that all inputs of a user operator are keyed alike, or none is: rows of a key belong to one
    worker.
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
    problems += _delivery_problems(choice, specs) + _directory_problems(choice, specs)
    return problems + _batch_problems(choice, specs)


def _batch_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    """Check a graph that the micro-batches of a query feed: a batch is processed whole, by its checkpoint."""
    fed = [name for name, spec in specs.items() if isinstance(spec, BatchSource)]
    if not fed:
        return []
    problems = [
        f"source {name!r} is not fed by the query that feeds {fed[0]!r}, so a repeated batch would find other"
        " rows there; pass its rows as another DataFrame, through({'NAME': df, ...}, graph)"
        for name, spec in specs.items()
        if isinstance(spec, SourceSpec) and name not in fed
    ]
    problems += [
        f"sink {name!r} shows rows of a step, and those of a batch are not final before its checkpoint: a"
        " reset repeats it; use LogSink(publish='checkpoint')"
        for name, spec in specs.items()
        if isinstance(spec, SinkSpec) and spec.shows_steps
    ]
    problems += [
        f"operator {name!r} is outside of any consistent region, where no checkpoint commits a batch;"
        " annotate it as consistent(...)"
        for name in choice.outside
    ]
    for region in choice.regions:
        if region.settings.delivery == "at-most-once":
            problems.append(
                'a query repeats a batch until it is processed, and delivery="at-most-once" repeats nothing;'
                " leave delivery out"
            )
        if region.settings.recovery == "local":
            problems.append(LOCAL_RECOVERY_OF_BATCHES)
    return problems


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


def find_schemas(
    graph: str, nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]
) -> dict[str, pa.Schema | None]:
    """Return operator -> columns of its output, None for a sink. Raises GraphError with all problems."""
    schemas: dict[str, pa.Schema | None] = {}
    problems: list[str] = []
    for index in in_order(nodes):
        node, spec = nodes[index], specs[index]
        inputs = [schemas.get(nodes[source].name) for source in node.inputs]
        schemas[node.name] = None
        if None in inputs:
            continue  # the problem of its input is already reported
        try:
            if isinstance(spec, SideOutputSpec):
                inputs = [_side_output_schema(spec, nodes, specs, node.inputs[0], schemas)]
            schemas[node.name] = spec.output_schema([schema for schema in inputs if schema is not None])
        except SchemaError as error:
            problems.append(f"{node.kind.value} {node.name!r}: {error}")
    if problems:
        raise GraphError(graph, tuple(problems))
    assert all(schemas[node.name] is not None for node in nodes if KIND_RULES[node.kind].has_output)
    return schemas


def _side_output_schema(
    side_output: SideOutputSpec,
    nodes: Sequence[NodeSpec],
    specs: Sequence[OperatorSpec],
    source: int,
    schemas: Mapping[str, pa.Schema | None],
) -> pa.Schema:
    node = nodes[source]
    found = [schemas[nodes[above].name] for above in node.inputs]
    ports = specs[source].side_output_schemas([schema for schema in found if schema is not None])
    if side_output.port not in ports:
        known = f"it has {', '.join(map(repr, ports))}" if ports else "it has none"
        raise SchemaError(
            f"{node.kind.value} {node.name!r} has no side output {side_output.port!r}"
            f"{nearest(side_output.port, ports)}; {known}"
        )
    return ports[side_output.port]


Lags: TypeAlias = Mapping[str, int]
"""Column -> microseconds; "" stands for any other column."""

_KEEPS: Final = frozenset(
    {
        OperatorKind.FILTER,
        OperatorKind.KEY_BY,
        OperatorKind.BROADCAST,
        OperatorKind.SIDE,
        OperatorKind.DEDUP,
        OperatorKind.WINDOW_DEDUP,
    }
)
"""Operators that pass rows on unchanged, in the step in which they arrived."""


def find_lags(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> dict[str, tuple[int, ...]]:
    """Return operator -> for each input, by how much its watermark is held back there, in microseconds."""
    # A window emits when its last microsecond has passed: `window_start` is behind the watermark by its size
    # then. The same holds for pairs of a join and rows of a `top_k`. An operator that uses such a column as
    # its time must hold its watermark back by this lag, or these rows would be late there. An `event_time`
    # starts over.
    lags_of: dict[int, Lags] = {}
    held_back: dict[str, tuple[int, ...]] = {}
    for index in in_order(nodes):
        node, spec = nodes[index], specs[index]
        inputs = [lags_of.get(above, {}) for above in node.inputs]
        times = _times(spec, len(inputs))
        input_lags = [_lag(lags, time) if time else 0 for lags, time in zip(inputs, times, strict=True)]
        if node.kind is OperatorKind.APPLY and spec.needs_time:  # the columns that it uses are unknown
            input_lags = [_worst([lags]) for lags in inputs]
        held_back[node.name] = tuple(input_lags)
        lags_of[index] = _output(node, spec, inputs)
    return held_back


def _times(spec: OperatorSpec, inputs: int) -> tuple[str, ...]:
    if isinstance(spec, JoinSpec):
        return spec.times
    if isinstance(spec, (SortSpec, MapStateSpec)):
        return (spec.time,)
    if isinstance(spec, (WindowSpec, CountWindowSpec, TopKSpec)):
        return (spec.window.time,)
    window = getattr(spec, "window", None)  # of a dedup
    return (window.time,) if window is not None else ("",) * inputs


def _output(node: NodeSpec, spec: OperatorSpec, inputs: Sequence[Lags]) -> Lags:
    worst = _worst(inputs)
    if isinstance(spec, EventTimeSpec) or not inputs:
        return {}
    if node.kind in _KEEPS:
        return inputs[0]
    if node.kind is OperatorKind.UNION:
        names = {name for lags in inputs for name in lags}
        return {name: max(_lag(lags, name) for lags in inputs) for name in names}
    if isinstance(spec, WindowSpec):
        size = micros_of(spec.window.size, "size")
        return {START: size - 1, STOP: 0, "": size + worst}
    if isinstance(spec, MapSpec) and isinstance(spec.function, Selection):
        return spec.function.lags(inputs[0])
    if isinstance(spec, TopKSpec):
        return {"": micros_of(spec.window.size, "size") + worst}
    if isinstance(spec, JoinSpec):
        return {"": micros_of(spec.within, "within") + worst}
    if isinstance(spec, SortSpec):
        return {spec.time: 0, "": worst and worst + 1}
    return {"": worst and worst + 1}


def _lag(lags: Lags, column: str) -> int:
    return lags.get(column, lags.get("", 0))


def _worst(inputs: Sequence[Lags]) -> int:
    return max((lag for lags in inputs for lag in lags.values()), default=0)


Times: TypeAlias = frozenset[frozenset[str]] | None
"""Sets of columns: for each, the latest of its columns is above every watermark of the stream before the row.
A pair of a join has a set of two, because only one of its rows arrived above the watermark. None: functions
of the user make the columns, and the sink checks each row.
"""

NO_TIMES: Final[Times] = frozenset()
_PASS_ROWS_ON: Final = frozenset(
    {OperatorKind.FILTER, OperatorKind.KEY_BY, OperatorKind.DEDUP, OperatorKind.WINDOW_DEDUP}
)
_RUN_FUNCTIONS: Final = frozenset(
    {OperatorKind.MAP, OperatorKind.FLAT_MAP, OperatorKind.MAP_STATE, OperatorKind.APPLY}
)
"""Kinds whose output has columns that functions of the user make."""


def is_replica(specs: Mapping[str, OperatorSpec]) -> bool:
    """Return whether a graph of these operators is that of a replica: an output has times."""
    return any(isinstance(spec, LogSink) and spec.time for spec in specs.values())


def check_replica(plan: GraphPlan) -> None:
    """Raise ReplicaError with all problems if replicas of this graph may emit different rows. Each operator
    states its own in `replica_problem`; checked here is what only the whole graph shows.
    """
    problems = _region_problems(plan.choice)
    times: dict[str, Times] = {}
    for node in plan.plan.nodes:  # inputs precede consumers
        spec, label = plan.specs[node.name], f"{node.kind.value} {node.name!r}"
        inputs = [times[name] for name in node.inputs if name in times]
        problem = spec.replica_problem(_input_schemas(plan, node))
        texts = (
            [f"{problem.reason}; {problem.remedy}"] if problem is not None else _graph_problems(plan, node)
        )
        texts = texts or _time_problems(spec, inputs, () if problems else _input_schemas(plan, node))
        problems += [f"{label} {text}" for text in texts]
        if KIND_RULES[node.kind].has_output:  # below a problem, times are not checked
            times[node.name] = None if texts else _output_times(plan, node, inputs)
    if problems:
        raise ReplicaError(plan.name, tuple(problems))


def _input_schemas(plan: GraphPlan, node: NodePlan) -> Sequence[pa.Schema]:
    return [schema for name in node.inputs if (schema := plan.schemas[name]) is not None]


def _region_problems(choice: Choice) -> list[str]:
    problems = []
    if len(choice.regions) != 1 or choice.outside:
        problems.append(
            f"a replica is one consistent region, and the graph has {len(choice.regions)}, with"
            f" {len(choice.outside)} operators outside; put each region into a graph of its own"
        )
    wanted = [region.settings.delivery for region in choice.regions]
    return problems + [
        f"the region has delivery={one!r}, which loses rows or emits them twice after a failure; use"
        ' delivery="exactly-once"'
        for one in wanted
        if one not in (None, "exactly-once")
    ]


def _graph_problems(plan: GraphPlan, node: NodePlan) -> list[str]:
    spec = plan.specs[node.name]
    if isinstance(spec, SideOutputSpec) and _has_late_rows(plan.specs[node.inputs[0]], spec.port):
        text = f"reads the late rows of {node.inputs[0]!r}, and which rows are late depends on the steps"
        return [f"{text}; read the late log of the entry point, which is the same for all replicas"]
    if isinstance(spec, EventTimeSpec) and spec.lateness is not None:
        mixed = [name for name in plan.sources_above(node.name) if not _times_rise(plan.specs[name])]
        if mixed:
            text = f"takes watermarks from rows of {mixed[0]!r}, which are not in the order of their times"
            return [f"{text}; take the watermarks of the source, or use punctuation="]
    return []


def _has_late_rows(spec: OperatorSpec, port: str) -> bool:
    return port in LATE_PORTS and spec.needs_time and spec.kind is not OperatorKind.APPLY


def _times_rise(spec: OperatorSpec) -> bool:
    """Whether the rows of a source are in the order of their times, or it is refused for another reason."""
    return not isinstance(spec, SourceSpec) or spec.times_rise or spec.replica_problem(()) is not None


# --- times ----------------------------------------------------------------------------------------------


def _output_times(plan: GraphPlan, node: NodePlan, inputs: Sequence[Times]) -> Times:
    spec = plan.specs[node.name]
    if isinstance(spec, EventTimeSpec):
        return _sets((spec.column,))
    if isinstance(spec, WindowSpec):
        return _sets((STOP,))
    if isinstance(spec, SortSpec):
        return _sets((spec.time,))
    if isinstance(spec, JoinSpec):
        return _sets(_times_of_pair(spec, plan, node))
    if isinstance(spec, SideOutputSpec):
        return _side_output_times(plan.plan.node(node.inputs[0]), inputs[0])
    if node.kind in _RUN_FUNCTIONS:
        return NO_TIMES if NO_TIMES in inputs else None
    if node.kind in _PASS_ROWS_ON:
        return inputs[0]
    return _times_of_union(inputs) if node.kind is OperatorKind.UNION else NO_TIMES


def _sets(columns: Sequence[str]) -> Times:
    return frozenset({frozenset(columns)})


def _times_of_union(inputs: Sequence[Times]) -> Times:
    """Return what the streams have in common: one set of each, together."""
    if NO_TIMES in inputs:
        return NO_TIMES
    known = [times for times in inputs if times is not None]
    if len(known) < len(inputs):
        return None
    return frozenset(frozenset().union(*chosen) for chosen in product(*known))


def _times_of_pair(spec: JoinSpec, plan: GraphPlan, node: NodePlan) -> tuple[str, str]:
    """Return the time columns of both rows, as they are named in the output."""
    left, right = spec.times
    if right in spec.keys[RIGHT]:
        return left, spec.keys[LEFT][spec.keys[RIGHT].index(right)]
    return left, right + spec.suffix if right in _input_schemas(plan, node)[LEFT].names else right


def _side_output_times(above: NodePlan, output: Times) -> Times:
    if above.kind is OperatorKind.EVENT_TIME:
        return NO_TIMES  # rows without a time
    return output if above.kind is OperatorKind.KEY_BY or output == NO_TIMES else None


def _time_problems(spec: OperatorSpec, inputs: Sequence[Times], schemas: Sequence[pa.Schema]) -> list[str]:
    columns = spec.time if isinstance(spec, LogSink) else ()
    if columns and inputs[0] is None:
        try:
            for column, schema in product(columns, schemas):
                check_time_column(column, schema)
        except SchemaError as error:
            return [str(error.args[0])]
    if not columns or inputs[0] is None or any(times <= set(columns) for times in inputs[0]):
        return []
    given = ", ".join(map(repr, columns))
    if inputs[0] == NO_TIMES:
        return [f"has the time {given}, and its rows have no event time; put an event_time above it"]
    allowed = " or ".join(sorted(repr(sorted(times)) for times in inputs[0]))
    return [
        f"has the time {given}, which may be behind a watermark published before the row; use time={allowed}"
    ]

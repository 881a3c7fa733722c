"""What a graph may contain whose region runs as replicas at several sites (docs/sites.md).

It maps a planned graph to problem texts; nothing runs. Each operator states in `replica_problem` whether it
is replica consistent; this file asks all of them, and checks what only the whole graph shows:

1. the region is exactly-once, and the only one of the graph
2. no stream reads the late rows of an operator
3. `event_time` takes watermarks from rows only where these come in the order of their times
4. the time of a row on an output (`LogSink(time=...)`) is greater than every watermark published before it

For 4, a stream has *times*: sets of columns. For each set, the latest of its columns is above every watermark
of the stream before the row. A pair of a join, for example, has a set of two columns: only one of its rows
arrived above the watermark. `watermark_lags.py` has how far a single column may be behind.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, TypeAlias

import pyarrow as pa

from dataflow.core.plan import KIND_RULES, NodePlan, OperatorKind
from dataflow.core.regions import Choice
from dataflow.errors import ReplicaError, SchemaError
from dataflow.graph.checks import sink_deliveries
from dataflow.graph.plan import GraphPlan
from dataflow.operators.base import OperatorSpec
from dataflow.operators.event_time import EventTimeSpec, check_time_column
from dataflow.operators.join import LEFT, RIGHT, JoinSpec
from dataflow.operators.late import LATE_PORTS
from dataflow.operators.side_output import SideOutputSpec
from dataflow.operators.sort import SortSpec
from dataflow.operators.window_assignment import STOP
from dataflow.operators.windows import WindowSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec

Times: TypeAlias = frozenset[frozenset[str]] | None
"""None: functions of the user make the columns, and the sink checks each row when it arrives."""

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
    """Raise ReplicaError with all problems if replicas of this graph may emit different rows."""
    problems = _region_problems(plan.choice, plan.specs)
    times: dict[str, Times] = {}
    for node in plan.plan.nodes:  # inputs precede consumers
        spec, label = plan.specs[node.name], f"{node.kind.value} {node.name!r}"
        inputs = [times[name] for name in node.inputs if name in times]
        problem = spec.replica_problem(_input_schemas(plan, node))
        texts = (
            [f"{problem.reason}; {problem.remedy}"] if problem is not None else _graph_problems(plan, node)
        )
        texts = texts or _time_problems(spec, inputs, _input_schemas(plan, node))
        problems += [f"{label} {text}" for text in texts]
        if KIND_RULES[node.kind].has_output:  # below a problem, times are not checked
            times[node.name] = None if texts else _output_times(plan, node, inputs)
    if problems:
        raise ReplicaError(plan.name, tuple(problems))


def _input_schemas(plan: GraphPlan, node: NodePlan) -> Sequence[pa.Schema]:
    return [schema for name in node.inputs if (schema := plan.schemas[name]) is not None]


def _region_problems(choice: Choice, specs: Mapping[str, OperatorSpec]) -> list[str]:
    problems = []
    if len(choice.regions) != 1 or choice.outside:
        problems.append(
            f"a replica is one consistent region, and the graph has {len(choice.regions)}, with"
            f" {len(choice.outside)} operators outside; put each region into a graph of its own"
        )
    wanted = [region.settings.delivery for region in choice.regions]
    problems += [
        f"the region has delivery={one!r}, which loses rows or emits them twice after a failure; use"
        ' delivery="exactly-once"'
        for one in wanted
        if one not in (None, "exactly-once")
    ]
    if problems:
        return problems
    return [
        f"sink {name!r} delivers {delivery}; use a LogSink"
        for name, delivery in sink_deliveries(choice, specs).items()
        if delivery != "exactly-once"
    ]


def _graph_problems(plan: GraphPlan, node: NodePlan) -> list[str]:
    spec = plan.specs[node.name]
    if isinstance(spec, SideOutputSpec) and _has_late_rows(plan.specs[node.inputs[0]], spec.port):
        text = f"reads the late rows of {node.inputs[0]!r}, and which rows are late depends on the steps"
        return [f"{text}; read the late log of the entry point, which is the same for all replicas"]
    if isinstance(spec, EventTimeSpec) and spec.lateness is not None:
        mixed = [name for name in _sources_above(plan, node) if not _times_rise(plan.specs[name])]
        if mixed:
            text = f"takes watermarks from rows of {mixed[0]!r}, which are not in the order of their times"
            return [f"{text}; take the watermarks of the source, or use punctuation="]
    return []


def _has_late_rows(spec: OperatorSpec, port: str) -> bool:
    return port in LATE_PORTS and spec.needs_time and spec.kind is not OperatorKind.APPLY


def _times_rise(spec: OperatorSpec) -> bool:
    return isinstance(spec, SourceSpec) and spec.times_rise


def _sources_above(plan: GraphPlan, node: NodePlan) -> list[str]:
    if not node.inputs:
        return [node.name]
    return [source for name in node.inputs for source in _sources_above(plan, plan.plan.node(name))]


# --- times ----------------------------------------------------------------------------------------------


def _output_times(plan: GraphPlan, node: NodePlan, inputs: Sequence[Times]) -> Times:
    """Return the times of an operator's output."""
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
            for column in columns:
                check_time_column(column, schemas[0])
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


__all__ = ["check_replica", "is_replica"]

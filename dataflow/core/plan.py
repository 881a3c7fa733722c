"""Check a graph before anything starts, and divide it into stages. Pure: names, kinds and inputs.

All workers run the same circuit on disjoint shards. A *stage* is what a worker can run of one step without
waiting for another worker. Stage k+1 begins where an exchange (`key_by`) of stage k ends, after all senders
have ended the step on the exchanges into it.

Whether a step ends with a checkpoint is known only from stage 1 on, after its barriers have arrived. So
everything with an effect (state, sinks) is in stage 1 or later: sources may run ahead, and stage 0 does
nothing to roll back. Without an exchange in front of such an operator, one more channel carries only
barriers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from dataflow import limits
from dos_protocol.names import is_name


class OperatorKind(StrEnum):
    """The kinds of operators. Their values are part of fingerprints and never change."""

    SOURCE = "source"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    UNION = "union"
    KEY_BY = "key_by"
    BROADCAST = "broadcast"
    CONTROL = "control"
    COUNT = "count"
    AGGREGATE = "aggregate"
    EVENT_TIME = "event_time"
    WINDOW = "window"
    COUNT_WINDOW = "count_window"
    SORT = "sort"
    JOIN = "join"
    TOP_K = "top_k"
    MAP_STATE = "map_state"
    APPLY = "apply"
    DEDUP = "dedup"
    WINDOW_DEDUP = "window_dedup"
    SIDE = "side"
    SINK = "sink"


class OperatorKindRule(NamedTuple):
    """The rules for all operators of a kind."""

    inputs_min: int
    inputs_max: int
    has_output: bool = True
    has_effect: bool = False
    """It keeps state or writes output: never in stage 0."""
    needs_key: bool = False
    """Its inputs must be `key_by` operators."""


KIND_RULES: Final[dict[OperatorKind, OperatorKindRule]] = {
    OperatorKind.SOURCE: OperatorKindRule(0, 0),
    OperatorKind.MAP: OperatorKindRule(1, 1),
    OperatorKind.FLAT_MAP: OperatorKindRule(1, 1),
    OperatorKind.FILTER: OperatorKindRule(1, 1),
    OperatorKind.UNION: OperatorKindRule(2, limits.operators_max),
    OperatorKind.KEY_BY: OperatorKindRule(1, 1),
    OperatorKind.BROADCAST: OperatorKindRule(1, 1),
    OperatorKind.CONTROL: OperatorKindRule(1, 1, has_output=False, has_effect=True),
    OperatorKind.COUNT: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.AGGREGATE: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.EVENT_TIME: OperatorKindRule(1, 1),
    OperatorKind.DEDUP: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.WINDOW_DEDUP: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.JOIN: OperatorKindRule(2, 2, has_effect=True, needs_key=True),
    OperatorKind.COUNT_WINDOW: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.TOP_K: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.MAP_STATE: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.APPLY: OperatorKindRule(1, limits.operators_max, has_effect=True),
    OperatorKind.SORT: OperatorKindRule(1, 1, has_effect=True),
    OperatorKind.WINDOW: OperatorKindRule(1, 1, has_effect=True, needs_key=True),
    OperatorKind.SIDE: OperatorKindRule(1, 1),
    OperatorKind.SINK: OperatorKindRule(1, 1, has_output=False, has_effect=True),
}
assert set(KIND_RULES) == set(OperatorKind)
EXCHANGES: Final = frozenset({OperatorKind.KEY_BY, OperatorKind.BROADCAST})
"""Kinds that send rows to other workers: their output is one stage after their input."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One operator as the checks see it. `inputs` are indices into the list of nodes."""

    name: str
    kind: OperatorKind
    inputs: tuple[int, ...] = ()
    unknown_inputs: tuple[str, ...] = ()
    """Input names that no operator has."""
    broadcast_tables: tuple[int, ...] = ()
    """Indices of the broadcast tables that it reads."""
    emits_updates: bool = False
    """Whether a row that it emits replaces an earlier one of the same key."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One operator and its stage, that of its input. The output of an exchange is one stage later."""

    name: str
    kind: OperatorKind
    inputs: tuple[str, ...]
    stage: int
    exchange: int | None = None
    """The channel of a `key_by` or a `broadcast`."""
    broadcast_tables: tuple[str, ...] = ()

    @property
    def output_stage(self) -> int:
        return self.stage + (self.exchange is not None)


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The operators that run between two alignments. `nodes` are ordered so that inputs precede consumers."""

    index: int
    nodes: tuple[NodePlan, ...]
    receives: tuple[int, ...]
    """Channels that must be complete for a step before this stage runs it."""
    sends: tuple[int, ...]
    """Channels on which this stage ends the step."""


@dataclass(frozen=True, slots=True)
class CircuitPlan:
    """The graph as workers run it. `channels` is at least 1: barriers need one even without an exchange."""

    nodes: tuple[NodePlan, ...]
    stages: tuple[StagePlan, ...]
    channels: int

    def node(self, name: str) -> NodePlan:
        return next(node for node in self.nodes if node.name == name)

    def with_own_time(self) -> frozenset[str]:
        """Return the operators before any exchange: their event time differs from worker to worker."""
        found: set[str] = set()
        for node in (node for stage in self.stages for node in stage.nodes):
            if node.exchange is None and (not node.inputs or not found.isdisjoint(node.inputs)):
                found.add(node.name)
        return frozenset(found)

    @property
    def steps_ahead_max(self) -> int:
        """The maximum number of steps that sources may be ahead of the last stage."""
        return 1 if any(node.broadcast_tables for node in self.nodes) else limits.steps_ahead


def find_problems(nodes: Sequence[NodeSpec]) -> list[str]:
    """Return one line for each violated rule: the rule, the names, the remedy. Empty: the graph can run."""
    if not nodes:
        return [
            "a graph needs at least one source and one sink, this one is empty; begin with graph.source(...)"
        ]
    if len(nodes) > limits.operators_max:
        return [f"a graph has at most {limits.operators_max} operators, this one has {len(nodes)}; split it"]
    problems = _name_problems(nodes) + _input_problems(nodes)
    cycle = _cycle(nodes)
    if cycle:
        problems.append(
            f"data ports may not form a cycle, and these do: {' -> '.join(cycle)}; let one of them take "
            "another input, or close the cycle with a broadcast table (graph.broadcast_table)"
        )
    problems += _end_problems(nodes)
    if sum(node.kind in EXCHANGES for node in nodes) > limits.exchanges_max:
        problems.append(
            f"a graph has at most {limits.exchanges_max} key_by operators and broadcast tables; merge some"
        )
    return problems


def _label(nodes: Sequence[NodeSpec], index: int) -> str:
    node = nodes[index]
    return repr(node.name) if node.name else f"the {node.kind.value} without a name (number {index + 1})"


def _name_problems(nodes: Sequence[NodeSpec]) -> list[str]:
    problems = []
    seen: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if not node.name:
            problems.append(
                f"every operator needs a name, and {_label(nodes, index)} has none; state is restored by name"
            )
        elif not is_name(node.name):
            problems.append(
                f"operator name {node.name[:40]!a} is outside [A-Za-z0-9][A-Za-z0-9._-]{{0,127}}; rename it"
            )
        elif node.name in seen:
            problems.append(
                f"operator name {node.name!r} is used twice (a {nodes[seen[node.name]].kind.value} and a "
                f"{node.kind.value}); rename one"
            )
        seen.setdefault(node.name, index)
    return problems


def _input_problems(nodes: Sequence[NodeSpec]) -> list[str]:
    problems = []
    for index, node in enumerate(nodes):
        rule, count = KIND_RULES[node.kind], len(node.inputs)
        label = f"{node.kind.value} {_label(nodes, index)}"
        problems += [
            f"{label} takes {name!r} as input, and no operator has that name; known are "
            f"{', '.join(sorted({repr(other.name) for other in nodes}))}"
            for name in node.unknown_inputs
        ]
        if count + len(node.unknown_inputs) < rule.inputs_min:
            needed_inputs = "an input" if rule.inputs_min == 1 else f"{rule.inputs_min} inputs"
            problems.append(
                f"{label} has {count or 'no'} input and needs {needed_inputs}; connect a stream to it"
            )
        elif count > rule.inputs_max:
            problems.append(
                f"{label} has {count} inputs and takes {rule.inputs_max}; union the streams before it"
            )
        for source in node.inputs:
            if not KIND_RULES[nodes[source].kind].has_output:
                problems.append(
                    f"{label} takes its input from sink {_label(nodes, source)}, which has no output"
                )
        if rule.needs_key and any(nodes[source].kind is not OperatorKind.KEY_BY for source in node.inputs):
            problems.append(f"{label} works on a keyed stream; put a key_by before it")
    return problems


def _end_problems(nodes: Sequence[NodeSpec]) -> list[str]:
    used = {source for node in nodes for source in node.inputs}
    problems = [
        f"the output of {node.kind.value} {_label(nodes, index)} is not used; add a sink or remove it"
        for index, node in enumerate(nodes)
        if KIND_RULES[node.kind].has_output and index not in used
    ]
    read = {table for node in nodes for table in node.broadcast_tables}
    problems += [
        f"broadcast table {_label(nodes, index)} is read by no operator; pass it to one as broadcast=..., or"
        " remove it"
        for index, node in enumerate(nodes)
        if node.kind is OperatorKind.CONTROL and index not in read
    ]
    if not any(node.kind is OperatorKind.SOURCE for node in nodes):
        problems.append(
            "a graph needs at least one source, and this one has none; begin with graph.source(...)"
        )
    return problems


def _cycle(nodes: Sequence[NodeSpec]) -> list[str]:
    """Return the names along one cycle, the first repeated at the end; empty if there is none."""
    # Iterative: graphs may be deeper than the recursion limit.
    WHITE, GREY, BLACK = 0, 1, 2  # noqa: N806 - the colours of the textbook
    colour = [WHITE] * len(nodes)
    for start in range(len(nodes)):
        if colour[start] != WHITE:
            continue
        path, todo = [start], [iter(nodes[start].inputs)]
        colour[start] = GREY
        while todo:
            following = next(todo[-1], None)
            if following is None:
                colour[path.pop()] = BLACK
                todo.pop()
            elif colour[following] == GREY:
                around = [*path[path.index(following) :], following]
                return [nodes[index].name or "(no name)" for index in reversed(around)]
            elif colour[following] == WHITE:
                colour[following] = GREY
                path.append(following)
                todo.append(iter(nodes[following].inputs))
    return []


def in_order(nodes: Sequence[NodeSpec]) -> list[int]:
    """Return indices such that inputs precede consumers, otherwise in the user's order. Requires no cycle."""
    order: list[int] = []
    done = [False] * len(nodes)
    for start in range(len(nodes)):
        todo = [start]
        while todo:
            index = todo[-1]
            waiting = [source for source in nodes[index].inputs if not done[source]]
            if done[index]:
                todo.pop()
            elif waiting:
                todo += reversed(waiting)
            else:
                done[index] = True
                order.append(index)
                todo.pop()
    return order


def make_plan(nodes: Sequence[NodeSpec]) -> CircuitPlan:
    """Return the plan of a graph in which `find_problems` found none."""
    assert not find_problems(nodes), "plan of a graph that was not checked"
    plans: dict[int, NodePlan] = {}
    exchanges = 0
    for index in in_order(nodes):
        spec = nodes[index]
        stage = max((plans[source].output_stage for source in spec.inputs), default=0)
        if KIND_RULES[spec.kind].has_effect:
            stage = max(stage, 1)
        exchange = None
        if spec.kind in EXCHANGES:
            exchange, exchanges = exchanges, exchanges + 1
        inputs = tuple(nodes[source].name for source in spec.inputs)
        broadcast_tables = tuple(nodes[table].name for table in spec.broadcast_tables)
        plans[index] = NodePlan(spec.name, spec.kind, inputs, stage, exchange, broadcast_tables)
    ordered = tuple(plans.values())
    # If no exchange leaves stage 0 (there is none, or a sort is before the first), a separate channel carries
    # the barriers to stage 1.
    crossed = any(node.exchange is not None and node.stage == 0 for node in ordered)
    barriers = None if crossed else exchanges
    channels = exchanges + (not crossed)
    return CircuitPlan(ordered, _stages(ordered, barriers), channels)


def _stages(nodes: Sequence[NodePlan], barriers: int | None) -> tuple[StagePlan, ...]:
    count = 1 + max(node.output_stage for node in nodes)
    stages = []
    for index in range(count):
        sends = tuple(n.exchange for n in nodes if n.exchange is not None and n.stage == index)
        receives = tuple(n.exchange for n in nodes if n.exchange is not None and n.output_stage == index)
        if barriers is not None and index == 0:
            sends = (barriers,)
        if barriers is not None and index == 1:
            receives = (barriers,)
        stages.append(StagePlan(index, tuple(n for n in nodes if n.stage == index), receives, sends))
    assert all(stage.receives for stage in stages[1:]), "a stage that no barrier reaches"
    return tuple(stages)


# --- broadcast tables that are complete first ---------------------------------------------------------------
#
# Decide which sources wait until a broadcast table is complete. Pure: operator names to source names.
#
# A table with `complete_first` is complete when all sources that it is computed from are at their end on all
# workers. Until then the sources whose rows reach a reader of the table are not read.


@dataclass(frozen=True, slots=True)
class PendingTables:
    """Which sources wait for which tables, in one graph."""

    made_from: Mapping[str, frozenset[str]]
    """The `broadcast` operator of a table -> the sources that its rows come from."""
    waits_for: Mapping[str, frozenset[str]]
    """Source -> the `broadcast` operators of the tables that it waits for, without sources that wait for
    none.
    """

    def problems(self) -> list[str]:
        """Return one line for each source that would wait for itself."""
        found = []
        for source in self.waits_for:
            reached: set[str] = set()
            todo = [source]
            while todo:
                for table in self.waits_for.get(todo.pop(), ()):
                    todo += self.made_from[table] - reached
                    reached |= self.made_from[table]
            if source in reached:
                tables = ", ".join(
                    repr(table.removesuffix(".rows")) for table in sorted(self.waits_for[source])
                )
                found.append(
                    f"source {source!r} waits until broadcast table {tables} is complete"
                    f" (complete_first=True), and the table waits for source {source!r}: a deadlock; leave"
                    " out complete_first, or compute the table from a separate source"
                )
        return found


def find_waiting(nodes: Sequence[NodePlan], first: Collection[str]) -> PendingTables:
    """Return which sources wait. first: tables with complete_first. `nodes`: inputs precede consumers."""
    above: dict[str, frozenset[str]] = {}
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        above[node.name] = frozenset().union(*(above[name] for name in node.inputs)) or frozenset({node.name})
    broadcasts = {table: by_name[table].inputs[0] for table in first}
    waits_for: dict[str, frozenset[str]] = {}
    for node in nodes:
        waits = frozenset(broadcasts[table] for table in node.broadcast_tables if table in broadcasts)
        for source in above[node.name] if waits else ():
            waits_for[source] = waits_for.get(source, frozenset()) | waits
    return PendingTables({rows: above[rows] for rows in broadcasts.values()}, waits_for)


# --- updates ------------------------------------------------------------------------------------------------
#
# Find the streams that carry updates: rows that replace an earlier row of the same key.
#
# An operator with emit="updates" emits a row for a key in each step, or micro-batch, in which the key occurs;
# one with emit="table" emits a row for every key. Only the last row of a key is a result. An operator that
# treats every row as a separate fact (a sum, a window, a join) would return results that depend on the step
# size.


class OnUpdates(Enum):
    """How an operator handles a stream of updates."""

    PASSES = auto()
    """Its output carries updates if an input does."""
    TAKES = auto()
    """It handles updates correctly and emits none."""
    REFUSES = auto()
    """It treats each row as a separate fact: with updates the results would depend on the step size."""


ON_UPDATES: Final[dict[OperatorKind, OnUpdates]] = {
    OperatorKind.SOURCE: OnUpdates.PASSES,
    OperatorKind.MAP: OnUpdates.PASSES,
    OperatorKind.FLAT_MAP: OnUpdates.PASSES,
    OperatorKind.FILTER: OnUpdates.PASSES,
    OperatorKind.UNION: OnUpdates.PASSES,
    OperatorKind.KEY_BY: OnUpdates.PASSES,
    OperatorKind.BROADCAST: OnUpdates.PASSES,
    OperatorKind.CONTROL: OnUpdates.TAKES,
    OperatorKind.COUNT: OnUpdates.REFUSES,
    OperatorKind.AGGREGATE: OnUpdates.REFUSES,
    OperatorKind.EVENT_TIME: OnUpdates.PASSES,
    OperatorKind.WINDOW: OnUpdates.REFUSES,
    OperatorKind.COUNT_WINDOW: OnUpdates.REFUSES,
    OperatorKind.SORT: OnUpdates.REFUSES,
    OperatorKind.JOIN: OnUpdates.REFUSES,
    OperatorKind.TOP_K: OnUpdates.REFUSES,
    OperatorKind.MAP_STATE: OnUpdates.REFUSES,
    OperatorKind.APPLY: OnUpdates.PASSES,
    OperatorKind.DEDUP: OnUpdates.REFUSES,
    OperatorKind.WINDOW_DEDUP: OnUpdates.REFUSES,
    OperatorKind.SIDE: OnUpdates.PASSES,
    OperatorKind.SINK: OnUpdates.TAKES,
}
assert set(ON_UPDATES) == set(OperatorKind)


def sources_of_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> dict[int, int]:
    """Return operator -> the operator whose updates its output carries, if any. reads: source -> sink of the
    graph.
    """
    origin: dict[int, int] = {i: i for i, node in enumerate(nodes) if node.emits_updates}
    changed = True
    while changed:  # a source that reads a sink may be listed before it
        changed = False
        for index, node in enumerate(nodes):
            if index in origin or ON_UPDATES[node.kind] is not OnUpdates.PASSES:
                continue
            above = nodes[reads[index]].inputs if index in reads else node.inputs
            source = next((origin[one] for one in above if one in origin), None)
            if node.kind is OperatorKind.SIDE and source in above:
                continue  # the late rows of a window, which takes no updates
            if source is not None:
                origin[index], changed = source, True
    return origin


def update_problems(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> list[str]:
    """Return one line for each operator that would be wrong on the updates that reach it."""
    origin = sources_of_updates(nodes, reads)
    problems = []
    for node in nodes:
        source = next((origin[one] for one in node.inputs if one in origin), None)
        if source is None or ON_UPDATES[node.kind] is not OnUpdates.REFUSES:
            continue
        maker = nodes[source]
        problems.append(
            f"{node.kind.value} {node.name!r} takes each row as a new one, and {maker.kind.value}"
            f" {maker.name!r} above it emits updates: a new row for a key in each step, which replaces the"
            " previous one, so the result would depend on the step size; give"
            f' {maker.name!r} a window (Tumbling, Sliding or CountWindow) and emit="final", which emits each'
            f" result once, or compute {node.name!r} from the rows before {maker.name!r}"
        )
    return problems


def carries_updates(nodes: Sequence[NodeSpec], reads: Mapping[int, int]) -> frozenset[str]:
    """Return the names of the operators whose output carries updates."""
    return frozenset(
        nodes[index].name
        for index in sources_of_updates(nodes, reads)
        if KIND_RULES[nodes[index].kind].has_output
    )

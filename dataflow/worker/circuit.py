"""The circuit: one worker's copy of the graph, run stage by stage, and its event time. Single-threaded.

Within a stage, a row passes from operator to operator as it arrives. Operators that wait for the end of the
step (union, count, exchange, sink) run then, in the order of the plan. So the result of a step depends only
on its rows and their order, not on their batches: a replay with other batches gives the same result.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from types import MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from checkpoint import (
    BUSY,
    Division,
    EventTime,
    Layout,
    OriginMark,
    OutputIdentity,
    Sources,
    SplitPosition,
    TakenPart,
    merge_counters,
    result_uids,
    stored_under,
)
from checkpoint.chains.state_blocks import decode_block
from dataflow.core.event_time import (
    END,
    IDLE,
    UNKNOWN,
    HeldWatermark,
    InputMarks,
    SourceTime,
    SplitWatermarks,
    Watermark,
    combined,
    held_back,
    is_time,
    least,
)
from dataflow.core.plan import KIND_RULES, NodePlan, OperatorKind, StagePlan
from dataflow.graph.plan import GraphPlan
from dataflow.operators.aggregates import CountSpec
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, StateTable
from dataflow.operators.broadcast_state import BroadcastStateOperator
from dataflow.operators.event_time import EventTimeOperator, NullRule, WatermarkTable
from dataflow.operators.routing import KeyBySpec, SideOutputSpec, wire_schema
from dataflow.sinks.base import SinkWriter
from dataflow.sources.base import BatchOrigin, Positions, SourceBatch, SourceReader
from dataflow.sources.batches import BatchReader
from dataflow.state.base import Share
from dataflow.state.operator_directory import ChangeLog, Handover, OperatorDirectory, begin_files, copy_of_one
from dataflow.state.scratch import SnapshotSpool
from dataflow.worker.companion import RunningOperator
from dataflow.worker.failures import ROW_FAULTS, naming, raise_with_row
from dataflow.worker.layout_change import RemovedOutput
from dataflow.worker.partitioning import Broadcaster, Partitioner, key_owner
from dataflow.worker.spec import Clock


@dataclass(slots=True)
class OwnPart:
    """The part of this worker in a checkpoint at the end of `step`. `snapshot` receives the whole
    state.
    """

    checkpoint: int = 0
    snapshot: SnapshotSpool | None = None
    blocks: dict[str, pa.RecordBatch] = field(default_factory=dict)
    sinks: dict[str, Any] = field(default_factory=dict)
    step: int = 0


# --- event time ---------------------------------------------------------------------------------------------

ONE_SPLIT: Final = SourceTime(caught_up_holds=False)
"""For a source without any information: its event time is that of its latest row."""


class StepTime(NamedTuple):
    """The state of the sources at the end of a step."""

    sources: Mapping[str, SourceTime]
    recorded: Division | None = None
    """The recorded division of a replayed step."""
    seconds: float = 0.0
    """Now, by a clock that never goes back: for how long splits are silent."""

    def watermark_of(self, source: str) -> Watermark:
        """Return the watermark of a source. Only an `event_time` knows the times of its rows."""
        return END if self.sources[source].at_end else UNKNOWN


class CircuitTime:
    """The watermarks of one worker. `operators`: the operators of the circuit by name. `uids`: of all."""

    def __init__(self, graph: GraphPlan, operators: Mapping[str, Operator], uids: Mapping[str, str]) -> None:
        self._uids = uids
        self._waiting = graph.waiting
        self._incomplete = set(self._waiting.made_from)
        self._reported_complete: set[str] = set()
        self._at_end: dict[int, frozenset[str]] = {}
        """Step -> the sources that are at their end on this worker."""
        self.flows = graph.has_event_time or bool(self._incomplete)
        """Whether watermarks are sent and received at all."""
        self._operators = operators
        for operator in operators.values() if graph.is_replica else ():
            operator.forbid_late_rows()
        self._lags = graph.lags
        self._timing = {
            node.name: one
            for node in graph.plan.nodes
            if isinstance(one := operators.get(node.name), EventTimeOperator)
        }
        self._counting = [
            (node.stage, one)
            for node in graph.plan.nodes
            if isinstance(one := operators.get(node.name), NullRule)
        ]
        """Stage and operator of each counter of nulls, by step: stage 0 may be ahead of a checkpoint."""
        self._sources = {name: graph.sources_above(name) for name in self._timing}
        """An `event_time` -> the sources whose rows it gets."""
        self._exchanges = {node.exchange: node.name for node in graph.plan.nodes if node.exchange is not None}
        self._last = graph.plan.stages[-1].index
        self._watermarks: dict[int, dict[str, Watermark]] = defaultdict(dict)
        self._to_send: dict[int, dict[int, Watermark]] = defaultdict(dict)
        self._now: dict[int, StepTime] = {}
        self._batch: dict[str, Watermark] | None = {} if graph.fed_by_batches else None
        """`event_time` -> its watermark in a batch, in a region that a query drives; None for any other."""
        self._batch_ends: tuple[float, Mapping[str, Watermark]] = (inf, {})
        """The step with whose end the batch ends, and the watermarks from then on."""
        self.held: dict[str, HeldWatermark] = {}
        """`event_time` -> what holds its watermark since the last step that was not replayed."""
        self._fed: dict[tuple[str, str], bool] = {}
        """(source, split) with rows in this step -> whether the last of them ended a unit."""

    def step_begins(self, time_ms: int) -> None:
        """Note the recorded time of the step whose rows follow, which is the clock of `max_ahead`."""
        for timing in self._timing.values():
            timing.now_us = time_ms * 1000

    # --- batches --------------------------------------------------------------------------------------------
    #
    # The rows of a batch have no order, and are dealt to workers as they come. So a watermark moves only at
    # the end of a batch, to the largest one of all workers, as Spark's does. If it moved within a batch, the
    # size of a step, and the worker that rows were dealt to, would decide which of them are late.

    def begin_batch(self, marks: Mapping[str, Watermark]) -> None:
        """Begin a batch. marks: `event_time` -> its watermark after the batch before."""
        self._batch, self._batch_ends = dict(marks), (inf, {})
        for timing in self._timing.values():
            timing.splits = SplitWatermarks()

    def marks_of_batch(self) -> dict[str, Watermark]:
        """Return `event_time` -> its watermark by this worker's rows of the batch so far."""
        reached = {name: timing.splits.highest() for name, timing in self._timing.items()}
        return {name: watermark for name, watermark in reached.items() if is_time(watermark)}

    def end_batch(self, step: int, marks: Mapping[str, Watermark]) -> None:
        """All rows of the batch are in steps before this one. marks: `event_time` -> its watermark after the
        batch.
        """
        # Not from now on: this worker may be steps behind others, and their rows in these steps are not late.
        self._batch_ends = step, marks

    # --- splits ---------------------------------------------------------------------------------------------

    def idle_in(self, seconds: float) -> float | None:
        """Return the seconds until the next silent split is ignored, None if there is none."""
        waits = [
            one.splits.silent_in(seconds, one.idle_after_s)
            for one in self._timing.values()
            if one.idle_after_s is not None
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def waits_for(self, source: str) -> set[str]:
        """Return the splits that hold event time back only while more of their rows wait to be read."""
        return {split for one in self._timed_from(source) for split in one.splits.waits_for.get(source, ())}

    def reached_by(self, source: str) -> "Callable[[str], Watermark] | None":
        """Return a function from a split of this source to its watermark; None if no event time uses it."""
        if not (timing := self._timed_from(source)):
            return None
        return lambda split: min(one.splits.reached(source, split) for one in timing)

    def coming(self, name: str, source: str, split: str) -> None:
        """Note that the next rows for the operator `name` are of this split."""
        if (timing := self._timing.get(name)) is not None:
            timing.rows_of = source, split

    def fed(self, source: str, batch: SourceBatch) -> None:
        """Note that a batch of a source passed stage 0. A union holds its rows until the end of the step."""
        if self.flows:
            for split, mark in batch.marks:
                self._marked(source, split, mark)
            self._fed[source, batch.split] = batch.ends_unit
            for timing in self._timed_from(source):
                timing.splits.read(source, batch.split)
                if batch.ends_unit:
                    timing.splits.unit_ended(source, batch.split)

    def _timed_from(self, source: str) -> list[EventTimeOperator]:
        return [one for name, one in self._timing.items() if source in self._sources[name]]

    def _marked(self, source: str, split: str, mark: OriginMark) -> None:
        for timing in self._timed_from(source):
            if isinstance(timing.splits, InputMarks):
                timing.splits.marked(source, split, mark.mark, origin=mark.origin, version=mark.version)

    def positions(self) -> dict[str, Positions]:
        """Return the splits' watermarks for a checkpoint: `event_time` -> UID/SPLIT -> position.

        The position is the watermark, the digest that of the unit being read, both counted from UNKNOWN, so
        never negative.
        """
        # By uid: a source that comes with the name of another one must not have its watermarks.
        return {
            name: {
                _renamed(split, self._uids): SplitPosition(promised - UNKNOWN, coming - UNKNOWN)
                for split, (promised, coming) in timing.splits.stored().items()
            }
            for name, timing in self._timing.items()
        }

    def restore(self, positions: Mapping[str, Mapping[str, SplitPosition]]) -> None:
        names = {uid: name for name, uid in self._uids.items()}
        for name, timing in self._timing.items():
            timing.splits.restore(
                {
                    _renamed(split, names): (at.position + UNKNOWN, at.digest + UNKNOWN)
                    for split, at in positions.get(name, {}).items()
                    if split.partition("/")[0] in names
                }
            )

    # --- watermarks -----------------------------------------------------------------------------------------

    def sources(self, step: int, now: StepTime) -> None:
        """Note how far each source is, after the step has all its rows."""
        if not self.flows:
            return
        self._now[step] = now
        self._at_end[step] = frozenset(name for name, time in now.sources.items() if time.at_end)
        for name in now.sources:
            self._watermarks[step][name] = now.watermark_of(name)

    def received(self, step: int, watermarks: Mapping[int, Sequence[Watermark]]) -> None:
        """Take the watermarks of all senders on the channels of a stage."""
        for channel, watermarks_of_channel in watermarks.items():
            if channel in self._exchanges:
                name = self._exchanges[channel]
                # With a query, a sender that does not know yet that the batch ends has made the step for a
                # peer, with the former watermark; it has no rows in it. The largest counts.
                self._watermarks[step][name] = (
                    combined(watermarks_of_channel)
                    if self._batch is None
                    else max(watermarks_of_channel, default=IDLE)
                )
                if self._watermarks[step][name] == END:
                    self._incomplete.discard(name)

    def inputs(self, step: int, node: NodePlan) -> list[Watermark]:
        """Return the watermarks of an operator's inputs."""
        watermarks = [self._watermarks[step].get(name, UNKNOWN) for name in node.inputs]
        return [
            held_back(watermark, lag)
            for watermark, lag in zip(watermarks, self._lags[node.name], strict=True)
        ]

    def passed(self, step: int, node: NodePlan) -> None:
        """Compute the output watermark of an operator that has seen all rows of the step."""
        if not self.flows:
            return
        if node.name in self._timing:
            watermark = self._least(step, node.name)
        elif node.name in self._waiting.made_from:
            watermark = self._completeness(step, node.name)
        else:
            watermark = (
                combined(self.inputs(step, node))
                if node.inputs
                else self._watermarks[step].get(node.name, IDLE)
            )
        if node.exchange is not None:
            self._to_send[step][node.exchange] = watermark
        else:
            self._watermarks[step][node.name] = self._operators[node.name].passes_on(watermark)

    def _least(self, step: int, name: str) -> Watermark:
        """Return the watermark of an `event_time`, from the recorded division or from the current splits."""
        if self._batch is not None:
            ends, after = self._batch_ends
            return (self._batch if step < ends else after).get(name, UNKNOWN)
        now, timing = self._now.get(step, StepTime({})), self._timing[name]
        for (source, split), ends_unit in self._fed.items():
            if ends_unit and source in self._sources[name]:
                timing.splits.unit_ended(source, split)
        self.held.pop(name, None)
        if now.recorded is not None:
            return now.recorded.sources[name][""][2]
        held = [
            timing.splits.of_source(
                source,
                now.sources.get(source, ONE_SPLIT),
                seconds=now.seconds,
                idle_after_s=timing.idle_after_s,
            )
            for source in self._sources[name]
        ]
        self.held[name] = least(held)
        return self.held[name].watermark

    def reports(self) -> dict[str, EventTime]:
        """Return `event_time` -> how far it is, and what holds it; none that holds nothing back."""
        return {
            name: EventTime(at if is_time(at := self._timing[name].watermark) else None, held.text())
            for name, held in self.held.items()
            if held.watermark not in (END, IDLE)
        }

    def division(self, step: int) -> Sources:
        """Return what the division of a step records: `event_time` -> its watermark."""
        return {name: {"": (0, 0, self._watermarks[step][name])} for name in self._timing}

    def to_send(self, step: int, channel: int) -> Watermark:
        """Return the watermark that ends a step on a channel, and forget it."""
        waiting = self._to_send[step]
        watermark = waiting.pop(channel, IDLE)
        if not waiting:
            del self._to_send[step]
        return watermark

    def stage_over(self, step: int, stage: int) -> None:
        """Note that a stage has run; drop what is no longer needed."""
        for own, operator in self._counting:
            if stage == own:
                operator.remember(step)
            if stage == self._last:
                operator.forget(step)
        if stage == 0:
            self._now.pop(step, None)
            self._fed.clear()
            for timing in self._timing.values():
                timing.splits.step_over()
        if stage == self._last:
            self._watermarks.pop(step, None)
            self._at_end.pop(step, None)

    def checkpoint_at(self, step: int) -> None:
        """Prepare the state as of the end of this step for a checkpoint."""
        for _, operator in self._counting:
            operator.select_step(step)

    # --- broadcast tables with complete_first --------------------------------------------------------------

    @property
    def held_sources(self) -> Collection[str]:
        """The sources that must not be read yet. Changes between steps, in the same step on all workers."""
        return [name for name, tables in self._waiting.waits_for.items() if tables & self._incomplete]

    def has_end_to_report(self, exhausted: Collection[str]) -> bool:
        """Whether a step must tell other workers that the sources of a table are at their end."""
        unreported = self._incomplete - self._reported_complete
        return any(self._waiting.made_from[table] <= frozenset(exhausted) for table in unreported)

    def _completeness(self, step: int, broadcast: str) -> Watermark:
        """Return END if the table is complete here, otherwise UNKNOWN; sent instead of an event time."""
        # Not the watermark of the table's input: an idle source does not hold that back.
        if not self._waiting.made_from[broadcast] <= self._at_end[step]:
            return UNKNOWN
        self._reported_complete.add(broadcast)
        return END


def _renamed(split: str, names: Mapping[str, str]) -> str:
    """Return SOURCE/SPLIT with another name of the source."""
    source, slash, rest = split.partition("/")
    return f"{names[source]}{slash}{rest}"


# --- the circuit --------------------------------------------------------------------------------------------

T = TypeVar("T")
Sends: TypeAlias = dict[int, list[list[pa.RecordBatch]]]
"""Output of a stage: channel -> for each worker, the batches to send."""


class HeldState(NamedTuple):
    """What the next circuit of a worker takes from one that stands at the checkpoint to restore."""

    operators: Mapping[str, Operator]
    """Those that continue as they are."""
    blocks: SnapshotSpool
    """The content of the state tables of others."""
    tables: frozenset[str]
    """As in `Circuit.stateful`: the tables for which no stored block is needed."""


class _Input(NamedTuple):
    port: int
    batch: pa.RecordBatch
    origin: BatchOrigin


class Circuit:
    """One worker's copy of the graph. After a call has raised, close it and create another."""

    held: frozenset[str] = frozenset()
    """The tables in `stateful` that have the state of the checkpoint without any stored block."""
    rows_handled = 0
    """Rows that operators got, each row once for each operator."""

    def __init__(
        self,
        graph: GraphPlan,
        *,
        region: str,
        worker: int,
        workers: int,
        store_id: bytes,
        layout: Layout,
        incarnation: int = 0,
        scratch: str = "",
        checkpoint: int = 0,
        owner: OutputIdentity | None = None,
        uids: Mapping[str, str] = MappingProxyType({}),
        running: RunningOperator | None = None,
        seconds: Callable[[], float] = Clock.seconds,
        opened: Mapping[str, Operator] = MappingProxyType({}),
        ahead: bool = False,
    ) -> None:
        """opened: operators of the same graph and worker that continue in this one. ahead: another driver
        runs the region. Then sources and sinks are not opened: they may hold what that driver's workers use,
        and sinks fence these by incarnation.
        """
        self._ahead, self._opened = ahead, opened
        self._running, self.seconds = running or RunningOperator(), seconds
        self.busy_s: dict[str, float] = defaultdict(float)
        self.graph = graph
        # A stateless operator has counters at most, which are stored under its name.
        self._uids = {name: name for name in graph.specs} | stored_under(graph.operators, uids)
        self._names = {uid: name for name, uid in self._uids.items()}
        self._stages_of = {node.name: node.stage for node in graph.plan.nodes}
        self._workers, self._by_batches, self._scratch = workers, bool(graph.fed_by_batches), scratch
        self.sources: dict[str, SourceReader] = {}
        self.sinks: dict[str, SinkWriter] = {}
        self._sink_contexts: dict[str, OperatorContext] = {}
        self.stateful: dict[str, StateTable] = {}
        """As it is stored, by its uid: operator, or operator and table -> its state."""
        self._operators: dict[str, Operator] = {}
        self._directories: dict[str, OperatorDirectory] = {}
        self._requesting: list[str] = []
        self._broadcast_tables: dict[str, BroadcastStateOperator] = {}
        self._partitioners: dict[str, Partitioner | Broadcaster] = {}
        self._wire: dict[int, pa.Schema] = {}
        self._consumers: dict[str, list[tuple[NodePlan, int]]] = defaultdict(list)
        self._side_output_consumers: dict[str, dict[str, list[NodePlan]]] = {}
        """Operator -> port of a side output -> its consumers."""
        self._exchanges: dict[int, NodePlan] = {}
        self._rows_in = self._rows_out = 0
        self._rows_taken, self._rows_given, self._bytes_read = Counter[str](), Counter[str](), Counter[str]()
        self.operator = ""
        self._find_consumers()
        # Open broadcast tables first: their readers get them on open.
        for node in sorted(graph.plan.nodes, key=lambda node: node.kind is not OperatorKind.CONTROL):
            if node.exchange is not None:
                self._open_exchange(node, layout)
            if node.kind is not OperatorKind.BROADCAST:
                tables = (self._broadcast_tables[name].table for name in node.broadcast_tables)
                context = OperatorContext(
                    region, node.name, worker, workers, store_id, graph.inputs_of(node.name),
                    graph.schemas[node.name], incarnation, graph.triggers_checkpoints, next(tables, None),
                    scratch, graph.delivery, checkpoint, key_owner(graph, node, layout, worker), owner,
                    self._by_batches, self._uids[node.name], result_uids(node.name, uids),
                    self._running.waits,
                )  # fmt: skip
                self._open(node, context)
        self.time = CircuitTime(graph, self._operators, self._uids)
        for name, reader in self.sources.items():
            reader.reached = self.time.reached_by(name)
        self._later_inputs: dict[int, dict[str, list[_Input]]] = {}
        """Step -> operator -> rows for a later stage."""
        self._to_send: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._unions: dict[str, list[_Input]] = defaultdict(list)
        """Union -> its rows, kept until the end of the step."""

    def _find_consumers(self) -> None:
        for node in self.graph.plan.nodes:
            spec = self.graph.specs[node.name]
            if isinstance(spec, SideOutputSpec):
                self._side_output_consumers[node.inputs[0]][spec.port].append(node)
                continue
            ports = spec.side_output_schemas(self.graph.inputs_of(node.name))
            self._side_output_consumers[node.name] = {port: [] for port in ports}
            for index, name in enumerate(node.inputs):
                self._consumers[name].append((node, index))

    def _open(self, node: NodePlan, context: OperatorContext) -> None:
        if self._ahead and node.kind in (OperatorKind.SOURCE, OperatorKind.SINK):
            return
        with self.calling(node.name, "its start"):
            operator = self._opened.get(node.name) or self.graph.specs[node.name].open(context)
            tables = operator.tables()
        self._operators[node.name], self._context = operator, context
        if isinstance(operator, SourceReader):
            self.sources[node.name] = operator
        elif isinstance(operator, SinkWriter):
            self.sinks[node.name] = operator
            self._sink_contexts[node.name] = context
        for suffix, table in tables.items():
            self.stateful[self._uids[node.name] + suffix] = table
        if isinstance(operator, BroadcastStateOperator):
            self._broadcast_tables[node.name] = operator
        if self.graph.specs[node.name].can_trigger:
            self._requesting.append(node.name)

    def _open_exchange(self, node: NodePlan, layout: Layout) -> None:
        spec = self.graph.specs[node.name]
        schema = self.graph.schemas[node.name]
        assert schema is not None
        assert node.exchange is not None
        self._exchanges[node.exchange] = node
        if not isinstance(spec, KeyBySpec):
            self._partitioners[node.name] = Broadcaster(self._workers)
            self._wire[node.exchange] = schema
            return
        consumers = [self.graph.specs[consumer.name] for consumer, _ in self._consumers[node.name]]
        merge = list(spec.keys) if all(isinstance(c, CountSpec) for c in consumers) else None
        self._partitioners[node.name] = Partitioner(spec.keys, layout, self._workers, merge)
        self._wire[node.exchange] = wire_schema(schema, merge)

    # --- between steps --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all operators and their files. Raises OperatorError, of the first one that raises."""
        errors = []
        for name, operator in self._operators.items():
            try:
                with self.calling(name, "its close"):
                    operator.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def blame(self, error: BaseException) -> str:
        """Return the operator whose code raised the error, "" if none is in its traceback."""
        name, trace = "", error.__traceback__
        named = {id(operator): name for name, operator in self._operators.items()}
        while trace is not None:
            name = named.get(id(trace.tb_frame.f_locals.get("self")), name)
            trace = trace.tb_next
        return name

    @property
    def operators(self) -> Mapping[str, Operator]:
        """The operators that are open, by name."""
        return self._operators

    def wire_schema(self, channel: int) -> pa.Schema:
        return self._wire[channel]

    @property
    def operator(self) -> str:
        """The operator whose code ran last, "" if the circuit waits."""
        return self._running.name

    @operator.setter
    def operator(self, name: str) -> None:
        self._running.begin(name)

    def calling(self, name: str, position: str | Callable[[int | None], str]) -> naming:
        """Return the context for a call of an operator: see `naming`."""
        self.operator = name
        return naming(name, position)

    def working(self, name: str, position: str | Callable[[int | None], str]) -> "_Work":
        """Return the context for a call of an operator that may take time: it is measured."""
        self.operator = name
        return _Work(self, name, position)

    def ask_sources(self, position: str, question: Callable[[SourceReader], T]) -> dict[str, T]:
        """Return source -> what its reader answers. Raises OperatorError."""
        answers = {}
        for name, reader in self.sources.items():
            with self.calling(name, position):
                answers[name] = question(reader)
        return answers

    def _any(self, operators: Iterable[str], question: Callable[[Operator], bool]) -> bool:
        """Ask all of these operators, and return whether one of them answers yes. Raises OperatorError."""
        answers = []
        for name in operators:
            with self.calling(name, "a question about checkpoints"):
                answers.append(question(self._operators[name]))
        return any(answers)

    def exchange(self, channel: int) -> str:
        """Return the operator that sends on a channel, "" if it carries watermarks only."""
        return self._exchanges[channel].name if channel in self._exchanges else ""

    def counters(self) -> dict[str, dict[str, int]]:
        """Return operator -> counter -> value: rows in and out, and what the operator counts itself."""
        by_operator = {}
        for name in self.graph.specs:
            with self.calling(name, "its counters"):
                own = self._operators[name].counters() if name in self._operators else {}
            own |= {"bytes_in": self._bytes_read[name]} if name in self.sources else {}
            by_operator[name] = {
                "rows_in": self._rows_taken[name],
                "rows_out": self._rows_given[name],
                BUSY: int(1e6 * self.busy_s[name]),
                **own,
            }
            for port, takers in self._side_output_consumers.get(name, {}).items():
                if not takers:
                    with self.calling(name, "its counters"):
                        merge_counters(by_operator[name], self._operators[name].lost_on(port))
        return by_operator

    def take_rows_in(self) -> int:
        """Return the number of rows from sources since the last call."""
        rows, self._rows_in = self._rows_in, 0
        return rows

    def take_rows_out(self) -> int:
        """Return the number of rows written to sinks since the last call."""
        rows, self._rows_out = self._rows_out, 0
        return rows

    def take_checkpoint_request(self) -> bool:
        """Return whether an operator requested a checkpoint since the last call."""
        return self._any(self._requesting, lambda operator: operator.take_checkpoint_request())

    def begin_directory(self, name: str, files: Handover, log: ChangeLog, scratch: str = "") -> None:
        """Let an operator make its files from those of another layout, or copy them. Raises OperatorError."""
        make = self._operators[name].redistribute_directory if files.divides else copy_of_one
        with self.calling(name, "another number of workers"):
            begin_files(files.path, files.sources or {}, log, make, scratch)

    def hand_directory(self, name: str, directory: OperatorDirectory) -> None:
        """Give an operator its directory, with the files of the checkpoint. Call it before `restored`."""
        self._directories[name] = directory
        with self.calling(name, "its files"):
            self._operators[name].take_directory(directory)

    def complete_output(self, worker: int, positions: Mapping[str, Any] | None, checkpoint: int) -> None:
        """Publish what a worker that has left had prepared for the checkpoint (0: the beginning), and discard
        what followed. `positions`: sink -> what the checkpoint stores for that worker; None: all is taken
        back.
        """
        for name, context in self._sink_contexts.items():
            self._complete(self.graph.specs[name], replace(context, worker=worker), positions, checkpoint)

    def complete_removed(self, removed: RemovedOutput, checkpoint: int) -> None:
        """Publish what a sink that the graph gives up had prepared for the checkpoint, and discard what
        followed.
        """
        # With the strongest delivery: what followed is never made again, so none of it may stay.
        context = replace(
            self._context, operator=removed.name, inputs=(removed.columns,), output=None, broadcast=None,
            delivery=None, owns_key=None, uid=removed.uid,
        )  # fmt: skip
        for worker, positions in removed.completes.items():
            self._complete(removed.spec, replace(context, worker=worker), positions, checkpoint)

    def _complete(
        self,
        spec: OperatorSpec,
        context: OperatorContext,
        positions: Mapping[str, Any] | None,
        checkpoint: int,
    ) -> None:
        # Another worker than its own opens the sink: the incarnation in the context fences earlier ones, and
        # this one if a later one has opened it.
        with self.calling(context.operator, f"the output of worker {context.worker}"):
            operator = spec.open(context)
            try:
                assert isinstance(operator, SinkWriter)
                if positions is None:
                    operator.take_all_back()
                    return
                operator.reset_to(positions.get(context.operator))
                if checkpoint:
                    operator.publish(checkpoint)
            finally:
                operator.close()

    def open_ahead(self) -> None:
        """Let the operators do ahead of the restore what takes long. Raises OperatorError."""
        for node in self.graph.plan.nodes:
            if node.name in self._operators:
                with self.calling(node.name, "its start"):
                    self._operators[node.name].open_ahead()

    def restored(self, first_stage: int = 0, last_stage: int | None = None) -> None:
        """Start the operators of these stages, upstream first, after their state is restored. Raises
        OperatorError.
        """
        for node in self.graph.plan.nodes:
            within = node.stage >= first_stage and (last_stage is None or node.stage <= last_stage)
            if within and node.name in self._operators:
                with self.calling(node.name, "its start"):
                    self._operators[node.name].restored()

    # --- one stage of one step ------------------------------------------------------------------------------

    def feed(self, step: int, source: str, batch: SourceBatch) -> None:
        """Stage 0: process rows of a source as they are read."""
        reader = self.sources[source]
        self._rows_in += batch.batch.num_rows
        self._bytes_read[source] += batch.bytes_read
        origin = BatchOrigin(f"source {source!r}", reader, batch, exact=True, name=source)
        run = _Run(step, self.graph.plan.stages[0])
        self._emit(run, source, batch.batch, origin)
        for consumer in chain.from_iterable(self._side_output_consumers[source].values()):
            for bad in batch.bad:
                self._route(run, consumer, _Input(0, bad, origin.coarse()))
        self.time.fed(source, batch)

    def end_sources(self, step: int, now: StepTime | None = None) -> Sends:
        """Stage 0: end the step after all its rows were fed. `now`: the event time of each source."""
        self.time.sources(step, StepTime({}) if now is None else now)
        return self._finish(_Run(step, self.graph.plan.stages[0]), checkpoint=False, ends_batch=False)

    def run_stage(
        self,
        index: int,
        step: int,
        received: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]],
        *,
        checkpoint: bool,
        ends_batch: bool = False,
        watermarks: Mapping[int, Sequence[Watermark]] | None = None,
    ) -> Sends:
        """Run a later stage of a step and return what it sends. `received`: channel -> (sender, batch), in
        the order (sender, seq). `checkpoint`: also drain. `ends_batch`: the checkpoint records the
        micro-batch of a query. `watermarks`: channel -> those of all senders.
        """
        run = _Run(step, self.graph.plan.stages[index])
        self.time.received(step, watermarks or {})
        for node in run.stage.nodes:
            for held in self._later_inputs.get(step, {}).pop(node.name, ()):
                self._push(run, node, held)
        for channel in run.stage.receives:
            if channel in self._exchanges:
                self._deliver(run, self._exchanges[channel], received.get(channel, ()))
        output = self._finish(run, checkpoint=checkpoint, ends_batch=ends_batch or not self._by_batches)
        if index == len(self.graph.plan.stages) - 1:
            assert not any(self._later_inputs.pop(step, {}).values()), "rows were left over at the end"
            for broadcast in self._broadcast_tables.values():
                broadcast.begin_step()
        return output

    @property
    def wants_snapshot(self) -> bool:
        """Whether an operator asks for a full snapshot with the next checkpoint."""
        return self._any(self._operators, lambda operator: operator.wants_snapshot)

    def restore(self, table: str, block: pa.RecordBatch, checkpoint: int) -> None:
        """Restore one stored block of a table in `stateful`. Raises OperatorError."""
        with self.calling(self.owner_of(table), f"the state of checkpoint {checkpoint}"):
            self.stateful[table].restore(block)

    @property
    def fed_by_batches(self) -> dict[str, BatchReader]:
        """The sources that the batches of a query feed: all, or none."""
        return {name: one for name, one in self.sources.items() if isinstance(one, BatchReader)}

    def restore_part(self, table: str, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        """Take over from one stored block of a worker of another layout (`dataflow.state.base`)."""
        with self.calling(self.owner_of(table), f"the state of worker {part.worker}"):
            self.stateful[table].restore_part(block, part, share)

    def parts_restored(self, share: Share) -> None:
        """Complete the restore of all parts. Raises OperatorError."""
        own_time = self.graph.plan.with_own_time()
        for name, table in self.stateful.items():
            with self.calling(self.owner_of(name), "the state of other workers"):
                table.parts_restored(share)
            if isinstance(table, WatermarkTable) and self.owner_of(name) in own_time:
                table.restart()  # it follows from the watermarks of the splits, which move alone

    def stage_of(self, table: str) -> int:
        """Return the stage of the operator of a table in `stateful`."""
        return self._stages_of[self.owner_of(table)]

    def owner_of(self, table: str) -> str:
        """Return the operator of a table in `stateful`."""
        return self._names[table.partition("~")[0]]

    def hold(self) -> HeldState:
        """Give up the state as of the last checkpoint, after which nothing was done. Then only `close` may
        follow, which leaves the operators open that continue. Raises OperatorError, UserFault.
        """
        blocks, continuing, held = SnapshotSpool(self._scratch), dict[str, Operator](), set[str]()
        for name, operator in [*self._operators.items()]:
            if operator.at_checkpoint == "stored":
                continue
            tables = {self._uids[name] + suffix: table for suffix, table in operator.tables().items()}
            held |= tables.keys()
            if operator.at_checkpoint == "whole":
                continuing[name] = self._operators.pop(name)
                continue
            for stored, table in tables.items():
                with self.calling(name, "its state"):
                    blocks.add(stored, table.snapshot_pieces())
        return HeldState(continuing, blocks, frozenset(held))

    def take_held(self, held: HeldState, checkpoint: int) -> None:
        """Take the state that the circuit before has given up. Raises OperatorError."""
        for table, data in held.blocks:
            self.restore(table, decode_block(data), checkpoint)
        self.held = held.tables

    @property
    def reads(self) -> bool:
        """Whether a state table needs the worker's own stored blocks."""
        return not self.stateful.keys() <= self.held

    def take_checkpoint(self, index: int, into: OwnPart) -> None:
        """Collect the checkpoint data of this stage after a run with `checkpoint=True`; stage 1 includes
        stage 0.
        """
        stages = self.graph.plan.stages
        for node in (*(stages[0].nodes if index == 1 else ()), *stages[index].nodes):
            if node.name not in self._operators:
                continue
            with self.working(node.name, "a checkpoint"):
                tables = self._operators[node.name].tables()
            for suffix, table in tables.items():
                stored = self._uids[node.name] + suffix
                with self.working(node.name, "a checkpoint"):
                    into.blocks[stored] = table.checkpoint()
                    if into.snapshot is not None:
                        into.snapshot.add(stored, table.snapshot_pieces(), by_key=table.by_key)
            if node.name in self._directories:
                with self.working(node.name, "a checkpoint"):
                    self._directories[node.name].checkpoint(into.checkpoint, into.step)
            if node.name in self.sinks:
                with self.working(node.name, "a checkpoint"):
                    into.sinks[node.name] = self.sinks[node.name].prepare(into.checkpoint)

    def _deliver(self, run: "_Run", node: NodePlan, batches: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        schema = self.graph.schemas[node.name]
        assert schema is not None
        for sender, batch in batches:
            self._rows_given[node.name] += batch.num_rows
            origin = BatchOrigin(f"step {run.step}, rows of {node.name!r} from worker {sender}")
            for consumer, index in self._consumers[node.name]:
                keyed = KIND_RULES[consumer.kind].needs_key  # it reads `_hash`, and `_weight` if present
                bare = batch if keyed else batch.select(schema.names)
                self._route(run, consumer, _Input(index, bare, origin))

    def _emit(self, run: "_Run", name: str, batch: pa.RecordBatch, origin: BatchOrigin) -> None:
        self._rows_given[name] += batch.num_rows
        for consumer, index in self._consumers[name]:
            self._route(run, consumer, _Input(index, batch, origin))

    def _emit_side_outputs(self, run: "_Run", name: str, operator: Operator, origin: BatchOrigin) -> None:
        for port, consumers in self._side_output_consumers.get(name, {}).items():
            with self.working(name, origin.text):
                given = operator.take_side_output(port)
            for batch in given:
                for consumer in consumers:
                    self._route(run, consumer, _Input(0, batch, origin.coarse()))

    def _route(self, run: "_Run", consumer: NodePlan, given: _Input) -> None:
        if not given.batch.num_rows:
            return  # operators and user functions never get an empty batch
        if consumer.stage == run.stage.index:
            self._push(run, consumer, given)
        else:
            self._later_inputs.setdefault(run.step, {}).setdefault(consumer.name, []).append(given)

    def _push(self, run: "_Run", node: NodePlan, given: _Input) -> None:
        self._rows_taken[node.name] += given.batch.num_rows
        self.rows_handled += given.batch.num_rows
        if node.kind is OperatorKind.BROADCAST:
            self._to_send[node.name].append(given.batch)
            return
        operator = self._operators[node.name]
        if node.kind is OperatorKind.SINK:
            self._rows_out += given.batch.num_rows
        if node.kind is OperatorKind.UNION:
            self._unions[node.name].append(given)
            return
        if self.time.flows and given.origin.source is not None:
            self.time.coming(node.name, given.origin.name, given.origin.source.split)
        with self.working(node.name, given.origin.describe):
            try:
                made = operator.process_of(given.port, given.batch)
            except ROW_FAULTS as error:
                if operator.may_repeat:
                    raise_with_row(error, partial(operator.process_of, given.port), given.batch)
                raise
        passed = operator.passes_rows and len(made) == 1 and made[0].num_rows == given.batch.num_rows
        origin = given.origin if passed else given.origin.coarse()
        for batch in made:
            if node.exchange is None:
                self._emit(run, node.name, batch, origin)
            elif batch.num_rows:
                self._to_send[node.name].append(batch)
        self._emit_side_outputs(run, node.name, operator, given.origin)

    def _finish(self, run: "_Run", *, checkpoint: bool, ends_batch: bool) -> Sends:
        sends: Sends = {}
        for node in run.stage.nodes:
            if node.exchange is not None:
                rows = self._to_send.pop(node.name, [])
                with self.working(node.name, f"the end of step {run.step}"):
                    sends[node.exchange] = self._partitioners[node.name].partition(rows)
            else:
                self._end_step(run, node, checkpoint=checkpoint, ends_batch=ends_batch)
            self.time.passed(run.step, node)
        if checkpoint:
            self.time.checkpoint_at(run.step)
        self.time.stage_over(run.step, run.stage.index)
        return sends

    def _end_step(self, run: "_Run", node: NodePlan, *, checkpoint: bool, ends_batch: bool) -> None:
        operator = self._operators[node.name]
        origin = BatchOrigin(f"the end of step {run.step}")
        # In input order: the result must not depend on how the step was divided into batches.
        for given in sorted(self._unions.pop(node.name, ()), key=lambda given: given.port):
            self._emit(run, node.name, given.batch, given.origin.coarse())
        with self.working(node.name, origin.text):
            made = [*operator.end_step()]
            if ends_batch:
                made += operator.end_batch()
            if self.time.flows:
                for index, watermark in enumerate(self.time.inputs(run.step, node)):
                    made += operator.on_punctuation(watermark, index)
            if checkpoint:
                made += operator.drain()
        for batch in made:
            self._emit(run, node.name, batch, origin)
        self._emit_side_outputs(run, node.name, operator, origin)


class _Work(naming):
    """A call of an operator, whose time is added to `busy_s`. Calls are not nested."""

    def __init__(self, circuit: Circuit, name: str, position: str | Callable[[int | None], str]) -> None:
        super().__init__(name, position)
        self._circuit = circuit

    def __enter__(self) -> None:
        self._began_s = self._circuit.seconds()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._circuit.busy_s[self._operator] += self._circuit.seconds() - self._began_s
        super().__exit__(kind, error, trace)


class _Run(NamedTuple):
    """One execution of one stage."""

    step: int
    stage: StagePlan

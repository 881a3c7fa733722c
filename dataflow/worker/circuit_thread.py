"""The circuit thread of a worker, the only one that runs user code; nothing here waits for a store.

`CircuitLoop` makes the calls of the link thread. `CircuitIncarnation` turns the decisions of
`core/schedule.py` into calls of the circuit, and their results into messages. Its parts decide nothing:
`StepInput` reads the rows of a step, `StageOutput` makes the frames that end a stage, `CheckpointTaking`
collects what a checkpoint contains.
"""

import logging
import queue
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias

import numpy as np
import pyarrow as pa

from checkpoint import (
    Alignment,
    ChannelFrame,
    CompleteStep,
    Division,
    Failed,
    FailureKind,
    FrameFlag,
    FrameType,
    Layout,
    OpenBatch,
    OutputIdentity,
    Sources,
    SplitPosition,
    TakenPart,
    WorkerCheckpoint,
    job_digest,
)
from checkpoint.chains.state_blocks import EncodedBlock, decode_block, encoded_blocks
from dataflow import limits
from dataflow.core.event_time import SourceTime, Watermark, decode_watermark, encode_watermark
from dataflow.core.peer_links import Held, Records, RowsRecord
from dataflow.core.plan import StagePlan
from dataflow.core.schedule import Barrier, FixedCost, Produce, RunStage, Schedule
from dataflow.errors import (
    InputChangedError,
    InputListChangedError,
    OperatorError,
    SinkOwnedError,
    SinkRefusedError,
)
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from dataflow.operators.base import HASH_COLUMN
from dataflow.sinks.log import LogWriter
from dataflow.sources.base import SourceReader, SplitDivision
from dataflow.sources.prefetched import PrefetchBuffer, PrefetchedReader
from dataflow.state.base import Share
from dataflow.state.operator_directory import Handover, OperatorDirectory
from dataflow.state.scratch import SnapshotSpool
from dataflow.worker.circuit import Circuit, HeldState, OwnPart, Sends, StepTime
from dataflow.worker.companion import CircuitPulse
from dataflow.worker.directories import PostedChanges
from dataflow.worker.failures import CONVERSIONS, LOSSES, operator_error
from dataflow.worker.layout_change import LayoutChange, RemovedOutput
from dataflow.worker.messages import (
    AheadDone,
    BlockLoaded,
    CheckpointTaken,
    CircuitFailed,
    CircuitPositioned,
    OutputMade,
    PausedAt,
    PeerHeld,
    Post,
    Published,
    Shared,
    SourceWaits,
    StageEnded,
    StateLoaded,
    ToLinks,
)
from dataflow.worker.partitioning import decode_batch, encode_batch, frames_of
from dataflow.worker.shares import HeldShare
from dataflow.worker.spec import Clock, Identity
from dos_protocol.digests import digest64
from dos_protocol.errors import ClosedError, CorruptDataError, RemoteProtocolError, text_of

# --- the mailbox of the circuit thread ----------------------------------------------------------------------

P = ParamSpec("P")


class CircuitCall(NamedTuple):
    """A call of a method of the incarnation with this number. Dropped if that one does not run any more."""

    incarnation: int
    method: Callable[..., None]
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestoreCircuit:
    """Begin a new incarnation. Sources and sinks go to the positions in `part`; None: to the beginning."""

    incarnation: int
    step: int
    """The step of the checkpoint, 0 for the beginning. The first step to run is the next one."""
    checkpoint: int
    part: WorkerCheckpoint | None
    layout: Layout
    store_id: bytes
    feeds: Mapping[str, PrefetchBuffer] = field(default_factory=dict)
    """Prefetch buffers of the sources that are in the store."""
    change: LayoutChange | None = None
    """If the layout is another one than in the checkpoint: what this worker has to do."""
    local: bool = False
    """Whether the region has local recovery."""
    takes_over: bool = False
    """Whether this worker alone begins at the checkpoint: the others wait for the rows of its steps."""
    completes: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    """Workers whose output this one completes -> what the checkpoint stores of their sinks."""
    owner: OutputIdentity | None = None
    uids: Mapping[str, str] = field(default_factory=dict)
    """As `Restore.uids`. All else here has the names of the graph."""
    opened: bool = False
    """Whether the operators that were opened ahead continue, with the state that they have loaded."""
    removed: tuple[RemovedOutput, ...] = ()
    """Sinks that the graph gives up, with what this worker completes of them."""
    voted: bool = False
    """Whether the checkpoint has what this process voted for last: if it has done nothing since, it continues
    with the state that it has.
    """


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Open the operators, in place of those opened before, while other processes run the region. Answer:
    AheadDone.
    """

    number: int
    layout: Layout
    store_id: bytes
    uids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """Restore one stored block of the worker's own state into operators opened ahead. Answer: AheadDone.

    part, share: it is of another worker, and what the share has of it is taken over.
    """

    number: int
    checkpoint: int
    table: str
    data: bytes
    part: TakenPart | None = None
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class Woken:
    """A shared number has changed."""


@dataclass(frozen=True, slots=True)
class LinksEnded:
    """The link thread has ended, so the process ends. `error` is None after an orderly STOP."""

    reason: str
    error: BaseException | None = None


ToCircuit: TypeAlias = CircuitCall | RestoreCircuit | OpenAhead | LoadAhead | Woken | LinksEnded


class Inbox:
    """An ordered queue of messages to the circuit thread. `put` may be called from any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToCircuit] = queue.SimpleQueue()

    def put(self, message: ToCircuit) -> None:
        self._queue.put(message)

    def call(
        self,
        incarnation: int,
        method: "Callable[Concatenate[CircuitIncarnation, P], None]",
        *arguments: P.args,
        **named: P.kwargs,
    ) -> None:
        """Let the circuit thread call a method of `CircuitIncarnation`. Returns before it is called."""
        self.put(CircuitCall(incarnation, method, arguments, named))

    def take(self, timeout_s: float | None = None) -> ToCircuit | None:
        """Return the next message. Wait at most `timeout_s` seconds for it, then return None."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def take_nowait(self) -> ToCircuit | None:
        """Return the next message, None if there is none."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None


# --- what arrives -------------------------------------------------------------------------------------------

Item: TypeAlias = "tuple[int, pa.RecordBatch | bytes | bytearray | memoryview | Watermark]"
"""(sender, batch or watermark). A peer's batch is decoded when its step runs."""


def decoded(items: Sequence[Item], schema: Callable[[], pa.Schema]) -> list[tuple[int, pa.RecordBatch]]:
    """Return (sender, batch) of a step. schema: of the channel. Raises RemoteProtocolError."""
    return [
        (sender, item if isinstance(item, pa.RecordBatch) else _decode(sender, item, schema()))
        for sender, item in items
        if not isinstance(item, Watermark)
    ]


def _decode(sender: int, payload: "bytes | bytearray | memoryview", schema: pa.Schema) -> pa.RecordBatch:
    try:
        return decode_batch(payload, schema)
    except ValueError as error:
        raise RemoteProtocolError(f"from worker {sender}: {error}") from error


def watermark_of(frame: ChannelFrame) -> Watermark:
    """Return the watermark in a WATERMARK frame. Raises RemoteProtocolError."""
    try:
        return decode_watermark(frame.payload)
    except ValueError as error:
        raise RemoteProtocolError(f"from worker {frame.sender}: {error}") from error


def rows_record(batches: Sequence[pa.RecordBatch]) -> RowsRecord:
    """Return the record of rows, whatever their order and batches: by their keys, or all columns."""
    rows = hashes = 0
    for batch in batches:
        rows += batch.num_rows
        if batch.schema.get_field_index(HASH_COLUMN) >= 0:
            hashes += int(np.sum(batch.column(HASH_COLUMN).to_numpy(), dtype=np.uint64))
        else:  # rows of a broadcast table are few, and of any type
            hashes += sum(digest64(repr(row).encode()) for row in batch.to_pylist())
    return RowsRecord(rows, hashes % (1 << 64))


class UsedRows:
    """The rows that one worker has used of each peer, in the steps that no checkpoint covers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._records: dict[int, dict[tuple[int, int], RowsRecord]] = {}
        """Peer -> (channel, step) -> record."""

    def note(self, step: int, received: Mapping[int, Sequence[tuple[int, pa.RecordBatch]]]) -> None:
        """Note the batches of a step that a stage is about to use: channel -> (sender, batch)."""
        for channel, items in received.items():
            batches: dict[int, list[pa.RecordBatch]] = {sender: [] for sender in range(self._workers)}
            for sender, batch in items:
                batches[sender].append(batch)
            for sender, own in batches.items():
                self._records.setdefault(sender, {})[channel, step] = rows_record(own)

    def of(self, peer: int) -> Records:
        return self._records.get(peer, {})

    def purge(self, step: int) -> None:
        """Forget the steps up to this one: a committed checkpoint covers them."""
        for peer, records in self._records.items():
            self._records[peer] = {key: one for key, one in records.items() if key[1] > step}


# --- the input of a step ------------------------------------------------------------------------------------

_batch_growth: Final = 4
_INPUT: Final = "the input"
_ENDS: Final = "the end of a step's input"
_AT_ITS_END: Final = ""
"""The key in a division that marks, where event time flows, that the source was at its end."""


class StepInput:
    """The input of one incarnation. `replay` and `fill` raise OperatorError, and what sources raise."""

    def __init__(
        self, circuit: Circuit, worker_limits: WorkerLimits, shared: Shared, clock: Clock, incarnation: int
    ) -> None:
        self._circuit = circuit
        self._limits = worker_limits
        self._shared = shared
        self._clock = clock
        self._incarnation = incarnation
        self._backlog_at = 0.0
        """When the backlog is counted next."""

    def can_replay(self, recorded: Division) -> bool:
        """Whether all sources can read the recorded division now."""
        ready = [reader.can_replay(_parts(recorded, name)) for name, reader in self._circuit.sources.items()]
        return all(ready)

    def replay(self, step: int, recorded: Division, *, dropped: bool = False) -> None:
        """Feed exactly the recorded division. dropped: read it without feeding it."""
        for name, reader in self._circuit.sources.items():
            with self._circuit.working(name, f"the input of step {step}"):
                batches = reader.replay(_parts(recorded, name))
            for batch in batches:
                self._shared.bytes_in += batch.bytes_read
                if not dropped:
                    self._circuit.feed(step, name, batch)

    def take_division(self, recorded: Division | None) -> tuple[Sources, StepTime]:
        """Return what the step read, and the event time of each source."""
        taken: Sources = {}
        now: dict[str, SourceTime] = {}
        for name, read in self._circuit.ask_sources(_ENDS, lambda reader: reader.take_division()).items():
            taken[name] = dict(read)
            if recorded is not None:
                # From the record, not from the source: an input may have been closed between the step and its
                # replay.
                now[name] = SourceTime(_AT_ITS_END in recorded.sources.get(name, {}))
            elif self._circuit.time.flows:
                with self._circuit.calling(name, _ENDS):
                    now[name] = self._circuit.sources[name].time_now()
            if name in now and now[name].at_end and self._circuit.time.flows:
                taken[name][_AT_ITS_END] = (0, 0)
        return taken, StepTime(now, recorded, self._clock.seconds())

    def idle_in(self) -> float | None:
        """Return the seconds until a step must announce that a split holds nothing back; None for never."""
        for name, reader in self._circuit.sources.items():
            splits = self._circuit.time.waits_for(name)
            if splits and not reader.exhausted and not splits <= {*reader.time_now().behind}:
                return 0.0
        return self._circuit.time.idle_in(self._clock.seconds())

    def has_input(self) -> bool:
        """Whether there may be input now, or a step must announce that no more will follow."""
        for name, reader in self._readable():
            with self._circuit.calling(name, _INPUT):  # it may call user code
                if reader.has_input:
                    return True
        exhausted = self._circuit.ask_sources(_INPUT, lambda reader: reader.exhausted)
        return self._circuit.time.has_end_to_report([*filter(exhausted.get, exhausted)])

    def note_backlog(self, now: float) -> None:
        """Count what the sources know and have not read, at intervals; -1 if one does not know it."""
        if now >= self._backlog_at:
            self._backlog_at = now + limits.backlog_s
            known = self._circuit.ask_sources(_INPUT, lambda reader: reader.backlog_bytes).values()
            self._shared.backlog_bytes = -1 if None in known else sum(one or 0 for one in known)

    def backlog_in(self) -> float | None:
        """Return the seconds until an idle worker must count again, because it reported that input waits."""
        waits = self._shared.backlog_bytes > 0
        return max(0.0, self._backlog_at - self._clock.seconds()) if waits else None

    def _readable(self) -> list[tuple[str, SourceReader]]:
        held_sources = self._circuit.time.held_sources
        return [(name, reader) for name, reader in self._circuit.sources.items() if name not in held_sources]

    def fill(self, step: int) -> None:
        """Read at least one batch, until the step is full or late, a peer has ended it, or input is not
        wanted.
        """
        left = self._limits.step_bytes_max
        deadline = self._clock.seconds() + self._limits.step_ms_max / 1000
        exhausted = self._circuit.ask_sources(_INPUT, lambda reader: reader.exhausted)
        reading = [(name, reader) for name, reader in self._readable() if not exhausted[name]]
        while reading and self._shared.room:
            for name, reader in list(reading):
                size = self._read_batch(step, name, reader, min(left, self._batch_bytes()))
                left -= size
                if not size:
                    reading.remove((name, reader))
            if left <= 0 or self._clock.seconds() > deadline or self._interrupted(step):
                return

    def _batch_bytes(self) -> int:
        """Return the size of the next batch. What was learned outlives the incarnation, with the process."""
        return min(max(self._shared.batch_bytes, limits.batch_bytes_min), self._limits.batch_bytes_max)

    def _interrupted(self, step: int) -> bool:
        shared = self._shared
        return shared.peers_at >= step or shared.pausing or shared.incarnation != self._incarnation

    def _read_batch(self, step: int, name: str, reader: SourceReader, bytes_max: int) -> int:
        begin = self._clock.seconds()
        with self._circuit.working(name, _INPUT):
            batch = reader.read(max(bytes_max, 1))
        if batch is None:
            return 0
        self._shared.bytes_in += batch.bytes_read
        self._circuit.feed(step, name, batch)
        took_ms = (self._clock.seconds() - begin) * 1000
        if 2 * batch.bytes_read < bytes_max and took_ms < limits.batch_ms_aim:
            return batch.bytes_read  # too little to estimate the duration of a whole batch
        # The size of a read follows the duration of the previous one, so that a user function gets batches
        # that take it tens of milliseconds: a checkpoint, a pause and a reset wait for one call.
        aim = self._batch_bytes() * limits.batch_ms_aim / max(took_ms, 0.001)
        self._shared.batch_bytes = int(min(aim, self._batch_bytes() * _batch_growth))
        return batch.bytes_read


def _parts(recorded: Division, name: str) -> dict[str, SplitDivision]:
    parts = recorded.sources.get(name, {})
    return {split: SplitDivision(*part) for split, part in parts.items() if split != _AT_ITS_END}


# --- the output of a stage ----------------------------------------------------------------------------------


class StageOutput:
    """The output of one incarnation. `aligned`: channel -> the alignment that gets the worker's own share."""

    def __init__(
        self,
        circuit: Circuit,
        identity: Identity,
        order: RestoreCircuit,
        stages: Sequence[StagePlan],
        aligned: Mapping[int, Alignment[Item]],
    ) -> None:
        self._circuit = circuit
        self._me = identity
        self._number = order.incarnation
        self._workers = len(order.layout.workers)
        self._local = order.local
        self._job = job_digest(identity.region)
        self._stages = stages
        self._aligned = aligned

    def end_step(
        self, stage: int, step: int, sends: Sends, barrier: Barrier
    ) -> Mapping[int, tuple[ChannelFrame, ...]]:
        """End the step on the channels of a stage: keep the own share, return the frames by peer."""
        frames: dict[int, list[ChannelFrame]] = {w: [] for w in range(self._workers) if w != self._me.worker}
        for channel in self._stages[stage].sends:
            parts = sends.get(channel, [[] for _ in range(self._workers)])
            time = [self._circuit.time.to_send(step, channel)] if self._circuit.time.flows else []
            self._keep(channel, step, [*parts[self._me.worker], *time], barrier)
            for worker, queued in frames.items():
                with self._circuit.calling(self._circuit.exchange(channel), f"the end of step {step}"):
                    queued += self._frames(channel, step, parts[worker], time, barrier)
        return {worker: tuple(queued) for worker, queued in frames.items()}

    def rows(self, stage: int, sends: Sends) -> Records:
        """Return (peer, channel) -> the rows that a stage sends, for local recovery; nothing without it."""
        if not self._local:
            return {}
        return {
            (peer, channel): rows_record(sends[channel][peer] if channel in sends else [])
            for channel in self._stages[stage].sends
            for peer in range(self._workers)
            if peer != self._me.worker
        }

    def _keep(
        self, channel: int, step: int, items: "Sequence[pa.RecordBatch | Watermark]", barrier: Barrier
    ) -> None:
        me, alignment = self._me.worker, self._aligned[channel]
        for seq, item in enumerate(items):
            alignment.data(me, step, seq, (me, item))
        alignment.step_end(me, step, len(items), checkpoint=barrier.checkpoint, final=barrier.final)

    def _frames(
        self,
        channel: int,
        step: int,
        batches: Sequence[pa.RecordBatch],
        time: Sequence[Watermark],
        barrier: Barrier,
    ) -> list[ChannelFrame]:
        me, job, number = self._me.worker, self._job, self._number
        pieces = [(FrameType.DATA, encode_batch(piece)) for batch in batches for piece in frames_of(batch)]
        pieces += [(FrameType.WATERMARK, memoryview(encode_watermark(one))) for one in time]
        frames = [
            ChannelFrame(kind, me, job, number, step, seq=seq, channel=channel, payload=piece)
            for seq, (kind, piece) in enumerate(pieces)
        ]
        flags = FrameFlag.FINAL if barrier.final else 0
        seq = len(pieces)  # STEP_END has the number of frames before it: one that is missing is found
        frames.append(
            ChannelFrame(
                FrameType.STEP_END,
                me,
                job,
                number,
                step,
                barrier.checkpoint,
                seq,
                channel=channel,
                flags=flags,
            )
        )
        return frames


# --- checkpoints --------------------------------------------------------------------------------------------


class CheckpointTaking:
    """The checkpoints of one incarnation that are under way here: `collect` each stage, then `finish`."""

    def __init__(
        self, circuit: Circuit, shared: Shared, clock: Clock, scratch: str, *, incarnation: int
    ) -> None:
        self._circuit = circuit
        self._shared = shared
        self._clock = clock
        self._scratch = scratch
        self._incarnation = incarnation
        self._under_way: dict[int, tuple[OwnPart, dict[str, float]]] = {}
        """Step -> what is collected, and the seconds of each phase."""

    def collect(
        self, stage: int, step: int, checkpoint: int, *, aligned_s: float = 0.0, drained_s: float = 0.0
    ) -> None:
        """Collect what a stage contributes, after its run."""
        if step not in self._under_way:
            due = self._shared.snapshot_due or self._circuit.wants_snapshot
            spool = SnapshotSpool(self._scratch) if due else None
            self._under_way[step] = (OwnPart(checkpoint, spool, step=step), {})
        taken, phases = self._under_way[step]
        begin = self._clock.seconds()
        self._circuit.take_checkpoint(stage, taken)
        phases["align"] = phases.get("align", 0.0) + aligned_s
        phases["drain"] = phases.get("drain", 0.0) + drained_s
        phases["write"] = phases.get("write", 0.0) + self._clock.seconds() - begin

    def finish(
        self, step: int, barrier: Barrier, sources: dict[str, dict[str, SplitPosition]]
    ) -> CheckpointTaken:
        """Return the contributions of all stages. sources: the positions at the end of the step."""
        taken, phases = self._under_way.pop(step)
        begin = self._clock.seconds()
        blocks: list[EncodedBlock] = []
        for name, block in taken.blocks.items():
            with self._circuit.calling(self._circuit.owner_of(name), f"the checkpoint after step {step}"):
                blocks += encoded_blocks(name, block, by_key=self._circuit.stateful[name].by_key)
        phases["write"] += self._clock.seconds() - begin
        self._shared.checkpoints += 1
        return CheckpointTaken(
            self._incarnation,
            step,
            barrier,
            tuple(blocks),
            taken.snapshot,
            sources,
            taken.sinks,
            dict(self._circuit.sinks),
            phases,
        )


# --- the incarnation ----------------------------------------------------------------------------------------

logger = logging.getLogger("dos.dataflow")


class Batch(NamedTuple):
    """A micro-batch of the query that drives the region."""

    number: int
    time_ms: int
    is_open: bool
    """Its share is not fed to its end here."""
    is_taken: bool
    """Its checkpoint, the next one after it was opened, has passed all stages here."""


NO_BATCH: Final = Batch(-1, 0, is_open=False, is_taken=True)
NO_DIRECTORIES: Final[Mapping[str, Handover]] = MappingProxyType({})


class CircuitIncarnation:
    """An incarnation of the circuit. Order of calls: `load`*, `loaded`, `start`, `advance` in a loop. All
    raise what ends the circuit.
    """

    running = False
    """Whether it runs steps. Before, frames that peers send early are kept: not all workers are here."""
    _is_loaded = False
    """Whether all stages have their state."""
    _later_bytes = 0
    """Of `_later_blocks`."""
    _taken = (0, -1)
    """The last checkpoint that was taken here, and its step."""
    _handovers: tuple[Handover, ...] = ()
    _pieces: tuple[tuple[int, str, pa.RecordBatch], ...] = ()
    """The rest of a stored block that is being restored: a step that becomes owed waits for one piece."""
    _pause_to_report = 0
    """The number of the pause order that is not answered yet, 0 for none."""
    _batch = NO_BATCH
    """The batch whose share is fed here, in a region that a query drives."""

    def __init__(
        self,
        graph: GraphPlan,
        identity: Identity,
        order: RestoreCircuit,
        *,
        worker_limits: WorkerLimits,
        shared: Shared,
        post: Post,
        clock: Clock | None = None,
        held: HeldState | None = None,
    ) -> None:
        """Position sources and sinks at the checkpoint. held: of the circuit before, or of one opened ahead.
        Raises InputChangedError, CorruptDataError.
        """
        self.number = order.incarnation
        self._me, self._shared, self._post, self._uids = identity, shared, post, order.uids
        self._clock = Clock() if clock is None else clock
        self._stages, self._change = graph.plan.stages, order.change
        workers = len(order.layout.workers)
        last_checkpoint = order.checkpoint if order.change is None else order.change.checkpoint
        first, ahead = order.step + 1, min(worker_limits.steps_ahead, graph.plan.steps_ahead_max)
        # A stage that reads a broadcast table cannot be ahead of the step that changes the table.
        self._owes = order.takes_over and graph.plan.steps_ahead_max > 1
        owed_ahead = limits.take_over_steps_ahead if self._owes else 0
        self._schedule = Schedule(graph.plan, first, last_checkpoint, order.step, ahead, owed_ahead)
        self._later_blocks: deque[tuple[int, str, bytes]] = deque()
        """Stored blocks of later stages that are not restored yet: a step that is owed does not need them."""
        self._bytes_ahead: dict[int, int] = {}
        """Step -> the bytes read for it here, and received."""
        self._divisions: dict[int, Division] = {}
        self._positions: dict[int, dict[str, dict[str, SplitPosition]]] = {}
        self._split_times: dict[int, dict[str, dict[str, SplitPosition]]] = {}
        self._at_most_once = graph.delivery == "at-most-once"
        self._local, self._used = order.local, UsedRows(workers)
        self._durable = order.step
        """Input divisions up to this step are durable on all workers."""
        self._waiting: dict[str, int] = {}
        """Source that waits for a checkpoint -> the step at whose end it wants it."""
        self._fixed = FixedCost()
        self._waits_since: dict[int, float] = {}
        """Step -> when its last stage ended here. From then on it waits for the frames of its peers."""
        self._aligned = {
            channel: Alignment[Item](workers, first_step=first, last_checkpoint=last_checkpoint)
            for channel in range(graph.plan.channels)
        }
        self._circuit = Circuit(
            graph,
            region=identity.region,
            worker=identity.worker,
            workers=workers,
            store_id=order.store_id,
            layout=order.layout,
            incarnation=order.incarnation,
            scratch=identity.scratch,
            checkpoint=order.checkpoint,
            owner=order.owner,
            uids=order.uids,
            running=shared.running,
            seconds=self._clock.seconds,
            opened={} if held is None else held.operators,
        )
        self._sending = StageOutput(self._circuit, identity, order, self._stages, self._aligned)
        self._checkpoints = CheckpointTaking(
            self._circuit, shared, self._clock, identity.scratch, incarnation=self.number
        )
        self._reading = StepInput(self._circuit, worker_limits, shared, self._clock, order.incarnation)
        self._fed = self._circuit.fed_by_batches
        try:
            self._position_ends(order, held)
        except BaseException:
            self.close()
            raise

    @property
    def is_over(self) -> bool:
        """Whether the link thread has abandoned this incarnation and released operators that wait for it."""
        return any(handover.closed for handover in self._handovers)

    @property
    def operator(self) -> str:
        """The operator whose code ran last, "" if the circuit waits."""
        return self._circuit.operator

    def blame(self, error: BaseException) -> str:
        """Return the operator whose code raised the error, "" if none did."""
        return self._circuit.blame(error)

    def close(self) -> None:
        try:
            self._circuit.close()
        # Nothing is made durable here, and a recovery must not fail because of what an operator raises.
        except Exception as error:
            logger.error("in close: %s", error, exc_info=error)

    # --- starting ---------------------------------------------------------------------------------

    def _position_ends(self, order: RestoreCircuit, held: HeldState | None) -> None:
        part = order.part
        if held is not None:
            self._circuit.take_held(held, order.checkpoint)
        for name, reader in self._circuit.sources.items():
            with self._circuit.calling(name, "its start"):
                reader.reset_to({} if part is None else part.sources.get(name, {}))
            if isinstance(reader, PrefetchedReader):
                reader.attach(order.feeds[name])
        self._circuit.time.restore({} if part is None else part.sources)
        for name, writer in self._circuit.sinks.items():
            with self._circuit.calling(name, f"checkpoint {order.checkpoint}"):
                try:
                    writer.reset_to(None if part is None else part.sinks.get(name))
                except SinkRefusedError as error:
                    if order.checkpoint:
                        raise  # it was written before: a mount or a service may come back
                    raise operator_error(name, "its start", error) from error
                if order.checkpoint:
                    writer.publish(order.checkpoint)  # the worker may have died between commit and publish
        for worker, sinks in order.completes.items():
            # The heir completes the output of workers that left, before anything new becomes visible.
            self._circuit.complete_output(worker, sinks, order.checkpoint)
        for removed in order.removed:
            self._circuit.complete_removed(removed, order.checkpoint)
        self._shared.step = order.step
        self._shared.exhausted = False

    def hold(self, order: RestoreCircuit) -> HeldState | None:
        """Give up the state if it is that of the checkpoint to restore, else return None. Only `close` may
        follow. Raises as `Circuit.hold`.
        """
        step = order.step
        # Only if this process voted for it, in this incarnation, and no stage of a later step has run since:
        # its tables would have rows that are made again.
        stands = self._schedule.produced == self._schedule.consumed == step
        if not order.voted or not stands or self._taken != (order.checkpoint, step):
            return None
        if order.uids != self._uids or self._circuit.wants_snapshot:  # what is stored has another form
            return None
        return self._circuit.hold()

    @property
    def reads(self) -> bool:
        """Whether a state table needs the worker's own stored blocks."""
        return self._circuit.reads

    def load(self, checkpoint: int, table: str, data: bytes, part: TakenPart | None = None) -> None:
        """Restore one stored block of an operator's state. Blocks arrive oldest first. part: it is of a
        worker of the former layout, and what belongs to this worker now is taken over. Answers `BlockLoaded`.
        """
        circuit = self._circuit
        needed = table in circuit.stateful and table not in circuit.held
        if self._owes and needed and circuit.stage_of(table) > 0:
            self._later_blocks.append((checkpoint, table, data))
            self._later_bytes += len(data)
            while self._later_bytes > limits.take_over_bytes_ahead:
                self._load_first_later()
        else:
            share = None if self._change is None else self._change.share
            load_block(circuit, checkpoint, table, data, part, share)
        self._post(BlockLoaded(self.number))

    def loaded(self, directories: Mapping[str, Handover] = NO_DIRECTORIES) -> None:
        """Take the operators' files after all blocks are restored, and start the operators. Answers
        `StateLoaded`.
        """
        if self._change is not None and self._change.moves:
            self._circuit.parts_restored(self._change.share)
        self._handovers = tuple(directories.values())
        for name, handover in directories.items():
            log = PostedChanges(self.number, name, handover, self._post)
            if handover.sources is not None:
                self._circuit.begin_directory(name, handover, log, self._me.scratch)
            self._circuit.hand_directory(name, OperatorDirectory(handover.path, log, self._me.scratch))
        if self._owes:
            self._circuit.restored(last_stage=0)
        else:
            self._all_loaded()
        self._post(StateLoaded(self.number))
        if self._change is not None:
            self._take_first_checkpoint(self._change)

    def _load_next(self) -> bool:
        """Restore one of the blocks that wait, and after the last one all stages. Return whether any did."""
        if self._is_loaded:
            return False
        if self._later_blocks or self._pieces:
            self._load_first_later()
        else:
            self._all_loaded()
        return True

    def _load_first_later(self) -> None:
        """Restore the next piece of the blocks that wait."""
        if not self._pieces:
            checkpoint, table, data = self._later_blocks.popleft()
            self._later_bytes -= len(data)
            block = decoded_block(self._circuit, checkpoint, table, data)
            assert block is not None, "only blocks of operators of the graph wait"
            size = limits.take_over_rows_at_once
            begins = range(0, max(block.num_rows, 1), size)
            self._pieces = tuple((checkpoint, table, block.slice(begin, size)) for begin in begins)
        (checkpoint, table, piece), *rest = self._pieces
        self._pieces = tuple(rest)
        self._circuit.restore(table, piece, checkpoint)

    def _all_loaded(self) -> None:
        self._circuit.restored(1 if self._owes else 0)
        self._shared.operators = self._circuit.counters()  # no step may follow to report them
        self._is_loaded = True

    def _take_first_checkpoint(self, change: LayoutChange) -> None:
        """Take the first checkpoint of a layout, or of a line of history, before any step."""
        step, checkpoint = self._schedule.produced, change.checkpoint
        for stage in range(1, len(self._stages)):
            self._checkpoints.collect(stage, step, checkpoint)
        positions = self._circuit.ask_sources("a checkpoint", lambda reader: reader.positions())
        sources = positions | self._circuit.time.positions()
        self._taken = (checkpoint, step)
        self._post(self._checkpoints.finish(step, Barrier(checkpoint), sources))

    def start(self, divisions: Sequence[Division]) -> None:
        """Run steps: all workers are at the checkpoint. The steps of these divisions are replayed first."""
        self.running = True
        self._divisions = {division.step: division for division in divisions}
        if self._divisions:
            self._schedule.replay_until = max(self._divisions)
            if self._at_most_once:
                logger.warning("at-most-once: input of %d recorded steps is skipped", len(self._divisions))
        self._note_exhausted()

    # --- orders and peers ---------------------------------------------------------------------------------

    def request_checkpoint(
        self, checkpoint: int, *, final: bool, step: int = 0, marks: Mapping[str, Watermark] | None = None
    ) -> None:
        """Attach this checkpoint to the next STEP_END, or to that of `step`. marks: it ends a batch
        (`CircuitTime.end_batch`).
        """
        if marks is not None:
            self._circuit.time.end_batch(step, marks)
        assert marks is not None or self._batch.is_taken, "an open batch is recorded by its own checkpoint"
        self._schedule.request_checkpoint(checkpoint, final=final, step=step)

    def open_batch(self, order: OpenBatch, rows: HeldShare) -> None:
        """Feed this worker's share of a batch: source -> its rows."""
        assert self._batch.is_taken, "a batch is opened after the record of the one before"
        self._batch = Batch(order.number, order.time_us // 1000, is_open=True, is_taken=False)
        self._circuit.time.begin_batch(order.marks)
        for name, reader in self._fed.items():
            reader.begin(order.number, rows[name])
        self._report_fed()

    def pause(self, number: int) -> None:
        """Stop taking input from the next step on, and answer `PausedAt`; 0: resume."""
        self._schedule.paused = number > 0
        self._pause_to_report = number
        self._report_paused()

    def _report_paused(self) -> None:
        """Answer the pause order. Recorded steps are replayed first: they take their input even if paused."""
        if self._pause_to_report and not self._schedule.replaying:
            self._post(PausedAt(self.number, self._pause_to_report, self._schedule.produced))
            self._pause_to_report = 0

    def divisions_durable(self, step: int) -> None:
        """Note that the input divisions of all workers are durable up to this step: its output may become
        visible and, with local recovery, it may run.
        """
        self._durable = max(self._durable, step)

    def publish(self, checkpoint: int, *, final: bool, step: int) -> None:
        """Publish what the sinks prepared for a committed checkpoint at this step. Answers `Published`."""
        for name, writer in self._circuit.sinks.items():
            with self._circuit.calling(name, f"checkpoint {checkpoint}"):
                writer.publish(checkpoint)
        self._used.purge(step)
        self._post(Published(self.number, checkpoint, final))

    def peer_restarts(self, peer: int, link: int) -> None:
        """Answer `PeerHeld`, with the number of the new link that a peer has opened (local recovery): it
        sends again what was not used.
        """
        self._post(PeerHeld(self.number, peer, link, self.forget_unused(peer)))

    def forget_unused(self, peer: int) -> Held:
        """Forget what a peer sent and no stage has used; return what was used."""
        used = {channel: alignment.restart(peer) for channel, alignment in self._aligned.items()}
        return Held(used, self._used.of(peer))

    def arrived(self, frame: ChannelFrame) -> None:
        """Take a frame from a peer."""
        if frame.type not in (FrameType.DATA, FrameType.WATERMARK, FrameType.STEP_END):
            return  # RESET, DURABLE and EOF are handled on the link thread
        alignment = self._aligned.get(frame.channel)
        if alignment is None:
            raise RemoteProtocolError(f"worker {frame.sender} sent on unknown channel {frame.channel}")
        self._note_ahead(frame.step, len(frame.payload))
        if frame.type is FrameType.DATA:
            alignment.data(frame.sender, frame.step, frame.seq, (frame.sender, frame.payload))
        elif frame.type is FrameType.WATERMARK:
            alignment.data(frame.sender, frame.step, frame.seq, (frame.sender, watermark_of(frame)))
        else:
            final = bool(frame.flags & FrameFlag.FINAL)
            alignment.step_end(frame.sender, frame.step, frame.seq, checkpoint=frame.checkpoint, final=final)

    # --- running ------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Do the next piece of work; return False if there is none. Raises what ends the circuit."""
        self._circuit.operator = ""
        action = self._schedule.next_action(
            self._is_complete,
            input_waits=self._input_waits(),
            room=self._shared.room,
            peers_at=self._shared.peers_at,
            has_memory=sum(self._bytes_ahead.values()) < limits.take_over_bytes_ahead,
        )
        begin, rows = self._clock.seconds(), self._circuit.rows_handled
        if isinstance(action, Produce):
            if action.replay and not self._reading.can_replay(self._divisions[action.step]):
                return self._load_next()
            self._produce(action)
        elif isinstance(action, RunStage):
            self._run_stage(action)
        elif self._load_next():
            return True
        else:
            self._note_exhausted()  # an idle input may have been closed meanwhile
            if any(self._circuit.ask_sources("the input", lambda reader: reader.take_report()).values()):
                self._shared.operators = self._circuit.counters()
            self._reading.note_backlog(begin)
            return False
        end = self._clock.seconds()
        self._shared.busy_s += end - begin
        stage, rows = (0 if isinstance(action, Produce) else action.stage), self._circuit.rows_handled - rows
        self._shared.load_s += end - begin - self._fixed.of_run(stage, rows, end - begin)
        self._reading.note_backlog(end)
        return True

    def _input_waits(self) -> bool:
        # A split that becomes idle has no rows, but a step must tell the other workers of it.
        return self._reading.has_input() or self._reading.idle_in() == 0

    def wakes_in(self) -> float | None:
        """Return the seconds after which to call `advance` even without a message; None for never."""
        asked = self._circuit.ask_sources(
            "the input", lambda reader: None if reader.has_input else reader.wakes_in
        )
        waits = [*asked.values()]
        waits += self._reading.idle_in(), self._reading.backlog_in()
        return min((wait for wait in waits if wait is not None), default=None)

    def _is_complete(self, channel: int, step: int) -> bool:
        if not self._is_loaded or self._waits_for_durable(step):
            return False
        alignment = self._aligned[channel]
        return alignment.step == step and not alignment.missing()

    def _waits_for_durable(self, step: int) -> bool:
        # At-most-once: a reset would read its rows again and publish them twice. Local recovery: a worker
        # that is taken over could take other input in this step.
        return (self._at_most_once or self._local) and step > self._durable

    def _note_ahead(self, step: int, size: int) -> None:
        if self._owes:
            self._bytes_ahead[step] = self._bytes_ahead.get(step, 0) + size

    def _produce(self, action: Produce) -> None:
        step, before = action.step, self._shared.bytes_in
        recorded = self._divisions.pop(step) if action.replay else None
        time_ms = self._wall_ms() if recorded is None else recorded.time_ms
        self._circuit.time.step_begins(time_ms)
        if recorded is not None:
            self._reading.replay(step, recorded, dropped=self._at_most_once)
        elif not self._schedule.paused:
            self._reading.fill(step)
        self._note_ahead(step, self._shared.bytes_in - before)
        # The division ends before the sources do: what they emit now belongs to this step in a replay, too.
        taken, now = self._reading.take_division(recorded)
        sends = self._circuit.end_sources(step, now)
        self._shared.event_times = self._circuit.time.reports()
        taken |= self._circuit.time.division(step)
        self._positions[step] = self._circuit.ask_sources(
            f"the end of step {step}", lambda reader: reader.positions()
        )
        self._split_times[step] = self._circuit.time.positions()
        marked = Barrier(*recorded.mark[:2]) if self._local and recorded is not None else None
        barrier = self._schedule.step_produced(marked)
        for alignment in self._aligned.values() if self._owes else ():
            alignment.produced(step)
        frames = self._sending.end_step(0, step, sends, barrier)
        # Rows of a batch are not on record before its checkpoint: a reset has them sent again.
        sources = None if action.replay or self._fed else taken
        self._waits_since[step] = self._clock.seconds()
        self._post(
            StageEnded(self.number, step, frames, time_ms, sources, 0, barrier, self._sending.rows(0, sends))
        )
        self._shared.step = step
        self._shared.rows_in += self._circuit.take_rows_in()
        self._request_checkpoints(step)
        self._report_paused()
        self._report_fed()

    def _wall_ms(self) -> int:
        """Return the time of a new step: with a query that of the batch, also if it is repeated."""
        return self._batch.time_ms if self._fed else self._clock.wall_ms()

    def _report_fed(self) -> None:
        """Report once that the share is fed, with the end of the last step that has rows of it."""
        batch = self._batch
        if batch.is_open and not any(reader.has_input for reader in self._fed.values()):
            self._batch = batch._replace(is_open=False)
            marks = self._circuit.time.marks_of_batch()
            self._post(SourceWaits(self.number, self._schedule.produced, batch.number, marks))

    def _request_checkpoints(self, step: int) -> None:
        asked = self._circuit.ask_sources(f"the end of step {step}", lambda reader: reader.wants_checkpoint)
        waits = [name for name, wants in asked.items() if wants]
        if self._circuit.take_checkpoint_request() or any(name not in self._waiting for name in waits):
            self._post(SourceWaits(self.number, step))
        for name in waits:
            self._waiting.setdefault(name, step)

    def _checkpoint_taken(self, step: int) -> None:
        """Resume the sources that waited for a checkpoint at the end of this step or of an earlier one."""
        for name in [name for name, waits in self._waiting.items() if waits <= step]:
            del self._waiting[name]
            self._circuit.sources[name].checkpoint_taken()

    def _note_exhausted(self) -> None:
        """Report exhaustion when all input is read and every step here has passed all stages."""
        # The second condition prevents loss. Suppose this worker read its last rows in step 3, and the other,
        # exhausted since step 1, has ended only step 2. A final checkpoint requested now could be attached to
        # the other's STEP_END of step 3 or even 2, without the rows of step 3. A step passes all stages only
        # after all workers have ended it.
        through = self._schedule.produced == self._schedule.consumed and not self._divisions
        exhausted = self._circuit.ask_sources("the input", lambda reader: reader.exhausted) if through else {}
        if through and all(exhausted.values()):
            self._shared.exhausted = True

    def _run_stage(self, action: RunStage) -> None:
        stage, step = action
        complete = {channel: self._take_step(channel, step) for channel in self._stages[stage].receives}
        if stage == 1:
            checkpoint = max((done.checkpoint for done in complete.values()), default=0)
            final = any(done.final for done in complete.values() if done.checkpoint == checkpoint)
            self._schedule.step_aligned(step, Barrier(checkpoint, final))
        barrier = self._schedule.checkpoint_at(step)
        received = {
            channel: decoded(done.items, partial(self._circuit.wire_schema, channel))
            for channel, done in complete.items()
        }
        if self._local:
            # Before the stage runs: a peer that restarts now must send the same rows again, or the region
            # resets.
            self._used.note(step, received)
        watermarks = {
            channel: [item for _, item in done.items if isinstance(item, Watermark)]
            for channel, done in complete.items()
        }
        begin = self._clock.seconds()
        aligned_s = begin - self._waits_since[step]
        sends = self._circuit.run_stage(
            stage,
            step,
            received,
            checkpoint=bool(barrier.checkpoint),
            # Not by the order of the coordinator, which may come after the barrier of a peer.
            ends_batch=bool(barrier.checkpoint) and not self._batch.is_taken,
            watermarks=watermarks,
        )
        if barrier.checkpoint:
            self._checkpoints.collect(
                stage, step, barrier.checkpoint, aligned_s=aligned_s, drained_s=self._clock.seconds() - begin
            )
        self._request_checkpoints(step)
        self._waits_since[step] = self._clock.seconds()
        if self._stages[stage].sends:
            frames = self._sending.end_step(stage, step, sends, barrier)
            rows = self._sending.rows(stage, sends)
            self._post(StageEnded(self.number, step, frames, stage=stage, records=rows))
        if self._schedule.stage_done(stage, step):
            self._step_over(step)

    def _take_step(self, channel: int, step: int) -> CompleteStep[Item]:
        done = self._aligned[channel].take()
        assert done is not None
        assert done.step == step
        return done

    def _step_over(self, step: int) -> None:
        self._note_exhausted()
        positions, split_times = self._positions.pop(step), self._split_times.pop(step)
        self._bytes_ahead.pop(step, None)
        del self._waits_since[step]
        barrier = self._schedule.forget(step)
        self._shared.rows_out += self._circuit.take_rows_out()
        self._shared.operators = self._circuit.counters()
        for name, writer in self._circuit.sinks.items():
            if isinstance(writer, LogWriter):
                self._post(OutputMade(self.number, step, name, positions, *writer.take_step()))
        if barrier.checkpoint:
            self._batch = self._batch._replace(is_taken=True)
            self._checkpoint_taken(step)
            self._taken = (barrier.checkpoint, step)
            self._post(self._checkpoints.finish(step, barrier, positions | split_times))


def decoded_block(circuit: Circuit, checkpoint: int, table: str, data: bytes) -> pa.RecordBatch | None:
    """Return a stored block; None if it is of an operator that the graph has no more, whose blocks are in the
    chain until a snapshot follows. Raises CorruptDataError.
    """
    if table not in circuit.stateful:
        return None
    name = circuit.owner_of(table)
    return decode_block(data, where=f"the state of operator {name!r} in checkpoint {checkpoint}")


def load_block(
    circuit: Circuit,
    checkpoint: int,
    table: str,
    data: bytes,
    part: TakenPart | None = None,
    share: Share | None = None,
) -> None:
    """Restore one stored block of the worker's own state, or take over from one of another worker. Raises
    OperatorError, CorruptDataError.
    """
    if part is None and table in circuit.held:
        return
    if (decoded := decoded_block(circuit, checkpoint, table, data)) is None:
        return
    if part is None:
        circuit.restore(table, decoded, checkpoint)
    else:
        assert share is not None, "the layout changes"
        circuit.restore_part(table, decoded, part, share)


# --- the loop -----------------------------------------------------------------------------------------------

_FOR_A_PERSON = (InputChangedError, InputListChangedError, SinkOwnedError, CorruptDataError)
"""The checkpoint does not match what the worker finds. A retry would find the same, so the region stops."""

_WITH_RULES = (*_FOR_A_PERSON, *LOSSES, ClosedError, RemoteProtocolError)


class CircuitLoop:
    """The message loop of one worker process. It runs until the link thread ends."""

    def __init__(
        self,
        graph: GraphPlan,
        identity: Identity,
        *,
        worker_limits: WorkerLimits,
        inbox: Inbox,
        shared: Shared,
        post: Callable[[ToLinks], None],
        clock: Clock | None = None,
        pulse: CircuitPulse | None = None,
    ) -> None:
        self._clock = clock
        self._pulse = pulse or CircuitPulse()
        self._graph = graph
        self._identity = identity
        self._limits = worker_limits
        self._inbox = inbox
        self._shared = shared
        self._post = post
        self._run: CircuitIncarnation | None = None
        """None before the first `RestoreCircuit`, and after a failure until the next one."""
        self._opened: Circuit | None = None
        """The operators that are opened ahead of the first `RestoreCircuit`."""
        self._waiting = False
        """The incarnation has nothing to do until a message arrives or `_wakes_in` seconds are over."""
        self._wakes_in: float | None = None
        self.incarnations = 0

    def run(self) -> LinksEnded:
        """Handle messages until the link thread ends; return its last message, which has the reason."""
        try:
            while True:
                message = self._next_message()
                if isinstance(message, LinksEnded):
                    return message
                self._pulse.begin()
                self.turn(message)
                self._pulse.end()
        finally:
            self.drop()
            self._drop_opened()

    @property
    def busy(self) -> bool:
        """Whether there may be work to do without a message."""
        return self._run is not None and self._run.running and not self._waiting

    def _next_message(self) -> ToCircuit | None:
        """Return a message, None if there is work to do instead; otherwise wait for a message."""
        if self.busy:
            return self._inbox.take_nowait()
        return self._inbox.take(self._wakes_in)

    def _advance(self) -> None:
        assert self._run is not None
        waiting = not self._run.advance()
        self._wakes_in = self._run.wakes_in() if waiting else None  # may list a directory, and fail
        self._waiting = waiting

    def turn(self, message: ToCircuit | None) -> None:
        """Handle a message or, for None, do one piece of work. An error ends the incarnation."""
        self._waiting = False
        if isinstance(message, OpenAhead | LoadAhead):
            self._prepare(message)
            return
        number = self._shared.incarnation if self._run is None else self._run.number
        if isinstance(message, RestoreCircuit):
            number = message.incarnation
        try:
            if message is None:
                self._advance()
            elif isinstance(message, RestoreCircuit):
                self._restoring(message)
            # A call for an incarnation that failed or was replaced is dropped: its rows are made again.
            elif isinstance(message, CircuitCall) and self._run is not None and message.incarnation == number:
                message.method(self._run, *message.arguments, **message.named)
                self._pulse.running = self._run.running
        except BaseException as error:
            run = self._run
            operator = "" if run is None else run.blame(error)
            if not isinstance(error, Exception) and not operator:
                raise  # no operator raised it: this process is interrupted
            reported = run is not None and run.is_over  # the links have reported the cause
            ran_last = "" if run is None else run.operator
            self.drop()
            if not reported:
                self._post(CircuitFailed(number, _failure(error, operator, ran_last)))
        finally:
            self._shared.running.begin("")  # while the loop waits, no operator runs

    def drop(self) -> None:
        """End the incarnation, if there is one, and close its files."""
        self._pulse.running = False
        self._waiting = False
        self._wakes_in = None
        if self._run is not None:
            self._run.close()
            self._run = None

    def _prepare(self, order: OpenAhead | LoadAhead) -> None:
        """Carry out an order that precedes the first `RestoreCircuit`. An error ends what was opened."""
        try:
            if isinstance(order, OpenAhead):
                self._drop_opened()
                self._opened = Circuit(
                    self._graph,
                    region=self._identity.region,
                    worker=self._identity.worker,
                    workers=len(order.layout.workers),
                    store_id=order.store_id,
                    layout=order.layout,
                    scratch=self._identity.scratch,
                    uids=order.uids,
                    running=self._shared.running,
                    ahead=True,
                )
                self._opened.open_ahead()
            else:
                assert self._opened is not None, "it was opened, or an error was answered"
                load_block(self._opened, order.checkpoint, order.table, order.data, order.part, order.share)
        except Exception as error:
            logger.exception("in what precedes a hand-over")
            self._drop_opened()
            self._post(AheadDone(order.number, f"{text_of(error)}"))
        else:
            self._post(AheadDone(order.number))
        finally:
            self._shared.running.begin("")

    def _drop_opened(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except Exception as error:  # nothing of it was ever used
                logger.error("in close: %s", error, exc_info=error)

    def _restoring(self, order: RestoreCircuit) -> None:
        held = None if self._run is None else self._run.hold(order)
        self.drop()
        if not order.opened:
            self._drop_opened()
        if self._opened is not None:  # what it has loaded is continued by stored blocks
            held = HeldState(self._opened.operators, SnapshotSpool(), frozenset())
        self._opened = None
        self._run = CircuitIncarnation(
            self._graph,
            self._identity,
            order,
            worker_limits=self._limits,
            shared=self._shared,
            post=self._post,
            clock=self._clock,
            held=held,
        )
        self.incarnations += 1
        self._post(CircuitPositioned(order.incarnation, self._run.reads))


def _failure(error: BaseException, operator: str, ran_last: str) -> Failed:
    by_rows = operator or isinstance(error, CONVERSIONS)
    if by_rows and not isinstance(error, (OperatorError, *_WITH_RULES)):
        error = operator_error(operator or ran_last, "", error)
    if isinstance(error, OperatorError):
        return Failed(
            kind="reset" if error.wants_reset else "operator",
            operator=error.operator,
            position=error.position,
            message=error.cause_text,
            traceback=error.traceback_text,
        )
    kind: FailureKind = "manifest" if isinstance(error, _FOR_A_PERSON) else "internal"
    logger.error("the circuit stopped (%s): %s", kind, error, exc_info=error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    if operator and not notes:
        notes = f" (operator {operator!r})"
    text = "".join(traceback.format_exception(error))
    return Failed(kind=kind, message=f"{text_of(error)}{notes}", traceback=text)

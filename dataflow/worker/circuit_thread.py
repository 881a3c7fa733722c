"""One incarnation of a worker's circuit, from its position at a checkpoint to running steps.

It turns the decisions of `core/schedule.py` into calls of the circuit, and their results into messages for
the link thread, on the circuit thread. After an error it cannot be used again.
"""

import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from checkpoint import Alignment, ChannelFrame, CompleteStep, Division, FrameFlag, FrameType, SplitPosition
from checkpoint.chains.state_blocks import decode_block
from checkpoint.errors import StepOrderError
from dataflow.core.event_time import Watermark
from dataflow.core.fixed_cost import FixedCost
from dataflow.core.retained_steps import Held
from dataflow.core.schedule import Barrier, Produce, RunStage, Schedule
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from dataflow.sinks.log import LogWriter
from dataflow.sources.prefetched import PrefetchedReader
from dataflow.state.directory_handover import Handover
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.worker.checkpoint_taking import CheckpointTaking
from dataflow.worker.circuit import Circuit
from dataflow.worker.directories import PostedChanges
from dataflow.worker.identity import Clock, Identity
from dataflow.worker.messages import (
    CheckpointRequested,
    DivisionsDurable,
    LoadStateBlock,
    OutputMade,
    PausedAt,
    PauseRequested,
    Post,
    PublishCheckpoint,
    RestoreCircuit,
    Shared,
    SourceWaits,
    StageEnded,
    Started,
)
from dataflow.worker.stage_input import Item, decoded, watermark_of
from dataflow.worker.stage_output import StageOutput
from dataflow.worker.step_input import StepInput
from dataflow.worker.used_rows import UsedRows

logger = logging.getLogger("dos.dataflow")

NO_DIRECTORIES: Final[Mapping[str, Handover]] = MappingProxyType({})


class CircuitIncarnation:
    """An incarnation of the circuit. Order of calls: `load`*, `loaded`, `start`, `advance` in a loop."""

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
    ) -> None:
        """Position sources and sinks at the checkpoint. Raises InputChangedError, CorruptDataError."""
        self.number = order.incarnation
        self._me = identity
        self._shared = shared
        self._post = post
        self._clock = Clock() if clock is None else clock
        self._stages = graph.plan.stages
        self._change = order.change
        workers = len(order.layout.workers)
        last_checkpoint = order.checkpoint if order.change is None else order.change.checkpoint
        first = order.step + 1
        ahead = min(worker_limits.steps_ahead, graph.plan.steps_ahead_max)
        self._schedule = Schedule(graph.plan, first, last_checkpoint, order.step, ahead)
        self._divisions: dict[int, Division] = {}
        self._positions: dict[int, dict[str, dict[str, SplitPosition]]] = {}
        self._split_times: dict[int, dict[str, dict[str, SplitPosition]]] = {}
        self._at_most_once = graph.delivery == "at-most-once"
        self._local, self._used = order.local, UsedRows(workers)
        self._handovers: tuple[Handover, ...] = ()
        self._durable = order.step
        """Input divisions up to this step are durable on all workers."""
        self._pause_to_report = 0
        """The number of the pause order that is not answered yet, 0 for none."""
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
            running=shared.running,
            seconds=self._clock.seconds,
        )
        self._sending = StageOutput(self._circuit, identity, order, self._stages, self._aligned)
        self._checkpoints = CheckpointTaking(
            self._circuit, shared, self._clock, identity.scratch, incarnation=self.number
        )
        self._reading = StepInput(self._circuit, worker_limits, shared, self._clock, order.incarnation)
        try:
            self._position_ends(order)
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
        """Close all files. Nothing is made durable, so what an operator raises is only logged: a recovery
        must not fail because of it.
        """
        try:
            self._circuit.close()
        except Exception as error:
            logger.error("in close: %s", error, exc_info=error)

    # --- starting ---------------------------------------------------------------------------------

    def _position_ends(self, order: RestoreCircuit) -> None:
        part = order.part
        for name, reader in self._circuit.sources.items():
            with self._circuit.calling(name, "its start"):
                reader.reset_to({} if part is None else part.sources.get(name, {}))
            if isinstance(reader, PrefetchedReader):
                reader.attach(order.feeds[name])
        self._circuit.time.restore({} if part is None else part.sources)
        for name, writer in self._circuit.sinks.items():
            with self._circuit.calling(name, f"checkpoint {order.checkpoint}"):
                writer.reset_to(None if part is None else part.sinks.get(name))
                if order.checkpoint:
                    writer.publish(order.checkpoint)  # the worker may have died between commit and publish
        for worker, sinks in order.completes.items():
            self._circuit.complete_output(worker, sinks, order.checkpoint)
        self._shared.step = order.step
        self._shared.exhausted = False

    def load(self, block: LoadStateBlock) -> None:
        """Restore one stored block. Raises CorruptDataError, and OperatorError if a migration fails."""
        if block.operator not in self._circuit.stateful:
            return  # the fingerprint agrees: an earlier version of this operator had state, this one has none
        label = f"the state of operator {block.operator!r} in checkpoint {block.checkpoint}"
        decoded = decode_block(block.data, where=label)
        if block.part is None:
            self._circuit.restore(block.operator, decoded, block.checkpoint)
        else:
            assert self._change is not None
            self._circuit.restore_part(block.operator, decoded, block.part, self._change.share)

    def loaded(self, directories: Mapping[str, Handover] = NO_DIRECTORIES) -> None:
        """Take the operators' files after all blocks are restored, and start them. Raises OperatorError."""
        if self._change is not None and self._change.moves:
            self._circuit.parts_restored(self._change.share)
        self._handovers = tuple(directories.values())
        for name, handover in directories.items():
            log = PostedChanges(self.number, name, handover, self._post)
            if handover.sources is not None:
                self._circuit.begin_directory(name, handover, log, self._me.scratch)
            self._circuit.hand_directory(name, OperatorDirectory(handover.path, log, self._me.scratch))
        self._circuit.restored()
        self._shared.operators = self._circuit.counters()  # no step may follow to report them

    def take_first_checkpoint(self) -> None:
        """If the layout changes, or a line of history begins: take its first checkpoint, before any step."""
        if self._change is None:
            return
        step, checkpoint = self._schedule.produced, self._change.checkpoint
        for stage in range(1, len(self._stages)):
            self._checkpoints.collect(stage, step, checkpoint)
        positions = self._circuit.ask_sources("a checkpoint", lambda reader: reader.positions())
        sources = positions | self._circuit.time.positions()
        self._post(self._checkpoints.finish(step, Barrier(checkpoint), sources))

    def start(self, order: Started) -> None:
        """Run steps: all workers are at the checkpoint. Recorded steps are replayed first."""
        self._divisions = {division.step: division for division in order.divisions}
        if self._divisions:
            self._schedule.replay_until = max(self._divisions)
            if self._at_most_once:
                logger.warning("at-most-once: input of %d recorded steps is skipped", len(self._divisions))
        self._note_exhausted()

    # --- messages -----------------------------------------------------------------------------------------

    def request_checkpoint(self, order: CheckpointRequested) -> None:
        self._schedule.request_checkpoint(order.checkpoint, final=order.final)

    def pause(self, order: PauseRequested) -> None:
        """Stop taking input from the next step on, or resume if `order.pause` is 0."""
        self._schedule.paused = order.pause > 0
        self._pause_to_report = order.pause
        self._report_paused()

    def _report_paused(self) -> None:
        """Answer the pause order. Recorded steps are replayed first: they take their input even if paused."""
        if self._pause_to_report and not self._schedule.replaying:
            self._post(PausedAt(self.number, self._pause_to_report, self._schedule.produced))
            self._pause_to_report = 0

    def divisions_durable(self, order: DivisionsDurable) -> None:
        """Note that the output of the steps up to `order.step` may become visible."""
        self._durable = max(self._durable, order.step)

    def committed(self, order: PublishCheckpoint) -> None:
        """Publish what the sinks prepared for the checkpoint."""
        for name, writer in self._circuit.sinks.items():
            with self._circuit.calling(name, f"checkpoint {order.checkpoint}"):
                writer.publish(order.checkpoint)
        self._used.purge(order.step)

    def peer_restarts(self, peer: int) -> Held:
        """Forget what a peer sent and no stage has used; return what was used. The peer sends from there."""
        used = {channel: alignment.restart(peer) for channel, alignment in self._aligned.items()}
        return Held(used, self._used.of(peer))

    def arrived(self, frame: ChannelFrame) -> None:
        """Take a frame from a peer. Raises StepOrderError."""
        if frame.type not in (FrameType.DATA, FrameType.PUNCTUATION, FrameType.STEP_END):
            return  # RESET, DURABLE and EOF are handled on the link thread
        alignment = self._aligned.get(frame.channel)
        if alignment is None:
            raise StepOrderError(f"worker {frame.sender} sent on unknown channel {frame.channel}")
        if frame.type is FrameType.DATA:
            alignment.data(frame.sender, frame.step, frame.seq, (frame.sender, frame.payload))
        elif frame.type is FrameType.PUNCTUATION:
            alignment.data(frame.sender, frame.step, frame.seq, (frame.sender, watermark_of(frame)))
        else:
            final = bool(frame.flags & FrameFlag.FINAL)
            alignment.step_end(frame.sender, frame.step, frame.seq, checkpoint=frame.checkpoint, final=final)

    # --- running ------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Do the next piece of work; return False if there is none.

        Raises OperatorError, and what ends the circuit.
        """
        self._circuit.operator = ""
        action = self._schedule.next_action(
            self._is_complete,
            input_waits=self._input_waits(),
            room=self._shared.room,
            peers_at=self._shared.peers_at,
        )
        begin, rows = self._clock.seconds(), self._circuit.rows_handled
        if isinstance(action, Produce):
            if action.replay and not self._reading.can_replay(self._divisions[action.step]):
                return False
            self._produce(action)
        elif isinstance(action, RunStage):
            self._run_stage(action)
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
        if self._waits_for_durable(step):
            return False
        alignment = self._aligned[channel]
        return alignment.step == step and not alignment.missing()

    def _waits_for_durable(self, step: int) -> bool:
        # At-most-once: a reset would read its rows again and publish them twice. Local recovery: a worker
        # that is taken over could take other input in this step.
        return (self._at_most_once or self._local) and step > self._durable

    def _produce(self, action: Produce) -> None:
        step = action.step
        recorded = self._divisions.pop(step) if action.replay else None
        time_ms = self._clock.wall_ms() if recorded is None else recorded.time_ms
        self._circuit.time.step_begins(time_ms)
        if recorded is not None:
            self._reading.replay(step, recorded, dropped=self._at_most_once)
        elif not self._schedule.paused:
            self._reading.fill(step)
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
        frames = self._sending.end_step(0, step, sends, barrier)
        sources = None if action.replay else taken
        self._waits_since[step] = self._clock.seconds()
        self._post(
            StageEnded(self.number, step, frames, time_ms, sources, 0, barrier, self._sending.rows(0, sends))
        )
        self._shared.step = step
        self._shared.rows_in += self._circuit.take_rows_in()
        self._request_checkpoints(step)
        self._report_paused()

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
        """Report exhaustion when all input is read and every step of this worker has passed all stages here.

        The second condition prevents loss. Suppose this worker read its last rows in step 3, and the other,
        exhausted since step 1, has ended only step 2. A final checkpoint requested now could be attached to
        the other's STEP_END of step 3 or even 2, without the rows of step 3. A step passes all stages only
        after all workers have ended it.
        """
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
            self._used.note(step, received)
        watermarks = {
            channel: [item for _, item in done.items if isinstance(item, Watermark)]
            for channel, done in complete.items()
        }
        begin = self._clock.seconds()
        aligned_s = begin - self._waits_since[step]
        sends = self._circuit.run_stage(
            stage, step, received, checkpoint=bool(barrier.checkpoint), watermarks=watermarks
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
        del self._waits_since[step]
        barrier = self._schedule.forget(step)
        self._shared.rows_out += self._circuit.take_rows_out()
        self._shared.operators = self._circuit.counters()
        for name, writer in self._circuit.sinks.items():
            if isinstance(writer, LogWriter):
                self._post(OutputMade(self.number, step, name, positions, *writer.take_step()))
        if barrier.checkpoint:
            self._checkpoint_taken(step)
            self._post(self._checkpoints.finish(step, barrier, positions | split_times))

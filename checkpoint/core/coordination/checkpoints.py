"""Checkpoints: requested, voted, appended, committed; and the end of input. A part of the coordinator. Pure.

Invariants kept here:

- AppendCheckpoint is emitted only when every worker's vote of this incarnation is in.
- At most one append is outstanding.
- Committed is sent only after CheckpointAppended.
"""

from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import AppendCheckpoint, CheckpointAppended, CheckpointWanted
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.dropped import end_text
from checkpoint.core.ending import Ending
from checkpoint.core.links.messages import (
    Committed,
    Finished,
    Progress,
    Refusal,
    RequestCheckpoint,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.manifest_checks import check_checkpoint
from checkpoint.core.region import RegionState
from checkpoint.core.region_events import CheckpointCommitted
from checkpoint.core.region_states import STARTED, CoordinatorPhase, WorkerEvent, WorkerState
from checkpoint.core.retention import floors_of, gaps_of, keep, retained_with, steps_kept_after
from checkpoint.core.voting import PendingCheckpoint
from checkpoint.errors import ManifestError, RegionFailedError


class Checkpointing:
    """The checkpoints of one region."""

    def __init__(self, state: CoordinatorState, ending: Ending) -> None:
        self._state = state
        self._ending = ending

    # --- when a checkpoint is requested ---------------------------------------------------------------

    @property
    def can_checkpoint(self) -> bool:
        """Whether a checkpoint can be requested now."""
        state = self._state
        may = not state.spec.without_checkpoints and not state.final_committed and state.restoring is None
        stops = state.phase is CoordinatorPhase.STOPPING and state.pause > 0
        return may and (state.phase is CoordinatorPhase.RUNNING or stops) and state.pending is None

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether a checkpoint follows as soon as one can be requested and there is something to commit."""
        return self._state.all_paused or self._state.checkpoint_overdue or self.operator_waits

    @property
    def operator_waits(self) -> bool:
        """Whether an operator waits for a checkpoint that is not committed yet."""
        state = self._state
        return any(worker.wants_checkpoint > state.last_step for worker in state.roster)

    def request_checkpoint(self, now: float, *, final: bool = False) -> None:
        """Request the next checkpoint from all workers, if one can be requested now.

        Numbers rise from the last committed one, so a checkpoint that failed leaves its number to the next.
        """
        if not self.can_checkpoint:
            return
        state = self._state
        number = state.last_number + 1
        state.pending = PendingCheckpoint(
            number, state.incarnation, len(state.roster), final, now, terms=dict(state.terms)
        )
        state.checkpoint_overdue = False
        if state.roster.all_in(*STARTED):  # otherwise one is being taken over: its start sets the timer
            state.timers.set("drain", now + state.spec.drain_timeout_s)
        self.set_checkpoint_time(now)
        state.send_all(
            RequestCheckpoint(
                job=state.spec.name,
                incarnation=state.incarnation,
                epoch=state.incarnation,
                checkpoint=number,
                final=final,
            )
        )

    def set_checkpoint_time(self, now: float) -> None:
        """Set the timer of the next periodic checkpoint, if the region has periodic ones."""
        spec = self._state.spec
        if spec.trigger == "periodic" and not spec.without_checkpoints:
            self._state.timers.set("checkpoint", now + spec.checkpoint_interval_s)

    def checkpoint_if_overdue(self, now: float) -> None:
        """Request a checkpoint if one is wanted, or is due and there is something to commit."""
        state = self._state
        if state.number_wanted > state.last_number or (self.checkpoint_is_due and state.has_new_steps):
            self.request_checkpoint(now)

    def checkpoint_timer_expired(self, now: float) -> None:
        """Handle the periodic timer. If no checkpoint can be requested now, one follows when it can."""
        self._state.checkpoint_overdue = True
        self.checkpoint_if_overdue(now)

    def on_checkpoint_wanted(self, event: CheckpointWanted, now: float) -> None:
        """Request a checkpoint. If that is impossible now, it follows when it can: after a reset, or after
        the one that is under way, which may lack rows that were read before the request.
        """
        del event
        self._state.number_wanted = self._state.next_number
        self.checkpoint_if_overdue(now)

    def on_wants_checkpoint(self, worker: Worker, message: WantsCheckpoint, now: float) -> Refusal | None:
        """Note that an operator waits for a checkpoint that contains a step.

        A checkpoint under way may not cover the operator's step; then the next one does.
        """
        if worker.state is not WorkerState.RUNNING:
            return Refusal("UNEXPECTED", f"worker {message.worker} requested a checkpoint before it runs")
        worker.wants_checkpoint = max(worker.wants_checkpoint, message.step)
        worker.step = max(worker.step, message.step)
        self.checkpoint_if_overdue(now)
        return None

    def on_progress(self, worker: Worker, message: Progress, now: float) -> Refusal | None:
        """Take a heartbeat with counters. One of an older incarnation proves only that the worker lives."""
        worker.counters = message.counters
        if message.incarnation == self._state.incarnation and worker.state is WorkerState.RUNNING:
            worker.step = max(worker.step, message.counters.step)
            worker.meter.note(message.counters.step, message.counters.busy_s)
            worker.exhausted = message.counters.exhausted
            self.final_checkpoint_if_exhausted(now)
            self.checkpoint_if_overdue(now)
        return None

    # --- votes ----------------------------------------------------------------------------------------

    def on_vote(self, worker: Worker, vote: Vote, now: float) -> Refusal | None:
        """Count a vote. With the last one, append the checkpoint to the manifest."""
        state, pending = self._state, self._state.pending
        votes = WorkerState.RESTORED if state.phase is CoordinatorPhase.RESTORING else WorkerState.RUNNING
        if pending is None or pending.appended or worker.state is not votes:
            return Refusal(
                "STALE_CHECKPOINT", f"vote for checkpoint {vote.checkpoint}, but none is requested"
            )
        if votes is WorkerState.RESTORED:
            worker.last_step = vote.step  # steps that are recorded above it had another layout
        worker.step = max(worker.step, vote.produced)
        worker.note_operators(vote.operators)
        refusal = pending.vote(vote, now)
        if refusal is not None or pending.missing():
            return refusal
        disagreement = pending.disagreement()
        if disagreement:
            self._fail(RegionFailedError(disagreement, remedy="please report this"), now)
            return None
        savepoints = state.savepoints
        retained = retained_with(state.kept, pending.number, state.spec.retain, set(savepoints.values()))
        checkpoint = pending.build(
            state.last_checkpoint,
            state.layout,
            state.spec.graph_fingerprint,
            state.spec.operators,
            retained,
            savepoints,
            state.declared,
            state.notes,
            state.spec.irrevocable,
        )
        try:
            check_checkpoint(checkpoint, before=state.last_checkpoint)
        except ManifestError as error:
            self._fail(error, now)
            return None
        pending.appended = True  # no vote counts after this, so at most one append is outstanding
        state.appending = checkpoint
        state.emit(AppendCheckpoint(checkpoint))
        return None

    def _fail(self, error: RegionFailedError | ManifestError, now: float) -> None:
        """Fail the region: such votes are a bug of a worker, and a reset would repeat it."""
        self._ending.decide(RegionState.FAILED, str(error), now, kind="failed", error=error)

    # --- the commit -----------------------------------------------------------------------------------

    def on_checkpoint_appended(self, event: CheckpointAppended, now: float) -> None:
        """Commit the checkpoint and send Committed to all workers.

        An acknowledgement of another incarnation's append is ignored: it proves nothing about this one's.
        """
        state, pending = self._state, self._state.pending
        if pending is None or not pending.appended or event.checkpoint.incarnation != state.incarnation:
            return
        assert event.checkpoint.number == pending.number, "one append at a time"
        state.timers.clear("drain")
        state.pending, state.appending, state.last_checkpoint = None, None, event.checkpoint
        for worker in state.roster:
            worker.step = max(worker.step, event.checkpoint.step)
        state.kept = keep(state.kept, event.checkpoint)
        self.note_commit(pending, now)
        # Only now: sinks publish on Committed, and the quorum keeps the record if this driver is lost.
        for worker, link in state.roster.linked():
            if worker.state is WorkerState.JOINED:
                continue  # it is being taken over, and begins at this checkpoint
            state.send(
                link,
                Committed(
                    job=state.spec.name,
                    incarnation=state.incarnation,
                    epoch=state.incarnation,
                    checkpoint=event.checkpoint.number,
                    step=event.checkpoint.step,
                    final=pending.final,
                    floors=floors_of(state.kept, worker.index),
                    gaps=gaps_of(state.kept, worker.index),
                    steps_kept_after=steps_kept_after(state.kept),
                ),
            )
        state.final_committed = pending.final
        self.final_checkpoint_if_exhausted(now)
        self.checkpoint_if_overdue(now)

    def note_commit(self, pending: PendingCheckpoint, now: float) -> None:
        """Count the commit, forgive the failures before it, and report it to observers."""
        state = self._state
        state.checkpoints_committed += 1
        state.attempts = 0
        state.roster.forgive()
        state.placement.forgive()
        checkpoint = state.last_checkpoint
        assert checkpoint is not None
        seconds = now - pending.requested_at
        prepared = pending.phases_s()
        phases = {**prepared, "commit": max(seconds - sum(prepared.values()), 0.0)}
        by_worker = {worker: vote.phases_s for worker, vote in sorted(pending.votes.items())}
        votes_s = {worker: pending.voted_at[worker] - pending.requested_at for worker in by_worker}
        state.report(
            CheckpointCommitted(
                checkpoint.number, checkpoint.step, pending.final, seconds, phases, by_worker, votes_s
            )
        )

    # --- the end of input -----------------------------------------------------------------------------

    def final_checkpoint_if_exhausted(self, now: float) -> None:
        """Request the final checkpoint if all sources of all workers are at their end."""
        state = self._state
        if not all(worker.state is WorkerState.RUNNING and worker.exhausted for worker in state.roster):
            return
        if state.spec.without_checkpoints:
            self._ending.decide(RegionState.FINISHED, end_text(state.dropped), now, kind="finished")
        elif self.can_checkpoint and state.phase is CoordinatorPhase.RUNNING:
            self.request_checkpoint(now, final=True)

    def on_finished(self, worker: Worker, message: Finished, now: float) -> Refusal | None:
        """Note that a worker has published the final checkpoint. When all have, the region is finished."""
        if not self._state.final_committed or worker.state is not WorkerState.RUNNING:
            return Refusal(
                "UNEXPECTED", f"worker {message.worker} finished before the final checkpoint was committed"
            )
        worker.note_operators(message.operators)
        worker.move(WorkerEvent.FINISH)
        self.finish_if_all_have(now)
        return None

    def finish_if_all_have(self, now: float) -> None:
        state = self._state
        if state.final_committed and state.roster.all_in(WorkerState.FINISHED, WorkerState.DONE):
            self._ending.decide(RegionState.FINISHED, end_text(state.dropped), now, kind="finished")

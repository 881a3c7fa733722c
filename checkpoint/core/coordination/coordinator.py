"""The coordinator of a region: when a checkpoint is requested, when it commits, what follows a failure.

Pure: `handle(event, now) -> effects`. `now` is a monotonic clock in seconds. The coordinator knows no
sockets, threads, journals or launchers: its shell (`checkpoint/coordinator/shell.py`) performs the effects in
order and reports the results as events.

The order that keeps checkpoints safe (decision 0003, R8-R13):

1. OpenManifest. Nothing is ordered until ManifestOpened reports that the start of the new segment is on the
   quorum. The segment's epoch is the incarnation. The last checkpoint in the manifest is the one to restore,
   even if its commit was never seen here.
2. Restore to all workers once all have joined. Each worker claims its directory with the incarnation as
   epoch.
3. Start to all workers once all have restored the checkpoint.
4. RequestCheckpoint. Only votes of this incarnation count. When all are in and agree: AppendCheckpoint.
   Nothing else is
   appended before CheckpointAppended. That acknowledgement is the commit: Committed is sent only after it.
5. Any loss leads back to 1 with a higher epoch, unless the region has local recovery (`take_overs.py`). A
   checkpoint in doubt is found in the manifest, or can never be there.

A *round* leads from one RUNNING phase to the next. Several workers lost at one time are one round and spend
one reset attempt; a worker that is lost in the round that launched it begins another. A committed checkpoint
forgives all attempts. Launching a worker needs no incarnation, because it only joins, so it does not wait for
1; cancelling a suspect does.

The parts share one `CoordinatorState`. A part calls only parts above it in this table:

| part | module | responsibility |
|---|---|---|
| StatusReporter | status_reports.py | the status that users see |
| Ending | ending.py | the outcome, the end of the workers |
| Checkpointing | checkpointing.py | checkpoints: request, votes, append, commit; the end of input |
| Pausing | pausing.py | all workers stop at one step |
| Savepoints | savepoints.py | savepoints |
| Recovery | recovery.py | rounds and reset attempts |
| Rewinding | rewinding.py | the region goes back to an older checkpoint |
| TakeOvers | take_overs.py | local recovery: a lost worker is replaced while the others run |
| Gathering | gathering.py | workers are launched, join, are ordered and start |
| FallingBack | falling_back.py | the last checkpoint is damaged |
| Losses | losses.py | workers fail, fall silent or take too long |
| Rescaling | rescaling.py | the layout of an incarnation, its number of workers, other processes of them |
| Autoscaling | autoscaling.py | the number of workers follows the load |
| ManifestClaim | manifest_claim.py | the manifest is opened, superseded or lost |
| Stopping | stopping.py | the request to stop |
"""

from collections.abc import Callable
from typing import Any, Final

from checkpoint import limits
from checkpoint.core.autoscaling import Autoscaling
from checkpoint.core.coordination import vocabulary as v
from checkpoint.core.coordination.changes import Rescaling
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.losses import Losses
from checkpoint.core.coordination.rounds import TakeOvers
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.ending import Ending
from checkpoint.core.falling_back import FallingBack
from checkpoint.core.gathering import Gathering
from checkpoint.core.links import messages as m
from checkpoint.core.manifest_claim import ManifestClaim
from checkpoint.core.pausing import Pausing
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import RegionSpec, RegionStatus
from checkpoint.core.region_states import CoordinatorPhase
from checkpoint.core.rewinding import Rewinding
from checkpoint.core.savepoints import Savepoints
from checkpoint.core.status_reports import StatusReporter
from checkpoint.core.stopping import Stopping

PATIENCE: Final = ("gather", "restore", "drain", "scale", "take over")
"""Timers that wait for others: they do not advance while the store has no quorum."""


class Coordinator:
    """The state machine of one run of a region.

    Call `handle` for every event, perform the effects in order, and call it with Tick at `deadline`. Nothing
    follows the effect End.
    """

    _last_tick = 0.0

    def __init__(self, spec: RegionSpec, state: CoordinatorState | None = None) -> None:
        self.state = state = state or CoordinatorState(spec)
        self._reporter = reporter = StatusReporter(state)
        ending = Ending(state, reporter)
        self._checkpointing = checkpointing = Checkpointing(state, ending)
        self._pausing = pausing = Pausing(state, checkpointing)
        self._savepoints = savepoints = Savepoints(state, checkpointing)
        self._recovery = recovery = Recovery(state, ending)
        self._rewinding = rewinding = Rewinding(state, recovery)
        self._take_overs = take_overs = TakeOvers(state, ending, recovery)
        self._gathering = gathering = Gathering(state, ending, checkpointing, pausing, recovery, take_overs)
        falling_back = FallingBack(state, ending, rewinding, gathering)
        self._losses = losses = Losses(state, ending, checkpointing, recovery, take_overs)
        self._rescaling = rescaling = Rescaling(state, ending, checkpointing, pausing, recovery)
        self._autoscaling = autoscaling = Autoscaling(state, reporter, rescaling)
        self._manifest = manifest = ManifestClaim(
            state, ending, checkpointing, savepoints, rewinding, recovery, falling_back, rescaling
        )
        self._stopping = stopping = Stopping(state, ending, pausing)
        self._on_event: Final[dict[type[Any], Callable[[Any, float], None]]] = {
            v.Begin: self._on_begin,
            v.ManifestOpened: manifest.on_manifest_opened,
            v.ManifestSuperseded: manifest.on_manifest_superseded,
            v.ManifestTaken: manifest.on_manifest_taken,
            v.ManifestLost: manifest.on_manifest_lost,
            v.ManifestUnreadable: manifest.on_manifest_unreadable,
            v.StoreWaiting: manifest.on_store_waiting,
            **falling_back.on_event,
            v.CheckpointAppended: self._on_checkpoint_appended,
            v.ControlReceived: self._on_received,
            v.LinkDown: losses.on_link_down,
            v.WorkerHosted: take_overs.on_hosted,
            v.WorkerEnded: losses.on_worker_ended,
            v.CoordinatorTick: self._on_tick,
            v.CheckpointWanted: checkpointing.on_checkpoint_wanted,
            v.ResetWanted: self._on_reset_wanted,
            v.PauseWanted: pausing.on_pause_wanted,
            v.SavepointWanted: savepoints.on_savepoint_wanted,
            v.RestoreWanted: rewinding.on_restore_wanted,
            v.ScaleWanted: rescaling.on_scale_wanted,
            v.ReplaceWanted: rescaling.on_replace_wanted,
            v.StopWanted: stopping.on_stop_wanted,
        }
        self._on_message: Final[dict[type[Any], Callable[[Worker, Any, float], m.Refusal | None]]] = {
            m.Progress: checkpointing.on_progress,
            m.Failed: losses.on_failed,
            m.Suspects: losses.on_suspects,
            m.Restored: gathering.on_restored,
            m.Vote: checkpointing.on_vote,
            m.WantsCheckpoint: checkpointing.on_wants_checkpoint,
            m.Paused: pausing.on_paused,
            m.CopiedAhead: rescaling.on_copied,
            m.Finished: checkpointing.on_finished,
        }
        self._on_timer: Final[dict[str, Callable[[float], None]]] = {
            "beat": losses.beat,
            "open": manifest.open_again,
            "gather": gathering.timed_out,
            "restore": losses.restore_timed_out,
            "take over": take_overs.timed_out,
            "drain": losses.drain_timed_out,
            "checkpoint": checkpointing.checkpoint_timer_expired,
            "scale": rescaling.timed_out,
            "leave": ending.leave_expired,
            "autoscale": autoscaling.timer_expired,
            "stop": stopping.timed_out,
            "grace": ending.grace_expired,
            "last words": losses.last_words_expired,
        }

    def handle(self, event: v.Event, now: float) -> list[v.Effect]:
        """Take one event and return what to do about it, in order. After End the list is always empty."""
        state = self.state
        if state.phase is CoordinatorPhase.ENDED:
            return []
        self._on_event[type(event)](event, now)
        self._reporter.note_waiting(now)
        self._rescaling.advance(now)
        self._take_overs.advance(now)
        self._stopping.advance(now)
        if not state.over:
            self._gathering.launch_due(now)
        self._reporter.report_change()
        return state.take_effects()

    def deadline(self) -> float | None:
        """Return when the next Tick is due, None if nothing happens by time alone."""
        launches = [one.launch_at for one in self.state.roster.ever() if one.launch_at is not None]
        due = self.state.timers.next()
        return min([*launches, *([] if due is None else [due])], default=None)

    @property
    def next_number(self) -> int:
        """See `CoordinatorState.next_number`."""
        return self.state.next_number

    def status(self) -> RegionStatus:
        """Return a snapshot of what users see."""
        return self._reporter.status()

    # --- events that concern several parts ------------------------------------------------------------

    def _on_begin(self, event: v.Begin, now: float) -> None:
        self._last_tick = now
        if self._manifest.may_begin(event.seen, now):
            self._recovery.start(now)
            self._autoscaling.start(now)

    def _on_checkpoint_appended(self, event: v.CheckpointAppended, now: float) -> None:
        if self._rewinding.on_checkpoint_appended(event, now):
            return
        layout_changed = self.state.layout_changes
        self._checkpointing.on_checkpoint_appended(event, now)
        if layout_changed and not self.state.layout_changes:
            self._rescaling.committed(now)
            self._gathering.start_all(now)
        # Before settle_or_request: that may request another checkpoint, and a region with a pending one does
        # not become PAUSED.
        self._pausing.note_paused()
        self._rewinding.append_if_free()
        self._savepoints.settle_or_request(now)
        self._take_overs.reinstate(now)

    def _on_reset_wanted(self, event: v.ResetWanted, now: float) -> None:
        """Reset by hand. In any other phase the region is already on its way to its last checkpoint."""
        del event
        if self.state.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            self._recovery.reset("a reset was requested", now, spend=False)

    # --- messages -------------------------------------------------------------------------------------

    def _on_received(self, event: v.ControlReceived, now: float) -> None:
        refusal = self._take_message(event, now)
        if refusal is not None:
            self.state.emit(v.MessageRefused(event.link, refusal))

    def _take_message(self, event: v.ControlReceived, now: float) -> m.Refusal | None:
        """Check the sender and the incarnation, then handle the message; return why it was refused."""
        state, message, link = self.state, event.message, event.link
        job, incarnation = state.spec.name, state.incarnation
        if message.job != job:
            return m.check_address(message, job=job, incarnation=incarnation)
        if isinstance(message, m.Join):
            return self._gathering.on_join(link, message, now)
        if isinstance(message, m.CompanionReport):
            self._losses.on_companion(message, now)
            return None
        worker = state.roster.by_link(link)
        if worker is None or worker.index != message.worker:
            return m.Refusal(
                "UNKNOWN_WORKER",
                f"{type(message).__name__} of worker {message.worker} on another worker's link",
            )
        worker.received_at = now  # any message on a worker's own link proves that it lives
        if state.over:
            return None
        stale = m.check_address(message, job=job, incarnation=incarnation)
        if stale is not None and not _counts_when_stale(message):
            return stale
        return self._on_message[type(message)](worker, message, now)

    # --- time -----------------------------------------------------------------------------------------

    def _on_tick(self, event: v.CoordinatorTick, now: float) -> None:
        """Handle the expired timers. Time in which this process itself was late counts against no worker."""
        state = self.state
        late = max(now - event.due, 0.0)
        if late > limits.tick_late_s:
            state.roster.shift(late)
        elapsed, self._last_tick = now - self._last_tick, now
        if self._reporter.waiting_for:
            state.timers.shift(elapsed, PATIENCE)
        elif late > limits.tick_late_s:
            state.timers.shift(late, PATIENCE)
        for name in state.timers.expired(now):
            if state.phase is not CoordinatorPhase.ENDED:
                self._on_timer[name](now)


def _counts_when_stale(message: m.ToCoordinator) -> bool:
    """Return whether a message of an older incarnation counts: a heartbeat, the failure of an attempt, or
    what a worker that has only joined has copied.
    """
    if isinstance(message, m.Failed):
        return message.kind == "internal"
    return isinstance(message, m.Progress | m.CopiedAhead)

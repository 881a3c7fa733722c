"""The coordinator of a region: when a checkpoint is requested, when it commits, what follows a failure.

Pure: `handle(event, now) -> effects`, with a monotonic clock in seconds. Its shell
(`checkpoint/coordinator/shell.py`) performs the effects in order. The order that keeps checkpoints safe
(decision 0003, R8-R13):

1. OpenManifest. Nothing is ordered until ManifestOpened: the start of the new segment is on the quorum. Its
   epoch is the incarnation; its last checkpoint is the one to restore.
2. Restore to all workers once all have joined; each claims its directory in the incarnation.
3. Start to all workers once all have restored.
4. RequestCheckpoint. When all votes of this incarnation are in and agree: AppendCheckpoint. Its
   acknowledgement is the commit; only then is Committed sent.
5. Any loss leads back to 1 with a higher epoch, unless the region has local recovery (`TakeOvers`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from checkpoint import limits
from checkpoint.core.coordination import vocabulary as v
from checkpoint.core.coordination.autoscaling import Autoscaling
from checkpoint.core.coordination.batches import Batches
from checkpoint.core.coordination.changes import Changes, Scaling
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.handing_over import Heir
from checkpoint.core.coordination.losses import FallingBack, Losses
from checkpoint.core.coordination.recovery_estimate import estimate
from checkpoint.core.coordination.rounds import Gathering, Recovery, TakeOvers
from checkpoint.core.coordination.run import CoordinatorPhase, PhaseEvent, RegionRun
from checkpoint.core.coordination.warm_standbys import WarmStandbys
from checkpoint.core.coordination.workers import LINKED, Worker, WorkerState
from checkpoint.core.links import messages as m
from checkpoint.core.region import (
    RecoveryEstimate,
    RegionSpec,
    RegionState,
    RegionStatus,
    ScalingPhase,
    ScalingStatus,
    StateChanged,
    UnderWayStatus,
    when_handed_over,
)
from checkpoint.errors import GraphChangeRefusedError, ManifestError, RegionFencedError

PATIENCE: Final = ("gather", "restore", "drain", "scale", "take over")
"""Timers that wait for others: they do not advance while the store has no quorum."""

VISIBLE_STATES: Final[dict[CoordinatorPhase, RegionState]] = {
    CoordinatorPhase.NEW: RegionState.STARTING,
    CoordinatorPhase.OPENING: RegionState.STARTING,
    CoordinatorPhase.GATHERING: RegionState.WAITING_FOR_WORKERS,
    CoordinatorPhase.RESTORING: RegionState.RESTORING,
    CoordinatorPhase.RUNNING: RegionState.RUNNING,
    CoordinatorPhase.STOPPING: RegionState.STOPPING,
    CoordinatorPhase.ENDING: RegionState.STOPPING,
}
"""The state that users see in each phase, with these exceptions (`StatusReporter`):

- OPENING after the first incarnation: RESTORING.
- Any phase from OPENING to RUNNING while the store has no quorum: WAITING_FOR_STORE.
- RUNNING while no worker takes input: PAUSED.
- ENDED: the outcome.
"""


class ManifestClaim:
    """The coordinator's claim of the manifest, as far as it is known."""

    def __init__(
        self,
        run: RegionRun,
        checkpoints: Checkpoints,
        rounds: Recovery,
        changes: Changes,
        falling_back: FallingBack,
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._changes = changes
        self._falling_back = falling_back
        self._superseded = 0
        """Attempts to open the manifest that were superseded in a row."""

    def may_begin(self, event: v.Begin, now: float) -> bool:
        """Return whether this region can continue from the checkpoint read before the claim; if not, it
        fails.
        """
        try:
            self._run.compare_with(event.seen, unread=event.unread)
        except (ManifestError, GraphChangeRefusedError) as error:
            self._run.fail(error, now)
            return False
        if event.seen is not None:
            self._changes.expect_workers(when_handed_over(self._run.spec, event.seen))
        return True

    def on_manifest_opened(self, event: v.ManifestOpened, now: float) -> None:
        """Begin the incarnation: from now on, and not before, the coordinator may send orders in it."""
        run = self._run
        if run.phase is not CoordinatorPhase.OPENING:
            # A late claim must not revive a region whose end was reported: its handle has returned already.
            return  # the outcome was decided meanwhile; the shell closes the manifest that it opened
        # An epoch that some worker has claimed already would fence nothing: its old process could vote on.
        assert event.incarnation > max(run.incarnation, self._rounds.epoch_floor), "epochs only rise"
        run.move(PhaseEvent.OPENED)
        self._rounds.manifest_opened(now)
        run.timers.clear("open")
        self._superseded = 0
        run.opened(event.incarnation, event.last_checkpoint, event.kept)
        if self._checkpoints.settle_doubt(now):
            self._rounds.forgive()
        self._changes.choose_layout(now)
        self._checkpoints.settle_after_opening()
        # Not earlier: only now that the manifest is held above it can the old attempt commit nothing more.
        for worker in run.roster:
            if worker.state is WorkerState.LOST:
                self._rounds.relaunch(worker, now)
        self._falling_back.examine_or_order(now)

    def on_manifest_superseded(self, event: v.ManifestSuperseded, now: float) -> None:
        """Try again after a random delay whose bound doubles: two coordinators start at one time (R17)."""
        run = self._run
        if run.phase is not CoordinatorPhase.OPENING:
            return
        run.move(PhaseEvent.SUPERSEDED)
        self._superseded += 1
        # Several times what an attempt takes on this network: with a smaller bound, attempts over slow paths
        # would always overlap, and none would succeed.
        attempt_s = min(event.attempt_s, limits.claim_patience_s)
        longest = min(
            (limits.manifest_backoff_s + attempt_s) * 2.0**self._superseded,
            limits.manifest_backoff_max_s + limits.manifest_backoff_attempts_max * attempt_s,
        )
        run.timers.set("open", now + event.rng * longest)

    def open_again(self, now: float) -> None:
        del now
        if self._run.phase is CoordinatorPhase.OPENING:
            self._rounds.open_manifest()

    def on_manifest_taken(self, event: v.ManifestTaken, now: float) -> None:
        """End FENCED: a newer driver runs this region and may have committed checkpoints unknown here."""
        reason = f"a newer driver took over region {self._run.spec.name!r} with epoch {event.epoch_held}"
        error = RegionFencedError(reason, epoch_held=event.epoch_held)
        self._run.decide(RegionState.FENCED, reason, now, kind="fenced", error=error)

    def on_manifest_lost(self, event: v.ManifestLost, now: float) -> None:
        """Open the manifest again: a newer driver may hold it, or have died after it claimed it (R18)."""
        run = self._run
        if event.incarnation != run.incarnation:
            return
        if run.phase is CoordinatorPhase.STOPPING:
            text = "stopped without a last checkpoint: the manifest claim was lost"
            self._run.decide(RegionState.STOPPED, text, now, kind="stopped")
        elif run.phase in (
            CoordinatorPhase.GATHERING,
            CoordinatorPhase.RESTORING,
            CoordinatorPhase.RUNNING,
        ):
            text = f"the manifest was claimed with epoch {event.epoch_held}"
            self._rounds.reset(text, now)
            if run.lent:
                self._rounds.end_processes(text)

    def on_manifest_unreadable(self, event: v.ManifestUnreadable, now: float) -> None:
        """End FAILED: waiting does not cure this, or `RegionRun.decide_claimed` refuses what is there."""
        if isinstance(event.error, RegionFencedError):
            self._run.decide(RegionState.FENCED, str(event.error), now, kind="fenced", error=event.error)
        else:
            self._run.fail(event.error, now)


class StatusReporter:
    """The visible state of one region, with the time since which it waits for the store."""

    def __init__(
        self,
        run: RegionRun,
        checkpoints: Checkpoints,
        rounds: Recovery,
        changes: Changes,
        autoscaling: Autoscaling,
        batches: Batches,
        standbys: WarmStandbys,
    ) -> None:
        self._run = run
        self._standbys = standbys
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._changes = changes
        self._autoscaling = autoscaling
        self._batches = batches
        self._store_waiting = ""
        """What the manifest waits for at the store, empty if it does not wait."""
        self._now = 0.0
        """The time of the last event."""
        self._waiting_since: float | None = None
        self._reported = (RegionState.STARTING, "")

    def on_store_waiting(self, event: v.StoreWaiting, now: float) -> None:
        del now
        self._store_waiting = event.waiting

    @property
    def waiting_for(self) -> str:
        """The reason why the region waits for the store; empty if it does not wait."""
        if self._run.phase in (
            CoordinatorPhase.NEW,
            CoordinatorPhase.STOPPING,
            CoordinatorPhase.ENDING,
            CoordinatorPhase.ENDED,
        ):
            return ""
        waiting = list(self._waiting_workers())
        if self._store_waiting or not waiting:
            return self._store_waiting
        reason = next((one.counters.waiting_reason for one in waiting if one.counters.waiting_reason), "")
        who = ", ".join(str(worker.index) for worker in waiting)
        return f"worker {who} waits for a quorum of the store" + (f": {reason}" if reason else "")

    def note_waiting(self, now: float) -> None:
        """Keep the time since which the region waits for the store. Call after each event."""
        self._now = now
        if not self.waiting_for:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now

    def _waiting_workers(self) -> Iterator[Worker]:
        return (one for one in self._run.roster if one.state in LINKED and one.counters.waiting_for_store)

    @property
    def visible_state(self) -> RegionState:
        """The state that users see."""
        run = self._run
        if run.ended and run.outcome is not None:
            return run.outcome.state
        if self.waiting_for:
            return RegionState.WAITING_FOR_STORE
        if run.phase is CoordinatorPhase.OPENING and run.incarnation:
            return RegionState.RESTORING
        return (
            RegionState.PAUSED
            if self._checkpoints.is_paused and run.phase is CoordinatorPhase.RUNNING
            else VISIBLE_STATES[run.phase]
        )

    def status(self) -> RegionStatus:
        """Return a snapshot."""
        run = self._run
        return RegionStatus(
            state=self.visible_state,
            reason=self.waiting_for or "; ".join(filter(None, (run.reason, self._long_call()))),
            incarnation=run.incarnation,
            last_checkpoint=run.last_number,
            last_checkpoint_step=run.last_step,
            checkpoints_committed=self._checkpoints.count,
            reset_attempts=self._rounds.attempts,
            workers=tuple(worker.status(self._standbys.loaded(worker.index)) for worker in run.roster),
            resets=tuple(self._rounds.resets),
            store_waiting=self.waiting_for,
            waiting_s=0.0 if self._waiting_since is None else self._now - self._waiting_since,
            waiting_bytes=sum(worker.counters.lag_bytes for worker in self._waiting_workers()),
            savepoints=self._checkpoints.held_savepoints,
            dropped=run.dropped,
            recovery=self._recovery(),
            scaling=self._scaling(),
            under_way=self._under_way(),
            autoscale=self._autoscaling.status,
            query=self._batches.status,
            fell_back=self._checkpoints.fell_back,
            metrics=run.spec.metrics,
        )

    def _long_call(self) -> str:
        """Return which operator has run or waited for longest, empty if none is worth a line."""
        linked = (one for one in self._run.roster if one.state in LINKED)
        longest = max(linked, key=lambda one: (bool(one.waits), one.running[1]), default=None)
        if longest is None:
            return ""
        name, seconds = longest.running
        if longest.waits:
            return f"worker {longest.index}: operator {name!r} waits for {longest.waits}"
        if seconds < limits.long_call_s:
            return ""
        return f"worker {longest.index}: operator {name!r} has been in user code for {seconds:.0f} s"

    def _scaling(self) -> ScalingStatus | None:
        change = self._changes.change
        if change is None:
            return None
        recovery = self._recovery()
        return ScalingStatus(
            change.workers,
            _phase_of(change),
            self._now - change.began,
            sum(report.copied_bytes for report in change.copied.values()),
            sum(report.total_bytes for report in change.copied.values()),
            None if recovery is None else recovery.claim_s + recovery.state_s,
            change.replaces,
            None if change.hands_to is None else change.hands_to.asked_by,
        )

    def _under_way(self) -> UnderWayStatus | None:
        pending, roster = self._checkpoints.pending, self._run.roster
        if pending is None:
            return None
        newest = max((worker.status().step for worker in roster), default=0)
        late = {index: _why_no_vote(roster[index], newest) for index in pending.missing()}
        return UnderWayStatus(pending.number, self._now - pending.requested_at, late)

    def _recovery(self) -> RecoveryEstimate | None:
        """Return how long a recovery would take now; None if the region is over or was never started."""
        run = self._run
        if run.over:
            return None
        step = max((worker.step for worker in run.roster), default=0)
        loaded = all(self._standbys.loaded(worker.index) is not None for worker in run.roster)
        meters = (one.meter for one in run.roster)
        return estimate(self._rounds.history.inputs(run.last_checkpoint, step, meters, loaded=loaded))

    def report_change(self) -> None:
        """Report the state and its reason to observers if either differs from the last report."""
        current = (self.visible_state, self.waiting_for or self._run.reason)
        if current != self._reported:
            self._reported = current
            self._run.report(StateChanged(*current))


def _why_no_vote(worker: Worker, newest: int) -> str:
    """Return why a worker has not voted, by what it reported last. newest: the last step that any ended."""
    counters = worker.counters
    if worker.state not in LINKED:
        return f"it is {worker.state.name}"
    if counters.waiting_for_store:
        reason = f": {counters.waiting_reason}" if counters.waiting_reason else ""
        return f"it waits for a quorum of the store{reason}"
    at = f"after step {worker.status().step} of {newest}"
    operator, seconds = worker.running
    if operator:
        long = f", for {seconds:.0f} s" if seconds >= limits.long_call_s else ""
        waits = f", which waits for {worker.waits}" if worker.waits else ""
        return f"it runs operator {operator!r}{long}{waits}, {at}"
    if counters.lag_bytes:
        return f"{counters.lag_bytes} bytes of it are not synced, {at}"
    return f"it waits for rows of other workers, {at}"


def _phase_of(change: Scaling) -> ScalingPhase:
    if change.lent:
        return "handing over"
    if change.switches:
        return "moving state"
    if change.holds:
        return "pausing"
    return "copying state" if change.copied else "launching workers"


class Coordinator:
    """The state machine of one run of a region. The parts in `__init__` own their fields, and call only parts
    above them.

    Call `handle` for every event, perform the effects in order, and call it with Tick at `deadline`. Nothing
    follows the effect End. A *round* leads from one RUNNING phase to the next: workers lost at one time are
    one round and spend one reset attempt; a committed checkpoint forgives all attempts.
    """

    _last_tick = 0.0

    def __init__(self, spec: RegionSpec, run: RegionRun | None = None) -> None:
        self.run = run = run or RegionRun(spec)
        self.checkpoints = checkpoints = Checkpoints(run)
        self._standbys = standbys = WarmStandbys(run)
        self.rounds = rounds = Recovery(run, checkpoints, standbys)
        self._take_overs = take_overs = TakeOvers(run, checkpoints, rounds, standbys)
        self._gathering = gathering = Gathering(run, checkpoints, rounds, take_overs, standbys)
        self.changes = changes = Changes(run, checkpoints, rounds)
        self._heir = Heir(run, rounds, changes)
        self._batches = batches = Batches(run, checkpoints)
        self._autoscaling = scaling = Autoscaling(run, checkpoints, changes)
        falling_back = FallingBack(run, checkpoints, gathering)
        self._losses = losses = Losses(run, checkpoints, rounds, take_overs, falling_back)
        self._manifest = manifest = ManifestClaim(run, checkpoints, rounds, changes, falling_back)
        self._reporter = StatusReporter(run, checkpoints, rounds, changes, scaling, batches, standbys)
        self._on_event: Final[dict[type[Any], Callable[[Any, float], None]]] = {
            v.Begin: self._on_begin,
            v.ManifestOpened: manifest.on_manifest_opened,
            v.ManifestSuperseded: manifest.on_manifest_superseded,
            v.ManifestTaken: manifest.on_manifest_taken,
            v.ManifestLost: manifest.on_manifest_lost,
            v.ManifestUnreadable: manifest.on_manifest_unreadable,
            v.StoreWaiting: self._reporter.on_store_waiting,
            v.ExaminationWaits: falling_back.on_waits,
            v.CheckpointsExamined: falling_back.on_examined,
            v.CheckpointAppended: self._on_checkpoint_appended,
            v.ControlReceived: self._on_received,
            v.LinkDown: self._on_link_down,
            v.WorkerHosted: take_overs.on_hosted,
            v.WorkerEnded: losses.on_worker_ended,
            v.BatchesWaitInVain: self._on_batches_wait_in_vain,
            v.CoordinatorTick: self._on_tick,
            v.CheckpointWanted: checkpoints.on_checkpoint_wanted,
            v.ResetWanted: self._on_reset_wanted,
            v.PauseWanted: changes.on_pause_wanted,
            v.SavepointWanted: checkpoints.on_savepoint_wanted,
            v.RestoreWanted: checkpoints.on_restore_wanted,
            v.ScaleWanted: changes.on_scale_wanted,
            v.ReplaceWanted: changes.on_replace_wanted,
            v.HandOverWanted: changes.on_hand_over_wanted,
            v.HandOverAnswered: self._heir.on_hand_over_answered,
            v.LastCheckpointRead: self._heir.on_last_read,
            v.StopWanted: self._on_stop_wanted,
        }
        self._on_message: Final[dict[type[Any], Callable[[Worker, Any, float], m.Refusal | None]]] = {
            m.Progress: checkpoints.on_progress,
            m.Failed: losses.on_failed,
            m.Suspects: losses.on_suspects,
            m.Restored: gathering.on_restored,
            m.Vote: checkpoints.on_vote,
            m.WantsCheckpoint: self._on_wants_checkpoint,
            m.Paused: checkpoints.on_paused,
            m.CopiedAhead: self._on_copied,
            m.Finished: checkpoints.on_finished,
        }
        self._on_timer: Final[dict[str, Callable[[float], None]]] = {
            "beat": losses.beat,
            "open": manifest.open_again,
            "gather": self._gather_timed_out,
            "restore": losses.restore_timed_out,
            "take over": take_overs.timed_out,
            "drain": losses.drain_timed_out,
            "checkpoint": checkpoints.checkpoint_timer_expired,
            "scale": changes.timed_out,
            "leave": run.leave_expired,
            "autoscale": self._autoscale,
            "stop": self._stop_timed_out,
            "grace": run.grace_expired,
            "last words": losses.last_words_expired,
        }

    def handle(self, event: v.Event, now: float) -> list[v.Effect]:
        """Take one event and return what to do about it, in order. After End the list is always empty."""
        if self.run.ended:
            return []
        run = self.run
        self._on_event[type(event)](event, now)
        self._reporter.note_waiting(now)
        self.changes.advance(now)
        self._heir.advance(now)
        self._standbys.advance(now)
        self._gathering.order_if_gathered(now)
        self._take_overs.advance(now)
        self._stop_if_covered(now)
        self._batches.advance(now)
        if not run.over:
            self._gathering.launch_due(now)
        self._reporter.report_change()
        if run.ended and run.outcome is not None:
            run.emit(run.outcome)  # last: no effect follows it
        return run.take_effects()

    def deadline(self) -> float | None:
        """Return when the next Tick is due, None if nothing happens by time alone."""
        launches = [one.launch_at for one in self.run.roster.ever() if one.launch_at is not None]
        due = self.run.timers.next()
        return min([*launches, *([] if due is None else [due])], default=None)

    @property
    def next_number(self) -> int:
        """See `Checkpoints.next_number`."""
        return self.checkpoints.next_number

    def status(self) -> RegionStatus:
        """Return a snapshot of what users see."""
        return self._reporter.status()

    # --- events that concern several parts ------------------------------------------------------------

    def _on_begin(self, event: v.Begin, now: float) -> None:
        self._last_tick = now
        if self._manifest.may_begin(event, now):
            self.rounds.start(now)
            self._autoscaling.start(now)

    def _on_checkpoint_appended(self, event: v.CheckpointAppended, now: float) -> None:
        checkpoints, record = self.checkpoints, event.checkpoint
        if checkpoints.is_restore(record):
            if checkpoints.on_restore_appended(record):
                text = f"it was restored to checkpoint {record.rolled_back_to}"
                self.rounds.reset(text, now, spend=False)
            return
        # While it runs, a region that was lent states in the same way that it shows steps again.
        layout_changed = self.run.layout_changes and self.run.phase is CoordinatorPhase.RESTORING
        if checkpoints.on_appended(event, now):
            self.rounds.forgive()
        if layout_changed and not self.run.layout_changes:
            self.changes.committed(now)
            self._gathering.start_all(now)
        # Before settle_or_request: that may request another checkpoint, and a region with a pending one does
        # not become PAUSED.
        checkpoints.note_paused()
        checkpoints.append_restore_if_free()
        checkpoints.settle_or_request(now)
        self._take_overs.reinstate(now)

    def _on_reset_wanted(self, event: v.ResetWanted, now: float) -> None:
        """Reset by hand. In any other phase the region is already on its way to its last checkpoint."""
        del event
        if self.run.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            self.rounds.reset("a reset was requested", now, spend=False)

    def _gather_timed_out(self, now: float) -> None:
        if (problem := self._heir.problem()) is not None:
            self.run.fail(problem, now)
        else:
            self._gathering.timed_out(now)

    def _autoscale(self, now: float) -> None:
        self._autoscaling.timer_expired(self._reporter.waiting_for, now)

    # --- the request to stop --------------------------------------------------------------------------

    def _on_stop_wanted(self, event: v.StopWanted, now: float) -> None:
        """Stop after a last checkpoint, if there is anything to commit."""
        del event
        run = self.run
        if run.over or run.phase is CoordinatorPhase.STOPPING:
            return
        takes_one = not (run.spec.without_checkpoints or self.checkpoints.final_committed)
        if run.phase is not CoordinatorPhase.RUNNING or not takes_one:
            run.decide(RegionState.STOPPED, "stopped", now, kind="stopped")
            return
        # Paused first: otherwise steps run on after the last checkpoint, outputs show their rows, and the
        # next program begins before steps that readers have seen.
        if not self.checkpoints.pause:
            self.checkpoints.order_pause(on=True)
        run.move(PhaseEvent.STOP)
        run.timers.set("stop", now + min(limits.stop_checkpoint_timeout_s, run.spec.drain_timeout_s))
        self.checkpoints.checkpoint_if_overdue(now)  # all may have paused before

    def _stop_if_covered(self, now: float) -> None:
        """Stop a region that is paused for it, once the last checkpoint covers all."""
        run, checkpoints = self.run, self.checkpoints
        covered = checkpoints.pending is None and not run.has_new_steps
        if run.phase is CoordinatorPhase.STOPPING and checkpoints.all_paused and covered:
            run.decide(RegionState.STOPPED, "stopped", now, kind="stopped")

    def _stop_timed_out(self, now: float) -> None:
        """End without the last checkpoint: the region continues from the one before when it runs again."""
        text = "stopped without a last checkpoint: it took too long"
        self.run.decide(RegionState.STOPPED, text, now, kind="stopped")

    # --- messages -------------------------------------------------------------------------------------

    def _on_received(self, event: v.ControlReceived, now: float) -> None:
        refusal = self._take_message(event, now)
        if refusal is not None:
            self.run.emit(v.MessageRefused(event.link, refusal))

    def _take_message(self, event: v.ControlReceived, now: float) -> m.Refusal | None:
        """Check the sender and the incarnation, then handle the message; return why it was refused."""
        run, message, link = self.run, event.message, event.link
        job, incarnation = run.spec.name, run.incarnation
        if message.job != job:
            return m.check_address(message, job=job, incarnation=incarnation)
        if isinstance(message, m.BatchAsked):
            return self._batches.on_asked(link, message)
        if isinstance(message, m.BatchOffered):
            return self._batches.on_offered(link, message)
        if isinstance(message, m.Join):
            return self._gathering.on_join(link, message, now)
        if isinstance(message, m.CompanionReport):
            self._losses.on_companion(message, now)
            return None
        worker = run.roster.by_link(link)
        if worker is None or worker.index != message.worker:
            return m.Refusal(
                "UNKNOWN_WORKER",
                f"{type(message).__name__} of worker {message.worker} on another worker's link",
            )
        worker.received_at = now  # any message on a worker's own link proves that it lives
        if run.over:
            return None
        stale = m.check_address(message, job=job, incarnation=incarnation)
        # A vote of an older incarnation names positions that a newer claim has cut off (V11): counted, it
        # would commit a checkpoint that cannot be restored.
        if stale is not None and not _counts_when_stale(message):
            return stale
        return self._on_message[type(message)](worker, message, now)

    def _on_wants_checkpoint(
        self, worker: Worker, message: m.WantsCheckpoint, now: float
    ) -> m.Refusal | None:
        if message.batch >= 0:
            return self._batches.on_fed(worker, message, now)
        return self.checkpoints.on_wants_checkpoint(worker, message, now)

    def _on_copied(self, worker: Worker, message: m.CopiedAhead, now: float) -> m.Refusal | None:
        if worker in self.run.roster.standing_by or self._standbys.loading(worker, now):
            return self._standbys.on_copied(worker, message)
        copies_for = self._heir if self._heir.takes_over else self.changes
        return copies_for.on_copied(worker, message, now)

    def _on_link_down(self, event: v.LinkDown, now: float) -> None:
        self._batches.link_down(event.link)
        self._losses.on_link_down(event, now)

    def _on_batches_wait_in_vain(self, event: v.BatchesWaitInVain, _: float) -> None:
        self._batches.refuse_waiting(event.text, event.remedy)

    # --- time -----------------------------------------------------------------------------------------

    def _on_tick(self, event: v.CoordinatorTick, now: float) -> None:
        """Handle the expired timers. Time in which this process itself was late counts against no worker."""
        run = self.run
        late = max(now - event.due, 0.0)
        if late > limits.tick_late_s:
            run.roster.shift(late)
        elapsed, self._last_tick = now - self._last_tick, now
        if self._reporter.waiting_for:
            run.timers.shift(elapsed, PATIENCE)
        elif late > limits.tick_late_s:
            run.timers.shift(late, PATIENCE)
        for name in run.timers.expired(now):
            if not run.ended:
                self._on_timer[name](now)


def _counts_when_stale(message: m.ToCoordinator) -> bool:
    """Return whether a message of an older incarnation counts."""
    # A worker that cannot start its incarnation fails in the one before: ignored, the region would wait for
    # it until a timeout.
    if isinstance(message, m.Failed):
        return message.kind == "internal"
    return isinstance(message, m.Progress | m.CopiedAhead)

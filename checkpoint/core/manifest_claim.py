"""The claim of the manifest: opened, superseded, lost. A part of the coordinator. Pure.

Invariant kept here: an incarnation begins with ManifestOpened; no order is sent in it before that.
"""

from checkpoint import limits
from checkpoint.core.continuing import check_continues
from checkpoint.core.coordination.changes import Rescaling
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import (
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    StoreWaiting,
)
from checkpoint.core.ending import Ending
from checkpoint.core.falling_back import FallingBack
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import RegionState
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent, WorkerState
from checkpoint.core.rewinding import Rewinding
from checkpoint.core.savepoints import Savepoints
from checkpoint.errors import FingerprintMismatchError, ManifestError, RegionFencedError


class ManifestClaim:
    """What the coordinator knows of its claim of the manifest."""

    def __init__(
        self,
        state: CoordinatorState,
        ending: Ending,
        checkpointing: Checkpointing,
        savepoints: Savepoints,
        rewinding: Rewinding,
        recovery: Recovery,
        falling_back: FallingBack,
        rescaling: Rescaling,
    ) -> None:
        self._state = state
        self._rescaling = rescaling
        self._ending = ending
        self._checkpointing = checkpointing
        self._savepoints = savepoints
        self._rewinding = rewinding
        self._recovery = recovery
        self._falling_back = falling_back
        self._superseded = 0
        """Attempts to open the manifest that were superseded in a row."""

    def may_begin(self, seen: Checkpoint | None, now: float) -> bool:
        """Return whether this region can continue from the checkpoint that was read before the claim. If not,
        it fails now, and no driver that runs it is fenced off.
        """
        if not self._restorable(seen, now):
            return False
        if seen is not None:
            self._rescaling.expect_workers(seen)
        return True

    def _restorable(self, checkpoint: Checkpoint | None, now: float) -> bool:
        try:
            self._check_restorable(checkpoint)
        except (ManifestError, FingerprintMismatchError) as error:
            self._ending.decide(RegionState.FAILED, str(error), now, kind="failed", error=error)
            return False
        return True

    def on_manifest_opened(self, event: ManifestOpened, now: float) -> None:
        """Begin the incarnation: from now on, and not before, the coordinator may send orders in it."""
        state = self._state
        if state.phase is not CoordinatorPhase.OPENING:
            return  # the outcome was decided meanwhile; the shell closes the manifest that it opened
        assert event.incarnation > max(state.incarnation, state.epoch_floor), "epochs only rise"
        if not self._restorable(event.last_checkpoint, now):
            return
        state.move(PhaseEvent.OPENED)
        state.round.opened_at = now
        state.timers.clear("open")
        state.incarnation, state.last_checkpoint, self._superseded = (
            event.incarnation,
            event.last_checkpoint,
            0,
        )
        state.kept = event.kept
        self._settle_doubt(now)
        self._rescaling.choose_layout(now)
        self._savepoints.settle_after_opening()
        self._rewinding.settle_after_opening()
        # Not earlier: only now that the manifest is held above it can the old attempt commit nothing more.
        for worker in state.roster:
            if worker.state is WorkerState.LOST:
                self._recovery.relaunch(worker, now)
        self._falling_back.examine_or_order(now)

    def _check_restorable(self, checkpoint: Checkpoint | None) -> None:
        """Raise ManifestError or FingerprintMismatchError if this region cannot be restored to
        `checkpoint`.
        """
        state = self._state
        if checkpoint is None:
            return
        if state.last_checkpoint is not None and checkpoint.number < state.last_checkpoint.number:
            raise ManifestError(
                f"it is the last in the manifest, but checkpoint {state.last_checkpoint.number} was"
                f" committed",
                checkpoint=checkpoint.number,
            )
        check_continues(state.spec, checkpoint)

    def _settle_doubt(self, now: float) -> None:
        """Count the checkpoint in doubt if it is the last of the chain; otherwise it can never be in it."""
        state = self._state
        doubt, state.in_doubt = state.in_doubt, None
        last = state.last_checkpoint
        if doubt and last and (doubt.number, doubt.incarnation) == (last.number, last.incarnation):
            self._checkpointing.note_commit(doubt, now)

    def on_manifest_superseded(self, event: ManifestSuperseded, now: float) -> None:
        """Try again after a random delay whose bound doubles: two coordinators start at one time (R17).

        The bound is several times what an attempt takes on this network. With a smaller one, attempts over
        slow paths would always overlap and none would succeed.
        """
        state = self._state
        if state.phase is not CoordinatorPhase.OPENING:
            return
        state.move(PhaseEvent.SUPERSEDED)
        self._superseded += 1
        attempt_s = min(event.attempt_s, limits.claim_patience_s)
        longest = min(
            (limits.manifest_backoff_s + attempt_s) * 2.0**self._superseded,
            limits.manifest_backoff_max_s + limits.manifest_backoff_attempts_max * attempt_s,
        )
        state.timers.set("open", now + event.rng * longest)

    def open_again(self, now: float) -> None:
        del now
        if self._state.phase is CoordinatorPhase.OPENING:
            self._recovery.open_manifest()

    def on_manifest_taken(self, event: ManifestTaken, now: float) -> None:
        """End FENCED: a newer driver runs this region and may have committed checkpoints unknown here."""
        reason = f"a newer driver took over region {self._state.spec.name!r} with epoch {event.epoch_held}"
        error = RegionFencedError(reason, epoch_held=event.epoch_held)
        self._ending.decide(RegionState.FENCED, reason, now, kind="fenced", error=error)

    def on_manifest_lost(self, event: ManifestLost, now: float) -> None:
        """Open the manifest again in a new round.

        That finds out whether a newer driver holds it, or whether one died after it claimed it (R18).
        """
        state = self._state
        if event.incarnation != state.incarnation:
            return
        if state.phase is CoordinatorPhase.STOPPING:
            text = "stopped without a last checkpoint: the manifest claim was lost"
            self._ending.decide(RegionState.STOPPED, text, now, kind="stopped")
        elif state.phase in (
            CoordinatorPhase.GATHERING,
            CoordinatorPhase.RESTORING,
            CoordinatorPhase.RUNNING,
        ):
            self._recovery.reset(f"the manifest was claimed with epoch {event.epoch_held}", now)

    def on_manifest_unreadable(self, event: ManifestUnreadable, now: float) -> None:
        """End FAILED: waiting does not cure this, a person has to repair it."""
        self._ending.decide(RegionState.FAILED, str(event.error), now, kind="failed", error=event.error)

    def on_store_waiting(self, event: StoreWaiting, now: float) -> None:
        del now
        self._state.store_waiting = event.waiting

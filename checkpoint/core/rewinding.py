"""The restore of a region to an older checkpoint, while it runs or when it starts. A part of the coordinator.
Pure.

`lines.py` says what a restore is. While its record is appended no checkpoint is requested: one under way is
given up, as in a reset. Once the record is acknowledged, all workers are reset to it. If the claim of the
manifest is lost before that, the reopened manifest decides whether the region was restored.
"""

from checkpoint.core.continuing import check_continues
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import AppendCheckpoint, CheckpointAppended, RestoreWanted
from checkpoint.core.records.lines import find_target, refuse_republishing, restored
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.recovery import Recovery
from checkpoint.core.region_events import FellBack, RestoreSettled
from checkpoint.core.region_states import CoordinatorPhase
from checkpoint.core.retention import keep
from checkpoint.errors import FingerprintMismatchError, ManifestError, RestoreRefusedError


class Rewinding:
    """The restores of one region."""

    def __init__(self, state: CoordinatorState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self._requested = ""
        """The checkpoint that `CoordinatorState.restoring` is, as it was requested."""
        self._fell_back: FellBack | None = None
        """Because of what it is restored, if nobody requested it."""

    def on_restore_wanted(self, event: RestoreWanted, now: float) -> None:
        """Restore a checkpoint, or answer at once why not."""
        state = self._state
        try:
            self._check_possible()
            target = find_target(state.kept, event.to, region=state.spec.name)
            check_continues(state.spec, target)
            if not event.allow_republish:
                refuse_republishing(state.kept[-1], target)
        except (RestoreRefusedError, ManifestError, FingerprintMismatchError) as error:
            state.report(RestoreSettled(event.to, error=f"{error}"))
            return
        del now
        self._begin(target, event.to, None)

    def fall_back(self, target: Checkpoint, because: FellBack) -> None:
        """Restore a checkpoint because the last one is damaged, while no worker is ordered."""
        self._begin(target, "", because)

    def _begin(self, target: Checkpoint, requested: str, because: FellBack | None) -> None:
        state = self._state
        state.restoring, self._requested, self._fell_back = target, requested, because
        if state.pending is not None and not state.pending.appended:
            state.pending = None
            state.timers.clear("drain")
        self.append_if_free()

    def _check_possible(self) -> None:
        state = self._state
        if state.spec.without_checkpoints or state.over:
            raise RestoreRefusedError("the region commits no more checkpoints")
        if state.phase is not CoordinatorPhase.RUNNING:
            raise RestoreRefusedError("the region starts, stops or is being reset: try again when it runs")
        if state.scaling is not None:
            raise RestoreRefusedError("its workers are being changed: wait, or cancel that first")
        if state.restoring is not None:
            raise RestoreRefusedError("it is being restored already")

    def append_if_free(self) -> None:
        """Append the record once no other append is under way."""
        state, target = self._state, self._state.restoring
        if target is None or state.appending is not None or state.pending is not None:
            return
        if target.number not in [checkpoint.number for checkpoint in state.kept]:
            self._settle(f"checkpoint {target.number} was released meanwhile")
            return
        # After a fall back, the request of a program that was carried out before stays so (`Rewind.by`).
        rewinds = state.kept[-1].rewinds if self._fell_back is not None else ()
        by = rewinds[-1].by if rewinds else ""
        checkpoint = restored(state.kept, target, state.incarnation, by=by)
        state.appending = checkpoint
        state.emit(AppendCheckpoint(checkpoint))

    def on_checkpoint_appended(self, event: CheckpointAppended, now: float) -> bool:
        """Take the acknowledgement of a restore's record. Return whether it was one."""
        state = self._state
        if (
            not event.checkpoint.rewound
            or event.checkpoint.incarnation != state.incarnation
            or state.restoring is None
        ):
            return False
        if state.phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.GATHERING):
            return True  # a reset came first: the manifest that it opens has this record
        state.appending, state.last_checkpoint = None, event.checkpoint
        state.kept = keep(state.kept, event.checkpoint)
        self._settle("")
        self._recovery.reset(
            f"it was restored to checkpoint {event.checkpoint.rolled_back_to}", now, spend=False
        )
        return True

    def settle_after_opening(self) -> None:
        """Answer a request by the reopened manifest, which has its record or not."""
        last, target = self._state.last_checkpoint, self._state.restoring
        if target is None:
            return
        done = last is not None and last.rewound and last.rolled_back_to == target.voted_as
        self._settle("" if done else "the region was reset meanwhile, and is not restored")

    def _settle(self, error: str) -> None:
        state, target, because = self._state, self._state.restoring, self._fell_back
        assert target is not None
        state.restoring, self._fell_back = None, None
        if because is None:
            number = 0 if error else target.voted_as
            state.report(RestoreSettled(self._requested, number, target.step, error))
        elif not error:  # otherwise the damage is found again
            state.fell_back = str(because)
            state.report(because)

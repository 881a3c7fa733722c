"""The restore of a running region to an older checkpoint. A part of the coordinator. Pure.

`lines.py` says what a restore is. While its record is appended no checkpoint is requested: one under way is
given up, as in a reset. Once the record is acknowledged, all workers are reset to it. If the claim of the
manifest is lost before that, the reopened manifest decides whether the region was restored.
"""

from checkpoint.core.coordinator_state import CoordinatorState
from checkpoint.core.coordinator_vocabulary import AppendCut, CutAppended, RestoreWanted
from checkpoint.core.lines import find_target, refuse_republishing, restored
from checkpoint.core.manifest import Cut
from checkpoint.core.recovery import Recovery
from checkpoint.core.region_events import RestoreSettled
from checkpoint.core.region_states import CoordinatorPhase
from checkpoint.core.retention import keep
from checkpoint.errors import RestoreRefusedError


class Rewinding:
    """The restores of one region."""

    def __init__(self, state: CoordinatorState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self._target: Cut | None = None
        """The checkpoint of the request that is carried out, None if there is none."""
        self._by = ""

    def on_restore_wanted(self, event: RestoreWanted, now: float) -> None:
        """Restore a checkpoint, or answer at once why not."""
        state = self._state
        try:
            self._check_possible()
            target = find_target(state.kept, event.to, region=state.spec.name)
            if not event.allow_republish:
                refuse_republishing(state.kept[-1], target)
        except RestoreRefusedError as error:
            state.report(RestoreSettled(event.to, error=f"{error}"))
            return
        del now
        self._target, self._by, state.restoring = target, event.to, True
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
        if state.restoring:
            raise RestoreRefusedError("it is being restored already")

    def append_if_free(self) -> None:
        """Append the record once no other append is under way."""
        state = self._state
        if self._target is None or state.appending is not None or state.pending is not None:
            return
        if self._target.cut not in [cut.cut for cut in state.kept]:
            self._settle(f"checkpoint {self._target.cut} was released meanwhile")
            return
        cut = restored(state.kept, self._target, state.incarnation)
        state.appending = cut
        state.emit(AppendCut(cut))

    def on_cut_appended(self, event: CutAppended, now: float) -> bool:
        """Take the acknowledgement of a restore's record. Return whether it was one."""
        state = self._state
        if not event.cut.rewound or event.cut.incarnation != state.incarnation or self._target is None:
            return False
        if state.phase is not CoordinatorPhase.RUNNING:
            return True  # a reset came first: the manifest that it opens has this record
        state.appending, state.last_checkpoint = None, event.cut
        state.kept = keep(state.kept, event.cut)
        self._settle("")
        self._recovery.reset(f"it was restored to checkpoint {event.cut.rolled_back_to}", now, spend=False)
        return True

    def settle_after_opening(self) -> None:
        """Answer a request by the reopened manifest, which has its record or not."""
        last = self._state.last_checkpoint
        if self._target is None:
            return
        number = self._target.rolled_back_to or self._target.cut
        done = last is not None and last.rewound and last.rolled_back_to == number
        self._settle("" if done else "the region was reset meanwhile, and is not restored")

    def _settle(self, error: str) -> None:
        assert self._target is not None
        target, self._target, self._state.restoring = self._target, None, False
        number = 0 if error else target.rolled_back_to or target.cut
        self._state.report(RestoreSettled(self._by, number, target.step, error))

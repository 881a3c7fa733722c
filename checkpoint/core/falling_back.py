"""What follows if the last checkpoint is damaged (`RegionSpec.on_damaged`). A part of the coordinator. Pure.

A worker that meets damage in its restore reports it, which proves nothing: another member may have the bytes.
So the region is reset, and before any worker is ordered, the driver reads the retained checkpoints from the
newest on (`ExamineCheckpoints`). It concludes damage only while every member answers; until then the region
waits.

    the last checkpoint   "fail"                       "previous"
    reads whole           the workers are ordered to it; from the second time on, the reset spends an attempt
    is damaged            the region fails: what is    a restore of the newest older one that reads whole is
                          damaged, what is whole       recorded (`rewinding.py`); without one it fails

A restore takes back no output that its sink cannot take back: then the region fails, unless that is allowed.
"""

from collections.abc import Callable
from typing import Any

from checkpoint.core.continuing import check_continues
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import (
    CheckpointsExamined,
    ExaminationWaits,
    ExamineCheckpoints,
)
from checkpoint.core.damaged import Examination
from checkpoint.core.ending import Ending
from checkpoint.core.gathering import Gathering
from checkpoint.core.records.lines import refuse_republishing
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionState
from checkpoint.core.region_events import FellBack
from checkpoint.core.region_states import CoordinatorPhase
from checkpoint.core.rewind_report import report_text, rewind_report
from checkpoint.core.rewinding import Rewinding
from checkpoint.errors import (
    CheckpointDamagedError,
    FingerprintMismatchError,
    ManifestError,
    RestoreRefusedError,
)


class FallingBack:
    """The examinations of one region's checkpoints, and what follows from them."""

    def __init__(
        self, state: CoordinatorState, ending: Ending, rewinding: Rewinding, gathering: Gathering
    ) -> None:
        self._state = state
        self._ending = ending
        self._rewinding = rewinding
        self._gathering = gathering
        self.on_event: dict[type[Any], Callable[[Any, float], None]] = {
            ExaminationWaits: self.on_waits,
            CheckpointsExamined: self.on_examined,
        }

    def examine_or_order(self, now: float) -> None:
        """Examine the checkpoints if a worker has reported damage; otherwise order the workers to the last
        one once all have joined. Call when an incarnation begins.
        """
        state = self._state
        state.examining = bool(state.suspected and state.kept)
        if state.examining:
            state.reason = f"the retained checkpoints are read: {state.suspected}"
            state.emit(ExamineCheckpoints(state.incarnation, state.kept))
        self._gathering.order_if_gathered(now)

    def on_waits(self, event: ExaminationWaits, now: float) -> None:
        """Show what the examination waits for."""
        del now
        if self._counts(event.incarnation):
            self._state.reason = f"the retained checkpoints cannot be read yet: {event.reason}"

    def on_examined(self, event: CheckpointsExamined, now: float) -> None:
        """Order the workers, or fall back, or fail."""
        state, found = self._state, event.found
        if not self._counts(event.incarnation):
            return
        state.examining, suspected, state.suspected = False, state.suspected, ""
        last = state.kept[-1]
        if not found.damaged:
            state.reason = f"checkpoint {last.number} reads whole, although {suspected}"
            state.disproved = True
            self._gathering.order_if_gathered(now)
            return
        target = next((checkpoint for checkpoint in state.kept if checkpoint.number == found.whole), None)
        if state.spec.on_damaged == "fail" or target is None:
            self._fail(CheckpointDamagedError(found.text, remedy=self._remedy(found)), now)
            return
        try:
            check_continues(state.spec, target)
        except (ManifestError, FingerprintMismatchError) as error:
            text = f"{found.text}; checkpoint {target.number} is whole, but {error.args[0]}"
            remedy = f"run the program that made it, after {self._command(target.number)}"
            self._fail(CheckpointDamagedError(text, remedy=remedy), now)
            return
        try:
            if not state.spec.allow_republish:
                refuse_republishing(last, target)
        except RestoreRefusedError as error:
            text = f"{found.text}; checkpoint {target.number} is whole, but {error.args[0]}"
            command = self._command(target.number, " --allow-republish")
            remedy = f"confirm that these rows may come again: allow_republish=True, or {command}"
            self._fail(CheckpointDamagedError(text, remedy=remedy), now)
            return
        self._rewinding.fall_back(target, self._report(last, target, found))

    def _counts(self, incarnation: int) -> bool:
        """Return whether a result is of the examination that is under way."""
        state = self._state
        gathers = state.phase is CoordinatorPhase.GATHERING and not state.over
        return state.examining and gathers and incarnation == state.incarnation

    def _fail(self, error: CheckpointDamagedError, now: float) -> None:
        self._ending.decide(RegionState.FAILED, str(error.args[0]), now, kind="failed", error=error)

    def _remedy(self, found: Examination) -> str:
        repair = "bring copies back that are whole (`dos store repair`, a backup of a member's disk)"
        if not found.whole:
            return f"{repair}: no retained checkpoint reads whole"
        return (
            f"{repair}; or go back to checkpoint {found.whole}, which is whole:"
            f' {self._command(found.whole)}, or run the region with on_damaged="previous"'
        )

    def _command(self, checkpoint: int, more: str = "") -> str:
        to = f"--to checkpoint:{checkpoint} --stopped{more}"
        return f"`dos region restore URL {self._state.spec.name} {to}`"

    @staticmethod
    def _report(last: Checkpoint, target: Checkpoint, found: Examination) -> FellBack:
        lost = tuple(report_text(rewind_report(last, target)))
        return FellBack(last.number, target.voted_as, last.step, target.step, found, lost)

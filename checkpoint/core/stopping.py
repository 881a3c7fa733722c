"""The request to stop: a last checkpoint first, if the region did anything since the one before. Pure.

A part of the coordinator. The region is paused first: so the last checkpoint covers every step, outputs end
with its rows, and any program that runs next begins after all steps that were shown.
"""

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import StopWanted
from checkpoint.core.ending import Ending
from checkpoint.core.pausing import Pausing
from checkpoint.core.region import RegionState
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent


class Stopping:
    """Phase STOPPING of one region."""

    def __init__(self, state: CoordinatorState, ending: Ending, pausing: Pausing) -> None:
        self._state = state
        self._ending = ending
        self._pausing = pausing

    def on_stop_wanted(self, event: StopWanted, now: float) -> None:
        """Stop after a last checkpoint; at once if the region takes none or does not run."""
        del event
        state = self._state
        if state.over or state.phase is CoordinatorPhase.STOPPING:
            return
        if state.phase is CoordinatorPhase.RUNNING and not (
            state.spec.without_checkpoints or state.final_committed
        ):
            if not state.pause:
                self._pausing.order(on=True)
            state.move(PhaseEvent.STOP)
            state.timers.set("stop", now + min(limits.stop_checkpoint_timeout_s, state.spec.drain_timeout_s))
            return
        self._ending.decide(RegionState.STOPPED, "stopped", now, kind="stopped")

    def advance(self, now: float) -> None:
        """Stop a region that is paused for it, once the last checkpoint covers all. Call after each event."""
        state = self._state
        covered = state.pending is None and not state.has_new_steps
        if state.phase is CoordinatorPhase.STOPPING and state.all_paused and covered:
            self._ending.decide(RegionState.STOPPED, "stopped", now, kind="stopped")

    def timed_out(self, now: float) -> None:
        """End without the last checkpoint: the region continues from the one before when it runs again."""
        text = "stopped without a last checkpoint: it took too long"
        self._ending.decide(RegionState.STOPPED, text, now, kind="stopped")

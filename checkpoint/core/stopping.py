"""The request to stop: a last checkpoint first, if the region did anything since the one before. Pure.

A part of the coordinator. A region that shows the output of steps before their checkpoint is paused first: so
the last checkpoint covers every step that was shown, and any program that runs next begins after all of them.
"""

from checkpoint import limits
from checkpoint.core.checkpointing import Checkpointing
from checkpoint.core.coordinator_state import CoordinatorState
from checkpoint.core.coordinator_vocabulary import StopWanted
from checkpoint.core.ending import Ending
from checkpoint.core.pausing import Pausing
from checkpoint.core.region import RegionState
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent


class Stopping:
    """Phase STOPPING of one region."""

    def __init__(
        self, state: CoordinatorState, ending: Ending, checkpointing: Checkpointing, pausing: Pausing
    ) -> None:
        self._state = state
        self._ending = ending
        self._checkpointing = checkpointing
        self._pausing = pausing

    def on_stop_wanted(self, event: StopWanted, now: float) -> None:
        """Stop after a last checkpoint; at once if there is nothing to commit or the region does not run."""
        del event
        state = self._state
        if state.over or state.phase is CoordinatorPhase.STOPPING:
            return
        runs, timeout_s = state.phase is CoordinatorPhase.RUNNING, state.spec.drain_timeout_s
        ends = state.spec.without_checkpoints or state.final_committed or state.is_paused
        if runs and state.spec.shows_steps and not ends:
            if not state.pause:
                self._pausing.order(on=True)
            state.move(PhaseEvent.STOP)
            state.timers.set("stop", now + min(limits.stop_cut_timeout_s, timeout_s))
            return
        if runs and (state.has_new_steps or state.pending is not None):
            self._checkpointing.request_checkpoint(now)
            if state.pending is not None:
                state.move(PhaseEvent.STOP)
                state.timers.set("stop", now + min(limits.stop_cut_timeout_s, timeout_s))
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

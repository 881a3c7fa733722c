"""Pausing a region: all workers stop at one step, and a checkpoint of it is committed. Pure.

A part of the coordinator. The method (distributed-dbsp, "Coordinator/worker synchronization details"):

1. `Pause` orders every worker to begin no step on its own, and interrupts its reading. Each worker replies
   with its step.
2. The paper's coordinator then orders all workers to stop at the highest of these steps. Here that number is
   not sent: a worker that receives a peer's STEP_END of a step makes that step too, so all workers reach the
   highest one.
3. A checkpoint that is then requested belongs to the next step, which takes no input anywhere. A worker that
   lags may flag an earlier step; then another checkpoint follows. The region is PAUSED when nothing has moved
   on since the last checkpoint.

A pause stays in force across resets: the workers are ordered again. Every order has a number, so a reply to
an older order is recognized and does not count.
"""

from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import PauseWanted
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.links.messages import Pause, Paused, Refusal
from checkpoint.core.region_states import CoordinatorPhase, WorkerState


class Pausing:
    """The pause orders of one region."""

    def __init__(self, state: CoordinatorState, checkpointing: Checkpointing) -> None:
        self._state = state
        self._checkpointing = checkpointing
        self._orders = 0
        """The number of the newest pause order."""

    def on_pause_wanted(self, event: PauseWanted, now: float) -> None:
        """Pause or continue. A request for what is already in force changes nothing."""
        del now
        state = self._state
        if state.scaling is not None:
            state.scaling.user_paused = event.on  # it holds when the change is settled
            return
        if (
            state.over
            or state.phase is CoordinatorPhase.STOPPING
            or event.on == bool(state.pause)
            or state.spec.without_checkpoints
        ):
            return
        self.order(on=event.on)

    def order(self, *, on: bool) -> None:
        """Pause or continue; if the region does not run now, from the start of its workers on."""
        state = self._state
        self._orders += on
        state.pause = self._orders if on else 0
        if state.phase is CoordinatorPhase.RUNNING:
            self.order_pause()

    def order_pause(self) -> None:
        """Send the order in force to all workers."""
        state = self._state
        state.is_paused = False
        for worker in state.roster:
            worker.paused = 0
        number = state.incarnation
        state.send_all(Pause(job=state.spec.name, incarnation=number, epoch=number, pause=state.pause))

    def on_paused(self, worker: Worker, message: Paused, now: float) -> Refusal | None:
        """Note that a worker takes no more input."""
        pause = self._state.pause
        if worker.state is not WorkerState.RUNNING or not pause or message.pause != pause:
            return Refusal(
                "UNEXPECTED",
                f"worker {worker.index} paused by order {message.pause}, current order is {pause}",
            )
        worker.paused = message.pause
        worker.step = max(worker.step, message.step)
        worker.counters = message.counters
        self._checkpointing.checkpoint_if_overdue(now)
        self.note_paused()
        return None

    def note_paused(self) -> None:
        """Note whether the region is paused.

        Once reached, PAUSED lasts until the next order: a checkpoint that is requested meanwhile commits
        nothing new.
        """
        state = self._state
        if (
            state.phase is CoordinatorPhase.RUNNING
            and state.all_paused
            and state.pending is None
            and not state.has_new_steps
        ):
            state.is_paused = True

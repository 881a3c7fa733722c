"""Pausing a region: all workers stop at one step, and a cut of it is committed. A part of the coordinator.

Theory (distributed-dbsp, "Coordinator/worker synchronization details"). `pause` tells every worker to begin
no step of its own, and interrupts its reading; each says at which step it is. `stop` is to follow at the
highest of these: here nobody has to be told that number, because a worker that sees a peer's STEP_END of a
step makes that step too. So all come to the highest, and a cut that is asked for then is of the next step,
which takes no input anywhere. A worker that is behind may flag an earlier step; then another cut follows,
until nothing has moved on since the last one: that is PAUSED.

A wish lasts: after a reset the workers are told again. Each has a number, so that the answer to an older one
counts for nothing.
"""

from checkpoint.core.coordinator_vocabulary import CutAppended, PauseWanted
from checkpoint.core.cutting import Cutting
from checkpoint.core.messages import Pause, Paused, Refusal
from checkpoint.core.region_states import CoordinatorPhase, WorkerState
from checkpoint.core.roster import Worker


class Pausing(Cutting):
    """See the top of this file."""

    pause = 0
    """The number of the wish in force, 0 for none."""
    _pauses = 0

    def on_pause_wanted(self, event: PauseWanted, now: float) -> None:
        """Pause, or go on. A wish that is in force already changes nothing."""
        del now
        if (
            self.over
            or self.phase is CoordinatorPhase.STOPPING
            or event.on == bool(self.pause)
            or self.spec.without_cuts
        ):
            return
        self._pauses += event.on
        self.pause = self._pauses if event.on else 0
        if self.phase is CoordinatorPhase.RUNNING:
            self.order_pause()

    def order_pause(self) -> None:
        """Tell the workers what is wanted."""
        self.is_paused = False
        for worker in self.roster:
            worker.paused = 0
        number = self.incarnation
        self.send_all(Pause(job=self.spec.name, incarnation=number, epoch=number, pause=self.pause))

    def on_paused(self, worker: Worker, message: Paused, now: float) -> Refusal | None:
        """A worker takes no input any more."""
        if worker.state is not WorkerState.RUNNING or not self.pause or message.pause != self.pause:
            return Refusal("UNEXPECTED", f"worker {worker.index} paused by order {message.pause}, not wanted")
        worker.paused = message.pause
        worker.step = max(worker.step, message.step)
        worker.counters = message.counters
        self.cut_if_overdue(now)
        self._note_paused()
        return None

    def on_cut_appended(self, event: CutAppended, now: float) -> None:
        super().on_cut_appended(event, now)
        self._note_paused()

    def _note_paused(self) -> None:
        """Reached once, it lasts until the next order: a cut that is asked for meanwhile changes nothing."""
        if (
            self.phase is CoordinatorPhase.RUNNING
            and self.stands
            and self.pending is None
            and not self.moved_on
        ):
            self.is_paused = True

    @property
    def stands(self) -> bool:
        """Whether no worker takes input any more."""
        return self.pause > 0 and all(worker.paused == self.pause for worker in self.roster)

    @property
    def cut_is_due(self) -> bool:
        return self.stands or super().cut_is_due

"""Another number of workers, at a start or while the region runs. A part of the coordinator. Pure.

The layout changes with a checkpoint (docs/decisions/0231):

1. An incarnation begins with a new layout and as many workers. Nothing is written of it.
2. Every worker restores the last checkpoint: its own part, and what it takes over from others.
3. It votes at once for the next checkpoint, at the same step, before any step runs.
4. The acknowledgement of that checkpoint is the commit of the layout. Whatever fails before it leaves the
   former layout, of which nothing was changed.
5. Only now the workers start. The next checkpoints are as always.

At a start that is all, because nothing runs. While a region runs, two steps come before it:

- *Prepare*: the new workers are launched and join. They create their journals, and each worker of the new
  layout copies the state that it takes over, as of the last checkpoint.
- *Pause*: all workers stop after the same step, and a checkpoint of it is committed. So no output is visible
  that this checkpoint does not cover.

A reset before the commit gives the change up: the region continues with its former workers.

A region that shows the output of steps before their checkpoint (`RegionSpec.shows_steps`) also changes in
this way after a start: with its former workers, it replays first what may have been shown.

Workers are numbered from 0 without gaps, so the highest numbers leave. A worker that comes back gets its
directory and its output again, and continues there (`Cut.retired`).
"""

from checkpoint import limits
from checkpoint.core.checkpointing import Checkpointing
from checkpoint.core.coordinator_state import CoordinatorState, Scaling
from checkpoint.core.coordinator_vocabulary import CancelWorker, CloseLink, ScaleWanted
from checkpoint.core.ending import Ending
from checkpoint.core.layout import even_layout
from checkpoint.core.manifest import Cut
from checkpoint.core.messages import CopiedAhead, CopyAhead, Refusal
from checkpoint.core.pausing import Pausing
from checkpoint.core.rebalancing import rebalanced
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import ScaleSettled, workers_text
from checkpoint.core.region_states import CoordinatorPhase, WorkerState
from checkpoint.core.roster import Worker
from checkpoint.errors import ManifestError


class Rescaling:
    """The layouts of one region, and the change that is under way (`CoordinatorState.scaling`)."""

    def __init__(
        self,
        state: CoordinatorState,
        ending: Ending,
        checkpointing: Checkpointing,
        pausing: Pausing,
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._ending = ending
        self._checkpointing = checkpointing
        self._pausing = pausing
        self._recovery = recovery
        self._held_at = 0.0
        """When the region was ordered to pause for the change."""
        self.changes_settled = 0
        """How many changes have ended."""
        self.last_settled = ScaleSettled(None, 0)
        """The last of them."""

    # --- at a start -----------------------------------------------------------------------------------

    def check_possible(self, cut: Cut) -> None:
        """Raise ManifestError if the region must have other workers than this checkpoint, and cannot."""
        reason = self._state.spec.keeps_workers
        if reason and (wanted := self._wanted(cut)) != len(cut.workers):
            raise ManifestError(
                f"it was made by {workers_text(len(cut.workers))}, the region has {workers_text(wanted)}:"
                f" {reason}",
                cut=cut.cut,
                remedy="run the region with as many workers as made the checkpoint",
            )

    def choose_layout(self, now: float) -> None:
        """Set the layout of an incarnation that begins, and its workers."""
        state, last, change = self._state, self._state.last_checkpoint, self._state.scaling
        if last is None:
            state.layout = even_layout(state.spec.first_workers)
        elif change is not None and change.switches and not change.opened and last.cut == change.checkpoint:
            change.opened = True
            state.layout = rebalanced(last.layout, range(change.workers))
        else:
            if change is not None:  # it was committed after all, or it is given up
                done = change.switches and len(last.workers) == change.workers
                self._settle("" if done else state.reason, now)
                state.round.reason = state.round.reason or ("" if done else state.reason)
            wanted = self._wanted(last)
            at_once = wanted != len(last.workers) and not state.spec.shows_steps
            state.layout = rebalanced(last.layout, range(wanted)) if at_once else last.layout
        workers, asked = len(state.layout.workers), state.spec.workers
        state.declared = workers if last is None or asked == workers else last.workers_declared
        self._end(state.roster.resize(workers), now)
        for worker in state.roster:
            if worker.state is WorkerState.ABSENT:
                state.roster.schedule(worker, now)
        if last is not None and state.scaling is None and (wanted := self._wanted(last)) != len(state.roster):
            self._begin(wanted, now)

    def _wanted(self, cut: Cut) -> int:
        """Return the number of workers after a checkpoint: its own, unless the program asks for another one.

        A program that asks for the same number as before does not undo that the region was scaled since.
        """
        asked = self._state.spec.workers
        return len(cut.workers) if asked is None or asked == cut.workers_declared else asked

    # --- while the region runs ------------------------------------------------------------------------

    def on_scale_wanted(self, event: ScaleWanted, now: float) -> None:
        """Begin a change, or give it up. A request that is impossible is answered, and changes nothing."""
        state, change = self._state, self._state.scaling
        problem = self.problem(event.workers)
        if problem:
            state.report(ScaleSettled(event.workers, len(state.roster), problem))
        elif event.workers is None:
            assert change is not None
            self._give_up("it was cancelled", now)
        elif event.workers == len(state.roster):
            state.report(ScaleSettled(event.workers, event.workers))
        else:
            self._begin(event.workers, now)

    def problem(self, workers: int | None) -> str:
        """Return why the request cannot be carried out, empty if it can."""
        state, change = self._state, self._state.scaling
        if workers is None:
            if change is None:
                return "no change of the number of workers is under way"
            return "it is too late: the new layout is being committed" if change.switches else ""
        if change is not None:
            return (
                f"the region is already going to {workers_text(change.workers)}: wait, or cancel that first"
            )
        if not 0 < workers <= limits.workers_max:
            return f"a region has 1 to {limits.workers_max} workers, got {workers}"
        if state.spec.without_checkpoints:
            return "the region has no checkpoints: run it again with another number of workers"
        if state.phase is not CoordinatorPhase.RUNNING:
            return "the region does not run now: try again when it does"
        if state.final_committed:
            return "the region has processed all of its input"
        return state.spec.keeps_workers

    def _begin(self, workers: int, now: float) -> None:
        state = self._state
        state.scaling = Scaling(workers, now, state.incarnation, user_paused=state.pause > 0)
        state.roster.expect(workers)
        for worker in state.roster.coming:
            self._recovery.relaunch(worker, now)
        state.timers.set("scale", now + state.spec.start_timeout_s)
        if state.last_checkpoint is None:  # a layout changes from a checkpoint to the next
            state.number_wanted = max(state.number_wanted, 1)
            self._checkpointing.cut_if_overdue(now)

    def advance(self, now: float) -> None:
        """Take the next step of the change, if it is due. Call after each event."""
        state, change = self._state, self._state.scaling
        if change is None or change.switches or state.phase is CoordinatorPhase.ENDED:
            return
        lost = [worker for worker in state.roster.coming if worker.state is WorkerState.LOST]
        if change.incarnation != state.incarnation or state.over:
            self._give_up(state.reason or "the region ends", now)
        elif any(worker.launch_at is None and worker.attempt for worker in lost):
            self._give_up(f"worker {lost[0].index} was lost: {lost[0].error}", now)
        elif state.phase is not CoordinatorPhase.RUNNING:
            if state.phase in (CoordinatorPhase.STOPPING, CoordinatorPhase.OPENING):
                self._give_up(state.reason or "the region is being stopped", now)
        elif not change.holds:
            joined = all(worker.state is WorkerState.JOINED for worker in state.roster.coming)
            if not joined or state.last_checkpoint is None:
                return
            if not change.copied:
                self._copy_ahead(change, state.last_checkpoint, now)
            if all(report.done for report in change.copied.values()):
                change.holds, self._held_at = True, now
                if not state.pause:
                    self._pausing.order(on=True)
        elif state.is_paused:
            self._switch(change, now)

    def _copy_ahead(self, change: Scaling, last: Cut, now: float) -> None:
        """Order all workers of the new layout to prepare."""
        state = self._state
        layout = rebalanced(last.layout, range(change.workers))
        for worker, link in state.roster.linked(coming=True):
            if worker.index < change.workers:
                change.copied[worker.index] = CopiedAhead(
                    job=state.spec.name, worker=worker.index, copied_bytes=0, total_bytes=0
                )
                state.send(
                    link,
                    CopyAhead(
                        job=state.spec.name,
                        incarnation=state.incarnation,
                        epoch=state.incarnation,
                        cut=last.cut,
                        worker=worker.index,
                        restore=last,
                        layout=layout,
                    ),
                )
        state.timers.set("scale", now + state.spec.start_timeout_s)

    def on_copied(self, worker: Worker, message: CopiedAhead, now: float) -> Refusal | None:
        """Note how much a worker has copied. It may take longer than any limit, as long as it gets on."""
        change = self._state.scaling
        if change is None or worker.index not in change.copied or change.holds:
            return Refusal("UNEXPECTED", f"worker {worker.index} copies state, but no change is under way")
        change.copied[worker.index] = message
        self._state.timers.set("scale", now + self._state.spec.start_timeout_s)
        if message.error:
            self._give_up(f"worker {worker.index} cannot prepare: {message.error}", now)
        return None

    def _switch(self, change: Scaling, now: float) -> None:
        """Begin the incarnation with the new layout. All workers stand still after the last checkpoint."""
        state = self._state
        change.switches, change.checkpoint = True, state.last_number
        state.timers.clear("scale")
        text = f"the region goes from {len(state.roster)} to {workers_text(change.workers)}"
        self._recovery.reset(text, now, spend=False)
        state.round.reason = ""  # planned: it is not reported as a reset

    def committed(self, now: float) -> None:
        """Note that the checkpoint with the new layout is committed."""
        if self._state.scaling is not None:
            self._settle("", now)

    def timed_out(self, now: float) -> None:
        """Give the change up: its workers did not join, or the region could not be paused."""
        state = self._state
        missing = [str(one.index) for one in state.roster.coming if one.state is not WorkerState.JOINED]
        timeout_s = state.spec.start_timeout_s
        self._give_up(
            f"worker {', '.join(missing)} did not join within {timeout_s:g} s: provide a task slot for each"
            if missing
            else f"the region did not copy its state and pause within {timeout_s:g} s",
            now,
        )

    def _give_up(self, reason: str, now: float) -> None:
        self._settle(reason, now)
        self._end(self._state.roster.resize(len(self._state.roster)), now)

    def _settle(self, error: str, now: float) -> None:
        """End the change, and let the region continue unless a user has paused it."""
        state, change = self._state, self._state.scaling
        assert change is not None
        state.scaling = None
        state.timers.clear("scale")
        if change.user_paused != bool(state.pause):
            self._pausing.order(on=change.user_paused)
        workers = len(state.last_checkpoint.workers) if state.last_checkpoint else len(state.roster)
        pause_s = now - self._held_at if change.holds else 0.0
        total_s = now - change.began
        self.changes_settled += 1
        self.last_settled = ScaleSettled(change.workers, workers, error, error != "", total_s, pause_s)
        state.report(self.last_settled)

    # --- workers that leave ---------------------------------------------------------------------------

    def _end(self, leaving: list[Worker], now: float) -> None:
        """End workers that the layout does not have any more."""
        state = self._state
        for worker in leaving:
            link = state.roster.retire(worker)
            if link is not None:
                text = f"the region continues with {workers_text(len(state.roster))}"
                state.send(link, self._ending.stop_message("stopped", text))
                state.emit(CloseLink(link))
                state.timers.set("leave", now + limits.stop_grace_s)
            elif not worker.ended:
                state.emit(CancelWorker(worker.index))

    def leave_expired(self, now: float) -> None:
        """Cancel the workers that left and did not end on their own."""
        del now
        state = self._state
        for worker in state.roster.ever():
            if not state.roster.has(worker.index) and not worker.ended:
                state.emit(CancelWorker(worker.index))

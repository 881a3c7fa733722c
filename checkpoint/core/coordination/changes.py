"""Another number of workers, or another process of one. A part of the coordinator. Pure.

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
this way after a start: with its former workers, it replays first what may have been shown. Not after the
first record of a fork or of a restore, above which no step counts.

Workers are numbered from 0 without gaps, so the highest numbers leave. A worker that comes back gets its
directory and its output again, and continues there (`Checkpoint.retired`).

**Another process of a worker** takes the same way without another layout: its *successor* is launched and
joins, the region pauses, and all restore the checkpoint, the successor in place of its predecessor. So
workers are replaced by those of another version of this package, or leave a machine. A successor that cannot
join changes nothing.
"""

from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.core.continuing import workers_wanted
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.run import CoordinatorState, Scaling
from checkpoint.core.coordination.vocabulary import ReplaceWanted, ScaleWanted
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.ending import Ending
from checkpoint.core.links.messages import CopiedAhead, CopyAhead, Refusal
from checkpoint.core.pausing import Pausing
from checkpoint.core.records.even_layout import even_layout, workers_text
from checkpoint.core.records.layout import rebalanced
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.recovery import Recovery
from checkpoint.core.region_events import ReplaceSettled, ScaleSettled
from checkpoint.core.region_states import STARTED, CoordinatorPhase, WorkerState


@dataclass(slots=True)
class Replacement:
    """Workers that are replaced one after the other."""

    workers: tuple[int, ...] = ()
    left: list[int] = field(default_factory=list)
    """Those that are not replaced yet. The first one is being replaced."""
    began: float = 0.0
    by: str = ""
    pause_s: float = 0.0
    """The longest time in which the region took no input, for one of them."""


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
        self._replacement = Replacement()
        self._ordered: dict[int, int] = {}
        """Worker that was to join -> the last incarnation in which it was ordered to create its journals."""
        self.last_settled = ScaleSettled(None, 0)
        """The last change of the number that ended; another object for each."""

    # --- at a start -----------------------------------------------------------------------------------

    def choose_layout(self, now: float) -> None:
        """Set the layout of an incarnation that begins, and its workers."""
        state, last, change = self._state, self._state.last_checkpoint, self._state.scaling
        settles = False
        if last is None:
            state.layout = even_layout(state.spec.first_workers)
        elif (
            change is not None and change.switches and not change.opened and last.number == change.checkpoint
        ):
            change.opened = True
            if change.replaces is None:
                state.layout = rebalanced(last.layout, range(change.workers))
            self._ending.retire(state.roster.succeed(), "another process takes its place", now)
        else:
            settles = change is not None
            first = self._first(last)
            changes = first != len(last.workers)
            state.layout = rebalanced(last.layout, range(first)) if changes else last.layout
        workers, asked = len(state.layout.workers), state.spec.workers
        state.declared = workers if last is None or asked == workers else last.workers_declared
        self._ending.retire(
            state.roster.resize(workers), f"the region continues with {workers_text(workers)}", now
        )
        for worker in state.roster:
            if worker.state is WorkerState.ABSENT:
                state.roster.schedule(worker, now)
        if last is not None and change is not None and settles:
            # It was committed after all, or it is given up. Not earlier: the next replacement begins with it.
            done = change.opened and (change.replaces is not None or len(last.workers) == change.workers)
            self._settle("" if done else state.reason, now)
            state.round.reason = state.round.reason or ("" if done else state.reason)
        wanted = workers if last is None else workers_wanted(state.spec, last)
        if wanted != workers and state.scaling is None:
            self._begin(wanted, now)

    def expect_workers(self, checkpoint: Checkpoint) -> None:
        """Have as many workers as an incarnation will have that begins with this checkpoint."""
        self._state.roster.resize(self._first(checkpoint))

    def _first(self, checkpoint: Checkpoint) -> int:
        """Return the number of workers with which an incarnation begins: those that may have shown steps
        after the checkpoint replay them before it has others. After the first record of a fork or of a line
        of history there are no such steps.
        """
        replays = self._state.spec.shows_steps and not checkpoint.begins(checkpoint.layout)
        return len(checkpoint.workers) if replays else workers_wanted(self._state.spec, checkpoint)

    # --- while the region runs ------------------------------------------------------------------------

    def on_scale_wanted(self, event: ScaleWanted, now: float) -> None:
        """Begin a change, or give it up. A request that is impossible is answered, and changes nothing."""
        state, change = self._state, self._state.scaling
        problem = self.problem(event.workers)
        if problem:
            state.report(ScaleSettled(event.workers, len(state.roster), problem))
        elif event.workers is None:
            assert change is not None
            replaced = change.replaces is not None
            self._give_up("it was cancelled", now)
            if replaced:  # what was given up is reported as a replacement
                state.report(ScaleSettled(None, len(state.roster), given_up=True))
        elif event.workers == len(state.roster):
            state.report(ScaleSettled(event.workers, event.workers))
        else:
            self._begin(event.workers, now)

    def on_replace_wanted(self, event: ReplaceWanted, now: float) -> None:
        """Begin to replace workers. A request that is impossible is answered, and changes nothing."""
        workers = event.workers or tuple(range(len(self._state.roster)))
        unknown = [str(worker) for worker in workers if not 0 <= worker < len(self._state.roster)]
        have = workers_text(len(self._state.roster))
        problem = self._busy() or (unknown and f"the region has {have}, and no worker {', '.join(unknown)}")
        if problem:
            self._state.report(ReplaceSettled(workers, error=problem, by=event.by))
        else:
            self._replacement = Replacement(workers, list(workers), now, event.by)
            self._replace_next(now)

    def _replace_next(self, now: float) -> None:
        self._begin(len(self._state.roster), now, replaces=self._replacement.left[0])

    def problem(self, workers: int | None) -> str:
        """Return why the request cannot be carried out, empty if it can."""
        state, change = self._state, self._state.scaling
        if workers is None:
            if change is None:
                return "no change of the number of workers is under way"
            return "it is too late: the new layout is being committed" if change.switches else ""
        if not 0 < workers <= limits.workers_max:
            return f"a region has 1 to {limits.workers_max} workers, got {workers}"
        return self._busy() or state.spec.keeps_workers

    def _busy(self) -> str:
        """Return why no change can begin now, empty if one can."""
        state, change = self._state, self._state.scaling
        if change is not None and change.replaces is not None:
            return f"worker {change.replaces} is being replaced: wait, or cancel that first"
        if change is not None:
            return (
                f"the region is already going to {workers_text(change.workers)}: wait, or cancel that first"
            )
        if state.spec.without_checkpoints:
            return "the region has no checkpoints: run it again instead"
        if state.phase is not CoordinatorPhase.RUNNING or state.restoring is not None:
            return "the region does not run now: try again when it does"
        if not state.roster.all_in(*STARTED):
            return "a worker is being taken over: try again when it runs"
        if hosted := [one for one in state.roster if one.host is not None]:
            host, index = hosted[0].host, hosted[0].index
            return f"worker {host} runs worker {index} as well, until that has a process of its own again"
        return "the region has processed all of its input" if state.final_committed else ""

    def _begin(self, workers: int, now: float, *, replaces: int | None = None) -> None:
        state = self._state
        state.scaling = Scaling(workers, now, state.incarnation, state.pause > 0, replaces)
        if replaces is None:
            state.roster.expect(workers)
        else:
            state.roster.expect_successor(replaces)
        for worker in state.roster.coming:
            self._recovery.relaunch(worker, now)
        state.timers.set("scale", now + state.spec.start_timeout_s)
        if state.last_checkpoint is None:  # a layout changes from a checkpoint to the next
            state.number_wanted = max(state.number_wanted, 1)
            self._checkpointing.checkpoint_if_overdue(now)

    def advance(self, now: float) -> None:
        """Take the next step of the change, if it is due. Call after each event."""
        state, change = self._state, self._state.scaling
        if change is None or state.phase is CoordinatorPhase.ENDED:
            return
        if change.switches:
            if change.opened and change.replaces is not None and state.phase is CoordinatorPhase.RUNNING:
                self._settle("", now)
        elif reason := self._obstacle(change):
            self._give_up(reason, now)
        elif state.phase is not CoordinatorPhase.RUNNING:
            pass  # it was requested while the region starts
        elif not change.holds:
            self._prepare(change, now)
        elif state.is_paused:
            self._switch(change, now)

    def _obstacle(self, change: Scaling) -> str:
        """Return why the change must be given up, empty if it can take its next step."""
        state = self._state
        lost = [worker for worker in state.roster.coming if worker.state is WorkerState.LOST]
        if change.incarnation != state.incarnation or state.over:
            return state.reason or "the region ends"
        if any(worker.launch_at is None and worker.attempt for worker in lost):
            error = lost[0].error.strip().splitlines() or ["its process ended"]
            return f"worker {lost[0].index} was lost: {error[-1]}"
        if state.phase in (CoordinatorPhase.STOPPING, CoordinatorPhase.OPENING):
            return state.reason or "the region is being stopped"
        return ""

    def _prepare(self, change: Scaling, now: float) -> None:
        """Order all to copy ahead once those that come have joined, and to pause once all have copied."""
        state = self._state
        joined = all(worker.state is WorkerState.JOINED for worker in state.roster.coming)
        if not joined or state.last_checkpoint is None:
            return
        if not change.copied and change.replaces is None:
            self._copy_ahead(change, state.last_checkpoint, now)
        if all(report.done for report in change.copied.values()):
            change.holds, self._held_at = True, now
            if not state.pause:
                self._pausing.order(on=True)

    def _copy_ahead(self, change: Scaling, last: Checkpoint, now: float) -> None:
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
                        checkpoint=last.number,
                        worker=worker.index,
                        restore=last,
                        layout=layout,
                        creates=self._ordered.get(worker.index) != state.incarnation,
                    ),
                )
                self._ordered[worker.index] = state.incarnation
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
        if change.replaces is not None:
            text = f"worker {change.replaces} is replaced"
        self._recovery.reset(text, now, spend=False)
        state.round.reason = ""  # planned: it is not reported as a reset
        if not change.user_paused:
            self._pausing.order(on=False)  # nothing runs now; the workers start without the pause

    def committed(self, now: float) -> None:
        """Note that the checkpoint with the new layout is committed."""
        change = self._state.scaling
        if change is not None and change.switches:  # another one only begins now that the region runs
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
        workers = len(self._state.roster)
        self._settle(reason, now)
        self._ending.retire(
            self._state.roster.resize(workers), f"the region continues without it: {reason}", now
        )

    def _settle(self, error: str, now: float) -> None:
        """End the change, and let the region continue unless a user has paused it."""
        state, change = self._state, self._state.scaling
        assert change is not None
        state.scaling = None
        state.timers.clear("scale")
        stops = state.phase is CoordinatorPhase.STOPPING  # it needs the pause itself
        if change.user_paused != bool(state.pause) and not stops:
            self._pausing.order(on=change.user_paused)
        workers = len(state.last_checkpoint.workers) if state.last_checkpoint else len(state.roster)
        pause_s = now - self._held_at if change.holds else 0.0
        if change.replaces is not None:
            self._replaced(error, pause_s, now)
            return
        total_s = now - change.began
        self.last_settled = ScaleSettled(change.workers, workers, error, error != "", total_s, pause_s)
        state.report(self.last_settled)

    def _replaced(self, error: str, pause_s: float, now: float) -> None:
        """Begin to replace the next worker, or report that all are replaced, or that one could not be."""
        under_way = self._replacement
        under_way.pause_s = max(under_way.pause_s, pause_s)
        if not error:
            del under_way.left[0]
            if under_way.left:
                self._replace_next(now)
                return
        done = under_way.workers[: len(under_way.workers) - len(under_way.left)]
        seconds = now - under_way.began
        event = ReplaceSettled(under_way.workers, done, error, seconds, under_way.pause_s, under_way.by)
        self._state.report(event)

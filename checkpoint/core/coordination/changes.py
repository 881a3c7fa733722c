"""Another number of workers, or another process of one. A part of the coordinator. Pure.

The layout changes with a checkpoint (docs/decisions/0231). An incarnation begins with the new layout, every
worker restores the last checkpoint, its own part and what it takes over, and votes for the next one before
any step runs. The acknowledgement of that checkpoint is the commit of the layout; whatever fails before it
leaves the former one. While a region runs, the new workers are first launched and copy state ahead
(*prepare*), and all stop after one committed step (*pause*). Another process of a worker takes the same way
without another layout: its *successor* joins, and restores the checkpoint in place of its predecessor.

Workers are numbered from 0 without gaps, so the highest numbers leave. One that comes back gets its directory
and its output again (`Checkpoint.retired`).
"""

from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.rounds import Recovery
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import (
    HandOverWanted,
    PauseWanted,
    ReplaceWanted,
    ScaleWanted,
)
from checkpoint.core.coordination.workers import STARTED, Worker, WorkerState
from checkpoint.core.links.messages import CopiedAhead, CopyAhead, Refusal
from checkpoint.core.records.layout import Layout, even_layout, rebalanced, workers_text
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import HandOverSettled, ReplaceSettled, ScaleSettled, workers_wanted


@dataclass(slots=True)
class Scaling:
    """A change of the workers while the region runs: of their number, or of one process."""

    workers: int
    """The number of workers to come."""
    began: float
    incarnation: int
    """The incarnation in which it was requested. In another one it is given up, unless it switches."""
    user_paused: bool
    """The region was paused by a user, and stays so."""
    replaces: int | None = None
    """The worker that gets another process; None if the number of workers changes."""
    copied: dict[int, CopiedAhead] = field(default_factory=dict)
    """Worker -> its last report. Complete once all of them are done."""
    holds: bool = False
    """The region is ordered to pause for the switch."""
    switches: bool = False
    """The incarnation with the new layout is under way, or begun."""
    opened: bool = False
    """That incarnation has begun."""
    checkpoint: int = 0
    """The checkpoint from which it begins."""
    hands_to: HandOverWanted | None = None
    """The region is handed over to another driver; no worker changes here."""
    lent: bool = False
    """It is paused for that driver, until `lease_s` is over."""


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


class Changes:
    """The layouts of one region, and the change that is under way."""

    def __init__(
        self,
        run: RegionRun,
        checkpoints: Checkpoints,
        rounds: Recovery,
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._change: Scaling | None = None
        """The change that is under way."""
        self._held_at = 0.0
        """When the region was ordered to pause for the change."""
        self._replacement = Replacement()
        self._ordered: dict[int, int] = {}
        """Worker that was to join -> the last incarnation in which it was ordered to create its journals."""
        self.last_settled = ScaleSettled(None, 0)
        """The last change of the number that ended; another object for each."""

    @property
    def change(self) -> Scaling | None:
        """The change that is under way, for the status."""
        return self._change

    def on_pause_wanted(self, event: PauseWanted, now: float) -> None:
        """Pause or continue; during a change, when it is settled."""
        if self._change is not None:
            self._change.user_paused = event.on
        else:
            self._checkpoints.on_pause_wanted(event)
            self._checkpoints.checkpoint_if_overdue(now)

    # --- at a start -----------------------------------------------------------------------------------

    def choose_layout(self, now: float) -> None:
        """Set the layout of an incarnation that begins, and its workers."""
        run, last, change = self._run, self._run.last_checkpoint, self._change
        settles, layout = False, run.layout
        if last is None:
            layout = even_layout(run.spec.first_workers)
        elif (
            change is not None and change.switches and not change.opened and last.number == change.checkpoint
        ):
            change.opened = True
            if change.replaces is None:
                layout = rebalanced(last.layout, range(change.workers))
            self._run.retire(run.roster.succeed(), "another process takes its place", now)
        else:
            settles = change is not None
            layout = self.layout_after(last)
        workers, asked = len(layout.workers), run.spec.workers
        run.set_layout(layout, workers if last is None or asked == workers else last.workers_declared)
        self._run.retire(
            run.roster.resize(workers), f"the region continues with {workers_text(workers)}", now
        )
        for worker in run.roster:
            if worker.state is WorkerState.ABSENT:
                run.roster.schedule(worker, now)
        if last is not None and change is not None and settles:
            # It was committed after all, or it is given up. Not earlier: the next replacement begins with it.
            done = change.opened and (change.replaces is not None or len(last.workers) == change.workers)
            self._settle("" if done else run.reason, now)
            self._rounds.is_a_reset_for("" if done else run.reason)
        wanted = workers if last is None else workers_wanted(run.spec, last)
        if wanted != workers and self._change is None:
            self._begin(wanted, now)

    def expect_workers(self, checkpoint: Checkpoint) -> None:
        """Have as many workers as an incarnation will have that begins with this checkpoint."""
        self._run.roster.resize(self._first(checkpoint))

    def layout_after(self, checkpoint: Checkpoint) -> Layout:
        """Return the layout with which an incarnation begins that restores this checkpoint."""
        first, layout = self._first(checkpoint), checkpoint.layout
        return layout if first == len(checkpoint.workers) else rebalanced(layout, range(first))

    def _first(self, checkpoint: Checkpoint) -> int:
        """Return the number of workers with which an incarnation begins."""
        # Those that may have shown steps after the checkpoint replay them with their own layout: divided over
        # others, a replay would show other rows for the same step. After the first record of a fork or of a
        # line of history no such step counts.
        replays = self._run.spec.shows_steps and not checkpoint.is_quiet
        return len(checkpoint.workers) if replays else workers_wanted(self._run.spec, checkpoint)

    # --- while the region runs ------------------------------------------------------------------------

    def on_scale_wanted(self, event: ScaleWanted, now: float) -> None:
        """Begin a change, or give it up. A request that is impossible is answered, and changes nothing."""
        run, change = self._run, self._change
        problem = self.problem(event.workers)
        if problem:
            run.report(ScaleSettled(event.workers, len(run.roster), problem))
        elif event.workers is None:
            assert change is not None
            replaced = change.replaces is not None
            self._give_up("it was cancelled", now)
            if replaced:  # what was given up is reported as a replacement
                run.report(ScaleSettled(None, len(run.roster), given_up=True))
        elif event.workers == len(run.roster):
            run.report(ScaleSettled(event.workers, event.workers))
        else:
            self._begin(event.workers, now)

    def on_replace_wanted(self, event: ReplaceWanted, now: float) -> None:
        """Begin to replace workers. A request that is impossible is answered, and changes nothing."""
        workers = event.workers or tuple(range(len(self._run.roster)))
        unknown = [str(worker) for worker in workers if not 0 <= worker < len(self._run.roster)]
        have = workers_text(len(self._run.roster))
        problem = self._busy() or (unknown and f"the region has {have}, and no worker {', '.join(unknown)}")
        if problem:
            self._run.report(ReplaceSettled(workers, error=problem, by=event.by))
        else:
            self._replacement = Replacement(workers, list(workers), now, event.by)
            self._replace_next(now)

    def on_hand_over_wanted(self, event: HandOverWanted, now: float) -> None:
        """Pause for another driver. A request that is impossible is answered, and changes nothing."""
        run, change, last = self._run, self._change, self._run.last_checkpoint
        if change is not None and change.hands_to is not None:  # of a program that was started again
            run.report(HandOverSettled(change.hands_to.by, error="another program asked for the region"))
            change.hands_to, change.lent = event, False
            return
        problem = self._busy()
        if run.batch_open or (last is not None and last.batch is not None):
            problem = "a query drives the region: stop the query, and start it with the other program"
        if problem:
            run.report(HandOverSettled(event.by, error=problem))
        else:
            self._begin(len(run.roster), now, hands_to=event)

    def _replace_next(self, now: float) -> None:
        self._begin(len(self._run.roster), now, replaces=self._replacement.left[0])

    def problem(self, workers: int | None) -> str:
        """Return why the request cannot be carried out, empty if it can."""
        run, change = self._run, self._change
        if workers is None:
            if change is None:
                return "no change of the number of workers is under way"
            return "it is too late: the new layout is being committed" if change.switches else ""
        if not 0 < workers <= limits.workers_max:
            return f"a region has 1 to {limits.workers_max} workers, got {workers}"
        return self._busy() or run.spec.keeps_workers

    def _busy(self) -> str:
        """Return why no change can begin now, empty if one can."""
        run, change = self._run, self._change
        if change is not None and change.replaces is not None:
            return f"worker {change.replaces} is being replaced: wait, or cancel that first"
        if change is not None and change.hands_to is not None:
            return "the region is being handed over to another driver"
        if change is not None:
            return (
                f"the region is already going to {workers_text(change.workers)}: wait, or cancel that first"
            )
        if run.spec.without_checkpoints:
            return "the region has no checkpoints: run it again instead"
        if run.phase is not CoordinatorPhase.RUNNING or self._checkpoints.restoring:
            return "the region does not run now: try again when it does"
        if not run.roster.all_in(*STARTED):
            return "a worker is being taken over: try again when it runs"
        return "the region has processed all of its input" if self._checkpoints.final_committed else ""

    def _begin(
        self, workers: int, now: float, *, replaces: int | None = None, hands_to: HandOverWanted | None = None
    ) -> None:
        run = self._run
        paused = self._checkpoints.pause > 0
        self._change = Scaling(workers, now, run.incarnation, paused, replaces, hands_to=hands_to)
        run.changing = True
        # The process that runs a hosted worker may be one that leaves, so each gets its own with the change.
        hosted = [worker.index for worker in run.roster if worker.host is not None]
        run.roster.expect(workers, [*hosted, *([] if replaces is None else [replaces])])
        for worker in run.roster.coming:
            if worker.state not in (WorkerState.LAUNCHED, WorkerState.JOINED):
                self._rounds.relaunch(worker, now)
        run.timers.set("scale", now + run.spec.start_timeout_s)
        if run.last_checkpoint is None:  # a layout changes from a checkpoint to the next
            self._checkpoints.want(1, now)

    def advance(self, now: float) -> None:
        """Take the next step of the change, if it is due. Call after each event."""
        run, change = self._run, self._change
        if change is None or run.phase is CoordinatorPhase.ENDED:
            return
        if change.switches:
            if change.opened and change.replaces is not None and run.phase is CoordinatorPhase.RUNNING:
                self._settle("", now)
        elif reason := self._obstacle(change):
            self._give_up(reason, now)
        # Never a switch from here: a region that is on its way has no committed step at which all workers
        # stand.
        elif run.phase is not CoordinatorPhase.RUNNING:
            pass  # it was requested while the region starts
        elif not change.holds:
            self._prepare(change, now)
        elif change.hands_to is not None:
            self._lend(change, change.hands_to, now)
        elif self._checkpoints.is_paused:
            self._switch(change, now)

    def _obstacle(self, change: Scaling) -> str:
        """Return why the change must be given up, empty if it can take its next step."""
        run = self._run
        lost = [worker for worker in run.roster.coming if worker.state is WorkerState.LOST]
        if change.incarnation != run.incarnation or run.over:
            return run.reason or "the region ends"
        if any(worker.launch_at is None and worker.attempt for worker in lost):
            error = lost[0].error.strip().splitlines() or ["its process ended"]
            return f"worker {lost[0].index} was lost: {error[-1]}"
        if run.phase in (CoordinatorPhase.STOPPING, CoordinatorPhase.OPENING):
            return run.reason or "the region is being stopped"
        return ""

    def _prepare(self, change: Scaling, now: float) -> None:
        """Order all to copy ahead once those that come have joined, and to pause once all have copied."""
        run = self._run
        joined = all(worker.state is WorkerState.JOINED for worker in run.roster.coming)
        if not joined or run.last_checkpoint is None:
            return
        # A successor has no need to copy: it restores from the journals of its predecessor.
        if not change.copied and change.replaces is None and change.hands_to is None:
            self._copy_ahead(change, run.last_checkpoint, now)
        if all(report.done for report in change.copied.values()):
            # A switch only after a checkpoint of one committed step: no output is visible beyond it, which
            # a replay with other divisions would show differently.
            change.holds, self._held_at = True, now
            if not self._checkpoints.pause:
                self._checkpoints.order_pause(on=True)
            if change.hands_to is not None:
                self._checkpoints.hand_over(now, on=True)

    def _copy_ahead(self, change: Scaling, last: Checkpoint, now: float) -> None:
        """Order all workers of the new layout to prepare."""
        run = self._run
        layout = rebalanced(last.layout, range(change.workers))
        for worker, link in run.roster.linked(coming=True):
            # A hosted worker and its successor copy nothing: the one ends, and the other restores all.
            if worker.index < change.workers and worker.host is None and not run.roster.is_successor(worker):
                change.copied[worker.index] = CopiedAhead(
                    job=run.spec.name, worker=worker.index, copied_bytes=0, total_bytes=0
                )
                run.send(
                    link,
                    CopyAhead(
                        **run.address,
                        checkpoint=last.number,
                        worker=worker.index,
                        restore=last,
                        layout=layout,
                        uids=last.uids,
                        # Once in an incarnation: they are claimed with it as the epoch, and the process of
                        # a change that was given up may still hold that claim.
                        creates=self._ordered.get(worker.index) != run.incarnation,
                    ),
                )
                self._ordered[worker.index] = run.incarnation
        run.timers.set("scale", now + run.spec.start_timeout_s)

    def on_copied(self, worker: Worker, message: CopiedAhead, now: float) -> Refusal | None:
        """Note how much a worker has copied. It may take longer than any limit, as long as it gets on."""
        change = self._change
        if change is None or worker.index not in change.copied or change.holds:
            return Refusal("UNEXPECTED", f"worker {worker.index} copies state, but no change is under way")
        change.copied[worker.index] = message
        self._run.timers.set("scale", now + self._run.spec.start_timeout_s)
        if message.error:
            self._give_up(f"worker {worker.index} cannot prepare: {message.error}", now)
        return None

    def _switch(self, change: Scaling, now: float) -> None:
        """Begin the incarnation with the new layout. All workers stand still after the last checkpoint."""
        run = self._run
        change.switches, change.checkpoint = True, run.last_number
        run.timers.clear("scale")
        text = f"the region goes from {len(run.roster)} to {workers_text(change.workers)}"
        if change.replaces is not None:
            text = f"worker {change.replaces} is replaced"
        # Only in a new incarnation: in the present one, a late vote could still commit the former layout.
        self._rounds.reset(text, now, spend=False)
        self._rounds.not_a_reset()
        if not change.user_paused:
            self._checkpoints.order_pause(on=False)  # nothing runs now; the workers start without the pause

    def _lend(self, change: Scaling, to: HandOverWanted, now: float) -> None:
        """Report that the region is paused, once it is, and give the other driver time to claim it."""
        run = self._run
        if change.lent or not self._checkpoints.hands_over:
            return
        change.lent = run.lent = True
        run.timers.set("scale", now + limits.lease_s)
        run.report(HandOverSettled(to.by, run.last_number))

    def committed(self, now: float) -> None:
        """Note that the checkpoint with the new layout is committed."""
        change = self._change
        if change is not None and change.switches:  # another one only begins now that the region runs
            self._settle("", now)

    def timed_out(self, now: float) -> None:
        """Give the change up: its workers did not join, or the region could not be paused."""
        run, change = self._run, self._change
        if change is not None and change.lent:
            self._give_up(f"the other driver did not claim the region within {limits.lease_s:g} s", now)
            return
        missing = [str(one.index) for one in run.roster.coming if one.state is not WorkerState.JOINED]
        timeout_s = run.spec.start_timeout_s
        self._give_up(
            f"worker {', '.join(missing)} did not join within {timeout_s:g} s: provide a task slot for each"
            if missing
            else f"the region did not copy its state and pause within {timeout_s:g} s",
            now,
        )

    def _give_up(self, reason: str, now: float) -> None:
        workers = len(self._run.roster)
        self._settle(reason, now)
        self._run.retire(self._run.roster.resize(workers), f"the region continues without it: {reason}", now)

    def _settle(self, error: str, now: float) -> None:
        """End the change, and let the region continue unless a user has paused it."""
        run, change = self._run, self._change
        assert change is not None
        self._change, run.changing = None, False
        run.timers.clear("scale")
        stops = run.phase is CoordinatorPhase.STOPPING  # it needs the pause itself
        if change.hands_to is not None:
            self._checkpoints.hand_over(now, on=False)
            # A driver that has claimed it already may still commit.
            run.lent = run.lent and run.phase is CoordinatorPhase.OPENING
        if change.user_paused != bool(self._checkpoints.pause) and not stops:
            self._checkpoints.order_pause(on=change.user_paused)
        if change.hands_to is not None:
            self._checkpoints.checkpoint_if_overdue(now)
            if not change.lent:
                run.report(HandOverSettled(change.hands_to.by, error=error))
            return
        workers = len(run.last_checkpoint.workers) if run.last_checkpoint else len(run.roster)
        pause_s = now - self._held_at if change.holds else 0.0
        if change.replaces is not None:
            self._replaced(error, pause_s, now)
            return
        total_s = now - change.began
        self.last_settled = ScaleSettled(change.workers, workers, error, error != "", total_s, pause_s)
        run.report(self.last_settled)

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
        self._run.report(event)

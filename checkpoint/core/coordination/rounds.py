"""Rounds: how a region starts, is reset to its last checkpoint, and how one lost worker is replaced. Pure.

A *round* (`Recovery`): open the manifest with a higher epoch, gather all workers (`Gathering`), order them to
the last checkpoint, start them. **Local recovery** (`TakeOvers`, docs/decisions/0233) takes over one lost
worker while the others continue: its term rises, another process joins, restores the last checkpoint, and
makes the steps of its chain again. If no stand-by waits, the process of its predecessor in the ring hosts the
worker until a process of its own has joined, which takes it back after a commit: it is *reinstated*
(DADSTORM, section 4). A loss that cannot be recovered in this way resets the region.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.recovery_estimate import RecoveryHistory
from checkpoint.core.coordination.run import CoordinatorPhase, PhaseEvent, RegionRun
from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    CloseLink,
    LaunchWorker,
    OpenManifest,
    WorkerHosted,
)
from checkpoint.core.coordination.warm_standbys import WarmStandbys
from checkpoint.core.coordination.workers import (
    Placement,
    Worker,
    WorkerEvent,
    WorkerState,
    host_of,
    launch_delay_s,
    worker_on_loopback,
)
from checkpoint.core.links.messages import (
    Join,
    Refusal,
    Restored,
    Start,
    StopKind,
    View,
    overlap,
    versions_text,
)
from checkpoint.core.region import ResetReport, WorkerJoined, WorkerLost
from checkpoint.errors import RegionFailedError

RESETS_KEPT_MAX: Final = 100


@dataclass(slots=True)
class Round:
    """The cause of a round, and when each part of it was reached, in monotonic seconds."""

    number: int = 0
    """Also rises when a worker is lost that this round launched: its next attempt counts separately."""
    open: bool = True
    """False while the region runs."""
    began: float = 0.0
    reason: str = ""
    """Empty for the first round: a start is not reported as a reset."""
    worker: int = -1
    """The worker whose loss began the round, -1 for none."""
    by_peer: bool = False
    """A worker's report about a peer began the round. If a worker is then lost in it, that loss is the better
    reason."""
    opened_at: float = 0.0
    """When the manifest was held."""
    ordered_at: float = 0.0
    """When all workers were ordered to restore."""


class Recovery:
    """The rounds of one region, and the reset attempts that it has spent."""

    def __init__(self, run: RegionRun, checkpoints: Checkpoints, standbys: WarmStandbys) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._standbys = standbys
        self.placement = Placement()
        self._round = Round()
        self._running_since = inf
        """When all workers began to run in the current round."""
        self._attempts = 0
        """Reset attempts spent since the last committed checkpoint."""
        self._epoch_floor = 0
        self._resets: deque[ResetReport] = deque(maxlen=RESETS_KEPT_MAX)
        self._history = RecoveryHistory()

    @property
    def number(self) -> int:
        """The number of the round (`Round.number`)."""
        return self._round.number

    @property
    def attempts(self) -> int:
        return self._attempts

    @property
    def resets(self) -> Sequence[ResetReport]:
        return self._resets

    @property
    def history(self) -> RecoveryHistory:
        """What the last rounds took."""
        return self._history

    @property
    def epoch_floor(self) -> int:
        """The next incarnation must be higher: a worker's directory was found claimed with this epoch."""
        return self._epoch_floor

    def claimed_with(self, epoch: int) -> None:
        """Note that a worker's directory is claimed with this epoch."""
        self._epoch_floor = max(self._epoch_floor, epoch)

    # --- a round begins -------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin the first round; for a hand-over, claim nothing before all have joined (`Heir`)."""
        run = self._run
        run.move(PhaseEvent.BEGUN)
        self._round.number, self._round.began = 1, now
        run.timers.set("beat", now + limits.heartbeat_s)
        run.timers.set("gather", now + run.spec.start_timeout_s)
        for worker in run.roster:
            run.roster.schedule(worker, now)
        if run.spec.hand_over:
            run.reason = "its workers join before it takes the region over"
        else:
            self.open_manifest()

    def open_manifest(self) -> None:
        run = self._run
        run.timers.clear("open")
        step = limits.terms_per_incarnation if run.spec.recovery == "local" else 1
        heir_s = limits.heir_commits_s if run.lent else 0.0
        run.emit(OpenManifest(self._epoch_floor, run.incarnation, step, heir_s, run.decide_claimed))

    def reset(
        self, reason: str, now: float, *, worker: int = -1, spend: bool = True, delay_s: float = 0.0
    ) -> None:
        """Reset to the last committed checkpoint in a new incarnation, or fail if no attempt is left.

        worker: whose loss is the reason, -1 for none. spend: it counts as an attempt. delay_s: the least
        delay before the manifest is opened.
        """
        if not self.begin_round(reason, now, worker=worker, spend=spend):
            return
        run = self._run
        self._checkpoints.forget_incarnation()
        # All terms lie below the new incarnation, in which every worker claims anew.
        run.forget_terms()
        run.timers.clear("restore", "drain", "checkpoint", "take over")
        run.roster.release()
        self.launch_unhosted(now)
        for finished in run.roster:
            if finished.state is WorkerState.DONE and self._standbys.loaded(finished.index) is None:
                run.roster.schedule(finished, now)
        run.move(PhaseEvent.RESET)
        # With a delay after several attempts in a row, so that they outlast a short outage instead of failing
        # the region.
        delay_s = max(delay_s, launch_delay_s(self._attempts))
        # Before any order: once it is held, nothing can be committed in the old incarnation.
        if delay_s:
            run.timers.set("open", now + delay_s)
        else:
            self.open_manifest()

    def end_processes(self, reason: str) -> None:
        """End all workers, which are launched again if the manifest is held again: the driver to which the
        region was lent commits nothing before its workers have what these hold, such as locks of files.
        """
        run = self._run
        for worker, link in list(run.roster.linked()):
            run.send(link, run.stop_message("superseded", reason))
            run.roster.lose(worker, reason, ended=False)
            run.emit(CloseLink(link))

    def launch_unhosted(self, now: float) -> None:
        """Launch the workers that another one's process was to run: after a reset nobody hosts."""
        for worker in self._run.roster:
            if worker.host is not None and worker.state is WorkerState.LAUNCHED:
                self._run.roster.lose(worker, "its host was reset before it joined", ended=True)
                self._run.roster.schedule(worker, now)

    def begin_round(self, reason: str, now: float, *, worker: int, spend: bool) -> bool:
        """Begin a round, or continue the open one for a new reason. Return False if no attempt is left."""
        run, current = self._run, self._round
        # Without checkpoints no commit forgives attempts; time in RUNNING does.
        if run.spec.without_checkpoints and now > self._running_since + limits.reset_forgiven_s:
            self._attempts = 0
            self.placement.forgive()
        self._running_since = inf
        if spend:
            self._attempts += 1
        if self._attempts > run.spec.max_consecutive_reset_attempts:
            resets = self._attempts - 1
            text = f"no checkpoint was committed after {resets} consecutive resets; last reason: {reason}"
            error = RegionFailedError(
                text,
                traceback_text=run.roster[worker].error if worker >= 0 else "",
                remedy="fix the cause, then run the region again; it continues from its last checkpoint",
            )
            run.fail(error, now, text)
            return False
        if not current.open:
            current.open, current.began = True, now
            current.reason, current.worker = reason, worker
        current.by_peer = False
        current.number += 1
        run.reason = reason
        run.timers.set("gather", now + run.spec.start_timeout_s)
        return True

    def began_by_peer(self) -> None:
        """Note that only a peer's report began the round."""
        self._round.by_peer = True

    def better_reason(self, reason: str, worker: int) -> None:
        """Replace the reason of a round that a peer's report began by the loss of the worker itself."""
        if self._round.by_peer:
            self._round.worker, self._round.by_peer = worker, False
            self.explain(reason)

    def explain_loss(self, worker: int, before: str, cause: str) -> None:
        """Replace the cause, `before`, of the loss of the worker that began the round that is open, if so."""
        current = self._round
        if current.open and current.worker == worker and before in current.reason:
            self.explain(current.reason.replace(before, cause))

    def explain(self, reason: str) -> None:
        """State the reason of the round."""
        self._round.reason, self._run.reason = reason, reason

    def not_a_reset(self) -> None:
        """The round is planned: it is not reported as a reset."""
        self._round.reason = ""

    def is_a_reset_for(self, reason: str) -> None:
        """A planned change was given up in this round, for this reason."""
        self._round.reason = self._round.reason or reason

    # --- a round ends ---------------------------------------------------------------------------------

    def manifest_opened(self, now: float) -> None:
        self._round.opened_at = now
        # Not earlier: meanwhile, the loss that began the round is reported. Of all workers: those that were
        # not lost go back to the checkpoint, too, and their stand-bys have not gone beyond it.
        for worker in self._run.roster:
            if worker.dying and self._standbys.loaded(worker.index) is not None:  # its last words come later
                self._run.report(WorkerLost(worker.index, worker.attempt, worker.dying))
                self.better_reason(f"worker {worker.index} was lost: {worker.dying}", worker.index)
        self._standbys.take_places(self._run.roster)

    def ordered(self, now: float) -> None:
        self._round.ordered_at = now

    def forgive(self) -> None:
        """A checkpoint was committed: forget the failures before it."""
        self._attempts = 0
        self._run.roster.forgive()
        self.placement.forgive()

    def running(self, now: float) -> None:
        """Note that all workers begin to run."""
        self._running_since = now

    def end_round(self, now: float) -> None:
        """Close the round, and report it as a reset unless it was the first."""
        run, ended = self._run, self._round
        ended.open, run.reason = False, ""
        slowest = max(run.roster, key=lambda worker: worker.restore_seconds)
        phases_s = {"manifest": ended.opened_at - ended.began, "gather": ended.ordered_at - ended.opened_at}
        phases_s |= slowest.restore_phases_s
        phases_s["start"] = now - ended.ordered_at - sum(slowest.restore_phases_s.values())
        self._history.note_round(phases_s, slowest.replayed_bytes)
        if not ended.reason:
            return
        self.report(
            ResetReport(
                time=ended.began,
                worker=ended.worker,
                reason=ended.reason,
                seconds=now - ended.began,
                bytes=sum(worker.replayed_bytes for worker in run.roster),
                incarnation=run.incarnation,
                checkpoint=run.last_number,
                phases_s=phases_s,
            )
        )

    def report(self, report: ResetReport) -> None:
        self._resets.append(report)
        self._run.report(report)

    def relaunch(self, worker: Worker, now: float) -> None:
        """Cancel the old attempt of a lost worker, and schedule the next one, unless a process stands by that
        takes its place when the manifest is held.
        """
        if not worker.ended:
            self._run.emit(CancelWorker(worker.index, worker.attempt))
        opening = self._run.phase is CoordinatorPhase.OPENING and not self._run.changing
        if not opening or self._standbys.loaded(worker.index) is None:
            self._run.roster.schedule(worker, now)


@dataclass(slots=True)
class WorkerTakeOver:
    """The take-over of one worker that is under way. Times are monotonic seconds."""

    worker: Worker
    reason: str
    began: float
    ordered_at: float = 0.0
    """When its new process was ordered to restore, 0 before."""


class TakeOvers:
    """The take-overs of one region: one at a time."""

    def __init__(
        self, run: RegionRun, checkpoints: Checkpoints, rounds: Recovery, standbys: WarmStandbys
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._standbys = standbys
        self._under_way: WorkerTakeOver | None = None

    def problem(self, worker: Worker) -> str:
        """Return why the loss of a worker resets the region, empty if it can be taken over."""
        run, under_way = self._run, self._of_now()
        if run.spec.recovery == "global" or run.spec.resets_because:
            return run.spec.resets_because or "the region has global recovery"
        if run.phase is not CoordinatorPhase.RUNNING:
            return "the region does not run"
        if self._checkpoints.final_committed:
            return "the region has processed all of its input"
        if run.changing:
            return "the workers of the region are being changed"
        if under_way is not None and under_way.worker is not worker:
            return f"worker {under_way.worker.index} was being taken over"
        # The cause is then likely a row: taken over again and again, it would hide the error from everybody.
        if worker.failures > 1:
            return "it was lost before, and no checkpoint was committed since"
        # A term that reaches the next incarnation would pass for one: an old process could vote in it.
        if self._next_term() >= run.incarnation + limits.terms_per_incarnation:
            return "workers were taken over too often since the last reset"
        return "" if len(run.roster) > 1 else "it is the only worker"

    def begin(self, worker: Worker, reason: str, now: float) -> None:
        """Begin to take a lost worker over. Its old process is cancelled at once: nothing of it counts."""
        run = self._run
        self._standbys.take_places([worker])
        worker = run.roster[worker.index]
        self._under_way = WorkerTakeOver(worker, reason, now)
        term = self._next_term()
        # Before another process is launched: a late vote of the old one would name positions that its
        # successor cuts off.
        run.raise_term(worker.index, term)
        self._checkpoints.taken_over(worker, term)
        run.reason = reason
        run.timers.clear("drain")  # it stands still until the worker is back
        run.timers.set("take over", now + run.spec.reset_timeout_s)
        if worker.state is WorkerState.LOST:
            self._rounds.relaunch(worker, now)

    def host_of(self, worker: Worker) -> Worker | None:
        """Return the worker that may host this one, its predecessor in the ring; None: it needs a process."""
        if not self.is_of(worker):
            return None
        host = self._run.roster[(worker.index - 1) % len(self._run.roster)]
        return host if host.state is WorkerState.RUNNING and host.host is None else None

    def on_hosted(self, event: WorkerHosted, now: float) -> None:
        """Note that a worker runs in the process of another one. The launcher knows nothing of it."""
        worker = self._run.roster.find(event.worker, event.attempt)
        if worker is not None:
            worker.host, worker.ended = event.host, True
            if not self.is_of(worker):  # a reset came first
                self._rounds.launch_unhosted(now)

    def _expect_return(self, now: float) -> None:
        """Launch a process of its own for a worker that another one hosts."""
        run = self._run
        hosted = [one for one in run.roster if one.host is not None and one.state is WorkerState.RUNNING]
        if run.phase is not CoordinatorPhase.RUNNING or not hosted or run.changing:
            return
        if not run.roster.coming:
            run.roster.expect(len(run.roster), [hosted[0].index])
            self._rounds.relaunch(run.roster.coming[0], now)
        elif run.roster.coming[0].state is WorkerState.LOST and run.roster.coming[0].launch_at is None:
            run.roster.schedule(run.roster.coming[0], now)

    def reinstate(self, now: float) -> None:
        """Let a process that has joined take its worker back, just after a commit."""
        run = self._run
        back = [one for one in run.roster.coming if one.state is WorkerState.JOINED]
        if self._of_now() is not None or not back or run.changing or self._checkpoints.final_committed:
            return
        if not run.roster.all_in(WorkerState.RUNNING):
            return
        text = f"worker {back[0].index} continues in its own process"
        self._run.retire(run.roster.succeed(), text, now)
        self.begin(back[0], text, now)

    def _next_term(self) -> int:
        return max([self._run.incarnation, *self._run.terms.values()]) + 1

    def _of_now(self) -> WorkerTakeOver | None:
        """Return the take-over under way. A reset has ended it, if there was one."""
        under_way = self._under_way
        if under_way is not None and under_way.worker.index not in self._run.terms:
            self._under_way = None
        return self._under_way

    def advance(self, now: float) -> None:
        """Order the new process, once it has joined and no append is under way. Call after each event."""
        run, under_way = self._run, self._of_now()
        if under_way is None and not run.over:
            self._expect_return(now)
        if under_way is None or under_way.ordered_at or run.over:
            return
        worker = under_way.worker
        loading = self._standbys.loading(worker, now)
        if worker.state is not WorkerState.JOINED or loading or not self._is_settled():
            return
        if self._checkpoints.final_committed:
            text = "meanwhile the region has processed all of its input"
            self._rounds.reset(f"{under_way.reason}; all workers are reset: {text}", now, worker=worker.index)
            return
        assert worker.link is not None
        assert worker.join is not None
        under_way.ordered_at = now
        worker.move(WorkerEvent.ORDER)
        run.send_restore(worker, worker.link, takes_over=True)
        view = View(
            **run.address,
            peer=worker.index,
            term=run.terms[worker.index],
            address=run.roster.peers()[worker.index],
            step=run.last_step,
        )
        for other, link in run.roster.linked():
            if other is not worker:
                run.send(link, view)

    def _is_settled(self) -> bool:
        """Return whether the last committed checkpoint is known: no append to the manifest is under way."""
        # With the acknowledgement of an append, the others purge the steps before it: a successor that was
        # ordered to the checkpoint before could not get these any more.
        return self._checkpoints.settled

    def is_of(self, worker: Worker) -> bool:
        """Return whether this worker is being taken over."""
        under_way = self._of_now()
        return under_way is not None and under_way.worker is worker

    def restored(self, worker: Worker, message: Restored, now: float) -> None:
        """Start the worker: it replays its own chain, and then runs with the others."""
        run, under_way = self._run, self._under_way
        assert under_way is not None
        worker.move(WorkerEvent.START)
        worker.step = run.last_step
        assert worker.link is not None
        run.send(worker.link, Start(**run.address, replay_until_step=message.last_step))
        self._checkpoints.repeat_orders(worker.link, now)
        self._end(under_way, now)

    def _end(self, under_way: WorkerTakeOver, now: float) -> None:
        run, worker = self._run, under_way.worker
        self._under_way, run.reason = None, ""
        run.timers.clear("take over")
        phases = {"gather": under_way.ordered_at - under_way.began, **worker.restore_phases_s}
        self._rounds.report(
            ResetReport(
                time=under_way.began,
                worker=worker.index,
                reason=under_way.reason,
                seconds=now - under_way.began,
                bytes=worker.replayed_bytes,
                incarnation=run.incarnation,
                checkpoint=run.last_number,
                phases_s={**phases, "start": now - under_way.began - sum(phases.values())},
                term=run.terms[worker.index],
            )
        )

    def timed_out(self, now: float) -> None:
        """Reset the region: the worker could not be taken over in time."""
        under_way = self._of_now()
        if under_way is not None and self._run.phase is CoordinatorPhase.RUNNING:
            text = f"it was not taken over within reset_timeout {self._run.spec.reset_timeout_s:g} s"
            self._rounds.reset(f"{under_way.reason}; {text}", now, worker=under_way.worker.index)


class Gathering:
    """The workers of one region, from their launch to the start of a round."""

    def __init__(
        self,
        run: RegionRun,
        checkpoints: Checkpoints,
        rounds: Recovery,
        take_overs: TakeOvers,
        standbys: WarmStandbys,
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._take_overs = take_overs
        self._standbys = standbys
        self._examining = False

    @property
    def examining(self) -> bool:
        """Whether the retained checkpoints are being read: no worker is ordered (`FallingBack`)."""
        return self._examining

    def hold_orders(self, *, on: bool) -> None:
        """Order no worker until the retained checkpoints are read."""
        self._examining = on

    def launch_due(self, now: float) -> None:
        """Launch every worker whose time is reached. It only joins, so it needs no incarnation."""
        run = self._run
        for worker in run.roster.ever():
            if worker.launch_at is not None and worker.launch_at <= now:
                attempt = run.roster.launch(worker, self._rounds.number, now)
                beside, host = run.roster.is_successor(worker), self._take_overs.host_of(worker)
                run.emit(
                    LaunchWorker(worker.index, attempt, beside)
                    if host is None or host.link is None
                    else LaunchWorker(worker.index, attempt, beside, host.index, host.link)
                )

    def on_join(self, link: int, join: Join, now: float) -> Refusal | None:
        """Take the first message of a link. Only the current attempt of a worker is accepted."""
        run = self._run
        if run.over:
            return self._refuse_join(link, "stopped", run.reason)
        worker = run.roster.find(join.worker, join.attempt)
        if worker is None or not run.roster.has(worker) or worker.state is not WorkerState.LAUNCHED:
            newest = [one for one in run.roster.ever() if one.index == join.worker and run.roster.has(one)]
            if not newest:
                return self._refuse_join(link, "refused", f"there is no worker {join.worker}")
            current = ", ".join(f"attempt {one.attempt} is {one.state.name}" for one in newest)
            text = f"attempt {join.attempt} of worker {join.worker}; {current}"
            return self._refuse_join(link, "superseded", text)
        others = (one for one in run.roster if one.index != worker.index and one.link is not None)
        blocked = self._rounds.placement.rejects(join.host, others, now)
        if blocked is not None:
            text = f"a worker on {join.host} cannot reach worker {blocked.index} on {host_of(blocked)}"
            run.roster.lose(worker, text, ended=False)
            # Not canceled: the launcher may keep its place occupied until the next attempt has another one.
            worker.launch_at = now + limits.launch_backoff_s
            return self._refuse_join(link, "superseded", text)
        if text := self._unfit_version(join):
            run.roster.lose(worker, text, ended=False)
            return self._refuse_join(link, "refused", text)
        run.roster.joined(worker, link, join, now)
        self._rounds.history.note_launch(now - worker.launched_at)
        run.report(WorkerJoined(worker.index, worker.attempt, join.host, join.pid))
        self.order_if_gathered(now)
        return None

    def _unfit_version(self, join: Join) -> str:
        """Return why a worker cannot exchange rows with one that has joined, empty if it can with all."""
        for one in self._run.roster:
            other = one.join
            if one.link is None or other is None or one.index == join.worker:
                continue
            if not overlap(join.speaks, other.speaks):
                return (
                    f"worker {join.worker} on {join.host} speaks {versions_text(join.speaks)} of the messages"
                    f" between workers, and worker {one.index} on {other.host} {versions_text(other.speaks)}:"
                    " install a version on one of these hosts that fits the other"
                )
        return ""

    def _refuse_join(self, link: int, kind: StopKind, text: str) -> Refusal:
        self._run.send(link, self._run.stop_message(kind, text))
        self._run.emit(CloseLink(link))
        return Refusal("STALE_ATTEMPT" if kind == "superseded" else "UNKNOWN_WORKER", text)

    def order_if_gathered(self, now: float) -> None:
        """Order every worker to the last checkpoint, if the manifest is held and all workers have joined."""
        run = self._run
        if run.phase is not CoordinatorPhase.GATHERING or not run.roster.all_in(WorkerState.JOINED):
            return
        if self._examining or self._checkpoints.restoring:
            return
        if any(self._standbys.loading(worker, now) for worker in run.roster):
            return
        if (alone := worker_on_loopback(run.roster)) is not None:
            self._fail_for_address(alone, now)
            return
        # With the phase: a worker gets one Restore in an incarnation, and none before the manifest is held.
        run.move(PhaseEvent.GATHERED)
        self._rounds.ordered(now)
        run.timers.clear("gather")
        run.timers.set("restore", now + run.spec.reset_timeout_s)
        if run.layout_changes:
            self._checkpoints.expect_first_votes(now)
        for worker, link in run.roster.linked():
            worker.move(WorkerEvent.ORDER)
            run.send_restore(worker, link)

    def _fail_for_address(self, worker: Worker, now: float) -> None:
        assert worker.join is not None
        text = (
            f"worker {worker.index} on {worker.join.host} gave {worker.join.exchange_host} as its address,"
            " which workers on other machines cannot reach"
        )
        remedy = (
            "pass coordinator_address, or set spark.driver.host, to an address of the driver that is not"
            f" loopback; or set DOS_ADVERTISE_HOST on {worker.join.host} to its address"
        )
        error = RegionFailedError(text, remedy=remedy)
        self._run.fail(error, now, text)

    def on_restored(self, worker: Worker, message: Restored, now: float) -> Refusal | None:
        """Note that a worker has restored; with the last one, start all, or wait for their layout."""
        if worker.state is not WorkerState.ORDERED:
            return Refusal("UNEXPECTED", f"worker {worker.index} reported Restored without an order")
        worker.move(WorkerEvent.RESTORED)
        worker.last_step = message.last_step
        worker.replayed_bytes, worker.restore_seconds = message.replayed_bytes, message.seconds
        worker.restore_phases_s = message.phases_s
        if self._take_overs.is_of(worker):
            self._take_overs.restored(worker, message, now)
        elif self._run.roster.all_in(WorkerState.RESTORED) and not self._run.layout_changes:
            self.start_all(now)
        return None

    def start_all(self, now: float) -> None:
        """Start all workers. Steps that all have on record are replayed exactly."""
        run = self._run
        run.move(PhaseEvent.RESTORED)
        self._rounds.running(now)
        step = run.last_step
        replay_until = max(step, min(worker.last_step for worker in run.roster))
        for worker in run.roster:
            worker.move(WorkerEvent.START)
            worker.step, worker.wants_checkpoint = step, 0
        run.timers.clear("restore")
        self._checkpoints.set_checkpoint_time(now)
        run.send_all(Start(**run.address, replay_until_step=replay_until))
        if self._checkpoints.pause:
            self._checkpoints.send_pause()
        self._rounds.end_round(now)

    def timed_out(self, now: float) -> None:
        """Fail the region if workers are missing; wait on if only the manifest is."""
        run = self._run
        missing = run.roster.indices_not_in(WorkerState.JOINED)
        waits = run.phase is CoordinatorPhase.OPENING or self._examining or self._checkpoints.restoring
        if waits and not missing:
            run.timers.set("gather", now + run.spec.start_timeout_s)
            return
        if run.changing:
            self._rounds.reset("a worker of the new layout did not join", now)
            return
        errors = "; ".join(f"worker {i}: {run.roster[i].error}" for i in missing if run.roster[i].error)
        listed = ", ".join(map(str, missing))
        text = f"worker {listed} did not join within {run.spec.start_timeout_s:g} s"
        error = RegionFailedError(
            f"{text} ({errors})" if errors else text,
            remedy="provide one task slot for each worker; a worker occupies its slot as long as it runs",
        )
        run.fail(error, now, text)

"""Workers fail, fall silent, end or take too long; the last checkpoint is damaged; and what follows. Pure.

A worker that meets damage in its restore reports it, which proves nothing: another member may have the bytes.
So the region is reset, and before any worker is ordered, the driver reads the retained checkpoints from the
newest on (`ExamineCheckpoints`), while every member answers. If the last one reads whole, the workers are
ordered to it; from the second time on, that reset spends an attempt. If it is damaged, the region fails
(`on_damaged` "fail"), or goes back to the newest older one that reads whole ("previous"), unless that takes
back output that its sink cannot take back.
"""

from typing import Final

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.rounds import Gathering, Recovery, TakeOvers
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    CheckpointsExamined,
    CloseLink,
    ExaminationWaits,
    ExamineCheckpoints,
    LinkDown,
    WorkerEnded,
)
from checkpoint.core.coordination.workers import Worker, WorkerState, host_of
from checkpoint.core.links.messages import CompanionReport, Failed, Heartbeat, Refusal, Suspects
from checkpoint.core.records.lines import refuse_republishing
from checkpoint.core.records.manifest import Checkpoint, Examination
from checkpoint.core.records.views import report_text, rewind_report
from checkpoint.core.region import FellBack, RegionState, WorkerLost, check_goes_back
from checkpoint.errors import (
    CheckpointDamagedError,
    GraphChangeRefusedError,
    ManifestError,
    RegionFailedError,
    RestoreRefusedError,
)

_LINK_GONE: Final = "its control link is gone"


class FallingBack:
    """The examinations of one region's checkpoints, and what follows from them."""

    def __init__(self, run: RegionRun, checkpoints: Checkpoints, gathering: Gathering) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._gathering = gathering
        self._suspected = ""
        """The report of a worker that the last checkpoint seems damaged, empty if there is none."""
        self._disproved = False

    @property
    def disproved(self) -> bool:
        """Whether such a report was wrong before, so that further ones spend reset attempts."""
        return self._disproved

    def suspect(self, report: str) -> None:
        """Note a worker's report of damage: the next incarnation begins with an examination."""
        self._suspected = report

    def examine_or_order(self, now: float) -> None:
        """When an incarnation begins: examine the checkpoints if damage was reported, or order all."""
        run = self._run
        examine = bool(self._suspected and run.kept)
        self._gathering.hold_orders(on=examine)
        if examine:
            run.reason = f"the retained checkpoints are read: {self._suspected}"
            run.emit(ExamineCheckpoints(run.incarnation, run.kept))
        self._gathering.order_if_gathered(now)

    def on_waits(self, event: ExaminationWaits, now: float) -> None:
        """Show what the examination waits for."""
        del now
        if self._counts(event.incarnation):
            self._run.reason = f"the retained checkpoints cannot be read yet: {event.reason}"

    def on_examined(self, event: CheckpointsExamined, now: float) -> None:
        """Order the workers, or fall back, or fail."""
        run, found = self._run, event.found
        if not self._counts(event.incarnation):
            return
        self._gathering.hold_orders(on=False)
        suspected, self._suspected = self._suspected, ""
        last = run.kept[-1]
        if not found.damaged:
            run.reason = f"checkpoint {last.number} reads whole, although {suspected}"
            self._disproved = True
            self._gathering.order_if_gathered(now)
            return
        target = next((checkpoint for checkpoint in run.kept if checkpoint.number == found.whole), None)
        if run.spec.on_damaged == "fail" or target is None:
            self._fail(CheckpointDamagedError(found.text, remedy=self._remedy(found)), now)
            return
        try:
            check_goes_back(run.spec, run.kept, target)
        except (ManifestError, GraphChangeRefusedError) as error:
            text = f"{found.text}; checkpoint {target.number} is whole, but {error.args[0]}"
            remedy = f"run the program that made it, after {self._command(target.number)}"
            self._fail(CheckpointDamagedError(text, remedy=remedy), now)
            return
        try:
            if not run.spec.allow_republish:
                refuse_republishing(last, target)
        except RestoreRefusedError as error:
            text = f"{found.text}; checkpoint {target.number} is whole, but {error.args[0]}"
            command = self._command(target.number, " --allow-republish")
            remedy = f"confirm that these rows may come again: allow_republish=True, or {command}"
            self._fail(CheckpointDamagedError(text, remedy=remedy), now)
            return
        self._checkpoints.fall_back(target, self._report(last, target, found))

    def _counts(self, incarnation: int) -> bool:
        """Return whether a result is of the examination that is under way."""
        run = self._run
        gathers = run.phase is CoordinatorPhase.GATHERING and not run.over
        return self._gathering.examining and gathers and incarnation == run.incarnation

    def _fail(self, error: CheckpointDamagedError, now: float) -> None:
        self._run.fail(error, now, str(error.args[0]))

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
        return f"`dos region restore URL {self._run.spec.name} {to}`"

    @staticmethod
    def _report(last: Checkpoint, target: Checkpoint, found: Examination) -> FellBack:
        lost = tuple(report_text(rewind_report(last, target)))
        return FellBack(last.number, target.voted_as, last.step, target.step, found, lost)


class Losses:
    """The failures of one region's workers."""

    def __init__(
        self,
        run: RegionRun,
        checkpoints: Checkpoints,
        rounds: Recovery,
        take_overs: TakeOvers,
        falling_back: FallingBack,
    ) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._rounds = rounds
        self._take_overs = take_overs
        self._falling_back = falling_back
        # Two that suspect it, or silence here as well: one bad link must not cost a worker that works.
        self._suspected: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
        """(worker, term) -> who suspects it -> since when, and when it said so last."""
        self._unexplained: dict[int, tuple[int, str]] = {}
        """Worker -> its attempt whose link went last, and that as a reason. The launcher knows more."""

    # --- reports --------------------------------------------------------------------------------------

    def on_link_down(self, event: LinkDown, now: float) -> None:
        worker = self._run.roster.by_link(event.link)
        if worker is not None:
            text = f"{_LINK_GONE}: {event.reason}"
            self._unexplained[worker.index] = worker.attempt, text
            self._dies(worker, worker.dying or text, now)  # the launcher may have reported it first

    def on_worker_ended(self, event: WorkerEnded, now: float) -> None:
        """Take the launcher's report of an ended attempt. A report about an older attempt is ignored."""
        run = self._run
        attempt, text = self._unexplained.get(event.worker, (0, ""))
        if event.error and attempt == event.attempt:  # perhaps its next attempt is launched already
            self._rounds.explain_loss(event.worker, text, event.error)
        worker = run.roster.find(event.worker, event.attempt)
        if worker is None:
            return
        run.roster.ended(worker)
        if not run.roster.has(worker):
            pass  # no layout has it now, or another process is in its place: nothing follows
        elif worker.state in (WorkerState.LOST, WorkerState.DONE):
            if event.error and (not worker.error or worker.error.startswith(_LINK_GONE)):
                # Otherwise the cause is known, and the process was killed after it.
                worker.error = event.error
            # Not before its end was reported: two processes of one attempt would claim the same directory in
            # turn.
            if worker.state is WorkerState.LOST and not run.over and not run.lent:
                self._rounds.relaunch(worker, now)
        elif worker.state is not WorkerState.ABSENT:
            self._dies(worker, event.error or "its process ended", now)
        self._run.end_if_all_ended()

    def _dies(self, worker: Worker, reason: str, now: float) -> None:
        """Count a worker as lost when its companion has said what ran, or after a short time."""
        run = self._run
        waits = worker.companion is not None and not run.over and worker.state is not WorkerState.FINISHED
        if waits and not worker.last_words:
            worker.dying = reason
            run.timers.set("last words", now + limits.last_words_s)
        else:
            self.lose(worker, f"{reason}{worker.last_words}", now, ended=worker.ended)

    def on_companion(self, message: CompanionReport, now: float) -> None:
        """Take what the companion of a worker reports. Of an older attempt it does not count."""
        worker = self._run.roster.find(message.worker, message.attempt)
        if worker is None:
            return
        if message.ended:
            worker.companion = None
            if message.operator:
                worker.last_words = f"; operator {message.operator!r} was running"
            if message.sinks:
                worker.last_words += f"; sink {message.sinks!r} made a checkpoint durable"
            if worker.dying:
                self.lose(worker, f"{worker.dying}{worker.last_words}", now, ended=worker.ended)
            return
        worker.companion = message
        if not message.stopped:
            for one in (worker, *(hosted for hosted in self._run.roster if hosted.host == worker.index)):
                one.vouched_at = now

    def last_words_expired(self, now: float) -> None:
        """Count the workers as lost whose companions say nothing."""
        for worker in list(self._run.roster.ever()):
            if worker.dying:
                self.lose(worker, worker.dying, now, ended=worker.ended)

    def on_failed(self, worker: Worker, message: Failed, now: float) -> Refusal | None:
        """Handle a failure that a worker reports, by its FailureKind (see messages.py)."""
        run, kind = self._run, message.kind
        if kind in ("operator", "manifest"):
            self._fail_for_good(worker, message, now)
        elif kind == "internal":
            self.lose(worker, message.message or "it failed", now, ended=False, text=message.traceback)
        elif run.phase is CoordinatorPhase.STOPPING:
            reason = f"stopped without a last checkpoint: {message.message}"
            self._run.decide(RegionState.STOPPED, reason, now, kind="stopped")
        elif run.phase is CoordinatorPhase.OPENING and message.damaged:
            # A peer has reported first that this worker's links broke, which began the reset.
            self._falling_back.suspect(f"worker {worker.index}: {message.message}")
        elif run.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            if kind == "fenced":
                self._rounds.claimed_with(message.epoch_held)
            reason = f"worker {worker.index}: {message.message}"
            if kind == "unreachable":
                self._unreachable(worker, message, reason, now)
                return None
            if kind == "reset":
                reason = _failure_text(worker, message)
                worker.error = message.traceback or reason
            if kind == "store" and message.damaged:
                self._falling_back.suspect(reason)
                self._rounds.reset(reason, now, worker=worker.index, spend=self._falling_back.disproved)
            elif kind == "store":
                delay_s = limits.launch_backoff_s
                self._rounds.reset(reason, now, worker=worker.index, spend=False, delay_s=delay_s)
            else:
                self._rounds.reset(reason, now, worker=worker.index)
            if kind == "peer":
                self._rounds.began_by_peer()
        return None

    def _unreachable(self, worker: Worker, message: Failed, reason: str, now: float) -> None:
        """Reset without spending an attempt, and place one of the two workers on another host."""
        run = self._run
        if not 0 <= message.peer < len(run.roster):
            self._rounds.reset(reason, now, worker=worker.index)
            return
        peer = run.roster[message.peer]
        seconds = self._rounds.placement.report(worker, peer, now)
        # Time decides, and not attempts: a network may take longer to heal than any number of resets.
        limit_s = run.spec.reset_timeout_s if run.last_checkpoint else limits.unreachable_at_start_s
        if seconds > limit_s:
            text = (
                f"in {seconds:.0f} s no placement was found in which all workers reach each other: {reason}"
            )
            remedy = (
                "repair the network between these hosts, or provide another host, then run the region again"
            )
            run.fail(RegionFailedError(text, remedy=remedy), now, text)
            return
        moved = self._rounds.placement.worker_to_move(worker, peer, now)
        delay_s = limits.launch_backoff_s
        self._rounds.reset(reason, now, worker=worker.index, spend=False, delay_s=delay_s)
        self._rounds.began_by_peer()
        if moved is not None and moved.link is not None:
            # Its old attempt is cancelled and replaced once the manifest is held (`ManifestClaim`).
            self.lose(moved, "it is moved to another host, because a peer cannot reach it", now, ended=False)
        self._rounds.explain(reason)

    def _fail_for_good(self, worker: Worker, message: Failed, now: float) -> None:
        reason = _failure_text(worker, message)
        worker.error = reason
        error = RegionFailedError(reason, traceback_text=message.traceback)
        self._run.fail(error, now, reason)

    # --- the loss of a worker -------------------------------------------------------------------------

    def lose(self, worker: Worker, reason: str, now: float, *, ended: bool, text: str = "") -> None:
        """Count an attempt as over. ended: the launcher reported it. text: kept as the error."""
        run = self._run
        ended = ended or worker.host is not None  # the launcher knows nothing of it, and reports no end
        if worker.state is WorkerState.FINISHED:
            self._close(run.roster.leave(worker, ended=ended))
            self._checkpoints.finish_if_all_have(now)
            return
        error = f"{reason}\n{text}" if text else reason
        # What ends after the region has is ended by it, which is not why.
        self._close(run.roster.lose(worker, worker.error if run.over else error, ended=ended))
        if run.over or run.roster.only_joins(worker):
            if not ended:
                run.emit(CancelWorker(worker.index, worker.attempt))
            self._run.end_if_all_ended()
            return
        run.report(WorkerLost(worker.index, worker.attempt, reason))
        reason = f"worker {worker.index} was lost: {reason}"
        if run.phase is CoordinatorPhase.STOPPING:
            outcome = f"stopped without a last checkpoint: {reason}"
            self._run.decide(RegionState.STOPPED, outcome, now, kind="stopped")
        elif run.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            if not (problem := self._take_overs.problem(worker)):
                self._take_overs.begin(worker, reason, now)
                return
            if run.spec.recovery == "local":
                reason = f"{reason}; all workers are reset: {problem}"
            self._rounds.reset(reason, now, worker=worker.index)
        elif worker.launch_round == self._rounds.number:
            self._rounds.begin_round(reason, now, worker=worker.index, spend=True)
        else:
            self._rounds.better_reason(reason, worker.index)
        # In OPENING, an attempt that has not ended is cancelled and relaunched when the manifest is held
        # (`ManifestClaim`): until then it may vote in the old incarnation, and its vote may be committed.
        replaced = not run.roster.has(worker)  # by a process that stood by
        if not run.over and not replaced and (ended or run.phase is CoordinatorPhase.GATHERING):
            self._rounds.relaunch(worker, now)

    def on_suspects(self, worker: Worker, message: Suspects, now: float) -> Refusal | None:
        """Take the report that a peer does not answer. Another worker, or its silence here, confirms it."""
        run = self._run
        if run.spec.recovery != "local" or not 0 <= message.peer < len(run.roster):
            return Refusal("UNEXPECTED", f"worker {worker.index} suspects worker {message.peer}")
        peer = run.roster[message.peer]
        if message.term != run.term_of(peer.index) or peer.link is None:
            return None  # of a process that is replaced, or known to be lost
        votes = self._suspected.setdefault((peer.index, message.term), {})
        since, last = votes.get(worker.index, (now, now))
        votes[worker.index] = (since if now - last <= limits.suspects_fresh_s else now, now)
        self._judge(peer, message, now)
        return None

    def _judge(self, peer: Worker, message: Suspects, now: float) -> None:
        """Decide whether a suspected worker is lost."""
        all_votes = self._suspected[peer.index, message.term]
        votes = {by: at for by, at in all_votes.items() if now - at[1] <= limits.suspects_fresh_s}
        silent_s = now - peer.received_at
        alone_s = now - min(since for since, _ in votes.values())
        # No thread of it runs while user code holds the interpreter lock.
        stopped = peer.companion is not None and peer.companion.stopped
        vouched = not stopped and now - peer.vouched_at <= limits.suspects_fresh_s
        if vouched and (silent_s > limits.suspected_silent_s or alone_s <= limits.suspects_alone_s):
            return
        if len(votes) > 1:
            text = f"workers {', '.join(map(str, sorted(votes)))} report that {message.reason}"
        elif silent_s > limits.suspected_silent_s:
            silent = f"it sent nothing for {silent_s:.1f} s"
            text = f"worker {message.worker} reports that {message.reason}, and {silent}"
        elif alone_s > limits.suspects_alone_s:
            text = f"worker {message.worker} cannot reach it, although it lives: {message.reason}"
        else:
            return
        self._suspected.clear()
        self.lose(peer, text, now, ended=False)

    def _close(self, link: int | None) -> None:
        if link is not None:
            self._run.emit(CloseLink(link))

    # --- time -----------------------------------------------------------------------------------------

    def beat(self, now: float) -> None:
        """Send heartbeats, and count every silent worker as lost."""
        run = self._run
        run.timers.set("beat", now + limits.heartbeat_s)
        for _, link in run.roster.every_link():
            run.send(link, Heartbeat(**run.address))
        spec = run.spec
        while (worker := run.roster.silent(now, spec.suspect_after_s, spec.drain_timeout_s)) is not None:
            self.lose(worker, self._why_silent(worker, now), now, ended=False)

    def _why_silent(self, worker: Worker, now: float) -> str:
        text = f"nothing was received from it for {now - worker.received_at:.1f} s"
        operator, seconds = worker.running
        if worker.companion is None or not operator:
            return text
        if worker.companion.stopped:
            return f"{text}; its process is stopped, in operator {operator!r}"
        limit = f"drain_timeout {self._run.spec.drain_timeout_s:g} s"
        return f"{text}; operator {operator!r} has been in user code for {seconds:.0f} s, above {limit}"

    def restore_timed_out(self, now: float) -> None:
        """Count the workers that did not restore, or vote for a layout that is not committed, as lost."""
        run = self._run
        timeout_s = run.spec.reset_timeout_s
        slow = run.roster.indices_not_in(WorkerState.RESTORED)
        if not slow and self._checkpoints.pending is not None:
            slow = self._checkpoints.pending.missing()
        if not slow:
            run.timers.set("restore", now + timeout_s)
            return
        self._lose_all(slow, f"it did not restore within reset_timeout {timeout_s:g} s", now)

    def drain_timed_out(self, now: float) -> None:
        """Count the workers that did not vote as lost; if all voted, keep waiting for the manifest."""
        run, pending = self._run, self._checkpoints.pending
        if pending is None:
            return
        timeout_s = run.spec.drain_timeout_s
        slow = pending.missing()
        if not slow:
            run.timers.set("drain", now + timeout_s)
            return
        text = f"no vote for checkpoint {pending.number} within drain_timeout {timeout_s:g} s"
        self._lose_all(slow, text, now)

    def _lose_all(self, workers: list[int], reason: str, now: float) -> None:
        """Count several workers as lost, in one round."""
        for index in workers:
            if self._run.roster[index].link is not None:
                self.lose(self._run.roster[index], reason, now, ended=False)


def _failure_text(worker: Worker, message: Failed) -> str:
    where = f" at {message.position}" if message.position else ""
    if message.operator:
        return f"operator {message.operator!r} failed in worker {worker.index}{where}: {message.message}"
    if message.kind in ("operator", "reset"):
        return f"worker {worker.index} failed{where}: {message.message}"
    # A check of files that only this host may have, so the host is part of the message.
    host = f" on host {host_of(worker)}" if host_of(worker) else ""
    return f"a check failed in worker {worker.index}{host}{where}: {message.message}"

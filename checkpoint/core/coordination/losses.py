"""Workers fail, fall silent, end or take too long, and what follows. A part of the coordinator. Pure.

Invariant kept here: a suspect is cancelled only when the manifest is held in a newer incarnation than the one
in which it may vote.
"""

from checkpoint import limits
from checkpoint.core.coordination.checkpoints import Checkpointing
from checkpoint.core.coordination.rounds import TakeOvers
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import CancelWorker, CloseLink, LinkDown, WorkerEnded
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.ending import Ending
from checkpoint.core.links.messages import CompanionReport, Failed, Heartbeat, Refusal, Suspects
from checkpoint.core.placement import host_of
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import RegionState
from checkpoint.core.region_events import WorkerLost
from checkpoint.core.region_states import CoordinatorPhase, WorkerState
from checkpoint.errors import RegionFailedError

_LINK_GONE = "its control link is gone"


class Losses:
    """The failures of one region's workers."""

    def __init__(
        self,
        state: CoordinatorState,
        ending: Ending,
        checkpointing: Checkpointing,
        recovery: Recovery,
        take_overs: TakeOvers,
    ) -> None:
        self._state = state
        self._ending = ending
        self._checkpointing = checkpointing
        self._recovery = recovery
        self._take_overs = take_overs
        self._suspected: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
        """(worker, term) -> who suspects it -> since when, and when it said so last."""

    # --- reports --------------------------------------------------------------------------------------

    def on_link_down(self, event: LinkDown, now: float) -> None:
        worker = self._state.roster.by_link(event.link)
        if worker is not None:
            self._dies(worker, f"{_LINK_GONE}: {event.reason}", now)

    def on_worker_ended(self, event: WorkerEnded, now: float) -> None:
        """Take the launcher's report of an ended attempt. A report about an older attempt is ignored."""
        state = self._state
        worker = state.roster.find(event.worker, event.attempt)
        if worker is None:
            return
        state.roster.ended(worker)
        if not state.roster.has(worker):
            pass  # no layout has it now, or another process is in its place: nothing follows
        elif worker.state in (WorkerState.LOST, WorkerState.DONE):
            if event.error and (not worker.error or worker.error.startswith(_LINK_GONE)):
                worker.error = (
                    event.error
                )  # otherwise the cause is known, and the process was killed after it
            if worker.state is WorkerState.LOST and not state.over:
                state.roster.schedule(worker, now)
        elif worker.state is not WorkerState.ABSENT:
            self._dies(worker, event.error or "its process ended", now)
        self._ending.end_if_all_ended()

    def _dies(self, worker: Worker, reason: str, now: float) -> None:
        """Count a worker as lost when its companion has said what ran, or after a short time."""
        state = self._state
        waits = worker.companion is not None and not state.over and worker.state is not WorkerState.FINISHED
        if waits and not worker.last_words:
            worker.dying = reason
            state.timers.set("last words", now + limits.last_words_s)
        else:
            self.lose(worker, f"{reason}{worker.last_words}", now, ended=worker.ended)

    def on_companion(self, message: CompanionReport, now: float) -> None:
        """Take what the companion of a worker reports. Of an older attempt it does not count."""
        worker = self._state.roster.find(message.worker, message.attempt)
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
            for one in (worker, *(hosted for hosted in self._state.roster if hosted.host == worker.index)):
                one.vouched_at = now

    def last_words_expired(self, now: float) -> None:
        """Count the workers as lost whose companions say nothing."""
        for worker in list(self._state.roster.ever()):
            if worker.dying:
                self.lose(worker, worker.dying, now, ended=worker.ended)

    def on_failed(self, worker: Worker, message: Failed, now: float) -> Refusal | None:
        """Handle a failure that a worker reports, by its FailureKind (see messages.py)."""
        state, kind = self._state, message.kind
        if kind in ("operator", "manifest"):
            self._fail_for_good(worker, message, now)
        elif kind == "internal":
            self.lose(worker, message.message or "it failed", now, ended=False, text=message.traceback)
        elif state.phase is CoordinatorPhase.STOPPING:
            reason = f"stopped without a last checkpoint: {message.message}"
            self._ending.decide(RegionState.STOPPED, reason, now, kind="stopped")
        elif state.phase is CoordinatorPhase.OPENING and message.damaged:
            # A peer has reported first that this worker's links broke, which began the reset.
            state.suspected = f"worker {worker.index}: {message.message}"
        elif state.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            if kind == "fenced":
                state.epoch_floor = max(state.epoch_floor, message.epoch_held)
            reason = f"worker {worker.index}: {message.message}"
            if kind == "unreachable":
                self._unreachable(worker, message, reason, now)
                return None
            if kind == "reset":
                reason = _failure_text(worker, message)
                worker.error = message.traceback or reason
            if kind == "store" and message.damaged:
                state.suspected = reason
                self._recovery.reset(reason, now, worker=worker.index, spend=state.disproved)
            elif kind == "store":
                delay_s = limits.launch_backoff_s
                self._recovery.reset(reason, now, worker=worker.index, spend=False, delay_s=delay_s)
            else:
                self._recovery.reset(reason, now, worker=worker.index)
            state.round.by_peer = kind == "peer"
        return None

    def _unreachable(self, worker: Worker, message: Failed, reason: str, now: float) -> None:
        """Reset without spending an attempt, and place one of the two workers on another host.

        A network may take longer to heal than any number of attempts, so time decides when the region fails.
        """
        state = self._state
        if not 0 <= message.peer < len(state.roster):
            self._recovery.reset(reason, now, worker=worker.index)
            return
        peer = state.roster[message.peer]
        seconds = state.placement.report(worker, peer, now)
        limit_s = state.spec.reset_timeout_s if state.last_checkpoint else limits.unreachable_at_start_s
        if seconds > limit_s:
            text = (
                f"in {seconds:.0f} s no placement was found in which all workers reach each other: {reason}"
            )
            remedy = (
                "repair the network between these hosts, or provide another host, then run the region again"
            )
            self._ending.decide(
                RegionState.FAILED, text, now, kind="failed", error=RegionFailedError(text, remedy=remedy)
            )
            return
        moved = state.placement.worker_to_move(worker, peer, now)
        delay_s = limits.launch_backoff_s
        self._recovery.reset(reason, now, worker=worker.index, spend=False, delay_s=delay_s)
        state.round.by_peer = True
        if moved is not None and moved.link is not None:
            # Its old attempt is cancelled and replaced once the manifest is held (`ManifestClaim`).
            self.lose(moved, "it is moved to another host, because a peer cannot reach it", now, ended=False)
        state.round.reason, state.reason = reason, reason

    def _fail_for_good(self, worker: Worker, message: Failed, now: float) -> None:
        reason = _failure_text(worker, message)
        worker.error = reason
        error = RegionFailedError(reason, traceback_text=message.traceback)
        self._ending.decide(RegionState.FAILED, reason, now, kind="failed", error=error)

    # --- the loss of a worker -------------------------------------------------------------------------

    def lose(self, worker: Worker, reason: str, now: float, *, ended: bool, text: str = "") -> None:
        """Count the current attempt of a worker as over; what follows depends on the phase.

        - `ended`: whether the launcher reported its end. If not, the attempt is cancelled, but not before it
          can commit nothing more.
        - `text`: more about the reason, such as a traceback, kept as the worker's error.
        """
        state = self._state
        ended = ended or worker.host is not None  # the launcher knows nothing of it, and reports no end
        if worker.state is WorkerState.FINISHED:
            self._close(state.roster.leave(worker, ended=ended))
            self._checkpointing.finish_if_all_have(now)
            return
        error = f"{reason}\n{text}" if text else reason
        # What ends after the region has is ended by it, which is not why.
        self._close(state.roster.lose(worker, worker.error if state.over else error, ended=ended))
        if state.over or worker in state.roster.coming:
            if not ended:
                state.emit(CancelWorker(worker.index, worker.attempt))
            self._ending.end_if_all_ended()
            return
        state.report(WorkerLost(worker.index, worker.attempt, reason))
        reason = f"worker {worker.index} was lost: {reason}"
        if state.phase is CoordinatorPhase.STOPPING:
            outcome = f"stopped without a last checkpoint: {reason}"
            self._ending.decide(RegionState.STOPPED, outcome, now, kind="stopped")
        elif state.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            if not (problem := self._take_overs.problem(worker)):
                self._take_overs.begin(worker, reason, now)
                return
            if state.spec.recovery == "local":
                reason = f"{reason}; all workers are reset: {problem}"
            self._recovery.reset(reason, now, worker=worker.index)
        elif worker.launch_round == state.round.number:
            self._recovery.begin_round(reason, now, worker=worker.index, spend=True)
        elif state.round.by_peer:
            state.round.reason, state.round.worker, state.reason = reason, worker.index, reason
            state.round.by_peer = False
        # In OPENING, an attempt that has not ended is relaunched when the manifest is held (`ManifestClaim`).
        if not state.over and (ended or state.phase is CoordinatorPhase.GATHERING):
            self._recovery.relaunch(worker, now)

    def on_suspects(self, worker: Worker, message: Suspects, now: float) -> Refusal | None:
        """Take a worker's report that a peer does not answer. The peer is lost if another worker reports it
        too, or if it is silent here as well. Only the coordinator decides: a bad link proves nothing.
        """
        state = self._state
        if state.spec.recovery != "local" or not 0 <= message.peer < len(state.roster):
            return Refusal("UNEXPECTED", f"worker {worker.index} suspects worker {message.peer}")
        peer = state.roster[message.peer]
        if message.term != state.terms.get(peer.index, state.incarnation) or peer.link is None:
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
            self._state.emit(CloseLink(link))

    # --- time -----------------------------------------------------------------------------------------

    def beat(self, now: float) -> None:
        """Send heartbeats, and count every silent worker as lost."""
        state = self._state
        state.timers.set("beat", now + limits.heartbeat_s)
        number = state.incarnation
        for _, link in state.roster.linked(coming=True):
            state.send(link, Heartbeat(job=state.spec.name, incarnation=number, epoch=number))
        spec = state.spec
        while (worker := state.roster.silent(now, spec.suspect_after_s, spec.drain_timeout_s)) is not None:
            self.lose(worker, self._why_silent(worker, now), now, ended=False)

    def _why_silent(self, worker: Worker, now: float) -> str:
        text = f"nothing was received from it for {now - worker.received_at:.1f} s"
        operator, seconds = worker.running
        if worker.companion is None or not operator:
            return text
        if worker.companion.stopped:
            return f"{text}; its process is stopped, in operator {operator!r}"
        limit = f"drain_timeout {self._state.spec.drain_timeout_s:g} s"
        return f"{text}; operator {operator!r} has been in user code for {seconds:.0f} s, above {limit}"

    def restore_timed_out(self, now: float) -> None:
        """Count the workers that did not restore as lost; if their layout is not committed, also those that
        did not vote. If all voted, keep waiting for the manifest.
        """
        state = self._state
        timeout_s = state.spec.reset_timeout_s
        slow = state.roster.indices_not_in(WorkerState.RESTORED)
        if not slow and state.pending is not None:
            slow = state.pending.missing()
        if not slow:
            state.timers.set("restore", now + timeout_s)
            return
        self._lose_all(slow, f"it did not restore within reset_timeout {timeout_s:g} s", now)

    def drain_timed_out(self, now: float) -> None:
        """Count the workers that did not vote as lost; if all voted, keep waiting for the manifest."""
        state = self._state
        if state.pending is None:
            return
        timeout_s = state.spec.drain_timeout_s
        slow = state.pending.missing()
        if not slow:
            state.timers.set("drain", now + timeout_s)
            return
        text = f"no vote for checkpoint {state.pending.number} within drain_timeout {timeout_s:g} s"
        self._lose_all(slow, text, now)

    def _lose_all(self, workers: list[int], reason: str, now: float) -> None:
        """Count several workers as lost, in one round."""
        for index in workers:
            if self._state.roster[index].link is not None:
                self.lose(self._state.roster[index], reason, now, ended=False)


def _failure_text(worker: Worker, message: Failed) -> str:
    where = f" at {message.position}" if message.position else ""
    if message.operator:
        return f"operator {message.operator!r} failed in worker {worker.index}{where}: {message.message}"
    if message.kind in ("operator", "reset"):
        return f"worker {worker.index} failed{where}: {message.message}"
    # A check of files that only this host may have, so the host is part of the message.
    host = f" on host {host_of(worker)}" if host_of(worker) else ""
    return f"a check failed in worker {worker.index}{host}{where}: {message.message}"

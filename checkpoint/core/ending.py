"""How a region ends: its outcome is fixed, its workers end, it is over. A part of the coordinator. Pure."""

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import CancelWorker, CloseLink, End
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.links.messages import Stop, StopKind
from checkpoint.core.region import RegionState
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent, WorkerState
from checkpoint.core.status_reports import StatusReporter
from dos_protocol.errors import DosError


class Ending:
    """The end of one region. Invariant: after `decide` nothing is ordered or committed."""

    def __init__(self, state: CoordinatorState, reporter: StatusReporter) -> None:
        self._state = state
        self._reporter = reporter
        self._cancelled = False

    def decide(
        self, state: RegionState, reason: str, now: float, *, kind: StopKind, error: DosError | None = None
    ) -> None:
        """Fix the outcome and order the workers to end. A second outcome is ignored."""
        shared = self._state
        if shared.over:
            return
        shared.move(PhaseEvent.DECIDED)
        shared.outcome = End(state, reason, error)
        shared.reason = reason
        shared.pending = None
        shared.timers.clear()
        shared.timers.set("grace", now + limits.stop_grace_s)
        shared.timers.set("beat", now + limits.heartbeat_s)
        for _, link in shared.roster.linked(coming=True):
            shared.send(link, self.stop_message(kind, reason))
        for worker in shared.roster.ever():
            worker.launch_at = None
            # No Stop reaches a worker that has no link: cancel its attempt.
            if worker.state in (WorkerState.LAUNCHED, WorkerState.LOST) and not worker.ended:
                shared.emit(CancelWorker(worker.index, worker.attempt))
        self.end_if_all_ended()

    def stop_message(self, kind: StopKind, reason: str) -> Stop:
        spec, incarnation = self._state.spec, self._state.incarnation
        return Stop(job=spec.name, incarnation=incarnation, kind=kind, reason=reason)

    def end_if_all_ended(self, *, force: bool = False) -> None:
        """Emit the outcome as the last effect, if every worker's process is over or `force` is set."""
        state = self._state
        if state.phase is not CoordinatorPhase.ENDING or state.outcome is None:
            return
        if force or all(worker.ended for worker in state.roster.ever()):
            state.move(PhaseEvent.GONE)
            state.timers.clear()
            for _, link in list(state.roster.linked(coming=True)):
                state.emit(CloseLink(link))
            self._reporter.report_change()  # before End, after which no effect follows
            state.emit(state.outcome)

    def grace_expired(self, now: float) -> None:
        """Cancel the workers that did not end on their own; at the second call, end without them."""
        if self._cancelled:
            self.end_if_all_ended(force=True)
            return
        self._cancelled = True
        self._state.timers.set("grace", now + limits.stop_grace_s)
        for worker in self._state.roster.ever():
            if not worker.ended:
                self._state.emit(CancelWorker(worker.index, worker.attempt))

    # --- workers that leave ---------------------------------------------------------------------------

    def retire(self, leaving: list[Worker], text: str, now: float) -> None:
        """End processes that the region does not have any more."""
        state = self._state
        for worker in leaving:
            link = state.roster.retire(worker)
            if link is not None:
                state.send(link, self.stop_message("stopped", text))
                state.emit(CloseLink(link))
                state.timers.set("leave", now + limits.stop_grace_s)
            elif not worker.ended:
                state.emit(CancelWorker(worker.index, worker.attempt))

    def leave_expired(self, now: float) -> None:
        """Cancel the workers that left and did not end on their own."""
        del now
        state = self._state
        for worker in state.roster.ever():
            if not state.roster.has(worker) and not worker.ended:
                state.emit(CancelWorker(worker.index, worker.attempt))

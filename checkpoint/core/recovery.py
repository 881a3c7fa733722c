"""Rounds: how a region starts, and how it is reset to its last checkpoint. A part of the coordinator. Pure.

A round leads from one RUNNING phase to the next: open the manifest with a higher epoch, gather all workers,
order them to the last checkpoint, start them. `manifest_claim.py` and `gathering.py` have these steps.
"""

from math import inf

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import CancelWorker, OpenManifest
from checkpoint.core.coordination.workers import Worker, launch_delay_s
from checkpoint.core.ending import Ending
from checkpoint.core.region import RegionState, ResetReport
from checkpoint.core.region_states import PhaseEvent, WorkerState
from checkpoint.errors import RegionFailedError


class Recovery:
    """The rounds of one region, and the reset attempts that it has spent."""

    def __init__(self, state: CoordinatorState, ending: Ending) -> None:
        self._state = state
        self._ending = ending

    def start(self, now: float) -> None:
        """Begin the first round. Open the manifest and launch the workers concurrently: both take seconds.

        For a hand-over the manifest is opened when all workers have joined (`Gathering`): until then the
        driver that runs the region continues.
        """
        state = self._state
        state.move(PhaseEvent.BEGUN)
        state.round.number = 1
        state.round.began = now
        state.timers.set("beat", now + limits.heartbeat_s)
        state.timers.set("gather", now + state.spec.start_timeout_s)
        for worker in state.roster:
            state.roster.schedule(worker, now)
        if state.spec.hand_over:
            state.reason = "its workers join before it takes the region over"
        else:
            self.open_manifest()

    def open_manifest(self) -> None:
        state = self._state
        state.timers.clear("open")
        local = state.spec.recovery == "local"
        step = limits.terms_per_incarnation if local else 1
        state.emit(OpenManifest(above=state.epoch_floor, held=state.incarnation, step=step))

    def reset(
        self, reason: str, now: float, *, worker: int = -1, spend: bool = True, delay_s: float = 0.0
    ) -> None:
        """Reset to the last committed checkpoint in a new incarnation, or fail if no attempt is left.

        The manifest is opened first: after that nothing can be committed in the old incarnation. After
        several attempts in a row it is opened with a delay, so that the attempts outlast a short outage.

        - `worker`: the worker whose loss is the reason, -1 for none.
        - `spend`: whether the reset counts as an attempt.
        - `delay_s`: the least delay before the manifest is opened.
        """
        if not self.begin_round(reason, now, worker=worker, spend=spend):
            return
        state = self._state
        if state.pending is not None and state.pending.appended:
            # Its append may still reach the quorum: only the reopened manifest decides (`ManifestClaim`).
            state.in_doubt = state.pending
        # A final checkpoint counts only in its incarnation: restored workers end with another final one.
        state.pending, state.checkpoint_overdue, state.final_committed = None, False, False
        state.is_paused = False
        state.terms.clear()
        state.timers.clear("restore", "drain", "checkpoint", "take over")
        state.roster.release()
        self.launch_unhosted(now)
        for finished in state.roster:
            if finished.state is WorkerState.DONE:
                state.roster.schedule(finished, now)
        state.move(PhaseEvent.RESET)
        delay_s = max(delay_s, launch_delay_s(state.attempts))
        if delay_s:
            state.timers.set("open", now + delay_s)
        else:
            self.open_manifest()

    def launch_unhosted(self, now: float) -> None:
        """Launch the workers that a process of another worker was to run and that have not joined: after a
        reset nobody hosts a worker, and that process may be gone, so that nobody reports their end.
        """
        for worker in self._state.roster:
            if worker.host is not None and worker.state is WorkerState.LAUNCHED:
                self._state.roster.lose(worker, "its host was reset before it joined", ended=True)
                self._state.roster.schedule(worker, now)

    def begin_round(self, reason: str, now: float, *, worker: int, spend: bool) -> bool:
        """Begin a round, or continue the open one for a new reason; count the attempt if `spend` is set.

        Return False if no attempt is left; the region has then failed.
        """
        state = self._state
        # Without checkpoints no commit forgives attempts; time in RUNNING does.
        if state.spec.without_checkpoints and now > state.running_since + limits.reset_forgiven_s:
            state.attempts = 0
            state.placement.forgive()
        state.running_since = inf
        if spend:
            state.attempts += 1
        if state.attempts > state.spec.max_consecutive_reset_attempts:
            resets = state.attempts - 1
            text = f"no checkpoint was committed after {resets} consecutive resets; last reason: {reason}"
            error = RegionFailedError(
                text,
                traceback_text=state.roster[worker].error if worker >= 0 else "",
                remedy="fix the cause, then run the region again; it continues from its last checkpoint",
            )
            self._ending.decide(RegionState.FAILED, text, now, kind="failed", error=error)
            return False
        if not state.round.open:
            state.round.open, state.round.began = True, now
            state.round.reason, state.round.worker = reason, worker
        state.round.by_peer = False
        state.round.number += 1
        state.reason = reason
        state.timers.set("gather", now + state.spec.start_timeout_s)
        return True

    def end_round(self, now: float) -> None:
        """Close the round, and report it as a reset unless it was the first."""
        state, ended = self._state, self._state.round
        ended.open, state.reason = False, ""
        phases_s = self._phases(now)
        state.history.note_round(phases_s, self._slowest().replayed_bytes)
        if not ended.reason:
            return
        report = ResetReport(
            time=ended.began,
            worker=ended.worker,
            reason=ended.reason,
            seconds=now - ended.began,
            bytes=sum(worker.replayed_bytes for worker in state.roster),
            incarnation=state.incarnation,
            checkpoint=state.last_number,
            phases_s=phases_s,
        )
        state.resets.append(report)
        state.report(report)

    def _phases(self, now: float) -> dict[str, float]:
        """Return the seconds of each phase of the round, in order; their sum is the time of the reset."""
        ended = self._state.round
        slowest = self._slowest()
        phases = {"manifest": ended.opened_at - ended.began, "gather": ended.ordered_at - ended.opened_at}
        phases |= slowest.restore_phases_s
        return {**phases, "start": now - ended.ordered_at - sum(slowest.restore_phases_s.values())}

    def _slowest(self) -> Worker:
        """Return the worker whose restore took longest in the round."""
        return max(self._state.roster, key=lambda worker: worker.restore_seconds)

    def relaunch(self, worker: Worker, now: float) -> None:
        """Schedule the next attempt of a lost worker, and cancel the old one.

        Call this only when the old attempt is over or can commit nothing more, because the manifest is held
        in a higher incarnation.
        """
        if not worker.ended:
            self._state.emit(CancelWorker(worker.index, worker.attempt))
        self._state.roster.schedule(worker, now)

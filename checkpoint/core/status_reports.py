"""The status that users see, derived from the coordinator's state and reported when it changes. Pure.

A part of the coordinator. It changes no field of the shared state.
"""

from collections.abc import Iterator

from checkpoint import limits
from checkpoint.core.coordination.recovery_estimate import RecoveryEstimate, estimate
from checkpoint.core.coordination.run import CoordinatorState, Scaling
from checkpoint.core.coordination.workers import Worker
from checkpoint.core.region import RegionState, RegionStatus, ScalingPhase, ScalingStatus, UnderWayStatus
from checkpoint.core.region_events import StateChanged
from checkpoint.core.region_states import LINKED, VISIBLE_STATES, CoordinatorPhase


class StatusReporter:
    """The visible state of one region, with the time since which it waits for the store."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._now = 0.0
        """The time of the last event."""
        self._waiting_since: float | None = None
        self._reported = (RegionState.STARTING, "")

    @property
    def waiting_for(self) -> str:
        """What the region waits for at the store, empty if it does not wait."""
        if self._state.phase in (
            CoordinatorPhase.NEW,
            CoordinatorPhase.STOPPING,
            CoordinatorPhase.ENDING,
            CoordinatorPhase.ENDED,
        ):
            return ""
        waiting = list(self._waiting_workers())
        if self._state.store_waiting or not waiting:
            return self._state.store_waiting
        reason = next((one.counters.waiting_reason for one in waiting if one.counters.waiting_reason), "")
        who = ", ".join(str(worker.index) for worker in waiting)
        return f"worker {who} waits for a quorum of the store" + (f": {reason}" if reason else "")

    def note_waiting(self, now: float) -> None:
        """Keep the time since which the region waits for the store. Call after each event."""
        self._now = now
        if not self.waiting_for:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now

    def _waiting_workers(self) -> Iterator[Worker]:
        return (one for one in self._state.roster if one.state in LINKED and one.counters.waiting_for_store)

    @property
    def visible_state(self) -> RegionState:
        """The state that users see."""
        state = self._state
        if state.phase is CoordinatorPhase.ENDED and state.outcome is not None:
            return state.outcome.state
        if self.waiting_for:
            return RegionState.WAITING_FOR_STORE
        if state.phase is CoordinatorPhase.OPENING and state.incarnation:
            return RegionState.RESTORING
        return (
            RegionState.PAUSED
            if state.is_paused and state.phase is CoordinatorPhase.RUNNING
            else VISIBLE_STATES[state.phase]
        )

    def status(self) -> RegionStatus:
        """Return a snapshot."""
        state = self._state
        return RegionStatus(
            state=self.visible_state,
            reason=self.waiting_for or "; ".join(filter(None, (state.reason, self._long_call()))),
            incarnation=state.incarnation,
            last_checkpoint=state.last_number,
            last_checkpoint_step=state.last_step,
            checkpoints_committed=state.checkpoints_committed,
            reset_attempts=state.attempts,
            workers=tuple(worker.status() for worker in state.roster),
            resets=tuple(state.resets),
            store_waiting=self.waiting_for,
            waiting_s=0.0 if self._waiting_since is None else self._now - self._waiting_since,
            waiting_bytes=sum(worker.counters.lag_bytes for worker in self._waiting_workers()),
            savepoints=state.held_savepoints,
            dropped=state.dropped,
            recovery=self._recovery(),
            scaling=self._scaling(),
            under_way=self._under_way(),
            autoscale=self._state.autoscale,
            fell_back=state.fell_back,
            metrics=state.spec.metrics,
        )

    def _long_call(self) -> str:
        """Return which operator has run for long, of the one that has run longest, or waits for something
        outside of the region; empty if none does.
        """
        linked = (one for one in self._state.roster if one.state in LINKED)
        longest = max(linked, key=lambda one: (bool(one.waits), one.running[1]), default=None)
        if longest is None:
            return ""
        name, seconds = longest.running
        if longest.waits:
            return f"worker {longest.index}: operator {name!r} waits for {longest.waits}"
        if seconds < limits.long_call_s:
            return ""
        return f"worker {longest.index}: operator {name!r} has been in user code for {seconds:.0f} s"

    def _scaling(self) -> ScalingStatus | None:
        change = self._state.scaling
        if change is None:
            return None
        recovery = self._recovery()
        return ScalingStatus(
            change.workers,
            _phase_of(change),
            self._now - change.began,
            sum(report.copied_bytes for report in change.copied.values()),
            sum(report.total_bytes for report in change.copied.values()),
            None if recovery is None else recovery.claim_s + recovery.state_s,
            change.replaces,
        )

    def _under_way(self) -> UnderWayStatus | None:
        pending, roster = self._state.pending, self._state.roster
        if pending is None:
            return None
        newest = max((worker.status().step for worker in roster), default=0)
        late = {index: _why_no_vote(roster[index], newest) for index in pending.missing()}
        return UnderWayStatus(pending.number, self._now - pending.requested_at, late)

    def _recovery(self) -> RecoveryEstimate | None:
        """Return how long a recovery would take now; None if the region is over or was never started."""
        state = self._state
        if state.over:
            return None
        step = max((worker.step for worker in state.roster), default=0)
        return estimate(
            state.history.inputs(state.last_checkpoint, step, (one.meter for one in state.roster))
        )

    def report_change(self) -> None:
        """Report the state and its reason to observers if either differs from the last report."""
        current = (self.visible_state, self.waiting_for or self._state.reason)
        if current != self._reported:
            self._reported = current
            self._state.report(StateChanged(*current))


def _why_no_vote(worker: Worker, newest: int) -> str:
    """Return why a worker has not voted, by what it reported last. newest: the last step that any ended."""
    counters = worker.counters
    if worker.state not in LINKED:
        return f"it is {worker.state.name}"
    if counters.waiting_for_store:
        reason = f": {counters.waiting_reason}" if counters.waiting_reason else ""
        return f"it waits for a quorum of the store{reason}"
    at = f"after step {worker.status().step} of {newest}"
    operator, seconds = worker.running
    if operator:
        long = f", for {seconds:.0f} s" if seconds >= limits.long_call_s else ""
        waits = f", which waits for {worker.waits}" if worker.waits else ""
        return f"it runs operator {operator!r}{long}{waits}, {at}"
    if counters.lag_bytes:
        return f"{counters.lag_bytes} bytes of it are not synced, {at}"
    return f"it waits for rows of other workers, {at}"


def _phase_of(change: Scaling) -> ScalingPhase:
    if change.switches:
        return "moving state"
    if change.holds:
        return "pausing"
    return "copying state" if change.copied else "launching workers"

"""A region changes its number of workers on its own. A part of the coordinator. Pure.

This file passes the workers' counters to the policy (`autoscale_policy.py`), which decides, and requests what
it decides in the way of a user (`rescaling.py`). While counters do not show the load, the policy gets the
reason instead: the region does not run, is paused, waits for its store, or is being changed. A region without
`RegionSpec.autoscale` has none of this, not even the timer.
"""

from dataclasses import replace

from checkpoint.core.coordination.autoscaling import AutoscalePolicy, WorkerLoad
from checkpoint.core.coordination.changes import Rescaling
from checkpoint.core.coordination.run import CoordinatorState
from checkpoint.core.coordination.vocabulary import ScaleWanted
from checkpoint.core.records.even_layout import workers_text
from checkpoint.core.region import AutoScaleStatus, ScaleDecided
from checkpoint.core.region_states import CoordinatorPhase
from checkpoint.core.status_reports import StatusReporter


class Autoscaling:
    """The policy of one region, and its decisions."""

    def __init__(self, state: CoordinatorState, reporter: StatusReporter, rescaling: Rescaling) -> None:
        self._state = state
        self._reporter = reporter
        self._rescaling = rescaling
        self._held = ""
        """The last reason to change nothing that was reported."""
        self._noted = rescaling.last_settled
        """The last change that the policy was notified of."""
        spec = state.spec.autoscale
        self._policy = None if spec is None else AutoscalePolicy(spec)
        if spec is not None:
            state.autoscale = AutoScaleStatus(spec.minimum, spec.maximum)

    def start(self, now: float) -> None:
        """Begin to observe the region."""
        if self._policy is not None:
            self._state.timers.set("autoscale", now + self._policy.spec.sample_s)

    def timer_expired(self, now: float) -> None:
        """Take a sample of the load, and request another number of workers if the policy decides it."""
        policy = self._policy
        assert policy is not None
        self._state.timers.set("autoscale", now + policy.spec.sample_s)
        settled = self._rescaling.last_settled
        if settled is not self._noted:
            self._noted = settled
            policy.settled(settled.workers, settled.error, now)
        hindrance = self._hindrance()
        if hindrance:
            policy.interrupted(hindrance)
        else:
            self._sample(policy, now)
        assert self._state.autoscale is not None
        self._state.autoscale = replace(
            self._state.autoscale, wanted=policy.wanted, reason=policy.reason, next_s=policy.next_s(now)
        )

    def _hindrance(self) -> str:
        """Return why the counters do not show the load now, empty if they do."""
        state = self._state
        if state.scaling is not None and state.scaling.replaces is not None:
            return f"worker {state.scaling.replaces} is being replaced"
        if state.scaling is not None:
            return f"the region is going to {workers_text(state.scaling.workers)}"
        if state.phase is not CoordinatorPhase.RUNNING:
            return "the region does not run now"
        if state.pause:
            return "the region is paused"
        if waiting := self._reporter.waiting_for:
            return f"the region waits for its store: {waiting}"
        if all(worker.exhausted for worker in state.roster):
            return "all input is read"
        return ""

    def _sample(self, policy: AutoscalePolicy, now: float) -> None:
        state, present = self._state, len(self._state.roster)
        counters = [worker.counters for worker in state.roster]
        wanted = policy.take([WorkerLoad(c.bytes_in, c.load_s, c.backlog_bytes) for c in counters], now)
        if wanted is None:
            if policy.held and policy.held != self._held:
                self._report(ScaleDecided(present, present, policy.reason))
                self._held = policy.held
            return
        self._held = ""
        self._report(ScaleDecided(present, wanted, policy.reason))
        self._rescaling.on_scale_wanted(ScaleWanted(wanted), now)
        if state.scaling is None:  # refused at once
            policy.settled(present, self._rescaling.problem(wanted), now)

    def _report(self, decided: ScaleDecided) -> None:
        self._state.report(decided)
        assert self._state.autoscale is not None
        self._state.autoscale = replace(self._state.autoscale, decided=decided)

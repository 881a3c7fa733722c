"""How many workers a region should have, by its load: settings, measurement and decision. Pure.

The method is that of DS2 and of Flink's autoscaler (docs/decisions/0232). *Capacity* is what the present
workers could read: the input rate divided by the share of time in which the busiest worker is busy, because
they run in step. *Need* is what arrives, and the backlog divided by the time in which it should be read.
*Load* is need divided by capacity; the aim is the setting `busy`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Final, NamedTuple

from checkpoint.core.coordination.changes import Changes
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import ScaleWanted
from checkpoint.core.records.layout import workers_text
from checkpoint.core.region import AutoScale, AutoScaleStatus, ScaleDecided

_LEAVES: Final = 0.8
"""Workers leave if fewer would have at most this share of the aim."""
_STAYS: Final = 0.9
"""So many stay that they have at most this share of the aim. The noise of a window is less than what is
between this, 1 and `_LEAVES`: a load that does not change causes no second change.
"""
_BUSY_MIN: Final = 0.5
"""Workers that are busy for less time, while input waits, wait for something else than work."""
_WAITS_S_MIN: Final = 5.0
"""Input waits if it takes longer than this to read. Less is always there: a step, or one listing."""
_GAIN_MIN: Final = 0.3
"""More workers help if the capacity grows by this share of what they add."""
_ROUNDING: Final = 1e-9
_UNITS: Final = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


class WorkerLoad(NamedTuple):
    """The counters of one worker: since its process began, but for the backlog."""

    read_bytes: int
    busy_s: float
    """Without the fixed cost of steps, which become fewer and larger under more load."""
    backlog_bytes: int
    """Input that is known and not read, negative if the sources do not know it."""


class _LoadSample(NamedTuple):
    at: float
    read_bytes: int
    busy_s: tuple[float, ...]
    backlog_bytes: int
    """Of all workers, -1 if that of any one is not known."""


@dataclass(frozen=True, slots=True)
class RegionLoad:
    """The load of a region over a window. Rates are bytes per second."""

    workers: int
    rate: float
    busy: float
    """The share of time in which the busiest worker was busy."""
    arrival: float
    """How much arrives: `rate` and the growth of the backlog."""
    backlog_bytes: float
    """The least backlog in the second half of the window. What comes and is read with each listing of a
    directory is not in it, as in the queue management CoDel."""

    @property
    def capacity(self) -> float:
        """How much the present workers could read, infinite if that cannot be measured."""
        return self.rate / self.busy if self.busy else inf

    def needed(self, catch_up_s: float) -> float:
        """Return how much should be read."""
        return self.arrival + self.backlog_bytes / catch_up_s

    @property
    def waits(self) -> bool:
        """Whether input waits, longer than it takes to read what has just arrived."""
        return self.backlog_bytes > self.rate * _WAITS_S_MIN


def _measured(samples: Sequence[_LoadSample], busiest: Callable[[Sequence[float]], float]) -> RegionLoad:
    """Return the load over these samples, of which there are at least two."""
    first, last = samples[0], samples[-1]
    span = last.at - first.at
    shares = [(after - before) / span for before, after in zip(first.busy_s, last.busy_s, strict=True)]
    rate = (last.read_bytes - first.read_bytes) / span
    growth = standing = 0.0
    if last.backlog_bytes >= 0:
        middle = len(samples) // 2
        early, late = samples[:middle], samples[middle:]
        apart_s = _mean([one.at for one in late]) - _mean([one.at for one in early])
        by = _mean([one.backlog_bytes for one in late]) - _mean([one.backlog_bytes for one in early])
        growth, standing = by / apart_s, float(min(one.backlog_bytes for one in late))
    return RegionLoad(len(shares), rate, min(1.0, busiest(shares)), max(0.0, rate + growth), standing)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class AutoscalePolicy:
    """The policy of one region: `take` each sample, `interrupted` while counters do not show the load, and
    `settled` after each change of the number of workers. Times are monotonic seconds.
    """

    def __init__(self, spec: AutoScale) -> None:
        self.spec = spec
        self.wanted: int | None = None
        """The number of workers of the last judgment, None before the first one."""
        self.reason = "the region has not run yet"
        """What the policy does now, and why, with figures."""
        self.held = ""
        """Why the last judgment changes nothing although the load calls for it, empty if it does not."""
        self._samples: deque[_LoadSample] = deque()
        self._agreed_since: float | None = None
        """Since when all judgments want more workers, or all of them fewer."""
        self._agreed = 0
        """The number that they agree on: the latest one for more workers, the highest one for fewer."""
        self._may_act_at = -inf
        self._failure = ""
        """Why the last change failed; empty if it did not, or after the cool-down."""
        self._requested: tuple[int, int, float] | None = None
        """The change that was requested for the load: from and to which number, and the capacity before."""
        self._grown: tuple[int, float] | None = None
        """Number and capacity before the last change, if it added workers that have not helped yet."""

    # --- what happens -----------------------------------------------------------------------------------

    def interrupted(self, reason: str) -> None:
        """Begin the window anew: the region is paused, resets, waits for its store, or is being changed."""
        self._samples.clear()
        self._agreed_since, self.held, self.reason = None, "", reason

    def settled(self, workers: int, error: str, now: float) -> None:
        """Begin the cool-down: a change ended with `workers`. error: why it failed."""
        requested, self._requested = self._requested, None
        self._may_act_at = now + self.spec.cool_down
        self._failure = error
        if not error:
            grown = requested is not None and requested[0] < workers == requested[1]
            self._grown = (requested[0], requested[2]) if requested is not None and grown else None
        self.interrupted(f"the region has {workers_text(workers)}")

    def take(self, workers: Sequence[WorkerLoad], now: float) -> int | None:
        """Take a sample of all workers. Return the number of workers to go to now, None for no change."""
        self._add(workers, now)
        missing_s = self._samples[0].at + self.spec.window - now
        if missing_s > 0:
            self.reason = self._delayed(f"the load is being measured for another {missing_s:.0f} s", now)
            return None
        load = _measured(list(self._samples), self._busiest)
        self.wanted, reason = self._judged(load)
        due_s = self._due_in(load, now)
        if self.wanted == load.workers or due_s > 0:
            later = "" if self.wanted == load.workers else f", if that stays so for another {due_s:.0f} s"
            self.reason = self._delayed(reason + later, now)
            return None
        self.reason = self._delayed(reason, now)
        if not self._may_act(now):
            return None
        for_load = load.workers == self.spec.limited(load.workers)
        self._requested = (load.workers, self._agreed, load.capacity) if for_load else None
        self.wanted = self._agreed
        return self._agreed

    def next_s(self, now: float) -> float:
        """Return the seconds until the policy may act next; 0 if it may act now."""
        full_at = self._samples[0].at + self.spec.window if self._samples else now + self.spec.window
        return max(0.0, full_at - now, self._may_act_at - now)

    # --- measuring --------------------------------------------------------------------------------------

    def _add(self, workers: Sequence[WorkerLoad], now: float) -> None:
        known = all(one.backlog_bytes >= 0 for one in workers)
        sample = _LoadSample(
            now,
            sum(one.read_bytes for one in workers),
            tuple(one.busy_s for one in workers),
            sum(one.backlog_bytes for one in workers) if known else -1,
        )
        if self._samples and not _continues(self._samples[-1], sample):
            self._samples.clear()
            self._agreed_since = None
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at <= now - self.spec.window:
            self._samples.popleft()

    def _busiest(self, shares: Sequence[float]) -> float:
        return max(shares)

    # --- judging ----------------------------------------------------------------------------------------

    def _judged(self, load: RegionLoad) -> tuple[int, str]:
        """Return how many workers a load wants, and why."""
        spec, present, self.held = self.spec, load.workers, ""
        needed = load.needed(spec.catch_up)
        share = needed / load.capacity if needed and load.rate else 0.0
        figures = f"load {share:.0%} of {workers_text(present)}: {_figures(load)}"
        if present != spec.limited(present):
            wanted = spec.limited(ceil(present * share / spec.busy - _ROUNDING))
            return wanted, f"{workers_text(present)} are outside of the limits; {figures}"
        if not load.rate and needed:
            return self._hold(present, "input waits, and none was read", figures)
        if load.waits and load.busy < min(spec.busy, _BUSY_MIN):
            why = "input waits, but no worker is busy: they wait for the store, or for each other"
            return self._hold(present, why, figures)
        unhelpful = self._unhelpful(load)
        if share > self._highest():
            return self._more(load, share, unhelpful, figures)
        leaves, stays = self._spare()
        fewer = spec.limited(ceil(present * share / (spec.busy * stays) - _ROUNDING))
        if ceil(present * share / (spec.busy * leaves) - _ROUNDING) < present and fewer < present:
            if load.waits:
                return present, f"a backlog is being read; {figures}"
            return fewer, f"the load needs only {workers_text(fewer)}; {figures}"
        return present, f"the load needs {workers_text(present)}; {figures}"

    def _unhelpful(self, load: RegionLoad) -> str:
        """Return how the last workers that were added did not help, empty if they did."""
        if self._grown is None:
            return ""
        before, capacity = self._grown
        if load.capacity >= capacity * (1 + _GAIN_MIN * (load.workers / before - 1)):
            self._grown = None
            return ""
        now, then = f"{_size(load.capacity)}/s", f"{_size(capacity)}/s"
        return f"{workers_text(load.workers)} can read {now}, and {before} could read {then}"

    def _more(self, load: RegionLoad, share: float, unhelpful: str, figures: str) -> tuple[int, str]:
        present = load.workers
        wanted = self.spec.limited(ceil(present * share / self.spec.busy - _ROUNDING))
        if wanted == present:
            return self._hold(
                present, f"the load needs more than the maximum of {workers_text(present)}", figures
            )
        if unhelpful:
            return self._hold(present, "more workers did not help", f"{unhelpful}; {figures}")
        return wanted, f"the load needs {workers_text(wanted)}; {figures}"

    def _hold(self, present: int, why: str, figures: str) -> tuple[int, str]:
        self.held = why
        return present, f"{why}; {figures}"

    def _highest(self) -> float:
        """Return the load above which workers are added."""
        return (1 + self.spec.busy) / 2

    def _spare(self) -> tuple[float, float]:
        """Return the shares of the aim below which workers leave, and below which the others stay."""
        return _LEAVES, _STAYS

    # --- waiting ----------------------------------------------------------------------------------------

    def _due_in(self, load: RegionLoad, now: float) -> float:
        """Return for how long further judgments must agree; keep since when they do."""
        assert self.wanted is not None
        present = load.workers
        up, was_up = self.wanted > present, self._agreed > present
        if self.wanted == present:
            self._agreed_since = None
            return 0.0
        if self._agreed_since is None or up != was_up:
            self._agreed_since, self._agreed = now, self.wanted
        old = now < self._agreed_since + min(self.spec.window, self.spec.cool_down)  # with the load before
        self._agreed = self.wanted if up or old else max(self._agreed, self.wanted)
        if present != self.spec.limited(present):
            return 0.0
        return self._agreed_since + (self.spec.window if up else self.spec.cool_down) - now

    def _may_act(self, now: float) -> bool:
        return now >= self._may_act_at

    def _delayed(self, reason: str, now: float) -> str:
        """Return a reason with what the cool-down is for, while it lasts."""
        if self._may_act(now):
            self._failure = ""
            return reason
        failure = f"the last change failed: {self._failure}; " if self._failure else ""
        return f"{failure}{reason}; no change for another {self._may_act_at - now:.0f} s"


def _continues(before: _LoadSample, after: _LoadSample) -> bool:
    """Return whether two samples belong together: no worker was replaced, and the same is known."""
    return (
        len(before.busy_s) == len(after.busy_s)
        and (before.backlog_bytes < 0) == (after.backlog_bytes < 0)
        and before.read_bytes <= after.read_bytes
        and all(then <= now for then, now in zip(before.busy_s, after.busy_s, strict=True))
    )


def _figures(load: RegionLoad) -> str:
    return (
        f"busiest worker {load.busy:.0%} busy, {_size(load.rate)}/s read, {_size(load.arrival)}/s arrive,"
        f" {_size(load.backlog_bytes)} wait"
    )


def _size(count: float) -> str:
    unit, size = next((one for one in _UNITS if count >= one[1]), ("B", 1))
    return f"{count / size:.1f} {unit}"


class Autoscaling:
    """The policy of one region, and its decisions."""

    def __init__(self, run: RegionRun, checkpoints: Checkpoints, changes: Changes) -> None:
        self._run = run
        self._checkpoints = checkpoints
        self._changes = changes
        self._status: AutoScaleStatus | None = None
        self._held = ""
        """The last reason to change nothing that was reported."""
        self._noted = changes.last_settled
        """The last change that the policy was notified of."""
        spec = run.spec.autoscale
        self._policy = None if spec is None else AutoscalePolicy(spec)
        if spec is not None:
            self._status = AutoScaleStatus(spec.minimum, spec.maximum)

    @property
    def status(self) -> AutoScaleStatus | None:
        """The state of the policy; None without one."""
        return self._status

    def start(self, now: float) -> None:
        """Begin to observe the region."""
        if self._policy is not None:
            self._run.timers.set("autoscale", now + self._policy.spec.sample_s)

    def timer_expired(self, waiting_for: str, now: float) -> None:
        """Sample the load, and request what the policy decides. waiting_for: at the store, or empty."""
        policy = self._policy
        assert policy is not None
        self._run.timers.set("autoscale", now + policy.spec.sample_s)
        settled = self._changes.last_settled
        if settled is not self._noted:
            self._noted = settled
            policy.settled(settled.workers, settled.error, now)
        hindrance = self._hindrance(waiting_for)
        if hindrance:
            policy.interrupted(hindrance)
        else:
            self._sample(policy, now)
        assert self._status is not None
        self._status = replace(
            self._status, wanted=policy.wanted, reason=policy.reason, next_s=policy.next_s(now)
        )

    def _hindrance(self, waiting_for: str) -> str:
        """Return why the counters do not show the load now, empty if they do."""
        run, change = self._run, self._changes.change
        if change is not None and change.replaces is not None:
            return f"worker {change.replaces} is being replaced"
        if change is not None:
            return f"the region is going to {workers_text(change.workers)}"
        if run.phase is not CoordinatorPhase.RUNNING:
            return "the region does not run now"
        if self._checkpoints.pause:
            return "the region is paused"
        if waiting_for:
            return f"the region waits for its store: {waiting_for}"
        if all(worker.exhausted for worker in run.roster):
            return "all input is read"
        return ""

    def _sample(self, policy: AutoscalePolicy, now: float) -> None:
        run, present = self._run, len(self._run.roster)
        counters = [worker.counters for worker in run.roster]
        wanted = policy.take([WorkerLoad(c.bytes_in, c.load_s, c.backlog_bytes) for c in counters], now)
        if wanted is None:
            if policy.held and policy.held != self._held:
                self._report(ScaleDecided(present, present, policy.reason))
                self._held = policy.held
            return
        self._held = ""
        self._report(ScaleDecided(present, wanted, policy.reason))
        self._changes.on_scale_wanted(ScaleWanted(wanted), now)
        if self._changes.change is None:  # refused at once
            policy.settled(present, self._changes.problem(wanted), now)

    def _report(self, decided: ScaleDecided) -> None:
        self._run.report(decided)
        assert self._status is not None
        self._status = replace(self._status, decided=decided)

"""One run: replicas by the planner, rows over the network, and collection and revival as decided by `sites`.

Without a manager, a day is computed at once. With one, time advances in steps of 30 s. At the end of each
step, rows that have arrived stay as they are; the others are computed again with the streams that were
added or removed. A round is closed when all exits have all of its rows.

Servers do not fail in a trace, so all replicas are alive; one that is cut off is late.

A stream that is revived sends what its reader does not have yet, from the time of the revival on. A replica
that is revived has its state at once: how long a restore takes is not simulated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec
import numpy as np

from sites.core.collection import Collected, find_collection, replicas_in
from sites.core.deployment import Deployment, RegionReplica, StreamReplica, make_plan
from sites.core.description import Description
from sites.core.observed import Observation
from sites.core.revival import YOUNG_S, apply_revivals, find_revivals
from tests.sites.simulation.entry import EntryStore, entry_members
from tests.sites.simulation.flow import Activity, Flow, Flowed, by_arithmetic, by_filter
from tests.sites.simulation.network import DAY_S, Network, Times
from tests.sites.simulation.query import INTERVAL_S

STEP_S: Final = 30.0
COLLECT_S: Final = 300.0
WEIGHTS_KEPT: Final = 0.9
"""After each step, so that a weight is mostly of the last five minutes."""


@dataclass(frozen=True, slots=True)
class Options:
    """hours: None for the whole trace. random: replicas beside the first are at random servers. collect: the
    share of the plan's cost that is theta, None for no collection. filter_s: rows of the first seconds pass
    through real filters; not with collection or revival. entry_servers: of the entry store in which entry
    points record the rows of sources; 0: sources send to their readers, as in the paper.
    """

    seed: int = 1
    hours: float | None = None
    random: bool = False
    collect: float | None = None
    revive: bool = False
    filter_s: float = 0.0
    entry_servers: int = 0


@dataclass(slots=True)
class Run:
    """Results. latencies_s: of each row at each exit, by round; inf for rows that did not arrive. costs: of
    the streams that were used, as a mean over time; cost: of the plan.
    """

    description: Description
    replicas: dict[str, tuple[str, ...]]
    left_out: int
    cost: float
    bytes_per_s: float
    mean_cost: float
    latencies_s: Times
    rounds_s: Times
    collected: int = 0
    revived: int = 0
    costs: list[float] = field(default_factory=list)


def simulate(
    network: Network,
    description: Description,
    options: Options,
    progress: Callable[[float], None] = lambda _share: None,
) -> Run:
    """Simulate a description. Raises PlanRefusedError, TraceError, and BadOptionError if a filter is wrong.

    progress: called with the share that is done.
    """
    plan = make_plan(description)
    replicas, left_out = plan.replicas, len(plan.left_out)
    if options.random:
        replicas, left_out = random_replicas(description, options.seed), 0
    deployment = Deployment(description, replicas)
    cost, rate = deployment.cost(), sum(map(deployment.rate_of, deployment.streams()))
    if options.collect is not None:
        description = msgspec.structs.replace(description, theta=options.collect * cost)
        deployment = Deployment(description, replicas)
    hours = options.hours or network.trace.header.days * 24.0
    rounds = np.arange(0.0, hours * 3600, INTERVAL_S)
    run = Run(description, replicas, left_out, cost, rate, cost, np.empty(0), rounds)
    network.load(0)
    members = entry_members(description, options.entry_servers)
    flow = Flow(network, deployment, EntryStore(network, members, options.seed) if members else None)
    if options.collect is None and not options.revive:
        parts = _static(flow, network, deployment, rounds, options)
    else:
        parts = _managed(flow, network, deployment, rounds, options, run)
    found, done = list[Times](), 0
    for part in parts:
        found.append(part)
        done += len(part)
        progress(done / len(rounds))
    run.latencies_s = np.concatenate(found)
    if run.costs:
        run.mean_cost = float(np.mean(run.costs))
    return run


def random_replicas(description: Description, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the cheapest place of one replica of each region, and random places of the others."""
    rng = np.random.default_rng([seed, 20])
    alone = make_plan(msgspec.structs.replace(description, kmax=1, kmin=1))
    deployment = Deployment(description, alone.replicas)
    for _ in range(description.kmax - 1):
        for region in deployment.order:
            loads, own = deployment.loads(), deployment.load_of[region]
            fit = [
                site.name
                for site in description.sites
                if site.name not in deployment.at(region)
                and loads[site.name] + own < description.alpha * site.capacity
            ]
            deployment.replicas[region] = (*deployment.at(region), fit[rng.integers(len(fit))])
    return dict(deployment.replicas)


def _latencies(flowed: Flowed, deployment: Deployment, rounds: Times) -> Times:
    """Return [round, row of an exit]."""
    parts = [flowed.ready[one][:, :-1] - rounds[:, None] for one in deployment.exits()]
    return np.concatenate(parts, axis=1)


def _static(
    flow: Flow, network: Network, deployment: Deployment, rounds: Times, options: Options
) -> Iterator[Times]:
    streams = {one: Activity() for one in deployment.streams()}
    days = np.unique(rounds // DAY_S).astype(int).tolist()
    for day in days:
        network.load(day)
        today = rounds[rounds // DAY_S == day]
        filtered = int(np.searchsorted(today, options.filter_s)) if day == 0 else 0
        for part, first in ((today[:filtered], by_filter), (today[filtered:], by_arithmetic)):
            if len(part):
                yield _latencies(flow.run(part, streams, first), deployment, part)


class Manager:
    """The coordinator of a run: what is sent, and what it decides at the end of each step."""

    def __init__(self, deployment: Deployment, options: Options, run: Run) -> None:
        self._deployment, self._options, self._run = deployment, options, run
        self.activity = {one: Activity() for one in deployment.streams()}
        self._weights = dict[StreamReplica, float]()
        self._young = dict[StreamReplica, float]()
        self._revived_at = -inf

    @property
    def streams(self) -> frozenset[StreamReplica]:
        """The streams that are sent."""
        return frozenset(one for one, activity in self.activity.items() if activity.until == inf)

    def forget(self, time: float) -> None:
        """Forget the streams that ended before that time: nothing of later rounds was sent over them."""
        for stream in [one for one, activity in self.activity.items() if activity.until <= time]:
            del self.activity[stream]

    def weigh(self, weights: dict[StreamReplica, float]) -> None:
        """Note the weights of a step."""
        for stream in weights.keys() | self._weights.keys():
            self._weights[stream] = self._weights.get(stream, 0.0) * WEIGHTS_KEPT + weights.get(stream, 0.0)

    def decide(self, now: float, lateness: dict[StreamReplica, float]) -> None:
        """Revive and collect, and change what is sent from now on."""
        streams = self.streams
        present = replicas_in(streams)
        self._young = {one: since for one, since in self._young.items() if now - since < YOUNG_S}
        observed = Observation(
            weights=self._weights,
            alive=frozenset(present),
            whole=streams,
            lateness_s=lateness,
            young=frozenset(self._young),
            since_revival_s=now - self._revived_at,
        )
        if self._options.revive:
            after = apply_revivals(streams, find_revivals(self._deployment, streams, observed))
            if added := after - streams:
                self._run.revived += len(added)
                self._revived_at = now
                self._young |= dict.fromkeys(added, now)
            if after != streams:
                return self._change(streams, after, now)
        if self._options.collect is not None and now % COLLECT_S == 0:
            group = find_collection(self._deployment, streams, observed)
            if isinstance(group, Collected):
                self._run.collected += len(group.streams)
                self._change(streams, streams - set(group.streams), now)
        return None

    def _change(self, before: frozenset[StreamReplica], after: frozenset[StreamReplica], now: float) -> None:
        for stream in before - after:
            self.activity[stream].until = now
        for stream in after - before:
            self.activity[stream] = Activity(since=now)


def _managed(
    flow: Flow, network: Network, deployment: Deployment, rounds: Times, options: Options, run: Run
) -> Iterator[Times]:
    """Yield the latencies of rounds when they are closed, in order."""
    manager = Manager(deployment, options, run)
    opened, ready, day, now, first = np.empty(0), dict[RegionReplica, Times](), 0, 0.0, by_arithmetic
    for begin in range(0, len(rounds), int(STEP_S / INTERVAL_S)):
        fresh = rounds[begin : begin + int(STEP_S / INTERVAL_S)]
        if fresh[0] // DAY_S != day:
            day = int(fresh[0] // DAY_S)
            network.load(day)
        opened = np.concatenate([opened, fresh])
        flowed = flow.run(
            opened,
            manager.activity,
            first,
            before=ready,
            now=now,
            weigh=slice(len(opened) - len(fresh), None),
        )
        now = float(fresh[0]) + STEP_S
        manager.weigh(flowed.weights)
        run.costs.append(deployment.cost(manager.streams))
        late = {stream: _lateness(opened, times, now) for stream, times in flowed.arrivals.items()}
        manager.decide(now, late)
        closed = _closed(flowed, deployment, now)
        if closed:
            yield _latencies(flowed, deployment, opened)[:closed]
        opened = opened[closed:]
        manager.forget(float(opened[0]) if len(opened) else now)
        ready = {one: times[closed:] for one, times in flowed.ready.items()}
    if len(opened):
        yield _latencies(flow.run(opened, manager.activity, first, before=ready, now=now), deployment, opened)


def _lateness(rounds: Times, marks: Times, now: float) -> float:
    """Return how long the oldest round has been due of which the mark has not arrived."""
    missing = rounds[marks > now]
    return float(now - missing.min()) if len(missing) else 0.0


def _closed(flowed: Flowed, deployment: Deployment, now: float) -> int:
    """Return how many rounds, from the first one on, have arrived at all exits."""
    last = np.max([flowed.ready[one].max(axis=1) for one in deployment.exits()], axis=0)
    late = np.flatnonzero(last > now)
    return int(late[0]) if len(late) else len(last)

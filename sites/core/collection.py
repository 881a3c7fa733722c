"""Which streams a deployment needs least, and may do without. Pure and deterministic.

Hwang, Cetintemel, Zdonik, section V-B, algorithm 6. While the cost is above theta, the group of streams with
the least utility for its cost is removed. A group is a stream with its *dependents*: a replica that lacks a
stream on some port, or that has no reader, is of no use, so all of its streams are removed too.

A group is never removed

    C1   for 10 minutes after a revival: otherwise streams would be removed and revived in turn
    C2   if fewer replicas of some region are left that *count* than kmin, or than now if they are fewer. A
         replica counts if it is alive, has a living reader, and is whole at all of its living readers
    C3   if the loss of any kmin - 1 sites would then leave an exit without rows: kmin replicas are not
         enough, because each may depend on another site. Only replicas that are alive, and streams that are
         whole, feed an exit
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Final, NamedTuple

from sites.core.deployment import Deployment, RegionReplica, StreamReplica, Streams
from sites.core.observed import Observation

AFTER_REVIVAL_S: Final = 600.0
"""Nothing is collected for so long after a revival."""


class Collected(NamedTuple):
    """A group to remove. replicas: those that stop."""

    streams: tuple[StreamReplica, ...]
    replicas: tuple[RegionReplica, ...]
    utility: float
    cost: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Nothing is removed."""

    why: str


def find_collection(deployment: Deployment, streams: Streams, observed: Observation) -> Collected | Kept:
    """Return the group that is to be removed next."""
    cost, theta = deployment.cost(streams), deployment.description.theta
    if theta is None:
        return Kept("the description has no theta, so any cost is accepted")
    if cost <= theta:
        return Kept(f"the cost of {cost:,.0f} is not above theta, {theta:,.0f}")
    if observed.since_revival_s < AFTER_REVIVAL_S:
        return Kept(
            f"the last revival was {observed.since_revival_s:.0f} s ago; nothing is collected for"
            f" {AFTER_REVIVAL_S:.0f} s"
        )
    useful = utilities(deployment, streams, observed.weights)
    groups = []
    dependents = Dependents(deployment, streams)
    for group in {dependents.of([one]) for one in streams}:
        names = tuple(sorted(group))
        price = deployment.cost(names)
        if price > 0:
            groups.append((sum(useful[one] for one in names) / price, names, price))
    remaining = Remaining(deployment, streams, observed)
    reasons = list[str]()
    for ratio, names, price in sorted(groups):
        why = remaining.refusal(names)
        if why is None:
            left = replicas_in(set(streams) - set(names))
            stopped = sorted(one for one in replicas_in(names) - left if one.node not in deployment.fixed)
            return Collected(names, tuple(stopped), ratio * price, price)
        reasons.append(why)
    return Kept(
        f"every group is needed; the least useful one: {reasons[0] if reasons else 'none has a cost'}"
    )


class Dependents:
    def __init__(self, deployment: Deployment, streams: Streams) -> None:
        self._fixed, self._senders = deployment.fixed, deployment.senders
        self._outputs = dict[RegionReplica, set[StreamReplica]]()
        self._ports = dict[tuple[RegionReplica, str], set[StreamReplica]]()
        for stream in streams:
            self._outputs.setdefault(stream.sender, set()).add(stream)
            self._ports.setdefault((stream.reader, stream.sender.node), set()).add(stream)

    def of(self, removed: Iterable[StreamReplica]) -> frozenset[StreamReplica]:
        """Return the streams that are to be removed together with these, themselves included."""
        group, pending = set[StreamReplica](), list(removed)
        while pending:
            stream = pending.pop()
            if stream in group:
                continue
            group.add(stream)
            sender, reader = stream
            if reader.node not in self._fixed and self._ports[reader, sender.node] <= group:
                pending += self.streams_of(reader)
            if sender.node not in self._fixed and self._outputs[sender] <= group:
                pending += self.streams_of(sender)
        return frozenset(group)

    def streams_of(self, replica: RegionReplica) -> list[StreamReplica]:
        """Return the streams from and to a replica of a region."""
        ports = [self._ports.get((replica, node), ()) for node in self._senders[replica.node]]
        return [one for streams in (self._outputs.get(replica, ()), *ports) for one in streams]


def replicas_in(streams: Iterable[StreamReplica]) -> set[RegionReplica]:
    """Return the replicas that send or read these streams, with sources and exits."""
    return {one for stream in streams for one in stream}


class Remaining:
    """The rules about what must remain, C2 and C3, for one observation."""

    def __init__(self, deployment: Deployment, streams: Streams, observed: Observation) -> None:
        self._deployment, self._streams, self._observed = deployment, frozenset(streams), observed
        self._counted = self._by_region(counted(self._streams, observed))

    def refusal(self, removed: Iterable[StreamReplica]) -> str | None:
        """Return the rule that a removal would break, None if it may be done."""
        left, kmin = self._streams.difference(removed), self._deployment.description.kmin
        counts = self._by_region(counted(left, self._observed))
        for region, now in self._counted.items():
            if counts.get(region, 0) < min(kmin, now):
                return (
                    f"{counts.get(region, 0)} replicas of region {region!r} that are alive, and whole at"
                    " their readers, would be left"
                )
        return self._starves(left)

    def _by_region(self, replicas: Collection[RegionReplica]) -> dict[str, int]:
        found = dict[str, int]()
        for one in sorted(replicas):
            if one.node not in self._deployment.fixed:
                found[one.node] = found.get(one.node, 0) + 1
        return found

    def _starves(self, left: frozenset[StreamReplica]) -> str | None:
        usable = working(self._deployment, left, self._observed)
        fixed = self._deployment.fixed
        sites = sorted({one.site for one in replicas_in(usable) if one.node not in fixed})
        losses = min(self._deployment.description.kmin - 1, len(sites))
        for lost in combinations(sites, losses):
            ready = self._deployment.ready_ms(usable, lost)
            for exit_ in self._deployment.exits():
                if ready[exit_] == inf:
                    after = f" after the loss of {' and '.join(lost)}" if lost else ""
                    return f"exit {exit_.node!r} would get no rows{after}"
        return None


def counted(streams: Streams, observed: Observation) -> set[RegionReplica]:
    """Return the replicas that are alive, have a living reader, and are whole at all living readers."""
    read = [one for one in streams if one.sender in observed.alive and one.reader in observed.alive]
    return {one.sender for one in read} - {one.sender for one in read if one not in observed.whole}


def working(deployment: Deployment, streams: Streams, observed: Observation) -> list[StreamReplica]:
    """Return the streams that are whole, between what is alive. Sources are."""
    sources = {place.name for place in deployment.description.sources}
    return sorted(
        stream
        for stream in streams
        if stream in observed.whole
        and stream.reader in observed.alive
        and (stream.sender in observed.alive or stream.sender.node in sources)
    )


def utilities(
    deployment: Deployment, streams: Streams, weights: Mapping[StreamReplica, float]
) -> dict[StreamReplica, float]:
    """Return the utility of each stream: its share of the weight in its port, times the utility of its
    reader. That of an exit is 1, that of a replica the sum over its outputs.
    """
    inputs = dict[RegionReplica, list[StreamReplica]]()
    outputs = dict[RegionReplica, list[StreamReplica]]()
    for stream in sorted(streams):
        inputs.setdefault(stream.reader, []).append(stream)
        outputs.setdefault(stream.sender, []).append(stream)
    upstream = {node: rank for rank, node in enumerate(reversed(deployment.order), start=1)}
    found = dict[StreamReplica, float]()
    for reader in sorted(inputs, key=lambda one: (upstream.get(one.node, 0), one)):
        own = 1.0 if reader.node not in upstream else sum(found[one] for one in outputs.get(reader, ()))
        for node in deployment.senders[reader.node]:
            port = [one for one in inputs[reader] if one.sender.node == node]
            total = sum(weights.get(one, 0.0) for one in port)
            for one in port:
                found[one] = own * (weights.get(one, 0.0) / total if total else 1 / len(port))
    return found

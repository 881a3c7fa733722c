"""Where the replicas of each region go. Pure and deterministic: equal costs are decided by name.

Hwang, Cetintemel, Zdonik, section V-A, algorithm 5. The cost of a stream between two replicas is its rate
times the mean latency of the link, so it counts the bytes under way. The cost of a plan is the sum over all
streams, from every replica of the sender to every replica of the reader.

1. One replica of each region: each at the cheapest site, then one after the other moved to a cheaper one,
   until none moves (the paper starts from an optimal unreplicated deployment, by spring relaxation).
2. `kmax` - 1 times, one more replica of each region, in the order of the streams, at the site where it adds
   least. A site fits if it is not busy: its load with the new replica stays below alpha times its capacity;
   and if it is farther than `distance_ms` from every other replica of the region, by the least latency that
   was observed: near sites fail together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Final

from sites.core.description import Description
from sites.errors import PlanRefusedError

Replicas = Mapping[str, tuple[str, ...]]
"""Region -> the sites of its replicas, in the order in which they were placed."""
_GAIN_MIN: Final = 1e-9
"""A move must lower the cost by this share: otherwise rounding could move regions for ever."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A replica that has no site. why: the reason at each site."""

    region: str
    number: int
    why: dict[str, str]

    def __str__(self) -> str:
        listed = "; ".join(f"{site}: {why}" for site, why in self.why.items())
        return f"replica {self.number} of region {self.region!r} fits at no site ({listed})"


@dataclass(frozen=True, slots=True)
class Plan:
    """The result. cost: in bytes under way; bytes_per_s: over all links, also those within a site."""

    replicas: dict[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    cost: float
    bytes_per_s: float
    latencies_ms: dict[str, float]
    """Exit -> how long a row is on the network, by the fastest way."""
    losses: int
    """So many sites may be lost, whichever they are, beside those of sources and exits."""

    def loads(self, description: Description) -> dict[str, float]:
        """Return site -> its load with all replicas."""
        return _Deployment(description, self.replicas).loads()


class _Deployment:
    """The replicas that are placed so far."""

    def __init__(self, description: Description, replicas: Replicas) -> None:
        self.description = description
        self.fixed = description.fixed()
        self.latency = description.latencies()
        self.distance = description.distances()
        self.load_of = {region.name: region.load for region in description.regions}
        self.replicas = dict(replicas)

    def at(self, node: str) -> tuple[str, ...]:
        """Return the sites of a source, a region or an exit."""
        return (self.fixed[node],) if node in self.fixed else self.replicas.get(node, ())

    def loads(self) -> dict[str, float]:
        found = {site.name: site.load for site in self.description.sites}
        for region, sites in self.replicas.items():
            for site in sites:
                found[site] += self.load_of[region]
        return found

    def cost_of(self, region: str, site: str) -> float:
        """Return the cost of the streams of one replica, from and to all that is placed."""
        cost = 0.0
        for stream in self.description.streams:
            for node, other in ((stream.reader, stream.sender), (stream.sender, stream.reader)):
                if node == region:
                    cost += stream.bytes_per_s * sum(self.latency[site, there] for there in self.at(other))
        return cost / 1000

    def cost(self) -> float:
        return (
            sum(
                stream.bytes_per_s * self.latency[here, there]
                for stream in self.description.streams
                for here in self.at(stream.sender)
                for there in self.at(stream.reader)
            )
            / 1000
        )

    def unfit(self, region: str) -> dict[str, str]:
        """Return site -> why it cannot get another replica of a region."""
        loads, own = self.loads(), self.load_of[region]
        found = {}
        for site in self.description.sites:
            allowed = self.description.alpha * site.capacity
            near = [
                there
                for there in self.at(region)
                if self.distance[site.name, there] <= self.description.distance_ms
            ]
            if site.name in self.at(region):
                found[site.name] = "it has a replica"
            elif loads[site.name] + own >= allowed:
                found[site.name] = f"busy: {loads[site.name]:g} + {own:g} is not below {allowed:g}"
            elif near:
                distance = self.distance[site.name, near[0]]
                found[site.name] = f"{distance:g} ms from the replica at {near[0]}"
        return found

    def cheapest(self, region: str) -> str | None:
        """Return the site at which another replica costs least, None if none fits."""
        unfit = self.unfit(region)
        fit = [site.name for site in self.description.sites if site.name not in unfit]
        return min(fit, key=lambda site: (self.cost_of(region, site), site), default=None)


def make_plan(description: Description) -> Plan:
    """Return the plan of a description that was checked.

    Raises PlanRefusedError if a region gets fewer than `kmin` replicas.
    """
    order = description.order()
    placed, left_out = _Deployment(description, {}), list[LeftOut]()
    for number in range(1, description.kmax + 1):
        for region in order:
            site = placed.cheapest(region)
            if site is not None:
                placed.replicas[region] = (*placed.at(region), site)
                continue
            missing = LeftOut(region, number, placed.unfit(region))
            if number <= description.kmin:
                raise PlanRefusedError(f"{missing}, and kmin is {description.kmin}")
            left_out.append(missing)
        if number == 1:
            _relax(placed, order)
    return Plan(
        replicas=dict(placed.replicas),
        left_out=tuple(left_out),
        cost=placed.cost(),
        bytes_per_s=sum(
            stream.bytes_per_s * len(placed.at(stream.sender)) * len(placed.at(stream.reader))
            for stream in description.streams
        ),
        latencies_ms=arrivals_ms(description, placed.replicas),
        losses=losses_survived(description, placed.replicas),
    )


def _relax(placed: _Deployment, order: list[str]) -> None:
    """Move one region at a time to a cheaper site, until none moves. Each has one replica."""
    moved = True
    while moved:
        moved = False
        for region in order:
            (now,) = placed.replicas.pop(region)
            site = placed.cheapest(region)
            assert site is not None, "it fits where it was"
            cheaper = placed.cost_of(region, site) < placed.cost_of(region, now) * (1 - _GAIN_MIN)
            placed.replicas[region] = (site,) if cheaper else (now,)
            moved |= cheaper


def arrivals_ms(description: Description, replicas: Replicas, lost: Iterable[str] = ()) -> dict[str, float]:
    """Return exit -> how long a row is on the network before it is there, by the fastest way; infinite if it
    never arrives. lost: sites whose replicas do not run.

    A replica has a row when all of its inputs have it, each from the replica that is first.
    """
    placed, gone = _Deployment(description, replicas), frozenset(lost)
    ready = {(place.name, place.site): 0.0 for place in description.sources}

    def first(node: str, site: str) -> float:
        senders = [stream.sender for stream in description.streams if stream.reader == node]
        return max(
            min(
                (ready[sender, there] + placed.latency[there, site] for there in alive(sender)),
                default=inf,
            )
            for sender in senders
        )

    def alive(node: str) -> list[str]:
        return [site for site in placed.at(node) if node in placed.fixed or site not in gone]

    for region in description.order():
        for site in alive(region):
            ready[region, site] = first(region, site)
    return {place.name: first(place.name, place.site) for place in description.exits}


def losses_survived(description: Description, replicas: Replicas) -> int:
    """Return how many sites may be lost, whichever they are, so that every exit still gets rows. Sources and
    exits themselves are not lost.
    """
    used = sorted({site for sites in replicas.values() for site in sites})
    for count in range(1, len(used) + 1):
        for lost in combinations(used, count):
            if inf in arrivals_ms(description, replicas, lost).values():
                return count - 1
    return len(used)

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

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sites.core.deployment import Deployment, RegionReplica, Replicas
from sites.core.description import Description
from sites.errors import PlanRefusedError

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
        return Deployment(description, self.replicas).loads()


def make_plan(description: Description, without: Collection[str] = ()) -> Plan:
    """Return the plan of a description that was checked. without: sites that get no replicas.

    Raises PlanRefusedError if a region gets fewer than `kmin` replicas.
    """
    order = description.order()
    placed, left_out = Deployment(description, {}), list[LeftOut]()
    for number in range(1, description.kmax + 1):
        for region in order:
            site = placed.cheapest(region, without)
            if site is not None:
                placed.replicas[region] = (*placed.at(region), site)
                continue
            missing = LeftOut(
                region, number, {**placed.unfit(region), **dict.fromkeys(without, "it was forgotten")}
            )
            if number <= description.kmin:
                raise PlanRefusedError(f"{missing}, and kmin is {description.kmin}")
            left_out.append(missing)
        if number == 1:
            _relax(placed, order, without)
    return Plan(
        replicas=dict(placed.replicas),
        left_out=tuple(left_out),
        cost=placed.cost(),
        bytes_per_s=sum(map(placed.rate_of, placed.streams())),
        latencies_ms=arrivals_ms(description, placed.replicas),
        losses=losses_survived(placed.replicas),
    )


def _relax(placed: Deployment, order: list[str], without: Collection[str]) -> None:
    """Move one region at a time to a cheaper site, until none moves. Each has one replica."""
    moved = True
    while moved:
        moved = False
        for region in order:
            (now,) = placed.replicas.pop(region)
            site = placed.cheapest(region, without)
            assert site is not None, "it fits where it was"
            cheaper = placed.cost_of(region, site) < placed.cost_of(region, now) * (1 - _GAIN_MIN)
            placed.replicas[region] = (site,) if cheaper else (now,)
            moved |= cheaper


def arrivals_ms(description: Description, replicas: Replicas, lost: Iterable[str] = ()) -> dict[str, float]:
    """Return exit -> how long a row is on the network before it is there, by the fastest way; infinite if it
    never arrives. lost: sites whose replicas do not run.
    """
    placed = Deployment(description, replicas)
    ready = placed.ready_ms(placed.streams(), lost)
    return {place.name: ready[RegionReplica(place.name, place.site)] for place in description.exits}


def losses_survived(replicas: Replicas) -> int:
    """Return how many sites may be lost, whichever they are, so that every exit still gets rows. Sources and
    exits themselves are not lost.

    Every replica feeds every replica of its readers, so results stop when a region has lost all of its sites.
    """
    return min((len(sites) - 1 for sites in replicas.values()), default=0)

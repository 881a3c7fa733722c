"""The replicas of a deployment and the streams between them: what they cost, how rows get to the exits, and
where the replicas go. Pure and deterministic: equal costs are decided by name.

A *replica* is written `joined@purdue`. A source or an exit has one, at its own site. A *port* of a reader has
the streams from all replicas of one sender. The cost of a stream between two replicas is its rate times the
mean latency of the link, so it counts the bytes under way. `make_plan` is Hwang, Cetintemel, Zdonik, section
V-A, algorithm 5.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import fsum, inf
from typing import Final, NamedTuple

from sites.core.description import Description
from sites.errors import PlanRefusedError

Replicas = Mapping[str, tuple[str, ...]]
"""Region -> the sites of its replicas, in the order in which they were placed."""


class RegionReplica(NamedTuple):
    """A region at one site; or a source or an exit, at the site where it is."""

    node: str
    site: str

    def __str__(self) -> str:
        return f"{self.node}@{self.site}"


class StreamReplica(NamedTuple):
    """The output of one replica, as one replica of a region that reads it, or an exit, receives it."""

    sender: RegionReplica
    reader: RegionReplica

    def __str__(self) -> str:
        return f"{self.sender} -> {self.reader}"


Streams = Collection[StreamReplica]


class Deployment:
    """The replicas that are placed. Without an argument `streams`, a method is about a stream from every
    replica of a sender to every replica of its reader.
    """

    def __init__(self, description: Description, replicas: Replicas) -> None:
        self.description = description
        self.fixed = description.fixed()
        self.latency = description.latencies()
        self.distance = description.distances()
        self.load_of = {region.name: region.load for region in description.regions}
        self.senders = description.senders()
        self.order = description.order()
        self.replicas = dict(replicas)
        self._rates = {(one.sender, one.reader): one.bytes_per_s for one in description.streams}

    def at(self, node: str) -> tuple[str, ...]:
        """Return the sites of a source, a region or an exit."""
        return (self.fixed[node],) if node in self.fixed else self.replicas.get(node, ())

    def replicas_of(self, node: str) -> list[RegionReplica]:
        return [RegionReplica(node, site) for site in self.at(node)]

    def exits(self) -> list[RegionReplica]:
        return [RegionReplica(place.name, place.site) for place in self.description.exits]

    def loads(self) -> dict[str, float]:
        found = {site.name: site.load for site in self.description.sites}
        for region, sites in self.replicas.items():
            for site in sites:
                found[site] += self.load_of[region]
        return found

    # --- cost -----------------------------------------------------------------------------------------------

    def rate_of(self, stream: StreamReplica) -> float:
        return self._rates[stream.sender.node, stream.reader.node]

    def stream_cost(self, stream: StreamReplica) -> float:
        return self.rate_of(stream) * self.latency[stream.sender.site, stream.reader.site] / 1000

    def cost(self, streams: Streams | None = None) -> float:
        """Return the bytes under way."""
        # Rounded once: equal costs are equal in every order of the streams, or plans would differ.
        return fsum(map(self.stream_cost, self.streams() if streams is None else streams))

    def streams(self) -> list[StreamReplica]:
        return [
            StreamReplica(sender, reader)
            for stream in self.description.streams
            for sender in self.replicas_of(stream.sender)
            for reader in self.replicas_of(stream.reader)
        ]

    def cost_of(self, region: str, site: str) -> float:
        """Return the cost of the streams of one replica, from and to all that is placed."""
        own, streams = RegionReplica(region, site), list[StreamReplica]()
        for stream in self.description.streams:
            if stream.reader == region:
                streams += [StreamReplica(one, own) for one in self.replicas_of(stream.sender)]
            if stream.sender == region:
                streams += [StreamReplica(own, one) for one in self.replicas_of(stream.reader)]
        return self.cost(streams)

    # --- sites for another replica --------------------------------------------------------------------------

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

    def cheapest(self, region: str, without: Iterable[str] = ()) -> str | None:
        """Return the site at which another replica costs least, None if none fits. without: these sites."""
        unfit = {*self.unfit(region), *without}
        fit = [site.name for site in self.description.sites if site.name not in unfit]
        return min(fit, key=lambda site: (self.cost_of(region, site), site), default=None)

    # --- the way of rows to the exits -----------------------------------------------------------------------

    def ready_ms(self, streams: Streams, lost: Iterable[str] = ()) -> dict[RegionReplica, float]:
        """Return source, replica or exit -> how long a row is on the network before it is there, by the
        fastest way; infinite if it never arrives. lost: sites whose replicas do not run.
        """
        # A replica has a row when all of its ports have it, each from the replica that is first. Replicas
        # without any stream are left out; exits are not.
        gone, ports = frozenset(lost), dict[RegionReplica, dict[str, list[RegionReplica]]]()
        found = {RegionReplica(place.name, place.site): 0.0 for place in self.description.sources}
        readers = dict[str, list[RegionReplica]]()
        for sender, reader in streams:
            if reader not in ports:
                ports[reader] = {node: [] for node in self.senders[reader.node]}
                readers.setdefault(reader.node, []).append(reader)
            ports[reader][sender.node].append(sender)

        def first(reader: RegionReplica) -> float:
            return max(
                min((found.get(one, inf) + self.latency[one.site, reader.site] for one in port), default=inf)
                for port in ports[reader].values()
            )

        for region in self.order:
            for reader in readers.get(region, ()):
                found[reader] = inf if reader.site in gone else first(reader)
        for exit_ in self.exits():
            found[exit_] = first(exit_) if exit_ in ports else inf
        return found


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
    # One replica of each region first, each at the cheapest site, then moved until none moves to a cheaper
    # one (the paper starts from an optimal unreplicated deployment, by spring relaxation). Then `kmax` - 1
    # times one more of each, where it adds least. Near sites fail together, so replicas are apart by the
    # least latency observed.
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
    """Return exit -> the time of `Deployment.ready_ms`."""
    placed = Deployment(description, replicas)
    ready = placed.ready_ms(placed.streams(), lost)
    return {place.name: ready[RegionReplica(place.name, place.site)] for place in description.exits}


def losses_survived(replicas: Replicas) -> int:
    """Return how many sites may be lost, whichever they are, so that every exit still gets rows."""
    # Every replica feeds every replica of its readers, so results stop when a region has lost all of its
    # sites.
    return min((len(sites) - 1 for sites in replicas.values()), default=0)

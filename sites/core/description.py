"""What runs where: sites, the distances between them, and the regions of an application with their streams.

`decode_description` reads it from TOML:

    kmax = 3                       # replicas of each region, if the sites allow it
    kmin = 2                       # fewer are refused
    theta = 50000.0                # collect streams while the deployment costs more
    distance_ms = 30               # replicas of one region are farther apart than that
    alpha = 0.8                    # the share of a site's capacity that may be used

    [[sites]]
    name = "purdue"
    capacity = 4.0                 # in the unit of the loads, for example processors
    load = 0.5                     # of what else runs there

    [[links]]
    between = ["purdue", "osu"]
    latency_ms = 21.0              # mean of one direction
    least_ms = 18.0                # the least that was seen; latency_ms if it is left out

    [[sources]]                    # where rows enter
    name = "sensors"
    site = "purdue"

    [[exits]]                      # where results are needed
    name = "board"
    site = "osu"

    [[regions]]
    name = "joined"
    load = 0.4

    [[streams]]
    from = "sensors"
    to = "joined"
    bytes_per_s = 20000.0
"""

import tomllib
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Final, Literal, TypeVar

import msgspec

from dos_protocol.names import is_name
from sites.errors import DescriptionError

_Kind = TypeVar("_Kind")
NAME_CHARS_MAX: Final = 32
"""Of an application, site, source, region or exit that is deployed."""
REPLICAS_MAX: Final = 100
"""Of a region: the planner tries so many."""
HERE_MS: Final = 0.0
"""The latency within a site."""


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place that runs regions. load: of what runs there beside this application. store: its URL."""

    name: str
    capacity: float
    load: float = 0.0
    store: str | None = None
    runs: Literal["local", "spark"] = "local"


class SiteLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network between two sites, the same in both directions."""

    between: tuple[str, str]
    latency_ms: float
    least_ms: float | None = None


class FixedPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source of rows, or an exit. graph, workers: of an exit that is a region, as in `ReplicatedRegion`."""

    name: str
    site: str
    graph: str | None = None
    workers: int | None = None


class ReplicatedRegion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the application that is replicated as a whole. load, workers: of one replica. graph: the
    function that returns its graph, as `module:function`.
    """

    name: str
    load: float = 0.0
    graph: str | None = None
    workers: int | None = None


class ReplicatedStream(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"sender": "from", "reader": "to"}
):
    """What a source or a region sends to a region or an exit: to each of its replicas."""

    sender: str
    reader: str
    bytes_per_s: float


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An application over sites. Every method assumes that `check` has passed.

    theta: the aim for the cost, in bytes under way; None for no aim. late_s: a port is late if all of its
    streams are later than this, in seconds. application: its name in the entry store. entry_store: the URL of
    the store that holds the deployment. A plan needs neither.
    """

    sites: tuple[Site, ...]
    sources: tuple[FixedPlace, ...]
    exits: tuple[FixedPlace, ...]
    regions: tuple[ReplicatedRegion, ...]
    streams: tuple[ReplicatedStream, ...]
    links: tuple[SiteLink, ...] = ()
    kmax: int = 2
    kmin: int = 1
    distance_ms: float = 30.0
    alpha: float = 0.8
    theta: float | None = None
    late_s: float = 10.0
    application: str = ""
    entry_store: str | None = None

    def latencies(self) -> dict[tuple[str, str], float]:
        """Return (site, site) -> the mean latency in milliseconds."""
        return self._between((link, link.latency_ms) for link in self.links)

    def distances(self) -> dict[tuple[str, str], float]:
        """Return (site, site) -> the least latency that was observed."""
        return self._between(
            (link, link.latency_ms if link.least_ms is None else link.least_ms) for link in self.links
        )

    def _between(self, links: Iterable[tuple[SiteLink, float]]) -> dict[tuple[str, str], float]:
        found = {(site.name, site.name): HERE_MS for site in self.sites}
        for link, value in links:
            one, other = link.between
            found[one, other] = found[other, one] = value
        return found

    def fixed(self) -> dict[str, str]:
        """Return source or exit -> its site."""
        return {place.name: place.site for place in (*self.sources, *self.exits)}

    def senders(self) -> dict[str, list[str]]:
        """Return region or exit -> what it reads, by name: one port for each."""
        found: dict[str, list[str]] = {}
        for stream in self.streams:
            found.setdefault(stream.reader, []).append(stream.sender)
        return {reader: sorted(senders) for reader, senders in found.items()}

    def order(self) -> list[str]:
        """Return the regions so that each one follows those that it reads; otherwise by name."""
        regions = {region.name for region in self.regions}
        reads: dict[str, set[str]] = {name: set() for name in regions}
        for stream in self.streams:
            if stream.sender in regions and stream.reader in regions:
                reads[stream.reader].add(stream.sender)
        sorter, found = TopologicalSorter(reads), list[str]()
        sorter.prepare()
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            found += ready
            sorter.done(*ready)
        return found


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that were measured, which replace those of a description. Each table may be left out."""

    links: tuple[SiteLink, ...] = ()
    streams: tuple[ReplicatedStream, ...] = ()
    site_loads: dict[str, float] = msgspec.field(default_factory=dict)
    region_loads: dict[str, float] = msgspec.field(default_factory=dict)


def with_measured(one: Description, measured: Measured) -> Description:
    """Return the description with what was measured. Raises DescriptionError."""
    links = {frozenset(link.between): link for link in measured.links}
    streams = {(stream.sender, stream.reader): stream for stream in measured.streams}
    pairs = {frozenset(link.between) for link in one.links}
    _must_know("link between", map(sorted, links.keys() - pairs))
    _must_know("stream", streams.keys() - {(stream.sender, stream.reader) for stream in one.streams})
    _must_know("site", [[name] for name in measured.site_loads.keys() - {site.name for site in one.sites}])
    regions = {region.name for region in one.regions}
    _must_know("region", [[name] for name in measured.region_loads.keys() - regions])
    replaced = msgspec.structs.replace(
        one,
        links=tuple(links.get(frozenset(link.between), link) for link in one.links),
        streams=tuple(streams.get((stream.sender, stream.reader), stream) for stream in one.streams),
        sites=tuple(
            msgspec.structs.replace(site, load=measured.site_loads.get(site.name, site.load))
            for site in one.sites
        ),
        regions=tuple(
            msgspec.structs.replace(region, load=measured.region_loads.get(region.name, region.load))
            for region in one.regions
        ),
    )
    check(replaced)
    return replaced


def _must_know(what: str, unknown: Iterable[Iterable[str]]) -> None:
    for names in sorted(map(tuple, unknown)):
        raise DescriptionError(f"{what} {' and '.join(map(repr, names))} was measured, but is not described")


def decode_measured(text: str) -> Measured:
    """Read measured values from TOML. Raises DescriptionError."""
    return _decode(text, Measured)


def decode_description(text: str) -> Description:
    """Read a description, and check it. Raises DescriptionError."""
    description = _decode(text, Description)
    check(description)
    return description


def _decode(text: str, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except tomllib.TOMLDecodeError as error:
        raise DescriptionError(f"it is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise DescriptionError(str(error)) from error


def check(description: Description) -> None:
    """Raise DescriptionError, which names the first entry that breaks a rule."""
    one = description
    sites = _unique("site", [site.name for site in one.sites])
    _unique(
        "source, region or exit",
        [*(place.name for place in (*one.sources, *one.exits)), *(region.name for region in one.regions)],
    )
    sources, exits = {place.name for place in one.sources}, {place.name for place in one.exits}
    regions = {region.name for region in one.regions}
    for place in (*one.sources, *one.exits):
        if place.site not in sites:
            raise DescriptionError(f"{place.name!r} is at site {place.site!r}, which is not described")
    for stream in one.streams:
        if stream.sender not in sources | regions or stream.reader not in exits | regions:
            raise DescriptionError(
                f"the stream from {stream.sender!r} to {stream.reader!r} must lead from a source or a region"
                " to a region or an exit that is described"
            )
    pairs = [(stream.sender, stream.reader) for stream in one.streams]
    for sender, reader in pairs:
        if pairs.count((sender, reader)) > 1:
            raise DescriptionError(f"there are two streams from {sender!r} to {reader!r}")
    for name in sorted((regions | exits) - {stream.reader for stream in one.streams}):
        raise DescriptionError(f"no stream leads to {name!r}")
    for name in sorted(regions - {stream.sender for stream in one.streams}):
        raise DescriptionError(f"no stream leads from region {name!r}")
    if one.entry_store is not None:
        _check_names([one.application, *sites, *sources, *exits, *regions])
    _check_numbers(one)
    _check_links(one, sites)
    try:
        one.order()
    except CycleError as error:
        raise DescriptionError(
            f"regions read each other in a circle: {' from '.join(error.args[1])}"
        ) from error


def _unique(what: str, names: list[str]) -> set[str]:
    for name in names:
        if not name or names.count(name) > 1:
            raise DescriptionError(f"{what} {name!r} needs a name of its own")
    return set(names)


def _check_names(names: Iterable[str]) -> None:
    # They are parts of names of directories, between dots.
    for name in sorted(names):
        if not is_name(name) or "." in name or len(name) > NAME_CHARS_MAX:
            raise DescriptionError(
                f"{name!r}: the names of the application, and of what is deployed, have at most"
                f" {NAME_CHARS_MAX} letters, digits, `-` and `_`, the first of which is a letter or a digit"
            )


def _check_numbers(one: Description) -> None:
    if not 1 <= one.kmin <= one.kmax:
        raise DescriptionError(f"kmin = {one.kmin} and kmax = {one.kmax}: 1 <= kmin <= kmax is needed")
    if one.kmax > REPLICAS_MAX:
        raise DescriptionError(f"kmax = {one.kmax}: a region has at most {REPLICAS_MAX} replicas")
    if not 0 < one.alpha <= 1:
        raise DescriptionError(f"alpha = {one.alpha}: it is a share, above 0 and at most 1")
    values = {"distance_ms": one.distance_ms, "late_s": one.late_s, "theta": one.theta or 0.0}
    values |= {f"the capacity of site {site.name!r}": site.capacity for site in one.sites}
    values |= {f"the load of site {site.name!r}": site.load for site in one.sites}
    values |= {f"the load of region {region.name!r}": region.load for region in one.regions}
    values |= {
        f"bytes_per_s of the stream from {stream.sender!r} to {stream.reader!r}": stream.bytes_per_s
        for stream in one.streams
    }
    for what, value in values.items():
        if not 0 <= value < inf:
            raise DescriptionError(f"{what} is {value}: it must be a finite number, and cannot be below 0")
    for region in one.regions:
        if region.workers is not None and region.workers < 1:
            raise DescriptionError(
                f"workers of region {region.name!r} is {region.workers}: at least 1 is needed"
            )


def _check_links(one: Description, sites: set[str]) -> None:
    known = set[frozenset[str]]()
    for link in one.links:
        pair = frozenset(link.between)
        text = " and ".join(map(repr, link.between))
        if len(pair) != 2 or not pair <= sites:
            raise DescriptionError(f"the link between {text} must be between two sites that are described")
        if pair in known:
            raise DescriptionError(f"there are two links between {text}")
        least = link.latency_ms if link.least_ms is None else link.least_ms
        if not 0 <= least <= link.latency_ms < inf:
            raise DescriptionError(
                f"the link between {text}: 0 <= least_ms <= latency_ms is needed, and finite numbers"
            )
        known.add(pair)
    for first in sorted(sites):
        for second in sorted(sites):
            if first < second and frozenset((first, second)) not in known:
                raise DescriptionError(f"there is no link between {first!r} and {second!r}")

"""What the process at one site does: which replicas run there, what each reads, and what is started or
stopped now. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.description import Description
from sites.errors import GraphRefusedError

CONSUMER_ID_DIGITS: Final = 8
"""Of the store of a reader, at the end of its name as a consumer (`dataflow/merging`)."""
RETRY_S: Final = 30.0
"""A region that has failed is started again after this time."""


class PortStream(NamedTuple):
    """One stream on a port. region: the name of the sending region in its store, None for a source. store:
    the URL of the store of the sender's site; of a source, of the entry store.
    """

    sender: RegionReplica
    region: str | None
    store: str | None


class ReplicaContext(NamedTuple):
    """What a graph function receives: where the replica runs, and the streams on each of its ports. name: of
    the region in the store of its site.
    """

    application: str
    replica: RegionReplica
    name: str
    store: str
    entry_store: str
    ports: dict[str, tuple[PortStream, ...]]

    def merged(self, sender: str) -> dict[str, Any]:
        """Return the parameters `region` and `sites` of the `MergedLogSource` that reads a region."""
        streams = self.ports[sender]
        return {"region": streams[0].region, "sites": {one.sender.site: str(one.store) for one in streams}}


class SiteSteps(NamedTuple):
    """Regions to stop, and then regions to start."""

    stop: tuple[str, ...]
    start: tuple[str, ...]


class StartedReplica(NamedTuple):
    """A region that was started. ended_s: for how long it has ended. differs: because its replicas differ."""

    context: ReplicaContext
    state: str
    ended_s: float | None
    differs: bool = False


def region_name(application: str, region: str) -> str:
    """Return the name of a replica in the store of its site."""
    return f"{application}.{region}"


def contexts_at(description: Description, deployed: Deployed, site: str) -> dict[str, ReplicaContext]:
    """Return region -> what its replica at a site needs, of those that run there. The site has a store."""
    stores = {one.name: one.store for one in description.sites}
    sources = {place.name for place in description.sources}
    own, entry = stores[site], description.entry_store
    assert own is not None
    assert entry is not None
    found = {}
    there = deployed.at_site(site)
    for place in description.exits:
        if place.site == site and place.graph is not None:
            exit_there = RegionReplica(place.name, site)
            streams = sorted(one for one in deployed.streams if one.reader == exit_there)
            there |= {place.name: streams} if streams else {}
    for region, streams in there.items():
        ports = dict[str, tuple[PortStream, ...]]()
        for one in streams:
            node = one.sender.node
            if node in sources:
                stream = PortStream(one.sender, None, entry)
            else:
                stream = PortStream(
                    one.sender, region_name(description.application, node), stores[one.sender.site]
                )
            ports[node] = (*ports.get(node, ()), stream)
        found[region] = ReplicaContext(
            description.application,
            RegionReplica(region, site),
            region_name(description.application, region),
            own,
            entry,
            ports,
        )
    return found


def steps(wanted: Mapping[str, ReplicaContext], running: Mapping[str, StartedReplica]) -> SiteSteps:
    """Return what is done now. A region whose streams have changed is stopped and started again."""
    # One that a person has stopped, that another process has taken over, or that has read all of its input
    # stays as it is, until its streams change; so does one that ended because its replicas differ: it would
    # pass rows of both.
    stop = [region for region, one in running.items() if wanted.get(region) != one.context]
    stop += [region for region, one in running.items() if region not in stop and _is_due(one)]
    gone = {*running} - {*stop}
    return SiteSteps(tuple(sorted(stop)), tuple(sorted({*wanted} - gone)))


def _is_due(one: StartedReplica) -> bool:
    return one.state == "FAILED" and not one.differs and one.ended_s is not None and one.ended_s >= RETRY_S


def check_ports(context: ReplicaContext, handles: Iterable[str], regions: Iterable[str]) -> None:
    """Raise GraphRefusedError if a graph does not read exactly the ports of its replica."""
    # Reports, rates and decisions are about the ports.
    of_sources = {node for node, port in context.ports.items() if port[0].region is None}
    of_regions = {port[0].region: node for node, port in context.ports.items() if port[0].region is not None}
    for what, described, read in (
        ("input handle", of_sources, {*handles}),
        ("region", {*of_regions}, {*regions}),
    ):
        if described != read:
            raise GraphRefusedError(
                f"the graph of {context.replica} reads each {what} of {sorted(map(str, read))}, and the"
                f" description has streams from {sorted(map(str, described))}",
                remedy="let it read what the description says: an InputSource with the name of the source,"
                " and MergedLogSource(..., **context.merged('REGION'))",
            )


def gone_readers(
    description: Description,
    deployed: Deployed,
    replica: RegionReplica,
    registered: Iterable[str],
    store_ids: Mapping[str, str],
) -> list[str]:
    """Return the registered consumers of the output of a replica that are readers of this application, and
    read it no more: they were removed, or their store was founded again. store_ids: by site, as reported.
    """
    known = dict[str, set[str] | None]()
    for stream in deployed.streams:
        if stream.sender == replica:
            ids = known.setdefault(stream.reader.node, set())
            found = store_ids.get(stream.reader.site)
            if found is None or ids is None:
                known[stream.reader.node] = None  # any may be the one
            else:
                ids.add(found[:CONSUMER_ID_DIGITS])
    nodes = [one.name for one in description.regions] + [one.name for one in description.exits if one.graph]
    begins = {f"{region_name(description.application, node)}.": node for node in nodes}
    gone = []
    for name in registered:
        node = next((one for begin, one in begins.items() if name.startswith(begin)), None)
        ids = known.get(node, set()) if node is not None else None
        if ids is not None and name.rpartition(".")[2] not in ids:
            gone.append(name)
    return gone

"""The record of a deployment: the replicas of an application, the streams that are read, and the last
decisions. Pure.

It is one state, which every decision replaces under a claim in the entry store (`sites/records.py`). So of
two coordinators that are cut off from each other, only the one that has a majority decides. `number` rises
with each decision. A replica that no stream names was *collected*: it does not run, and keeps its
checkpoints.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import MALFORMED_JSON, CorruptDataError
from dos_protocol.names import check_name
from sites.core.collection import Collected, replicas_in
from sites.core.deployment import Deployment, RegionReplica, StreamReplica
from sites.core.description import Description
from sites.core.observed import REPORT_S, Observation, ReaderReport, SiteReport, observation
from sites.core.revival import YOUNG_S, ReplicaStart, Revival, apply_revivals
from sites.errors import NotDeployedError

DEPLOYED_VERSION: Final = 1
CHAIN: Final = "deployment"
YOUNG_MS: Final = round(1000 * (YOUNG_S + 2 * REPORT_S))
"""So long after its revival a stream is not taken to be late: a replica takes some seconds to start, and what
its reader observes then is in its next report.
"""
DECISIONS_MAX: Final = 20
"""Of the last decisions, so many are kept, for people to read."""


def deployment_directory(application: str) -> str:
    """Return the directory of the record. Raises BadNameError."""
    return check_name(f"{application}.sites")


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, in words. at_ms: wall clock. cost: of all streams afterwards, in bytes under way."""

    at_ms: int
    text: str
    cost: float


class RevivedStream(NamedTuple):
    """A stream that was revived, and when (wall clock)."""

    stream: StreamReplica
    at_ms: int


class Deployed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state. replicas: region -> its sites, with those that were collected. starts: replica -> the
    replica whose checkpoint it restores if it has none of its own with which it can continue. One that is
    left out begins with its inputs if they are all retained. forgotten: sites that are gone. young: the
    streams that were revived a short time ago.
    """

    version: int = DEPLOYED_VERSION
    number: int = 0
    replicas: dict[str, tuple[str, ...]] = {}
    streams: tuple[StreamReplica, ...] = ()
    starts: dict[str, str] = {}
    forgotten: tuple[str, ...] = ()
    revived_ms: int = 0
    young: tuple[RevivedStream, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def running(self) -> set[RegionReplica]:
        """Return the replicas that run, without sources and exits."""
        return {one for one in replicas_in(self.streams) if one.site in self.replicas.get(one.node, ())}

    def at_site(self, site: str) -> dict[str, list[StreamReplica]]:
        """Return region -> the streams that its replica at a site reads, of those that run there."""
        found = dict[str, list[StreamReplica]]()
        for one in sorted(self.running()):
            if one.site == site:
                found[one.node] = sorted(stream for stream in self.streams if stream.reader == one)
        return found


_encoder = msgspec.json.Encoder()
_decoder: "msgspec.json.Decoder[Deployed]" = msgspec.json.Decoder(Deployed)


def encode_deployed(deployed: Deployed) -> bytes:
    """Return the JSON of the state. The version is always in it."""
    return _encoder.encode({"version": deployed.version, **msgspec.to_builtins(deployed)})


def decode_deployed(strings: Sequence[bytes], *, where: str, at: int) -> Deployed:
    """Return the state in the record DEPLOYMENT that ends at byte `at` of the chain `where`.

    Raises CorruptDataError for an invalid one, and for one of a newer version.
    """
    try:
        deployed = _decoder.decode(strings[0])
    except (IndexError, *MALFORMED_JSON) as error:
        raise CorruptDataError(where, at, "the JSON of a deployment", str(error)) from error
    if deployed.version != DEPLOYED_VERSION:
        expected = f"a deployment of version {DEPLOYED_VERSION}"
        raise CorruptDataError(where, at, expected, str(deployed.version))
    return deployed


# --- decisions ----------------------------------------------------------------------------------------------


class Situation(NamedTuple):
    """A deployment, and what is known of it now."""

    deployed: Deployed
    deployment: Deployment
    observed: Observation

    @property
    def streams(self) -> tuple[StreamReplica, ...]:
        return self.deployed.streams

    @property
    def cost(self) -> float:
        return self.deployment.cost(self.streams)


def check_deployed(description: Description, deployed: Deployed) -> None:
    """Raise NotDeployedError if nothing is deployed, or the description does not have all that is."""
    if not deployed.number:
        raise NotDeployedError("the application is not deployed")
    known = {(stream.sender, stream.reader) for stream in description.streams}
    described = {site.name for site in description.sites}
    for stream in deployed.streams:
        ends = {stream.sender.site, stream.reader.site}
        if (stream.sender.node, stream.reader.node) not in known or ends - described:
            raise NotDeployedError(f"the stream {stream} is deployed, but is not in the description")


def situation(
    description: Description,
    deployed: Deployed,
    readers: Iterable[ReaderReport],
    sites: Iterable[SiteReport],
    now_ms: int,
) -> Situation:
    """Return the situation at a time (wall clock), of what `check_deployed` accepts."""
    observed = observation(
        readers,
        sites,
        now_ms,
        lost=deployed.forgotten,
        young=[one.stream for one in deployed.young if now_ms - one.at_ms < YOUNG_MS],
        revived_ms=deployed.revived_ms,
    )
    return Situation(deployed, Deployment(description, deployed.replicas), observed)


def decided(
    now: Situation,
    streams: Iterable[StreamReplica],
    text: str,
    now_ms: int,
    *,
    replicas: dict[str, tuple[str, ...]] | None = None,
) -> Deployed:
    """Return the state with other streams and replicas, and the decision in words."""
    placed = now.deployed.replicas if replicas is None else replicas
    left = tuple(sorted(streams))
    decision = Decision(
        at_ms=now_ms, text=text, cost=Deployment(now.deployment.description, placed).cost(left)
    )
    existing = {str(RegionReplica(region, site)) for region, sites in placed.items() for site in sites}
    return msgspec.structs.replace(
        now.deployed,
        number=now.deployed.number + 1,
        replicas=placed,
        streams=left,
        starts={name: source for name, source in now.deployed.starts.items() if name in existing},
        young=tuple(one for one in now.deployed.young if now_ms - one.at_ms < YOUNG_MS),
        decisions=(*now.deployed.decisions, decision)[-DECISIONS_MAX:],
    )


def collected(now: Situation, group: Collected, now_ms: int) -> Deployed:
    """Return the state after a collection."""
    return decided(now, set(now.streams) - set(group.streams), f"collected {words(group.streams)}", now_ms)


def revived(now: Situation, revivals: Sequence[Revival], now_ms: int) -> Deployed:
    """Return the state after revivals, of which at least one does something."""
    placed = dict(now.deployed.replicas)
    starts, added = dict(now.deployed.starts), list[StreamReplica]()
    for one in revivals:
        added += one.added
        for start in one.started:
            add_start(placed, starts, start)
    done = [one for one in revivals if one.way]
    text = "; ".join(f"way {one.way} for {one.node} at {one.reader}: {_done(one)}" for one in done)
    state = decided(now, apply_revivals(now.streams, revivals), f"revived: {text}", now_ms, replicas=placed)
    young = (*state.young, *(RevivedStream(stream, now_ms) for stream in added))
    return msgspec.structs.replace(
        state, starts=starts, young=young, revived_ms=now_ms if added else state.revived_ms
    )


def add_start(placed: dict[str, tuple[str, ...]], starts: dict[str, str], start: ReplicaStart) -> None:
    """Add a replica that starts to `placed` and `starts`."""
    replica, source = start
    if replica.site not in placed.get(replica.node, ()):
        placed[replica.node] = (*placed.get(replica.node, ()), replica.site)
    if source is not None:
        starts[str(replica)] = str(source)


def _done(one: Revival) -> str:
    if one.removed:
        return f"stopped {one.reader}"
    return f"added {words(one.added)}"


def words(streams: Iterable[StreamReplica]) -> str:
    """Return streams as text."""
    return ", ".join(map(str, sorted(streams)))

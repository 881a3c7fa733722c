"""The record of a deployment: the replicas of an application, the streams that are read, and the last
decisions. Pure.

It is one state, which every decision replaces under a claim in the entry store (`sites/records.py`). So of
two coordinators that are cut off from each other, only the one that has a majority decides. `number` rises
with each decision. A replica that no stream names was *collected*: it does not run, and keeps its
checkpoints.

`apply_plan` adds at once what is planned. What is no longer planned is removed only if the rules of
`collection` allow it; until then it stays, and the next `apply` decides again. Streams between replicas that
stay are left as they are, so what was collected stays collected, unless a replica would lack an input.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dos_protocol.names import check_name
from sites.core.collection import Collected, Dependents, Remaining, replicas_in, utilities
from sites.core.deployment import Deployment, RegionReplica, Replicas, StreamReplica
from sites.core.description import Description
from sites.core.observed import (
    REPORT_S,
    Observation,
    ReaderReport,
    SiteRecord,
    SiteReport,
    StreamReport,
    observation,
)
from sites.core.revival import YOUNG_S, ReplicaStart, Revival, apply_revivals
from sites.errors import NotDeployedError

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
    """One decision, in words. cost: of all streams afterwards, in bytes under way."""

    at_ms: int
    text: str
    cost: float


class RevivedStream(NamedTuple):
    """A stream that was revived, and when (wall clock)."""

    stream: StreamReplica
    at_ms: int


class Deployed(SiteRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The whole state. replicas: region -> its sites, with those that were collected. starts: replica -> the
    replica whose checkpoint it restores if it cannot continue its own; one that is left out begins with its
    inputs if they are all retained. forgotten: sites that are gone. young: streams that were revived just
    now.
    """

    number: int = 0
    replicas: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    streams: tuple[StreamReplica, ...] = ()
    starts: dict[str, str] = msgspec.field(default_factory=dict)
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
    return ", ".join(map(str, sorted(streams)))


class DeploymentChange(NamedTuple):
    """What an apply does. kept: the streams of replicas that are not planned any more; why: they stay."""

    deployed: Deployed
    added: tuple[StreamReplica, ...]
    removed: tuple[StreamReplica, ...]
    kept: tuple[StreamReplica, ...]
    why: str
    cost: float
    cost_before: float

    @property
    def changes(self) -> bool:
        return bool(self.added or self.removed)


def apply_plan(now: Situation, planned: Replicas, now_ms: int) -> DeploymentChange:
    """Return the change from what is deployed to a plan of the same description."""
    description = now.deployment.description
    placed = {region: tuple(planned[region]) for region in sorted(planned)}
    target = _target(description, placed, now)
    before = set(now.streams)
    old, why = tuple(sorted(before - target)), ""
    if old:  # enough of the new replicas must be alive, and whole at their readers, before the old ones go
        why = Remaining(now.deployment, tuple(before | target), now.observed).refusal(old) or ""
    after = before | target if why else target
    if why:  # the old replicas run, so they are in the record
        for region, sites in now.deployed.replicas.items():
            running = [one for one in sites if RegionReplica(region, one) in replicas_in(old)]
            placed[region] = (*placed[region], *(one for one in running if one not in placed[region]))
    added, removed = tuple(sorted(after - before)), tuple(sorted(before - after))
    text = f"applied: added {words(added) or 'nothing'}; removed {words(removed) or 'nothing'}"
    deployed = decided(now, after, text, now_ms, replicas=placed) if added or removed else now.deployed
    costs = Deployment(description, placed)
    return DeploymentChange(
        deployed, added, removed, old if why else (), why, costs.cost(tuple(after)), costs.cost(now.streams)
    )


def _target(description: Description, placed: Replicas, now: Situation) -> set[StreamReplica]:
    """Return the streams of the plan, without those that were collected."""
    every = set(Deployment(description, placed).streams())
    running, known = replicas_in(now.streams), set(now.deployment.streams())
    usable = running | {one for one in replicas_in(every) if one.site not in now.deployment.at(one.node)}
    target = {
        one
        for one in every
        if one in now.streams or (one not in known and one.sender in usable and one.reader in usable)
    }
    return target if _is_complete(description, placed, target) else every


def _is_complete(description: Description, placed: Replicas, streams: set[StreamReplica]) -> bool:
    """Return whether each exit and replica with a stream has its inputs, and each such replica a reader."""
    deployment = Deployment(description, placed)
    ports = {(one.reader, one.sender.node) for one in streams}
    senders = {one.sender for one in streams}
    readers = {one for one in replicas_in(streams) if one.node not in deployment.fixed} | set(
        deployment.exits()
    )
    return all(
        (reader.node in deployment.fixed or reader in senders)
        and all((reader, node) in ports for node in deployment.senders[reader.node])
        for reader in readers
    )


def fitting(description: Description, deployed: Deployed) -> Deployed:
    """Return what is deployed without the regions, streams and sites that the description does not have."""
    known = {(stream.sender, stream.reader) for stream in description.streams}
    described, regions = {site.name for site in description.sites}, {one.name for one in description.regions}
    fixed = description.fixed()
    replicas = {
        region: tuple(site for site in sites if site in described)
        for region, sites in deployed.replicas.items()
        if region in regions
    }
    streams = tuple(
        one
        for one in deployed.streams
        if (one.sender.node, one.reader.node) in known
        and all(
            end.site in (replicas.get(end.node, ()) if end.node in regions else (fixed.get(end.node),))
            for end in one
        )
    )
    return msgspec.structs.replace(deployed, replicas=replicas, streams=streams)


class Forgotten(NamedTuple):
    """What a site that is gone takes with it. starving: exits that get no rows without it."""

    deployed: Deployed
    removed: tuple[StreamReplica, ...]
    starving: tuple[str, ...]


def forget_site(now: Situation, site: str, now_ms: int) -> Forgotten:
    """Return the state without the replicas at a site. Exits may lack rows until `revive` or `apply`."""
    deployment = now.deployment
    gone = {one for one in replicas_in(now.streams) if one.site == site and one.node not in deployment.fixed}
    group = Dependents(deployment, now.streams).of(one for one in now.streams if gone & {*one})
    left = set(now.streams) - group
    placed = {
        region: tuple(one for one in sites if one != site) for region, sites in now.deployed.replicas.items()
    }
    text = f"forgot site {site}: removed {words(group) or 'nothing'}"
    state = decided(now, left, text, now_ms, replicas=placed)
    state = msgspec.structs.replace(state, forgotten=tuple(sorted({*state.forgotten, site})))
    ports = {(one.reader, one.sender.node) for one in left}
    starving = [
        one.node
        for one in deployment.exits()
        if any((one, node) not in ports for node in deployment.senders[one.node])
    ]
    return Forgotten(state, tuple(sorted(group)), tuple(sorted(starving)))


def status_of(now: Situation, readers: Iterable[ReaderReport], sites: Iterable[SiteReport]) -> dict[str, Any]:
    """Return the status; docs/sites.md has the names."""
    reported = {StreamReplica(one.sender, report.reader): one for report in readers for one in report.streams}
    there = {report.site: report for report in sites if report.site not in now.observed.lost}
    useful = utilities(now.deployment, now.streams, now.observed.weights)
    known = [
        RegionReplica(region, site)
        for region, placed in sorted(now.deployed.replicas.items())
        for site in sorted(placed)
    ]
    return {
        "application": now.deployment.description.application,
        "number": now.deployed.number,
        "cost": now.cost,
        "theta": now.deployment.description.theta,
        "replicas": [_replica(one, now, reported) | _at_site(one, there) for one in known],
        "exits": [
            {"name": one.node, "site": one.site, "alive": one in now.observed.alive, "lateS": _late(one, now)}
            | _at_site(one, there)
            for one in sorted(now.deployment.exits())
        ],
        "streams": [
            {
                "from": str(one.sender),
                "to": str(one.reader),
                "lateS": now.observed.lateness_s.get(one),
                "whole": one in now.observed.whole,
                "rowsByRank": list(reported[one].ranks) if one in reported else [],
                "utility": useful[one],
                "cost": now.deployment.stream_cost(one),
            }
            for one in sorted(now.streams)
        ],
        "forgotten": list(now.deployed.forgotten),
        "decisions": [
            {"atMs": one.at_ms, "text": one.text, "cost": one.cost} for one in now.deployed.decisions
        ],
    }


def _at_site(one: RegionReplica, there: dict[str, SiteReport]) -> dict[str, Any]:
    report = there.get(one.site)
    if report is None:
        return {"atSite": None, "reason": None}
    return {"atSite": report.regions.get(one.node), "reason": report.reasons.get(one.node)}


def _replica(
    one: RegionReplica, now: Situation, reported: dict[StreamReplica, StreamReport]
) -> dict[str, Any]:
    outputs = [stream for stream in now.streams if stream.sender == one]
    own = [stream for stream in now.streams if one in stream]
    late = [now.observed.lateness_s[stream] for stream in outputs if stream in now.observed.lateness_s]
    first = sum(_first(reported.get(stream)) for stream in outputs)
    every = sum(
        _first(seen)
        for stream, seen in reported.items()
        if stream.sender.node == one.node and stream.reader in {output.reader for output in outputs}
    )
    return {
        "region": one.node,
        "site": one.site,
        "state": "running" if one in replicas_in(now.streams) else "collected",
        "alive": one in now.observed.alive,
        "lateS": min(late, default=None),
        "first": first / every if every else None,
        "whole": bool(outputs) and now.observed.whole.issuperset(outputs),
        "cost": now.deployment.cost(own),
    }


def _first(seen: StreamReport | None) -> int:
    return seen.ranks[0] if seen is not None and seen.ranks else 0


def _late(reader: RegionReplica, now: Situation) -> float | None:
    """Return how late the latest port of an exit is, None if one has given nothing."""
    ports = dict[str, list[float | None]]()
    for one in now.streams:
        if one.reader == reader:
            ports.setdefault(one.sender.node, []).append(now.observed.lateness_s.get(one))
    best = [min((late for late in port if late is not None), default=None) for port in ports.values()]
    known = [late for late in best if late is not None]
    return max(known) if known and len(known) == len(best) else None

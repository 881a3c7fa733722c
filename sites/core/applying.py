"""From a deployment to the one that is planned: what is added and removed, and what must stay for now. Pure.

What is planned is added at once. What is no longer planned is removed only if the rules of `collection` allow
it: enough of the new replicas must be alive, and whole at their readers. Until then it stays, and the next
`apply` decides again. Streams between replicas that stay are left as they are, so what was collected stays
collected, unless a replica would lack an input.
"""

from typing import NamedTuple

import msgspec

from sites.core.collection import Dependents, Remaining, replicas_in
from sites.core.deployed import Deployed, Situation, decided, words
from sites.core.deployment import Deployment, RegionReplica, Replicas, StreamReplica
from sites.core.description import Description


class DeploymentChange(NamedTuple):
    """What an apply does. kept: the streams of replicas that are not planned any more, with the reason why
    they stay. cost: of all streams afterwards; cost_before: now.
    """

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
    if old:
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
    """Return whether each exit, and each replica with a stream, has its inputs, and each such replica a
    reader.
    """
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

"""Deploy an application over sites, and change what is deployed: `dos sites`, from Python.

    async with open_store(description.entry_store) as store:
        change = await apply(store, description)

Every function reads the deployment and the reports, decides by a core, and records the decision if there is
one. The decision is made again from what is there when the claim is granted. With `dry_run`, nothing is
recorded. What the reports state of latencies, rates and loads replaces the numbers of the description
(`measured` in `core/observed.py`), unless `measure` is false.

All raise BadNameError, CorruptDataError, QuorumUnavailableError, and UnsettledStateError while another
decision is being recorded.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from dos_client import Store
from sites.core.collection import Collected, Kept, find_collection
from sites.core.deployed import (
    Deployed,
    DeploymentChange,
    Forgotten,
    Situation,
    apply_plan,
    check_deployed,
    collected,
    decided,
    fitting,
    forget_site,
    revived,
    situation,
)
from sites.core.deployment import RegionReplica, make_plan
from sites.core.description import Description, Measured, with_measured
from sites.core.observed import ReaderReport, SiteReport, measured
from sites.core.revival import Revival, find_revival_of, find_revivals
from sites.errors import CannotReviveError, NotDeployedError
from sites.records import change_deployed, now_ms, read_current_reports, read_deployed

T = TypeVar("T")


async def apply(
    store: Store, description: Description, *, dry_run: bool = False, measure: bool = True
) -> DeploymentChange:
    """Make the plan, and deploy it. Raises PlanRefusedError, with nothing recorded."""

    def decide(now: Situation) -> tuple[Deployed, DeploymentChange]:
        plan = make_plan(now.deployment.description, now.deployed.forgotten)
        change = apply_plan(now, plan.replicas, now_ms())
        return change.deployed, change

    return await _decided(store, description, decide, dry_run=dry_run, measure=measure, begins=True)


async def collect(
    store: Store, description: Description, *, dry_run: bool = False, measure: bool = True
) -> Collected | Kept:
    """Make one collection, if there is one to make. Raises NotDeployedError."""

    def decide(now: Situation) -> tuple[Deployed, Collected | Kept]:
        found = find_collection(now.deployment, now.streams, now.observed)
        if isinstance(found, Kept):
            return now.deployed, found
        return collected(now, found, now_ms()), found

    return await _decided(store, description, decide, dry_run=dry_run, measure=measure)


async def revive(
    store: Store,
    description: Description,
    replica: RegionReplica | None = None,
    *,
    dry_run: bool = False,
    measure: bool = True,
) -> list[Revival]:
    """Repair every port that is late; those of one replica or exit if it is named. A collected replica that
    is named starts, whatever is late. Revivals with way 0 could not be made. Raises NotDeployedError,
    CannotReviveError.
    """

    def decide(now: Situation) -> tuple[Deployed, list[Revival]]:
        found = _revivals(now, replica)
        return (revived(now, found, now_ms()) if any(one.way for one in found) else now.deployed), found

    return await _decided(store, description, decide, dry_run=dry_run, measure=measure)


def _revivals(now: Situation, replica: RegionReplica | None) -> list[Revival]:
    running = now.deployed.running() | set(now.deployment.exits())
    if replica is None or replica in running:
        return find_revivals(now.deployment, now.streams, now.observed, replica)
    if replica.site not in now.deployed.replicas.get(replica.node, ()):
        raise CannotReviveError(f"there is no replica {replica}")
    made = find_revival_of(now.deployment, now.streams, now.observed, replica)
    if made is None:
        raise CannotReviveError(f"{replica} has nothing to read, or no reader, or its site does not answer")
    return [made]


async def forget(store: Store, description: Description, site: str, *, dry_run: bool = False) -> Forgotten:
    """Remove the replicas of a site that is gone, and place no more there. Raises NotDeployedError."""
    if site not in {one.name for one in description.sites}:
        raise NotDeployedError(f"site {site!r} is not described", remedy="name a site of the description")

    def decide(now: Situation) -> tuple[Deployed, Forgotten]:
        found = forget_site(now, site, now_ms())
        return found.deployed, found

    return await _decided(store, description, decide, dry_run=dry_run, gone=site)


async def remember(store: Store, description: Description, site: str) -> None:
    """Let `apply` place replicas at a forgotten site again."""

    def change(present: Deployed) -> Deployed:
        if site not in present.forgotten:
            return present
        kept = tuple(one for one in present.forgotten if one != site)
        return msgspec.structs.replace(present, number=present.number + 1, forgotten=kept)

    await change_deployed(store, description.application, change)


async def look(
    store: Store, description: Description, *, measure: bool = True
) -> tuple[Situation, list[ReaderReport], list[SiteReport]]:
    """Return the deployment, and the reports about it. Raises NotDeployedError."""
    deployed = await read_deployed(store, description.application)
    check_deployed(description, deployed)
    readers, sites = await read_current_reports(store, description, deployed)
    used = _measured(description, readers, sites) if measure else description
    return situation(used, deployed, readers, sites, now_ms()), readers, sites


async def look_at_measured(store: Store, description: Description) -> Measured:
    """Return what the reports state in place of numbers of the description. Raises NotDeployedError."""
    _, readers, sites = await look(store, description, measure=False)
    return measured(description, readers, sites, now_ms())


def _measured(description: Description, readers: list[ReaderReport], sites: list[SiteReport]) -> Description:
    return with_measured(description, measured(description, readers, sites, now_ms()))


async def _decided(
    store: Store,
    description: Description,
    decide: Callable[[Situation], tuple[Deployed, T]],
    *,
    dry_run: bool,
    measure: bool = True,
    begins: bool = False,
    gone: str = "",
) -> T:
    """Decide for the present state; if that changes it, do so under the claim. begins: the application need
    not be deployed, nor as it is described. gone: as in `read_current_reports`.
    """
    deployed = await read_deployed(store, description.application)
    readers, sites = await read_current_reports(store, description, deployed, gone=gone)
    if measure:
        description = _measured(description, readers, sites)

    def decide_on(present: Deployed) -> tuple[Deployed, T]:
        fits = fitting(description, present) if begins else present
        if not begins:
            check_deployed(description, present)
        now = situation(description, fits, readers, sites, now_ms())
        after, result = decide(now)
        if after is fits:
            text = "applied: removed what is not described any more"
            after = present if fits == present else decided(now, fits.streams, text, now_ms())
        return after, result

    results = [decide_on(deployed)]
    if results[0][0] is deployed or dry_run:
        return results[0][1]

    def change(present: Deployed) -> Deployed:
        results.append(decide_on(present))
        return results[-1][0]

    recorded = await change_deployed(store, description.application, change)
    return next(result for after, result in reversed(results) if after is recorded)

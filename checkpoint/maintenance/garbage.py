"""Finds and deletes what no retained checkpoint and no savepoint of a region needs, if no driver runs.

The manifest alone decides what is garbage (`core/retention.py`, R14). While a region runs, its workers and
its driver delete garbage automatically, with their claims. If no driver runs, this file acts as the driver
for a moment:

1. It takes the manifest over, which fences a driver that is running after all and proves the last checkpoint.
2. It claims the directory of each worker in that incarnation, and deletes there what is below the floors and
   in the gaps.

If it is stopped at any point, nothing is lost, and the next run starts over.
"""

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint import limits
from checkpoint.chains.manifest_log import CHAIN
from checkpoint.chains.manifest_reading import ManifestView
from checkpoint.coordinator.manifest_host import ManifestHost
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.core.retention import unneeded_of
from checkpoint.maintenance.stopped_region import hold_manifest
from journal import Floors, below, inspect_chain, parse_segment_name
from journal.ports import DirectoryViewPort, StorePort


@dataclass(frozen=True, slots=True)
class UnneededObject:
    """One object that is not needed. `bytes`: of its longest copy; `copies`: how many members hold one."""

    directory: str
    name: str
    bytes: int
    copies: int


async def garbage_of(store: StorePort, view: ManifestView) -> list[UnneededObject]:
    """Return the objects below the floors and in the gaps in all directories of the region, as F members
    report them. Claims nothing.

    Raises what `inspect` of a store raises.
    """
    coordinator = coordinator_directory(view.region)
    found = await objects_below(store, coordinator, await _manifest_floor(store, coordinator))
    kept = view.kept
    for worker in sorted({worker for checkpoint in kept for worker in checkpoint.outputs()}):
        directory = worker_directory(view.region, worker)
        found += objects_that(directory, await store.inspect(directory), unneeded_of(kept, worker))
    return found


async def _manifest_floor(store: StorePort, directory: str) -> Floors:
    """Return the floor of the manifest: its newest snapshot, which contains everything retained."""
    for span in (await inspect_chain(store, directory, CHAIN)).segments[:1]:
        lowest = parse_segment_name(span.name)
        assert lowest is not None, "spans are of segments"
        return {CHAIN: lowest.order}
    return {}


async def held_by_savepoints(store: StorePort, view: ManifestView) -> dict[str, list[UnneededObject]]:
    """Return savepoint -> the objects that only its checkpoint needs, as F members report them: they would be
    garbage if that checkpoint were not retained. Claims nothing.

    None if another savepoint holds the same checkpoint. Output logs are not included, as in `garbage_of`.
    Raises what `inspect` of a store raises.
    """
    kept = view.kept
    savepoints = kept[-1].savepoints if kept else {}
    held: dict[str, list[UnneededObject]] = {name: [] for name in savepoints}
    rest = {
        name: tuple(checkpoint for checkpoint in kept if checkpoint.number != number)
        for name, number in savepoints.items()
        if list(savepoints.values()).count(number) == 1
    }
    for worker in sorted({worker for checkpoint in kept for worker in checkpoint.outputs()}):
        directory = worker_directory(view.region, worker)
        found, is_garbage = await store.inspect(directory), unneeded_of(kept, worker)
        for name, others in rest.items():
            if any(worker in checkpoint.outputs() for checkpoint in others):
                unneeded = unneeded_of(others, worker)
                held[name] += [
                    one for one in objects_that(directory, found, unneeded) if not is_garbage(one.name)
                ]
    return held


async def objects_below(store: StorePort, directory: str, floors: Floors) -> list[UnneededObject]:
    """Return the segments below the floors in one directory, as F members report them."""
    return objects_that(directory, await store.inspect(directory), below(floors))


def objects_that(
    directory: str, view: DirectoryViewPort, unneeded: Callable[[str], bool]
) -> list[UnneededObject]:
    """Return the objects in one directory whose names are `unneeded`, as F members report them."""
    copies: dict[str, list[int]] = {}
    for objects in view.answers.values():
        for info in objects.values():
            if unneeded(info.name):
                copies.setdefault(info.name, []).append(info.synced)
    return [UnneededObject(directory, name, max(sizes), len(sizes)) for name, sizes in sorted(copies.items())]


async def collect_stopped(host: ManifestHost, region: str, *, wait_s: float = limits.trim_wait_s) -> bool:
    """Delete what no retained checkpoint needs, of a region that no driver runs. Return True if all available
    members have done so, False if some have not within `wait_s` seconds.

    Fences a driver or worker that is running after all. Raises RegionFencedError if another process claimed
    the manifest meanwhile, ManifestError and what taking a manifest over raises; FencedError if a worker's
    directory is claimed with a higher epoch, where nothing was deleted then. If cancelled, part of the
    garbage is deleted.
    """
    # First the manifest: holding it proves the last checkpoint, whose floors decide what is deleted (R14).
    async with hold_manifest(host, region) as (log, opened, _):
        clean = await log.wait_collected(wait_s)
        for worker in sorted({worker for checkpoint in opened.kept for worker in checkpoint.outputs()}):
            directory = worker_directory(region, worker)
            claim = await host.claim(directory, opened.incarnation, limits.claim_patience_s)
            if claim is None:
                clean = False
                continue
            try:
                claim.collect(unneeded_of(opened.kept, worker))
                clean &= await claim.wait_collected(wait_s)
            finally:
                await claim.aclose()
        return clean

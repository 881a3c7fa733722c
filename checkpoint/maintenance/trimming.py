"""What a region's store holds that no retained and no pinned cut needs, and taking it away where nobody runs.

Rules of this file: what is garbage is decided from the manifest alone (`core/retention.py`, R14). While a
region runs, its workers and its driver take it away by themselves, with their claims. Where no driver runs,
this takes the driver's place for a moment: it takes the manifest over, which fences any driver that is alive
after all and proves the last cut; then it claims the directory of each worker in that incarnation, and
deletes there what lies below the floors. Stopped anywhere between, nothing is lost, and the next one begins
anew.
"""

from dataclasses import dataclass

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView
from checkpoint.coordinator.manifest_host import ManifestHost
from checkpoint.coordinator.manifest_log import CHAIN
from checkpoint.core.manifest import Cut
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.core.retention import floors_of
from checkpoint.maintenance.stand_in import in_the_drivers_place
from journal import look_chain
from journal.core.segment import parse_segment_name
from journal.core.trimming import Floors, below
from journal.ports import StorePort


@dataclass(frozen=True, slots=True)
class UnneededObject:
    """One object that nobody needs. `bytes`: of its longest copy; `copies`: how many members hold one."""

    directory: str
    name: str
    bytes: int
    copies: int


def needed(view: ManifestView) -> tuple[Cut, ...]:
    """The cuts that stay: the retained ones, the pinned among them."""
    return tuple(cut for cut in view.cuts if cut.cut in view.retained)


async def garbage_of(store: StorePort, view: ManifestView) -> list[UnneededObject]:
    """What lies below the floors in all directories of the region, as F members tell. Claims nothing.

    Raises what looking raises.
    """
    coordinator = coordinator_directory(view.region)
    found = await _below(store, coordinator, await _manifest_floor(store, coordinator))
    kept = needed(view)
    for worker in sorted({worker for cut in kept for worker in cut.workers}):
        found += await _below(store, worker_directory(view.region, worker), floors_of(kept, worker))
    return found


async def _manifest_floor(store: StorePort, directory: str) -> Floors:
    """A manifest begins with its newest snapshot, which has all that is retained."""
    for span in (await look_chain(store, directory, CHAIN)).segments[:1]:
        lowest = parse_segment_name(span.name)
        assert lowest is not None, "spans are of segments"
        return {CHAIN: lowest.order}
    return {}


async def _below(store: StorePort, directory: str, floors: Floors) -> list[UnneededObject]:
    is_garbage = below(floors)
    copies: dict[str, list[int]] = {}
    for objects in (await store.look(directory)).answers.values():
        for info in objects.values():
            if is_garbage(info.name):
                copies.setdefault(info.name, []).append(info.synced)
    return [UnneededObject(directory, name, max(sizes), len(sizes)) for name, sizes in sorted(copies.items())]


async def collect_stopped(host: ManifestHost, region: str, *, wait_s: float = limits.trim_wait_s) -> bool:
    """Take away what no retained cut needs, of a region that no driver runs. True when all members that are
    there have done so; False when some have not in `wait_s`.

    A driver or worker that is alive after all is fenced, and goes no further. Raises RegionFencedError when
    another one claimed meanwhile, ManifestError and what taking a manifest over raises; FencedError for a
    worker's directory that is claimed higher: nothing was deleted there then. Cancelled, some of the garbage
    is gone.
    """
    async with in_the_drivers_place(host, region) as (log, opened, _):
        clean = await log.wait_collected(wait_s)
        for worker in sorted({worker for cut in opened.kept for worker in cut.workers}):
            directory = worker_directory(region, worker)
            claim = await host.claim(directory, opened.incarnation, limits.claim_patience_s)
            if claim is None:
                clean = False
                continue
            try:
                claim.collect(below(floors_of(opened.kept, worker)))
                clean &= await claim.wait_collected(wait_s)
            finally:
                await claim.aclose()
        return clean

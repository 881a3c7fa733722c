"""Acts as a region's driver for a moment if no driver runs: to trim what the region left, or to create a
savepoint.

`core/savepoints.py` and `trimming.py` decide what is done. The manifest is taken over as by a driver: this
fences a driver that is running after all, which then ends, and proves the last checkpoint. A driver that
starts meanwhile claims with a higher epoch, and this one ends. If it is stopped at any point, nothing is
lost: a record that is not acknowledged is found by the next opening, or never counts.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import NamedTuple

from checkpoint.coordinator.manifest_host import ManifestHost
from checkpoint.coordinator.manifest_log import ManifestLog
from checkpoint.core.coordinator_vocabulary import (
    AppendCut,
    CutAppended,
    Event,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    OpenManifest,
)
from checkpoint.core.manifest import Cut, check_cut
from checkpoint.core.savepoints import recorded_again, savepoint_problem
from checkpoint.errors import RegionFencedError, SavepointRefusedError
from checkpoint.runtime import this_driver


class HeldManifest(NamedTuple):
    """The manifest, held; the result of its opening; and the events since."""

    log: ManifestLog
    opened: ManifestOpened
    events: list[Event]


@asynccontextmanager
async def hold_manifest(host: ManifestHost, region: str) -> AsyncIterator[HeldManifest]:
    """Hold the manifest of a region that no driver runs. Waits while too few members answer.

    Raises RegionFencedError if another process claimed it meanwhile, ManifestError and what taking a manifest
    over raises; nothing was changed then except the claim.
    """
    events: list[Event] = []
    log = ManifestLog(host, region, events.append, driver=this_driver())
    try:
        await log.open(OpenManifest(above=0, held=0))
        opened = events[-1]
        if isinstance(opened, ManifestUnreadable):
            raise opened.error
        if not isinstance(opened, ManifestOpened):
            raise RegionFencedError(
                f"the manifest of region {region!r} was claimed by another process in the meantime:"
                " the region is not stopped",
                epoch_held=opened.epoch_held if isinstance(opened, ManifestSuperseded | ManifestTaken) else 0,
            )
        yield HeldManifest(log, opened, events)
    finally:
        await log.aclose()


async def savepoint_stopped(host: ManifestHost, region: str, name: str, cut: int, *, on: bool) -> int:
    """Create a savepoint of checkpoint `cut` (0: the last one) of a region that no driver runs, or drop a
    savepoint. Return the number of its checkpoint. Done when the record is on the quorum: every later driver
    retains the checkpoints that it names.

    Raises SavepointRefusedError, with nothing changed; RegionFencedError if a driver claimed the manifest
    meanwhile: the savepoint may then exist or not, as when this is cancelled; and what `hold_manifest`
    raises.
    """
    async with hold_manifest(host, region) as held:
        kept, last = held.opened.kept, held.opened.last_checkpoint
        if last is None:
            raise SavepointRefusedError(f"region {region!r} has committed no checkpoint")
        savepoints = dict(last.savepoints)
        numbers = [one.cut for one in kept]
        wanted = (cut or _voted(last, numbers)) if on else None
        if problem := savepoint_problem(name, wanted, savepoints, numbers):
            raise SavepointRefusedError(problem)
        if wanted is not None and savepoints.get(name) == wanted:
            return wanted
        was = savepoints.pop(name, 0)
        if wanted is not None:
            savepoints[name] = wanted
        record = recorded_again(kept, held.opened.incarnation, savepoints)
        check_cut(record, before=last)
        await held.log.append(AppendCut(record))
        if not any(isinstance(event, CutAppended) for event in held.events):
            raise RegionFencedError(
                f"a driver took region {region!r} over before the record was acknowledged; it may count or"
                " not, see `dos checkpoint ls`"
            )
        return wanted or was


def _voted(last: Cut, retained: Collection[int]) -> int:
    """Return the checkpoint whose positions the last one has: if the last one only recorded it once more,
    that one.
    """
    return last.rolled_back_to if last.rolled_back_to in retained else last.cut

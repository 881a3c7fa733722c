"""What a driver decides before it claims the manifest: a program that does not fit disturbs no other driver.

What is read here can be out of date when the claim is granted, so the coordinator decides again by the
manifest that it holds (`ManifestClaim` in `core/coordination/coordinator.py`).
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from checkpoint.chains.manifest_log import ManifestView, read_manifest, regions_of
from checkpoint.core.records.manifest import Checkpoint, OutputIdentity
from checkpoint.core.region import RegionSpec, belongs_to, check_begins, check_continues
from checkpoint.errors import NoRegionError
from checkpoint.maintenance.stopped_region import find_restored
from checkpoint.runtime import checkpoint_named
from dos_client import Store
from dos_protocol.errors import DosError

logger: Final = logging.getLogger("dos.checkpoint")


async def check_places(
    spec: RegionSpec, store: Store, check: Callable[[bytes, OutputIdentity | None], None]
) -> None:
    """Check the places of a region. Its manifest is read only if they are refused to the region itself: they
    may be of the region that it replaces.
    """
    try:
        await trio.to_thread.run_sync(check, store.record.store_id, None)
    except DosError:
        try:
            last = (await read_manifest(store, spec.name)).last
        except DosError:
            last = None
        if last is None or last.identity is None:
            raise
        await trio.to_thread.run_sync(check, store.record.store_id, last.identity)


async def before_claim(store: Store, spec: RegionSpec) -> Checkpoint | None:
    """Read the manifest before it is claimed, and return its last checkpoint; None if there is none, or it
    cannot be read now: then the claim decides.

    Raises RestoreRefusedError, ManifestError or FingerprintMismatchError if the region cannot begin with the
    checkpoint that `RegionSpec.restore` names, or would begin empty instead of another one. Nothing was
    claimed, so a driver that runs the region continues. For a hand-over, also raises what reading raises.
    """
    try:
        view = await read_manifest(store, spec.name)
    except NoRegionError:
        view = ManifestView(spec.name, 0)
    except DosError as error:
        if spec.hand_over:
            raise
        logger.info("the manifest of region %s cannot be read before it is claimed: %s", spec.name, error)
        return None
    if spec.restore and not view.unproved:
        target = find_restored(
            view.kept,
            checkpoint_named(spec.restore),
            region=spec.name,
            allow_republish=spec.allow_republish,
            by_program=True,
        )
        if target is not None:
            check_continues(spec, target)
    if view.last is None and not spec.without_checkpoints:
        names = [name for name in await regions_of(store) if belongs_to(spec.application, name)]
        others = {name: (await read_manifest(store, name)).last for name in names if name != spec.name}
        check_begins(spec, {name: last for name, last in others.items() if last is not None})
    return view.last

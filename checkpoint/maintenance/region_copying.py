"""Begin a region in another store with the last checkpoint of one that runs: a backup into the other store,
and a restore of it there, in place of what that store has of the region.
"""

from collections.abc import Iterable

from checkpoint import limits
from checkpoint.core.region import coordinator_directory
from checkpoint.errors import DeletionRefusedError, NoRegionError
from checkpoint.maintenance.backup import back_up, backups_of
from checkpoint.maintenance.backup_restoring import restore_backup
from checkpoint.maintenance.backup_target import open_target
from checkpoint.maintenance.deleting import delete_region, plan_deletion
from checkpoint.maintenance.savepoint_making import maker_of
from dos_client import Store, open_store, randomness


async def copy_region(
    source_url: str,
    target_url: str,
    region: str,
    directory: str,
    *,
    token: bytes = b"",
    patience_s: float = limits.request_patience_s,
) -> None:
    """Copy the last checkpoint of a running region to another store, where the next `run` of its name
    continues from it. What that store has of the region, which must not run there, is deleted once the
    backup is complete.

    directory: begins the name of the directory in the target with the backup, which is deleted at the end.
    patience_s: for a first answer of the driver. Both regions run independently afterwards; output outside of
    the store begins anew.

    Raises NoRegionError, NoAnswerError, DeletionRefusedError if a member of the target does not answer, and
    what `back_up` and `restore_backup` raise. If it fails or is cancelled, the region is as it was in the
    target, or gone; the same call continues.
    """
    async with (
        open_store(target_url, token=token, client="copy of a region") as target,
        open_target(f"{target_url}/{directory}", token=token) as backups,
        backups.place(region) as place,
    ):
        known = await backups_of(place)  # of a call that was interrupted
        if not known:
            async with open_store(source_url, token=token, client="copy of a region") as source:
                maker = maker_of(source, region, stopped=False, patience_s=patience_s)
                await back_up(source, region, place, maker, keep=1)
            known = await backups_of(place)
        record = known[-1]
        await _empty(target, region, {chain.directory for chain in record.chains}, patience_s)
        await restore_backup(place, record, target, emptied=True)
        await place.delete([*await place.sizes("")])  # the next copy is of a later checkpoint


async def _empty(store: Store, region: str, directories: Iterable[str], patience_s: float) -> None:
    """Delete what a store has of a region, and of the inputs that it records itself."""
    try:
        broken = [one.name for one in (await plan_deletion(store, region)).dependents]
        await delete_region(store, region, broken=broken, stopped=True, patience_s=patience_s)
    except NoRegionError:
        pass
    answered = (await store.inspect(coordinator_directory(region))).answers
    if missing := [one.address for one in store.record.voters if one.server_id not in answered]:
        raise DeletionRefusedError(
            f"members {', '.join(missing)} of the store do not answer, and may have a part of {region!r}",
            remedy="start them, or replace them with `dos store replace`",
        )
    for directory in sorted(directories):
        view = await store.inspect(directory)
        if any(view.answers.values()):
            async with await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id()) as claim:
                claim.collect(lambda _: True)
                await claim.wait_collected(limits.trim_wait_s)

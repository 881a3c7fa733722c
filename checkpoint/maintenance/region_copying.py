"""Begin a region in another store with the last checkpoint of one that runs: a backup into the other store,
and a restore of it there.
"""

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.errors import NoRegionError
from checkpoint.maintenance.backup import back_up, backups_of
from checkpoint.maintenance.backup_restoring import restore_backup
from checkpoint.maintenance.backup_target import open_target
from checkpoint.maintenance.savepoint_making import maker_of
from dos_client import Store, open_store


async def copy_region(
    source_url: str,
    target_url: str,
    region: str,
    directory: str,
    *,
    token: bytes = b"",
    patience_s: float = limits.request_patience_s,
) -> bool:
    """Copy the last checkpoint of a running region to another store, where the next `run` of its name
    continues from it. Return False, with nothing changed, if that store has the region already.

    directory: begins the name of the directory in the target where the backup stays. patience_s: for a first
    answer of the driver. Both regions run independently afterwards; output outside of the store begins anew.

    Raises NoRegionError, NoAnswerError, and what `back_up` and `restore_backup` raise. If it fails or is
    cancelled, there is no region in the target; the same call continues.
    """
    async with open_store(target_url, token=token, client="copy of a region") as target:
        if await _exists(target, region):
            return False
        async with (
            open_target(f"{target_url}/{directory}", token=token) as backups,
            backups.place(region) as place,
        ):
            known = await backups_of(place)  # of a call that was interrupted: its restore has begun perhaps
            if not known:
                async with open_store(source_url, token=token, client="copy of a region") as source:
                    maker = maker_of(source, region, stopped=False, patience_s=patience_s)
                    await back_up(source, region, place, maker, keep=1)
                known = await backups_of(place)
            await restore_backup(place, known[-1], target)
    return True


async def _exists(store: Store, region: str) -> bool:
    try:
        await read_manifest(store, region)
    except NoRegionError:
        return False
    return True

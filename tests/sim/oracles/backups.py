"""O7 for backups: each retained backup of a bucket restores its checkpoint in an empty store.

The restored region has the checkpoint that was committed, and each worker the counts of exactly the rows that
the checkpoint had read. The bucket holds nothing else.
"""

from collections import Counter
from contextlib import aclosing

from checkpoint.chains.manifest_log import read_manifest
from checkpoint.chains.state_store import STATE_CHAIN
from checkpoint.core.records.backups import PIECE_PREFIX, BackupRecord, needed_chains
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import worker_directory
from checkpoint.errors import BackupDamagedError, BackupRefusedError
from checkpoint.maintenance.backup import backups_of
from checkpoint.maintenance.backup_restoring import restore_backup
from dos_client import open_store
from dos_protocol.errors import DosError
from dos_server.testing import memory_store
from journal import Record, inspect_chain_at, read_records
from tests.checkpoint.backup_model import MemoryPlace, run
from tests.sim.history import ViolationError
from tests.sim.oracles.checkpoints import counts_owned
from tests.sim.regions.audit import counts_in
from tests.sim.regions.base import RegionBase


def check(region: RegionBase, place: MemoryPlace) -> None:
    """Restore every retained backup. Raises ViolationError."""
    run(_check, region, place)


async def _check(region: RegionBase, place: MemoryPlace) -> None:
    try:
        retained = await backups_of(place)
        for record in retained:
            await _check_restored(region, place, record)
    except (BackupDamagedError, BackupRefusedError) as error:
        raise ViolationError("O7", f"a backup cannot be restored: {error}") from error
    region.sometimes["a backup is restored"] += len(retained)
    needed = {name for record in retained for name in record.pieces()}
    there = set(await place.sizes(PIECE_PREFIX))
    if needed != there:
        raise ViolationError("O7", f"the bucket has {there - needed} besides, and lacks {needed - there}")


async def _check_restored(region: RegionBase, place: MemoryPlace, record: BackupRecord) -> None:
    committed = region.record.reported[record.checkpoint.number]
    async with memory_store(seed=record.number) as servers, open_store(servers.url) as store:
        await restore_backup(place, record, store, old_is_gone=True)
        checkpoint = (await read_manifest(store, record.region)).last
        assert checkpoint is not None
        if checkpoint.workers != committed.workers:
            raise ViolationError(
                "O7", f"backup {record.number} restores another checkpoint than {checkpoint.parent}"
            )
        for directory, chain, at, floor in needed_chains(committed, record.region):
            try:
                state = await inspect_chain_at(store, directory, chain, at, floor=floor)
                async with aclosing(read_records(store, state, directory=directory)) as records:
                    read = [one async for _, one in records]
            except DosError as error:
                raise ViolationError(
                    "O7", f"backup {record.number} lacks a part of {directory}/{chain}: {error}"
                ) from error
            if state.end != at:
                raise ViolationError("O7", f"backup {record.number} has {chain} up to {state.end}, not {at}")
            if chain == STATE_CHAIN:
                _check_counts(region, committed, directory, read)


def _check_counts(region: RegionBase, checkpoint: Checkpoint, directory: str, records: list[Record]) -> None:
    found = Counter(counts_in(records))
    (worker,) = (one for one in checkpoint.workers if worker_directory(region.spec.name, one) == directory)
    expected = counts_owned(region, region.record.committed[-1], checkpoint, worker)
    if found != expected:
        raise ViolationError(
            "O7", f"a backup of checkpoint {checkpoint.number} has {dict(found)}, not {dict(expected)}"
        )

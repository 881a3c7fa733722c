"""Copy a region to a target: one run after the other, each a complete backup. `core/backups.py` has the
rules.

The order makes an interrupted run harmless:

    1. write the record with which the run begins
    2. make the savepoint: from now on nothing that the checkpoint needs is deleted
    3. copy the segments, each verified by digest in the store and in the target
    4. write the record of the backup. **This is the commit**: without it there is no backup
    5. delete what older backups alone need, the records first
    6. drop the savepoint, also after a failure

A run that others fence, because they began after it, fails at 4.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.core.backup_record import (
    PIECE_PREFIX,
    RECORD_PREFIX,
    BackupRecord,
    RunBegan,
    decode_record,
    encode_record,
    number_of,
    record_name,
    stored_checkpoint,
)
from checkpoint.core.backups import known_objects, released_records, retained_after, unneeded_pieces
from checkpoint.core.manifest import Checkpoint
from checkpoint.errors import BackupDamagedError, BackupRefusedError, NoAnswerError, SavepointRefusedError
from checkpoint.maintenance.backup_copying import Copier, saved_chains, saved_registers
from checkpoint.maintenance.backup_target import BackupPlace, content
from checkpoint.maintenance.savepoint_making import SavepointMaker
from checkpoint.runtime import wall_time_ms
from dos_client import Store, randomness
from dos_protocol.errors import DosError
from journal.archive.reading import identity_of

logger = logging.getLogger("dos.checkpoint")
Progress = Callable[[int, int | None], None]
WHY: Final = "a backup copies its checkpoint; drop it if that has ended"
"""The note of its savepoint."""


@dataclass(frozen=True, slots=True)
class BackupDone:
    """The result of a run. copied_bytes: written to the target; bytes: what the backup has altogether."""

    number: int
    checkpoint: int
    step: int
    checkpoint_ms: int
    """The wall clock of the checkpoint, and when everything was copied."""
    wall_time_ms: int
    seconds: float
    copied_bytes: int
    copied_objects: int
    bytes: int
    released: tuple[int, ...]
    """The older backups that were given up. Numbers grow and have gaps: each run takes one, too."""
    left_out: tuple[str, ...]
    """The registered consumers that the backup does not have, each with what it reads."""


async def back_up(
    store: Store,
    region: str,
    place: BackupPlace,
    savepoints: SavepointMaker,
    *,
    keep: int = 2,
    progress: Progress = lambda _done, _total: None,
) -> BackupDone:
    """Make one backup of a region, and delete what only older backups than the newest `keep` need.

    Raises BackupRefusedError if the region has no checkpoint that can be copied, or if another run began
    meanwhile; BackupDamagedError if the newest record of the target is damaged; NoRegionError; the errors of
    reading the store and of the target. If it fails or is cancelled, the target has the backups that it had
    before, or the new one in addition; objects of the run are left, and the next run uses or deletes them.
    """
    began = trio.current_time()
    await read_manifest(store, region)  # raises NoRegionError before anything is written
    run, newest = await _begin(place)
    async with _savepoint(store, region, savepoints) as checkpoint:
        if newest is not None and (newest.region, newest.store) != (region, identity_of(store.record)):
            raise BackupRefusedError(
                f"{place.where(record_name(newest.number))} is of region {newest.region!r} of store"
                f" {newest.store}, this is region {region!r} of store {identity_of(store.record)}",
                remedy="use another target: a restored region is another one",
            )
        known = known_objects(newest, await place.sizes(PIECE_PREFIX))
        copier = Copier(store, place, run, known, progress)
        chains, reads = await saved_chains(store, region, checkpoint, copier)
        registers, left_out = await saved_registers(store, region)
        record = BackupRecord(
            number=run + 1,
            run=run,
            region=region,
            store=identity_of(store.record),
            wall_time_ms=wall_time_ms(),
            stored=stored_checkpoint(checkpoint),
            chains=chains,
            registers=registers,
            reads_outputs=reads,
            left_out=left_out,
            retained=retained_after(newest, run + 1, keep),
            copied_bytes=copier.copied_bytes,
        )
        await _commit(place, record)
    await _delete_old(place, record)
    before = newest.retained if newest is not None else ()
    return BackupDone(
        number=record.number,
        checkpoint=checkpoint.number,
        step=checkpoint.step,
        checkpoint_ms=checkpoint.wall_time_ms,
        wall_time_ms=record.wall_time_ms,
        seconds=trio.current_time() - began,
        copied_bytes=copier.copied_bytes,
        copied_objects=copier.copied_objects,
        bytes=record.bytes,
        released=tuple(sorted(set(before) - set(record.retained))),
        left_out=left_out,
    )


async def _begin(place: BackupPlace) -> tuple[int, BackupRecord | None]:
    """Write the record with which the run begins. Return its number, and the newest backup: no earlier run
    writes another one after this.
    """
    for _ in range(limits.backup_writes_max):
        numbers = _numbers(await place.sizes(RECORD_PREFIX))
        newest = await _newest_of(place, numbers)
        begun = RunBegan(
            run=randomness.fresh_id().hex(),
            newest=newest.number if newest is not None else 0,
            wall_time_ms=wall_time_ms(),
        )
        number = max(numbers, default=0) + 1
        if await _put(place, record_name(number), encode_record(begun)):
            return number, newest
    raise BackupRefusedError("other runs begin at the same time, again and again", remedy="run one at a time")


async def _put(place: BackupPlace, name: str, data: bytes) -> bool:
    return await place.put(name, data, hashlib.sha256(data).digest())


async def _commit(place: BackupPlace, record: BackupRecord) -> None:
    """Write the record of a backup. Raises BackupRefusedError if another run has begun since this one."""
    written = await _put(place, record_name(record.number), encode_record(record))
    newest = await newest_backup(place) if written else None
    # A run that others had made obsolete long ago may find its number free again: they deleted what had it.
    if newest is None or record.number not in newest.retained:
        raise BackupRefusedError(
            f"another run began after the one of {place.where(record_name(record.run))}, which is given up",
            remedy="run one at a time",
        )


def _numbers(names: dict[str, int]) -> list[int]:
    return sorted(number for name in names if (number := number_of(name)) is not None)


async def newest_backup(place: BackupPlace) -> BackupRecord | None:
    """Return the newest complete backup of a place, None if there is none. Raises BackupDamagedError."""
    return await _newest_of(place, _numbers(await place.sizes(RECORD_PREFIX)))


async def _newest_of(place: BackupPlace, numbers: Sequence[int]) -> BackupRecord | None:
    """Return the newest backup among these records. The newest record that is whole states it."""
    for number in reversed(numbers):
        record = await _read(place, number)
        if isinstance(record, RunBegan):
            return await read_backup(place, record.newest) if record.newest else None
        if record is not None:
            return record
    return None


async def read_backup(place: BackupPlace, number: int) -> BackupRecord | None:
    """Return the record of that number; None if it is not that of a complete backup.

    Raises BackupDamagedError, also if there is none.
    """
    record = await _read(place, number)
    return record if isinstance(record, BackupRecord) else None


async def _read(place: BackupPlace, number: int) -> BackupRecord | RunBegan | None:
    where = place.where(record_name(number))
    record = decode_record(await content(place, record_name(number)), where)
    if isinstance(record, BackupRecord) and record.number != number:
        raise BackupDamagedError(where, f"it is the record of backup {record.number}")
    return record


async def backups_of(place: BackupPlace) -> list[BackupRecord]:
    """Return the backups that are retained, the oldest first. Raises BackupDamagedError."""
    newest = await newest_backup(place)
    if newest is None:
        return []
    found = [await read_backup(place, number) for number in newest.retained[:-1]]
    return [*(one for one in found if one is not None), newest]


async def _delete_old(place: BackupPlace, record: BackupRecord) -> None:
    """Delete what the record releases: first the records, then the pieces.

    Nothing is deleted that another backup may need: if a record cannot be read, no piece is deleted.
    """
    await place.delete(released_records(await place.sizes(RECORD_PREFIX), record))
    try:
        retained = await backups_of(place)
    except BackupDamagedError as error:
        logger.warning("no object of older backups is deleted: %s", error)
        return
    if {one.number for one in retained} == set(record.retained):
        pieces = unneeded_pieces(await place.sizes(PIECE_PREFIX), record, retained)
        if not await place.delete(pieces):
            logger.info("some objects of older backups are not deleted yet: the next run deletes them")


@asynccontextmanager
async def _savepoint(store: Store, region: str, savepoints: SavepointMaker) -> AsyncIterator[Checkpoint]:
    """Hold the last checkpoint by a savepoint in the context. Yields the checkpoint."""
    name = f"backup-{randomness.fresh_id().hex()[:8]}"
    try:
        number = await savepoints.make(name, why=WHY)
        yield (await read_manifest(store, region)).restorable(number)
    except (SavepointRefusedError, NoAnswerError):
        raise  # there is none; of one that a driver may still make, the message has the name
    except BaseException:
        await _drop(savepoints, region, name)
        raise
    else:
        await _drop(savepoints, region, name)


async def _drop(savepoints: SavepointMaker, region: str, name: str) -> None:
    """Drop a savepoint, also while this task is cancelled. A failure is logged: a person can drop it."""
    left = f"savepoint {name} of region {region} may be left; `dos region savepoint --drop` drops it"
    with trio.move_on_after(limits.backup_drop_s, shield=True) as scope:
        try:
            await savepoints.drop(name)
        except SavepointRefusedError as error:
            logger.info("savepoint %s was not dropped: %s", name, error)
        except DosError as error:
            logger.warning("%s (%s)", left, error)
    if scope.cancelled_caught:
        logger.warning("%s (not done within %g s)", left, limits.backup_drop_s)

"""Copy a region to a target: one run after the other, each a complete backup. `core/records/backups.py` has
the rules.

The order of `back_up` makes an interrupted run harmless: the record with which the run begins, the savepoint
that holds the checkpoint, the segments, each verified by digest in the store and in the target, and the
record of the backup, which is its commit. The bytes of a segment are read once, from a quorum of the store,
and go to the target in pieces, while the next bytes are read.
"""

import hashlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.input_log import last_recorded
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.core.records.backups import (
    PIECE_PREFIX,
    RECORD_PREFIX,
    BackupRecord,
    Known,
    NeededChain,
    Piece,
    RunBegan,
    SavedChain,
    SavedRegister,
    SavedSegment,
    continued,
    decode_record,
    encode_record,
    known_objects,
    needed_chains,
    number_of,
    only_region,
    piece_name,
    record_name,
    released_records,
    retained_after,
    stored_checkpoint,
    unneeded_pieces,
)
from checkpoint.core.records.consumers import names_of, need_of
from checkpoint.core.records.inputs import CLOSED_CHAIN, input_directory
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.errors import (
    BackupDamagedError,
    BackupRefusedError,
    NoAnswerError,
    NoRegionError,
    SavepointRefusedError,
)
from checkpoint.maintenance.backup_target import BackupPlace, content
from checkpoint.maintenance.retention import InputRows, OutputRows, all_rows, read_by, trimmed_since
from checkpoint.maintenance.stopped_region import SavepointMaker
from checkpoint.runtime import runtime, wall_time_ms
from dos_client import Store, randomness
from dos_protocol.digests import PrefixDigest, ResumePoint
from dos_protocol.errors import CorruptDataError, DosError
from dos_protocol.limits import digest_block_bytes
from journal import ChainState, SegmentSpan, inspect_chain_at, inspect_whole
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

    Raises BackupRefusedError if the region has no checkpoint that can be copied, or another run began
    meanwhile; BackupDamagedError, NoRegionError; the errors of the store and of the target. If it fails or is
    cancelled, the target has its former backups, perhaps the new one, and objects that the next run uses or
    deletes.
    """
    began = trio.current_time()
    await read_manifest(store, region)  # raises NoRegionError before anything is written
    run, newest = await _begin(place)
    # Before anything is copied: otherwise a checkpoint that takes an hour to copy is released and deleted
    # meanwhile.
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
        # After the pieces: a backup whose record is there is complete, whatever ended the run.
        await _commit(place, record)
    # After the new record, and never before: with keep=1, a failed run would leave no backup.
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
    """Write the record with which the run begins. Return its number, and the newest backup."""
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
    """Return that record; None if it is not that of a complete backup. Raises BackupDamagedError."""
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
    """Delete what the record releases: first the records, then the pieces."""
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


@dataclass(slots=True)
class _Segment:
    """A segment that was read and verified. Some of its new pieces may not be written yet."""

    span: SegmentSpan
    resume: ResumePoint
    old: tuple[Piece, ...]
    new: dict[int, Piece] = field(default_factory=dict)
    """The offset of a piece -> the piece."""

    def saved(self) -> SavedSegment:
        pieces = (*self.old, *(self.new[begin] for begin in sorted(self.new)))
        return SavedSegment(self.span.name, self.span.length, self.span.digest, self.resume, pieces)


class Copier:
    """Copies chains to a place, in one run, in its context. Memory: `backup_copies_max` pieces that are
    written, and one that is read.

    The end of the context waits until all pieces are written, and raises the first error of the store or of
    the target. After an error or a cancellation there are no `chains`.
    """

    def __init__(self, store: Store, place: BackupPlace, run: int, known: Known, progress: Progress) -> None:
        self._store = store
        self._place = place
        self._run = run
        self._known = known
        self._progress = progress
        self._slots = trio.CapacityLimiter(limits.backup_copies_max)
        self._written: set[str] = set()
        self._read: list[tuple[SavedChain, list[_Segment]]] = []
        self._done = 0
        self.copied_bytes = 0
        self.copied_objects = 0

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        try:
            async with trio.open_nursery() as self._writing:
                yield
        except BaseExceptionGroup as group:  # of the nursery: the first error says what happened
            found, _ = group.split(DosError)
            raise (group if found is None else _first(found)) from None

    def chains(self) -> tuple[SavedChain, ...]:
        """Return what was copied, after the end of the context."""
        return tuple(
            msgspec.structs.replace(chain, segments=tuple(one.saved() for one in segments))
            for chain, segments in self._read
        )

    async def copy(
        self, directory: str, chain: str, state: ChainState, released: tuple[int, int] | None = None
    ) -> None:
        """Read the spans of a chain, and begin to write them. Raises CorruptDataError, and errors of the
        store.
        """
        segments = [await self._segment(directory, span) for span in state.segments]
        self._read.append((SavedChain(directory, chain, (), released), segments))

    async def _segment(self, directory: str, span: SegmentSpan) -> _Segment:
        saved = continued(self._known.segments.get((directory, span.name)), span.length)
        if saved is not None and (saved.length, saved.digest) == (span.length, span.digest):
            self._count(span.length)
            return _Segment(span, saved.resume, saved.pieces)
        resume = ResumePoint(0, 0) if saved is None else saved.resume
        digest = PrefixDigest(*resume)
        new = await self._new_pieces(directory, span, digest, saved)
        if (digest.size, digest.value) != (span.length, span.digest):
            raise CorruptDataError(
                f"{directory}/{span.name}",
                digest.size,
                f"{span.length} bytes with digest {span.digest:016x}",
                f"{digest.size} with {digest.value:016x}",
            )
        self._count(0 if saved is None else saved.length)
        blocks = digest.size - digest.size % digest_block_bytes
        old = () if saved is None else saved.pieces
        return _Segment(span, ResumePoint(blocks, digest.blocks_digest), old, new)

    async def _new_pieces(
        self, directory: str, span: SegmentSpan, digest: PrefixDigest, saved: SavedSegment | None
    ) -> dict[int, Piece]:
        """Read a segment from where `digest` is, and begin to write the rest. Complete after the end of the
        context.
        """
        pieces: dict[int, Piece] = {}
        waiting: list[bytes] = []
        begin = end = 0 if saved is None else saved.length
        most = limits.backup_piece_bytes_max
        stream = self._store.stream(directory, span.name, digest.size, span.length)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                new = self._unsaved(digest, chunk, saved, where=f"{directory}/{span.name}")
                while end + len(new) >= begin + most:
                    checkpoint = begin + most - end
                    await self._write([*waiting, new[:checkpoint]], begin, pieces)
                    waiting, new = [], new[checkpoint:]
                    begin = end = begin + most
                if new:
                    waiting.append(new)
                    end += len(new)
        if waiting:
            await self._write(waiting, begin, pieces)
        return pieces

    def _unsaved(
        self, digest: PrefixDigest, chunk: bytes, saved: SavedSegment | None, *, where: str
    ) -> bytes:
        """Digest a chunk, and return the part of it that is not saved. What is saved is compared."""
        have = 0 if saved is None else saved.length
        if saved is None or digest.size >= have:
            digest.update(chunk)
            return chunk
        old = chunk[: have - digest.size]
        digest.update(old)
        if digest.size == have and digest.value != saved.digest:
            raise CorruptDataError(
                where,
                have,
                f"the bytes of the last backup, digest {saved.digest:016x}",
                f"{digest.value:016x}",
            )
        new = chunk[len(old) :]
        digest.update(new)
        return new

    async def _write(self, parts: list[bytes], begin: int, pieces: dict[int, Piece]) -> None:
        """Write a piece in the background, after waiting for a slot, and add it to `pieces`."""
        token = object()
        await self._slots.acquire_on_behalf_of(token)
        self._writing.start_soon(self._put, parts, begin, pieces, token)

    async def _put(self, parts: list[bytes], begin: int, pieces: dict[int, Piece], token: object) -> None:
        try:
            data, sha256 = await runtime().in_thread(_joined, parts)
            text = sha256.hex()
            name = self._known.unlisted.get(text) or piece_name(self._run, text)
            pieces[begin] = Piece(name, begin, len(data), text)
            if name in self._written:
                self._count(len(data))
                return
            self._written.add(name)
            if not await self._place.put(name, data, sha256):
                raise BackupRefusedError(
                    f"{self._place.where(name)} exists with other bytes than its name states",
                    remedy="delete it, or use another target",
                )
        finally:
            self._slots.release_on_behalf_of(token)
        self.copied_bytes += len(data)
        self.copied_objects += 1
        self._count(len(data))

    def _count(self, grown: int) -> None:
        self._done += grown
        self._progress(self._done, None)


async def saved_chains(
    store: Store, region: str, checkpoint: Checkpoint, copier: Copier
) -> tuple[tuple[SavedChain, ...], tuple[str, ...]]:
    """Copy all that a restore of the checkpoint reads. Return the chains, and the regions whose output logs
    it reads. Raises BackupRefusedError if input that it needs is deleted already.
    """
    if gone := await trimmed_since(store, region, checkpoint):
        raise BackupRefusedError(
            f"checkpoint {checkpoint.number} of region {region!r} needs input that is deleted:"
            f" {gone[0].split} of"
            f" {gone[0].source!r} from {gone[0].needs}, there from {gone[0].begin} on",
            remedy="let the region read its input before its limit deletes it",
        )
    reads = []
    async with copier.writing():
        for one in needed_chains(checkpoint, region):
            await _copy_chain(store, one, copier)
        for rows, consumer in await read_by(store, region):
            if isinstance(rows, OutputRows):
                reads.append(rows.region)
            else:
                for split in await rows.splits():
                    floor = need_of([checkpoint], consumer.sources, split)
                    if floor is not None:
                        await _copy_input(store, rows, split, floor, copier)
                await _copy_end(store, rows, copier)
    return copier.chains(), tuple(sorted(set(reads)))


async def _copy_chain(store: Store, needed: NeededChain, copier: Copier) -> None:
    """Copy a chain of a worker up to the position in the checkpoint, the part of the newest segment too."""
    directory, chain, at, floor = needed
    state = await inspect_chain_at(store, directory, chain, at, floor=floor)
    await copier.copy(directory, chain, state)


async def _copy_input(store: Store, rows: InputRows, split: str, needs: int, copier: Copier) -> None:
    """Copy a producer's chain: what was not read, and the last batch, with which the producer continues."""
    directory = rows.directory(split)
    last = await last_recorded(store, rows.application, rows.handle, split, whole=True)
    floor = max(min(needs, last.end) - 1, 0)
    state = await inspect_whole(store, directory, rows.chain, floor=floor)
    if state.end is None or not state.segments:
        return
    lowest = state.segments[0].segment
    await copier.copy(directory, rows.chain, state, lowest.order if lowest.base else None)


async def _copy_end(store: Store, rows: InputRows, copier: Copier) -> None:
    """Copy the record that an input is closed, if it is."""
    directory = input_directory(rows.application, rows.handle)
    state = await inspect_whole(store, directory, CLOSED_CHAIN)
    if state.end is not None and state.segments:
        await copier.copy(directory, CLOSED_CHAIN, state)


async def saved_registers(store: Store, region: str) -> tuple[tuple[SavedRegister, ...], tuple[str, ...]]:
    """Return the region's part of the registers; and the consumers left out, with what they read."""
    found, left_out = [], []
    for rows in await all_rows(store):
        register = await settled_register(store, rows.place)
        own = isinstance(rows, OutputRows) and rows.region == region
        if not own and not (isinstance(rows, InputRows) and region in register.consumers):
            continue
        what = f"output {rows.sink!r}" if isinstance(rows, OutputRows) else f"input {rows.handle!r}"
        left_out += [f"{name} ({what})" for name in names_of(register) if name != region]
        if not own or register.rule is not None:
            found.append(SavedRegister(rows.place.directory, rows.place.chain, only_region(register, region)))
    return tuple(found), tuple(left_out)


def _joined(parts: list[bytes]) -> tuple[bytes, bytes]:
    """Return the bytes of the parts, and their SHA-256. Empties the list, to free their memory."""
    data = b"".join(parts)
    parts.clear()
    return data, hashlib.sha256(data).digest()


def _first(group: BaseExceptionGroup[DosError]) -> DosError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


@dataclass(frozen=True, slots=True)
class BackupStatus:
    """One round. done: the backup, None if it failed because of `error`.

    loss_window_s: how much is lost at most if the store is lost before the next backup is complete; infinite
    before the first one.
    """

    done: BackupDone | None
    error: str
    every_s: float
    loss_window_s: float


async def keep_backing_up(
    once: Callable[[], Awaitable[BackupDone]], every_s: float
) -> AsyncGenerator[BackupStatus]:
    """Make backups until it is closed, and yield the status after each, also of a failed one.

    Raises BackupRefusedError, BackupDamagedError and NoRegionError of the first round.
    """
    first, window, since = True, math.inf, trio.current_time()
    while True:
        try:
            done = await once()
        except DosError as error:
            if first and isinstance(error, BackupRefusedError | BackupDamagedError | NoRegionError):
                raise
            now = trio.current_time()
            window, since = window + (now - since), now
            yield BackupStatus(None, str(error), every_s, window)
        else:
            window, since = loss_window(done, every_s), trio.current_time()
            yield BackupStatus(done, "", every_s, window)
        first = False
        await trio.sleep(every_s)


def loss_window(done: BackupDone, every_s: float) -> float:
    """Return the loss window after a backup, if the next one takes as long as this one."""
    age_s = max(done.wall_time_ms - done.checkpoint_ms, 0) / 1000
    return age_s + every_s + done.seconds

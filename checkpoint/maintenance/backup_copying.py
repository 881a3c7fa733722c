"""The copying of a backup: the segments that a checkpoint needs, and the inputs that the region reads.

`backup.py` has the order of a run. The bytes of a segment are read once, from a quorum of the store, and go
to the target in pieces. The next bytes, also of other segments and chains, are read while pieces are written.
What the target has of a segment is not read again, except for the last block, with which its digest is
continued.
"""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.input_log import last_recorded
from checkpoint.core.backup_record import Piece, SavedChain, SavedRegister, SavedSegment, piece_name
from checkpoint.core.backups import Known, NeededChain, continued, needed_chains, only_region
from checkpoint.core.consumers import names_of, need_of
from checkpoint.core.inputs import CLOSED_CHAIN, input_directory
from checkpoint.core.manifest import Checkpoint
from checkpoint.errors import BackupRefusedError
from checkpoint.maintenance.backup_target import BackupPlace
from checkpoint.maintenance.retained_rows import InputRows, OutputRows, all_rows, read_by
from checkpoint.maintenance.retention import trimmed_since
from checkpoint.runtime import runtime
from dos_client import Store
from dos_protocol.digests import PrefixDigest, ResumePoint
from dos_protocol.errors import CorruptDataError, DosError
from dos_protocol.limits import digest_block_bytes
from journal import ChainState, SegmentSpan, inspect_chain_at, inspect_whole, parse_segment_name

Progress = Callable[[int, int | None], None]


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
    """Copies chains to a place, in one run, in its context. `copied_bytes`, `copied_objects`: what it has
    written. Memory: `backup_copies_max` pieces that are written, and one that is read.

    The end of the context waits until all pieces are written. It raises the first error of the store or of
    the target. After an error or a cancellation no more pieces are begun, and there are no `chains`.
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
        """Read the spans of a chain, and begin to write them. released: see SavedChain.

        Raises CorruptDataError if the store returns other bytes than the chain names, and the errors of the
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
        """Read a segment from where `digest` is, and begin to write what is not saved of it.

        The result is complete after the end of the context.
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
    """Copy everything that a restore of the checkpoint reads. Return the chains, and the regions whose output
    logs the region reads: these are not copied.

    Raises BackupRefusedError if input that the checkpoint needs is deleted already.
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
                    await _copy_input(store, rows, split, floor, copier)
                await _copy_end(store, rows, copier)
    return copier.chains(), tuple(sorted(set(reads)))


async def _copy_chain(store: Store, needed: NeededChain, copier: Copier) -> None:
    """Copy a chain of a worker up to the position in the checkpoint, the part of the newest segment too."""
    directory, chain, at, floor = needed
    state = await inspect_chain_at(store, directory, chain, at, floor=floor)
    await copier.copy(directory, chain, state)


async def _copy_input(store: Store, rows: InputRows, split: str, needs: int, copier: Copier) -> None:
    """Copy a producer's chain: what the checkpoint has not read, and at least the last recorded batch, with
    which the producer continues.
    """
    directory = rows.directory(split)
    last = await last_recorded(store, rows.application, rows.handle, split, whole=True)
    floor = max(min(needs, last.end) - 1, 0)
    state = await inspect_whole(store, directory, rows.chain, floor=floor)
    if state.end is None or not state.segments:
        return
    lowest = parse_segment_name(state.segments[0].name)
    assert lowest is not None, "spans are of segments"
    await copier.copy(directory, rows.chain, state, lowest.order if lowest.base else None)


async def _copy_end(store: Store, rows: InputRows, copier: Copier) -> None:
    """Copy the record that an input is closed, if it is."""
    directory = input_directory(rows.application, rows.handle)
    state = await inspect_whole(store, directory, CLOSED_CHAIN)
    if state.end is not None and state.segments:
        await copier.copy(directory, CLOSED_CHAIN, state)


async def saved_registers(store: Store, region: str) -> tuple[tuple[SavedRegister, ...], tuple[str, ...]]:
    """Return the part that concerns the region of the registers of its inputs and of its outputs; and the
    consumers that are left out, each with what it reads.
    """
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

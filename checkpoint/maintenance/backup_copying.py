"""The copying of a backup: the segments that a checkpoint needs, and the inputs that the region reads.

`backup.py` has the order of a run. The bytes of a segment are read once, from a quorum of the store, and go
to the target in pieces while the next ones are read. What the target has of a segment is not read again,
except for the last block, with which its digest is continued.
"""

import hashlib
from collections.abc import Callable
from contextlib import aclosing

import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.input_log import last_recorded
from checkpoint.core.backup_record import Piece, SavedChain, SavedRegister, SavedSegment, piece_name
from checkpoint.core.backups import Known, NeededChain, continued, needed_chains, only_region
from checkpoint.core.consumers import need_of
from checkpoint.core.inputs import CLOSED_CHAIN, input_directory
from checkpoint.core.manifest import Cut
from checkpoint.errors import BackupRefusedError
from checkpoint.maintenance.backup_target import BackupPlace
from checkpoint.maintenance.retained_rows import InputRows, OutputRows, all_rows
from checkpoint.maintenance.retention import trimmed_since
from dos_client import Store
from dos_protocol.digests import PrefixDigest, ResumePoint
from dos_protocol.errors import CorruptDataError, DosError
from dos_protocol.limits import digest_block_bytes
from journal import ChainState, SegmentSpan, inspect_chain, inspect_chain_at, parse_segment_name

Progress = Callable[[int, int | None], None]


class Copier:
    """Copies segments to a place, in one run. `copied_bytes`, `copied_objects`: what it has written."""

    def __init__(self, store: Store, place: BackupPlace, run: int, known: Known, progress: Progress) -> None:
        self._store = store
        self._place = place
        self._run = run
        self._known = known
        self._progress = progress
        self._slots = trio.CapacityLimiter(limits.backup_copies_max)
        self._written: set[str] = set()
        self._done = 0
        self.copied_bytes = 0
        self.copied_objects = 0

    async def chain(self, directory: str, state: ChainState) -> tuple[SavedSegment, ...]:
        """Copy the spans of a chain. Raises CorruptDataError if the store returns other bytes than the chain
        names, and the errors of the store and of the target.
        """
        return tuple([await self._segment(directory, span) for span in state.segments])

    async def _segment(self, directory: str, span: SegmentSpan) -> SavedSegment:
        saved = continued(self._known.segments.get((directory, span.name)), span.length)
        if saved is not None and (saved.length, saved.digest) == (span.length, span.digest):
            self._count(span.length)
            return saved
        resume = ResumePoint(0, 0) if saved is None else saved.resume
        pieces = [] if saved is None else list(saved.pieces)
        have = 0 if saved is None else saved.length
        digest = PrefixDigest(*resume)
        try:
            pieces += await self._new_pieces(directory, span, digest, saved)
        except BaseExceptionGroup as group:  # of the nursery: the first error says what happened
            found, _ = group.split(DosError)
            raise (group if found is None else _first(found)) from None
        if (digest.size, digest.value) != (span.length, span.digest):
            raise CorruptDataError(
                f"{directory}/{span.name}",
                digest.size,
                f"{span.length} bytes with digest {span.digest:016x}",
                f"{digest.size} with {digest.value:016x}",
            )
        self._count(have)
        blocks = digest.size - digest.size % digest_block_bytes
        return SavedSegment(
            span.name, span.length, span.digest, ResumePoint(blocks, digest.blocks_digest), tuple(pieces)
        )

    async def _new_pieces(
        self, directory: str, span: SegmentSpan, digest: PrefixDigest, saved: SavedSegment | None
    ) -> list[Piece]:
        """Read a segment from where `digest` is, and write what is not saved of it."""
        pieces: dict[int, Piece] = {}
        waiting, begin = bytearray(), 0 if saved is None else saved.length
        most = limits.backup_piece_bytes_max
        async with trio.open_nursery() as writing:
            stream = self._store.stream(directory, span.name, digest.size, span.length)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    waiting += self._unsaved(digest, chunk, saved, where=f"{directory}/{span.name}")
                    while len(waiting) >= most:
                        await self._write(writing, bytes(waiting[:most]), begin, pieces)
                        begin += most
                        del waiting[:most]
            if waiting:
                await self._write(writing, bytes(waiting), begin, pieces)
        return [pieces[begin] for begin in sorted(pieces)]

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

    async def _write(self, writing: trio.Nursery, data: bytes, begin: int, pieces: dict[int, Piece]) -> None:
        """Write a piece in the background, after waiting for a slot, and add it to `pieces`."""
        token = object()
        await self._slots.acquire_on_behalf_of(token)
        writing.start_soon(self._put, data, begin, pieces, token)

    async def _put(self, data: bytes, begin: int, pieces: dict[int, Piece], token: object) -> None:
        try:
            sha256 = await trio.to_thread.run_sync(lambda: hashlib.sha256(data).digest())
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
    store: Store, region: str, cut: Cut, copier: Copier
) -> tuple[tuple[SavedChain, ...], tuple[str, ...]]:
    """Copy everything that a restore of the checkpoint reads. Return the chains, and the regions whose output
    logs the region reads: these are not copied.

    Raises BackupRefusedError if input that the checkpoint needs is deleted already.
    """
    if gone := await trimmed_since(store, region, cut):
        raise BackupRefusedError(
            f"checkpoint {cut.cut} of region {region!r} needs input that is deleted: {gone[0].split} of"
            f" {gone[0].source!r} from {gone[0].needs}, there from {gone[0].begin} on",
            remedy="let the region read its input before its limit deletes it",
        )
    found = [await _saved_chain(store, one, copier) for one in needed_chains(cut, region)]
    reads = []
    for rows in await all_rows(store):
        consumer = (await settled_register(store, rows.place)).consumers.get(region)
        if consumer is None:
            continue
        if isinstance(rows, OutputRows):
            reads.append(rows.region)
        elif isinstance(rows, InputRows):
            for split in await rows.splits():
                floor = need_of([cut], consumer.sources, split)
                found += await _saved_input(store, rows, split, floor, copier)
            found += await _saved_end(store, rows, copier)
    return tuple(found), tuple(sorted(set(reads)))


async def _saved_chain(store: Store, needed: NeededChain, copier: Copier) -> SavedChain:
    """Copy a chain of a worker up to the position in the checkpoint, the part of the newest segment too."""
    directory, chain, at, floor = needed
    state = await inspect_chain_at(store, directory, chain, at, floor=floor)
    return SavedChain(directory, chain, await copier.chain(directory, state))


async def _saved_input(
    store: Store, rows: InputRows, split: str, needs: int, copier: Copier
) -> list[SavedChain]:
    """Copy a producer's chain: what the checkpoint has not read, and at least the last recorded batch, with
    which the producer continues.
    """
    directory = rows.directory(split)
    last = await last_recorded(store, rows.application, rows.handle, split)
    floor = max(min(needs, last.end) - 1, 0)
    state = await inspect_chain(store, directory, rows.chain, floor=floor)
    if state.end is None or not state.segments:
        return []
    lowest = parse_segment_name(state.segments[0].name)
    assert lowest is not None, "spans are of segments"
    released = lowest.order if lowest.base else None
    return [SavedChain(directory, rows.chain, await copier.chain(directory, state), released)]


async def _saved_end(store: Store, rows: InputRows, copier: Copier) -> list[SavedChain]:
    """Copy the record that an input is closed, if it is."""
    directory = input_directory(rows.application, rows.handle)
    state = await inspect_chain(store, directory, CLOSED_CHAIN)
    if state.end is None or not state.segments:
        return []
    return [SavedChain(directory, CLOSED_CHAIN, await copier.chain(directory, state))]


async def saved_registers(store: Store, region: str) -> tuple[SavedRegister, ...]:
    """Return the part that concerns the region of the registers of its inputs and of its outputs."""
    found = []
    for rows in await all_rows(store):
        register = await settled_register(store, rows.place)
        own = isinstance(rows, OutputRows) and rows.region == region and register.rule is not None
        if own or (isinstance(rows, InputRows) and region in register.consumers):
            found.append(SavedRegister(rows.place.directory, rows.place.chain, only_region(register, region)))
    return tuple(found)


def _first(group: BaseExceptionGroup[DosError]) -> DosError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error

"""Mirror a journal on the local disk to a directory of a store: one growing file (`Mirror`), or a chain.

The mirror of a chain has the same segments with the same bytes, and readers can rely on the same rules (R7,
R8, R14): all commands read it, and `Directory.open` continues it elsewhere. Its claim is that of the segment
that is copied, so a mirror that restarts takes the same one again, and a writer that takes the copy over
fences it.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import trio

from dos_client import Quorums
from dos_client.errors import MissingDataError
from dos_client.live_store import Store
from dos_client.writing.claim import Claim, resume
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import FencedError, LocalProtocolError, NotFoundError
from dos_protocol.limits import payload_bytes_max
from dos_tls import sync_folder
from journal.chain import inspect_committed
from journal.core.chain import Floor, SegmentSpan, SegmentStart, below, parse_segment_name
from journal.core.errors import HistoryTrimmedError, MirrorDiffersError
from journal.core.walk import StartRead
from journal.files.history import stretch_below
from journal.limits import mirror_poll_s
from journal.local_store import LocalStore, digest_of
from journal.reading import ANY, ChainSource, read_start


class Mirror:
    """The mirror of a local file that only grows, in an object of a claimed directory: it appends only if the
    object is a prefix of the file. `synced`: the bytes of the file that a quorum has on stable storage.
    """

    def __init__(self, path: Path, writer: ObjectWriter) -> None:
        self._path = path
        self._writer = writer
        self._grown = trio.Event()

    @classmethod
    async def open(cls, path: Path, store: Store, claim: Claim, name: str) -> "Mirror":
        """Continue at the end of the object. Raises MirrorDiffersError, CorruptError, FencedError."""
        writer = await resume(store, claim, name)
        found = await trio.to_thread.run_sync(digest_of, path, writer.size)
        if found.size != writer.size:
            raise MirrorDiffersError(
                f"{claim.directory}/{name} has {writer.size} bytes, {path} has only {found.size}",
                remedy=f"copy the object to {path} with `dos get`, and continue with that file",
            )
        if found.value != writer.digest:
            raise MirrorDiffersError(
                f"the first {writer.size} bytes of {path} are not those of {claim.directory}/{name}",
                remedy="mirror to another name, or restore the file that was mirrored before",
            )
        return cls(path, writer)

    @property
    def size(self) -> int:
        """The bytes of the file that were appended to the object, synced or not."""
        return self._writer.size

    @property
    def synced(self) -> int:
        return self._writer.synced

    @property
    def digest(self) -> int:
        """The prefix digest of the appended bytes."""
        return self._writer.digest

    async def run(self) -> None:
        """Mirror the file until cancelled. Raises FencedError, OSError, MirrorDiffersError."""
        while True:
            if not await self.pass_on():
                await trio.sleep(mirror_poll_s)

    async def pass_on(self, upto: int | None = None) -> int:
        """Append the new bytes of the file to the object, up to size `upto`, and return their number."""
        before = self.size
        with self._path.open("rb", buffering=0) as file:
            if file.seek(0, 2) < before:
                raise MirrorDiffersError(f"{self._path} has fewer than the {before} bytes that were mirrored")
            file.seek(before)
            while data := await trio.to_thread.run_sync(file.read, self._next_bytes(upto)):
                self._writer.append(data)
                await self._writer.wait_room()
        self._grown.set()
        self._grown = trio.Event()
        return self.size - before

    def seal(self) -> None:
        """Note that the file is complete and copied. The memory is freed when a quorum has everything."""
        self._writer.seal()

    def _next_bytes(self, upto: int | None) -> int:
        return payload_bytes_max if upto is None else min(payload_bytes_max, max(upto - self.size, 0))

    async def wait_synced(self, size: int) -> None:
        """Wait until `size` bytes are synced on a quorum; another task calls `run` meanwhile. Raises
        FencedError.
        """
        while self.size < size:
            await self._grown.wait()
        await self._writer.wait_synced(size)


async def verify_copy(store: Store, directory: str, name: str, size: int, digest: int) -> None:
    """Raise MirrorDiffersError unless a quorum holds an object with this digest of its first `size` bytes."""
    found = await store.stat(directory, name, size)
    held = {
        member: size
        for member, result in found.items()
        if result.info.synced >= size and result.digest == digest
    }
    if Quorums(store.record).watermark(held) < size:
        raise MirrorDiffersError(
            f"{len(held)} members hold {size} bytes of {directory}/{name} with the digest {digest:016x} of"
            " the local file, fewer than a quorum",
            remedy="check the members with `dos store status` and `dos store verify`",
        )


_LOCK: Final = ".mirror.lock"


class MirrorProgress(NamedTuple):
    """The logical offset up to which the store has the chain, and the one at which the chain ends."""

    synced: int
    end: int


class _LocalLine(NamedTuple):
    """The part of a local chain to mirror: its spans, the lowest first, and the start of each. needed: for
    each span, the lowest segment without which it cannot be read: the one with its snapshot.
    """

    spans: tuple[SegmentSpan, ...]
    starts: tuple[SegmentStart, ...]
    needed: tuple[Floor, ...]
    names: frozenset[str]
    """All segments of the chain that the directory holds."""


class ChainMirror:
    """The mirror of one local chain. Create it with `open`, a context manager. The local journal may be
    written meanwhile, also by processes that follow one another.
    """

    def __init__(self, journal: LocalStore, store: Store, directory: str, chain: str) -> None:
        self._local = journal
        self._store = store
        self._directory = directory
        self._chain = chain
        self._claim: Claim | None = None
        self._seen: frozenset[str] = frozenset()
        self._mirrors: dict[str, Mirror] = {}
        self._copied: set[str] = set()
        """The complete segments that are on the quorum, as found under this claim."""
        self._line: _LocalLine | None = None
        self.progress = MirrorProgress(0, 0)

    @classmethod
    @contextmanager
    def open(
        cls, journal: Path, store: Store, directory: str, chain: str = "files"
    ) -> "Iterator[ChainMirror]":
        """Open a mirror. From now on, the journal keeps what the mirror has not copied. Raises NotFoundError,
        LocalProtocolError if another process mirrors it, OSError.
        """
        local = LocalStore(journal)
        if not any(one.chain == chain for one in local.segments()):
            raise NotFoundError(
                f"{journal} has no segment of a chain {chain}",
                remedy="name the journal of a directory, or the directory itself if its journal is beside it",
            )
        lock = os.open(journal / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalProtocolError(
                    f"{journal} is being mirrored by another process", remedy="end that one first"
                ) from error
            if local.mirrored() is None:
                local.set_mirrored((0, 0))
            yield cls(local, store, directory, chain)
        finally:
            os.close(lock)

    async def run(self, report: Callable[[MirrorProgress], None] = lambda _: None) -> None:
        """Mirror until cancelled, and `report` each change of the progress. Waits while too few servers are
        available. What was copied stays; run it again to continue.

        Raises FencedError if another writer took the copy over, MirrorDiffersError if the store has another
        journal there, the errors of reading a chain, OSError.
        """
        try:
            while True:
                before = self.progress
                await self.pass_on(report)
                if self.progress == before:
                    await trio.sleep(mirror_poll_s)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Give the claim back. What was copied stays."""
        claim, self._claim = self._claim, None
        if claim is not None:
            with trio.CancelScope(shield=True):
                await claim.aclose()

    async def pass_on(self, report: Callable[[MirrorProgress], None] = lambda _: None) -> None:
        """Copy what the journal has now, and wait until it is synced on a quorum. Raises as `run` does."""
        try:
            names = self._names()
            if names != self._seen:
                await self._follow_line(report)
                self._seen = names
            await self._copy_head(report)
        except FencedError as error:
            raise FencedError(
                f"{self._directory} has another writer, which took this copy over or mirrors another journal:"
                f" {error.args[0]}; mirror to another directory",
                actual=error.epoch_held,
            ) from error
        except FileNotFoundError:
            # The journal released a segment before this mirror had noted that it needs it.
            if self._seen == self._names():
                raise
            self._seen = frozenset()

    async def verify(self) -> int:
        """Compare each copied segment with the digest that the local chain has of it. Return their number.
        Raises MirrorDiffersError unless a quorum holds exactly these bytes.
        """
        spans = (await self._find_line()).spans
        for span in spans:
            await verify_copy(self._store, self._directory, span.name, span.length, span.digest)
        return len(spans)

    def _names(self) -> frozenset[str]:
        return frozenset(str(one) for one in self._local.segments() if one.chain == self._chain)

    # --- the way of one pass --------------------------------------------------------------------------------

    async def _follow_line(self, report: Callable[[MirrorProgress], None]) -> None:
        """Copy all segments below the newest one, the lowest first, and begin the newest one."""
        self._line = line = await self._find_line()
        self.progress = MirrorProgress(self.progress.synced, line.spans[-1].base + line.spans[-1].length)
        view = await self._store.inspect(self._directory)
        held = max((epoch for epoch, _ in view.epochs.values()), default=0)
        at_hold = next((one for one in line.starts if one.epoch == held), line.starts[-1])
        for span, start, needed in zip(line.spans, line.starts, line.needed, strict=True):
            # A claim above the copy leaves readers without a proof of its end: take it as late as possible.
            claim = await self._claim_as(start if start.epoch >= held else at_hold)
            self._refuse_others(claim, line)
            # Before the copy: a crash in between must not let the journal delete what is copied next.
            self._local.set_mirrored(needed)
            if span is line.spans[-1]:
                await self._begin(claim, span)
                if (
                    start.released
                ):  # R14: the start that names the floor is synced, so no reader needs what is below
                    claim.collect(below({self._chain: start.released}))
            else:
                await self._copy(claim, span)
                self._report(span.base + span.length, report)

    async def _copy_head(self, report: Callable[[MirrorProgress], None]) -> None:
        assert self._line is not None, "a pass begins with the line"
        span = self._line.spans[-1]
        mirror = self._mirrors[span.name]
        path = self._local.path / span.name
        if path.stat().st_size == mirror.size:
            self._report(span.base + mirror.size, report)
            return
        size = await trio.to_thread.run_sync(_synced_size, path)
        self.progress = MirrorProgress(self.progress.synced, span.base + size)
        while mirror.size < size:
            await mirror.pass_on(size)
            await mirror.wait_synced(mirror.size)
        self._report(span.base + mirror.size, report)

    def _report(self, synced: int, report: Callable[[MirrorProgress], None]) -> None:
        before, self.progress = self.progress.synced, MirrorProgress(synced, max(self.progress.end, synced))
        if synced != before:
            report(self.progress)

    async def _find_line(self) -> _LocalLine:
        names = self._names()
        floor = self._local.mirrored() or (0, 0)
        state = head = await inspect_committed(self._local, "", self._chain)
        spans = list(state.segments)
        needed = [spans[0].segment.order] * len(spans) if spans else []
        while spans and spans[0].segment.order > floor:
            try:
                under = await stretch_below(self._local, "", self._chain, state, head.released)
            except HistoryTrimmedError:
                break  # deleted before it was mirrored: the snapshot above it has what is needed
            if under is None:
                break
            state = under
            spans[:0] = state.segments
            needed[:0] = [spans[0].segment.order] * len(state.segments)
        if not spans:
            raise NotFoundError(f"{self._local.path} has no whole record of a chain {self._chain}")
        starts = [(await self._start(span)).start for span in spans]
        whole = tuple(start for start in starts if start is not None)
        assert len(whole) == len(spans), "a walk has read the starts"
        return _LocalLine(tuple(spans), whole, tuple(needed), names)

    async def _claim_as(self, start: SegmentStart) -> Claim:
        writer = bytes.fromhex(start.writer)
        if self._claim is not None and (self._claim.epoch, self._claim.writer_id) != (start.epoch, writer):
            await self.aclose()
            self._mirrors.clear()
            self._copied.clear()
        if self._claim is None:
            # The epoch and writer of the segment: a mirror that restarts takes the same claim, and fences
            # nobody.
            self._claim = await self._store.claim(self._directory, start.epoch, writer)
        return self._claim

    def _refuse_others(self, claim: Claim, line: _LocalLine) -> None:
        """Raise MirrorDiffersError if the directory holds segments that the local journal never had."""
        lowest = line.spans[0].segment.order
        for name in sorted({name for objects in claim.answers.values() for name in objects}):
            parsed = parse_segment_name(name)
            if parsed is None or parsed.chain != self._chain or parsed.order < lowest or name in line.names:
                continue
            raise MirrorDiffersError(
                f"{self._directory} holds {name}, which {self._local.path} does not have: it is the copy of"
                " another journal, or this journal lost it",
                remedy="mirror to another directory",
            )

    async def _copy(self, claim: Claim, span: SegmentSpan) -> None:
        """Make the quorum hold the bytes of a span, which is complete here."""
        name, length = span.name, span.length
        if name in self._copied:
            return
        held = max((found[name].synced for found in claim.answers.values() if name in found), default=0)
        if name in self._mirrors or held < length:
            await self._begin(claim, span)
            mirror = self._mirrors.pop(name)
            while mirror.size < length:
                await mirror.pass_on(length)
                await mirror.wait_synced(mirror.size)
            mirror.seal()
        else:
            try:  # members that lack some of it are filled; bytes beyond the span are never read (R6)
                await claim.settle(name, length, span.digest)
            except MissingDataError as error:
                raise MirrorDiffersError(
                    f"the first {length} bytes of {self._directory}/{name} are not those of"
                    f" {self._local.path / name}",
                    remedy="mirror to another directory",
                ) from error
        self._copied.add(name)

    async def _begin(self, claim: Claim, span: SegmentSpan) -> None:
        """Continue the copy of a segment; its start is synced on the quorum afterwards (R8)."""
        path = self._local.path / span.name
        if span.name not in self._mirrors:
            self._mirrors[span.name] = await Mirror.open(path, self._store, claim, span.name)
        mirror, start = self._mirrors[span.name], await self._start(span)
        # Never ahead of the disk here: after a power cut, the copy would have records that the journal lost.
        await trio.to_thread.run_sync(_synced_size, path)
        if mirror.size < start.end.bytes:
            await mirror.pass_on(start.end.bytes)
        await mirror.wait_synced(max(mirror.size, start.end.bytes))

    async def _start(self, span: SegmentSpan) -> StartRead:
        return await read_start(ChainSource(self._local, "journal"), span.name, span.length, ANY)


def _synced_size(path: Path) -> int:
    """Return the size of a file, after all of it and its name are on stable storage."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return size

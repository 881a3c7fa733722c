"""A directory whose changes go through a journal: it can be restored on any machine, as of any moment.

Each change is first recorded, then applied to the local files, which are a cache: opening rebuilds them from
the journal. This completes a change that a crash interrupted, and reverts changes that were never recorded.
Read the files as ordinary files.

When a restore would read more than `recovery_bytes_max`, the next segment begins with a snapshot of all
files. In a store, only `trim` deletes history. A journal on the local disk is trimmed at each snapshot: what
precedes the snapshot before it is deleted.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path

import trio

from dos_protocol.errors import ClosedError, LocalProtocolError
from journal.chain import take_over
from journal.core.chain import Position
from journal.core.errors import LocalFilesError
from journal.core.file_ops import (
    FileOp,
    FileRemove,
    FileSizes,
    FileTruncate,
    FileWrite,
    path_bytes,
    record_of,
    safe_path,
)
from journal.core.record import Op, Record
from journal.files.damage import OnDamaged, check_previous, newest_whole
from journal.files.history import Moment, TrimPlan, stop_at, take_over_at, trim
from journal.files.tree import FileTree, Rebuilding
from journal.limits import (
    file_copy_bytes_max,
    file_marks_every_s,
    file_write_bytes_max,
    files_segment_bytes_max,
    recovery_bytes_max,
)
from journal.local_store import LocalClaim, LocalJournal
from journal.ports import ClaimPort, StorePort
from journal.reading import read_plain_batches
from journal.scratch import Scratch
from journal.writer import ChainWriter


class TimeMarks:
    """The times of the MARK records of one journal. `clock_ms` returns the wall clock in ms since 1970."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._last_ms: int | None = None

    def now(self) -> Record:
        self._last_ms = self._clock_ms()
        return Record(Op.MARK, ints=(self._last_ms,))

    def due(self) -> Record | None:
        """Return the MARK record that is due before a change, if any."""
        now = self._clock_ms()
        if self._last_ms is None or not 0 <= now - self._last_ms < file_marks_every_s * 1000:
            self._last_ms = now
            return Record(Op.MARK, ints=(now,))
        return None


class ChangingFiles:
    """The local files below `path` as of their journal, which it does not know. Not for several threads. For
    each change: `recorded`, append the record, then `apply`, so that an invalid one is rejected before it is
    recorded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = FileTree(path)
        self._broken: LocalFilesError | None = None
        self._files = FileSizes({name: self._tree.size(name) for name in self._tree.paths()})
        self._sizes = self._files.sizes
        self.live_bytes = sum(self._sizes.values())
        """The total size of all files in bytes."""

    def close(self) -> None:
        self._tree.close()

    def appending(self, name: str, data: bytes) -> FileWrite:
        """Return the change that appends to a file, which need not exist."""
        return FileWrite(name, self._sizes.get(name, 0), data)

    def removing(self, name: str) -> FileRemove:
        """Return the change that removes a file. Raises FileNotFoundError."""
        self._size(name)
        return FileRemove(name)

    def renaming(self, old: str, new: str) -> Iterator[FileOp]:
        """Yield the changes that rename a file. Apply each before requesting the next. Raises
        FileNotFoundError.
        """
        size = self._size(old)
        if old == new:
            return
        yield FileTruncate(new, 0)
        for offset in range(0, size, file_copy_bytes_max):
            yield FileWrite(new, offset, _read(self.path, old, offset, size))
        yield FileRemove(old)

    def recorded(self, op: FileOp) -> Record:
        """Return the record of a possible change. Raises UnsafePathError, FileConflictError,
        LocalProtocolError; ClosedError after a recorded change could not be applied.
        """
        safe_path(path_bytes(op.path))
        if isinstance(op, FileWrite) and op.offset < 0:
            raise LocalProtocolError(f"an offset must be 0 or more, got {op.offset}")
        if isinstance(op, FileTruncate) and op.length < 0:
            raise LocalProtocolError(f"a length must be 0 or more, got {op.length}")
        if self._broken is not None:
            raise ClosedError(
                f"the files in {self.path} are behind their journal: {self._broken.args[0]}",
                remedy=self._broken.remedy,
            )
        if isinstance(op, FileWrite) and len(op.data) > file_write_bytes_max:
            raise LocalProtocolError(
                f"one write has at most {file_write_bytes_max} bytes, because it is made whole or not at"
                f" all; got {len(op.data)}",
                remedy="write the data in pieces",
            )
        record = record_of(op)
        self._tree.check(op)
        return record

    def check_untouched(self, name: str) -> None:
        """Raise LocalFilesError if a file has another size than by its recorded changes."""
        found, expected = self._tree.size(name), self._sizes.get(name, 0)
        if found != expected:
            raise LocalFilesError(
                f"{name} has {found} bytes and {expected} in its journal: it was changed by other means"
            )

    def apply(self, op: FileOp) -> None:
        """Apply a recorded change. After a LocalFilesError the files are behind their journal, and `recorded`
        accepts nothing.
        """
        try:
            self._tree.apply(op)
        except Exception as error:
            self._broken = LocalFilesError(f"cannot apply a recorded change to {op.path}: {error}")
            raise self._broken from error
        before = self._sizes.get(op.path, 0)
        self._files.apply(op)
        self.live_bytes += self._sizes.get(op.path, 0) - before

    @property
    def broken(self) -> LocalFilesError | None:
        """The reason why the files are behind their journal; None if they are not."""
        return self._broken

    def sizes(self) -> dict[str, int]:
        return dict(self._sizes)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that create all files."""
        return snapshot_of(self.path, self._sizes)

    def _size(self, name: str) -> int:
        if name not in self._sizes:
            raise FileNotFoundError(f"{name} is not in {self.path}")
        return self._sizes[name]


def sizes_of(root: Path) -> dict[str, int]:
    """Return the size of each file below `root`, by path. Raises FileConflictError, UnsafePathError."""
    with FileTree(root) as tree:
        return {safe_path(path_bytes(name)): tree.size(name) for name in tree.paths()}


def snapshot_of(root: Path, sizes: Mapping[str, int]) -> Iterator[Record]:
    """Yield the records that create the files of `sizes`, with their content below `root`. Raises
    LocalFilesError, OSError.
    """
    for name in sorted(sizes):
        size = sizes[name]
        yield record_of(FileTruncate(name, size))
        for offset in range(0, size, file_copy_bytes_max):
            yield record_of(FileWrite(name, offset, _read(root, name, offset, size)))


def _read(root: Path, name: str, offset: int, size: int) -> bytes:
    with (root / name).open("rb", buffering=0) as file:
        file.seek(offset)
        data = file.read(min(file_copy_bytes_max, size - offset))
    if len(data) != min(file_copy_bytes_max, size - offset):
        raise LocalFilesError(f"{name} has fewer than the {size} bytes in its journal")
    return data


FILES_CHAIN = "files"


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


class Directory:
    """A journaled directory. Create it with `open`. It is an async context manager that closes it.

        async with await store.claim("app.w0000", epoch, writer_id) as claim:
            async with await Directory.open(Path("data"), claim) as directory:
                await directory.append("log.txt", b"hello\\n")
                await directory.wait_synced()

    Paths of files are relative to `path`, with "/" between parts. Directories are created and removed with
    the files in them. Several tasks may call the methods; changes are made one at a time.

    Changes raise UnsafePathError and FileConflictError, with nothing recorded; FencedError; LocalFilesError
    if the operating system rejected a change that is already recorded: then open the directory again. A
    cancelled change is made whole or not at all.
    """

    def __init__(
        self,
        path: Path,
        writer: ChainWriter | LocalJournal,
        *,
        recovery_bytes: int = recovery_bytes_max,
        segment_bytes: int = files_segment_bytes_max,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.path = path
        self.writer = writer
        self.damage = ""
        """What was left out by `on_damaged="previous"`, and why; "" if nothing was."""
        self._files = ChangingFiles(path)
        self._lock = trio.Lock()
        self._marks = TimeMarks(clock_ms)
        self._recovery_bytes = recovery_bytes
        self._segment_bytes = segment_bytes
        self._segment_base = writer.end.size
        self._trims = False
        """Whether each snapshot releases what precedes the former one."""
        self._checkpoint = (0, 0)
        """The number and the step of the last recorded checkpoint; (0, 0) if there is none."""

    @classmethod
    async def open(
        cls,
        path: Path,
        claim: ClaimPort,
        chain: str = FILES_CHAIN,
        *,
        at: Position | Moment = None,
        on_damaged: OnDamaged = "fail",
        scratch: Scratch | None = None,
        recovery_bytes: int = recovery_bytes_max,
        segment_bytes: int = files_segment_bytes_max,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> "Directory":
        """Take the chain over and rebuild the files at `path` from it. Other files at `path` are deleted.

        at: continue from here instead of the chain's end: a position, or a moment as in `restore`. Later
        records leave the history: only a position, which the log has, names them now. on_damaged: as of
        `restore`; `damage` and the log name what is left out, which leaves the history.

        Raises the errors of `take_over` and of reading a chain, UnsafePathError and FileConflictError for a
        journal that no Directory wrote, OSError. For a moment also NotFoundError, HistoryTrimmedError,
        StopNotFoundError, ValueError. After a failure or a cancellation, `path` and the chain are unchanged
        or complete as of the opened position.
        """
        generation, damage = claim.store.record.generation, ""
        if on_damaged == "previous":
            check_previous(at)
            whole = await newest_whole(claim, None, chain, generation=generation)
            at, damage = whole.position, whole.damage
        if at is None or isinstance(at, Position):
            state = await take_over(claim, chain, at=at, generation=generation, scratch=scratch)
        else:
            stop = stop_at(at)
            state = await take_over_at(claim, chain, stop, generation=generation, scratch=scratch)
        # A change that was applied but never recorded on the quorum is not in the chain: it must not survive
        # here.
        with Rebuilding(path) as rebuilding:
            if state.segments:
                async with aclosing(read_plain_batches(claim, state, scratch=scratch)) as batches:
                    async for batch in batches:
                        rebuilding.replay.take(batch)
            predecessor = None if state.end is None else state
            writer = await ChainWriter.open(claim, chain, predecessor, generation, scratch)
            # R8: the records that were read count only once the start of the new segment is acknowledged.
            rebuilding.put()
        writer.collect_released()  # complete the deletion that a crash of the last writer interrupted
        opened = cls(
            path, writer, recovery_bytes=recovery_bytes, segment_bytes=segment_bytes, clock_ms=clock_ms
        )
        opened._checkpoint = rebuilding.replay.checkpoint or 0, rebuilding.replay.step
        opened.damage = damage
        opened._trims = isinstance(claim, LocalClaim)
        return opened

    @classmethod
    def open_local(cls, path: Path, journal: LocalJournal) -> "Directory":
        """Rebuild the files at `path` from a local journal, which closing the directory closes. Raises
        CorruptRecordError, UnknownRecordError, UnsafePathError, FileConflictError, OSError.
        """
        with Rebuilding(path) as rebuilding:
            for batch in journal.records():
                rebuilding.replay.take(batch)
            rebuilding.put()
        return cls(path, journal)

    async def __aenter__(self) -> "Directory":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop changing files. Does not wait: the claim continues to sync the recorded changes."""
        self._files.close()
        await self.writer.aclose()

    @property
    def end(self) -> Position:
        """The position just past the last change. A restore to it returns exactly the current files."""
        return self.writer.end

    def files(self) -> dict[str, int]:
        """Return the size of each file in bytes, by path."""
        return self._files.sizes()

    def read(self, name: str, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Return up to `max_bytes` bytes from `offset` on, from any thread. Bytes that are being written may
        be old or new. Raises UnsafePathError, FileNotFoundError, OSError.
        """
        with (self.path / safe_path(path_bytes(name))).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if max_bytes is None else max_bytes)

    async def append(self, name: str, data: bytes) -> Position:
        """Append to a file, which is created if missing. Return the position just past the change."""
        async with self._lock:
            return await self._change(self._files.appending(name, data))

    async def write_at(self, name: str, offset: int, data: bytes) -> Position:
        """Write at `offset`, and extend the file if needed. A gap before `offset` reads as zeros."""
        async with self._lock:
            return await self._change(FileWrite(name, offset, data))

    async def truncate(self, name: str, length: int = 0) -> Position:
        """Set the length of a file: truncate it, extend it with zeros, or create it."""
        async with self._lock:
            return await self._change(FileTruncate(name, length))

    async def remove(self, name: str) -> Position:
        """Remove a file. Raises FileNotFoundError, with nothing recorded, if it does not exist."""
        async with self._lock:
            return await self._change(self._files.removing(name))

    async def rename(self, old: str, new: str) -> Position:
        """Rename a file, replacing `new`. After a crash meanwhile, `old` still exists, and `new` may in part:
        rename again.
        """
        async with self._lock:
            for change in self._files.renaming(old, new):
                await self._change(change)
            return self.end

    async def wait_synced(self, position: Position | None = None) -> None:
        """Wait until the change that ends at `position` (None: all) is on the quorum. Raises FencedError."""
        await self.writer.wait_synced(position)

    async def checkpoint(self, number: int, step: int = 0) -> Position:
        """Record the current state as checkpoint `number`, for `restore(.., at=AtCheckpoint(number))`, and
        return the position just past the record.

        step: for `AtStep(step)`. The caller chooses both: numbers increase, steps do not decrease. Raises
        LocalProtocolError if they do not, or in a journal of version 0, and the errors of a change.
        """
        if isinstance(self.writer, LocalJournal):
            raise LocalProtocolError("a journal of version 0 has no checkpoints", remedy="use a LocalClaim")
        async with self._lock:
            last, at = self._checkpoint
            if number <= last or step < at:
                raise LocalProtocolError(
                    f"checkpoint {number} at step {step} must come after checkpoint {last} at step {at}"
                )
            await self.writer.wait_room()
            self._checkpoint = number, step
            return self.writer.append(Record(Op.CHECKPOINT, ints=(number, step)))

    async def trim(self, store: StorePort, name: str, before: Moment) -> TrimPlan:
        """Delete the history before a moment, for good; every later moment can still be restored. name: of
        this directory in the store. Returns the segments that members now delete in the background. Raises
        the errors of `plan_trim`, and LocalProtocolError for a local journal. After a failure or a
        cancellation the directory may have to be opened again; only released segments are deleted.
        """
        if not isinstance(self.writer, ChainWriter):
            raise LocalProtocolError(f"the journal of {self.path} is one local file, which cannot be trimmed")
        async with self._lock:
            await self.writer.wait_synced()
            done = await trim(store, name, self.writer, self.writer.chain, stop_at(before))
            self._segment_base = self.end.size
            return done

    # --- one change -----------------------------------------------------------------------------------------

    async def _change(self, op: FileOp) -> Position:
        record = self._files.recorded(op)
        await self.writer.wait_room()
        await self._roll_if_due()
        if isinstance(self.writer, ChainWriter) and (mark := self._marks.due()) is not None:
            self.writer.append(mark)
        # Record first: a change that is applied and not recorded would be lost by the next opening.
        position = self.writer.append(record)
        self._files.apply(op)
        return position

    async def _roll_if_due(self) -> None:
        if not isinstance(self.writer, ChainWriter):
            return  # a journal in one file has no segments
        end = self.end.size
        since, live = self.writer.bytes_since_snapshot, self._files.live_bytes
        if since >= max(self._recovery_bytes - live, live, 1):
            before = self.writer.floor
            await self.writer.roll(self._snapshot())
            if self._trims:
                # R14: the snapshot is whole before anything below it is deleted. A crash in between leaves
                # both.
                await self.writer.wait_synced()
                await self.writer.release(before)
        elif end - self._segment_base >= self._segment_bytes:
            await self.writer.roll()
        else:
            return
        self._segment_base = end

    def _snapshot(self) -> Iterator[Record]:
        """Yield the records that create all files, after a MARK record."""
        yield self._marks.now()
        yield from self._files.snapshot()

"""A directory whose changes go through a journal, so that it can be restored on any machine, as of any
moment.

Each change is first recorded, then applied to the local files. The local files are a cache: opening the
directory rebuilds them from the journal. This completes a change that a crash interrupted, and reverts
changes that were applied but never recorded on the quorum. Read the files as ordinary files. A change that
bypasses this module is reverted at the next opening.

The journal grows by segments. When a restore would read more than `recovery_bytes_max`, the next segment
begins with a snapshot of all files. In a store, only `trim` deletes history: until then every moment can be
restored. A journal on the local disk (`LocalClaim`) is trimmed at each snapshot: what precedes the snapshot
before it is deleted, so the disk holds about two times what an opening reads.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import trio

from dos_protocol.errors import LocalProtocolError
from journal.chain import take_over
from journal.core.file_ops import FileOp, FileTruncate, FileWrite, path_bytes, safe_path
from journal.core.position import Position
from journal.core.record import Record
from journal.files.changing import ChangingFiles
from journal.files.damage import OnDamaged, check_previous, newest_whole
from journal.files.history import take_over_at
from journal.files.local_journal import LocalJournal
from journal.files.marks import TimeMarks
from journal.files.moments import Moment, stop_at
from journal.files.rebuilding import Rebuilding
from journal.files.trimming import TrimPlan, trim
from journal.limits import files_segment_bytes_max, recovery_bytes_max
from journal.local_store import LocalClaim
from journal.ops import Op
from journal.ports import ClaimPort, StorePort
from journal.reading import read_plain_batches
from journal.scratch import Scratch
from journal.writer import ChainWriter

FILES_CHAIN = "files"


class Recorder(Protocol):
    """The journal that changes are recorded in: a `ChainWriter` or a `LocalJournal`."""

    @property
    def end(self) -> Position: ...

    @property
    def marks(self) -> bool:
        """Whether the journal can hold MARK records, which hold the wall clock."""
        ...

    def append(self, record: Record) -> Position: ...

    async def wait_room(self) -> None: ...

    async def wait_synced(self, position: Position | None = None) -> None: ...

    async def aclose(self) -> None: ...


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


class Directory:
    """A journaled directory. Create it with `open`. It is an async context manager that closes it.

        async with await store.claim("app.w0000", epoch, writer_id) as claim:
            async with await Directory.open(Path("data"), claim) as directory:
                await directory.append("log.txt", b"hello\\n")
                await directory.wait_synced()

    path: the local directory of the files.
    writer: the writer of a chain, or a local journal, whose end is the state of these files.

    Paths of files are relative to `path`, with "/" between parts. Directories are created and removed with
    the files in them. Several tasks may call the methods; changes are made one at a time.

    Changes raise UnsafePathError and FileConflictError, with nothing recorded; FencedError if the claim is
    lost; LocalFilesError if the operating system rejected a change that is already recorded. After a
    LocalFilesError the directory must be opened again. A cancelled change is made whole or not at all.
    """

    def __init__(
        self,
        path: Path,
        writer: Recorder,
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

        at: continue from here instead of the chain's end: a position, or a moment of the present line of
            history as in `restore` (a logical offset, a time, a checkpoint, a step). Later records leave the
            history: only a position names them now. For a moment, the log has the position of the last one.
        on_damaged: "previous" opens the newest whole state if the chain is damaged. `damage` and the log name
            what is left out, which leaves the history. It is refused if members are missing, because their
            copies may be good. The chain is read twice. Not together with `at`.

        Raises the errors of `take_over` and of reading a chain, UnsafePathError and FileConflictError for a
        journal that no Directory wrote, OSError. For a moment also NotFoundError without a chain,
        HistoryTrimmedError if the chain no longer holds it, StopNotFoundError for an unknown checkpoint,
        ValueError for a time without a time zone. After a failure or a cancellation, `path` is unchanged or
        complete as of the opened position, and the chain is unchanged or ends there.
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
    def open_local(
        cls, path: Path, journal: LocalJournal, *, clock_ms: Callable[[], int] = wall_clock_ms
    ) -> "Directory":
        """Rebuild the files at `path` from a local journal. Closing the directory closes the journal.

        Raises CorruptRecordError, UnknownRecordError, UnsafePathError, FileConflictError, OSError.
        """
        with Rebuilding(path) as rebuilding:
            for batch in journal.records():
                rebuilding.replay.take(batch)
            rebuilding.put()
        return cls(path, journal, clock_ms=clock_ms)

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
        """Return up to `max_bytes` bytes of a file from `offset` on (None: all that follow).

        It may be called from any thread. Bytes that a change is writing at the same time may be old or new.
        Raises UnsafePathError, FileNotFoundError, OSError.
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
        """Rename a file, replacing `new` if it exists. Recorded as writes of its content and a removal.

        After a crash during the rename, `old` still exists, and `new` may exist in part: rename again.
        """
        async with self._lock:
            for change in self._files.renaming(old, new):
                await self._change(change)
            return self.end

    async def wait_synced(self, position: Position | None = None) -> None:
        """Wait until the change that ends at `position` (None: all changes) is synced on the quorum.

        Raises FencedError.
        """
        await self.writer.wait_synced(position)

    async def checkpoint(self, number: int, step: int = 0) -> Position:
        """Record the current state as checkpoint `number`, to restore it with `restore(..,
        at=AtCheckpoint(number))`.

        step: the step of the checkpoint, for `AtStep(step)`. The caller chooses both. Numbers must increase,
        and steps must not decrease. Return the position just past the record.

        Raises LocalProtocolError if they are out of order or the journal is of version 0, and the errors of a
        change.
        """
        if not self.writer.marks:
            raise LocalProtocolError("a journal of version 0 has no checkpoints", remedy="write version 1")
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
        """Delete the history before a moment (`journal.files.trimming`). This cannot be undone.

        Every moment from `before` on can still be restored. name: the name of this directory in the store.

        Returns the deleted segments after a new segment on the quorum has released them; members delete them
        in the background. Raises the errors of `plan_trim`, and LocalProtocolError for a local journal. After
        a failure or a cancellation the directory may have to be opened again. Only released segments are
        deleted.
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
        if self.writer.marks and (mark := self._marks.due()) is not None:
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
                await (
                    self.writer.wait_synced()
                )  # R14: the snapshot is whole before anything below it is deleted
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

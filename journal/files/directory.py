"""A directory whose changes go through a journal, so that it can be made again anywhere, as of any moment.

Rules of this file: each change is recorded, then applied to this machine's files. Those are a cache: whoever
opens the directory makes them anew from the journal, which mends what a crash left between the two, and takes
back what was applied and never recorded on the quorum. Files are read as files; changing them in another way
than here is undone by the next opening.

The journal grows by segments; where a restore would read more than `recovery_bytes_max`, a snapshot of all
files begins the next one. Nothing is deleted but by `trim`: every moment stays restorable until then.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import trio

from dos_protocol.errors import LocalProtocolError
from journal.chain import take_over
from journal.core.file_ops import FileOp, FileTruncate, FileWrite
from journal.core.position import Position
from journal.core.record import Record
from journal.files.changing import ChangingFiles
from journal.files.local_journal import LocalJournal
from journal.files.marks import TimeMarks
from journal.files.moments import Moment, stop_at
from journal.files.rebuilding import Rebuilding
from journal.files.trimming import TrimPlan, trim
from journal.limits import files_segment_bytes_max, recovery_bytes_max
from journal.ops import Op
from journal.ports import ClaimPort, StorePort
from journal.reading import read_plain_batches
from journal.scratch import Scratch
from journal.writer import ChainWriter

FILES_CHAIN = "files"


class Recorder(Protocol):
    """What changes are recorded with: a `ChainWriter`, or a `LocalJournal`."""

    @property
    def end(self) -> Position: ...

    @property
    def bytes_since_snapshot(self) -> int: ...

    @property
    def marks(self) -> bool:
        """Whether records can say what time it is."""
        ...

    @property
    def rolls(self) -> bool:
        """Whether the journal goes on in new segments."""
        ...

    def append(self, record: Record) -> Position: ...

    async def wait_room(self) -> None: ...

    async def wait_synced(self, position: Position | None = None) -> None: ...

    async def roll(self, snapshot: Iterable[Record] | None = None) -> None: ...

    async def aclose(self) -> None: ...


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


class Directory:
    """A journaled directory: see the module. Make it with `open`; an async context manager that closes it.

        async with store.claim("app.w0000", epoch) as claim:
            async with await Directory.open(Path("data"), claim) as directory:
                await directory.append("log.txt", b"hello\\n")
                await directory.wait_synced()

    path: where the files are. writer: of a chain, or a journal on this machine, whose end is the state of
    these files. Paths of files are relative to `path`, divided by "/"; directories are made and removed with
    the files in them. Methods may be called from several tasks: one change is made at a time.

    Changes raise UnsafePathError and FileConflictError, with nothing recorded; FencedError if the claim is
    lost; LocalFilesError if the operating system refused what was recorded already: then nothing more can be
    done but to open the directory again. Cancelled, a change was made whole or not at all.
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
        self._files = ChangingFiles(path)
        self._lock = trio.Lock()
        self._marks = TimeMarks(clock_ms)
        self._recovery_bytes = recovery_bytes
        self._segment_bytes = segment_bytes
        self._segment_base = writer.end.size
        self._cut = (0, 0)
        """The last cut's number and step, as far as known."""

    @classmethod
    async def open(
        cls,
        path: Path,
        claim: ClaimPort,
        chain: str = FILES_CHAIN,
        *,
        at: Position | None = None,
        scratch: Scratch | None = None,
        recovery_bytes: int = recovery_bytes_max,
        segment_bytes: int = files_segment_bytes_max,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> "Directory":
        """Take the chain over, make the files at `path` what it says, and go on from there.

        at: go on from that position instead of the chain's end; what came after it is of no history then.
        What else lies at `path` is removed. Raises what `take_over` and reading a chain raise,
        UnsafePathError and FileConflictError for a journal that no Directory wrote, OSError. Failed or
        cancelled, `path` is as it was or whole as of the chain's end.
        """
        generation = claim.store.record.generation
        state = await take_over(claim, chain, at=at, generation=generation, scratch=scratch)
        with Rebuilding(path) as rebuilding:
            if state.segments:
                async with aclosing(read_plain_batches(claim, state, scratch=scratch)) as batches:
                    async for batch in batches:
                        rebuilding.replay.take(batch)
            predecessor = None if state.end is None else state
            writer = await ChainWriter.open(claim, chain, predecessor, generation, scratch)
            rebuilding.put()
        writer.collect_released()  # what a crash kept the one before us from deleting
        opened = cls(
            path, writer, recovery_bytes=recovery_bytes, segment_bytes=segment_bytes, clock_ms=clock_ms
        )
        opened._cut = rebuilding.replay.cut or 0, rebuilding.replay.step
        return opened

    @classmethod
    def open_local(
        cls, path: Path, journal: LocalJournal, *, clock_ms: Callable[[], int] = wall_clock_ms
    ) -> "Directory":
        """Make the files at `path` what a journal on this machine says, and go on from there. Closing the
        directory closes the journal. Raises as `open`.
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
        """Stop changing files. What was recorded goes on being synced by the claim; closing does not wait."""
        self._files.close()
        await self.writer.aclose()

    @property
    def end(self) -> Position:
        """The position just past the last change: where to restore to, to have exactly this."""
        return self.writer.end

    async def append(self, name: str, data: bytes) -> Position:
        """Add to the end of a file, which is made if it is not there; the position just past that change."""
        async with self._lock:
            return await self._change(self._files.appending(name, data))

    async def write_at(self, name: str, offset: int, data: bytes) -> Position:
        """Write over what is at `offset`, and on past the end; a hole before it reads as zeros."""
        async with self._lock:
            return await self._change(FileWrite(name, offset, data))

    async def truncate(self, name: str, length: int = 0) -> Position:
        """Make the file that long: cut off, or filled with zeros; made if it is not there."""
        async with self._lock:
            return await self._change(FileTruncate(name, length))

    async def remove(self, name: str) -> Position:
        """Remove a file. Raises FileNotFoundError, with nothing recorded, if it is not there."""
        async with self._lock:
            return await self._change(self._files.removing(name))

    async def rename(self, old: str, new: str) -> Position:
        """Give a file another name, over a file that has it: recorded as writes of its content and a removal.
        After a crash within, `old` is there still, and `new` in part or not; call it again.
        """
        async with self._lock:
            for change in self._files.renaming(old, new):
                await self._change(change)
            return self.end

    async def wait_synced(self, position: Position | None = None) -> None:
        """Until that change (None: all of them) is on the quorum, for good. Raises FencedError."""
        await self.writer.wait_synced(position)

    async def cut(self, number: int, step: int = 0) -> Position:
        """Give this moment a number, by which it can be gone back to: `restore(.., at=AtCheckpoint(number))`,
        or AtStep(step). Numbers rise, steps do not fall; they are the caller's. The position just past it.

        Raises LocalProtocolError for a number that does not rise, or a journal of version 0; as a change.
        """
        if not self.writer.marks:
            raise LocalProtocolError("a journal of version 0 has no cuts", remedy="write version 1")
        async with self._lock:
            if number <= self._cut[0] or step < self._cut[1]:
                raise LocalProtocolError(
                    f"cut {number} at step {step} after cut {self._cut[0]} at {self._cut[1]}"
                )
            await self.writer.wait_room()
            self._cut = number, step
            return self.writer.append(Record(Op.CUT, ints=(number, step)))

    async def trim(self, store: StorePort, name: str, before: Moment) -> TrimPlan:
        """Let the history before a moment go, for ever; see `journal.files.trimming`. Everything from it on
        stays restorable. name: of this directory in the store.

        Returns what goes once a new segment says so on the quorum; members delete it in the background.
        Raises as `plan_trim`, and LocalProtocolError for a journal on this machine alone. Failed or
        cancelled, the directory may have to be opened again; nothing is deleted that was not released.
        """
        if not isinstance(self.writer, ChainWriter):
            raise LocalProtocolError(f"{self.path} has its journal in one file, which is never trimmed")
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
        position = self.writer.append(record)
        self._files.apply(op)
        return position

    async def _roll_if_due(self) -> None:
        if not self.writer.rolls:
            return
        end = self.end.size
        since, live = self.writer.bytes_since_snapshot, self._files.live_bytes
        if since >= max(self._recovery_bytes - live, live, 1):
            await self.writer.roll(self._snapshot())
        elif end - self._segment_base >= self._segment_bytes:
            await self.writer.roll()
        else:
            return
        self._segment_base = end

    def _snapshot(self) -> Iterator[Record]:
        """All files, from nothing."""
        yield self._marks.now()
        yield from self._files.snapshot()

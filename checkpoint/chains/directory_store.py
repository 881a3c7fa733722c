"""The files of one operator on one worker, over a chain of their own in the worker's directory.

`open` goes to the position that a cut has of them (whatever longer or newer lies about, R13), `rebuild` makes
the files of it, `append` records a change, `cut` says where a cut lies, and `synced` waits until that is
durable on the quorum, which is what a vote says. The records are those of any journaled directory, so `dos
journal files` and `restore` read the chain. Decision 0160.

Rules of this file: it knows the chain and no operator. The files are changed elsewhere, by who hands the
records over; this class lives on the trio loop that holds the claim.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Final, NamedTuple

from checkpoint import limits
from checkpoint.core.retention import Rolling
from checkpoint.runtime import runtime, wall_time_ms
from journal import (
    ORIGIN,
    ChainState,
    ChainWriter,
    Op,
    Position,
    Record,
    Scratch,
    read_plain_batches,
    take_over,
)
from journal.core.trimming import Floor
from journal.files.marks import TimeMarks
from journal.files.rebuilding import Rebuilding
from journal.limits import chain_name_bytes_max
from journal.ports import ClaimPort

DIRECTORY_CHAIN_PREFIX: Final = "files-"
directory_name_bytes_max: Final = chain_name_bytes_max - len(DIRECTORY_CHAIN_PREFIX)
"""Of an operator that keeps files: the name of their chain has it in it."""


def directory_chain(operator: str) -> str:
    """The name of the chain of an operator's files on one worker."""
    return f"{DIRECTORY_CHAIN_PREFIX}{operator}"


class FilesAt(NamedTuple):
    """Where a cut lies in the chain, and the lowest segment that a restore of it reads."""

    position: Position
    floor: Floor


class DirectoryStore:
    """See the top of this file. Make it with `open`. Not for several tasks at once, but for `synced`."""

    def __init__(
        self,
        claim: ClaimPort,
        writer: ChainWriter,
        restored: ChainState,
        scratch: Scratch | None,
        rolling: Rolling,
    ) -> None:
        self._claim = claim
        self._writer = writer
        self._restored = restored
        self._scratch = scratch
        self._rolling = rolling
        self._marks = TimeMarks(wall_time_ms)
        self._live_bytes = 0

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        operator: str,
        *,
        at: Position | None,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
    ) -> "DirectoryStore":
        """Go to the position `at` (None: no file at all), and open a segment there.

        The claim's epoch is the incarnation. Raises what `journal.take_over` and `ChainWriter.open` raise.
        """
        name = directory_chain(operator)
        ordered = ORIGIN if at is None else at
        chain = await take_over(claim, name, at=ordered, generation=generation, scratch=scratch)
        writer = await ChainWriter.open(claim, name, chain, generation, scratch)
        return cls(claim, writer, chain, scratch, Rolling() if rolling is None else rolling)

    @property
    def replayed_bytes(self) -> int:
        """What `rebuild` reads."""
        return self._restored.bytes

    async def rebuild(self, path: Path) -> None:
        """Make the files of the position that was opened at `path`, whatever is there.

        Raises what reading a chain raises; UnsafePathError and FileConflictError for a chain that no operator
        wrote; OSError. Failed or cancelled, `path` is as it was.
        """
        with Rebuilding(path) as rebuilding:
            if self._restored.segments:
                batches = read_plain_batches(self._claim, self._restored, scratch=self._scratch)
                async with aclosing(batches):
                    async for batch in batches:
                        await runtime().in_thread(rebuilding.replay.take, batch)
            await runtime().in_thread(rebuilding.put)

    async def append(self, records: Iterable[Record]) -> None:
        """Record changes, in the order in which they are made. Returns when they are appended, not synced.
        Raises FencedError.
        """
        await self._writer.wait_room()
        mark = self._marks.due()
        if mark is not None:
            self._writer.append(mark)
        for record in records:
            self._writer.append(record)

    def cut(self, cut: int, step: int, live_bytes: int) -> FilesAt:
        """A cut lies here, at the end of that step, behind what was appended; a record says so, by which
        people find it (`cut:7`, `step:41`). live_bytes: of the files as of now. Raises FencedError.
        """
        self._live_bytes = live_bytes
        self._writer.append(Record(Op.CUT, ints=(cut, step)))
        return FilesAt(self._writer.end, self._writer.floor)

    async def synced(self, at: FilesAt) -> FilesAt:
        """Wait until all up to there is synced on the quorum. Raises FencedError."""
        await self._writer.wait_synced(at.position)
        return at

    @property
    def snapshot_due(self) -> bool:
        """Whether a restore had better not have to read all that was appended since the last snapshot."""
        if self._writer.segments > self._rolling.segments_max:
            return True
        since = self._writer.bytes_since_snapshot
        return since > max(self._rolling.snapshot_bytes_min, limits.snapshot_growth * self._live_bytes)

    async def snapshot(self, files: Callable[[], Iterable[Record]]) -> None:
        """Begin a new segment with all files, as of what was appended so far: a restore begins there.

        Raises FencedError, and what `files` raises; failed or cancelled, the chain must be opened again.
        """
        await self._writer.roll(self._marked(files()))

    def _marked(self, records: Iterable[Record]) -> Iterator[Record]:
        yield self._marks.now()
        yield from records

    async def aclose(self) -> None:
        """Stop appending."""
        await self._writer.aclose()

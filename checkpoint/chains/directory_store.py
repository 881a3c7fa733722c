"""The files of one operator on one worker, in a chain of the worker's directory. Decision 0160.

The records are those of any journaled directory, so `dos journal files` and `restore` read the chain. The
files are changed by the caller that passes the records.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

from checkpoint import limits
from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.core.records.manifest import DIRECTORY_CHAIN_PREFIX, Rolling
from checkpoint.core.region import worker_directory
from checkpoint.runtime import runtime, wall_time_ms
from journal import (
    ORIGIN,
    ChainWriter,
    Floor,
    Op,
    Position,
    Record,
    Scratch,
    inspect_chain_at,
    read_plain_batches,
)
from journal.files.directory import TimeMarks
from journal.files.tree import Rebuilding
from journal.limits import chain_name_bytes_max
from journal.ports import ClaimPort, StorePort

directory_name_bytes_max: Final = chain_name_bytes_max - len(DIRECTORY_CHAIN_PREFIX)
assert limits.operator_uid_chars_max <= directory_name_bytes_max
"""Maximum length of the name of an operator that keeps files, because its chain's name contains it."""


def directory_chain(operator: str) -> str:
    """Return the name of the chain of an operator's files on one worker."""
    return f"{DIRECTORY_CHAIN_PREFIX}{operator}"


class FilesAt(NamedTuple):
    """The position of a checkpoint in the chain, and the lowest segment that its restore reads."""

    position: Position
    floor: Floor


class DirectoryStore(ChainStore):
    """The chain of one operator's files, from `open`, on the trio loop that holds the claim. Only `synced`
    may be called from other tasks at the same time.
    """

    def __init__(self, restored: TakenChain, writer: ChainWriter, rolling: Rolling | None = None) -> None:
        super().__init__(restored, writer, rolling)
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
        """Move to the position `at` (None: no files), regardless of newer data (R13), and open a segment
        there. Raises what `journal.take_over` and `ChainWriter.open` raise.
        """
        name = directory_chain(operator)
        ordered = ORIGIN if at is None else at
        taken = await TakenChain.take(claim, name, at=ordered, generation=generation, scratch=scratch)
        return cls(taken, await taken.open(), rolling)

    async def rebuild(self, path: Path) -> None:
        """Replace `path` by the files of the opened position; if it fails or is cancelled, `path` is
        unchanged.

        Raises what reading a chain raises; UnsafePathError, FileConflictError for a foreign chain; OSError.
        """
        claim, state, _, scratch = self._restored
        await _write_files(read_plain_batches(claim, state, scratch=scratch), path)

    async def append(self, records: Iterable[Record]) -> None:
        """Record changes in the order in which they are made; returns before they are synced. Raises
        FencedError.
        """
        await self._writer.wait_room()
        mark = self._marks.due()
        if mark is not None:
            self._writer.append(mark)
        for record in records:
            self._writer.append(record)

    def checkpoint(self, checkpoint: int, step: int, live_bytes: int) -> FilesAt:
        """Record that this checkpoint lies here, at the end of `step`, for users to find. live_bytes: the
        present size of the files. Raises FencedError.
        """
        self._live_bytes = live_bytes
        self._writer.append(Record(Op.CHECKPOINT, ints=(checkpoint, step)))
        return FilesAt(self._writer.end, self._writer.floor)

    async def synced(self, at: FilesAt) -> FilesAt:
        """Wait until everything up to that position is synced on the quorum. Raises FencedError."""
        await self._writer.wait_synced(at.position)
        return at

    @property
    def snapshot_due(self) -> bool:
        """Whether so much was appended since the last snapshot that a restore should not have to read it."""
        return self._due(self._live_bytes)

    async def snapshot(self, files: Callable[[], Iterable[Record]]) -> None:
        """Start a new segment with all files, where a restore starts. Raises FencedError, and what `files`
        raises; if it fails or is cancelled, the chain must be opened again.
        """
        await self._writer.roll(self._marked(files()))

    def _marked(self, records: Iterable[Record]) -> Iterator[Record]:
        yield self._marks.now()
        yield from records


async def rebuild_files(
    store: StorePort, region: str, worker: int, operator: str, *, at: Position, path: Path
) -> None:
    """Create the files of an operator at a retained checkpoint, without a claim. Raises as `inspect_chain_at`
    and `DirectoryStore.rebuild`; then `path` is unchanged.
    """
    directory = worker_directory(region, worker)
    chain = await inspect_chain_at(store, directory, directory_chain(operator), at)
    await _write_files(read_plain_batches(store, chain, directory=directory), path)


async def _write_files(records: AsyncGenerator[Any], path: Path) -> None:
    with Rebuilding(path) as rebuilding:
        async with aclosing(records) as batches:
            async for batch in batches:
                await runtime().in_thread(rebuilding.replay.take, batch)
        await runtime().in_thread(rebuilding.put)

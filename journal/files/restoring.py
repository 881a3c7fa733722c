"""Restoring a journaled directory: the files as of a moment, on any machine. Claims nothing, changes no
store.

Rules of this file: it finds the records and hands them to a `Rebuilding`. Everything that a restored file
holds was proved by the chain's digests before the files are put in place.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from journal.chain import look_chain_at
from journal.core.file_ops import Paths
from journal.core.position import Position
from journal.files.directory import FILES_CHAIN
from journal.files.history import stretch_at
from journal.files.moments import Moment, stop_at
from journal.files.rebuilding import Rebuilding
from journal.files.replaying import FilesReplay
from journal.ports import StorePort
from journal.reading import read_plain_batches
from journal.scratch import Scratch

Progress: TypeAlias = Callable[[int, int | None], None]
"""(bytes read, bytes in all if known)"""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did. `end`: logical offset just past the last record taken; `wall_ms`: the last mark
    below it, None if there is none; `bytes_read`: of the journal."""

    end: int
    wall_ms: int | None
    records: int
    bytes_read: int


async def restore(
    into: Path,
    store: StorePort,
    directory: str,
    chain: str = FILES_CHAIN,
    *,
    at: Position | Moment = None,
    only: str | None = None,
    paths: Paths = "safe",
    scratch: Scratch | None = None,
    progress: Progress = lambda _done, _total: None,
) -> RestoreResult:
    """Make the files of that chain at `into`, which must not exist or be an empty directory.

    at: a position, a logical offset on the chain's present line of history (the last record that ends at or
    below it is the last one taken), a moment, `AtCheckpoint(7)` or `AtStep(41)` (what `Directory.cut`
    recorded), or None for the end. only: that file alone. progress: told
    (bytes read, bytes in all). Memory does not grow with the journal.

    Raises FileExistsError; NotFoundError; HistoryTrimmedError if that moment is not held any more;
    StopNotFoundError for a position at which no record ends, or a cut that is none; UnsafePathError,
    FileConflictError; what reading a chain raises. Failed or cancelled, `into` is as it was.
    """
    check_target(into)
    with Rebuilding(into, stop=stop_at(at), only=only, paths=paths) as rebuilding:
        replay = rebuilding.replay
        bytes_read = await replay_chain(
            replay, store, directory, chain, at=at, scratch=scratch, progress=progress
        )
        rebuilding.put()
    return RestoreResult(replay.end, replay.wall_ms, replay.records, bytes_read)


async def replay_chain(
    replay: FilesReplay,
    store: StorePort,
    directory: str,
    chain: str,
    *,
    at: Position | Moment = None,
    scratch: Scratch | None = None,
    progress: Progress = lambda _done, _total: None,
) -> int:
    """Hand it the records of the stretch of history in which the moment lies; the bytes that were read.

    `replay` stops by itself; reading goes on to the end of the stretch, where the digests of what was taken
    are. Nothing that it took may be used if this raises.
    """
    if isinstance(at, Position):
        state = await look_chain_at(store, directory, chain, at)
    else:
        state = await stretch_at(store, directory, chain, replay.stop)
    done = 0
    async with aclosing(read_plain_batches(store, state, directory=directory, scratch=scratch)) as batches:
        async for batch in batches:
            replay.take(batch)
            done = batch[-1][0] - state.segments[0].base
            progress(done, state.bytes)
    replay.finish()
    return done


def check_target(into: Path) -> None:
    """Raise FileExistsError unless files may be made there: a restore never writes over anything."""
    if into.is_symlink() or into.is_file() or (into.is_dir() and any(into.iterdir())):
        raise FileExistsError(f"{into} is there already: name a directory that does not exist, or is empty")

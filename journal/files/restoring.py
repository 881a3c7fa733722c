"""Restore a journaled directory as of a moment, on any machine. Takes no claim and does not change the store.
All bytes are verified with the chain's digests before the files are moved to the target.
"""

from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from dos_protocol.errors import NotFoundError
from journal.chain import inspect_chain_at, inspect_committed
from journal.core.chain import Position
from journal.core.file_ops import FilesReplay, Paths
from journal.files.damage import OnDamaged, check_previous, newest_whole
from journal.files.directory import FILES_CHAIN
from journal.files.history import Moment, stop_at, stretch_at
from journal.files.tree import Rebuilding
from journal.limits import listing_tries_max
from journal.ports import Progress, StorePort
from journal.reading import read_plain_batches
from journal.scratch import Scratch


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore. end: the logical offset just past the last replayed record. wall_ms: of the
    last MARK record below it. bytes_read: of the journal.
    """

    end: int
    wall_ms: int | None
    records: int
    bytes_read: int
    damage: str = ""


async def restore(
    into: Path,
    store: StorePort,
    directory: str,
    chain: str = FILES_CHAIN,
    *,
    at: Position | Moment = None,
    only: str | None = None,
    paths: Paths = "safe",
    on_damaged: OnDamaged = "fail",
    scratch: Scratch | None = None,
    progress: Progress = lambda _done, _total: None,
) -> RestoreResult:
    """Restore the files of a chain to `into`, which must not exist or be an empty directory.

    at: a position; a logical offset on the chain's current line of history, at or below which the last
    restored record ends; a time; `AtCheckpoint(7)` or `AtStep(41)`; None for the end. on_damaged: "previous"
    restores the newest whole state if the chain is damaged; the result names what is left out. It is refused
    if members are missing, because their copies may be good. Not with `at`. only: restore this file only.
    progress: called with the bytes read and the total bytes.

    Memory does not grow with the journal. Raises FileExistsError; NotFoundError; HistoryTrimmedError if the
    journal no longer holds the moment; StopNotFoundError for a position at which no record ends, or an
    unknown checkpoint; UnsafePathError, FileConflictError; the errors of reading a chain. After a failure or
    a cancellation `into` is unchanged.
    """
    check_target(into)
    damage = ""
    if on_damaged == "previous":
        check_previous(at)
        whole = await newest_whole(store, directory, chain, generation=store.record.generation)
        at, damage = whole.position, whole.damage
    tries = listing_tries_max
    while True:
        with Rebuilding(into, stop=stop_at(at), only=only, paths=paths) as rebuilding:
            replay = rebuilding.replay
            try:
                bytes_read = await replay_chain(
                    replay, store, directory, chain, at=at, scratch=scratch, progress=progress
                )
            except NotFoundError:
                # A segment that was listed is gone: the chain was trimmed meanwhile. A new list shows it.
                await inspect_committed(store, directory, chain)  # raises if there is no such chain
                tries -= 1
                if not tries:
                    raise
                continue
            rebuilding.put()
            return RestoreResult(replay.end, replay.wall_ms, replay.records, bytes_read, damage)


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
    """Pass the records of the stretch of history that holds the moment to `replay`. Return the bytes read. If
    this raises, discard everything replayed.
    """
    if isinstance(at, Position):
        state = await inspect_chain_at(store, directory, chain, at)
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
    """Raise FileExistsError unless `into` is missing or empty: a restore never overwrites anything."""
    if into.is_symlink() or into.is_file() or (into.is_dir() and any(into.iterdir())):
        raise FileExistsError(f"{into} exists already: name a directory that does not exist or is empty")

"""Journaled directories for plain threads: scripts, notebooks. No call is a coroutine.

    with (
        open_store("dos://h1,h2,h3") as store,
        store.claim("ledger", epoch, writer_id) as claim,
        open_directory(Path("ledger"), claim) as ledger,
    ):
        ledger.wait_synced(ledger.append("log.txt", b"hello\n"))

    with open_local_directory(Path("notes")) as notes:
        ...

Every call runs in a trio thread and waits for the result. Names and errors are those of `Directory` and
`restore`. Threads and interrupted calls behave as in `dos_client.blocking`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dos_client.blocking import Attribute, BlockingClaim, BlockingStore, Facade, Portal, calls, calls_plain
from journal.core.chain import Position
from journal.files import restoring
from journal.files.damage import OnDamaged
from journal.files.directory import FILES_CHAIN, Directory
from journal.files.history import Moment, TrimPlan
from journal.files.restoring import RestoreResult
from journal.limits import files_segment_bytes_max, recovery_bytes_max
from journal.local_store import LocalClaim, LocalStore, journal_beside


class BlockingDirectory(Facade[Directory]):
    """A `Directory` with blocking methods. Several threads may call them; changes are made one at a time."""

    path = Attribute[Path]()
    damage = Attribute[str]()
    end = Attribute[Position](in_run=True)
    files = calls_plain(Directory.files)
    append = calls(Directory.append)
    write_at = calls(Directory.write_at)
    truncate = calls(Directory.truncate)
    remove = calls(Directory.remove)
    rename = calls(Directory.rename)
    wait_synced = calls(Directory.wait_synced)
    checkpoint = calls(Directory.checkpoint)

    def read(self, name: str, offset: int = 0, max_bytes: int | None = None) -> bytes:
        """Read as `Directory.read` does, in this thread."""
        return self.wrapped.read(name, offset, max_bytes)

    def trim(self, store: "BlockingStore | LocalStore", name: str, before: Moment) -> TrimPlan:
        """Trim as `Directory.trim` does."""
        return self.portal.call(self.wrapped.trim, _plain(store), name, before)


@contextmanager
def open_directory(
    path: Path,
    claim: BlockingClaim,
    chain: str = FILES_CHAIN,
    *,
    at: Position | Moment = None,
    on_damaged: OnDamaged = "fail",
    recovery_bytes: int = recovery_bytes_max,
    segment_bytes: int = files_segment_bytes_max,
) -> Iterator[BlockingDirectory]:
    """Open a directory in a store as `Directory.open` does, from a thread."""
    opening = partial(
        Directory.open,
        at=at,
        on_damaged=on_damaged,
        recovery_bytes=recovery_bytes,
        segment_bytes=segment_bytes,
    )
    with _closing(claim.portal, claim.portal.call(opening, path, claim.claim, chain)) as directory:
        yield directory


@contextmanager
def open_local_directory(
    path: Path,
    journal: Path | None = None,
    chain: str = FILES_CHAIN,
    *,
    at: Position | Moment = None,
    on_damaged: OnDamaged = "fail",
    recovery_bytes: int = recovery_bytes_max,
    segment_bytes: int = files_segment_bytes_max,
) -> Iterator[BlockingDirectory]:
    """Open a directory whose journal is on the disk of this machine, from a thread. journal: the directory of
    its segments, created if missing; None for PATH.journal. Raises the errors of `LocalClaim` and
    `Directory.open`. The end of the `with` block does not sync: call `wait_synced` first.
    """
    opening = partial(
        Directory.open,
        at=at,
        on_damaged=on_damaged,
        recovery_bytes=recovery_bytes,
        segment_bytes=segment_bytes,
    )
    with (
        Portal("dos-files") as portal,
        LocalClaim(journal or journal_beside(path)) as claim,
        _closing(portal, portal.call(opening, path, claim, chain)) as directory,
    ):
        yield directory


def restore(
    into: Path, store: "BlockingStore | LocalStore", directory: str, chain: str = FILES_CHAIN, **options: Any
) -> RestoreResult:
    """Restore files as `restore` of the trio interface does, with the same options, from a thread."""
    restoring_here = partial(restoring.restore, **options)
    if isinstance(store, BlockingStore):
        return store.portal.call(restoring_here, into, store.store, directory, chain)
    with Portal("dos-files") as portal:
        return portal.call(restoring_here, into, store, directory, chain)


@contextmanager
def _closing(portal: Portal, directory: Directory) -> Iterator[BlockingDirectory]:
    try:
        yield BlockingDirectory(portal, directory)
    finally:
        portal.call(directory.aclose)


def _plain(store: "BlockingStore | LocalStore") -> Any:
    return store.store if isinstance(store, BlockingStore) else store

"""One part of a file sink on a real disk: whose directory it is in, who may write it, its bytes.

Rules of this file: calls of the operating system. What is written, kept and cut is `files.py`'s, which knows
a file only by `PartPort`; the simulator has one of its own.

The directory belongs to one region of one store (file `_region.json` says which), because cutting back
another region's output would destroy it. Each part is locked by its writer, so that a worker being killed
cannot write after its successor has cut back; `_part-w0000.incarnation` says who wrote it last. Names that
begin with `_` are no data, as Spark has it.
"""

import fcntl
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from dataflow import limits
from dataflow.errors import SinkOwnedError, SinkWriteError
from dos_protocol.errors import CorruptDataError

OWNER_FILE: Final = "_region.json"
_lock_poll_s: Final = 0.02


class PartPort(Protocol):
    """What a file sink needs of a file. All but `close` raise OSError."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str:
        """The whole path, for people."""
        ...

    def open(self, owner: bytes) -> None:
        """Make it if it is not there, and be its only writer; again is nothing. Raises SinkOwnedError,
        SinkWriteError.
        """
        ...

    def incarnation(self) -> int:
        """The last that wrote here, 0 none. Raises CorruptDataError."""
        ...

    def set_incarnation(self, number: int) -> None:
        """On stable storage when it returns."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, count: int) -> bytes: ...

    def write(self, position: int, data: memoryview) -> int:
        """Some of it; how much."""
        ...

    def cut(self, size: int) -> None:
        """Nothing lies past that size any more, for good."""
        ...

    def sync(self) -> None:
        """All of it is on stable storage. Called from another thread. Raises SinkWriteError too: closed."""
        ...

    def close(self) -> None: ...


class PartFile:
    """A part in a directory of this machine."""

    def __init__(self, directory: str, name: str) -> None:
        self.name = name
        self._directory = Path(directory)
        self._path = self._directory / name
        self._fence = self._directory / f"_{self._path.stem}.incarnation"
        self._fd = -1
        self._syncing = threading.Lock()
        """Held while syncing: a descriptor closed meanwhile could come back as another file's."""

    @property
    def where(self) -> str:
        return str(self._path)

    def open(self, owner: bytes) -> None:
        if self._fd >= 0:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        own_directory(self._directory, owner, part_files(self._directory), self._path.stem)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, self._path)
            sync_directory(self._directory)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def incarnation(self) -> int:
        try:
            text = self._fence.read_bytes()
        except FileNotFoundError:
            return 0
        if not text.isdigit():
            raise CorruptDataError(str(self._fence), 0, "the number of an incarnation", repr(text[:40]))
        return int(text)

    def set_incarnation(self, number: int) -> None:
        replace_durably(self._fence, str(number).encode())

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, count: int) -> bytes:
        return os.pread(self._fd, count, position)

    def write(self, position: int, data: memoryview) -> int:
        return os.pwrite(self._fd, data, position)

    def cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def sync(self) -> None:
        with self._syncing:
            if self._fd < 0:
                raise SinkWriteError(f"output {self.where!r} was closed before it was synced")
            os.fsync(self._fd)

    def close(self) -> None:
        with self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _lock(fd: int, path: Path) -> None:
    """The writer's lock, gone with its process; waits for a predecessor that is on its way out."""
    deadline = time.monotonic() + limits.sink_lock_wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SinkWriteError(
                    f"output {str(path)!r} is still locked by another process after "
                    f"{limits.sink_lock_wait_s:g} s",
                    remedy="end the process that writes it",
                ) from None
            time.sleep(_lock_poll_s)
        else:
            return


def part_files(directory: Path) -> list[str]:
    """The names of all parts in a directory, of any owner."""
    return sorted(path.name for path in directory.glob("part-w*.tsv"))


def check_owner(directory: Path, owner: bytes, unmarked: Sequence[str], remedy: str = "") -> bool:
    """Whether the directory is marked as the owner's. Raises SinkOwnedError if it is marked as another's, or
    not marked and holds output (`unmarked`, names of files). Changes nothing.
    """
    marker = directory / OWNER_FILE
    try:
        found = marker.read_bytes()
    except FileNotFoundError:
        if unmarked and not marker.exists():
            raise SinkOwnedError(
                f"output directory {str(directory)!r} has {unmarked[0]} and no {OWNER_FILE}: another run or"
                " program wrote it",
                remedy=remedy,
            ) from None
        return False
    if found != owner:
        raise SinkOwnedError(
            f"output directory {str(directory)!r} belongs to {found.decode(errors='replace')}, "
            f"not to {owner.decode()}",
            remedy=remedy,
        )
    return True


def own_directory(
    directory: Path, owner: bytes, unmarked: Sequence[str], unique: str, remedy: str = ""
) -> None:
    """Mark the directory as the owner's, durably, or find that it is. The first of several workers marks it.
    `unique`: what no other worker of this process calls its file meanwhile. Raises as `check_owner`.
    """
    if check_owner(directory, owner, unmarked, remedy):
        return
    mine = directory / f"_{unique}.{os.getpid()}.tmp"
    with mine.open("wb") as file:
        file.write(owner)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(mine, directory / OWNER_FILE)  # whole or not at all, and only once
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    check_owner(directory, owner, (), remedy)


def replace_durably(path: Path, content: bytes) -> None:
    """The file holds this, whole, on stable storage; its only writer calls it. Raises OSError."""
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Names made, changed and removed in it are on stable storage. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

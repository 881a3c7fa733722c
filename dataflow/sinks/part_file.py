"""One part of a file sink on a real disk: the owner of its directory, its lock, its bytes.

This file calls the operating system. `files.py` decides what is written, kept and truncated; it knows a file
only by `PartPort`, which the simulator implements too.

The directory belongs to one region of one store (file `_region.json` holds the owner), because truncating
another region's output would destroy it. Each part is locked by its writer, so that a worker that is being
killed cannot write after its successor has truncated the file. `_part-w0000.incarnation` holds the
incarnation that wrote the part last. Names that begin with `_` are not data, as in Spark.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from dataflow import limits
from dataflow.errors import SchemaError, SinkOwnedError, SinkWriteError
from dos_protocol.errors import CorruptDataError

OWNER_FILE: Final = "_region.json"
_lock_poll_s: Final = 0.02


class PartPort(Protocol):
    """The file operations that a file sink needs. All except `close` raise OSError."""

    @property
    def name(self) -> str: ...

    @property
    def full_path(self) -> str:
        """The full path, for messages."""
        ...

    def open(self, owner: bytes) -> None:
        """Create the file if it does not exist, and lock it. A second call has no effect. Raises
        SinkOwnedError, SinkWriteError.
        """
        ...

    def incarnation(self) -> int:
        """Return the last incarnation that wrote here, 0 if none. Raises CorruptDataError."""
        ...

    def set_incarnation(self, number: int) -> None:
        """Record the incarnation durably."""
        ...

    def size(self) -> int: ...

    def read(self, position: int, count: int) -> bytes: ...

    def write(self, position: int, data: memoryview) -> int:
        """Write at least one byte of `data`. Return the number of bytes written."""
        ...

    def cut(self, size: int) -> None:
        """Truncate the file to `size`, durably."""
        ...

    def sync(self) -> None:
        """Make all bytes durable. Called from another thread. Also raises SinkWriteError if the file was
        closed.
        """
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
        """Held during a sync: if the descriptor were closed meanwhile, its number could be reused for another
        file.
        """

    @property
    def full_path(self) -> str:
        return str(self._path)

    def open(self, owner: bytes) -> None:
        if self._fd >= 0:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        own_directory(self._directory, owner, partial(part_files, self._directory), self._path.stem)
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
                raise SinkWriteError(f"output {self.full_path!r} was closed before it was synced")
            os.fsync(self._fd)

    def close(self) -> None:
        with self._syncing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def _lock(fd: int, path: Path) -> None:
    """Take the writer's lock, which ends with the process. Waits for a previous writer that is
    terminating.
    """
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


def refuse_url(sink: str, directory: "str | os.PathLike[str]") -> None:
    """Raise SchemaError for a URL, which would otherwise become a relative path on the hosts of workers."""
    if "://" in os.fspath(directory):
        raise SchemaError(
            f"{sink} writes to a directory, and {os.fspath(directory)!r} is a URL; use S3Sink for a bucket"
            " (s3://BUCKET/PREFIX)"
        )


def part_files(directory: Path) -> list[str]:
    """Return the names of all parts in a directory, of any owner."""
    return sorted(path.name for path in directory.glob("part-w*.tsv"))


def check_owner(
    directory: Path, owner: bytes, unmarked: Callable[[], Sequence[str]], remedy: str = ""
) -> bool:
    """Return whether the directory is marked as the owner's.

    Raises SinkOwnedError if it is marked as another owner's, or is not marked and holds output (`unmarked`:
    returns names of files; not called for a marked directory, which may hold very many). Changes nothing.
    """
    marker = directory / OWNER_FILE
    try:
        recorded = marker.read_bytes()
    except FileNotFoundError:
        files = unmarked()
        if files and not marker.exists():
            raise SinkOwnedError(
                f"output directory {str(directory)!r} has {files[0]} but no {OWNER_FILE}: another run or"
                " program wrote it",
                remedy=remedy,
            ) from None
        return False
    if recorded != owner:
        raise SinkOwnedError(
            f"output directory {str(directory)!r} belongs to {recorded.decode(errors='replace')}, "
            f"not to {owner.decode()}",
            remedy=remedy,
        )
    return True


def own_directory(
    directory: Path, owner: bytes, unmarked: Callable[[], Sequence[str]], unique: str, remedy: str = ""
) -> None:
    """Mark the directory durably as the owner's unless it is already. The first of several workers marks it.

    `unique`: a file name that no other worker of this process uses at the same time. Raises as `check_owner`.
    """
    if check_owner(directory, owner, unmarked, remedy):
        return
    mine = directory / f"_{unique}.{os.getpid()}.tmp"
    with mine.open("wb") as file:  # synced before it is linked, so that no owner file is ever incomplete
        file.write(owner)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(mine, directory / OWNER_FILE)  # link() is atomic and fails if the name exists
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    check_owner(directory, owner, tuple, remedy)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically and durably. Only its single writer may call this. Raises
    OSError.
    """
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names in a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""One part of a file sink on a real disk: the owner of its directory, its lock, its bytes.

This file calls the operating system. `files.py` decides what is written, kept and truncated; it knows a file
only by `PartPort`, which the simulator implements too.

The directory belongs to one region of one store (file `_region.json` holds the owner), because truncating
another region's output would destroy it. Each part is locked by its writer, so that a worker that is being
killed cannot write after its successor has truncated the file. `_part-w0000.incarnation` holds the
incarnation that wrote the part last, `_part-w0000.before-41` a part that was set aside when the loss of
output up to checkpoint 41 was accepted. Names that begin with `_` are not data, as in Spark.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from dataflow import limits
from dataflow.errors import OutputLostError, SchemaError, SinkOwnedError, SinkWriteError
from dataflow.sinks.base import other_owner
from dos_protocol.errors import CorruptDataError
from dos_tls import make_durable_folders, replace_durably, sync_folder

logger = logging.getLogger("dos.dataflow")

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

    def checkpoint(self, size: int) -> None:
        """Truncate the file to `size`, durably."""
        ...

    def set_aside(self, checkpoint: int) -> None:
        """Keep the content of the file under another name, and begin it anew. The second time for a
        checkpoint, remove the content: it was written after the first time.
        """
        ...

    def sync(self) -> None:
        """Make all bytes durable. Called from another thread. Also raises SinkWriteError if the file was
        closed.
        """
        ...

    def close(self) -> None: ...


class PartFile:
    """A part in a directory of this machine."""

    def __init__(self, directory: str, name: str, waits: Callable[[str], None] = lambda _: None) -> None:
        self.name = name
        self._waits = waits
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
        make_durable_folders(self._directory)
        own_directory(self._directory, owner, partial(part_files, self._directory), self._path.stem)
        self._fd = self._locked()

    def _locked(self) -> int:
        """Create the file if it does not exist, and return a descriptor that holds its lock."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, self._path, self._waits)
            sync_folder(self._directory)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def incarnation(self) -> int:
        try:
            text = self._fence.read_bytes()
        except FileNotFoundError:
            return 0
        if not text.isdigit():
            raise CorruptDataError(str(self._fence), 0, "the number of an incarnation", repr(text[:40]))
        return int(text)

    def set_incarnation(self, number: int) -> None:
        replace_durably(self._fence, str(number).encode(), mode=0o666)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, count: int) -> bytes:
        return os.pread(self._fd, count, position)

    def write(self, position: int, data: memoryview) -> int:
        return os.pwrite(self._fd, data, position)

    def checkpoint(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)

    def set_aside(self, checkpoint: int) -> None:
        aside = self._directory / f"_{self._path.stem}.before-{checkpoint}"
        if aside.exists():
            self.checkpoint(0)
            return
        self._path.rename(aside)
        fresh = self._locked()
        with self._syncing:
            os.close(self._fd)
            self._fd = fresh

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


def _lock(fd: int, path: Path, waits: Callable[[str], None]) -> None:
    """Take the writer's lock, which ends with the process. Waits for a previous writer that is terminating;
    logs that it waits, and shows it in the status.
    """
    begun = time.monotonic()
    logged = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - begun
            if waited_s > limits.sink_lock_wait_s:
                raise SinkWriteError(
                    f"output {str(path)!r} is still locked by {_holder(fd)} after"
                    f" {limits.sink_lock_wait_s:g} s",
                    remedy="end the process that writes it",
                ) from None
            if waited_s >= limits.sink_lock_log_s and not logged:
                logged = True
                text = (
                    f"the lock of output {path}, held by {_holder(fd)}: a previous worker that is ending, or"
                )
                text = f"{text} one of another driver"
                logger.warning("waiting up to %g s for %s", limits.sink_lock_wait_s, text)
                waits(text)
            time.sleep(_lock_poll_s)
        else:
            if logged:
                logger.warning("output %s is locked after %.1f s", path, time.monotonic() - begun)
                waits("")
            return


def _holder(fd: int) -> str:
    """Return who holds the lock of a file, as far as this host's kernel shows it."""
    status = os.fstat(fd)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        locks = []
    # a line is: number, FLOCK, ADVISORY, WRITE, pid, device and inode, start, end
    pids = [fields[4] for fields in locks if len(fields) == 8 and fields[1] == "FLOCK" and fields[5] == file]
    known = [pid for pid in pids if pid.isdigit() and pid != "0"]  # 0 or -1: of another pid namespace
    return f"process {known[0]} of this host" if known else "another process"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Whether a person has accepted that output is lost with its host.

    `up_to`: the argument `accept_lost_output` of the sink, 0 if there is none. It applies only while a region
    continues from that checkpoint or an earlier one, so a later loss is refused again. `checkpoint`: the one
    that the region continues from.
    """

    up_to: int
    checkpoint: int

    def take(self, error: OutputLostError) -> None:
        """Log the loss if it is accepted. Otherwise raise the error, with the ways to continue."""
        if not 0 < self.checkpoint <= self.up_to:
            raise OutputLostError(
                error.where,
                error.offset,
                error.expected,
                error.found,
                "if the directory is on another host, or its disk can be attached, make it available here and"
                f" run the region again; if it is lost, pass accept_lost_output={self.checkpoint} to the sink"
                " to continue without the rows that were in it (docs/sources-and-sinks.md)",
            ) from error
        logger.warning("continuing without lost output, as accept_lost_output=%d says: %s", self.up_to, error)


def check_accepted(checkpoint: int) -> None:
    """Raise SchemaError unless this can be the number of a checkpoint, or 0."""
    if not isinstance(checkpoint, int) or isinstance(checkpoint, bool) or checkpoint < 0:
        raise SchemaError(f"accept_lost_output is the number of a checkpoint, not {checkpoint!r}")


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
        since = datetime.fromtimestamp(marker.stat().st_mtime, UTC).isoformat(" ", "seconds")
        text = other_owner(f"output directory {str(directory)!r}", recorded, owner, since)
        raise SinkOwnedError(text, remedy=remedy)
    return True


def own_directory(
    directory: Path, owner: bytes, unmarked: Callable[[], Sequence[str]], unique: str, remedy: str = ""
) -> None:
    """Mark the directory durably as the owner's unless it is already. The first of several workers marks it.

    `unique`: a file name that no other worker of this process uses at the same time. Raises as `check_owner`.
    """
    if not check_owner(directory, owner, unmarked, remedy):
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
    # Before any output, which without an owner would be another program's. A process that was killed may have
    # made the name.
    sync_folder(directory)

"""The disk interface and its real implementation: the only module of the server that touches the file system.

A path is relative to the data directory. Symbolic links are never followed, and only regular files with
exactly one name are opened. Every method may raise OSError; `failure_of` says what an error means. Nothing
here retries, and a failed `sync` is never retried anywhere.
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Protocol

from dos_protocol.digests import Buffer
from dos_server.core.vocabulary import DiskFailure
from dos_tls import make_durable_folders

# --- The meaning of disk errors. The only such table -------------------------------------------------------


logger = logging.getLogger("dos.server")

_MEANING: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), DiskFailure.NO_SPACE),
    # no free descriptor, no memory, a signal
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR), DiskFailure.TEMPORARY
    ),
    # a missing permission, which a person can restore; a file server that does not answer now
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ETIMEDOUT, errno.ESTALE), DiskFailure.TEMPORARY),
}
"""Every other error is the disk's: FAILED."""

_BEFORE_SYNC: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM})
"""Errors that opening a folder can raise and syncing it cannot."""


_DAMAGE_AT_OPEN: Final = frozenset(
    {
        *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.EBADMSG, errno.ENODATA),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        getattr(errno, "EUCLEAN", errno.EIO),  # Linux: the file system is damaged
    }
)
"""Errors of an open that say something about the file. Any other one is of the system or of its settings."""


def proves_damage(error: OSError) -> bool:
    return error.errno in _DAMAGE_AT_OPEN


def failure_of(error: OSError) -> DiskFailure:
    """Return what a disk error means for the core."""
    return _MEANING.get(error.errno or 0, DiskFailure.FAILED)


def is_temporary(error: OSError) -> bool:
    """Whether an error proves no damage and ends with its cause: the next try may succeed."""
    return failure_of(error) is DiskFailure.TEMPORARY


def preceded_sync(error: OSError) -> bool:
    """Whether a folder was not even opened for its sync. Such a sync may be retried; a failed one never."""
    return error.errno in _BEFORE_SYNC


@contextlib.contextmanager
def log_errors(what: str) -> Iterator[None]:
    """Log disk errors and suppress them, for work that no guarantee depends on."""
    try:
        yield
    except OSError as error:
        logger.warning("%s: %s", what, error)


# --- The disk ----------------------------------------------------------------------------------------------


_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_IOV_MAX: Final = 512
_FOLIO_BYTES: Final = 2 << 20
"""ext4 and XFS keep up to this much in one piece of the page cache, which is dropped whole or not at all."""


class FreeSpace(NamedTuple):
    free_bytes: int
    total_bytes: int


class Disk(Protocol):
    def names(self, folder: str) -> list[str] | None:
        """Return the names in a folder in no particular order; None if there is no such folder."""

    def make_folder(self, folder: str) -> bool:
        """Make a folder whose parent exists. False: it existed already. Its entry is not durable yet."""

    def open(self, path: str, *, create: bool) -> int:
        """Open a regular file; `create` makes it if missing. Raises FileNotFoundError otherwise."""

    def close(self, handle: int) -> None:
        """Close a handle."""

    def is_named(self, handle: int, path: str) -> bool:
        """Whether the path still names the file of the handle; otherwise what is synced through it cannot be
        found.
        """

    def why_gone(self) -> str:
        """Return why the data directory is gone (removed, moved or replaced since it was opened), or ''."""

    def size(self, handle: int) -> int:
        """Return the size of the file in bytes."""

    def read(self, handle: int, position: int, count: int) -> bytes:
        """Return `count` bytes from a position; fewer only at the end of the file."""

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        """Read synced bytes like `read`, but from the device instead of the cache if that is possible."""

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all bytes of the buffers at a position. After an error any part of them may be written."""

    def cut(self, handle: int, size: int) -> None:
        """Truncate or extend the file to `size` bytes."""

    def sync(self, handle: int) -> None:
        """Put data and size on stable storage. After an error the file cannot be trusted."""

    def sync_folder(self, folder: str) -> None:
        """Put a folder's entries on stable storage."""

    def rename(self, folder: str, old: str, new: str) -> None:
        """Rename a file within a folder, atomically replacing a file that has the new name."""

    def remove(self, path: str) -> None:
        """Remove the name of a file."""

    def free_space(self) -> FreeSpace:
        """Return the free space. User quotas are not considered."""


class RealDisk:
    file_flags = _FILE_FLAGS

    def __init__(self, root: Path) -> None:
        """Open the data directory. Makes it and its missing parents, each durable in its own parent."""
        make_durable_folders(root, mode=0o700)
        self._open_root(root)

    def _open_root(self, root: Path) -> None:
        self._path = root.absolute()
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._opened: dict[int, tuple[int, int]] = {}
        """Device and inode of each open file, so that `is_named` costs one system call."""
        self._locked_roots: dict[int, int] = {}
        self._spares: list[int] = []
        self._spares_guard = Lock()
        self._reserve_spares()

    def shut(self) -> None:
        self._release_spares()
        os.close(self._root)

    def _reserve_spares(self) -> None:
        while len(self._spares) < 2:
            self._spares.append(os.dup(self._root))

    def _release_spares(self) -> None:
        while self._spares:
            os.close(self._spares.pop())

    def lock(self, name: str) -> int:
        """Lock the data directory. Raises BlockingIOError if another process holds the lock; `close` releases
        it.
        """
        # The directory, because its lock file could be removed; and the file, because some file systems
        # cannot lock a folder.
        return self._lock_both(lambda: self.open(name, create=True))

    def _lock_both(self, open_file: Callable[[], int]) -> int:
        root = _locked(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root))
        try:
            handle = _locked(open_file())
        except FileNotFoundError:
            return root
        except BaseException:
            os.close(root)
            raise
        self._locked_roots[handle] = root
        return handle

    def why_gone(self) -> str:
        try:
            current = os.stat(self._path)  # noqa: PTH116 - symmetric to fstat
        except (FileNotFoundError, NotADirectoryError):
            return f"data directory {self._path} was removed or moved while it was served"
        except OSError:
            return ""  # the directory cannot be examined now, which proves nothing
        if os.path.samestat(current, os.fstat(self._root)):
            return ""
        return f"data directory {self._path} was replaced by another one while it was served"

    @contextlib.contextmanager
    def _folder(self, folder: str) -> Iterator[int]:
        current = os.dup(self._root)
        try:
            for part in folder.split("/") if folder else ():
                inner = os.open(part, _FOLDER_FLAGS, dir_fd=current)
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    def names(self, folder: str) -> list[str] | None:
        try:
            with self._folder(folder) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208 - by descriptor, so that no link is followed
        except FileNotFoundError:
            return None

    def make_folder(self, folder: str) -> bool:
        parent, _, name = folder.rpartition("/")
        with self._folder(parent) as descriptor:
            try:
                os.mkdir(name, 0o700, dir_fd=descriptor)
            except FileExistsError:
                return False
        return True

    def open(self, path: str, *, create: bool) -> int:
        folder, _, name = path.rpartition("/")
        flags = self.file_flags | (os.O_CREAT if create else 0)
        with self._folder(folder) as descriptor:
            handle = os.open(name, flags, 0o600, dir_fd=descriptor)
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            os.close(handle)
            raise OSError(errno.ENXIO, "not a regular file with one name", path)
        self._opened[handle] = (about.st_dev, about.st_ino)
        return handle

    def close(self, handle: int) -> None:
        self._opened.pop(handle, None)
        root = self._locked_roots.pop(handle, None)
        os.close(handle)
        if root is not None:
            os.close(root)

    def is_named(self, handle: int, path: str) -> bool:
        try:
            about = os.stat(path, dir_fd=self._root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (about.st_dev, about.st_ino) == self._opened[handle]

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, position: int, count: int) -> bytes:
        data = os.pread(handle, count, position)
        if len(data) in (0, count):
            return data
        parts = [data]
        while data and (left := count - sum(map(len, parts))):
            data = os.pread(handle, left, position + count - left)
            parts.append(data)
        return b"".join(parts)

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        """Read past the page cache, which would hide bit rot for as long as it holds the pages."""
        # Dropped before and afterwards, to leave the cache to other readers. The kernel drops only clean
        # pages, and only folios that are wholly in the range, hence the rounding. O_DIRECT needs aligned
        # memory and another descriptor, some file systems refuse it, and for clean pages it achieves no more.
        start = position - position % _FOLIO_BYTES
        length = -(-(position + count - start) // _FOLIO_BYTES) * _FOLIO_BYTES
        _drop_cached(handle, start, length)
        data = self.read(handle, position, count)
        _drop_cached(handle, start, length)
        return data

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        write_all(os, handle, position, buffers)

    def cut(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_folder(self, folder: str) -> None:
        try:
            self._sync_folder(folder)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # A file that waits for the sync of its folder stays open. If such files have taken all
            # descriptors, each of them waits for one more; so one sync at a time uses the reserved ones.
            with self._spares_guard:
                self._release_spares()
                try:
                    self._sync_folder(folder)
                finally:
                    with contextlib.suppress(OSError):  # they are in use elsewhere: retry the next time
                        self._reserve_spares()

    def _sync_folder(self, folder: str) -> None:
        with self._folder(folder) as descriptor:
            os.fsync(descriptor)

    def rename(self, folder: str, old: str, new: str) -> None:
        with self._folder(folder) as descriptor:
            os.rename(old, new, src_dir_fd=descriptor, dst_dir_fd=descriptor)

    def remove(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        with self._folder(folder) as descriptor:
            os.unlink(name, dir_fd=descriptor)

    def free_space(self) -> FreeSpace:
        about = os.fstatvfs(self._root)
        return FreeSpace(about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize)


class WriteCalls(Protocol):
    """The two positioned write calls, which may write fewer bytes than requested."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int, /) -> int: ...

    def pwrite(self, handle: int, data: Buffer, position: int, /) -> int: ...


def write_all(system: WriteCalls, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
    """Write all bytes at a position, in as many calls as it takes. Raises OSError; any part may then be in
    the file.
    """
    for start in range(0, len(buffers), _IOV_MAX):
        group = buffers[start : start + _IOV_MAX]
        total = sum(map(len, group))
        written = system.pwritev(handle, group, position)
        if written < total:  # a full disk, a signal or a limit: continue, and get the error if there is one
            _write_rest(system, handle, position, b"".join(group), written)
        position += total


def _write_rest(system: WriteCalls, handle: int, position: int, data: bytes, written: int) -> None:
    view = memoryview(data)
    while written < len(data):
        count = system.pwrite(handle, view[written:], position + written)
        if count == 0:
            raise OSError(errno.ENOSPC, "the disk accepted no more bytes")
        written += count


def _locked(handle: int) -> int:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError as error:  # NFS cannot lock a folder: there only the lock file excludes other servers
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            os.close(handle)
            raise
        logger.warning("the data directory cannot be locked (%s): never remove its lock file", error)
    return handle


def _drop_cached(handle: int, start: int, length: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, start, length, os.POSIX_FADV_DONTNEED)


def path_argument(text: str) -> Path:
    """Return the path given to a command. Raises ValueError for an empty one: an unset variable in a script
    must not mean the working directory.
    """
    if not text:
        raise ValueError("the path is empty: give a directory, or . for the working directory")
    return Path(text)


# --- Small files, replaced whole: after a crash one is the old or the new, never a mixture ------------------


def read_file(disk: Disk, path: str) -> bytes | None:
    try:
        handle = disk.open(path, create=False)
    except FileNotFoundError:
        return None
    try:
        return disk.read(handle, 0, disk.size(handle))
    finally:
        disk.close(handle)


def replace_file(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Replace a file atomically: temporary file, write, sync, rename, sync of the folder."""
    temporary = f".{name}.new" if not name.startswith(".") else f"{name}.new"
    handle = disk.open(f"{folder}/{temporary}" if folder else temporary, create=True)
    try:
        disk.cut(handle, 0)
        disk.write(handle, 0, [data])
        disk.sync(handle)  # before the rename: a crash must never leave an empty file under the final name
    finally:
        disk.close(handle)
    disk.rename(folder, temporary, name)
    disk.sync_folder(folder)  # the caller acts on the new content, which a power cut could still take back

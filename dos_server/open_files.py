"""The open files of objects: one handle per object, and a bounded number of them.

An object keeps the same handle from its first write to its last sync, because the kernel reports a failed
write-back only to handles that were open at the time. Only files that are unused and synced are closed, least
recently used first.
"""

import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from dos_server.disk import Disk
from dos_server.limits import open_files_max


@dataclass
class OpenFile:
    """An open object. It may be closed only when it has no users and every write was synced.

    `writes`: writes that have ended; `synced`: how many of them a sync covers; `failed`: a sync failed.
    """

    handle: int
    users: int = 0
    writes: int = 0
    synced: int = 0
    failed: bool = False
    forgotten: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)


class OpenFiles:
    """The open files of a data directory, by path. Thread-safe."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, OpenFile] = {}
        self._guard = threading.Lock()

    def use(self, path: str, *, create: bool = False) -> "FileUse":
        """Return a context manager for the file at a path, opened if needed. Raises as `Disk.open`."""
        return FileUse(self, path, create=create)

    def take(self, path: str, *, create: bool) -> OpenFile:
        """Begin to use a file; `leave` ends the use."""
        with self._guard:
            file = self._files.pop(path, None)
            if file is None:
                file = OpenFile(self._disk.open(path, create=create))
            self._files[path] = file
            file.users += 1
        return file

    def leave(self, file: OpenFile) -> None:
        """End one use of a file."""
        with self._guard:
            file.users -= 1
            if file.forgotten and not file.users:
                self._disk.close(file.handle)
            if len(self._files) > open_files_max:
                self._close_surplus()

    def sync(self, file: OpenFile) -> None:
        """Put every write that has ended on stable storage.

        Raises OSError. The sync must then never be retried: the kernel drops what it failed to write, and the
        next sync would succeed. Syncs of a file run one at a time, because undoing a refused write also
        syncs, and the kernel reports an error to only one of them.
        """
        with file.guard:
            if file.failed:
                raise OSError(errno.EIO, "an earlier sync of the file failed")
            writes = file.writes
            try:
                self._disk.sync(file.handle)
            except OSError:
                file.failed = True
                raise
            file.synced = writes

    def forget_folder(self, folder: str) -> None:
        """Close every file in a folder; one that is in use closes when its use ends."""
        with self._guard:
            for path in [path for path in self._files if path.rpartition("/")[0] == folder]:
                self._forget(path)

    def forget(self, path: str) -> None:
        """Close the file of a path if it is open; if it is in use, when its use ends."""
        with self._guard:
            if path in self._files:
                self._forget(path)

    def _forget(self, path: str) -> None:
        file = self._files.pop(path)
        file.forgotten = True
        if not file.users:
            self._disk.close(file.handle)

    def unsynced(self) -> Iterator[tuple[str, OpenFile]]:
        """Return files that have unsynced writes and whose sync has not failed."""
        return (
            (path, file)
            for path, file in self._files.items()
            if file.writes != file.synced and not file.failed
        )

    def _close_surplus(self) -> None:
        """Close unused files above the limit. The caller holds the guard."""
        surplus = len(self._files) - open_files_max
        idle = [path for path, file in self._files.items() if not file.users and file.writes == file.synced]
        for path in idle[:surplus]:
            self._disk.close(self._files.pop(path).handle)


class FileUse:
    """The context manager of `OpenFiles.use`: a class for speed, because every append enters and exits it."""

    __slots__ = ("_create", "_file", "_files", "_path")

    def __init__(self, files: OpenFiles, path: str, *, create: bool) -> None:
        self._files = files
        self._path = path
        self._create = create

    def __enter__(self) -> OpenFile:
        self._file = self._files.take(self._path, create=self._create)
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.leave(self._file)

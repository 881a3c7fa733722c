"""The open files of objects: one handle an object, kept as long as it must be, and not more of them than
allowed.

The same handle serves from the first write to the last sync, because the kernel tells a failed write-back to
the handles that were open and to nobody later. Only what is unused and synced may be closed; unused for
longest goes first.
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
    """An open object. It may be closed only when nobody uses it and every write of it was synced.

    `writes`: how many ended, `synced`: how many of them a sync covers; `failed`: a sync of it failed.
    """

    handle: int
    users: int = 0
    writes: int = 0
    synced: int = 0
    failed: bool = False
    forgotten: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)


class OpenFiles:
    """See the module. Callable from several threads."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, OpenFile] = {}
        self._guard = threading.Lock()

    def use(self, path: str, *, create: bool = False) -> "FileUse":
        """For `with`: the file at the path, open until the block ends and longer.

        Raises what `open` raises.
        """
        return FileUse(self, path, create=create)

    def take(self, path: str, *, create: bool) -> OpenFile:
        """What `use` begins with; it ends with `leave`."""
        with self._guard:
            file = self._files.pop(path, None)
            if file is None:
                file = OpenFile(self._disk.open(path, create=create))
            self._files[path] = file
            file.users += 1
        return file

    def leave(self, file: OpenFile) -> None:
        """The file is not used any more by one that took it."""
        with self._guard:
            file.users -= 1
            if file.forgotten and not file.users:
                self._disk.close(file.handle)
            if len(self._files) > open_files_max:
                self._close_surplus()

    def sync(self, file: OpenFile) -> None:
        """Put every write that has ended on stable storage. Raises OSError: it must never be tried again,
        because the kernel forgets what it failed to write, and the next sync would succeed.

        One at a time: a write that is taken back syncs too, and the kernel tells an error to one of them.
        """
        with file.guard:
            if file.failed:
                raise OSError(errno.EIO, "a sync of it failed before")
            writes = file.writes
            try:
                self._disk.sync(file.handle)
            except OSError:
                file.failed = True
                raise
            file.synced = writes

    def forget_folder(self, folder: str) -> None:
        """Close every file in the folder, those in use when their use ends."""
        with self._guard:
            for path in [path for path in self._files if path.rpartition("/")[0] == folder]:
                self._forget(path)

    def forget(self, path: str) -> None:
        """Close the file, if it is open; when it is in use, at the end of that."""
        with self._guard:
            if path in self._files:
                self._forget(path)

    def _forget(self, path: str) -> None:
        file = self._files.pop(path)
        file.forgotten = True
        if not file.users:
            self._disk.close(file.handle)

    def unsynced(self) -> Iterator[tuple[str, OpenFile]]:
        """Files with writes that no sync covered, and that one may still cover."""
        return (
            (path, file)
            for path, file in self._files.items()
            if file.writes != file.synced and not file.failed
        )

    def _close_surplus(self) -> None:
        """The guard is held."""
        surplus = len(self._files) - open_files_max
        idle = [path for path, file in self._files.items() if not file.users and file.writes == file.synced]
        for path in idle[:surplus]:
            self._disk.close(self._files.pop(path).handle)


class FileUse:
    """See `OpenFiles.use`. A class, because it is begun and ended with every append."""

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

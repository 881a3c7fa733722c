"""A data directory as the next start of its server would make it from the group log; nothing is written.

After a crash the newest acknowledged bytes of objects may be in the log only. The replay of a start runs here
on a view that keeps its changes in memory, so that tools read what a server would serve.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dos_protocol.digests import Buffer
from dos_server import small_files
from dos_server.log_start import end_log
from dos_server.offline.disk import PathSeen, ReadOnlyDisk

_T = TypeVar("_T")


@dataclass
class _File:
    """An open or changed file: what is on the disk up to `kept` bytes, and changes, the last one on top.

    `base`: its handle on the disk; None if it was made by the replay.
    """

    path: str
    base: int | None = None
    kept: int = 0
    size: int = 0
    changes: list[tuple[int, bytes]] = field(default_factory=list)


class LogView(ReadOnlyDisk):
    """The data directory, opened read-only, with what `replay` makes of it in memory."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._changed: dict[str, _File | None] = {}
        """By path; None: removed."""
        self._made: set[str] = set()
        self._views: dict[int, _File] = {}
        self._last = 0
        self._replayed = False

    def replay(self) -> None:
        """Replay the group log if it is in use. Raises CorruptDataError if a start would refuse it; then the
        view is that of the files alone.
        """
        if small_files.read(self, "identity") is None:
            return  # there is no server whose log it could be
        self._replayed = True
        try:
            end_log(self)
        except BaseException:
            self._replayed = False
            self._forget()
            raise

    def shut(self) -> None:
        self._forget()
        super().shut()

    def _forget(self) -> None:
        bases = {one.base for one in (*self._changed.values(), *self._views.values()) if one is not None}
        for base in bases - {None}:
            assert base is not None
            super().close(base)
        self._changed.clear()
        self._views.clear()
        self._made.clear()

    # What tools call

    def names(self, folder: str) -> list[str] | None:
        found = super().names(folder)
        if found is None and folder not in self._made:
            return None
        return sorted(self._merged(folder, dict.fromkeys(found or ())))

    def entries(self, folder: str) -> dict[str, PathSeen]:
        found = {} if super().names(folder) is None and folder in self._made else super().entries(folder)
        merged = self._merged(folder, found)
        return {name: seen for name, seen in sorted(merged.items()) if seen is not None}

    def _merged(self, folder: str, found: dict[str, _T]) -> dict[str, _T | PathSeen]:
        merged: dict[str, _T | PathSeen] = dict(found)
        for path, file in self._changed.items():
            above, _, name = path.rpartition("/")
            if above == folder:
                merged.pop(name, None)
                if file is not None:
                    merged[name] = PathSeen("", False, file.size)  # noqa: FBT003
        for path in self._made:
            above, _, name = path.rpartition("/")
            if above == folder:
                merged.setdefault(name, PathSeen("", True, 0))  # noqa: FBT003
        return merged

    def open(self, path: str, *, create: bool) -> int:
        if not self._replayed:
            return super().open(path, create=create)
        file = self._changed.get(path)
        if file is None:
            file = self._opened_below(path, create=create)
        self._last -= 1  # no descriptor has such a number
        self._views[self._last] = file
        return self._last

    def _opened_below(self, path: str, *, create: bool) -> _File:
        try:
            if path in self._changed:
                raise FileNotFoundError(2, "removed by the replay", path)
            base = super().open(path, create=False)
        except FileNotFoundError:
            if not create:
                raise
            file = self._changed[path] = _File(path)
            return file
        size = super().size(base)
        return _File(path, base, size, size)

    def close(self, handle: int) -> None:
        file = self._views.pop(handle, None)
        if file is None:
            super().close(handle)
        elif file.base is not None and not self._is_kept(file):
            super().close(file.base)

    def _is_kept(self, file: _File) -> bool:
        return any(one is file for one in (*self._changed.values(), *self._views.values()))

    def size(self, handle: int) -> int:
        return self._views[handle].size if handle in self._views else super().size(handle)

    def read(self, handle: int, position: int, count: int) -> bytes:
        if handle not in self._views:
            return super().read(handle, position, count)
        file = self._views[handle]
        count = max(0, min(count, file.size - position))
        data = bytearray()
        if file.base is not None and position < file.kept:
            data += super().read(file.base, position, min(count, file.kept - position))
        data += bytes(count - len(data))
        for begin, change in file.changes:
            first, last = max(begin, position), min(begin + len(change), position + count)
            if first < last:
                data[first - position : last - position] = change[first - begin : last - begin]
        return bytes(data)

    def read_stored(self, handle: int, position: int, count: int) -> bytes:
        return self.read(handle, position, count)

    # What the replay calls

    def write(self, handle: int, position: int, buffers: Sequence[Buffer]) -> None:
        file = self._views[handle]
        data = b"".join(buffers)
        file.changes.append((position, data))
        file.size = max(file.size, position + len(data))
        self._changed[file.path] = file

    def cut(self, handle: int, size: int) -> None:
        file = self._views[handle]
        file.kept, file.size = min(file.kept, size), size
        file.changes = [(begin, data[: size - begin]) for begin, data in file.changes if begin < size]
        self._changed[file.path] = file

    def sync(self, handle: int) -> None:
        """Do nothing."""

    def sync_folder(self, folder: str) -> None:
        """Do nothing."""

    def make_folder(self, folder: str) -> bool:
        if super().names(folder) is not None:
            return False
        self._made.add(folder)
        return True

    def rename(self, folder: str, old: str, new: str) -> None:
        before, after = (f"{folder}/{name}" if folder else name for name in (old, new))
        handle = self.open(before, create=False)
        moved = self._views.pop(handle)
        self._changed[before], self._changed[after] = None, moved
        moved.path = after

    def remove(self, path: str) -> None:
        self.close(self.open(path, create=False))
        self._changed[path] = None

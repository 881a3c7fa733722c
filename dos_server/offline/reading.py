"""Reads the objects in the data directory of a server that is not running, like a store of that one server.

- Nothing is changed. The lock is held, so no server can start meanwhile.
- An object is what the start of the server would accept of it (`core.files.recovery.judge`), after a replay
  of the group log in memory.
- One disk does not know what a quorum had. A directory with a damaged or lost object is refused as a whole
  (R4): it may have held more than can be read. A torn tail is left out, with a warning.
"""

import logging
import os
import stat
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptError, LocalProtocolError, NotFoundError
from dos_protocol.limits import MIB
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import is_name
from dos_protocol.store_record import Member, StoreRecord, decode_store_record
from dos_server.core.files import findings, records
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import NO_CLAIM, OBJECTS, ObjectMark
from dos_server.core.files.recovery import RecoveredObject, judge, lost
from dos_server.core.files.scan import DamagedExtentError, ReadAt, ReadWindow, payload_of, walk
from dos_server.disk import RealDisk, is_temporary, proves_damage, read_file
from dos_server.log_files import end_log
from dos_server.marks import check_folder_of_objects, check_register, registered

# --- Read-only access. Nothing changes a byte, a name or a time; it works on a read-only mount -------------


_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class PathSeen(NamedTuple):
    """The kind of a directory entry, links not followed. `odd`: why it is no plain file, or ''."""

    odd: str
    is_folder: bool
    file_bytes: int


class ReadOnlyDisk(RealDisk):
    """A data directory opened read-only. Raises OSError, FileNotFoundError if it is missing."""

    file_flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, root: Path) -> None:
        self._open_root(root)

    def lock_existing(self, name: str) -> int:
        """Exclude servers as `lock` does, but without creating a lock file. Raises BlockingIOError if one
        runs. On a file system that cannot lock a folder, check for a lock file again at the end.
        """
        return self._lock_both(lambda: self.open(name, create=False))

    def entries(self, folder: str) -> dict[str, PathSeen]:
        with self._folder(folder) as descriptor:
            found = {}
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - by descriptor: no link is followed
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                odd = _KINDS.get(stat.S_IFMT(about.st_mode), "")
                if not odd and about.st_nlink != 1:
                    odd = f"a file with {about.st_nlink} names (hard links)"
                found[name] = PathSeen(odd, stat.S_ISDIR(about.st_mode), about.st_size)
            return found


# --- The data directory as the next start would make it from the group log ---------------------------------


_T = TypeVar("_T")


@dataclass
class _File:
    """An open or changed file: what is on the disk up to `kept` bytes, and changes, the last one on top."""

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
        """Replay the group log if it is in use. Raises CorruptDataError if a start would refuse it."""
        if read_file(self, "identity") is None:
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
        elif file.base is not None and all(
            one is not file for one in (*self._changed.values(), *self._views.values())
        ):
            super().close(file.base)

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


# --- The data directory as a store -------------------------------------------------------------------------


logger: Final = logging.getLogger("dos.offline")
_AHEAD_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class DirectoryOnDisk:
    """The objects and the claim of a directory, as held by the only member."""

    answers: Mapping[bytes, Mapping[str, ObjectInfo]]
    epochs: Mapping[bytes, tuple[int, bytes]]
    filled: Mapping[bytes, Mapping[str, ObjectInfo]] = field(default_factory=dict)

    @property
    def epoch_seen(self) -> int:
        return max((epoch for epoch, _ in self.epochs.values()), default=0)


class DataDirectory:
    """A data directory as a store; a context manager. Raises LocalProtocolError if there is none or a server
    uses it, CorruptDataError, OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logged: set[str] = set()

    def __enter__(self) -> Self:
        self._disk = LogView(self._root)
        try:
            self._lock = self._disk.lock_existing("lock")
            try:
                self._disk.replay()
                self._server_id, self.record = self._read_identity()
            except BaseException:
                self._disk.close(self._lock)
                raise
        except BlockingIOError as error:
            self._disk.shut()
            raise LocalProtocolError(
                f"data directory {self._root} is in use by a server",
                remedy="name the server, dos://HOST/DIRECTORY/NAME, or stop it",
            ) from error
        except BaseException:
            self._disk.shut()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disk.close(self._lock)
        self._disk.shut()

    def _read_identity(self) -> tuple[bytes, StoreRecord]:
        identity = read_file(self._disk, "identity")
        if identity is None:
            raise LocalProtocolError(f"{self._root} is not a data directory: it has no identity")
        server_id = records.decode_identity(identity, "identity")
        check_folder_of_objects(self._disk)
        check_register(self._disk)
        store = read_file(self._disk, "store")
        record = decode_store_record(store) if store is not None else None
        store_id, generation = (record.store_id, record.generation) if record else (server_id, 1)
        return server_id, StoreRecord(store_id, generation, 1, (Member(server_id, "this-disk:1"),))

    async def inspect(self, directory: str) -> DirectoryOnDisk:
        """Return the objects of a directory; none if there is no such directory. Raises CorruptError, which
        names the first damaged object; CorruptDataError for a damaged claim; OSError.
        """
        path = f"{OBJECTS}/{directory}"
        folders = self._disk.entries(OBJECTS)
        mark = (registered(self._disk) or {}).get(directory)
        if mark is not None and (mark.damaged or directory not in folders):
            raise CorruptError(
                f"{path} in {self._root} was lost: its folder is missing, or was at some time",
                remedy="read it from the other servers of the store",
            )
        if not is_name(directory) or directory not in folders:
            return DirectoryOnDisk({self._server_id: {}}, {})
        if not folders[directory].is_folder:
            raise CorruptError(f"{path} is {folders[directory].odd or 'a file'}, not a folder")
        claim = read_file(self._disk, f"{path}/.claim")
        held = NO_CLAIM if claim is None else records.decode_claim(claim, f"{path}/.claim")
        marks = self._marks(path)
        entries = {name: seen for name, seen in self._disk.entries(path).items() if is_name(name)}
        names = sorted(name for name in entries.keys() | marks.keys() if not self._removed(path, name))
        # An object that is missing because of damage must not be taken for one that was never written.
        damaged = [self._damage(directory, name, entries.get(name)) for name in names]
        self._refuse_damage(directory, [one for one in damaged if one])
        found = {name: self._recovered(directory, name) for name in names}
        known = mark.synced if mark is not None else 0
        epoch_max = max((one.epoch_max for one in found.values()), default=known)
        records.check_claim(held, f"{path}/.claim", max(epoch_max, known))
        objects = {
            name: ObjectInfo(name, one.size, one.size, one.fold.value, corrupt=False)
            for name, one in found.items()
        }
        return DirectoryOnDisk({self._server_id: objects}, {self._server_id: (held.epoch, held.writer_id)})

    def _damage(self, directory: str, name: str, seen: PathSeen | None) -> str:
        place, mark = f"{directory}/{name}", self._marks(f"{OBJECTS}/{directory}").get(name)
        if seen is None or seen.odd:
            finding = findings.of_lost(place, mark, seen.odd if seen else "no file")
            return findings.one_line(finding)
        found = self._recovered(directory, name)
        about = findings.of_object(place, found, seen.file_bytes, mark)
        if found.corrupt:
            return findings.one_line(about or findings.of_lost(place, mark, "a file that cannot be read"))
        if about is not None and place not in self._logged:
            self._logged.add(place)
            logger.warning("torn tail: %s", findings.one_line(about))
        return ""

    def _refuse_damage(self, directory: str, damaged: list[str]) -> None:
        if damaged:
            more = f"; and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            raise CorruptError(
                f"{directory} in {self._root} is damaged: {damaged[0]}{more}",
                remedy=f"read it from the other servers of the store; `dos fsck {self._root}` lists all",
            )

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        """Return some bytes from `offset`, b"" at the end. Raises NotFoundError, CorruptError."""
        with closing(self._pieces(directory, name, offset, offset + max_bytes)) as pieces:
            return next(pieces, b"")

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: object = None
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes from `offset` to `end`, or to the end of the sound bytes. Raises as `read`."""
        del seen
        with closing(self._pieces(directory, name, offset, end)) as pieces:
            for piece in pieces:
                yield piece

    def _pieces(self, directory: str, name: str, offset: int, end: int | None) -> Generator[bytes]:
        path = f"{OBJECTS}/{directory}"
        if self._removed(path, name):
            raise NotFoundError(f"{self._root} has no object {directory}/{name}")
        found = self._recovered(directory, name)
        if found.corrupt and (end is None or end > found.size):
            raise CorruptError(f"{directory}/{name} is damaged from byte {found.size} on", actual=found.size)
        try:
            handle = self._disk.open(f"{path}/{name}", create=False)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self._root} has no object {directory}/{name}") from error
        try:
            last = found.size if end is None else min(end, found.size)
            window = ReadWindow(self._reader(handle), _AHEAD_BYTES)
            seed = object_seed(directory, name)
            if offset >= last:
                return
            for located in walk(window, seed, found.index.find(offset), offset):
                payload = payload_of(window, located)
                if payload is None:
                    raise CorruptError(f"{directory}/{name} is damaged at byte {located.header.offset}")
                begin = located.header.offset
                yield bytes(payload[max(offset - begin, 0) : last - begin])
                if located.header.end >= last:
                    return
        except DamagedExtentError as damage:
            raise CorruptError(f"{directory}/{name} is damaged: {damage}") from damage
        finally:
            self._disk.close(handle)

    @lru_cache(maxsize=4096)  # noqa: B019 - one command reads one directory and exits
    def _recovered(self, directory: str, name: str) -> RecoveredObject:
        """Return what the next start would make of the object. Raises OSError if it cannot be examined."""
        path = f"{OBJECTS}/{directory}"
        mark = self._marks(path).get(name)
        durable = mark.synced if mark is not None else 0
        try:
            handle = self._disk.open(f"{path}/{name}", create=False)
        except FileNotFoundError as error:
            if mark is None:
                raise NotFoundError(f"{self._root} has no object {directory}/{name}") from error
            return lost(durable)
        except OSError as error:
            if not proves_damage(error):
                raise
            return lost(durable)
        try:
            return judge(self._reader(handle), self._disk.size(handle), object_seed(directory, name), mark)
        except OSError as error:
            if is_temporary(error):
                raise
            return lost(durable)
        finally:
            self._disk.close(handle)

    def _removed(self, path: str, name: str) -> bool:
        mark = self._marks(path).get(name)
        return mark is not None and mark.removed

    @lru_cache(maxsize=64)  # noqa: B019 - as above
    def _marks(self, path: str) -> dict[str, ObjectMark]:
        data = read_file(self._disk, f"{path}/.marks") or b""
        return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}

    def _reader(self, handle: int) -> ReadAt:
        return lambda position, count: self._disk.read(handle, position, count)

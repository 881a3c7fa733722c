"""Reads the objects in the data directory of a server that is not running, like a store of that one server.

- Nothing is changed. The lock is held, so no server can start meanwhile.
- An object is what the start of the server would accept of it (`core.recovery_scan.judge`). Every extent that
  is returned is verified.
- One disk does not know what a quorum had: of a store of three it shows what reached this disk.
- A directory with a damaged or lost object is refused as a whole, as clients refuse the answer of such a
  member (R4): it may have held more than can be read.
- A torn tail is left out, with a warning in the log.

It has what journal readers need of a store: `inspect`, `read`, `stream` and `record`. They read the disk
synchronously, in the calling task.
"""

import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dos_protocol.errors import CorruptError, LocalProtocolError, NotFoundError
from dos_protocol.limits import MIB
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import is_name
from dos_protocol.store_record import Member, StoreRecord, decode_store_record
from dos_server import small_files
from dos_server.core.files import findings, records
from dos_server.core.files.extent import object_seed
from dos_server.core.files.records import NO_CLAIM, ObjectMark
from dos_server.core.files.scan import DamagedExtentError, ReadAt, ReadWindow, payload_of, walk
from dos_server.core.layout import OBJECTS
from dos_server.core.recovery_scan import RecoveredObject, judge, lost
from dos_server.directory_register import check_folder_of_objects, check_register, registered
from dos_server.disk_errors import is_temporary, proves_damage
from dos_server.offline.disk import PathSeen
from dos_server.offline.log_view import LogView

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
    """A data directory as a store; a context manager.

    Raises LocalProtocolError if there is no data directory or a server uses it; CorruptDataError if a record
    of the server is damaged; OSError.
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
        identity = small_files.read(self._disk, "identity")
        if identity is None:
            raise LocalProtocolError(f"{self._root} is not a data directory: it has no identity")
        server_id = records.decode_identity(identity, "identity")
        check_folder_of_objects(self._disk)
        check_register(self._disk)
        store = small_files.read(self._disk, "store")
        record = decode_store_record(store) if store is not None else None
        store_id, generation = (record.store_id, record.generation) if record else (server_id, 1)
        return server_id, StoreRecord(store_id, generation, 1, (Member(server_id, "this-disk:1"),))

    async def inspect(self, directory: str) -> DirectoryOnDisk:
        """Return the objects of a directory; none if there is no such directory.

        Raises CorruptError, which names the first damaged object: an object that is missing because of damage
        must not be taken for one that was never written. Raises CorruptDataError for a damaged claim,
        OSError.
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
        claim = small_files.read(self._disk, f"{path}/.claim")
        held = NO_CLAIM if claim is None else records.decode_claim(claim, f"{path}/.claim")
        marks = self._marks(path)
        entries = {name: seen for name, seen in self._disk.entries(path).items() if is_name(name)}
        names = sorted(name for name in entries.keys() | marks.keys() if not self._removed(path, name))
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
        """Return a description of an object's damage, or '' if it is sound. Logs a torn tail, once."""
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
        data = small_files.read(self._disk, f"{path}/.marks") or b""
        return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}

    def _reader(self, handle: int) -> ReadAt:
        return lambda position, count: self._disk.read(handle, position, count)

"""The objects in the data directory of a server that does not run, as a store of that one server gives them.

Rules of this file: nothing is changed, and no server may have the directory: the lock is held meanwhile. What
counts of an object is what the start of a server would take to be good (`core.recovery_scan.judge`); every
extent that is given is verified. One disk cannot say what a quorum had: of a store of three it tells what
reached this disk.

It has what readers of journals ask of a store: `look`, `read`, `stream` and `record`. They read the disk
where they are called.
"""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from dos_protocol.errors import CorruptError, LocalProtocolError, NotFoundError
from dos_protocol.limits import MIB
from dos_protocol.names import is_name
from dos_protocol.store_record import Member, StoreRecord, decode_store_record
from dos_protocol.vocabulary import ObjectInfo
from dos_server import small_files
from dos_server.core import records
from dos_server.core.extent import object_seed
from dos_server.core.layout import OBJECTS
from dos_server.core.records import NO_CLAIM, Mark
from dos_server.core.recovery_scan import Found, judge
from dos_server.core.scan import DamagedExtentError, ReadAt, Window, payload_of, walk
from dos_server.offline.disk import LookingDisk

_AHEAD_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class DirectoryOnDisk:
    """What the one member holds."""

    answers: Mapping[bytes, Mapping[str, ObjectInfo]]
    epochs: Mapping[bytes, tuple[int, bytes]]
    filled: Mapping[bytes, Mapping[str, ObjectInfo]] = field(default_factory=dict)

    @property
    def epoch_seen(self) -> int:
        return max((epoch for epoch, _ in self.epochs.values()), default=0)


class DataDirectory:
    """A context manager. Raises LocalProtocolError where there is no data directory, or a server has it;
    CorruptDataError for a record of the server's that is damaged; OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Self:
        self._disk = LookingDisk(self._root)
        try:
            self._lock = self._disk.lock_what_is_there("lock")
            self._server_id, self.record = self._who()
        except BlockingIOError as error:
            self._disk.shut()
            raise LocalProtocolError(
                f"a server is running on {self._root}",
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

    def _who(self) -> tuple[bytes, StoreRecord]:
        identity = small_files.read(self._disk, "identity")
        if identity is None:
            raise LocalProtocolError(f"{self._root} is no data directory: it has no identity")
        server_id = records.decode_identity(identity, "identity")
        store = small_files.read(self._disk, "store")
        told = decode_store_record(store) if store is not None else None
        store_id, generation = (told.store_id, told.generation) if told else (server_id, 1)
        return server_id, StoreRecord(store_id, generation, 1, (Member(server_id, "this-disk:1"),))

    async def look(self, directory: str) -> DirectoryOnDisk:
        """What there is of a directory; nothing, if there is none of that name."""
        path = f"{OBJECTS}/{directory}"
        if not is_name(directory) or directory not in self._disk.entries(OBJECTS):
            return DirectoryOnDisk({self._server_id: {}}, {})
        claim = small_files.read(self._disk, f"{path}/.claim")
        held = NO_CLAIM if claim is None else records.decode_claim(claim, f"{path}/.claim")
        marks = self._marks(path)
        found = {
            name: self._info(directory, name, marks.get(name))
            for name, seen in self._disk.entries(path).items()
            if is_name(name) and not seen.odd and not (name in marks and marks[name].removed)
        }
        epoch_max = max((self._found(directory, name).epoch_max for name in found), default=0)
        records.check_claim(held, f"{path}/.claim", epoch_max)
        return DirectoryOnDisk({self._server_id: found}, {self._server_id: (held.epoch, held.writer_id)})

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        """Some bytes from `offset` on, none at the end. Raises NotFoundError, CorruptError."""
        with closing(self._pieces(directory, name, offset, offset + max_bytes)) as pieces:
            return next(pieces, b"")

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, bookmark: object = None
    ) -> AsyncGenerator[bytes]:
        """The bytes from `offset` to `end`, or to where the good ones end. Raises as `read`."""
        del bookmark
        with closing(self._pieces(directory, name, offset, end)) as pieces:
            for piece in pieces:
                yield piece

    def _pieces(self, directory: str, name: str, offset: int, end: int | None) -> Generator[bytes]:
        path = f"{OBJECTS}/{directory}"
        try:
            handle = self._disk.open(f"{path}/{name}", create=False)
        except OSError as error:
            raise NotFoundError(f"{self._root} has no object {directory}/{name}") from error
        try:
            found = self._found(directory, name)
            last = found.size if end is None else min(end, found.size)
            window = Window(self._reader(handle), _AHEAD_BYTES)
            seed = object_seed(directory, name)
            if offset >= last:
                return
            for placed in walk(window, seed, found.index.find(offset), offset):
                payload = payload_of(window, placed)
                if payload is None:
                    raise CorruptError(f"{directory}/{name} is damaged at {placed.header.offset}")
                begin = placed.header.offset
                yield bytes(payload[max(offset - begin, 0) : last - begin])
                if placed.header.end >= last:
                    return
        except DamagedExtentError as damage:
            raise CorruptError(f"{directory}/{name} is damaged: {damage}") from damage
        finally:
            self._disk.close(handle)

    def _info(self, directory: str, name: str, mark: Mark | None) -> ObjectInfo:
        found = self._found(directory, name)
        damaged = found.corrupt or (mark is not None and mark.poisoned)
        return ObjectInfo(name, found.size, found.size, found.fold.value, corrupt=damaged)

    @lru_cache(maxsize=4096)  # noqa: B019 - one command reads one directory, and ends
    def _found(self, directory: str, name: str) -> Found:
        path = f"{OBJECTS}/{directory}"
        handle = self._disk.open(f"{path}/{name}", create=False)
        try:
            mark = self._marks(path).get(name)
            seed = object_seed(directory, name)
            return judge(self._reader(handle), self._disk.size(handle), seed, mark)
        finally:
            self._disk.close(handle)

    @lru_cache(maxsize=64)  # noqa: B019 - as above
    def _marks(self, path: str) -> dict[str, Mark]:
        data = small_files.read(self._disk, f"{path}/.marks") or b""
        return {mark.name: mark for mark in records.decode_marks(data) if mark is not None}

    def _reader(self, handle: int) -> ReadAt:
        return lambda position, count: self._disk.read(handle, position, count)

"""Journals on the disk of this machine: a directory with one file for each segment of a chain, or, as in the
original service, one file of records of version 0 (`LocalJournal`).

The disk is a store of one member: `LocalClaim` is the claim of its writer, `LocalStore` what readers use, and
the chain code is that of any store. After a power cut, all that was synced is there.

    ledger.journal/                                   locked (flock) by the process that writes
        files.0000000000000003.0000000000000000       a segment: the bytes of the object of that name
        .mirrored.0000000000000004.00000000000012c0   empty: a mirror needs this segment and all above it
"""

import fcntl
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import trio

from dos_client import Bookmark
from dos_client.errors import MissingDataError
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import ClosedError, CorruptDataError, LocalProtocolError, NotFoundError
from dos_protocol.limits import id_bytes
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import Member, StoreRecord
from dos_tls import make_durable_folders, sync_folder
from journal.core.chain import Floor, Position, SegmentName, parse_segment_name
from journal.core.errors import LocalFilesError, TornRecordError
from journal.core.record import Record, RecordDecoder, encode_v0
from journal.limits import scratch_read_bytes_max, start_read_bytes_max
from journal.ports import DirectoryEntries, LocalCopyPort

_DISK: Final = b"\x01" * id_bytes
"""The id of the only member: the disk."""
_RECORD: Final = StoreRecord(_DISK, 1, 1, (Member(_DISK, "this machine:0"),))
_MIRRORED: Final = "mirrored"
_REMEDY: Final = "fix what the operating system reports, then open the journal again"


class LocalStore:
    """The reader of one directory of segments. The name of the directory that its methods receive is ignored.
    It sees what the files hold, synced or not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> StoreRecord:
        return _RECORD

    def segments(self) -> list[SegmentName]:
        """Return the segments of all chains, the highest epoch and base first. Raises OSError."""
        found = (parse_segment_name(one.name) for one in self.path.iterdir())
        return sorted((one for one in found if one is not None), key=lambda one: one.order, reverse=True)

    async def inspect(self, directory: str) -> DirectoryEntries:
        del directory
        await trio.lowlevel.checkpoint()
        segments = self.segments()
        # One writer follows another, so what is here was written under the claim of the newest segment that
        # begins. A segment without a whole start is that of an opening that crashed.
        epoch = next((one.epoch for one in segments if _begins(self.path / str(one))), 0)
        objects = {}
        for one in segments:
            with suppress(FileNotFoundError):  # its writer has trimmed the chain meanwhile
                objects[str(one)] = _info(self.path / str(one))
        return DirectoryEntries({_DISK: objects}, {}, {_DISK: (epoch, b"")})

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        del directory
        await trio.lowlevel.checkpoint()
        try:
            with (self.path / name).open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max_bytes, offset)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.path} has no segment {name}") from error

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        del seen
        while end is None or offset < end:
            wanted = scratch_read_bytes_max if end is None else min(end - offset, scratch_read_bytes_max)
            data = await self.read(directory, name, offset, wanted)
            if not data:
                return
            yield data
            offset += len(data)

    # --- mirrors --------------------------------------------------------------------------------------------

    def mirrored(self) -> Floor | None:
        """Return the lowest segment that a mirror still needs; None without a mirror. Raises OSError."""
        found = [parse_segment_name(name[1:]) for name in self._records_of_mirrors()]
        return min((one.order for one in found if one is not None), default=None)

    def set_mirrored(self, floor: Floor | None) -> None:
        """Keep the segments from `floor` on, because a mirror needs them; None: there is no mirror."""
        # A crash leaves the former record or the new one, never none: the journal would delete the only copy.
        new = None if floor is None else f".{SegmentName(_MIRRORED, *floor)}"
        old = [name for name in self._records_of_mirrors() if name != new]
        if new is not None:
            (self.path / new).touch()
            sync_folder(self.path)  # the new record is there before the former one is deleted
        for name in old:
            (self.path / name).unlink(missing_ok=True)

    def _records_of_mirrors(self) -> list[str]:
        return [one.name for one in self.path.glob(f".{_MIRRORED}.*")]


class LocalClaim:
    """The right to write the chains of one directory of this machine, created if missing. A context manager
    that closes it. Not for several threads.

    Raises LocalProtocolError if another process or claim writes the directory, OSError. Appended bytes are in
    the page cache until `wait_synced`; closing does not sync. After a failure nothing more is accepted.
    """

    def __init__(self, path: Path) -> None:
        self.store = LocalStore(path)
        self.writer_id = secrets.token_bytes(id_bytes)
        self.lost = None
        self.failure: LocalFilesError | None = None
        make_durable_folders(path)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._objects: dict[str, LocalObject] = {}
        try:
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LocalProtocolError(
                    f"the journal {path} is being written by another process or claim",
                    remedy="close that one",
                ) from error
            # Above every segment. An opening that crashed before it created one has used the same epoch,
            # which no byte shows.
            segments = self.store.segments()
            self.epoch = max((one.epoch for one in segments), default=0) + 1
            self.answers: Mapping[bytes, Mapping[str, ObjectInfo]] = {_DISK: _listed(path, segments)}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LocalClaim":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for one in self._objects.values():
            one.close()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    async def wait_all(self, timeout_s: float) -> bool:
        del timeout_s
        await trio.lowlevel.checkpoint()
        return True

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        del member
        return await self.store.read("", name, offset, max_bytes)

    async def settle(self, name: str, size: int, digest: int, local: LocalCopyPort | None = None) -> None:
        """Sync the first `size` bytes of a segment. Raises MissingDataError, ClosedError, LocalFilesError."""
        del local
        self.check_open()
        path = self.store.path / name
        found = await trio.to_thread.run_sync(digest_of, path, size)
        # The page cache may have lost what a crash of the machine did not leave: only the digest tells.
        if (found.size, found.value) != (size, digest):
            raise MissingDataError(
                f"{path} has {found.size} of {size} bytes, with prefix digest {found.value:016x} instead of"
                f" {digest:016x}"
            )
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self.sync(handle, path)
        finally:
            os.close(handle)

    def open_object(self, name: str, local: LocalCopyPort | None = None) -> "LocalObject":
        """Create a segment. Raises ClosedError, LocalFilesError."""
        del local
        self.check_open()
        try:
            self._objects[name] = LocalObject(self, self.store.path / name)
        except OSError as error:
            self.fail(f"cannot create {self.store.path / name}: {error}", error)
        return self._objects[name]

    def collect(self, garbage: Callable[[str], bool]) -> None:
        """Delete the segments for which `garbage` is true, except those that a mirror needs; a later call
        deletes the rest. Raises OSError.
        """
        self.check_open()
        mirrored = self.store.mirrored()
        for one in self.store.segments():
            # What a mirror has not copied is the only copy: deleted now, the store would have a hole there.
            if garbage(str(one)) and (mirrored is None or one.order < mirrored):
                (self.store.path / str(one)).unlink()

    # --- for the objects ------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.failure is not None:
            raise ClosedError(
                f"{self.store.path} is closed: {self.failure.args[0]}", remedy=self.failure.remedy
            )
        if self._directory < 0:
            raise ClosedError(f"{self.store.path} is closed")

    def fail(self, text: str, error: OSError) -> NoReturn:
        # After a failed write or sync, what the page cache shows may not be on the disk (reliability rows 4,
        # 5).
        self.failure = LocalFilesError(text, remedy=_REMEDY)
        raise self.failure from error

    async def sync(self, file: int, path: Path) -> None:
        try:
            await trio.to_thread.run_sync(os.fsync, file)
            await trio.to_thread.run_sync(os.fsync, self._directory)
        except OSError as error:
            self.fail(f"cannot sync {path}: {error}", error)


def journal_beside(path: Path) -> Path:
    """Return the place of the journal of a directory of files, unless another one is chosen."""
    return path.with_name(f"{path.name}.journal")


class LocalObject:
    def __init__(self, claim: LocalClaim, path: Path) -> None:
        self._claim = claim
        self._path = path
        self._digest = PrefixDigest()
        self._sealed = False
        self._syncing = trio.Lock()
        self.synced = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    @property
    def size(self) -> int:
        return self._digest.size

    @property
    def digest(self) -> int:
        return self._digest.value

    def append(self, data: bytes) -> int:
        self._claim.check_open()
        if self._sealed:
            raise ClosedError(f"{self._path} is sealed")
        try:
            _write(self._file, data, self.size)
        except OSError as error:
            self._claim.fail(f"cannot write {self._path}: {error}", error)
        self._digest.update(data)
        return self.size

    async def wait_synced(self, size: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.synced < size:
            async with self._syncing:
                self._claim.check_open()
                written = self.size
                if self.synced < size:
                    await self._claim.sync(self._file, self._path)
                    self.synced = (
                        written  # as of before the sync: what was written meanwhile may not be in it
                    )

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()
        self._claim.check_open()

    def seal(self) -> None:
        """Append nothing more. The file is closed with the claim, because it may not be synced yet."""
        self._sealed = True
        if self.synced == self.size:
            self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _info(path: Path, digest: int = 0) -> ObjectInfo:
    size = path.stat().st_size
    return ObjectInfo(path.name, size, size, digest)


def _listed(path: Path, segments: list[SegmentName]) -> dict[str, ObjectInfo]:
    # Only what can be the head of a chain needs a digest: the highest segment with a whole start, and those
    # above it. What is below, the chain itself names with its digest.
    listed: dict[str, ObjectInfo] = {}
    headed: set[str] = set()
    for segment in segments:
        file = path / str(segment)
        info = _info(file)
        if segment.chain not in headed:
            info = _info(file, digest_of(file, info.synced).value)
            if _begins(file):
                headed.add(segment.chain)
        listed[str(segment)] = info
    return listed


def _begins(path: Path) -> bool:
    """Return whether the first record of a segment is whole. Bytes that are not a record count as one."""
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        try:
            return bool(RecordDecoder(where=path.name).feed(file.read(start_read_bytes_max)))
        except CorruptDataError:
            return True  # damage, which the walk reports
    return False


def digest_of(path: Path, size: int) -> PrefixDigest:
    """Return the digest of the first `size` bytes of a file, or of all if it has fewer."""
    digest = PrefixDigest()
    with path.open("rb", buffering=0) as file:
        while data := file.read(min(scratch_read_bytes_max, size - digest.size)):
            digest.update(data)
    return digest


logger = logging.getLogger("dos.journal")


class LocalJournal:
    """The journal of the original service: one local file of records of version 0. A context manager.

    It has no checksums, no times and no checkpoints: use `LocalClaim` for what is new. Opening creates the
    file or truncates a torn last record. Raises CorruptRecordError, UnknownRecordError; LocalProtocolError
    for a file of version 1; OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = PrefixDigest()
        self._broken: LocalFilesError | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            sync_folder(path.parent)  # the name of a new file
            self._truncate_torn_end()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "LocalJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def aclose(self) -> None:
        self.close()

    @property
    def end(self) -> Position:
        """The position just past the last record. The epoch is 0: one file has one line of history."""
        return Position(0, self._digest.size, self._digest.value)

    def append(self, record: Record) -> Position:
        """Append a record and return the position just past it. Raises LocalProtocolError, ClosedError;
        LocalFilesError closes the journal, and the next opening finds out whether the record is there.
        """
        self._check_open()
        data = encode_v0(record)
        try:
            _write(self._file, data, self._digest.size)
        except OSError as error:
            raise self._fail(f"cannot write {self.path}: {error}") from error
        self._digest.update(data)
        return self.end

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_synced(self, position: Position | None = None) -> None:
        """Wait until the whole journal is on stable storage here. Raises ClosedError, LocalFilesError."""
        del position  # a sync is of the whole file
        self._check_open()
        try:
            await trio.to_thread.run_sync(os.fsync, self._file)
        except OSError as error:
            raise self._fail(f"cannot sync {self.path}: {error}") from error

    def records(self) -> Iterator[list[tuple[int, Record]]]:
        """Yield all records in batches, each with the offset just past it. Raises the errors of opening."""
        decoder = RecordDecoder(0, where=self.path.name)
        for chunk in self._chunks():
            yield decoder.feed(chunk)

    def _truncate_torn_end(self) -> None:
        decoder = RecordDecoder(None, where=self.path.name)
        for chunk in self._chunks():
            decoder.feed(chunk)
        torn = decoder.finish()
        if torn is not None and not isinstance(torn, TornRecordError):
            raise torn
        if decoder.version:
            raise LocalProtocolError(f"{self.path} has records of version 1", remedy="use another file")
        if torn is not None:
            logger.warning("%s: truncated to %d bytes: %s", self.path, decoder.offset, torn)
            os.ftruncate(self._file, decoder.offset)
        for chunk in self._chunks():
            self._digest.update(chunk)

    def _chunks(self) -> Iterator[bytes]:
        at = 0
        while chunk := os.pread(self._file, scratch_read_bytes_max, at):
            at += len(chunk)
            yield chunk

    def _check_open(self) -> None:
        if self._broken is not None:
            raise ClosedError(f"{self.path} is closed: {self._broken.args[0]}", remedy=self._broken.remedy)
        if self._file < 0:
            raise ClosedError(f"{self.path} is closed")

    def _fail(self, text: str) -> LocalFilesError:
        self._broken = LocalFilesError(text, remedy=_REMEDY)
        self.close()
        return self._broken

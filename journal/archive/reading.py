"""Read an archived chain through the interface of a store, alone or together with the servers.

Every block is checked against its SHA-256 before its bytes are returned. All archived bytes are committed, so
an archive is a store of one member, whose claim still has the epoch of the chain's last archived segment
(R10).
"""

import functools
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Final, TypeVar

import trio

from dos_client import Bookmark
from dos_client.errors import QuorumUnavailableError
from dos_client.tasks import Ahead
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    NotFoundError,
    PastEndError,
    PoisonedError,
)
from dos_protocol.limits import u64_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import NO_ID
from dos_protocol.store_record import Member, StoreRecord
from journal.archive.bucket import Bucket
from journal.core.archive_manifest import ArchivedSegment, ArchiveManifest, decode_manifest
from journal.core.errors import ArchiveDamagedError, ArchiveDiffersError, ArchiveNotFoundError
from journal.limits import archive_block_bytes, archive_read_bytes, archive_reads_ahead_max
from journal.ports import DirectoryEntries, StorePort

Read = Callable[[], bytes]


async def in_order(reads: Iterable[Read]) -> AsyncGenerator[bytes]:
    """Yield the results of blocking reads in order, with `archive_reads_ahead_max` started ahead. Raises
    their errors.
    """
    ahead, waiting = Ahead[bytes](trio.lowlevel.spawn_system_task), iter(reads)
    try:
        while True:
            while len(ahead) <= archive_reads_ahead_max and (read := next(waiting, None)) is not None:
                ahead.begin(functools.partial(in_thread, read))
            if not len(ahead):
                return
            yield await ahead.next()
    finally:
        ahead.drop()


ARCHIVE: Final = b"archive".ljust(16, b".")
"""The server id of an archive. No server has it, so the archive never counts toward a quorum of servers."""

Result = TypeVar("Result")


def identity_of(record: StoreRecord) -> str:
    """Return the identity of a store, 32 hex digits: the store id, or the id of a server without a store."""
    return (record.members[0].server_id if record.store_id == NO_ID else record.store_id).hex()


async def in_thread(call: Callable[..., Result], *arguments: object) -> Result:
    """Make a blocking call to the bucket in a thread. A cancellation does not wait for it."""
    return await trio.to_thread.run_sync(functools.partial(call, *arguments), abandon_on_cancel=True)


def manifest_key(directory: str, chain: str) -> str:
    """Return the key of a manifest. It differs from all segments, whose names end in hexadecimal digits."""
    return f"{directory}/{chain}.archive"


async def read_manifest(bucket: Bucket, directory: str, chain: str) -> ArchiveManifest:
    """Read the manifest of a chain. Raises ArchiveNotFoundError, CorruptDataError, those of the bucket."""
    key = manifest_key(directory, chain)
    where = bucket.url_of(key)
    try:
        manifest = decode_manifest(await in_thread(bucket.get, key), where)
    except ArchiveNotFoundError as error:
        raise ArchiveNotFoundError(
            f"{bucket.url} has no archive of chain {chain} in {directory}: {error.args[0]}"
        ) from error
    if (manifest.directory, manifest.chain) != (directory, chain):
        raise ArchiveDamagedError(
            where, 0, f"the manifest of {directory}/{chain}", f"that of {manifest.directory}/{manifest.chain}"
        )
    return manifest


class ArchivedChain:
    """A store that holds one archived chain only. Reads raise ArchiveDamagedError and the errors of the
    bucket.
    """

    def __init__(self, bucket: Bucket, manifest: ArchiveManifest) -> None:
        self._bucket = bucket
        self._directory = manifest.directory
        self._line = manifest.line()
        self._epoch = manifest.end.epoch
        self._last_length = manifest.last_length
        self._newest = max(self._line, default="")  # names of one chain sort as its segments do
        self._kept: tuple[str, int, bytes] | None = None
        """The last block that was read: (segment, offset, bytes)."""
        self.store_id = manifest.store_id
        members = (Member(ARCHIVE, "archive:1"),)
        self.record = StoreRecord(ARCHIVE, u64_max, 1, members)

    def holds(self, name: str, offset: int = 0) -> bool:
        return name in self._line and offset < self._line[name].length

    def entries(self, directory: str) -> dict[str, ObjectInfo]:
        """Return the segments of the archived line of history, as a member lists its objects."""
        if directory != self._directory:
            return {}
        found = {}
        for name, segment in self._line.items():
            length = self._last_length if name == self._newest else segment.length
            found[name] = ObjectInfo(name, length, length)
        return found

    async def inspect(self, directory: str) -> DirectoryEntries:
        await trio.lowlevel.checkpoint()
        return DirectoryEntries({ARCHIVE: self.entries(directory)}, {}, {ARCHIVE: (self._epoch, b"")})

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        """Return some bytes from `offset` on. Raises NotFoundError if the object is not archived."""
        segment = self._segment(directory, name)
        if offset >= segment.length:
            return b""
        begin = offset - offset % archive_block_bytes
        if self._kept is None or self._kept[:2] != (name, begin):
            length = min(archive_block_bytes, segment.length - begin)
            self._kept = (name, begin, await in_thread(self._checked, segment, begin, length))
        return self._kept[2][offset - begin :][:max_bytes]

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes in order, up to `end` or to the end of the archived bytes."""
        del seen
        segment = self._segment(directory, name)
        end = segment.length if end is None else min(end, segment.length)
        async with aclosing(in_order(self._reads(segment, offset, end))) as parts:
            async for data in parts:
                begin = offset - offset % archive_block_bytes
                yield data[offset - begin : end - begin]
                offset = begin + len(data)

    def _reads(self, segment: ArchivedSegment, offset: int, end: int) -> Iterator[Callable[[], bytes]]:
        while offset < end:
            begin = offset - offset % archive_block_bytes
            wanted = -(-(end - begin) // archive_block_bytes) * archive_block_bytes
            length = min(archive_read_bytes, wanted, segment.length - begin)
            yield functools.partial(self._checked, segment, begin, length)
            offset = begin + length

    def _segment(self, directory: str, name: str) -> ArchivedSegment:
        if directory != self._directory or name not in self._line:
            raise NotFoundError(f"the archive at {self._bucket.url} has no {directory}/{name}")
        return self._line[name]

    def _checked(self, segment: ArchivedSegment, begin: int, length: int) -> bytes:
        key = f"{self._directory}/{segment.key}"
        try:
            data = self._bucket.get(key, begin, length)
        except ArchiveNotFoundError as error:
            raise ArchiveDamagedError(
                self._bucket.url_of(key), begin, f"{segment.length} bytes", "no such object", _HINT
            ) from error
        if len(data) != length:
            raise ArchiveDamagedError(
                self._bucket.url_of(key), begin + len(data), f"{segment.length} bytes", "the end", _HINT
            )
        view = memoryview(data)
        for at in range(0, length, archive_block_bytes):
            expected = segment.block((begin + at) // archive_block_bytes)
            found = hashlib.sha256(view[at : at + archive_block_bytes]).digest()
            if found != expected:
                expected_found = f"a block with SHA-256 {expected.hex()}", found.hex()
                raise ArchiveDamagedError(self._bucket.url_of(key), begin + at, *expected_found, _HINT)
        return data


_HINT: Final = (
    "it was changed or replaced: restore its older version, or archive the chain to another prefix while "
    "servers have the data"
)


class ServersAndArchive:
    """A store whose older segments are in an archive. Bytes are read from the servers if they can serve them,
    otherwise from the archive. Raises ArchiveDiffersError if the archive is of another store.
    """

    def __init__(self, store: StorePort, archive: ArchivedChain) -> None:
        if (identity := identity_of(store.record)) != archive.store_id:
            raise ArchiveDiffersError(
                f"the archive is of store {archive.store_id}, these servers are store {identity}",
                remedy="use the archive of this store, or read the archive alone",
            )
        self._store = store
        self._archive = archive
        self._on_servers: set[str] = set()
        self.record = store.record

    async def inspect(self, directory: str) -> DirectoryEntries:
        """List the segments of the servers, and those of the archive as a member without a vote."""
        view = await self._store.inspect(directory)
        self._on_servers = {name for objects in view.answers.values() for name in objects}
        answers = {**view.answers, ARCHIVE: self._archive.entries(directory)}
        return DirectoryEntries(answers, view.filled, view.epochs)

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        if name in self._on_servers or not self._archive.holds(name, offset):
            try:
                data = await self._store.read(directory, name, offset, max_bytes)
            except _LACKING:
                if not self._archive.holds(name, offset):
                    raise
            else:
                if data or not self._archive.holds(name, offset):
                    return data
        return await self._archive.read(directory, name, offset, max_bytes)

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        held = self._archive.holds(name, offset)
        if name in self._on_servers or not held:
            try:
                async with aclosing(self._store.stream(directory, name, offset, end, seen)) as chunks:
                    async for chunk in chunks:
                        offset += len(chunk)
                        yield chunk
            except _LACKING:
                if not self._archive.holds(name, offset):
                    raise
        if self._archive.holds(name, offset):
            async with aclosing(self._archive.stream(directory, name, offset, end)) as chunks:
                async for chunk in chunks:
                    yield chunk


_LACKING: Final[tuple[type[DosError], ...]] = (
    NotFoundError,
    PastEndError,
    CorruptError,
    PoisonedError,
    BrokenConnectionError,
    QuorumUnavailableError,
)
"""The errors of servers after which a read is tried in the archive."""

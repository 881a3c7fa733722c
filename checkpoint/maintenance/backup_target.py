"""Where backups are stored: a bucket (s3://BUCKET/PREFIX), or another store (dos://HOSTS/DIRECTORY).

Both hold the same objects (`core/records/backups.py`), each written once, only if it is not there, and
verified by digest: in a bucket by a conditional request, in a store under the claim of
`DIRECTORY.backup.REGION`. `BackupTarget` finds the regions, `BackupPlace` has the objects of one.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Final, Protocol

import trio

from checkpoint import limits
from checkpoint.core.records.backups import PIECE_PREFIX, RECORD_PREFIX
from checkpoint.errors import BackupDamagedError, BackupRefusedError
from dos_client import Claim, Store, open_store, randomness
from dos_client.urls import parse_url
from dos_client.writing.claim import end_of
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import NotFoundError
from dos_protocol.limits import payload_bytes_max
from journal import ArchiveNotFoundError
from journal.archive.bucket import SCHEME, Bucket, parse_s3_url
from journal.archive.reading import in_order, in_thread

_KINDS: Final = {RECORD_PREFIX: "records", PIECE_PREFIX: "pieces"}
_DIRECTORIES: Final = ".backup."


class BackupPlace(Protocol):
    """The objects of the backups of one region. Calls raise the errors of a bucket or of a store."""

    def where(self, name: str) -> str:
        """Return the full name of an object, for messages."""
        ...

    async def sizes(self, prefix: str) -> dict[str, int]:
        """Return the objects named `prefix`... -> their bytes; fewer for an interrupted write."""
        ...

    def contents(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        """Yield the bytes of each object, in order. Raises BackupDamagedError if there is none."""
        ...

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        """Write an object; durable and confirmed by its digest on return. Returns False, with nothing
        changed, if there are other bytes. Cancelled or failed, it is there, or not, or is listed with fewer
        bytes.
        """
        ...

    async def delete(self, names: Collection[str]) -> bool:
        """Delete objects. Return False if some of them may still be there."""
        ...


class BackupTarget(Protocol):
    """A place for the backups of any regions."""

    url: str

    async def regions(self) -> list[str]:
        """Return the names of the regions of which it has records, complete or not."""
        ...

    def place(self, region: str) -> AbstractAsyncContextManager[BackupPlace]:
        """Open the place of a region. In a store, the first write claims it until the context ends."""
        ...


async def content(place: BackupPlace, name: str) -> bytes:
    """Return the bytes of one object. Raises BackupDamagedError if there is none."""
    async with aclosing(place.contents([name])) as found:
        return await anext(found)


@asynccontextmanager
async def open_target(
    url: str, *, token: bytes = b"", endpoint: str | None = None
) -> AsyncIterator[BackupTarget]:
    """Open a target. endpoint: of a service of S3 other than AWS. token: of a store. Raises BadUrlError,
    BackupRefusedError for a store without a directory, and what opening a store raises.
    """
    if url.startswith(SCHEME):
        yield BucketTarget(await in_thread(Bucket, parse_s3_url(url, endpoint)))
        return
    parsed = parse_url(url)
    if parsed.directory is None or parsed.object is not None:
        raise BackupRefusedError(
            f"{url} is not a target of backups", remedy="write s3://BUCKET/PREFIX or dos://HOSTS/DIRECTORY"
        )
    async with open_store(type(parsed)(parsed.servers), token=token, client="dos region backup") as store:
        yield StoreTarget(store, url, parsed.directory)


# --- a bucket -------------------------------------------------------------------------------------------


class BucketTarget:
    """The backups below the path of a bucket's URL."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.url = str(bucket.url)

    async def regions(self) -> list[str]:
        keys = await in_thread(lambda: list(self._bucket.keys("records/")))
        return sorted({key.split("/")[1] for key in keys})

    @asynccontextmanager
    async def place(self, region: str) -> AsyncIterator[BackupPlace]:
        yield BucketPlace(self._bucket, region)


class BucketPlace:
    """The backups of one region in a bucket."""

    def __init__(self, bucket: Bucket, region: str) -> None:
        self._bucket = bucket
        self._region = region

    def where(self, name: str) -> str:
        return self._bucket.url_of(self._key(name))

    def _key(self, name: str) -> str:
        kind = next(kind for prefix, kind in _KINDS.items() if name.startswith(prefix))
        return f"{kind}/{self._region}/{name}"

    async def sizes(self, prefix: str) -> dict[str, int]:
        begin = f"{_KINDS[prefix]}/{self._region}/"
        listed = await in_thread(lambda: list(self._bucket.objects(begin)))
        return {one.key.removeprefix(begin): one.size for one in listed}

    def contents(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        return in_order(partial(self._get, name) for name in names)

    def _get(self, name: str) -> bytes:
        try:
            return self._bucket.get(self._key(name))
        except ArchiveNotFoundError as error:
            raise BackupDamagedError(self.where(name), "there is no such object") from error

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        return await in_thread(self._put, name, data, sha256)

    def _put(self, name: str, data: bytes, sha256: bytes) -> bool:
        version = self._bucket.put(self._key(name), data, len(data), sha256, over=None)
        # Most services return the MD5 of what they have stored. Others encrypt, or there was an object
        # already: perhaps ours, because the reply to a former attempt was lost.
        if version is not None and version.strip('"') == _md5(data):
            return True
        found = self._get(name)
        if found != data and version is not None:
            raise BackupDamagedError(
                self.where(name),
                "it has other bytes than were stored a moment ago",
                remedy="use another bucket",
            )
        return found == data

    async def delete(self, names: Collection[str]) -> bool:
        def delete_all() -> None:
            for name in names:
                self._bucket.delete(self._key(name))

        await in_thread(delete_all)
        return True


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


# --- a store --------------------------------------------------------------------------------------------


class StoreTarget:
    """The backups in a store: of each region in a directory of its own."""

    def __init__(self, store: Store, url: str, directory: str) -> None:
        self._store = store
        self._prefix = f"{directory}{_DIRECTORIES}"
        self.url = url

    async def regions(self) -> list[str]:
        names = await self._store.list_directories(self._prefix)
        return sorted(name.removeprefix(self._prefix) for name in names)

    @asynccontextmanager
    async def place(self, region: str) -> AsyncIterator[BackupPlace]:
        place = StorePlace(self._store, f"{self._prefix}{region}")
        try:
            yield place
        finally:
            with trio.CancelScope(shield=True):
                await place.aclose()


class StorePlace:
    """The backups of one region in a store. From the first write on it holds the claim of the directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._claim: Claim | None = None
        self._claiming = trio.Lock()
        self._written: dict[str, bytes] = {}

    def where(self, name: str) -> str:
        return f"{self._directory}/{name}"

    async def sizes(self, prefix: str) -> dict[str, int]:
        view = await self._store.inspect(self._directory)
        found: dict[str, int] = {}
        for objects in view.answers.values():
            for info in objects.values():
                if info.name.startswith(prefix):
                    found[info.name] = max(found.get(info.name, 0), info.synced)
        return found

    async def contents(self, names: Sequence[str]) -> AsyncGenerator[bytes]:
        for name in names:
            data = bytearray()
            try:
                async with aclosing(self._store.stream(self._directory, name)) as chunks:
                    async for chunk in chunks:
                        data += chunk
            except NotFoundError as error:
                raise BackupDamagedError(self.where(name), "there is no such object") from error
            yield bytes(data)

    async def put(self, name: str, data: bytes, sha256: bytes) -> bool:
        if name in self._written:
            return self._written[name] == sha256
        claim = await self._claimed()
        writer: ObjectWriter
        if any(name in objects for objects in claim.answers.values()):
            base, digest, tail = await end_of(self._store, claim, name)
            begins = prefix_digest(data[:base]) == digest and data[base : base + len(tail)] == tail
            if base + len(tail) > len(data) or not begins:
                return False
            writer = claim.resume_object(name, base, digest, tail)
        else:
            writer = claim.open_object(name)
        self._written[name] = sha256
        for begin in range(writer.size, len(data), payload_bytes_max):
            writer.append(data[begin : begin + payload_bytes_max])
            await writer.wait_room()
        await writer.wait_synced(len(data))  # each append carries a digest, which the members compare
        writer.seal()
        return True

    async def delete(self, names: Collection[str]) -> bool:
        doomed = frozenset(names)
        claim = await self._claimed()
        claim.collect(doomed.__contains__)
        return await claim.wait_collected(limits.backup_drop_s)

    async def _claimed(self) -> Claim:
        async with self._claiming:
            if self._claim is None:
                epoch = (await self._store.inspect(self._directory)).epoch_seen + 1
                self._claim = await self._store.claim(self._directory, epoch, randomness.fresh_id())
            return self._claim

    async def aclose(self) -> None:
        """Give the claim back."""
        claim, self._claim = self._claim, None
        if claim is not None:
            await claim.aclose()

"""Archiving a chain: sealed segments to a bucket, each read back before the manifest lists it.

Rules of this file: what is copied, and in which order. A segment is *sealed* when a committed one stands on
it: nothing that was ever shown of it will go away or change. The newest segment is not, and stays on the
servers alone.

The order for each segment: read it from the servers against its digests, put it, read it back, put the
manifest. So what a manifest lists is there, whenever this was interrupted; what is there and not listed is
found right, and listed, the next time. Manifests are put only over the version that was read: of two who
archive one chain at once, the later one adds to what the other put.
"""

import functools
import hashlib
import tempfile
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import trio

from journal.archive.bucket import Bucket
from journal.archive.reading import identity_of, in_thread, manifest_key, read_manifest
from journal.chain import look_committed
from journal.core.archive_manifest import ArchivedSegment, ArchiveManifest, encode_manifest
from journal.core.chain import SegmentSpan
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveDiffersError,
    ArchiveNotFoundError,
    ArchiveUnavailableError,
    HistoryTrimmedError,
)
from journal.core.position import ORIGIN, Position
from journal.core.replay import SpanReplay
from journal.files.history import stretch_below
from journal.limits import (
    archive_block_bytes,
    archive_manifest_bytes_max,
    archive_segment_bytes_max,
    archive_tries_max,
)
from journal.ports import StorePort
from journal.reading import ChainSource

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The sealed segments that servers have, the oldest first, and the position at which they end."""

    spans: tuple[SegmentSpan, ...]
    end: Position


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archiving did, or would do: segments and bytes copied, and those that were there before; the
    logical offsets between which the archive has the chain.
    """

    copied_segments: int
    copied_bytes: int
    found_segments: int
    found_bytes: int
    begins_at: int
    end: int


async def sealed_spans(store: StorePort, directory: str, chain: str) -> Sealed:
    """What can be archived. Raises NotFoundError, and what `look_chain` raises."""
    state = await look_committed(store, directory, chain)
    spans = list(state.segments[:-1])
    with suppress(HistoryTrimmedError):  # an archive has it from before, or it is gone
        while state.segments:
            below = await stretch_below(store, directory, chain, state)
            if below is None:
                break
            state = below
            spans = [*state.segments, *spans]
    return Sealed(tuple(spans), spans[-1].end if spans else ORIGIN)


async def archive_chain(
    store: StorePort,
    directory: str,
    chain: str,
    bucket: Bucket,
    *,
    dry_run: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Archived:
    """Copy the sealed segments of a chain that its archive lacks, the oldest first.

    Interrupted or failed, what was listed stays, and the next call goes on. dry_run: nothing is written; the
    answer tells what would be copied. Disk: one segment, in the directory for temporary files.

    Raises NotFoundError, ArchiveDiffersError if the archive is another store's, ArchiveDamagedError, what
    reading a chain raises, and what the bucket raises.
    """
    sealed = await sealed_spans(store, directory, chain)
    archive = _Archive(bucket, directory, chain, identity_of(store.record), sealed)
    await archive.load()
    found = archive.manifest
    missing = [span for span in sealed.spans if not found.holds(span)]
    total, done = sum(span.length for span in missing), 0
    if not dry_run:
        for span in missing:
            await archive.add(store, span, functools.partial(_later, progress, done, total))
            done += span.length
        await archive.save()
    bases = [one.base for one in found.segments] + [span.base for span in missing]
    return Archived(
        copied_segments=len(missing),
        copied_bytes=total,
        found_segments=len(found.segments),
        found_bytes=found.bytes,
        begins_at=min(bases, default=0),
        end=sealed.end.size or found.end.size,
    )


def _later(progress: Progress, before: int, total: int, now: int) -> None:
    progress(before + now, total)


class _Archive:
    """The archive of one chain while it is added to. `manifest`: with what was added."""

    def __init__(self, bucket: Bucket, directory: str, chain: str, store_id: str, sealed: Sealed) -> None:
        self.manifest = ArchiveManifest(directory, chain, store_id, ORIGIN)
        self._bucket = bucket
        self._sealed = sealed
        self._key = manifest_key(directory, chain)
        self._version: str | None = None
        """Of the manifest that was read or put last; None: there is none."""
        self._saved = b""

    async def load(self) -> None:
        """Take in what the bucket's manifest lists now. Raises ArchiveDiffersError."""
        self._version = await in_thread(self._bucket.version, self._key)
        if self._version is not None:
            found = await read_manifest(self._bucket, self.manifest.directory, self.manifest.chain)
            self._saved = encode_manifest(found)
            self.manifest = found.merged(self.manifest)

    async def add(self, store: StorePort, span: SegmentSpan, progress: Callable[[int], None]) -> None:
        """Copy one segment; it is listed when this returns."""
        if span.length > archive_segment_bytes_max:
            raise ArchiveDiffersError(
                f"{span.name} has {span.length} bytes, S3 takes at most {archive_segment_bytes_max}",
                remedy="have the chain's writer roll its segments sooner",
            )
        with tempfile.TemporaryFile() as spool:
            segment = await _copied(store, self.manifest.directory, span, spool, progress)
            await in_thread(self._put, segment, spool)
        self.manifest = self.manifest.with_segment(segment)
        await self.save()

    async def save(self) -> None:
        """Put the manifest over the version that was read; over a newer one, with what that one lists."""
        for _ in range(archive_tries_max):
            manifest = self._ending()
            data = encode_manifest(manifest)
            if not manifest.segments or data == self._saved:
                return
            if len(data) > archive_manifest_bytes_max:
                raise ArchiveDiffersError(
                    f"the manifest would have {len(data)} bytes, the limit is {archive_manifest_bytes_max}",
                    remedy="archive to another prefix from now on",
                )
            digest, over = hashlib.sha256(data).digest(), self._version
            version = await in_thread(
                functools.partial(self._bucket.put, self._key, data, len(data), digest, over=over)
            )
            if version is not None:
                self._version, self._saved = version, data
                return
            await self.load()
        raise ArchiveUnavailableError(
            f"the manifest of {manifest.directory}/{manifest.chain} was changed by others each time"
        )

    def _ending(self) -> ArchiveManifest:
        """The manifest with its end: the sealed segments are listed up to there. If none is, it is as it was
        found.
        """
        end = self.manifest.end
        for span in self._sealed.spans:
            if not self.manifest.holds(span):
                break
            end = span.end
        return msgspec.structs.replace(self.manifest, end=end)

    def _put(self, segment: ArchivedSegment, spool: BinaryIO) -> None:
        """Blocking: the object is there, and was read back. One that an interrupted call left will do."""
        key = f"{self.manifest.directory}/{segment.key}"
        if self._bucket.version(key) is not None:
            with suppress(ArchiveDamagedError):
                self._read_back(key, segment)
                return
        self._bucket.put(key, spool, segment.length, segment.sha256)
        self._read_back(key, segment)

    def _read_back(self, key: str, segment: ArchivedSegment) -> None:
        try:
            length, sha256 = self._bucket.again(functools.partial(_sum, self._bucket, key))
        except ArchiveNotFoundError:
            length, sha256 = 0, b""
        if (length, sha256) != (segment.length, segment.sha256):
            raise ArchiveDamagedError(
                self._bucket.place(key),
                0,
                f"{segment.length} bytes with SHA-256 {segment.sha256.hex()}",
                f"{length} bytes with {sha256.hex()}",
                "the bucket gives back other bytes than were put: archive to another one",
            )


def _sum(bucket: Bucket, key: str) -> tuple[int, bytes]:
    """Length and SHA-256 of what is there."""
    length, sha256 = 0, hashlib.sha256()
    for piece in bucket.pieces(key):
        length += len(piece)
        sha256.update(piece)
    return length, sha256.digest()


async def _copied(
    store: StorePort, directory: str, span: SegmentSpan, spool: BinaryIO, progress: Callable[[int], None]
) -> ArchivedSegment:
    """The bytes of a span, in the spool; its records and digests were found right."""
    replay, whole, blocks, block = SpanReplay(span), hashlib.sha256(), bytearray(), hashlib.sha256()
    at = 0
    async with aclosing(ChainSource(store, directory).chunks(span.name, span.length)) as chunks:
        async for chunk in chunks:
            replay.feed(chunk)
            await trio.to_thread.run_sync(spool.write, chunk)
            whole.update(chunk)
            view = memoryview(chunk)
            while view:
                piece = view[: archive_block_bytes - at % archive_block_bytes]
                block.update(piece)
                at += len(piece)
                view = view[len(piece) :]
                if at % archive_block_bytes == 0:
                    blocks += block.digest()
                    block = hashlib.sha256()
            progress(at)
    replay.finish()
    if at % archive_block_bytes:
        blocks += block.digest()
    return ArchivedSegment(span.name, span.base, at, span.digest, whole.digest(), bytes(blocks))

"""Archive a chain: copy its sealed segments to a bucket, and read each back before the manifest lists it;
trim an archive.

A segment is *sealed* when a committed segment follows it: no byte of it that was ever visible will disappear
or change. Everything that a manifest lists exists, and a manifest is put only over the version that was read.
So an interrupted or a second run does no harm.
"""

import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import trio

from journal.archive.bucket import Bucket
from journal.archive.reading import ArchivedChain, identity_of, in_thread, manifest_key, read_manifest
from journal.chain import inspect_committed
from journal.core.archive_manifest import ArchivedSegment, ArchiveManifest, encode_manifest, parse_object_name
from journal.core.chain import ORIGIN, Position, SegmentSpan, parse_segment_name
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveDiffersError,
    ArchiveNotFoundError,
    ArchiveUnavailableError,
    HistoryMissingError,
    HistoryTrimmedError,
    StopNotFoundError,
)
from journal.core.file_ops import ReplayStop
from journal.core.scan import SpanReplay
from journal.files.history import (
    TrimPlan,
    has_checkpoint,
    has_locating_record,
    refuse_tree,
    stretch_at,
    stretch_below,
)
from journal.limits import (
    archive_block_bytes,
    archive_manifest_bytes_max,
    archive_segment_bytes_max,
    archive_tries_max,
)
from journal.ports import Progress, StorePort
from journal.reading import ChainSource


@dataclass(frozen=True, slots=True)
class Sealed:
    """The sealed segments on the servers, the oldest first, and the position at which they end."""

    spans: tuple[SegmentSpan, ...]
    end: Position


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of archiving a chain, or its preview. begins_at, end: the logical offsets between which the
    archive holds the chain.
    """

    copied_segments: int
    copied_bytes: int
    found_segments: int
    found_bytes: int
    begins_at: int
    end: int


async def sealed_spans(store: StorePort, directory: str, chain: str) -> Sealed:
    """Return the segments that can be archived. Raises NotFoundError, and the errors of `inspect_chain`."""
    state = await inspect_committed(store, directory, chain)
    spans = list(state.segments[:-1])
    with suppress(HistoryTrimmedError):  # the archive holds the trimmed part already, or it is lost
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
    """Copy the sealed segments of a chain that its archive lacks and has not trimmed, the oldest first.
    dry_run: only return what would be copied. After a failure or an interruption, the next call continues.

    Raises NotFoundError, ArchiveDiffersError if the archive is of another store, ArchiveDamagedError, and the
    errors of reading a chain and of the bucket. Uses disk space for one segment.
    """
    await refuse_tree(store, directory, await inspect_committed(store, directory, chain))
    sealed = await sealed_spans(store, directory, chain)
    archive = _Archive(bucket, directory, chain, identity_of(store.record), sealed)
    await archive.load()
    found = archive.manifest
    missing = [span for span in sealed.spans if not found.has_trimmed(span.name) and not found.holds(span)]
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


async def put_manifest(bucket: Bucket, key: str, data: bytes, *, over: str | None) -> str | None:
    """Put a manifest over the version `over` of it, None: over none. Return its version; None, with nothing
    changed, if there is another one.
    """
    digest = hashlib.sha256(data).digest()
    return await in_thread(functools.partial(bucket.put, key, data, len(data), digest, over=over))


def changed_by_others(directory: str, chain: str) -> ArchiveUnavailableError:
    return ArchiveUnavailableError(
        f"the manifest of {directory}/{chain} was changed by others at every attempt"
    )


class _Archive:
    """The archive of one chain during a run. `manifest` includes the segments added so far."""

    def __init__(self, bucket: Bucket, directory: str, chain: str, store_id: str, sealed: Sealed) -> None:
        self.manifest = ArchiveManifest(directory, chain, store_id, ORIGIN)
        self._bucket = bucket
        self._sealed = sealed
        self._key = manifest_key(directory, chain)
        self._version: str | None = None
        """The version of the manifest that was last read or put; None if there is none."""
        self._saved = b""

    async def load(self) -> None:
        """Merge the bucket's manifest into this one. Raises ArchiveDiffersError."""
        self._version = await in_thread(self._bucket.version, self._key)
        if self._version is not None:
            found = await read_manifest(self._bucket, self.manifest.directory, self.manifest.chain)
            self._saved = encode_manifest(found)
            self.manifest = found.merged(self.manifest)

    async def add(self, store: StorePort, span: SegmentSpan, progress: Callable[[int], None]) -> None:
        if span.length > archive_segment_bytes_max:
            raise ArchiveDiffersError(
                f"{span.name} has {span.length} bytes, the limit of S3 is {archive_segment_bytes_max}",
                remedy="let the chain's writer roll to new segments sooner",
            )
        # The order makes an interrupted run safe: (1) read the segment from the servers and verify its
        # digests, (2) put the object, (3) read it back and verify it, (4) put the manifest that lists it.
        with tempfile.TemporaryFile() as spool:
            segment = await _copied(store, self.manifest.directory, span, spool, progress)
            await in_thread(self._put, segment, spool)
        # Listed only after it was read back: everything that a manifest lists exists.
        self.manifest = self.manifest.with_segment(segment)
        await self.save()

    async def save(self) -> None:
        """Put the manifest over the version that was read. If there is a newer one, merge it first."""
        for _ in range(archive_tries_max):
            manifest = self._ending()
            data = encode_manifest(manifest)
            if not manifest.segments or data == self._saved:
                return
            if len(data) > archive_manifest_bytes_max:
                raise ArchiveDiffersError(
                    f"the manifest would have {len(data)} bytes, the limit is {archive_manifest_bytes_max}",
                    remedy="archive to another prefix",
                )
            # Over the version that was read: a concurrent run would otherwise lose the segments that it has
            # listed.
            version = await put_manifest(self._bucket, self._key, data, over=self._version)
            if version is not None:
                self._version, self._saved = version, data
                return
            await self.load()
        raise changed_by_others(manifest.directory, manifest.chain)

    def _ending(self) -> ArchiveManifest:
        """Return the manifest with the position up to which all sealed segments are listed as its end."""
        end = self.manifest.end
        for span in self._sealed.spans:
            if self.manifest.has_trimmed(span.name):
                continue
            if not self.manifest.holds(span):
                break
            end = span.end
        return msgspec.structs.replace(self.manifest, end=end)

    def _put(self, segment: ArchivedSegment, spool: BinaryIO) -> None:
        """Put the object of a segment and read it back. Blocks. Reuses a valid one of an interrupted run."""
        key = f"{self.manifest.directory}/{segment.key}"
        # An interrupted run may have left the object, whole or not: it counts only if every byte is read
        # back.
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
                self._bucket.url_of(key),
                0,
                f"{segment.length} bytes with SHA-256 {segment.sha256.hex()}",
                f"{length} bytes with {sha256.hex()}",
                "the bucket returns different bytes than were put: archive to another bucket",
            )


def _sum(bucket: Bucket, key: str) -> tuple[int, bytes]:
    length, sha256 = 0, hashlib.sha256()
    for piece in bucket.pieces(key):
        length += len(piece)
        sha256.update(piece)
    return length, sha256.digest()


async def _copied(
    store: StorePort, directory: str, span: SegmentSpan, spool: BinaryIO, progress: Callable[[int], None]
) -> ArchivedSegment:
    replay, sha256, blocks, block = SpanReplay(span), hashlib.sha256(), bytearray(), hashlib.sha256()
    at = 0
    async with aclosing(ChainSource(store, directory).chunks(span.name, span.length)) as chunks:
        async for chunk in chunks:
            replay.feed(chunk)
            await trio.to_thread.run_sync(spool.write, chunk)
            sha256.update(chunk)
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
    return ArchivedSegment(span.name, span.base, at, span.digest, sha256.digest(), bytes(blocks))


async def trim_archive(
    bucket: Bucket, directory: str, chain: str, before: ReplayStop | int, *, apply: bool
) -> TrimPlan:
    """Remove what is older than needed to restore `before` and every later moment; without `apply`, only
    return what would be removed. before: the earliest moment to keep, or the number of the newest bytes,
    rounded up to whole stretches. May be called again after a failure.

    Raises StopNotFoundError if the chain cannot show where `before` is, ArchiveUnavailableError if others
    change the archive all the time, and the errors of reading an archive and of the bucket. Readers that
    opened the archive before may get ArchiveNotFoundError.
    """
    key = manifest_key(directory, chain)
    for _ in range(archive_tries_max):
        version = await in_thread(bucket.version, key)
        manifest = await read_manifest(bucket, directory, chain)
        plan = await _plan(bucket, manifest, before)
        left = manifest.trimmed_to(plan.floor)
        if apply:
            # The manifest first: a crash between the two leaves objects that nobody lists, not a list of
            # nothing.
            if left.segments != manifest.segments:
                data = encode_manifest(left)
                if await put_manifest(bucket, key, data, over=version) is None:
                    continue  # an archive run was faster: plan again
            await in_thread(_delete, bucket, [f"{directory}/{name}" for name, _ in plan.segments])
        return plan
    raise changed_by_others(directory, chain)


async def _plan(bucket: Bucket, manifest: ArchiveManifest, before: ReplayStop | int) -> TrimPlan:
    archive, directory, chain = ArchivedChain(bucket, manifest), manifest.directory, manifest.chain
    if isinstance(before, int):
        head = await inspect_committed(archive, directory, chain)
        assert head.end is not None, "something is committed"
        before = ReplayStop(size=max(head.end.size - before, 0))
    try:
        state = await stretch_at(archive, directory, chain, before)
    except (HistoryTrimmedError, HistoryMissingError):
        if before.names_a_checkpoint:
            raise
        floor = min(manifest.line())  # the moment is older than the archive: all of it stays
        return await _removing(bucket, manifest, floor)
    if before.names_a_checkpoint and not await has_checkpoint(archive, directory, state, before):
        raise StopNotFoundError(f"the archive of {directory}/{chain} does not hold {before}")
    if not await has_locating_record(archive, directory, state, before):
        raise StopNotFoundError(
            f"the archive of {directory}/{chain} has no wall clock, so {before} cannot be found",
            remedy="name a logical offset or a number of bytes",
        )
    return await _removing(bucket, manifest, state.segments[0].name)


async def _removing(bucket: Bucket, manifest: ArchiveManifest, lowest: str) -> TrimPlan:
    first = parse_segment_name(lowest)
    assert first is not None, "spans are of segments"
    raised = manifest.trimmed_to(first.order)
    return TrimPlan(
        chain=manifest.chain,
        floor=first.order,
        keeps_from=first.base,
        segments=tuple(await in_thread(_trimmed_objects, bucket, raised)),
        released=raised.segments == manifest.segments,
    )


def _trimmed_objects(bucket: Bucket, manifest: ArchiveManifest) -> list[tuple[str, int]]:
    # Also those that an interrupted run left below the floor. An object above it that is not listed is left
    # alone: a run may be about to list it.
    found = []
    for key in bucket.keys(f"{manifest.directory}/{manifest.chain}."):
        name = key.removeprefix(f"{manifest.directory}/")
        parsed = parse_object_name(name)
        if parsed is not None and manifest.has_trimmed(parsed[0]):
            found.append((name, parsed[1]))
    return found


def _delete(bucket: Bucket, keys: Iterable[str]) -> None:
    for key in keys:
        bucket.delete(key)

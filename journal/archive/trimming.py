"""Trim an archive: remove the oldest history of a chain from its bucket.

As on servers (`journal.files.trimming`), the stretch that holds the earliest moment to keep stays whole, with
the snapshot that begins it, and everything below it goes. The order makes an interrupted trim safe:

    1. put the manifest without the segments, over the version that was read: from then on nobody reads them,
       and no run of `archive_chain` lists them again
    2. delete their objects, and those that an interrupted run left below the floor

So everything that a manifest lists exists. After a crash between 1 and 2, the next trim deletes the objects.
An object above the floor that is not listed is left alone: a run may be about to list it.
"""

import functools
import hashlib
from collections.abc import Iterable

from journal.archive.bucket import Bucket
from journal.archive.reading import ArchivedChain, in_thread, manifest_key, read_manifest
from journal.chain import inspect_committed
from journal.core.archive_manifest import ArchiveManifest, encode_manifest
from journal.core.errors import (
    ArchiveUnavailableError,
    HistoryMissingError,
    HistoryTrimmedError,
    StopNotFoundError,
)
from journal.core.file_ops import ReplayStop
from journal.core.segment import parse_segment_name
from journal.files.history import has_cut, has_locating_record, stretch_at
from journal.files.trimming import TrimPlan
from journal.limits import archive_tries_max

_LENGTH_DIGITS = 16
"""Of the length that follows a segment's name in the name of its object."""


async def trim_archive(
    bucket: Bucket, directory: str, chain: str, before: ReplayStop | int, *, apply: bool
) -> TrimPlan:
    """Remove what is older than needed to restore `before` and every later moment; without `apply`, only
    return what would be removed.

    before: the earliest moment to keep, or the number of the newest bytes to keep; the result is rounded up
    to whole stretches. The archive stays readable if this fails or is interrupted; call it again.

    Raises StopNotFoundError if the chain cannot show where `before` is, ArchiveUnavailableError if others
    change the archive all the time, and the errors of reading an archive and of the bucket. Readers that
    opened the archive before the trim may get ArchiveNotFoundError.
    """
    key = manifest_key(directory, chain)
    for _ in range(archive_tries_max):
        version = await in_thread(bucket.version, key)
        manifest = await read_manifest(bucket, directory, chain)
        plan = await _plan(bucket, manifest, before)
        left = manifest.trimmed_to(plan.floor)
        if apply and left.segments != manifest.segments:
            data = encode_manifest(left)
            digest = hashlib.sha256(data).digest()
            put = functools.partial(bucket.put, key, data, len(data), digest, over=version)
            if await in_thread(put) is None:
                continue  # an archive run was faster: plan again
        if apply:
            await in_thread(_delete, bucket, [f"{directory}/{name}" for name, _ in plan.segments])
        return plan
    raise ArchiveUnavailableError(
        f"the manifest of {directory}/{chain} was changed by others at every attempt"
    )


async def _plan(bucket: Bucket, manifest: ArchiveManifest, before: ReplayStop | int) -> TrimPlan:
    archive, directory, chain = ArchivedChain(bucket, manifest), manifest.directory, manifest.chain
    if isinstance(before, int):
        head = await inspect_committed(archive, directory, chain)
        assert head.end is not None, "something is committed"
        before = ReplayStop(size=max(head.end.size - before, 0))
    try:
        state = await stretch_at(archive, directory, chain, before)
    except (HistoryTrimmedError, HistoryMissingError):
        if before.names_a_cut:
            raise
        floor = min(manifest.line())  # the moment is older than the archive: all of it stays
        return await _removing(bucket, manifest, floor)
    if before.names_a_cut and not await has_cut(archive, directory, state, before):
        raise StopNotFoundError(f"the archive of {directory}/{chain} does not hold {before}")
    if not await has_locating_record(archive, directory, state, before):
        raise StopNotFoundError(
            f"the archive of {directory}/{chain} has no wall clock, so {before} cannot be found",
            remedy="name a logical offset or a number of bytes",
        )
    return await _removing(bucket, manifest, state.segments[0].name)


async def _removing(bucket: Bucket, manifest: ArchiveManifest, lowest: str) -> TrimPlan:
    """Return the plan by which a segment becomes the lowest one."""
    first = parse_segment_name(lowest)
    assert first is not None, "spans are of segments"
    raised = manifest.trimmed_to(first.order)
    stored = await in_thread(_objects_of, bucket, manifest.directory, manifest.chain)
    return TrimPlan(
        chain=manifest.chain,
        floor=first.order,
        keeps_from=first.base,
        segments=tuple((key, size) for key, size in stored if raised.has_trimmed(_segment_of(key))),
        released=raised.segments == manifest.segments,
    )


def _objects_of(bucket: Bucket, directory: str, chain: str) -> list[tuple[str, int]]:
    """Return the objects of a chain's segments, below the directory, with their lengths. Blocks."""
    names = (key.removeprefix(f"{directory}/") for key in bucket.keys(f"{directory}/{chain}."))
    return [(name, int(name[-_LENGTH_DIGITS:], 16)) for name in names if _segment_of(name)]


def _segment_of(name: str) -> str:
    """Return the name of the segment that an object holds; "" if it holds none."""
    segment, _, length = name.rpartition("-")
    try:
        valid = len(length) == _LENGTH_DIGITS and int(length, 16) > 0
    except ValueError:
        valid = False
    return segment if valid and parse_segment_name(segment) is not None else ""


def _delete(bucket: Bucket, keys: Iterable[str]) -> None:
    for key in keys:
        bucket.delete(key)

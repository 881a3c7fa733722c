"""Trim an archive: remove the oldest history of a chain from its bucket.

As on servers (`journal.files.trimming`), the stretch that holds the earliest moment to keep stays whole, with
the snapshot that begins it, and everything below it goes. The order makes an interrupted trim safe:

    1. put the manifest without the segments, over the version that was read: from then on nobody reads them,
       and no run of `archive_chain` lists them again
    2. delete their objects, and those that an interrupted run left below the floor

So everything that a manifest lists exists. After a crash between 1 and 2, the next trim deletes the objects.
An object above the floor that is not listed is left alone: a run may be about to list it.
"""

from collections.abc import Iterable

from journal.archive.archiving import changed_by_others, put_manifest
from journal.archive.bucket import Bucket
from journal.archive.reading import ArchivedChain, in_thread, manifest_key, read_manifest
from journal.chain import inspect_committed
from journal.core.archive_manifest import ArchiveManifest, encode_manifest, parse_object_name
from journal.core.errors import HistoryMissingError, HistoryTrimmedError, StopNotFoundError
from journal.core.file_ops import ReplayStop
from journal.core.segment import parse_segment_name
from journal.files.history import has_checkpoint, has_locating_record, stretch_at
from journal.files.trimming import TrimPlan
from journal.limits import archive_tries_max


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
        if apply:
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
    """Return the plan by which a segment becomes the lowest one."""
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
    """Return the objects below the floor that the bucket still has, by their names below the directory, with
    their lengths. Blocks.
    """
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

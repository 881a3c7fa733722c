"""Archives: what was copied to a bucket is there again with no server alive."""

import os
import threading
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from journal import Directory, restore
from journal.archive.archiving import archive_chain, sealed_spans
from journal.archive.reading import ServersAndArchive, manifest_key, read_manifest
from journal.archive.trimming import trim_archive
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveDiffersError,
    ArchiveRefusedError,
    HistoryMissingError,
    HistoryTrimmedError,
)
from journal.core.file_ops import ReplayStop
from journal.files.trimming import TrimPlan
from journal.limits import archive_block_bytes, archive_read_bytes
from journal.ports import StorePort
from tests.journal.archives import (
    LINES,
    archived,
    bucket,
    client,
    keys,
    lines,
    opened,
    recovered,
    restored,
    sealed_end,
    write_lines,
)
from tests.journal.journaled_files import files
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.support.s3 import BUCKET, FakeS3, Rule, status


def test_the_bucket_alone_gives_back_every_moment_up_to_its_end(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    done = archived(store)
    assert done.copied_segments > 3
    assert (done.begins_at, done.end) == (0, sealed_end(store))
    covered = sum(offset <= done.end for offset in offsets)
    assert 0 < covered < LINES, "the newest segment is not sealed"
    assert restored(tmp_path / "end")["log"] == lines(covered)
    for count in (1, covered // 3, covered - 1):
        assert restored(tmp_path / str(count), offsets[count - 1])["log"] == lines(count)


def test_a_second_run_copies_only_what_is_new_and_a_dry_run_nothing(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live")
    would = archived(store, dry_run=True)
    assert (keys(), would.copied_segments > 0) == ([], True)
    first = archived(store)
    assert (first.copied_segments, first.copied_bytes) == (would.copied_segments, would.copied_bytes)
    before = {key for method, key in s3.seen if method == "PUT"}
    s3.seen.clear()
    again = archived(store)
    assert (again.copied_segments, again.found_segments) == (0, first.copied_segments)
    assert not [key for method, key in s3.seen if method == "PUT"]
    write_lines(store, tmp_path / "live", epoch=2, count=10)
    more = archived(store)
    assert 0 < more.copied_segments < first.copied_segments
    put = {key for method, key in s3.seen if method == "PUT" and ".archive" not in key}
    assert not put & before


def test_an_interrupted_run_continues_where_it_was(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live")
    whole = archived(store, dry_run=True).copied_segments

    class EnoughError(Exception):
        pass

    def stop_after_two(done: int, total: int | None) -> None:
        if len([key for key in keys() if not key.endswith(".archive")]) >= 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        archived(store, progress=stop_after_two)
    assert restored(tmp_path / "some")["log"], "what is listed can be restored"
    listed = trio.run(read_manifest, bucket(), DIRECTORY, "files").segments
    assert archived(store).copied_segments == whole - len(listed)
    assert len(keys()) == whole + 1


def test_an_object_that_an_interrupted_run_left_is_read_back_and_not_put_again(
    s3: FakeS3, tmp_path: Path
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live")
    archived(store)
    client().delete_object(Bucket=BUCKET, Key=f"dos/{manifest_key(DIRECTORY, 'files')}")
    damaged = next(key for key in keys())
    body = client().get_object(Bucket=BUCKET, Key=damaged)["Body"].read()
    client().put_object(Bucket=BUCKET, Key=damaged, Body=body[:-1])
    s3.seen.clear()
    archived(store)
    put = {path for method, path in s3.seen if method == "PUT" and ".archive" not in path}
    assert put == {f"/{BUCKET}/{damaged}"}, "only the one that was cut"
    assert restored(tmp_path / "end")["log"]


def test_old_segments_come_from_the_bucket_and_new_ones_from_the_servers(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    archived(store)
    names = sorted({name for server in store.servers for name in server.objects[DIRECTORY]})
    for server in store.servers:
        for name in names[:-2]:
            server.objects[DIRECTORY].pop(name, None)

    async def mixed(into: Path, at: int | None) -> None:
        await restore(into, ServersAndArchive(store, await opened()), DIRECTORY, at=at)

    async def alone() -> None:
        await restore(tmp_path / "alone", store, DIRECTORY, at=offsets[5])

    with pytest.raises(HistoryTrimmedError, match="add the archive to the URL"):
        trio.run(alone)
    trio.run(mixed, tmp_path / "early", offsets[5])
    assert files(tmp_path / "early")["log"] == lines(6)
    trio.run(mixed, tmp_path / "all", None)
    assert files(tmp_path / "all")["log"] == lines(LINES)


def test_after_a_rollback_the_archive_tells_the_line_that_is_history_now(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()

    async def run() -> None:
        options = {"recovery_bytes": 4000, "segment_bytes": 500}
        async with await Directory.open(tmp_path / "a", store.claim(1), **options) as directory:
            for number in range(30):
                await directory.append("log", b"%03d\n" % number)
                if number == 9:
                    early = directory.end
            await directory.wait_synced()
        await archive_chain(store, DIRECTORY, "files", bucket())
        await restore(tmp_path / "before", await opened(), DIRECTORY)
        async with await Directory.open(tmp_path / "a", store.claim(2), at=early, **options) as directory:
            await directory.append("log", b"new line\n")
            await directory.wait_synced()
            await archive_chain(store, DIRECTORY, "files", bucket())
            await restore(tmp_path / "back", await opened(), DIRECTORY)
            for _ in range(4):
                await directory.append("log", b"new line\n" * 20)
            await directory.wait_synced()
        await archive_chain(store, DIRECTORY, "files", bucket())
        await restore(tmp_path / "after", await opened(), DIRECTORY)

    trio.run(run)
    assert len(files(tmp_path / "before")["log"]) > len(lines(20))
    assert files(tmp_path / "back")["log"] == lines(10)
    assert files(tmp_path / "after")["log"].startswith(lines(10) + b"new line\n")


def test_an_archive_of_another_store_is_left_alone(s3: FakeS3, tmp_path: Path) -> None:
    store, other = MemoryStore(), MemoryStore()
    other.record = type(other.record)(b"\x66" * 16, 1, 2, other.record.members)
    write_lines(store, tmp_path / "one")
    write_lines(other, tmp_path / "other")
    archived(store)
    with pytest.raises(ArchiveDiffersError, match="of store 7777"):
        archived(other)

    async def mixed() -> None:
        ServersAndArchive(other, await opened())

    with pytest.raises(ArchiveDiffersError, match="of store 7777"):
        trio.run(mixed)


def test_a_run_beside_a_newer_one_keeps_what_that_one_listed(s3: FakeS3, tmp_path: Path) -> None:
    store, beside = MemoryStore(), list[threading.Thread]()
    write_lines(store, tmp_path / "live")

    def newer() -> None:
        write_lines(store, tmp_path / "live", epoch=2, count=10)
        archived(store)

    def meanwhile(done: int, total: int | None) -> None:
        if not beside:
            beside.append(threading.Thread(target=newer))
            beside[0].start()
            beside[0].join()

    archived(store, progress=meanwhile)
    manifest = trio.run(read_manifest, bucket(), DIRECTORY, "files")
    spans = trio.run(sealed_spans, store, DIRECTORY, "files").spans
    assert all(manifest.holds(span) for span in spans)


def test_what_was_trimmed_on_the_servers_comes_from_the_archive(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    archived(store)

    async def trim() -> TrimPlan:
        async with await Directory.open(tmp_path / "live", store.claim(2)) as directory:
            return await directory.trim(store, DIRECTORY, offsets[-1])

    plan = trio.run(trim)
    assert plan.segments
    assert plan.keeps_from > offsets[2]

    async def early(chain: StorePort, into: Path) -> None:
        await restore(into, chain, DIRECTORY, at=offsets[2])

    with pytest.raises(HistoryTrimmedError, match="was trimmed"):
        trio.run(early, store, tmp_path / "servers")
    both = ServersAndArchive(store, trio.run(opened))
    for number, chain in enumerate((both, trio.run(opened))):
        trio.run(early, chain, tmp_path / str(number))
        assert files(tmp_path / str(number)) == {"log": lines(3)}


def test_servers_that_trimmed_all_but_the_newest_segment_leave_the_archive_whole(
    s3: FakeS3, tmp_path: Path
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live")
    done = archived(store)
    stretch, epoch = recovered(store), 1
    while len(stretch) > 1:  # until the newest segment begins with a snapshot
        write_lines(store, tmp_path / "live", epoch := epoch + 1, count=1)
        stretch = recovered(store)
    for server in store.servers:
        server.objects[DIRECTORY] = {stretch[0]: server.objects[DIRECTORY][stretch[0]]}
    again = archived(store)
    assert (again.copied_segments, again.begins_at, again.end) == (0, 0, done.end)
    assert restored(tmp_path / "end")["log"]


def test_a_segment_of_many_blocks_is_read_in_parts_and_a_flipped_bit_is_found_in_its_block(
    s3: FakeS3, tmp_path: Path
) -> None:
    store, data = MemoryStore(), os.urandom(archive_read_bytes + archive_block_bytes + 12_345)

    async def fill(epoch: int, part: bytes) -> None:
        async with await Directory.open(tmp_path / "live", store.claim(epoch)) as directory:
            await directory.append("big", part)
            await directory.wait_synced()

    trio.run(fill, 1, data)
    trio.run(fill, 2, b"a new segment")
    archived(store)
    key = next(one for one in keys() if "-" in one)
    s3.seen.clear()
    assert restored(tmp_path / "end")["big"] == data
    body = bytearray(client().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    async def parts() -> None:
        chain = await opened()
        name = key.split("/")[-1].split("-")[0]
        for offset in (0, 17, archive_block_bytes - 1, archive_read_bytes + 5, len(body) - 1, len(body)):
            assert body[offset:].startswith(found := await chain.read(DIRECTORY, name, offset, 100))
            assert found or offset == len(body)
            async with aclosing(chain.stream(DIRECTORY, name, offset, len(body) - 3)) as chunks:
                got = [chunk async for chunk in chunks]
            assert b"".join(got) == body[offset : len(body) - 3]
            assert all(len(chunk) <= archive_read_bytes for chunk in got)

    trio.run(parts)
    body[5 * archive_block_bytes + 3] ^= 1
    client().put_object(Bucket=BUCKET, Key=key, Body=bytes(body))
    with pytest.raises(ArchiveDamagedError) as refused:
        restored(tmp_path / "bad")
    assert refused.value.offset == 5 * archive_block_bytes


# --- trimming -----------------------------------------------------------------------------------------------


def trimmed(before: ReplayStop | int, *, apply: bool = True) -> TrimPlan:
    async def run() -> TrimPlan:
        return await trim_archive(bucket(), DIRECTORY, "files", before, apply=apply)

    return trio.run(run)


def objects() -> list[str]:
    return [key.rpartition("/")[2] for key in keys() if not key.endswith(".archive")]


def test_a_trimmed_archive_restores_every_moment_that_it_keeps_and_is_not_filled_again(
    s3: FakeS3, tmp_path: Path
) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    done = archived(store)
    count = sum(offset <= done.end for offset in offsets)
    middle = 3 * count // 4
    before = objects()
    planned = trimmed(ReplayStop(size=offsets[middle]), apply=False)
    assert (objects(), len(planned.segments) > 1) == (before, True), planned
    assert trimmed(ReplayStop(size=offsets[middle])) == planned
    assert set(before) - set(objects()) == {name for name, _ in planned.segments}
    for kept in (middle, count - 1):
        assert restored(tmp_path / str(kept), offsets[kept])["log"] == lines(kept + 1)
    with pytest.raises(HistoryMissingError, match="or an archive was trimmed"):
        restored(tmp_path / "gone", offsets[0])

    # The servers still have all of it: what was trimmed is not copied again, and what is new is.
    assert archived(store).copied_segments == 0
    offsets += write_lines(store, tmp_path / "live", epoch=2, count=10)
    more = archived(store)
    assert 0 < more.copied_segments < done.copied_segments
    assert more.begins_at == planned.keeps_from
    assert not set(objects()) & {name for name, _ in planned.segments}
    assert more.end == sealed_end(store) > done.end

    # A moment that is older than the archive, as a rule by age finds it in a young one: nothing to do.
    assert trimmed(ReplayStop(size=offsets[0])).segments == ()
    assert trimmed(ReplayStop(wall_ms=1_000)).segments == ()
    by_size = trimmed(1)
    assert by_size.segments
    assert restored(tmp_path / "end")["log"].startswith(lines(count))


# EVIDENCE-OF: P-6
def test_a_trim_that_dies_before_it_deletes_is_completed_by_the_next_one(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    done = archived(store)
    last = max(offset for offset in offsets if offset <= done.end)
    before = objects()
    s3.rules.append(Rule("DELETE", "files.0", status(403, "AccessDenied")))
    with pytest.raises(ArchiveRefusedError):
        trimmed(ReplayStop(size=last))
    assert len(objects()) == len(before) - 1, "the first deletion, whose answer was an error"
    manifest = trio.run(read_manifest, bucket(), DIRECTORY, "files")
    assert len(manifest.segments) < len(objects()), "the manifest is first"
    assert restored(tmp_path / "end")["log"]
    s3.rules.clear()
    assert archived(store).copied_segments == 0
    plan = trimmed(ReplayStop(size=last))
    assert (len(plan.segments) > 0, plan.released) == (True, True)
    assert set(objects()) == {one.key for one in manifest.segments}
    assert restored(tmp_path / "again")["log"]


def test_an_archive_run_beside_a_trim_does_not_list_again_what_was_trimmed(
    s3: FakeS3, tmp_path: Path
) -> None:
    store = MemoryStore()
    offsets = write_lines(store, tmp_path / "live")
    done = archived(store)
    last = max(offset for offset in offsets if offset <= done.end)
    write_lines(store, tmp_path / "live", epoch=2, count=12)
    plans: list[threading.Thread] = []

    def in_between(copied: int, total: int | None) -> None:
        if not plans:
            plans.append(threading.Thread(target=trim_now))
            plans[0].start()
            plans[0].join()

    def trim_now() -> None:
        trimmed(ReplayStop(size=last))

    archived(store, progress=in_between)
    manifest = trio.run(read_manifest, bucket(), DIRECTORY, "files")
    listed = {one.key for one in manifest.segments}
    assert listed == set(objects()), "all that is listed exists, and all that exists is listed"
    assert not any(manifest.has_trimmed(one.name) for one in manifest.segments)
    assert restored(tmp_path / "end")["log"]

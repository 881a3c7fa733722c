"""Archives: what was copied to a bucket is there again with no server alive, and what a bad service or bucket
answers is an error with a name, or tried again.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
import trio

from journal import Directory, look_chain, restore
from journal.archive.archiving import Archived, archive_chain, sealed_spans
from journal.archive.bucket import Bucket, parse_s3_url
from journal.archive.reading import ArchivedChain, ServersAndArchive, manifest_key, read_manifest
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveDiffersError,
    ArchiveNotFoundError,
    ArchiveRefusedError,
    ArchiveUnavailableError,
    HistoryTrimmedError,
)
from journal.limits import archive_block_bytes, archive_read_bytes
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.journal.test_files import files
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, cut, flipped, serving, status

LINES = 24


@pytest.fixture(scope="module")
def service() -> Iterator[FakeS3]:
    with serving() as found:
        client.cache_clear()
        client().create_bucket(Bucket=BUCKET)
        yield found


@pytest.fixture
def s3(service: FakeS3) -> Iterator[FakeS3]:
    """The service, behaving well, with an empty bucket."""
    empty()
    service.seen.clear()
    yield service
    service.rules.clear()


@cache
def client() -> Any:
    return boto3.session.Session().client("s3")


def keys() -> list[str]:
    return [one["Key"] for one in client().list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def empty() -> None:
    if found := [{"Key": key} for key in keys()]:
        client().delete_objects(Bucket=BUCKET, Delete={"Objects": found})


def bucket(**options: Any) -> Bucket:
    """Without waits between tries."""
    return Bucket(parse_s3_url(f"s3://{BUCKET}/dos"), **{"retry_s": 0.0, "tries": 3, **options})


def write_lines(store: MemoryStore, path: Path, epoch: int = 1, count: int = LINES) -> list[int]:
    """A journaled file of lines, in several segments, with snapshots; the logical offset after each line."""

    async def fill() -> list[int]:
        offsets = []
        options = {"recovery_bytes": 1300, "segment_bytes": 500}
        async with await Directory.open(path, store.claim(epoch), **options) as directory:
            for number in range(count):
                await directory.append("log", b"%03d\n" % number)
                offsets.append(directory.end.size)
            await directory.wait_synced()
        return offsets

    return trio.run(fill)


def lines(count: int) -> bytes:
    return b"".join(b"%03d\n" % number for number in range(count))


def archived(store: MemoryStore, **options: Any) -> Archived:
    async def run() -> Archived:
        return await archive_chain(store, DIRECTORY, "files", bucket(), **options)

    return trio.run(run)


async def opened(one: Bucket | None = None) -> ArchivedChain:
    one = one or bucket()
    return ArchivedChain(one, await read_manifest(one, DIRECTORY, "files"))


def restored(into: Path, at: int | None = None, one: Bucket | None = None) -> dict[str, bytes]:
    """From the bucket alone."""

    async def run() -> None:
        await restore(into, await opened(one), DIRECTORY, at=at)

    trio.run(run)
    return files(into)


def sealed_end(store: MemoryStore) -> int:
    async def run() -> int:
        return (await sealed_spans(store, DIRECTORY, "files")).end.size

    return trio.run(run)


def recovered(store: MemoryStore) -> list[str]:
    """The segments that a recovery reads."""
    return [span.name for span in trio.run(look_chain, store, DIRECTORY, "files").segments]


# --- archives and restores --------------------------------------------------------------------------------


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


def test_an_interrupted_run_goes_on_where_it_was(s3: FakeS3, tmp_path: Path) -> None:
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

    with pytest.raises(HistoryTrimmedError, match="name its archive"):
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


# --- bad answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "make", "error", "words"),
    [
        ("GET", status(403, "AccessDenied"), ArchiveRefusedError, "403 AccessDenied.*credentials"),
        ("PUT", status(403, "AccessDenied"), ArchiveRefusedError, "403 AccessDenied"),
        ("PUT", status(404, "NoSuchBucket"), ArchiveNotFoundError, "404 NoSuchBucket.*check bucket"),
        ("PUT", status(503, "SlowDown"), ArchiveUnavailableError, "up to 3 times.*try again later"),
        ("GET", status(500, "InternalError"), ArchiveUnavailableError, "InternalError"),
        ("GET", cut, ArchiveUnavailableError, "up to 3 times"),
        ("GET", flipped, ArchiveDamagedError, "expected .* bytes with SHA-256 .*, found"),
    ],
)
def test_what_a_bad_service_answers_while_archiving_is_named(
    s3: FakeS3,
    tmp_path: Path,
    method: str,
    make: Callable[[Answer], Answer],
    error: type[Exception],
    words: str,
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    s3.rules.append(Rule(method, "files.0", make))
    with pytest.raises(error, match=words):
        archived(store)
    assert manifest_key(DIRECTORY, "files") not in str(keys()), "nothing that was not read back is listed"
    s3.rules.clear()
    assert archived(store).copied_segments > 0
    assert restored(tmp_path / "end")["log"]


@pytest.mark.parametrize("make", [status(503, "SlowDown"), status(500, "InternalError"), cut])
def test_what_passes_is_tried_again(s3: FakeS3, tmp_path: Path, make: Callable[[Answer], Answer]) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    s3.rules += [Rule("GET", "files.0", make, times=2)]
    done = archived(store)
    s3.rules = [Rule("GET", "files.0", make, times=2), Rule("GET", ".archive", make, times=2)]
    assert restored(tmp_path / "end")["log"]
    assert done.copied_segments > 0
    assert [rule.met for rule in s3.rules] == [2, 2]


def test_a_service_that_is_slow_is_waited_for_so_long_and_asked_again(s3: FakeS3, tmp_path: Path) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=12)
    archived(store)
    held = threading.Event()
    try:
        s3.rules.append(Rule("GET", "files.0", lambda answer: answer, times=1, wait=held))
        assert restored(tmp_path / "once", one=bucket(timeout_s=0.5))["log"]
        s3.rules[:] = [Rule("GET", "files.0", lambda answer: answer, wait=held)]
        with pytest.raises(ArchiveUnavailableError, match=r"[Tt]imeout|timed out"):
            restored(tmp_path / "never", one=bucket(timeout_s=0.2))
    finally:
        held.set()
    assert not (tmp_path / "never").exists()


def test_the_wait_between_tries_doubles(s3: FakeS3) -> None:
    waits: list[float] = []
    s3.rules.append(Rule("GET", "x", status(503, "SlowDown")))
    with pytest.raises(ArchiveUnavailableError):
        bucket(tries=4, retry_s=0.5, sleep=waits.append).get("x")
    assert waits == [0.5, 1.0, 2.0]


def swap(first: str, second: str) -> None:
    client().copy_object(Bucket=BUCKET, Key=first, CopySource={"Bucket": BUCKET, "Key": second})


def shorten(key: str, _: str) -> None:
    body = client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    client().put_object(Bucket=BUCKET, Key=key, Body=body[:-1])


def flip(key: str, _: str) -> None:
    body = bytearray(client().get_object(Bucket=BUCKET, Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    client().put_object(Bucket=BUCKET, Key=key, Body=bytes(body))


def remove(key: str, _: str) -> None:
    client().delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (swap, "expected"),
        (shorten, "found the end"),
        (flip, "a block with SHA-256"),
        (remove, "no such object"),
    ],
)
def test_a_bucket_that_was_tampered_with_restores_nothing(
    s3: FakeS3, tmp_path: Path, harm: Callable[[str, str], None], words: str
) -> None:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=18)
    archived(store)
    segments = sorted(key for key in keys() if not key.endswith(".archive"))
    harm(segments[-1], segments[0])
    with pytest.raises(ArchiveDamagedError, match=words) as refused:
        restored(tmp_path / "end")
    assert segments[-1] in str(refused.value)
    assert not (tmp_path / "end").exists()


def test_an_archive_that_is_not_there_is_named(s3: FakeS3) -> None:
    with pytest.raises(ArchiveNotFoundError, match=r"has no archive of chain files in app\.w0000"):
        trio.run(opened)
    with pytest.raises(ArchiveNotFoundError, match="NoSuchBucket"):
        Bucket(parse_s3_url("s3://nobodys/dos"), tries=1).get("x")

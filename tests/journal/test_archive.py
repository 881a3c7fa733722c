"""Archives: what is copied comes back, whatever the bucket answers; the manifest; reads ahead."""

import gzip
import hashlib
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import trio

from dos_protocol.errors import CorruptDataError
from dos_protocol.sealed import SealedLayout
from journal import Directory, restore
from journal.archive.archiving import archive_chain, sealed_spans, trim_archive
from journal.archive.bucket import Bucket, parse_s3_url
from journal.archive.reading import ServersAndArchive, in_order, manifest_key, read_manifest
from journal.core.archive_manifest import (
    LAYOUT,
    ArchivedSegment,
    ArchiveManifest,
    decode_manifest,
    encode_manifest,
)
from journal.core.chain import Position, SegmentSpan, segment_name
from journal.core.errors import (
    ArchiveDamagedError,
    ArchiveDiffersError,
    ArchiveNotFoundError,
    ArchiveRefusedError,
    ArchiveUnavailableError,
    HistoryMissingError,
    HistoryTrimmedError,
)
from journal.core.file_ops import ReplayStop
from journal.files.history import TrimPlan
from journal.limits import archive_block_bytes, archive_read_bytes, archive_reads_ahead_max
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
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, cut, flipped, status


def written(tmp_path: Path, count: int = LINES) -> MemoryStore:
    store = MemoryStore()
    write_lines(store, tmp_path / "live", count=count)
    return store


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
    store = written(tmp_path)
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
    store = written(tmp_path)
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
    store = written(tmp_path)
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
    store = written(tmp_path)
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


def segment(epoch: int, base: int, length: int) -> ArchivedSegment:
    blocks = bytes(32) * -(-length // archive_block_bytes)
    sha256 = hashlib.sha256(b"x").digest()
    return ArchivedSegment(segment_name("files", epoch, base), base, length, 2**64 - epoch, sha256, blocks)


def manifest(end: Position, *segments: ArchivedSegment) -> ArchiveManifest:
    return ArchiveManifest("ledger", "files", "77" * 16, end, segments)


WHOLE = manifest(Position(2, 700, 5), segment(1, 0, 500), segment(2, 500, archive_block_bytes + 1))


def test_a_manifest_returns_as_it_was() -> None:
    assert decode_manifest(encode_manifest(WHOLE), "here") == WHOLE


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    data = encode_manifest(WHOLE)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode_manifest(data[:length], "here")
    with pytest.raises(CorruptDataError):
        decode_manifest(data + b"x", "here")
    for place in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode_manifest(bytes(bad), "here")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (manifest(Position(2, 700, 5), segment(1, 0, 500)), "an end within a segment"),
        (manifest(Position(1, 501, 5), segment(1, 0, 500)), "an end within a segment"),
        (msgspec.structs.replace(WHOLE, chain="state"), "segments of chain state"),
        *(
            (manifest(Position(1, 5, 5), msgspec.structs.replace(segment(1, 0, 5), name=name)), "segments of")
            for name in ("../files.0000000000000001.0000000000000000", "/etc/passwd", "..", "")
        ),
        (
            manifest(Position(1, 5, 5), msgspec.structs.replace(segment(1, 0, 5), blocks=b"")),
            "1 block digests",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(bad: ArchiveManifest, text: str) -> None:
    with pytest.raises(CorruptDataError, match=text):
        decode_manifest(encode_manifest(bad), "here")


def test_a_newer_version_reports_it() -> None:
    newer = SealedLayout("manifest", LAYOUT.magic, rest="JSON", version=2).seal(rest=b"{}")
    with pytest.raises(CorruptDataError, match=r"version 1.*use a newer release"):
        decode_manifest(newer, "here")


def test_two_are_merged_and_another_stores_is_refused() -> None:
    other = manifest(Position(1, 500, 1), segment(1, 0, 500), segment(1, 0, 300), segment(3, 500, 9))
    merged = WHOLE.merged(other)
    assert [(one.base, one.length) for one in merged.segments] == [
        (0, 300),
        (0, 500),
        (500, archive_block_bytes + 1),
        (500, 9),
    ]
    assert merged.end == WHOLE.end
    assert sorted(merged.line()) == [segment_name("files", 1, 0), segment_name("files", 2, 500)]
    assert merged.line()[segment_name("files", 1, 0)].length == 500
    assert merged.last_length == 200
    with pytest.raises(ArchiveDiffersError, match="of store 6666"):
        WHOLE.merged(msgspec.structs.replace(other, store_id="66" * 16))


def test_other_bytes_of_that_length_are_no_match() -> None:
    assert WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 500, 2**64 - 1))
    assert not WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 400, 7))
    with pytest.raises(ArchiveDiffersError, match="has prefix digest 0000000000000007"):
        WHOLE.holds(SegmentSpan(segment_name("files", 1, 0), 0, 500, 7))


class Reads:
    """Numbered reads; `taken` is what came out. A read waits until `last_needed` has begun."""

    def __init__(self, count: int, *, last_needed: int = 0, broken: int = -1) -> None:
        self.begun: list[int] = []
        self.taken: list[int] = []
        self.ahead_most = 0
        self._broken = broken
        self._needed = last_needed
        self._enough = threading.Event()
        self.reads = [lambda number=number: self._read(number) for number in range(count)]

    def _read(self, number: int) -> bytes:
        self.begun.append(number)
        self.ahead_most = max(self.ahead_most, len(self.begun) - len(self.taken))
        if number >= self._needed:
            self._enough.set()
        assert self._enough.wait(10), f"nobody began read {self._needed}"
        if number == self._broken:
            raise OSError(f"read {number}")
        return b"%d" % number

    async def take(self, count: int = 1000) -> None:
        async with aclosing(in_order(self.reads)) as parts:
            async for data in parts:
                self.taken.append(int(data))
                if len(self.taken) == count:
                    return


def test_parts_come_in_order_and_all_of_them() -> None:
    reads = Reads(9)
    trio.run(reads.take)
    assert reads.taken == list(range(9))
    nothing = Reads(0)
    trio.run(nothing.take)
    assert nothing.taken == []


def test_later_parts_are_asked_for_while_the_first_is_on_its_way_but_not_too_many() -> None:
    reads = Reads(9, last_needed=archive_reads_ahead_max)
    trio.run(reads.take)
    assert reads.ahead_most == archive_reads_ahead_max + 1


def test_what_is_wrong_with_a_part_is_reported_where_it_would_have_come() -> None:
    reads = Reads(5, last_needed=1, broken=1)
    with pytest.raises(OSError, match="read 1"):
        trio.run(reads.take)
    assert reads.taken == [0]


def test_who_stops_early_has_no_further_part_asked_for() -> None:
    reads = Reads(9)
    trio.run(reads.take, 2)
    assert reads.taken == [0, 1]
    assert len(reads.begun) <= 2 + archive_reads_ahead_max


def test_who_gives_up_leaves_a_read_that_hangs_alone() -> None:
    hangs = threading.Event()

    async def give_up() -> bool:
        with trio.move_on_after(0.05) as scope:
            async with aclosing(in_order([lambda: bytes(hangs.wait(30))])) as parts:
                async for _ in parts:
                    pass
        return scope.cancelled_caught

    begin = time.monotonic()
    try:
        assert trio.run(give_up)
        assert time.monotonic() - begin < 10
    finally:
        hangs.set()


@pytest.mark.parametrize(
    ("method", "make", "error", "text"),
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
    text: str,
) -> None:
    store = written(tmp_path, 12)
    s3.rules.append(Rule(method, "files.0", make))
    with pytest.raises(error, match=text):
        archived(store)
    assert manifest_key(DIRECTORY, "files") not in str(keys()), "nothing that was not read back is listed"
    s3.rules.clear()
    assert archived(store).copied_segments > 0
    assert restored(tmp_path / "end")["log"]


BOMB_BYTES = 64 * 1024 * 1024


@contextmanager
def another_host() -> Iterator[tuple[str, list[str]]]:
    """A host that is none of ours, and what it was asked for."""
    asked: list[str] = []

    class Host(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(200)
            self.end_headers()

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/files", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("code", [301, 302, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_who_is_sent_to_another_host_does_not_go_there(
    s3: FakeS3, tmp_path: Path, code: int, method: str
) -> None:
    store = written(tmp_path, 12)
    with another_host() as (place, asked):
        s3.rules.append(
            Rule(method, "files.0", lambda _: (code, {"Location": place, "Content-Length": "0"}, b""))
        )
        with pytest.raises(ArchiveRefusedError, match=f"{code}"):
            archived(store)
    assert asked == [], "and no credentials either"


def test_what_is_packed_on_the_way_is_not_unpacked(s3: FakeS3, tmp_path: Path) -> None:
    store = written(tmp_path, 12)
    archived(store)
    bomb = gzip.compress(bytes(BOMB_BYTES))
    headers = {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}
    s3.rules.append(Rule("GET", "files.0", lambda _: (200, headers, bomb)))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveDamagedError, match=r"files\.0"):
            restored(tmp_path / "end")
        assert tracemalloc.get_traced_memory()[1] < BOMB_BYTES / 2
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "end").exists()


def test_what_a_service_calls_a_version_is_taken_for_no_digest(s3: FakeS3, tmp_path: Path) -> None:
    def of_parts(answer: Answer) -> Answer:
        code, headers, body = answer
        return (
            code,
            {name: value for name, value in headers.items() if name.lower() != "etag"}
            | {"ETag": '"0123456789abcdef0123456789abcdef-7"'},
            body,
        )

    store = written(tmp_path, 12)
    s3.rules += [Rule(method, "files.0", of_parts) for method in ("PUT", "GET", "HEAD")]
    assert archived(store).copied_segments > 0
    assert restored(tmp_path / "end")["log"]


@pytest.mark.parametrize("make", [status(503, "SlowDown"), status(500, "InternalError"), cut])
def test_what_passes_is_tried_again(s3: FakeS3, tmp_path: Path, make: Callable[[Answer], Answer]) -> None:
    store = written(tmp_path, 12)
    s3.rules += [Rule("GET", "files.0", make, times=2)]
    done = archived(store)
    s3.rules = [Rule("GET", "files.0", make, times=2), Rule("GET", ".archive", make, times=2)]
    assert restored(tmp_path / "end")["log"]
    assert done.copied_segments > 0
    assert [rule.met for rule in s3.rules] == [2, 2]


def test_a_service_that_is_slow_is_waited_for_so_long_and_asked_again(s3: FakeS3, tmp_path: Path) -> None:
    store = written(tmp_path, 12)
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
    ("harm", "text"),
    [
        (swap, "expected"),
        (shorten, "found the end"),
        (flip, "a block with SHA-256"),
        (remove, "no such object"),
    ],
)
def test_a_bucket_that_was_tampered_with_restores_nothing(
    s3: FakeS3, tmp_path: Path, harm: Callable[[str, str], None], text: str
) -> None:
    store = written(tmp_path, 18)
    archived(store)
    segments = sorted(key for key in keys() if not key.endswith(".archive"))
    harm(segments[-1], segments[0])
    with pytest.raises(ArchiveDamagedError, match=text) as refused:
        restored(tmp_path / "end")
    assert segments[-1] in str(refused.value)
    assert not (tmp_path / "end").exists()


@pytest.mark.parametrize("directory", ["other", "../other", "/etc"])
def test_the_manifest_of_another_directory_is_refused(s3: FakeS3, tmp_path: Path, directory: str) -> None:
    store = written(tmp_path, 12)
    archived(store)
    (key,) = (one for one in keys() if one.endswith(".archive"))
    manifest = decode_manifest(client().get_object(Bucket=BUCKET, Key=key)["Body"].read(), key)
    strange = encode_manifest(msgspec.structs.replace(manifest, directory=directory))
    client().put_object(Bucket=BUCKET, Key=key, Body=strange)
    with pytest.raises(ArchiveDamagedError, match=f"that of {directory}/files"):
        restored(tmp_path / "end")
    assert not (tmp_path / "end").exists()


def test_an_archive_that_is_missing_is_named(s3: FakeS3) -> None:
    with pytest.raises(ArchiveNotFoundError, match=r"has no archive of chain files in app\.w0000"):
        trio.run(opened)
    with pytest.raises(ArchiveNotFoundError, match="NoSuchBucket"):
        Bucket(parse_s3_url("s3://nobodys/dos"), tries=1).get("x")

"""Targets of backups, the records in them, and backups at intervals."""

import hashlib
import math
import struct
from contextlib import aclosing, asynccontextmanager

import boto3
import pytest
import trio

from checkpoint import limits
from checkpoint.core.records.backups import (
    PIECE_PREFIX,
    RECORD_PREFIX,
    RunBegan,
    decode_record,
    encode_record,
    parse_piece_name,
    piece_name,
    record_name,
    retained_after,
)
from checkpoint.errors import BackupDamagedError, BackupRefusedError
from checkpoint.maintenance.backup import BackupDone, keep_backing_up, newest_backup
from checkpoint.maintenance.backup_target import content, open_target
from dos_client import QuorumUnavailableError, open_store, randomness
from dos_server.testing import memory_store
from tests.checkpoint.backup_model import MemoryPlace, run
from tests.support.s3 import BUCKET, Rule, flipped, serving


@pytest.fixture(scope="module")
def service():
    with serving() as fake:
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
        yield fake


async def put(place, name: str, data: bytes) -> bool:
    return await place.put(name, data, hashlib.sha256(data).digest())


@asynccontextmanager
async def opened(kind: str, region: str):
    if kind == "memory":
        yield None, MemoryPlace()
    elif kind == "bucket":
        async with open_target(f"s3://{BUCKET}/backups") as target, target.place(region) as place:
            yield target, place
    else:
        async with (
            memory_store() as servers,
            open_target(f"{servers.url}/copies") as target,
            target.place(region) as place,
        ):
            yield target, place


@pytest.mark.parametrize("kind", ["memory", "bucket", "store"])
def test_what_every_place_does(service, kind):
    del service
    one, other = piece_name(1, "ab" * 32), record_name(7)

    async def main():
        async with opened(kind, "orders") as (target, place):
            assert await place.sizes(RECORD_PREFIX) == await place.sizes(PIECE_PREFIX) == {}
            large = bytes(range(256)) * 5_000
            assert await put(place, one, large)
            assert await put(place, other, b"the record")
            assert await place.sizes(PIECE_PREFIX) == {one: len(large)}
            assert await place.sizes(RECORD_PREFIX) == {other: 10}
            assert await content(place, one) == large
            async with aclosing(place.contents([other, one, other])) as contents:
                assert [len(data) async for data in contents] == [10, len(large), 10]
            with pytest.raises(BackupDamagedError, match=f"{record_name(8)}: there is no such object"):
                await content(place, record_name(8))
            if target is not None:
                assert await target.regions() == ["orders"]
                async with target.place("orders") as again:  # a later process
                    assert await put(again, other, b"the record"), "the same bytes"
                    assert not await put(again, other, b"another one")
                    assert not await put(again, other, b"the")
                    assert await content(again, other) == b"the record"
                    assert await again.delete([one, piece_name(2, "ab" * 32)])
                    assert await again.sizes(PIECE_PREFIX) == {}
                    assert await put(again, piece_name(3, "ab" * 32), large)

    run(main) if kind != "bucket" else trio.run(main)


def test_bytes_that_a_service_changes_are_found_when_they_are_written(service):
    async def main():
        async with opened("bucket", "changed") as (_, place):
            service.rules.append(rule := Rule("PUT", "piece-", _other_digest))
            read = len([one for one in service.seen if one[0] == "GET"])
            assert await put(place, piece_name(1, "cd" * 32), b"x" * 100), "read back, and as it should be"
            assert len([one for one in service.seen if one[0] == "GET"]) == read + 1
            service.rules.append(also := Rule("GET", "piece-", flipped))
            with pytest.raises(BackupDamagedError, match="it has other bytes than were stored a moment ago"):
                await put(place, piece_name(2, "cd" * 32), b"x" * 100)
            service.rules.remove(rule)
            service.rules.remove(also)

    trio.run(main)


def _other_digest(answer):
    code, headers, body = answer
    return code, {**headers, "ETag": '"of-an-encrypted-object"'}, body


def test_a_record_whose_write_was_interrupted_is_none_and_the_next_run_goes_on():
    async def main():
        async with memory_store() as servers, open_store(servers.url) as store:
            whole = encode_record(RunBegan(run="00", newest=0, wall_time_ms=1))
            async with await store.claim("copies.backup.orders", 1, randomness.fresh_id()) as claim:
                writer = claim.open_object(record_name(1))
                await writer.wait_synced(writer.append(whole[:20]))
            async with open_target(f"{servers.url}/copies") as target, target.place("orders") as place:
                assert await newest_backup(place) is None
                assert not await put(place, record_name(1), b"other")

    run(main)


def test_every_change_of_a_record_is_found_and_every_part_of_one_is_none():
    data = encode_record(RunBegan(run="0123", newest=3, wall_time_ms=99))
    assert decode_record(data, "here") == RunBegan(run="0123", newest=3, wall_time_ms=99)
    for end in range(len(data)):
        assert decode_record(data[:end], "here") is None
    found = 0
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                assert decode_record(bytes(changed), "here") is None, "its length is larger"
            except BackupDamagedError:
                found += 1
    assert found > 8 * len(data) - 64, "all but those of the length"


HEADER = struct.Struct(">4sBBHQ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *((1, version, f"it has version {version}, this program reads 1.*newer") for version in (0, 2, 255)),
        *((2, kind, f"its header is invalid: kind {kind}") for kind in (0, 3, 255)),
        *((3, zero, "its header is invalid") for zero in (1, 65_535)),
        (4, limits.backup_record_bytes_max + 1, "its header is invalid"),
    ],
)
def test_a_record_with_its_sum_and_a_header_of_other_programs_is_refused(field, value, message):
    body = encode_record(RunBegan(run="0123", newest=3, wall_time_ms=99))[HEADER.size : -32]
    fields = [b"\xffDBK", 1, 1, 0, len(body)]

    def decoded():
        data = HEADER.pack(*fields) + body
        return decode_record(data + hashlib.sha256(data).digest(), "here")

    assert decoded() == RunBegan(run="0123", newest=3, wall_time_ms=99)
    fields[field] = value
    with pytest.raises(BackupDamagedError, match=message):
        decoded()


@pytest.mark.parametrize("name", ["piece-1-ab", "piece-" + "g" * 16 + "-" + "ab" * 32, "record-1", "", "x"])
def test_names_of_other_objects_are_not_taken_for_pieces(name):
    assert parse_piece_name(name) is None


def test_the_newest_backups_are_retained():
    assert retained_after(None, 5, 3) == (5,)

    class Newest:
        retained = (3, 5, 9)

    assert retained_after(Newest(), 12, 3) == (5, 9, 12)
    assert retained_after(Newest(), 12, 1) == (12,)


def test_a_target_is_a_bucket_or_a_directory_of_a_store():
    async def main(url):
        async with open_target(url):
            raise AssertionError("it was opened")

    for url in ("dos://h1", "dos://h1/a/b"):
        with pytest.raises(BackupRefusedError, match="is not a target of backups"):
            trio.run(main, url)


def test_backups_at_intervals_state_the_loss_window_and_go_on_after_a_failure():
    times, begun = [10.0, 20.0, 5.0], []

    async def once():
        begun.append(trio.current_time())
        seconds = times[len(begun) - 1]
        await trio.sleep(seconds)
        if len(begun) == 2:
            raise QuorumUnavailableError("two members are gone", [])
        return BackupDone(len(begun), 7, 70, 1_000, 13_000, seconds, 100, 1, 100, (), ())

    async def main():
        start = trio.current_time()
        async with aclosing(keep_backing_up(once, 60.0)) as rounds:
            first, second, third = [await anext(rounds) for _ in range(3)]
        assert [at - start for at in begun] == [0.0, 70.0, 150.0]
        assert (first.done.number, first.loss_window_s) == (1, 12.0 + 60.0 + 10.0)
        assert (second.done, "two members are gone" in second.error) == (None, True)
        assert second.loss_window_s == first.loss_window_s + 60.0 + 20.0
        assert third.loss_window_s == 12.0 + 60.0 + 5.0

    run(main)


def test_backups_at_intervals_end_if_the_first_one_can_never_be_made():
    async def refused():
        await trio.lowlevel.checkpoint()
        raise BackupRefusedError("it is a fork")

    async def unavailable():
        await trio.lowlevel.checkpoint()
        raise QuorumUnavailableError("nobody is there", [])

    async def main(once):
        async with aclosing(keep_backing_up(once, 60.0)) as rounds:
            return await anext(rounds)

    with pytest.raises(BackupRefusedError, match="it is a fork"):
        run(main, refused)
    assert run(main, unavailable).loss_window_s == math.inf

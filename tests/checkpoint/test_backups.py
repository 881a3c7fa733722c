"""Backups of a region and restores of them: what is copied and refused, what a crash at any point leaves, the
targets, and backups at intervals.
"""

import hashlib
import json
import math
import struct
from contextlib import aclosing, asynccontextmanager

import boto3
import msgspec
import pytest
import trio
from msgspec.structs import replace

from checkpoint import limits
from checkpoint.chains.consumer_register import QueryRegistration, read_register, register_consumer
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.cli.backup import _done_text, _restored_text
from checkpoint.core.records.backups import (
    PIECE_PREFIX,
    RECORD_PREFIX,
    RunBegan,
    decode_record,
    encode_record,
    needed_chains,
    parse_piece_name,
    piece_name,
    record_name,
    retained_after,
)
from checkpoint.core.records.consumers import input_register, output_register
from checkpoint.core.records.manifest import ForkOrigin, OutputIdentity
from checkpoint.errors import BackupDamagedError, BackupRefusedError, NoRegionError
from checkpoint.maintenance.backup import BackupDone, backups_of, keep_backing_up, newest_backup
from checkpoint.maintenance.backup_restoring import restore_backup
from checkpoint.maintenance.backup_target import content, open_target
from dos_client import QuorumUnavailableError, open_store, randomness
from dos_server.testing import memory_store
from journal import Op, inspect_chain, read_records
from tests.checkpoint.backup_model import (
    APPLICATION,
    HANDLE,
    INPUT,
    PRODUCER,
    REGION,
    WORKER,
    BackedUpRegion,
    BrokenError,
    Failing,
    FailingPlace,
    FailingStore,
    MemoryPlace,
    RememberedSavepoints,
    pieces_there,
    records_at,
    run,
    whole,
)
from tests.support.s3 import BUCKET, Rule, flipped, serving


@asynccontextmanager
async def opened():
    """A region, and a place for its backups."""
    async with (
        memory_store(1, seed=1) as servers,
        open_store(servers.url) as store,
        BackedUpRegion.open(store) as region,
    ):
        yield region, MemoryPlace()


@asynccontextmanager
async def empty_store(seed=3):
    async with memory_store(1, seed=seed) as servers, open_store(servers.url) as store:
        yield store


# EVIDENCE-OF: P-6
@pytest.mark.trio
async def test_a_backup_has_each_chain_up_to_the_checkpoint_and_a_restore_reads_the_same(autojump_clock):
    async with opened() as (region, place), empty_store() as new:
        await region.advance(rolls=True)
        done = await region.back_up(place)
        assert done.copied_bytes == done.bytes
        checkpoint = region.last
        assert (done.checkpoint, done.step) == (checkpoint.number, checkpoint.step)
        assert await region.savepoints() == {}
        wanted = await records_at(region.store, checkpoint)
        record = await newest_backup(place)
        restored = await restore_backup(place, record, new)
        (first,) = await retained_checkpoints(new, REGION)
        assert first.number == restored.checkpoint == checkpoint.number + 1
        assert (first.line, first.rewound, first.rolled_back_to) == (1, True, checkpoint.number)
        assert await records_at(new, first) == wanted
        assert all(len(records) >= 2 for records in wanted.values())
        last = await last_recorded(new, APPLICATION, HANDLE, PRODUCER)
        assert (last.batch, last.end) == (region.input.last, region.input.last_end)
        async with await InputLog.open(new, APPLICATION, HANDLE, PRODUCER) as producer:
            assert producer.last == region.input.last
            await producer.append([(1, b"more")], number=producer.last + 1)
            await producer.recorded(producer.last)


@pytest.mark.trio
async def test_a_backup_and_a_restore_name_the_registered_readers_that_are_not_in_it(autojump_clock):
    async with opened() as (region, place), empty_store() as new:
        await region.advance()
        assert (await region.back_up(place)).left_out == ()
        register = input_register(APPLICATION, HANDLE)
        await register_consumer(region.store, register, "report", "in")
        query = QueryRegistration(StoreHost(region.store), register, "board", session="s", retain_s=0.0)
        await query.begin(None)
        await register_consumer(region.store, output_register(REGION, "shown"), "later", "in")
        done = await region.back_up(place)
        named = (f"report (input {HANDLE!r})", f"query:board (input {HANDLE!r})", "later (output 'shown')")
        assert sorted(done.left_out) == sorted(named)
        for name in named:
            assert name in _done_text(done)
        restored = await restore_backup(place, await newest_backup(place), new)
        assert restored.left_out == done.left_out
        assert "have registered there" in _restored_text(restored)
        assert list((await read_register(new, register)).consumers) == [REGION]


@pytest.mark.trio
async def test_the_second_backup_copies_only_what_changed(autojump_clock):
    async with opened() as (region, place):
        await region.advance(size=100_000)
        first = await region.back_up(place)
        again = await region.back_up(place)
        assert (again.copied_bytes, again.bytes) == (0, first.bytes), "nothing changed"
        await region.advance(size=1_000)
        second = await region.back_up(place)
        assert second.copied_bytes == second.bytes - first.bytes, "the tails only"
        assert second.copied_bytes < 10_000 < first.bytes / 20
        assert await whole(place) == [again.number, second.number]


@pytest.mark.trio
async def test_a_segment_of_many_small_pieces_is_copied_again_as_a_whole(monkeypatch, autojump_clock):
    monkeypatch.setattr(limits, "backup_small_pieces_max", 3)
    async with opened() as (region, place):
        most = 0
        for _ in range(6):
            await region.advance()
            await region.back_up(place, keep=1)
            record = await newest_backup(place)
            most = max(len(one.pieces) for chain in record.chains for one in chain.segments)
            assert most <= 3
            assert await pieces_there(place) == record.pieces().keys()
        assert await whole(place) == [record.number]


@pytest.mark.trio
async def test_older_backups_go_with_what_only_they_need(monkeypatch, autojump_clock):
    monkeypatch.setattr(limits, "backup_small_pieces_max", 2)  # segments are copied again, so pieces differ
    async with opened() as (region, place):
        made: list[int] = []
        for count in range(1, 5):
            await region.advance(rolls=count % 2 == 0)
            done = await region.back_up(place, keep=2)
            made.append(done.number)
            assert done.released == tuple(made[-3:-2]), "the backup, and no record of a run"
            numbers = await whole(place)
            assert len(numbers) == min(count, 2)
            assert numbers[-1] == done.number
        needed = {name for record in await backups_of(place) for name in record.pieces()}
        assert await pieces_there(place) == needed
        assert len(await place.sizes(RECORD_PREFIX)) <= 2 + 1, "and its own beginning"


@pytest.mark.trio
async def test_a_crash_at_any_step_of_a_backup_leaves_the_older_backup_or_the_new_one(autojump_clock):
    async with opened() as (region, place):
        last = (await region.back_up(place)).number
        savepoints, committed = RememberedSavepoints(region), True
        for fails_at in range(1, 100):
            if committed:
                await region.advance(rolls=fails_at % 3 == 0)
            failing, done = Failing(fails_at), None
            try:
                done = await region.back_up(FailingPlace(place, failing), savepoints)
            except* BrokenError:
                assert done is None
            assert savepoints.held == set()
            numbers = await whole(place)
            assert numbers[-1] >= last
            last, committed = numbers[-1], numbers[-1] > last
            if done is not None:
                break
        assert done.number == last
        assert 15 < fails_at < 99, "it has failed at every step"
        async with empty_store() as new:
            await restore_backup(place, await newest_backup(place), new)
            (first,) = await retained_checkpoints(new, REGION)
            assert await records_at(new, first) == await records_at(region.store, region.last)
        await region.back_up(place)
        needed = {name for record in await backups_of(place) for name in record.pieces()}
        assert await pieces_there(place) == needed, "and what the crashes left is deleted"


@pytest.mark.trio
async def test_what_the_target_has_lost_is_copied_again(autojump_clock):
    async with opened() as (region, place):
        first = await region.back_up(place)
        (lost, *_) = sorted(await pieces_there(place))
        await place.delete([lost])
        second = await region.back_up(place, keep=1)
        assert 0 < second.copied_bytes < first.copied_bytes
        assert await whole(place) == [second.number]


@pytest.mark.trio
async def test_a_run_that_another_one_followed_is_given_up(autojump_clock):
    class Overtaken(FailingPlace):
        """Another run begins and ends before our record is written."""

        overtaken = False

        async def put(self, name, data, sha256):
            if name.startswith(RECORD_PREFIX) and len(data) > 1_000 and not self.overtaken:
                self.overtaken = True
                self.other = await self.region.back_up(self._place, RememberedSavepoints(self.region), keep=1)
            return await super().put(name, data, sha256)

    async with opened() as (region, place):
        await region.back_up(place)
        await region.advance()
        overtaken = Overtaken(place, Failing(0))
        overtaken.region = region
        with pytest.raises(BackupRefusedError, match="another run began after the one of"):
            await region.back_up(overtaken)
        assert await whole(place) == [overtaken.other.number], "which used pieces of the first one"


@pytest.mark.trio
async def test_a_run_that_wakes_up_after_others_have_deleted_its_number_is_given_up(autojump_clock):
    async with opened() as (region, place):
        kept = {}

        class Late(FailingPlace):
            async def put(self, name, data, sha256):
                if name.startswith(RECORD_PREFIX) and len(data) > 1_000:
                    for _ in range(2):
                        await region.advance(rolls=True)
                        await region.back_up(place, RememberedSavepoints(region), keep=1)
                    kept.update(place.objects)
                    assert name not in kept, "its number is free again"
                return await super().put(name, data, sha256)

        with pytest.raises(BackupRefusedError, match="another run began"):
            await region.back_up(Late(place, Failing(0)), RememberedSavepoints(region))
        assert kept.items() <= place.objects.items()
        assert len(await whole(place)) == 1


@pytest.mark.trio
async def test_a_backup_that_is_cancelled_drops_its_savepoint(autojump_clock):
    async with opened() as (region, place):

        class Slow(FailingPlace):
            async def put(self, name, data, sha256):
                if name.startswith(PIECE_PREFIX):
                    assert len(await region.savepoints()) == 1, "it holds the checkpoint"
                    scope.cancel()
                    await trio.sleep_forever()
                return await super().put(name, data, sha256)

        with trio.CancelScope() as scope:
            await region.back_up(Slow(place, Failing(0)))
        assert scope.cancelled_caught
        assert await region.savepoints() == {}
        assert await whole(place) == []


@pytest.mark.trio
async def test_pieces_of_several_segments_are_written_at_the_same_time_and_no_more_than_the_limit(
    autojump_clock,
):
    async with opened() as (region, place):
        for _ in range(3):
            await region.advance(rolls=True)
        begun, full = [], trio.Event()

        class Slow(FailingPlace):
            async def put(self, name, data, sha256):
                if name.startswith(PIECE_PREFIX):
                    begun.append(name)
                    if len(begun) == limits.backup_copies_max:
                        full.set()
                    await full.wait()
                    await trio.testing.wait_all_tasks_blocked()
                    assert len(begun) <= limits.backup_copies_max
                    begun.remove(name)
                return await super().put(name, data, sha256)

        with trio.fail_after(60):
            done = await region.back_up(Slow(place, Failing(0)))
        assert done.copied_objects > limits.backup_copies_max
        assert await whole(place) == [done.number]


@pytest.mark.trio
async def test_a_piece_that_is_refused_ends_the_run_also_while_other_segments_are_read(autojump_clock):
    async with opened() as (region, place):

        class Refusing(FailingPlace):
            async def put(self, name, data, sha256):
                if name.startswith(PIECE_PREFIX):
                    await trio.testing.wait_all_tasks_blocked()
                    return False
                return await super().put(name, data, sha256)

        with pytest.raises(BackupRefusedError, match="exists with other bytes than its name states"):
            await region.back_up(Refusing(place, Failing(0)))
        assert await whole(place) == []
        assert await region.savepoints() == {}


@pytest.mark.trio
async def test_a_fork_without_chains_of_its_own_is_refused(autojump_clock):
    async with opened() as (region, _):
        origin = ForkOrigin(region="other", checkpoint=1, step=1, savepoint="fork-1", application="shop")
        checkpoint = msgspec.structs.replace(region.last, origin=origin, in_origin=True)
        with pytest.raises(BackupRefusedError, match="is a fork without chains of its own"):
            needed_chains(checkpoint, REGION)


@pytest.mark.trio
async def test_a_target_of_another_region_of_that_name_is_refused(autojump_clock):
    async with opened() as (region, place):
        await region.back_up(place)
        async with empty_store() as new, BackedUpRegion.open(new) as other:
            with pytest.raises(BackupRefusedError, match=f"{record_name(2)} is of region '{REGION}' of"):
                await other.back_up(place)
            assert await other.savepoints() == {}


# --- restores ---------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_input_that_was_trimmed_is_not_looked_for(monkeypatch, autojump_clock):
    monkeypatch.setattr(limits, "input_segment_bytes_max", 300)
    async with opened() as (region, place), empty_store() as new:
        for _ in range(4):
            await region.advance()
        await region.back_up(place)
        record = await newest_backup(place)
        (saved,) = [chain for chain in record.chains if chain.directory == INPUT]
        assert saved.released is not None
        assert saved.released[1] > 0
        await restore_backup(place, record, new)
        async with await InputLog.open(new, APPLICATION, HANDLE, PRODUCER) as producer:
            assert producer.last == region.input.last
        chain = await inspect_chain(new, INPUT, "input", floor=saved.released[1] + 1)
        batches = [
            record.ints[0]
            async for _, record in read_records(new, chain, directory=INPUT)
            if record.op is Op.INPUT
        ]
        assert batches[-1] == region.input.last


@pytest.mark.trio
async def test_a_crash_at_any_step_of_a_restore_leaves_no_region_or_all_of_it(autojump_clock):
    async with opened() as (region, place):
        await region.advance()
        await region.back_up(place)
        record, wanted = await newest_backup(place), await records_at(region.store, region.last)
        async with empty_store() as new:
            for fails_at in range(1, 100):  # each one continues, and comes one call further
                failing, restored = Failing(fails_at), None
                try:
                    restored = await restore_backup(
                        FailingPlace(place, failing), record, FailingStore(new, failing)
                    )
                    break
                except* BrokenError:
                    with pytest.raises(NoRegionError):
                        await read_manifest(new, REGION)
            (first,) = await retained_checkpoints(new, REGION)
            assert first.number == restored.checkpoint
            assert await records_at(new, first) == wanted
            assert (await last_recorded(new, APPLICATION, HANDLE, PRODUCER)).batch == region.input.last
        assert 7 < fails_at < 99, "it has failed at every step"


@pytest.mark.trio
async def test_a_restore_continues_in_the_middle_of_a_segment_and_never_after_other_bytes(autojump_clock):
    async with opened() as (region, place):
        await region.advance(size=200_000)
        await region.back_up(place)
        record = await newest_backup(place)
        async with empty_store() as new:
            chain = next(one for one in record.chains if one.chain == "state")
            (segment,) = chain.segments
            with pytest.raises(BrokenError):
                await restore_backup(FailingPlace(place, Failing(1)), record, new)
            view = await new.inspect(WORKER)
            ((epoch, writer),) = view.epochs.values()
            async with await new.claim(WORKER, epoch, writer) as claim:
                other = claim.open_object(segment.name)
                await other.wait_synced(other.append(b"other bytes"))
            with pytest.raises(BackupRefusedError, match=f"{WORKER}/{segment.name} of the store has bytes"):
                await restore_backup(place, record, new)


@pytest.mark.trio
@pytest.mark.parametrize("change", ["flipped", "gone"])
async def test_a_damaged_object_is_refused_by_name(change, autojump_clock):
    class Damaged(FailingPlace):
        async def contents(self, names):
            async with aclosing(self._place.contents(names)) as contents:
                async for data in contents:
                    yield bytes([*data[:-1], data[-1] ^ 1])

    async with opened() as (region, place), empty_store() as new:
        await region.back_up(place)
        record = await newest_backup(place)
        names = [piece.name for chain in record.chains for one in chain.segments for piece in one.pieces]
        broken = Damaged(place, Failing(0))
        if change == "gone":
            broken = place
            await place.delete(names)
        with pytest.raises(BackupDamagedError) as caught:
            await restore_backup(broken, record, new)
        assert any(name in str(caught.value) for name in names)
        with pytest.raises(NoRegionError):
            await read_manifest(new, REGION)
        with pytest.raises(BackupDamagedError, match=r"record-0{15}2: its bytes do not have its SHA-256"):
            await newest_backup(Damaged(place, Failing(0)))


@pytest.mark.trio
@pytest.mark.parametrize(
    "directory",
    ["other.w0000", f"{REGION}.coord", f"{REGION}.requests", f"{REGION}.w0007", "bank.in.orders.p", "bank"],
)
async def test_a_record_with_directories_of_others_is_refused_and_nothing_is_written(
    directory, autojump_clock
):
    async with opened() as (region, place), empty_store() as new:
        await region.back_up(place)
        record = await newest_backup(place)
        (input_chain,) = [chain for chain in record.chains if chain.directory == INPUT]
        planted = replace(input_chain, directory=directory)
        changed = replace(record, chains=(*record.chains, planted))
        with pytest.raises(BackupRefusedError, match=f"{directory}, which does not belong to region"):
            await restore_backup(place, changed, new)
        (register, *others) = record.registers
        bank = replace(register, register=replace(register.register, consumers={"bank": None}))
        for one in (replace(register, directory=directory), bank):
            with pytest.raises(BackupRefusedError, match="does not belong to region"):
                await restore_backup(place, replace(record, registers=(one, *others)), new)
        assert await new.list_directories() == []
        await restore_backup(place, record, new)


@pytest.mark.trio
async def test_directories_that_are_not_empty_are_refused_by_name_and_nothing_changes(autojump_clock):
    async with opened() as (region, place):
        await region.back_up(place)
        record = await newest_backup(place)
        for directory in (WORKER, INPUT):
            async with empty_store() as new:
                async with await new.claim(directory, 1, b"x" * 16) as claim:
                    writer = claim.open_object("there")
                    await writer.wait_synced(writer.append(b"already"))
                with pytest.raises(BackupRefusedError, match=f"{directory} of the store is not empty"):
                    await restore_backup(place, record, new)
                assert await new.list_directories() == [directory]
        with pytest.raises(BackupRefusedError, match="is not empty"):
            await restore_backup(place, record, region.store)


@pytest.mark.trio
async def test_rows_that_a_sink_cannot_take_back_come_again_only_if_that_is_wanted(autojump_clock):
    async with opened() as (region, place), empty_store() as new:
        await region.back_up(place)
        record = await newest_backup(place)
        flags, ints, text = record.stored
        stated = {**json.loads(text), "irrevocable": {"called": "a function is called"}}
        record = msgspec.structs.replace(record, stored=(flags, ints, json.dumps(stated)))
        with pytest.raises(BackupRefusedError, match="come again: 'called': a function is called"):
            await restore_backup(place, record, new, old_is_gone=True)
        assert not await new.list_directories(), "nothing was written"
        restored = await restore_backup(place, record, new, old_is_gone=True, allow_republish=True)
        assert restored.comes_again == ("called",)


@pytest.mark.trio
@pytest.mark.parametrize("old_is_gone", [False, True])
async def test_who_owns_the_output_outside_of_the_store(old_is_gone, autojump_clock):
    async with opened() as (region, place), empty_store() as new:
        await region.back_up(place)
        record = await newest_backup(place)
        restored = await restore_backup(place, record, new, old_is_gone=old_is_gone)
        (first,) = await retained_checkpoints(new, REGION)
        sinks = first.workers[0].sinks
        assert "shown" in sinks
        assert ("file" in sinks) == old_is_gone
        own = OutputIdentity(region=REGION, store=region.store.record.store_id.hex())
        assert first.identity == (own if old_is_gone else None)
        assert restored.begins_anew == (() if old_is_gone else ("file",))
        above = max(region.last.incarnation, first.workers[0].state.epoch)
        assert first.incarnation > above + limits.backup_epochs_ahead


# --- targets ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service():
    with serving() as fake:
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
        yield fake


async def put(place, name: str, data: bytes) -> bool:
    return await place.put(name, data, hashlib.sha256(data).digest())


@asynccontextmanager
async def opened_place(kind: str, region: str):
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
        async with opened_place(kind, "orders") as (target, place):
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


@pytest.mark.trio
async def test_bytes_that_a_service_changes_are_found_when_they_are_written(service):
    async with opened_place("bucket", "changed") as (_, place):
        service.rules.append(rule := Rule("PUT", "piece-", _other_digest))
        read = len([one for one in service.seen if one[0] == "GET"])
        assert await put(place, piece_name(1, "cd" * 32), b"x" * 100), "read back, and as it should be"
        assert len([one for one in service.seen if one[0] == "GET"]) == read + 1
        service.rules.append(also := Rule("GET", "piece-", flipped))
        with pytest.raises(BackupDamagedError, match="it has other bytes than were stored a moment ago"):
            await put(place, piece_name(2, "cd" * 32), b"x" * 100)
        service.rules.remove(rule)
        service.rules.remove(also)


def _other_digest(answer):
    code, headers, body = answer
    return code, {**headers, "ETag": '"of-an-encrypted-object"'}, body


@pytest.mark.trio
async def test_a_record_whose_write_was_interrupted_is_none_and_the_next_run_goes_on(autojump_clock):
    async with memory_store() as servers, open_store(servers.url) as store:
        whole = encode_record(RunBegan(run="00", newest=0, wall_time_ms=1))
        async with await store.claim("copies.backup.orders", 1, randomness.fresh_id()) as claim:
            writer = claim.open_object(record_name(1))
            await writer.wait_synced(writer.append(whole[:20]))
        async with open_target(f"{servers.url}/copies") as target, target.place("orders") as place:
            assert await newest_backup(place) is None
            assert not await put(place, record_name(1), b"other")


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
            raise AssertionError("it was opened_place")

    for url in ("dos://h1", "dos://h1/a/b"):
        with pytest.raises(BackupRefusedError, match="is not a target of backups"):
            trio.run(main, url)


@pytest.mark.trio
async def test_backups_at_intervals_state_the_loss_window_and_go_on_after_a_failure(autojump_clock):
    times, begun = [10.0, 20.0, 5.0], []

    async def once():
        begun.append(trio.current_time())
        seconds = times[len(begun) - 1]
        await trio.sleep(seconds)
        if len(begun) == 2:
            raise QuorumUnavailableError("two members are gone", [])
        return BackupDone(len(begun), 7, 70, 1_000, 13_000, seconds, 100, 1, 100, (), ())

    start = trio.current_time()
    async with aclosing(keep_backing_up(once, 60.0)) as rounds:
        first, second, third = [await anext(rounds) for _ in range(3)]
    assert [at - start for at in begun] == [0.0, 70.0, 150.0]
    assert (first.done.number, first.loss_window_s) == (1, 12.0 + 60.0 + 10.0)
    assert (second.done, "two members are gone" in second.error) == (None, True)
    assert second.loss_window_s == first.loss_window_s + 60.0 + 20.0
    assert third.loss_window_s == 12.0 + 60.0 + 5.0


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

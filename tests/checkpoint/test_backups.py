"""Backups of a region, and restores of them: what is copied, and what a crash at any point leaves."""

from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import QueryRegistration, read_register, register_consumer
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.manifest_log import StoreHost, retained_checkpoints
from checkpoint.cli.backup import _done_text, _restored_text
from checkpoint.core.records.backups import PIECE_PREFIX, RECORD_PREFIX, needed_chains, record_name
from checkpoint.core.records.consumers import input_register, output_register
from checkpoint.core.records.manifest import ForkOrigin
from checkpoint.errors import BackupRefusedError
from checkpoint.maintenance.backup import backups_of, newest_backup
from checkpoint.maintenance.backup_restoring import restore_backup
from dos_client import open_store
from dos_server.testing import memory_store
from tests.checkpoint.backup_model import (
    APPLICATION,
    HANDLE,
    PRODUCER,
    REGION,
    BackedUpRegion,
    BrokenError,
    Failing,
    FailingPlace,
    MemoryPlace,
    RememberedSavepoints,
    pieces_there,
    records_at,
    run,
    whole,
)


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
def test_a_backup_has_each_chain_up_to_the_checkpoint_and_a_restore_reads_the_same():
    async def main():
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

    run(main)


def test_a_backup_and_a_restore_name_the_registered_readers_that_are_not_in_it():
    async def main():
        async with opened() as (region, place), empty_store() as new:
            await region.advance()
            assert (await region.back_up(place)).left_out == ()
            register = input_register(APPLICATION, HANDLE)
            await register_consumer(region.store, register, "report", "in")
            query = QueryRegistration(StoreHost(region.store), register, "board", session="s", retain_s=0.0)
            await query.begin(None)
            await register_consumer(region.store, output_register(REGION, "shown"), "later", "in")
            done = await region.back_up(place)
            named = (
                f"report (input {HANDLE!r})",
                f"query:board (input {HANDLE!r})",
                "later (output 'shown')",
            )
            assert sorted(done.left_out) == sorted(named)
            for name in named:
                assert name in _done_text(done)
            restored = await restore_backup(place, await newest_backup(place), new)
            assert restored.left_out == done.left_out
            assert "have registered there" in _restored_text(restored)
            assert list((await read_register(new, register)).consumers) == [REGION]

    run(main)


def test_the_second_backup_copies_only_what_changed():
    async def main():
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

    run(main)


def test_a_segment_of_many_small_pieces_is_copied_again_as_a_whole(monkeypatch):
    monkeypatch.setattr(limits, "backup_small_pieces_max", 3)

    async def main():
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

    run(main)


def test_older_backups_go_with_what_only_they_need(monkeypatch):
    monkeypatch.setattr(limits, "backup_small_pieces_max", 2)  # segments are copied again, so pieces differ

    async def main():
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

    run(main)


def test_a_crash_at_any_step_of_a_backup_leaves_the_older_backup_or_the_new_one():
    async def main():
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

    run(main)


def test_what_the_target_has_lost_is_copied_again():
    async def main():
        async with opened() as (region, place):
            first = await region.back_up(place)
            (lost, *_) = sorted(await pieces_there(place))
            await place.delete([lost])
            second = await region.back_up(place, keep=1)
            assert 0 < second.copied_bytes < first.copied_bytes
            assert await whole(place) == [second.number]

    run(main)


def test_a_run_that_another_one_followed_is_given_up():
    class Overtaken(FailingPlace):
        """Another run begins and ends before our record is written."""

        overtaken = False

        async def put(self, name, data, sha256):
            if name.startswith(RECORD_PREFIX) and len(data) > 1_000 and not self.overtaken:
                self.overtaken = True
                self.other = await self.region.back_up(self._place, RememberedSavepoints(self.region), keep=1)
            return await super().put(name, data, sha256)

    async def main():
        async with opened() as (region, place):
            await region.back_up(place)
            await region.advance()
            overtaken = Overtaken(place, Failing(0))
            overtaken.region = region
            with pytest.raises(BackupRefusedError, match="another run began after the one of"):
                await region.back_up(overtaken)
            assert await whole(place) == [overtaken.other.number], "which used pieces of the first one"

    run(main)


def test_a_run_that_wakes_up_after_others_have_deleted_its_number_is_given_up():
    async def main():
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

    run(main)


def test_a_backup_that_is_cancelled_drops_its_savepoint():
    async def main():
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

    run(main)


def test_pieces_of_several_segments_are_written_at_the_same_time_and_no_more_than_the_limit():
    async def main():
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

    run(main)


def test_a_piece_that_is_refused_ends_the_run_also_while_other_segments_are_read():
    async def main():
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

    run(main)


def test_a_fork_without_chains_of_its_own_is_refused():
    async def main():
        async with opened() as (region, _):
            origin = ForkOrigin(region="other", checkpoint=1, step=1, savepoint="fork-1", application="shop")
            checkpoint = msgspec.structs.replace(region.last, origin=origin, in_origin=True)
            with pytest.raises(BackupRefusedError, match="is a fork without chains of its own"):
                needed_chains(checkpoint, REGION)

    run(main)


def test_a_target_of_another_region_of_that_name_is_refused():
    async def main():
        async with opened() as (region, place):
            await region.back_up(place)
            async with empty_store() as new, BackedUpRegion.open(new) as other:
                with pytest.raises(BackupRefusedError, match=f"{record_name(2)} is of region '{REGION}' of"):
                    await other.back_up(place)
                assert await other.savepoints() == {}

    run(main)

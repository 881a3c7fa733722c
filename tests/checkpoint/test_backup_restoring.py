"""Regions that are restored from a backup: what is refused, and what a crash at any point leaves."""

import json
from contextlib import aclosing

import msgspec
import pytest
from msgspec.structs import replace

from checkpoint import limits
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.manifest_log import read_manifest, retained_checkpoints
from checkpoint.core.records.manifest import OutputIdentity
from checkpoint.errors import BackupDamagedError, BackupRefusedError, NoRegionError
from checkpoint.maintenance.backup import newest_backup
from checkpoint.maintenance.backup_restoring import restore_backup
from journal import Op, inspect_chain, read_records
from tests.checkpoint.backup_model import (
    APPLICATION,
    HANDLE,
    INPUT,
    PRODUCER,
    REGION,
    WORKER,
    BrokenError,
    Failing,
    FailingPlace,
    FailingStore,
    records_at,
    run,
)
from tests.checkpoint.test_backups import empty_store, opened


def test_input_that_was_trimmed_is_not_looked_for(monkeypatch):
    monkeypatch.setattr(limits, "input_segment_bytes_max", 300)

    async def main():
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

    run(main)


def test_a_crash_at_any_step_of_a_restore_leaves_no_region_or_all_of_it():
    async def main():
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

    run(main)


def test_a_restore_continues_in_the_middle_of_a_segment_and_never_after_other_bytes():
    async def main():
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
                with pytest.raises(
                    BackupRefusedError, match=f"{WORKER}/{segment.name} of the store has bytes"
                ):
                    await restore_backup(place, record, new)

    run(main)


@pytest.mark.parametrize("change", ["flipped", "gone"])
def test_a_damaged_object_is_refused_by_name(change):
    class Damaged(FailingPlace):
        async def contents(self, names):
            async with aclosing(self._place.contents(names)) as contents:
                async for data in contents:
                    yield bytes([*data[:-1], data[-1] ^ 1])

    async def main():
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

    run(main)


@pytest.mark.parametrize(
    "directory",
    ["other.w0000", f"{REGION}.coord", f"{REGION}.requests", f"{REGION}.w0007", "bank.in.orders.p", "bank"],
)
def test_a_record_with_directories_of_others_is_refused_and_nothing_is_written(directory):
    async def main():
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

    run(main)


def test_directories_that_are_not_empty_are_refused_by_name_and_nothing_changes():
    async def main():
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

    run(main)


def test_rows_that_a_sink_cannot_take_back_come_again_only_if_that_is_wanted():
    async def main():
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

    run(main)


@pytest.mark.parametrize("old_is_gone", [False, True])
def test_who_owns_the_output_outside_of_the_store(old_is_gone):
    async def main():
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

    run(main)

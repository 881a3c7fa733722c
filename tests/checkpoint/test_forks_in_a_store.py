"""Forks and deletions of regions that do not run, in a store of three servers."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from checkpoint import limits
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import OutputFollower, PublishedOutput
from checkpoint.chains.state_store import StateStore
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, SplitPosition
from checkpoint.core.records.outputs import Publish
from checkpoint.core.region import worker_directory
from checkpoint.errors import DeletionRefusedError, ForkRefusedError, OutputRewoundError
from checkpoint.maintenance import forking
from checkpoint.maintenance.deleting import delete_region, plan_deletion
from checkpoint.maintenance.forking import Forking, fork_needs, fork_region, plan_fork
from checkpoint.maintenance.stopped_region import StoppedRegion, append_record, hold_manifest
from dataflow.sources.prefetched import Reading
from dataflow.sources.stored import LogSource
from dataflow.worker.prefetching import Prefetcher
from dos_client import Store, open_store, randomness
from dos_server.testing import MemoryServer, Servers, memory_store
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint

FORK = Forking(region="shop", new="test", stopped=True)
SOON_S = 0.1


async def commit(store: Store, region: str, **fields: object) -> Checkpoint:
    """Commit a checkpoint of a region, as a driver would, and give its workers a journal each."""
    async with hold_manifest(StoreHost(store), region) as held:
        before, number = held.opened.last_checkpoint, held.opened.incarnation
        workers = {index: worker_checkpoint(number) for index in range(2)}
        if before is None:
            checkpoint = a_checkpoint(number=1, parent=0, incarnation=number, workers=workers, retained=(1,))
        else:
            checkpoint = msgspec.structs.replace(
                before,
                number=before.number + 1,
                parent=before.number,
                incarnation=number,
                workers=workers,
                layout=even_layout(2),
                retained=(before.number + 1,),
                in_origin=False,
            )
        record = msgspec.structs.replace(checkpoint, **fields)
        await append_record(held, region, record)
    for worker in workers:
        directory = worker_directory(region, worker)
        async with await store.claim(directory, number, randomness.fresh_id()) as claim:
            state = await StateStore.open(claim, version=0, at=None, generation=store.record.generation)
            await state.aclose()
    return record


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Store, Servers[MemoryServer]]]:
    async with memory_store() as servers, open_store(servers.url) as store:
        await commit(store, "shop")
        yield store, servers


class CommitsFirst(StoppedRegion):
    """The region commits another checkpoint, and releases the one before, just before a savepoint is made."""

    async def make(self, name: str, **how: Any) -> int:
        await commit(self.store, "shop")
        return await super().make(name, **how)


@pytest.mark.trio
async def test_a_fork_of_the_last_checkpoint_does_not_race_with_retention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shop() as (store, _):
        maker = CommitsFirst(store, "shop")
        maker.store = store
        monkeypatch.setattr(forking, "maker_of", lambda *_given, **_how: maker)
        made = await fork_region(store, FORK)
        assert made.origin.checkpoint == 2
        (first,) = await retained_checkpoints(store, "test")
        assert first.origin == made.origin
        last = (await read_manifest(store, "shop")).last
        assert last is not None
        assert last.savepoints == {made.savepoint: 2}
        with pytest.raises(ForkRefusedError, match="does not retain checkpoint '1'"):
            await fork_region(store, Forking(region="shop", new="other", at="checkpoint:1", stopped=True))


@pytest.mark.trio
async def test_a_fork_is_two_records_and_a_second_one_of_that_name_is_refused() -> None:
    async with shop() as (store, _):
        planned = await plan_fork(store, FORK)
        assert (planned.savepoint, planned.workers) == ("", 2)
        assert await retained_checkpoints(store, "test") == (), "nothing was written"
        made = await fork_region(store, FORK)
        (first,) = await retained_checkpoints(store, "test")
        last = (await read_manifest(store, "shop")).last
        assert last is not None
        assert last.savepoints == {made.savepoint: 1}
        assert (last.notes[made.savepoint].fork, first.origin) == ("test", made.origin)
        with pytest.raises(ForkRefusedError, match="region 'test' exists: directory"):
            await fork_region(store, FORK)
        with pytest.raises(ForkRefusedError, match="still in the chains of region 'shop'"):
            await fork_region(store, Forking(region="test", new="more", stopped=True))
        assert (await read_manifest(store, "test")).last == first, "nothing was changed"


@pytest.mark.trio
async def test_a_fork_that_is_given_up_between_its_records_leaves_a_savepoint_that_a_person_drops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("power cut")

    async with shop() as (store, _):
        monkeypatch.setattr(forking, "hold_manifest", fails)
        with pytest.raises(RuntimeError, match="power cut"):
            await fork_region(store, FORK)
        last = (await read_manifest(store, "shop")).last
        assert last is not None
        ((name, note),) = last.notes.items()
        assert await fork_needs(store, "shop", name, note) is None, "there is no such fork"
        with pytest.raises(DeletionRefusedError, match=", or was never made: then drop that"):
            await delete_region(store, "shop", patience_s=SOON_S)


@pytest.mark.trio
async def test_the_original_is_deleted_when_its_fork_needs_it_no_more_or_may_break() -> None:
    async with shop() as (store, servers):
        made = await fork_region(store, FORK)
        with pytest.raises(DeletionRefusedError, match="'test' needs region 'shop'"):
            await delete_region(store, "shop", patience_s=SOON_S)
        await commit(store, "test")
        note = (await read_manifest(store, "shop")).last.notes[made.savepoint]  # type: ignore[union-attr]
        assert await fork_needs(store, "shop", made.savepoint, note) is False
        plan = await plan_deletion(store, "shop")
        assert (plan.dependents, plan.savepoint) == ((), None)
        servers[1].crash()
        await wait_all_tasks_blocked()
        with pytest.raises(DeletionRefusedError, match=f"members {servers[1].address} of the store"):
            await delete_region(store, "shop", patience_s=SOON_S)
        await servers[1].restart()
        assert await delete_region(store, "shop", patience_s=SOON_S)
        assert (await plan_deletion(store, "shop")).objects == ()
        assert len(await retained_checkpoints(store, "test")) == 1, "the fork has its own"
        await commit(store, "shop")
        again = await fork_region(store, Forking(region="shop", new="other", stopped=True))
        assert await delete_region(store, "shop", broken=["other"], patience_s=SOON_S)
        assert again.origin.checkpoint == 1, "a deleted region begins anew"


@pytest.mark.trio
async def test_a_deleted_fork_lets_go_of_the_original() -> None:
    async with shop() as (store, _):
        made = await fork_region(store, FORK)
        plan = await plan_deletion(store, "test")
        assert plan.savepoint == ("shop", made.savepoint)
        with pytest.raises(ForkRefusedError, match="no driver of region shop answered"):
            await delete_region(store, "test", patience_s=SOON_S)
        assert await delete_region(store, "test", patience_s=SOON_S, stopped=True)
        last = (await read_manifest(store, "shop")).last
        assert last is not None
        assert (last.savepoints, last.rolled_back_to) == ({}, 1)


async def show(store: Store, publish: Publish, steps: int, row: bytes) -> None:
    """Commit the first checkpoint of a region of one worker, whose log `shown` has a row for each step."""
    async with hold_manifest(StoreHost(store), "shop") as held:
        number, generation = held.opened.incarnation, store.record.generation
        async with await store.claim(worker_directory("shop", 0), number, randomness.fresh_id()) as claim:
            log = await OutputLog.open(
                claim, "shown", publish, after_step=0, at=None, generation=generation, workers=1
            )
            for step in range(1, steps + 1):
                await log.append("shown", step, 1, step, row, {})
            part = worker_checkpoint(number, sinks={"shown": msgspec.to_builtins(await log.synced(steps))})
            await log.aclose()
        of_one = {"workers": {0: part}, "layout": even_layout(1)}
        first = a_checkpoint(
            number=1, parent=0, incarnation=number, step=steps, retained=(1,), final=True, **of_one
        )
        await append_record(held, "shop", first)


async def read_on(follower: OutputFollower) -> tuple[list[bytes], SplitPosition]:
    rows, at = list[bytes](), SplitPosition(0)
    async with aclosing(follower.poll()) as pieces:
        async for piece in pieces:
            rows.append(piece.data)
            at = SplitPosition(piece.end, piece.digest, epoch=piece.epoch)
    return rows, at


@pytest.mark.trio
@pytest.mark.parametrize("publish", Publish)
@pytest.mark.parametrize(
    ("steps", "row"),
    [(5, b"one"), (5, b"two"), (6, b"two"), (3, b"two")],
    ids=["equal", "as long", "longer", "shorter"],
)
async def test_a_reader_of_a_region_that_was_deleted_and_begun_again_is_refused_by_name(
    publish: Publish, steps: int, row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its log has the same bytes again: a reader that was restored, and one that never stopped."""
    monkeypatch.setattr(limits, "output_poll_s", 0.0)
    async with memory_store() as servers, open_store(servers.url) as store:
        await show(store, publish, 5, b"one")
        published = PublishedOutput(store, "shop", "shown")
        reading = published.follower("w0000", SplitPosition(0))
        rows, at = await read_on(reading)
        assert rows == 5 * [b"one"]
        assert (await read_on(published.follower("w0000", at)))[0] == [], "nothing follows yet"
        assert await delete_region(store, "shop", patience_s=SOON_S)
        await show(store, publish, steps, row)
        for follower in (published.follower("w0000", at), reading):
            with pytest.raises(
                OutputRewoundError, match=r"'shop' was read up to step 5, but .* deleted and begun"
            ):
                await read_on(follower)
        prefetcher = Prefetcher(
            "shown",
            LogSource("shown", "row string", region="shop"),
            store,
            reader=Reading("below"),
            worker=0,
            workers=1,
            positions={"w0000": at},
            woken=lambda: None,
        )
        with pytest.RaisesGroup(OutputRewoundError, flatten_subgroups=True):
            await prefetcher.run()
        for known in (published, PublishedOutput(store, "shop", "shown")):
            assert (await read_on(known.follower("w0000", SplitPosition(0))))[0] == steps * [row]

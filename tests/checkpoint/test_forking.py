"""Forks of regions: their first record, which graphs, sinks and sources can begin with it, and forks and
deletions of regions that do not run, in a store of three servers.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from checkpoint import limits
from checkpoint.chains.consumer_register import settled_register
from checkpoint.chains.manifest_log import StoreHost, read_manifest, retained_checkpoints
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import OutputFollower, PublishedOutput
from checkpoint.chains.state_store import StateStore
from checkpoint.core.applications import belongs_to, check_begins
from checkpoint.core.graph_change import GraphOptions, OperatorNote
from checkpoint.core.links.messages import Restored
from checkpoint.core.records.consumers import output_register
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.lines import (
    check_places,
    forked,
    graph_change,
    needs_original,
    restored,
)
from checkpoint.core.records.manifest import (
    Checkpoint,
    ForkOrigin,
    SplitPosition,
    check_checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    floors_of,
)
from checkpoint.core.records.outputs import Publish
from checkpoint.core.region import RegionState, worker_directory
from checkpoint.errors import (
    DeletionRefusedError,
    ForkRefusedError,
    GraphChangeRefusedError,
    ManifestError,
    OutputRewoundError,
)
from checkpoint.maintenance import forking
from checkpoint.maintenance.deleting import delete_region, plan_deletion
from checkpoint.maintenance.forking import Forking, fork_needs, fork_region, plan_fork
from checkpoint.maintenance.stopped_region import HeldManifest, SavepointMaker, append_record, hold_manifest
from dataflow.sources.prefetched import Reading
from dataflow.sources.stored import LogSource
from dataflow.worker.prefetching import Prefetcher
from dos_client import Store, open_store, randomness
from dos_server.testing import MemoryServer, Servers, memory_store
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint, notes, worker_checkpoint
from tests.checkpoint.region_model import spec
from tests.checkpoint.test_changing_workers import checkpoint_of, commit, settled

SOURCE = a_checkpoint(
    number=41,
    step=300,
    incarnation=9,
    workers={
        0: worker_checkpoint(9, sinks={"out": {"size": 7}}, floors={"state": (3, 0)}, sources={"in": {}}),
        1: worker_checkpoint(8),
    },
    operators=notes(count="count", out="control"),
    savepoints={"good": 40},
    retained=(40, 41),
    rolled_back_to=40,
)


def origin(**fields):
    return ForkOrigin(**{"region": "shop", "checkpoint": 41, "step": 300, "savepoint": "fork-1f", **fields})


def test_a_fork_begins_with_state_and_input_and_without_output() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    check_checkpoint(first)
    assert (first.number, first.step, first.parent, first.retained) == (1, 300, 0, (1,))
    assert (first.savepoints, first.rolled_back_to, first.line) == ({}, 0, 0)
    assert {one: part.state for one, part in first.workers.items()} == {
        one: part.state for one, part in SOURCE.workers.items()
    }
    assert [(part.sinks, part.floors) for part in first.workers.values()] == [({}, {}), ({}, {})]
    assert first.workers[0].sources == {"in": {}}
    assert first.begins(first.layout), "a checkpoint of its own comes before any step"
    assert (first.chains_of("test"), SOURCE.chains_of("shop")) == ("shop", "shop")
    record = encode_checkpoint(first)
    assert decode_checkpoint(*record) == first


def test_the_floors_of_its_own_journals_do_not_depend_on_those_of_the_original() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    own = a_checkpoint(
        number=2,
        incarnation=2,
        workers={0: worker_checkpoint(2, floors={"state": (2, 0)}), 1: worker_checkpoint(2)},
    )
    assert floors_of([first], 0) == {"state": (2, 0)}, "nothing of an earlier attempt is needed"
    assert floors_of([first, own], 0) == {"state": (2, 0)}


def test_a_fork_that_has_no_checkpoint_of_its_own_cannot_be_forked() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    with pytest.raises(ForkRefusedError, match="still in the chains of region 'shop'"):
        forked(first, origin(region="test", checkpoint=1), incarnation=1)


def test_the_first_graph_of_a_fork_may_lack_sinks_and_add_operators() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    graph = notes(count="count", sum="aggregate")
    change = graph_change(
        msgspec.structs.replace(first, operators=notes(count="count", out="sink")), graph, region="test"
    )
    assert (change.kept, change.new, change.gone) == (("count",), ("sum",), ("out",))
    with pytest.raises(GraphChangeRefusedError, match="'count' was count, is aggregate"):
        graph_change(first, notes(count="aggregate"), region="test")
    with pytest.raises(GraphChangeRefusedError, match="'count' is in the stored state"):
        graph_change(first, notes(sum="aggregate"), region="test")


def test_a_fork_of_a_fork_gives_other_uids_to_what_comes() -> None:
    """Each numbers its checkpoints from 1, and inherits the state chains of the other."""

    def with_top(region: str, source: Checkpoint) -> Checkpoint:
        source = msgspec.structs.replace(source, operators=notes(count="count", out="sink"))
        first = forked(source, origin(region=region), incarnation=1)
        graph = notes(count="count", **{f"top_{region}": "top_k", "top": "top_k"})
        change = graph_change(first, graph, region=f"{region}-fork")
        assert not change.refused
        return msgspec.structs.replace(
            first, number=2, in_origin=False, operators=graph, uids=dict(change.uids), retained=(2,)
        )

    once = with_top("shop", SOURCE)
    twice = msgspec.structs.replace(forked(once, origin(region="b"), incarnation=1), in_origin=True)
    assert twice.uids == once.uids
    graph = notes(count="count", top="dedup", top_shop="top_k")
    again = graph_change(twice, graph, region="b", options=GraphOptions(drop_state=("top",)))
    assert (again.dropped, again.kept) == (("top",), ("count", "top_shop"))
    assert again.uids["top"] not in once.uids.values(), "blocks of the dropped one are in the chain"


def test_the_sinks_of_a_fork_may_have_another_place_and_those_of_a_restart_not() -> None:
    def graph(detail: str, columns: str = "n int") -> dict[str, OperatorNote]:
        table = OperatorNote(kind="sink", inputs=("count",), stored=(columns,), detail=detail)
        return notes(count="count") | {"table": table}

    last = msgspec.structs.replace(SOURCE, operators=graph("table counts"))
    first = forked(last, origin(), incarnation=1)
    graph_change(first, graph("table other"), region="test")
    with pytest.raises(GraphChangeRefusedError, match="operator 'table' was sink"):
        graph_change(last, graph("table other"), region="shop")
    with pytest.raises(GraphChangeRefusedError, match="operator 'table' was sink"):
        graph_change(first, graph("table counts", "n bigint"), region="test")


@pytest.mark.parametrize(
    ("others", "refused"),
    [
        ({"shop.orders": ("orders", "count", "out")}, True),
        ({"shop": ("orders", "count", "out")}, True),
        ({"shop.sold": ("orders", "count", "out")}, True),
        ({"shop.orders": ("orders", "other")}, False),
        ({"shop.clicks": ("clicks", "count", "out")}, False),
        ({"shop.v2": ("orders", "count", "out")}, False),
    ],
    ids=["renamed", "divided", "renamed-before", "nothing-in-common", "still-there", "another-application"],
)
def test_a_region_is_not_begun_empty_while_another_name_has_its_operators(
    others: dict[str, tuple[str, ...]], *, refused: bool
) -> None:
    operators = notes(sales="source", count="count", out="sink")
    begun = replace(spec(application="shop", operators=operators), name="shop.sales")
    parts = {"shop.sales", "shop.clicks"}
    found = {
        name: a_checkpoint(
            operators=notes(**dict.fromkeys(names, "count")),
            application=name if name == "shop.v2" else "shop",
        )
        for name, names in others.items()
    }
    if not refused:
        check_begins(begun, found, parts)
        return
    with pytest.raises(GraphChangeRefusedError, match=r"without state, although region '\S+' has.*'count'"):
        check_begins(begun, found, parts)
    forks = {name: msgspec.structs.replace(checkpoint, origin=origin()) for name, checkpoint in found.items()}
    check_begins(begun, forks, parts)
    assert all(belongs_to("shop", name) for name in others)
    assert not belongs_to("shop", "shopping")


def test_a_sink_that_cannot_tell_who_else_writes_there_needs_a_word() -> None:
    first = forked(SOURCE, origin(same_place=("mail",)), incarnation=1)
    check_places(first, {"mail": "it does not say"})
    with pytest.raises(ManifestError, match="may write to the same place unnoticed: 'out': shared"):
        check_places(first, {"mail": "it does not say", "out": "shared"})
    check_places(SOURCE, {"out": "shared"})
    check_places(msgspec.structs.replace(first, number=2, in_origin=False), {"out": "shared"})


def test_a_fork_needs_the_original_until_it_has_released_its_first_record() -> None:
    first = forked(SOURCE, origin(), incarnation=1)
    own = msgspec.structs.replace(first, number=2, in_origin=False)
    assert needs_original([first], "shop", "fork-1f") is True
    assert needs_original([first, own], "shop", "fork-1f") is True
    assert needs_original([own], "shop", "fork-1f") is False
    for kept in ([], [SOURCE]):
        assert needs_original(kept, "shop", "fork-1f") is None, "there is no such fork"
    assert needs_original([own], "shop", "fork-2e") is None


@pytest.mark.parametrize("asked", [1, 3])
@pytest.mark.parametrize("begins", ["a line of history", "a fork", ""])
def test_a_region_that_shows_steps_changes_at_once_only_where_no_shown_step_can_follow(
    begins: str, asked: int
) -> None:
    """After the first record of a fork or of a restore nothing is replayed; after another one it may be."""
    last = msgspec.structs.replace(checkpoint_of(2), shows_on=True)
    if begins == "a fork":
        last = forked(last, origin(checkpoint=1, step=5), incarnation=1)
    elif begins:
        last = restored((last,), last, 1)
    region = CoordinatorHarness(asked, shows_steps=True)
    region.opened(last, epoch=2)
    first = asked if begins else 2
    assert len(region.core.run.roster) == first
    for worker in range(first):
        region.join(worker)
    for worker in range(first):
        region.receive(worker, Restored, last_step=last.step)
    if begins:
        commit(region, asked, last.number + 1, last.step)
        assert region.core.changes.change is None
    else:
        assert region.core.changes.change.workers == asked
    assert region.state is RegionState.RUNNING
    assert settled(region) == []


# --- in a store -------------------------------------------------------------------------------------------


FORK = Forking(region="shop", new="test", stopped=True)
SOON_S = 0.1


async def committed_by(store: Store, region: str, **fields: object) -> Checkpoint:
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
        await committed_by(store, "shop")
        yield store, servers


class CommitsFirst(SavepointMaker):
    """The region commits another checkpoint, and releases the one before, just before a savepoint is made."""

    async def make(self, name: str, **how: Any) -> int:
        if how.get("checkpoint") == 1:
            await committed_by(self._store, "shop")
        return await super().make(name, **how)


@pytest.mark.trio
async def test_a_fork_of_the_last_checkpoint_does_not_race_with_retention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shop() as (store, _):
        monkeypatch.setattr(forking, "SavepointMaker", CommitsFirst)
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
async def test_a_fork_whose_savepoint_was_dropped_before_its_record_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shop() as (store, _):

        async def drop_first(held: HeldManifest, region: str, record: Checkpoint) -> None:
            assert record.origin is not None
            await SavepointMaker(store, "shop", stopped=True).drop(record.origin.savepoint)
            await append_record(held, region, record)

        monkeypatch.setattr(forking, "append_record", drop_first)
        with pytest.raises(ForkRefusedError, match="was dropped before 'test' began"):
            await fork_region(store, FORK)


@pytest.mark.trio
async def test_the_original_is_deleted_when_its_fork_needs_it_no_more_or_may_break() -> None:
    async with shop() as (store, servers):
        made = await fork_region(store, FORK)
        with pytest.raises(DeletionRefusedError, match="'test' needs region 'shop'"):
            await delete_region(store, "shop", patience_s=SOON_S)
        await committed_by(store, "test")
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
        await committed_by(store, "shop")
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
        graph = notes(shown="sink")
        of_one = {"workers": {0: part}, "layout": even_layout(1), "operators": graph}
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
            uid="shown",
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


@pytest.mark.trio
@pytest.mark.parametrize("publish", Publish)
async def test_a_reader_waits_for_a_log_that_comes_with_a_later_graph(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found under its uid, also by a reader that was there before the region."""
    monkeypatch.setattr(limits, "output_poll_s", 0.0)

    async def commits(held: HeldManifest, steps: int, uid: str = "", **fields: Any) -> Checkpoint:
        number, before = held.opened.incarnation, held.opened.last_checkpoint
        async with await store.claim(worker_directory("shop", 0), number, randomness.fresh_id()) as claim:
            sinks = {}
            if uid:
                log = await OutputLog.open(
                    claim, uid, publish, after_step=0, at=None, generation=store.record.generation, workers=1
                )
                for step in range(1, steps + 1):
                    await log.append("late", step, 1, step, uid.encode(), {})
                sinks = {uid: msgspec.to_builtins(await log.synced(steps))}
                await log.aclose()
        parts = {"workers": {0: worker_checkpoint(number, sinks=sinks)}, "layout": even_layout(1)}
        last = 0 if before is None else before.number
        graph = notes(count="count") | (notes(late="sink") if uid else {})
        record = a_checkpoint(
            number=last + 1, parent=last, incarnation=number, step=steps, retained=(last + 1,),
            operators=graph, uids={"late": uid} if uid else {}, **parts, **fields,
        )  # fmt: skip
        await append_record(held, "shop", record)
        return record

    async with memory_store() as servers, open_store(servers.url) as store:
        published = PublishedOutput(store, "shop", "late")
        early = published.follower("w0000", SplitPosition(0))
        async with hold_manifest(StoreHost(store), "shop") as held:
            await commits(held, 1)
        assert await published.splits() == []
        await published.register("reader", "read")
        assert (await read_on(early))[0] == []
        async with hold_manifest(StoreHost(store), "shop") as held:
            await commits(held, 2, "_1f-late")
        assert await published.splits() == ["w0000"]
        place = output_register("shop", "_1f-late")
        assert "reader" in (await settled_register(store, place)).consumers, "it is registered where it reads"
        for follower in (early, published.follower("w0000", SplitPosition(0))):
            assert (await read_on(follower))[0] == [b"_1f-late"] * 2

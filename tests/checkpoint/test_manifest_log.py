"""The manifest on real servers: what was acknowledged is found again, the older of two is fenced."""

from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio

from checkpoint.chains.manifest_log import ManifestLog, StoreHost, checkpoint_record
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    OpenManifest,
    StoreWaiting,
)
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from checkpoint.errors import GraphChangeRefusedError
from dos_client import init_store, open_store
from journal import ChainWriter, Op, Position, Record, inspect_chain, read_records, take_over
from tests.checkpoint.manifest_samples import notes
from tests.support.servers import url_of

pytestmark = [pytest.mark.process, pytest.mark.trio]


def a_checkpoint(number, incarnation, parent=None):
    at = Position(incarnation, 10 * number, 1)
    return Checkpoint(
        number=number,
        step=number,
        incarnation=incarnation,
        final=False,
        wall_time_ms=0,
        workers={0: WorkerCheckpoint(state=at, steps=at)},
        layout=even_layout(1),
        operators=notes(count="count"),
        parent=number - 1 if parent is None else parent,
        retained=(number - 1, number) if number > 1 else (1,),
        irrevocable={},
    )


class Keeper:
    """A ManifestLog with its events."""

    def __init__(self, store, region):
        self.events = []
        self.log = ManifestLog(StoreHost(store), region, self._emit)
        self._more = trio.Event()

    def _emit(self, event):
        self.events.append(event)
        self._more.set()
        self._more = trio.Event()

    async def received(self, cls, within=30):
        """Wait until an event of this class came (for StoreWaiting: one that says what for)."""
        with trio.fail_after(within):
            while not any(isinstance(e, cls) and getattr(e, "waiting", True) for e in self.events):
                await self._more.wait()

    async def open(self, above=0, held=0, step=1):
        await self.log.open(OpenManifest(above, held, step))
        return self.take()

    async def append(self, checkpoint):
        await self.log.append(AppendCheckpoint(checkpoint))
        return self.take()

    def take(self):
        events = [event for event in self.events if not isinstance(event, StoreWaiting)]
        self.events.clear()
        return events[-1] if events else None


@pytest.fixture
def keepers(shared_store, region_name):
    """keepers(count): manifest keepers of a region of this test's own."""
    return partial(opened, shared_store, region_name)


@asynccontextmanager
async def opened(url, region, count=1):
    async with open_store(url) as one, open_store(url) as other:
        found = [Keeper(one, region), Keeper(other, region)][:count]
        yield found if count > 1 else found[0]
        for keeper in found:
            await keeper.log.aclose()


async def test_checkpoints_are_found_again_by_the_next_incarnation(keepers) -> None:
    # EVIDENCE-OF: P-6
    async with keepers() as keeper:
        assert await keeper.open() == ManifestOpened(1, None)
        first = await keeper.append(a_checkpoint(1, 1))
        assert isinstance(first, CheckpointAppended)
        assert first.checkpoint.wall_time_ms > 0
        second = await keeper.append(a_checkpoint(2, 1))
        kept = (first.checkpoint, second.checkpoint)
        assert await keeper.open(above=0, held=1) == ManifestOpened(2, second.checkpoint, kept)
        assert await keeper.open(above=40, held=2) == ManifestOpened(41, second.checkpoint, kept)


async def test_with_local_recovery_incarnations_are_multiples(keepers) -> None:
    """The epochs of the claims before it are those of a region with global recovery, or are terms."""
    async with keepers() as keeper:
        assert await keeper.open(step=65536) == ManifestOpened(65536, None)
        assert await keeper.open(held=65536, step=65536) == ManifestOpened(131072, None)
        assert await keeper.open(above=131075, held=131072, step=65536) == ManifestOpened(196608, None)
        assert await keeper.open(held=196608) == ManifestOpened(196609, None)
        assert await keeper.open(held=196609, step=65536) == ManifestOpened(262144, None)


async def test_the_older_of_two_commits_nothing_more_and_learns_who_holds_it(keepers) -> None:
    # EVIDENCE-OF: P-4
    async with keepers(2) as (older, newer):
        await older.open()
        committed = await older.append(a_checkpoint(1, 1))
        assert await newer.open() == ManifestOpened(2, committed.checkpoint, (committed.checkpoint,))
        lost = await older.append(a_checkpoint(2, 1))
        assert isinstance(lost, ManifestLost)
        assert (lost.incarnation, lost.epoch_held) == (1, 2)
        assert await older.open(held=1) == ManifestTaken(2)
        assert isinstance(await newer.append(a_checkpoint(2, 2)), CheckpointAppended)


async def test_a_claim_lost_while_nothing_is_appended_is_reported(keepers) -> None:
    async with keepers(2) as (older, newer), trio.open_nursery() as nursery:
        await older.open()
        nursery.start_soon(older.log.watch)
        await newer.open()
        await older.received(ManifestLost)
        assert older.events == [ManifestLost(1, 2)]
        nursery.cancel_scope.cancel()


async def test_a_claimant_that_died_over_its_claim_is_taken_over_from(keepers, monkeypatch) -> None:
    # EVIDENCE-OF: P-10  (R18)
    monkeypatch.setattr("checkpoint.limits.claimant_wait_s", 0.2)
    async with keepers(2) as (older, newer):
        await older.open()
        committed = await older.append(a_checkpoint(1, 1))
        store = newer.log._host._store
        async with await store.claim(newer.log._directory, 7, b"x" * 16):
            pass
        assert isinstance(await older.append(a_checkpoint(2, 1)), ManifestLost)
        opened = await older.open(held=1)
        assert opened == ManifestOpened(8, committed.checkpoint, (committed.checkpoint,))


async def test_a_driver_that_is_refused_under_its_claim_leaves_no_segment(keepers, monkeypatch) -> None:
    """And the driver that runs the region claims it again."""
    monkeypatch.setattr("checkpoint.limits.claimant_wait_s", 0.2)

    def refuse(last):
        raise GraphChangeRefusedError(f"not from checkpoint {last.number}", operators=())

    async with keepers(2) as (older, newer):
        await older.open()
        committed = (await older.append(a_checkpoint(1, 1))).checkpoint
        await newer.log.open(OpenManifest(0, 0, decide=refuse))
        refused = newer.take()
        assert isinstance(refused, ManifestUnreadable)
        assert "not from checkpoint 1" in str(refused.error)
        assert isinstance(await older.append(a_checkpoint(2, 1)), ManifestLost)
        assert await older.open(held=1) == ManifestOpened(3, committed, (committed,))


async def test_rivals_that_claim_before_the_start_is_acknowledged_are_distinguished(keepers) -> None:
    async with keepers(2) as pair:
        answers = []

        async def contend(keeper):
            while True:
                answer = await keeper.open()
                answers.append(answer)
                if not isinstance(answer, ManifestSuperseded):
                    return
                await trio.sleep(0.05 * answer.rng)

        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for keeper in pair:
                    nursery.start_soon(contend, keeper)
        opened = [answer for answer in answers if isinstance(answer, ManifestOpened)]
        assert len({answer.incarnation for answer in opened}) == 2


async def test_a_server_killed_meanwhile_changes_nothing_two_make_it_wait(three_servers) -> None:
    # EVIDENCE-OF: P-5, P-10
    await init_store(url_of(three_servers))
    async with opened(url_of(three_servers), "app") as keeper:
        await keeper.open()
        await keeper.append(a_checkpoint(1, 1))
        three_servers[0].kill()
        assert isinstance(await keeper.append(a_checkpoint(2, 1)), CheckpointAppended)
        assert isinstance(await keeper.open(held=1), ManifestOpened)
        three_servers[1].kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.log.watch)
            nursery.start_soon(keeper.log.append, AppendCheckpoint(a_checkpoint(3, 2)))
            await keeper.received(StoreWaiting)
            assert not any(isinstance(event, CheckpointAppended) for event in keeper.events)
            three_servers[1].restart()
            await keeper.received(CheckpointAppended)
            nursery.cancel_scope.cancel()


async def test_a_long_manifest_is_opened_and_rolled_with_a_snapshot(keepers, monkeypatch) -> None:
    monkeypatch.setattr("checkpoint.limits.manifest_replay_bytes_max", 2_000)
    monkeypatch.setattr("checkpoint.limits.manifest_segment_bytes_max", 4_000)
    async with keepers() as keeper:
        await keeper.open()
        for number in range(1, 21):
            await keeper.append(a_checkpoint(number, 1))
        opened = await keeper.open(held=1)
        assert opened.last_checkpoint.number == 20
        assert isinstance(await keeper.append(a_checkpoint(21, 2)), CheckpointAppended)
        chain = await inspect_chain(keeper.log._host._store, keeper.log._directory, "manifest")
        records = [
            r async for _, r in read_records(keeper.log._host._store, chain, directory=keeper.log._directory)
        ]
        assert [record.ints[0] for record in records if record.op is Op.CHECKPOINT] == [19, 20, 21]
        starts = [msgspec.json.decode(r.strings[0]) for r in records if r.op is Op.SEGMENT_START]
        assert [start["pipelined"] for start in starts] == [False] * len(starts)  # R9: readers rely on it
        assert starts


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(Op.CHECKPOINT, ints=(1, 1, 1), strings=(b"{",)), "is not JSON"),
        (checkpoint_record(a_checkpoint(1, 1, parent=9)), None),
        (
            Record(Op.CHECKPOINT, ints=(2, 1, 1), strings=checkpoint_record(a_checkpoint(1, 1)).strings),
            "its record has ints",
        ),
    ],
)
async def test_a_manifest_with_a_checkpoint_that_cannot_be_is_refused(keepers, record, reason) -> None:
    async with keepers() as keeper:
        async with await keeper.log._host._store.claim(keeper.log._directory, 1, b"x" * 16) as claim:
            state = await take_over(claim, "manifest", generation=keeper.log._host._store.record.generation)
            writer = await ChainWriter.open(claim, "manifest", state, 1, pipelined=False)
            await writer.wait_synced(writer.append(record))
        answer = await keeper.open()
        if reason is None:
            assert isinstance(answer, ManifestOpened)
        else:
            assert isinstance(answer, ManifestUnreadable)
            assert reason in str(answer.error)

"""Two programs with other graphs begin while a driver runs the region: real cores and the real log of the
manifest on a store in memory. Each operation of a driver on the manifest waits for its turn, which the test
deals.
"""

from collections import deque
from itertools import combinations, count, pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from checkpoint.chains.manifest_log import CHAIN, ManifestLog, checkpoints_in, retained_checkpoints
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    Begin,
    CheckpointWanted,
    ControlReceived,
    CoordinatorTick,
    End,
    LaunchWorker,
    OpenManifest,
    SendControl,
)
from checkpoint.core.links.messages import VERSIONS, Join, RequestCheckpoint, Restore, Restored, Vote
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.region import RegionState, coordinator_directory
from journal import inspect_chain, read_records
from journal.core.chain import Position
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.region_model import spec
from tests.checkpoint.savepoint_model import Host, HostClaim
from tests.journal.memory_store import MemoryStore

BEFORE = notes(rows="source", count="count", out="sink")
GRAPHS = {"old": BEFORE, "one": BEFORE | notes(cheap="filter"), "two": BEFORE | notes(dear="map")}
TURNS = 5
"""Of one newcomer until it has committed: read, inspect, claim, copy the end of the chain, append."""


class TurnClaim(HostClaim):
    """A claim under which the chain is taken over in a turn of its own."""

    async def settle(self, name, size, digest, local=None):
        await self.store.turn(self.driver)
        await super().settle(name, size, digest, local)


class TurnHost(Host):
    def __init__(self, store, driver):
        super().__init__(store)
        self.driver = driver

    async def inspect(self, directory):
        await self.store.turn(self.driver)
        return await super().inspect(directory)

    async def claim(self, directory, epoch, patience_s=0.0):
        await self.store.turn(self.driver)
        self.store._writers += 1
        claim = TurnClaim(self.store, directory, epoch, self.store._writers.to_bytes(16))
        claim.driver = self.driver
        for server in self.store.servers:
            claim.join(server)
        return claim

    async def sleep(self, seconds):
        del seconds
        await self.store.turn(self.driver)


class TurnStore(MemoryStore):
    """The store, whose users wait for their turns."""

    def __init__(self):
        super().__init__()
        self.waiting = {}

    async def turn(self, driver):
        assert driver not in self.waiting
        self.waiting[driver] = trio.Event()
        await self.waiting[driver].wait()

    async def deal(self, driver):
        """Let this driver do its next operation, up to the one after it."""
        event = self.waiting.pop(driver, None)
        if event is not None:
            event.set()
        await wait_all_tasks_blocked()


class Racer:
    """One driver with its one worker, from the reading of the manifest to its end."""

    def __init__(self, store, name):
        self.store, self.name = store, name
        self.core = Coordinator(spec(1, operators=GRAPHS[name]))
        self.log = ManifestLog(TurnHost(store, name), "region", self.play)
        self.orders, self.now, self.end = deque(), 0.0, None
        self.seen = None

    @property
    def runs(self):
        return self.end is None and self.core.status().state is RegionState.RUNNING

    def play(self, event):
        for effect in self.core.handle(event, self.now):
            match effect:
                case OpenManifest() | AppendCheckpoint():
                    self.orders.append(effect)
                case LaunchWorker(_, attempt):
                    hello = {"pid": 1, "host": "h", "exchange_host": "h", "exchange_port": 1}
                    join = Join(job="region", worker=0, attempt=attempt, speaks=VERSIONS, **hello)
                    self.play(ControlReceived(attempt, join))
                case SendControl(link, Restore() as order):
                    self.answer(link, Restored, last_step=order.restore.step if order.restore else 0)
                    if order.moves:
                        self.vote(link, order.checkpoint + 1)
                case SendControl(link, RequestCheckpoint() as order):
                    self.vote(link, order.checkpoint)
                case End():
                    self.end = effect

    def answer(self, link, cls, **fields):
        epoch = self.core.run.incarnation
        message = cls(job="region", incarnation=epoch, epoch=epoch, worker=0, **fields)
        self.play(ControlReceived(link, message))

    def vote(self, link, number):
        epoch = self.core.run.incarnation
        at = Position(epoch, 100 + number, 1)
        positions = WorkerCheckpoint(state=at, steps=at)
        self.answer(link, Vote, checkpoint=number, step=self.core.run.last_step + 1, positions=positions)

    async def run(self):
        await self.store.turn(self.name)
        kept = await retained_checkpoints(self.store, "region")
        self.seen = kept[-1].operators if kept else None
        self.play(Begin(kept[-1] if kept else None))
        while self.end is None:
            if self.orders:
                order = self.orders.popleft()
                if isinstance(order, OpenManifest):
                    await self.log.open(order)
                else:
                    await self.store.turn(self.name)
                    await self.log.append(order)
            elif self.runs:
                await self.store.turn(self.name)
                self.play(CheckpointWanted())
            else:
                await self.store.turn(self.name)
                due = self.core.deadline()
                self.now = max(self.now, due)
                self.play(CoordinatorTick(due))
        await self.log.aclose()


async def raced(turns, *, old_wakes_after):
    """Deal these turns to the newcomers, and then to all until nothing changes; the old driver gets turns
    again after so many of them.
    """
    store = TurnStore()
    old, *newcomers = racers = [Racer(store, name) for name in GRAPHS]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(old.run)
        for _ in range(10):
            await wait_all_tasks_blocked()
            await store.deal("old")
        assert old.runs
        for one in newcomers:
            nursery.start_soon(one.run)
        await wait_all_tasks_blocked()
        for number, name in enumerate(turns):
            if number >= old_wakes_after:
                await store.deal("old")
            await store.deal(name)
        for _ in range(30):
            for name in GRAPHS:
                await store.deal(name)
        nursery.cancel_scope.cancel()
    return store, racers


def orders_of_turns():
    return [
        ["one" if place in places else "two" for place in range(2 * TURNS)]
        for places in combinations(range(2 * TURNS), TURNS)
    ]


async def check(turns, old_wakes_after):
    store, racers = await raced(turns, old_wakes_after=old_wakes_after)
    running = [one.name for one in racers if one.runs]
    assert len(running) == 1, (running, [one.end for one in racers])
    graphs = [one.operators for one in await all_records(store)]
    assert graphs[-1] == GRAPHS[running[0]]
    for before, after in pairwise(graphs):
        if before != after:
            (changed,) = [one for one in racers if GRAPHS[one.name] == after]
            assert changed.seen == before, f"{changed.name} undid a change that it did not know"
    return running[0]


async def all_records(store):
    state = await inspect_chain(store, coordinator_directory("region"), CHAIN)
    records = read_records(store, state, directory=coordinator_directory("region"))
    return [checkpoint async for checkpoint in checkpoints_in(records)]


@pytest.mark.trio
async def test_of_programs_that_begin_together_one_runs_and_none_undoes_a_change_unawares() -> None:
    """Whatever the order of their operations, and whenever the driver that ran notices."""
    wakes = count()
    winners = {await check(turns, next(wakes) % 11) for turns in orders_of_turns()[::5]}
    assert winners == {"one", "two"}


@pytest.mark.long
@pytest.mark.trio
async def test_of_programs_that_begin_together_one_runs_in_all_orders() -> None:
    for turns in orders_of_turns():
        for wakes in range(2 * TURNS + 1):
            await check(turns, wakes)

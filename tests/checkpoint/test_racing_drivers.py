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
    AskForRegion,
    Begin,
    CheckpointWanted,
    ControlReceived,
    CoordinatorTick,
    End,
    HandOverAnswered,
    HandOverWanted,
    LastCheckpointRead,
    LaunchWorker,
    NotifyObservers,
    OpenManifest,
    ReadLastCheckpoint,
    SendControl,
)
from checkpoint.core.links.messages import (
    VERSIONS,
    CopiedAhead,
    CopyAhead,
    Counters,
    Join,
    Pause,
    Paused,
    Progress,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Vote,
)
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.region import HandOverSettled, RegionState, coordinator_directory
from checkpoint.errors import NotHandedOverError
from dos_protocol.errors import FencedError
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
        self.driver, self.passed_s = driver, 0.0

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
        await self.store.turn(self.driver)
        self.passed_s += max(seconds, 2.0)

    def now(self):
        return self.passed_s


class TurnStore(MemoryStore):
    """The store, whose users wait for their turns."""

    def __init__(self):
        super().__init__()
        self.waiting = {}
        self.check = lambda: None

    async def turn(self, driver):
        assert driver not in self.waiting
        self.waiting[driver] = trio.Event()
        await self.waiting[driver].wait()

    async def deal(self, driver):
        """Let this driver do its next operation, up to the one after it."""
        event = self.waiting.pop(driver, None)
        if event is not None:
            event.set()
        self.check()
        await wait_all_tasks_blocked()


class Racer:
    """One driver with its one worker, from the reading of the manifest to its end."""

    def __init__(self, store, name, former=None, **fields):
        self.store, self.name, self.former, self.heir = store, name, former, None
        self.core = Coordinator(spec(1, operators=GRAPHS[name], **fields))
        self.scope, self.takes_input = trio.CancelScope(), False
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
                case SendControl(link, message):
                    self.order_worker(link, message)
                case AskForRegion():
                    self.ask()
                case ReadLastCheckpoint():
                    self.play(LastCheckpointRead(self.former.core.run.last_checkpoint))
                case NotifyObservers(HandOverSettled() as settled):
                    error = NotHandedOverError(settled.error) if settled.error else None
                    self.heir.play(HandOverAnswered(error))
                case End():
                    self.end = effect

    def order_worker(self, link, message):
        """What the worker does."""
        match message:
            case CopyAhead() as order:
                fields = {"checkpoint": order.checkpoint, "copied_bytes": 0, "total_bytes": 0}
                self.answer(link, CopiedAhead, done=True, **fields)
            case Restore() as order:
                self.answer(link, Restored, last_step=order.restore.step if order.restore else 0)
                if order.moves:
                    self.vote(link, order.checkpoint + 1)
            case RequestCheckpoint() as order:
                self.vote(link, order.checkpoint)
            case Pause() as order:
                self.takes_input = not order.pause
                if order.pause:
                    step = self.core.run.last_step
                    counters = Counters(step=step)
                    self.answer(link, Paused, pause=order.pause, step=step, counters=counters)
            case Start():
                self.takes_input = True

    def ask(self):
        """Ask the former driver, if there is one."""
        if self.former.alive and self.former.runs:
            self.former.heir = self
            self.former.play(HandOverWanted("heir"))
        else:
            self.play(HandOverAnswered())

    @property
    def alive(self):
        return self.end is None and not self.scope.cancel_called

    def watch(self):
        """Do what the log does now and then: find out whether its claim was superseded."""
        epoch = max(one.held_epoch(coordinator_directory("region")) for one in self.store.servers)
        if self.log.held and epoch > self.log.held:
            self.log._lost(FencedError("superseded", actual=epoch))

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
        with self.scope:
            await self._run()

    async def _run(self):
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
                self.watch()
                due = self.core.deadline()
                self.now = max(self.now, due)
                self.play(CoordinatorTick(due))
                if self.core.run.roster[0].link is not None:
                    counters = Counters(step=self.core.run.last_step)
                    self.answer(self.core.run.roster[0].link, Progress, counters=counters)
        await self.log.aclose()


async def until_it_runs(store, driver, nursery):
    """Start a driver, and deal it turns until it runs the region."""
    nursery.start_soon(driver.run)
    for _ in range(10):
        await wait_all_tasks_blocked()
        await store.deal(driver.name)
    assert driver.runs


async def raced(turns, *, old_wakes_after):
    """Deal these turns to the newcomers, and then to all until nothing changes; the old driver gets turns
    again after so many of them.
    """
    store = TurnStore()
    old, *newcomers = racers = [Racer(store, name) for name in GRAPHS]
    async with trio.open_nursery() as nursery:
        await until_it_runs(store, old, nursery)
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


# --- a region that is handed over ---------------------------------------------------------------------


async def handed_over(turns, killed="", after=0):
    """A region that shows steps is handed over to a program with another graph; one of the drivers is killed
    after so many turns.
    """
    store = TurnStore()
    old = Racer(store, "old", shows_steps=True)
    heir = Racer(store, "one", old, shows_steps=True, hand_over=True)

    def nothing_is_shown_unstated():
        for one in (old, heir):
            last = one.core.run.last_checkpoint
            assert not (one.alive and one.takes_input and one.log.held) or (
                last is not None and last.shows_on
            )

    async with trio.open_nursery() as nursery:
        await until_it_runs(store, old, nursery)
        store.check = nothing_is_shown_unstated
        nursery.start_soon(heir.run)
        await wait_all_tasks_blocked()
        for number, name in enumerate(turns):
            if killed and number == after:
                (old if killed == "old" else heir).scope.cancel()
            await store.deal(name)
        nursery.cancel_scope.cancel()
    return old, heir, await all_records(store)


def check_handed_over(old, heir, records, killed):
    changed = [one for one in records if one.operators == GRAPHS["one"]]
    running = [one.name for one in (old, heir) if one.alive and one.runs]
    if changed:
        first = records.index(changed[0])
        assert records[first - 1].is_quiet, "no step was shown after it"
        assert records[first:] == changed, "the former driver commits nothing more"
        assert old.end is None or old.end.state is RegionState.FENCED
    winner = "one" if changed else "old"
    assert running == ([] if winner == {"heir": "one"}.get(killed, killed) else [winner]), (running, killed)


def rounds(*names, count=75):
    return [name for _ in range(count) for name in names]


@pytest.mark.trio
@pytest.mark.parametrize("pattern", [("old", "one"), ("one", "one", "old"), ("old", "old", "old", "one")])
async def test_a_region_is_handed_over_to_a_program_with_another_graph(pattern) -> None:
    old, heir, records = await handed_over(rounds(*pattern))
    check_handed_over(old, heir, records, "")
    assert heir.runs


@pytest.mark.trio
@pytest.mark.parametrize("killed", ["old", "heir"])
async def test_whichever_driver_is_killed_in_a_hand_over_the_other_one_runs_the_region(killed) -> None:
    """Unless it had committed already."""
    ends = set()
    for after in range(24):
        for pattern in (("old", "one"), ("one", "one", "old")):
            old, heir, records = await handed_over(rounds(*pattern), killed, after)
            if killed == "old" and not any(one.is_quiet for one in records) and heir.end is not None:
                ends.add("refused")  # the killed driver may have shown steps that no checkpoint has
                continue
            check_handed_over(old, heir, records, killed)
            ends.add(records[-1].operators == GRAPHS["one"])
    assert {True, False} <= ends or killed == "old"


@pytest.mark.trio
async def test_a_driver_that_stands_still_in_a_hand_over_and_goes_on_leaves_one_that_runs_the_region() -> (
    None
):
    """Until the other driver has taken the region back, or while it does."""
    for after in range(4, 20):
        for still in (12, 26, 34):
            turns = [*rounds("old", "one")[:after], *["old"] * still, *rounds("one", "old", "one")]
            old, heir, records = await handed_over(turns)
            running = [one.name for one in (old, heir) if one.alive and one.runs]
            assert len(running) == 1, (after, still, running, old.end, heir.end)
            assert records[-1].operators == GRAPHS[running[0]]


# --- programs that begin together ---------------------------------------------------------------------


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

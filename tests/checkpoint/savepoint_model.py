"""A region of one worker on a store in memory: the manifest, the versioned state, savepoints and trims."""

from contextlib import aclosing

import pyarrow as pa
import trio
from trio.testing import wait_all_tasks_blocked

from checkpoint.chains.manifest_log import CHAIN, ManifestLog, ManifestView, checkpoints_in
from checkpoint.chains.state_blocks import StateFold, decode_block
from checkpoint.chains.state_store import STATE_CHAIN, StateStore
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    Begin,
    CheckpointWanted,
    ControlReceived,
    ManifestOpened,
    NotifyObservers,
    OpenManifest,
    SavepointWanted,
    SendControl,
)
from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    Join,
    RequestCheckpoint,
    Restore,
    Restored,
    Vote,
)
from checkpoint.core.records import manifest as retention
from checkpoint.core.records.manifest import Rolling, SavepointNote, WorkerCheckpoint, keep
from checkpoint.core.region import SavepointSettled, coordinator_directory, worker_directory
from checkpoint.errors import RegionFencedError, SavepointRefusedError
from checkpoint.maintenance.garbage import held_by_savepoints
from checkpoint.maintenance.stopped_region import hold_manifest, savepoint_stopped
from journal import Op, inspect_chain, inspect_chain_at, read_records
from journal.core.chain import below, below_or_within
from tests.checkpoint.region_model import spec
from tests.checkpoint.test_state_store import block
from tests.journal.memory_store import MemoryClaim, MemoryStore

REGION = "region"


WORKER = worker_directory(REGION, 0)


ROLLING = Rolling(manifest_segment_bytes_max=3_000, manifest_replay_bytes_max=6_000)


def note_of(name, checkpoint):
    """The note of a request; checkpoint: the checkpoint that it names, 0 for the last one."""
    return SavepointNote(by="ann@host", wall_time_ms=7, why=f"{name} of {checkpoint}")


class HostClaim(MemoryClaim):
    """A claim as the manifest's keeper needs it."""

    waiting = False

    async def wait_collected(self, timeout_s: float) -> bool:
        del timeout_s
        await trio.lowlevel.checkpoint()
        return True

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Host:
    """Where the manifest runs: the store in memory, and no time."""

    def __init__(self, store):
        self.store, self.record = store, store.record

    async def inspect(self, directory):
        return await self.store.inspect(directory)

    async def claim(self, directory, epoch, patience_s=0.0):
        del patience_s
        self.store._writers += 1
        claim = HostClaim(self.store, directory, epoch, self.store._writers.to_bytes(16))
        for server in self.store.servers:
            claim.join(server)
        return claim

    async def sleep(self, seconds):
        raise AssertionError(f"nothing is waited for here: {seconds}")

    def rng(self):
        return 0.5

    def now(self):
        return 0.0

    def wall_time_ms(self):
        return 1


class SlowHost(Host):
    """The record that is appended to the manifest waits to be carried to members."""

    async def claim(self, directory, epoch, patience_s=0.0):
        claim = await super().claim(directory, epoch, patience_s)
        if directory == coordinator_directory(REGION):
            self.own = claim
        return claim

    def wall_time_ms(self):
        """Called when a record is about to be appended."""
        self.own.held = True
        return super().wall_time_ms()


async def raced(model, members, work, begin):
    """Do `work`, whose record has reached so many of three members when a driver begins. Return its result,
    or the error: it counts if two have it.
    """
    host, ended, acknowledged = SlowHost(model.store), [], []

    async def run():
        try:
            ended.append(await work(host))
        except RegionFencedError as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        for member in range(1, members + 1):
            host.own.deliver(member)
        await wait_all_tasks_blocked()
        acknowledged += ended
        await begin()
        if members < 2:
            host.own.deliver(3)
    assert bool(acknowledged) == (members == 2), "it is acknowledged by two"
    assert isinstance(ended[0], RegionFencedError) == (members < 2)
    return ended[0]


async def taken_over(before, store, region, events):
    """A driver takes a manifest over from the one before. Return its log, and the result of the opening."""
    if before is not None:
        await before.aclose()
    manifest = ManifestLog(Host(store), region, events.append, rolling=ROLLING)
    await manifest.open(OpenManifest(0, 0))
    assert isinstance(events[-1], ManifestOpened)
    return manifest, events[-1]


class Driver:
    """A driver with its one worker: from the last checkpoint, until it is dropped."""

    def __init__(self, model):
        self.model, self.core, self.events = model, Coordinator(spec(1, retain=model.retain)), []
        self.log = ManifestLog(Host(model.store), REGION, self.events.append, rolling=ROLLING)
        self.reports = []

    def play(self, event):
        effects = self.core.handle(event, 0.0)
        self.reports += [e.event for e in effects if isinstance(e, NotifyObservers)]
        return [e.message if isinstance(e, SendControl) else e for e in effects]

    def receive(self, cls, **fields):
        number = self.core.run.incarnation
        return self.play(
            ControlReceived(1, cls(job="region", incarnation=number, epoch=number, worker=0, **fields))
        )

    async def start(self):
        """To RUNNING, at the last checkpoint; what it holds there is what the model recorded."""
        self.play(Begin())
        await self.log.open(OpenManifest(0, 0))
        self.play(self.events[-1])
        join = Join(
            job="region",
            worker=0,
            attempt=1,
            pid=1,
            host="h",
            exchange_host="h",
            exchange_port=1,
            speaks=VERSIONS,
        )
        (order,) = [e for e in self.play(ControlReceived(1, join)) if isinstance(e, Restore)]
        checkpoint = order.restore
        self.claim = await Host(self.model.store).claim(WORKER, order.incarnation)
        at = None if checkpoint is None else checkpoint.workers[0].state
        self.state = await StateStore.open(
            self.claim, version=checkpoint.number if checkpoint else 0, at=at, generation=1, rolling=ROLLING
        )
        self._collect(order)
        self.receive(Restored, last_step=checkpoint.step if checkpoint else 0)
        self.rows = dict(self.model.rows[checkpoint.number]) if checkpoint else {}

    def _collect(self, order):
        self.claim.collect(below_or_within(order.floors, order.gaps))

    async def checkpoint(self, change, *, ordered=None, crash=""):
        """A checkpoint; crash: where this driver and its worker are dropped, '' nowhere."""
        effects = self.play(CheckpointWanted()) if ordered is None else ordered
        (order,) = [e for e in effects if isinstance(e, RequestCheckpoint)]
        self.rows.update(change)
        encoded = [("one", data) for data in block(change)]
        position = await self.state.commit(order.checkpoint, encoded)
        floors = {STATE_CHAIN: self.state.floor}
        part = WorkerCheckpoint(state=position, steps=position, floors=floors)
        voted = self.receive(Vote, checkpoint=order.checkpoint, step=order.checkpoint, positions=part)
        append = next((e for e in voted if isinstance(e, AppendCheckpoint)), None)
        assert append is not None, self.core.run.reason
        if self.model.eager:  # a bug: what the record would release goes before it is acknowledged
            self.claim.collect(below(retention.floors_of(keep(self.core.run.kept, append.checkpoint), 0)))
        if crash == "voted":
            return
        self.model.rows[order.checkpoint] = dict(self.rows)
        await self.log.append(append)
        self.model.records_without_driver = 0
        if crash == "appended":
            return
        (committed,) = [e for e in self.play(self.events[-1]) if isinstance(e, Committed)]
        if crash == "committed":
            return
        self._collect(committed)

    async def savepoint(self, name, number, change, *, on=True, crash=""):
        kept = [checkpoint.number for checkpoint in self.core.run.kept]
        held = await held_by_savepoints(self.model.store, ManifestView(REGION, 0, list(self.core.run.kept)))
        dropped = 0 if on else self.core.checkpoints.savepoints.get(name, 0)
        wanted = kept[number % len(kept)] if kept and on else 0
        effects = self.play(SavepointWanted(name, wanted, on=on, note=note_of(name, wanted)))
        if any(isinstance(e, RequestCheckpoint) for e in effects):
            await self.checkpoint(change, ordered=effects, crash=crash)
            if not crash:
                assert self.reports[-1] == SavepointSettled(name, self.reports[-1].checkpoint), self.reports[
                    -1
                ]
                if dropped and dropped not in {checkpoint.number for checkpoint in self.core.run.kept}:
                    assert not {one.name for one in held[name]} & await self.model.objects()

    async def snapshot(self):
        await self.state.snapshot([("one", data) for data in block(self.rows)])


class SavepointModel:
    """The store, and what each checkpoint that was ever committed holds."""

    def __init__(self, retain, *, eager=False):
        self.retain, self.store, self.rows, self.driver = retain, MemoryStore(), {}, None
        self.eager = eager
        self.records_without_driver = 0
        """Records since a driver's last checkpoint that were made in its place: they release nothing."""

    async def crash(self):
        """The driver and its worker are gone; another one begins."""
        self.driver = Driver(self)
        await self.driver.start()

    async def kept(self):
        """The checkpoints that the manifest retains, as anybody reads it."""
        state = await inspect_chain(self.store, coordinator_directory(REGION), CHAIN)
        kept = ()
        records = read_records(self.store, state, directory=coordinator_directory(REGION))
        async with aclosing(checkpoints_in(records)) as checkpoints:
            async for checkpoint in checkpoints:
                kept = keep(kept, checkpoint)
        return kept

    async def records(self):
        """The numbers of the checkpoints in the manifest, also of those that are released."""
        state = await inspect_chain(self.store, coordinator_directory(REGION), CHAIN)
        records = read_records(self.store, state, directory=coordinator_directory(REGION))
        async with aclosing(checkpoints_in(records)) as checkpoints:
            return [checkpoint.number async for checkpoint in checkpoints]

    async def objects(self):
        """The names of the worker's objects, of the members that answer."""
        answers = (await self.store.inspect(WORKER)).answers
        return {name for objects in answers.values() for name in objects}

    async def check(self):
        """Each retained checkpoint holds what it held when it was committed, and each pin's checkpoint is
        one of them. Each savepoint has the note with which it was made."""
        kept = await self.kept()
        for checkpoint in kept:
            assert await self.restored(checkpoint) == {
                k: v for k, v in self.rows[checkpoint.number].items() if v is not None
            }
        if kept:
            assert set(kept[-1].savepoints.values()) <= {checkpoint.number for checkpoint in kept}
            assert kept[-1].notes.keys() == kept[-1].savepoints.keys()
            for name, checkpoint in kept[-1].savepoints.items():
                assert kept[-1].notes[name] in (note_of(name, checkpoint), note_of(name, 0))
            last = [
                checkpoint.number
                for checkpoint in kept
                if checkpoint.number not in kept[-1].savepoints.values()
            ]
            assert len(last) <= self.retain + len(kept[-1].savepoints) + 1 + 2 * self.records_without_driver
        return kept

    async def savepoint_stopped_region(self, name, number, crash, *, on=True):
        """Create or drop a savepoint instead of a driver that is gone, or that this fences."""
        host, before = Host(self.store), await self.kept()
        if crash:  # it dies between the claim and the record
            async with hold_manifest(host, REGION):
                return
        wanted = before[number % len(before)].number if before and number % 4 else 0
        held = before[-1].savepoints if before else {}
        try:
            note = note_of(name, wanted)
            done = await savepoint_stopped(host, REGION, name, wanted, on=on, note=note)
        except SavepointRefusedError:
            done = None
        after = await self.kept()
        if done is None:
            assert not before or (name in held) == on, "there was no reason to refuse"
            assert after == before
            return
        if on and held.get(name) == done:
            assert after == before, "there was nothing to record"
            return
        self.records_without_driver += 1
        last = after[-1]
        self.rows[last.number] = self.rows[last.parent]
        assert after == (*before, last), "nothing was released"
        assert last.savepoints == (
            {**held, name: done} if on else {k: v for k, v in held.items() if k != name}
        )

    async def restored(self, checkpoint):
        state = await inspect_chain_at(self.store, WORKER, STATE_CHAIN, checkpoint.workers[0].state)
        fold = StateFold()
        records = read_records(self.store, state, directory=WORKER)
        async with aclosing(records) as found:
            async for _, record in found:
                if record.op is Op.STATE_BLOCK:
                    fold.add("one", decode_block(record.strings[1], where="here"))
        if not fold.operators():
            return {}
        table = fold.take("one")
        keys, values = table.column("key"), table.column("value")
        assert isinstance(keys, pa.Array)
        return dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))

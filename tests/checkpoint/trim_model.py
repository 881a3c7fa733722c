"""One input with one producer, read by regions, on a store in memory: real chains, manifests and trimming.
The regions have no workers: a checkpoint is committed with the position up to which a real follower has
read. The oracle reads the input from every retained checkpoint of every registered region, as a restore
does.
"""

from contextlib import aclosing

import trio
from trio.testing import wait_all_tasks_blocked

from checkpoint.chains.consumer_register import change_register, read_register
from checkpoint.chains.input_log import InputFollower, InputLog, last_recorded
from checkpoint.chains.manifest_log import ManifestLog, retained_checkpoints
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    ManifestOpened,
    OpenManifest,
)
from checkpoint.core.records.consumers import input_register, with_consumer
from checkpoint.core.records.inputs import INPUT_CHAIN, producer_directory
from checkpoint.core.records.manifest import SplitPosition, retained_with
from checkpoint.errors import InputTrimmedError
from journal import inspect_chain, parse_segment_name
from tests.checkpoint.manifest_samples import numbered_checkpoint, worker_checkpoint
from tests.checkpoint.savepoint_model import ROLLING, Host, HostClaim
from tests.journal.memory_store import MemoryStore

APPLICATION, HANDLE, PRODUCER, SOURCE = "shop", "orders", "till", "taken"
DIRECTORY = producer_directory(APPLICATION, HANDLE, PRODUCER)
REGISTER = input_register(APPLICATION, HANDLE)


class PatientHost(Host):
    """A host on which nobody waits."""

    async def sleep(self, seconds):
        del seconds
        await trio.lowlevel.checkpoint()


class Store(MemoryStore):
    """The store, as a producer and its readers use it."""

    async def claim(self, directory, epoch, writer_id=b""):  # type: ignore[override]
        del writer_id
        await trio.lowlevel.checkpoint()
        self._writers += 1
        claim = HostClaim(self, directory, epoch, self._writers.to_bytes(16))
        for server in self.servers:
            claim.join(server)
        return claim

    def start(self, task):
        """Trimming is a step of the history here, not a task."""

    async def list_directories(self, prefix=""):
        await trio.lowlevel.checkpoint()
        names = {name for server in self.servers for name in (*server.objects, *server.claims)}
        return sorted(name for name in names if name.startswith(prefix))

    def bytes_of(self, directory):
        """The bytes of a directory on the member that has most."""
        return max(sum(map(len, server.objects.get(directory, {}).values())) for server in self.servers)


class ConsumerModel:
    """One region. `retain`: how many checkpoints it retains. `at`: how far it has read."""

    def __init__(self, model, name, retain):
        self.model, self.name, self.retain = model, name, retain
        self.events, self.savepoints, self.at = [], {}, SplitPosition(0)
        self.log = None
        self.number = 0
        self.begin = 0
        """Where the input began when the region was registered: it needs everything from there on."""

    async def register(self):
        now_ms = self.model.now_ms
        await change_register(
            PatientHost(self.model.store),
            self.model.place,
            lambda register: with_consumer(register, self.name, SOURCE, now_ms),
        )
        self.begin = await self.model.begin()

    async def open(self):
        """A driver takes the manifest over, and the region goes back to its last checkpoint."""
        if self.log is not None:
            await self.log.aclose()
        self.log = ManifestLog(Host(self.model.store), self.name, self.events.append, rolling=ROLLING)
        await self.log.open(OpenManifest(0, 0))
        opened = self.events[-1]
        assert isinstance(opened, ManifestOpened)
        self.kept, self.incarnation = opened.kept, opened.incarnation
        last = opened.last_checkpoint
        self.number = max(self.number, last.number if last else 0)
        self.savepoints = dict(last.savepoints) if last else {}
        read = last.workers[0].sources[SOURCE] if last else {}
        self.at = read.get(self.model.split, SplitPosition(0))

    async def read(self, pieces):
        """Read on, at most so many pieces."""
        follower = self.model.follower(self.at, from_retained=True)
        async with aclosing(follower.poll()) as polled:
            async for piece in polled:
                if pieces == 0:
                    return
                pieces -= 1
                self.at = SplitPosition(piece.end, piece.digest)

    def next_checkpoint(self):
        self.number += 1
        sources = {SOURCE: {self.model.split: self.at} if self.at.position else {}}
        pinned = [one for one in self.savepoints.values() if one != self.number]
        return numbered_checkpoint(
            self.number,
            incarnation=self.incarnation,
            parent=self.kept[-1].number if self.kept else 0,
            step=self.number,
            workers={0: worker_checkpoint(self.incarnation, 100, sources=sources)},
            retained=retained_with(self.kept, self.number, self.retain, pinned),
            savepoints=dict(self.savepoints),
        )

    async def checkpoint(self):
        await self.log.append(AppendCheckpoint(self.next_checkpoint()))
        assert isinstance(self.events[-1], CheckpointAppended)
        self.kept = self.log._kept

    async def vote(self):
        """The record of a checkpoint reaches one member, and the driver dies: it is not committed."""
        order, claim = AppendCheckpoint(self.next_checkpoint()), self.log._claim
        claim.held = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.log.append, order)
            await wait_all_tasks_blocked()
            claim.deliver(3)
            nursery.cancel_scope.cancel()

    async def savepoint(self, name):
        """Hold the last checkpoint, by the next one."""
        if self.kept and len(self.savepoints) < 2:
            self.savepoints[name] = self.kept[-1].number
            await self.checkpoint()

    async def drop(self, name):
        if self.savepoints.pop(name, None) is not None:
            await self.checkpoint()


class TrimModel:
    """The input and its regions."""

    place, split = REGISTER, PRODUCER

    def __init__(self):
        self.store, self.now_ms, self.sent = Store(), 1_000, 0
        self.rows: list[bytes] = []
        self.ends: list[int] = []
        """The end of each batch."""
        self.regions: dict[str, ConsumerModel] = {}
        self.log = None

    def follower(self, at, **options):
        return InputFollower(
            self.store, APPLICATION, HANDLE, PRODUCER, at=at.position, digest=at.digest, **options
        )

    async def begin(self):
        """Where the input begins for a region that is new."""
        return (await inspect_chain(self.store, DIRECTORY, INPUT_CHAIN)).segments[0].base

    async def open(self):
        """A producer, after the one before has died."""
        self.log = await InputLog.open_even_if_closed(self.store, APPLICATION, HANDLE, PRODUCER)
        assert self.log.last == self.sent, "it continues after the last batch"

    async def send(self):
        self.sent += 1
        row = b"%06d" % self.sent * 8
        self.rows.append(row)
        await self.log.append([(1, row)], number=self.sent)
        await self.log.recorded(self.sent)
        self.ends.append(self.log.last_end)

    async def region(self, name, retain=2):
        if name not in self.regions:
            region = ConsumerModel(self, name, retain)
            await region.register()
            await region.open()
            self.regions[name] = region
        return self.regions[name]

    async def trim_step(self):
        """One step of trimming: delete what was released before, then release more."""
        _, more = await self.log._trimmer.step(self.log.chain, self.now_ms)
        return more

    async def trim(self):
        while await self.trim_step():
            pass

    def segments(self):
        """The bases of the segments that any member has."""
        names = {name for server in self.store.servers for name in server.objects.get(DIRECTORY, {})}
        return sorted(parse_segment_name(name).base for name in names if name.startswith(INPUT_CHAIN))

    async def read_from(self, at, **options):
        """All rows from a position on, as a restored region reads them."""
        return [piece.data async for piece in self.follower(at, **options).poll()]

    async def check(self):
        """Each region can be restored to each of its retained checkpoints, and reads every row from there."""
        register = await read_register(self.store, REGISTER)
        for name, region in self.regions.items():
            assert name in register.consumers
            kept = await retained_checkpoints(self.store, name)
            starts = [
                checkpoint.workers[0].sources[SOURCE].get(PRODUCER, SplitPosition(0)) for checkpoint in kept
            ]
            for at in starts or [SplitPosition(0)]:
                try:
                    begins_late = at.position == 0 and region.begin > 0
                    found = await self.read_from(at, from_retained=begins_late)
                except InputTrimmedError as error:
                    raise AssertionError(f"{name} needs {at.position}: {error}") from error
                assert found == self.rows[len(self.rows) - len(found) :]
                before = [end for end in self.ends if end <= max(at.position, region.begin)]
                assert len(found) >= len(self.rows) - len(before), f"{name} at {at.position}"
                assert begins_late or len(found) == len(self.rows) - len(before)
        last = await last_recorded(self.store, APPLICATION, HANDLE, PRODUCER)
        assert last.batch == self.sent, "the last batch is known"

"""The clients of a store: writers of journals, readers of several kinds, clients that replace a member,
repair, or read no answers. Each is a process of its own: a host in the network, and a scope that can be
canceled anywhere.

They report what they write and read to the history.
"""

from contextlib import aclosing, suppress
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from dos_client.core.watching import name_of
from dos_client.errors import MissingDataError, QuorumUnavailableError, StoreNotReadyError
from dos_client.live_store import Store
from dos_client.membership.replacing import replace_member
from dos_client.membership.watching import Seen, StoreWatcher, WatchOptions
from dos_client.repair.repairing import repair_store
from dos_client.store import open_store
from dos_client.writing.claim import Claim
from dos_protocol.errors import DosError, FencedError
from dos_protocol.frames import encode_frame
from dos_protocol.limits import PROTOCOL_VERSION
from dos_protocol.messages import ChangeDirectory, Get, Hello, encode
from dos_protocol.names import NO_ID
from dos_server.memory.network import here
from journal import ChainWriter, Op, Record, inspect_chain, take_over
from journal.core.chain import ChainState
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError, NotEnoughAnswersError
from tests.shells.oracles import check_read
from tests.sim.history import History
from tests.sim.store.clients import CHAIN, PendingRecords, epoch_above, numbers_of

if TYPE_CHECKING:
    from tests.shells.run import Cluster

_GRANT_PATIENCE_S = 8.0


class Client:
    """One process. `run` in a nursery; `kill` ends it wherever it is."""

    kind = "client"

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.history: History = cluster.history
        self.rng: Random = cluster.rng.stream(name)
        self.scope = trio.CancelScope()
        self.alive = True
        self.ended = trio.Event()

    async def run(self) -> None:
        """Run the process on a host of its own."""
        here.set(self.name)
        try:
            with self.scope:
                await self.perform()
        finally:
            self.alive = False
            self.ended.set()

    async def perform(self) -> None:
        """Do the work of this client."""
        raise NotImplementedError

    def kill(self) -> None:
        """Cancel it at its current step, and end its connections."""
        if self.alive:
            self.alive = False
            self.scope.cancel()
            self.cluster.network.process_died(self.name)
            self.note("was killed")

    def note(self, what: str) -> None:
        self.cluster.note(self.name, what)

    async def sleep(self, typical_s: float) -> None:
        await trio.sleep(0.001 + self.rng.expovariate(1 / typical_s))


class _RecordedWriter:
    """An object writer that reports what is appended to the history."""

    def __init__(self, writer: Any, claim: "_RecordedClaim") -> None:
        self._writer = writer
        self._claim = claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def append(self, data: bytes) -> int:
        offset = self._writer.size
        size: int = self._writer.append(data)
        self._claim.history.wrote(self._claim.directory, self._writer.name, offset, bytes(data))
        return size


class _RecordedClaim:
    """A claim of the real client whose objects report to the history."""

    def __init__(self, claim: Claim, history: History) -> None:
        self.claim = claim
        self.history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self.claim, name)

    def open_object(self, name: str, local: Any = None) -> _RecordedWriter:
        return _RecordedWriter(self.claim.open_object(name, local), self)


class Writer(Client):
    """Takes a chain over and appends to it, until it is superseded. `running`: its start is acknowledged."""

    kind = "writer"

    def __init__(self, cluster: "Cluster", name: str, directory: str, *, pipelined: bool) -> None:
        super().__init__(cluster, name)
        self.directory = directory
        self.pipelined = pipelined
        self.running = False
        self._pending = PendingRecords(self.history, directory, self._wait_appended)
        self._appended = trio.Event()

    async def perform(self) -> None:
        """Claim until superseded. Before its start is acknowledged, it tries again after a refusal (R8)."""
        superseded = 0
        while True:
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    await self._one_claim(store)
            except FencedError as error:
                superseded += 1
                self.note(f"fenced: {error.args[0]}")
                self.history.sometimes["fenced after start" if self.running else "fenced before start"] += 1
                if self.running:
                    return
            except (
                QuorumUnavailableError,
                NotEnoughAnswersError,
                StoreNotReadyError,
                trio.TooSlowError,
            ) as error:
                self.history.sometimes[f"writer: {type(error).__name__}"] += 1
            except (MissingDataError, LostBytesError, ChainError, CorruptRecordError) as error:
                self.history.refuse(self.directory, f"{type(error).__name__}: {error}")
            except DosError as error:
                self.history.sometimes[f"writer: {type(error).__name__}"] += 1
            await self.sleep(min(30.0, 0.1 * 2.0**superseded))

    async def _one_claim(self, store: Store) -> None:
        view = await store.inspect(self.directory)
        epoch = epoch_above(view)
        self.note(f"claims epoch {epoch}")
        with trio.fail_after(_GRANT_PATIENCE_S):
            claim = await store.claim(self.directory, epoch, self.rng.randbytes(16))
        async with claim:
            recorded: Any = _RecordedClaim(claim, self.history)
            generation = store.record.generation
            state = await take_over(recorded, CHAIN, generation=generation, wait_s=3.0)
            found = await numbers_of(recorded, state, None)
            snapshot = [Record(Op.OUTPUT, number) for number in found] if self.rng.random() < 0.2 else None
            writer = await ChainWriter.open(
                recorded, CHAIN, state, generation, snapshot=snapshot, pipelined=self.pipelined
            )
            self.history.took_over(self.directory, epoch, found)
            self.running = True
            self.note(f"runs at epoch {epoch} after {len(found)} records")
            self._pending.clear()
            await self._write_and_listen(writer, epoch, found)

    async def _write_and_listen(self, writer: ChainWriter, epoch: int, found: list[int]) -> None:
        failure: DosError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge, writer)
            try:
                await self._write(writer, epoch, found)
            except DosError as error:
                failure = error
            nursery.cancel_scope.cancel()
        assert failure is not None
        raise failure

    async def _write(self, writer: ChainWriter, epoch: int, found: list[int]) -> None:
        rng, numbers = self.rng, list(found)
        while True:
            for _ in range(rng.randint(1, 6) if self.pipelined else 1):
                number = self.history.number(self.directory, epoch)
                size = self.cluster.large_bytes if rng.random() < 0.05 else rng.choice([0, 100, 500])
                record = Record(Op.OUTPUT, number, strings=(rng.randbytes(size),))
                self._pending.add(number, writer.append(record))
                numbers.append(number)
            self._appended.set()
            await writer.wait_room()
            if not self.pipelined or rng.random() < 0.1:
                await writer.wait_synced()
            if rng.random() < 0.04:
                await writer.wait_synced()
                keep = [Record(Op.OUTPUT, number) for number in numbers] if rng.random() < 0.5 else None
                await writer.roll(keep)
                self.history.sometimes["rolled"] += 1
            await self.sleep(self.cluster.pace_s)

    async def _acknowledge(self, writer: ChainWriter) -> None:
        with suppress(DosError):  # the appending task reports it
            await self._pending.report_acknowledged(writer)

    async def _wait_appended(self) -> None:
        self._appended = trio.Event()
        await self._appended.wait()


class Reader(Client):
    """Reads a chain, and its bytes by committed reads, hedged reads and streams. They must be what was
    written (R10, O3)."""

    kind = "reader"

    def __init__(self, cluster: "Cluster", name: str, directory: str) -> None:
        super().__init__(cluster, name)
        self.directory = directory
        self.reads_done = 0

    async def perform(self) -> None:
        while True:
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    for _ in range(self.rng.randint(1, 9)):
                        await self._once(store)
                        await self.sleep(1.5)
            except DosError as error:
                self.history.sometimes[f"reader: {type(error).__name__}"] += 1
            await self.sleep(0.5)

    async def _once(self, store: Store) -> None:
        owed = self.history.acknowledged_now(self.directory)
        state = await inspect_chain(store, self.directory, CHAIN)
        found = await numbers_of(store, state, self.directory)
        self.history.returned(self.directory, found, owed=0 if state.unproved else owed)
        self.reads_done += 1
        self.history.sometimes["reader: read"] += 1
        if state is not None and state.segments:
            await self._bytes(store, state)

    async def _bytes(self, store: Store, state: ChainState) -> None:
        """Read some bytes of a segment in one of these ways."""
        name = self.rng.choice(state.segments).name
        content = self.history.segments.get((self.directory, name), b"")
        offset = self.rng.randrange(max(len(content), 1))
        way = self.rng.choice(["hedged", "committed", "stream"])
        if way == "stream":
            data = b""
            async with aclosing(store.stream(self.directory, name, offset)) as pieces:
                async for piece in pieces:
                    data += piece
        else:
            count = self.rng.choice([1, 1_000, 1 << 20])
            data = await store.read(self.directory, name, offset, count, committed=way == "committed")
        self.history.sometimes[f"read {way}"] += 1
        check_read(self.history, self.directory, name, offset, data)


class Replacer(Client):
    """Runs `dos store replace` again after an interruption or a refusal, until it is done."""

    kind = "replacer"

    def __init__(self, cluster: "Cluster", name: str, old: str, new: str) -> None:
        super().__init__(cluster, name)
        self.old, self.new = old, new
        self.done = False

    async def perform(self) -> None:
        for _ in range(20):
            try:
                await replace_member(self.cluster.url, old=self.old, new=self.new)
            except DosError as error:
                self.note(f"cannot replace yet: {error.args[0]}")
                self.history.sometimes[f"replace: {type(error).__name__}"] += 1
                await self.sleep(2.0)
            else:
                self.done = True
                self.note(f"replaced {self.old} by {self.new}")
                self.history.sometimes["replaced"] += 1
                return


class Repairer(Client):
    """Runs `dos store repair` now and then."""

    kind = "repairer"

    async def perform(self) -> None:
        while True:
            await self.sleep(4.0)
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    report = await repair_store(store, read=self.rng.random() < 0.5)
                self.history.sometimes["repaired" if report.repairs else "nothing to repair"] += 1
            except DosError as error:
                self.history.sometimes[f"repairer: {type(error).__name__}"] += 1


class Deaf(Client):
    """Requests as much as possible from one server and reads no answer. The answers must not accumulate
    there."""

    kind = "deaf"

    async def perform(self) -> None:
        while True:
            await self.sleep(0.7)
            host, port = self.rng.choice(self.cluster.machines).address.split(":")
            try:
                with await self.cluster.network.connect(host, int(port)) as stream:
                    await self._ask(stream)
                    await trio.sleep(5.0)
            except OSError:
                self.history.sometimes["deaf: broken"] += 1

    async def _ask(self, stream: Any) -> None:
        names = list(self.history.segments)
        if not names:
            return
        directory, name = max(names, key=lambda one: (len(self.history.segments[one]), one))
        messages: list[Any] = [Hello(PROTOCOL_VERSION, b"", NO_ID, 0, "deaf"), ChangeDirectory(directory)]
        size = len(self.history.segments[directory, name])
        messages += [Get(name, 0, size)] * min(2_000, self.cluster.deaf_bytes // max(size, 1))
        with trio.move_on_after(5.0):
            for number, message in enumerate(messages, start=1):
                data = memoryview(encode_frame(encode(message, number)))
                while data:
                    data = data[await stream.sendmsg([data]) :]
            self.history.sometimes["deaf: requested"] += 1


class Watcher(Client):
    """Watches the store, as `dos store watch` does."""

    kind = "watcher"

    def __init__(self, cluster: "Cluster", name: str, options: WatchOptions) -> None:
        super().__init__(cluster, name)
        self._options = options

    async def perform(self) -> None:
        await StoreWatcher(self.cluster.url, self._options, client=self.name).run(self._seen)

    def _seen(self, seen: Seen) -> None:
        what = name_of(seen.action)
        outcome = "done" if seen.done else "failed" if seen.failure else "seen"
        self.history.sometimes[f"watcher: {what} {outcome}"] += 1
        if seen.done or seen.failure:
            self.note(f"{what} {outcome}: {seen.action.why} {seen.failure}")

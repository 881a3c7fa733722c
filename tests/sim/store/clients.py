"""Clients of the simulated store, as the first tier has them: claims, writers, readers and observers."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from random import Random
from typing import TYPE_CHECKING, Protocol

from dos_client.core.agreement import DirectoryView
from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord
from dos_server.limits import log_small_bytes_max
from journal import ChainWriter, Op, Position, Record, inspect_chain, read_batches, take_over
from journal.core.chain import ChainState, parse_segment_name
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError, NotEnoughAnswersError
from journal.ports import ClaimPort, StorePort
from tests.sim.engine.environment import Environment, Process, Signal
from tests.sim.engine.network import Network
from tests.sim.history import History
from tests.sim.store.claim import SimClaim
from tests.sim.store.session import Session
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine


# --- appending --------------------------------------------------------------------------------------------


class PendingRecords:
    """The appended records that are not acknowledged. `wait_appended`: waits for the next record."""

    def __init__(
        self, history: History, directory: str, wait_appended: Callable[[], Awaitable[None]]
    ) -> None:
        self._history = history
        self._directory = directory
        self._wait_appended = wait_appended
        self._records: list[tuple[int, Position]] = []

    def add(self, number: int, position: Position) -> None:
        self._records.append((number, position))

    def clear(self) -> None:
        self._records.clear()

    async def report_acknowledged(self, writer: ChainWriter) -> None:
        """Report each record that the quorum's watermark has passed to the history. Raises DosError."""
        while True:
            while not self._records:
                await self._wait_appended()
            number, position = self._records[0]
            await writer.wait_synced(position)
            self._records.pop(0)
            self._history.acknowledge(self._directory, number)


class Appending(Protocol):
    """A process that appends. `hurries_until`: until then its pauses are short. `large_until`: until then
    some of its records are too large for the group log of a server.
    """

    env: Environment
    directory: str
    history: History
    rng: Random
    pipelined: bool
    pace_s: float
    hurries_until: float
    large_until: float
    pending: PendingRecords

    def records_appended(self) -> None:
        """Called after a burst of records."""

    def rolled(self, *, snapshot: bool) -> None:
        """Called after the chain has continued in a new segment."""


def _bytes_of_next(process: Appending) -> int:
    count = process.rng.randint(0, 120)
    if process.env.now < process.large_until and process.rng.random() < 0.1:
        return log_small_bytes_max + count
    return count


async def append_records(
    process: Appending,
    writer: ChainWriter,
    epoch: int,
    found: list[int],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Append records after those that were `found`, until an error ends it. Raises DosError."""
    rng, numbers = process.rng, list(found)
    while True:
        for _ in range(rng.randint(1, 6) if process.pipelined else 1):
            number = process.history.number(process.directory, epoch)
            record = Record(Op.OUTPUT, number, strings=(rng.randbytes(_bytes_of_next(process)),))
            process.pending.add(number, writer.append(record))
            numbers.append(number)
        process.records_appended()
        if not process.pipelined or rng.random() < 0.1:
            await writer.wait_synced()
        if rng.random() < 0.03:
            await writer.wait_synced()
            keep = [Record(Op.OUTPUT, number) for number in numbers] if rng.random() < 0.5 else None
            await writer.roll(keep)
            process.rolled(snapshot=keep is not None)
            process.history.sometimes["writer: rolled"] += 1
        hurries = process.env.now < process.hurries_until
        await sleep(0.001 + (0.005 if hurries else rng.expovariate(1 / process.pace_s)))


# --- a writer ---------------------------------------------------------------------------------------------


CHAIN = "state"
GRANTED, SETTLED, RUNNING = "granted", "settled", "running"
PACES_S = (0.08, 0.25, 0.5)
"""Average pauses between appends, of which a run has one. Some faults need many bytes in flight; most need
few bytes and many runs."""
_GRANT_PATIENCE_S = 8.0
_SUPERSEDED_WAIT_MAX_S = 30.0


def epoch_above(view: DirectoryView) -> int:
    """Return an epoch above those of all claims and segments that members reported."""
    seen = [
        parsed.epoch
        for objects in view.answers.values()
        for name in objects
        if (parsed := parse_segment_name(name)) is not None
    ]
    return max([view.epoch_seen, *seen]) + 1


async def records_of(reader: ClaimPort | StorePort, state: ChainState, directory: str | None) -> list[Record]:
    """Return the records of a chain. A snapshot contains all records before it."""
    found: list[Record] = []
    async with aclosing(read_batches(reader, state, directory=directory)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.op is Op.SNAPSHOT_BEGIN:
                    found.clear()
                elif record.op is Op.OUTPUT:
                    found.append(record)
    return found


async def numbers_of(reader: ClaimPort | StorePort, state: ChainState, directory: str | None) -> list[int]:
    """Return the numbers of the records of a chain."""
    return [record.tag for record in await records_of(reader, state, directory)]


class _HistoryClaim(SimClaim):
    """A claim that reports what is appended to the history."""

    history: History

    def on_append(self, name: str, offset: int, data: bytes) -> None:
        self.history.wrote(self.directory, name, offset, data)


class Writer(Process):
    """One writer process of one directory. `running`: its start is acknowledged, it appends. `reached`:
    called when its claim is GRANTED, when the chain is SETTLED, when it is RUNNING. `hurries_until`: until
    then its pauses between appends are short. `large_until`: until then some of its records are large."""

    def __init__(
        self,
        name: str,
        store_of: "Stores",
        directory: str,
        history: History,
        rng: Random,
        *,
        pipelined: bool,
        pace_s: float = PACES_S[0],
    ) -> None:
        super().__init__(store_of.network.env, name)
        self.directory = directory
        self.history = history
        self.rng = rng
        self.pipelined = pipelined
        self.pace_s = pace_s
        self.running = False
        self.reached: Callable[[str], None] = lambda stage: None
        self.hurries_until = self.large_until = 0.0
        self.store = SimStore(self, store_of.network, store_of.record)
        self.claim: SimClaim | None = None
        self._network = store_of.network
        self._appended = Signal()
        self.pending = PendingRecords(history, directory, self._wait_appended)
        self.start("work", self._work())

    async def _work(self) -> None:
        """Claim until superseded. Before its start is acknowledged, it tries again after a refusal (R8)."""
        superseded = 0
        while True:
            began = self.now
            try:
                await self._one_claim()
            except FencedError as error:
                superseded += 1
                self._note(f"is superseded{'' if self.running else ' before its start'}: {error.args[0]}")
                self.history.sometimes[f"writer: fenced {'after' if self.running else 'before'} start"] += 1
                if self.running:
                    break
            except (QuorumUnavailableError, NotEnoughAnswersError) as error:
                self._note(f"cannot take over now: {error.args[0]}")
                self.history.sometimes[f"writer: {type(error).__name__}"] += 1
            except (MissingDataError, LostBytesError, ChainError, CorruptRecordError) as error:
                self.history.refuse(self.directory, f"{type(error).__name__}: {error}")
            except DosError as error:
                self._note(f"tries again: {type(error).__name__}, {error.args[0]}")
                self.history.sometimes[f"writer: {type(error).__name__}"] += 1
            finally:
                if self.claim is not None:
                    self.claim.close()
            # In proportion to the length of an attempt, as drivers do: else attempts on far stores overlap.
            longest_s = min(_SUPERSEDED_WAIT_MAX_S, (0.1 + self.now - began) * 2.0**superseded)
            await self.sleep(0.1 + longest_s * self.rng.random())
        self.alive = False

    async def _one_claim(self) -> None:
        view = await self.store.inspect(self.directory)
        self.store.close()
        epoch = epoch_above(view)
        claim = self.claim = _HistoryClaim(self.store, self, self._network, self.rng, self.directory, epoch)
        claim.history = self.history
        self._note(f"claims epoch {epoch} of {self.directory}")
        deadline = self.now + _GRANT_PATIENCE_S
        granting = self.start("granting", self._granted(claim))
        while not granting.done and self.now < deadline:
            claim.check()
            await claim.wait_changed(deadline - self.now)
        if not granting.done:
            granting.stop()
            raise QuorumUnavailableError(f"epoch {epoch} was not granted in time", [])
        claim.check()
        self.reached(GRANTED)
        generation = self.store.record.generation
        state = await take_over(claim, CHAIN, generation=generation, wait_s=3.0)
        found = await numbers_of(claim, state, None)
        self.reached(SETTLED)
        snapshot = None
        if self.rng.random() < 0.2:
            snapshot = [Record(Op.OUTPUT, number) for number in found]
        writer = await ChainWriter.open(
            claim, CHAIN, state, generation, snapshot=snapshot, pipelined=self.pipelined
        )
        self.history.took_over(self.directory, epoch, found)
        self.running = True
        after = f"after {len(found)} records" + (", written to a snapshot" if snapshot is not None else "")
        self._note(f"is the writer of {self.directory}, epoch {epoch}, {after}")
        self.pending.clear()
        self.reached(RUNNING)
        acknowledging = self.start("acknowledging", self._acknowledge(writer))
        try:
            await append_records(self, writer, epoch, found, self.sleep)
        finally:
            acknowledging.stop()

    async def _granted(self, claim: SimClaim) -> None:
        try:
            await claim.wait_granted()
        except DosError:
            claim.changed()
            return
        claim.changed()

    async def _acknowledge(self, writer: ChainWriter) -> None:
        with suppress(DosError):  # the appending task reports it
            await self.pending.report_acknowledged(writer)

    async def _wait_appended(self) -> None:
        await self.wait(self._appended)

    def records_appended(self) -> None:
        self._appended.set()

    def rolled(self, *, snapshot: bool) -> None:
        self._note(f"continues in a new segment{', with a snapshot' if snapshot else ''}")

    def _note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)


class Stores:
    """What processes need to reach the store: the network and the store record."""

    def __init__(self, network: Network, record: StoreRecord) -> None:
        self.network = network
        self.record = record


# --- a reader ---------------------------------------------------------------------------------------------


def pause_s(rng: Random) -> float:
    """Return the pause between two reads."""
    return 0.2 + rng.expovariate(1 / 1.8)


class Reader(Process):
    """One reader process of one directory. `read_now`: set to end its pause."""

    def __init__(self, name: str, stores: Stores, directory: str, history: History, rng: Random) -> None:
        super().__init__(stores.network.env, name)
        self.directory = directory
        self.history = history
        self.rng = rng
        self.store = SimStore(self, stores.network, stores.record)
        self.read_now = Signal()
        self.start("work", self._work())

    async def _work(self) -> None:
        while True:
            try:
                await self.inspect()
            except DosError as error:
                self.history.sometimes[f"reader: {type(error).__name__}"] += 1
            await self.wait(self.read_now, pause_s(self.rng))

    async def inspect(self) -> list[int]:
        """Read the chain once; return the numbers of the committed records."""
        owed = self.history.acknowledged_now(self.directory)
        state = await inspect_chain(self.store, self.directory, CHAIN)
        found = await numbers_of(self.store, state, self.directory)
        self.store.close()
        self.env.trace.note(self.env.now, self.name, f"reads {len(found)} records of {self.directory}")
        self.history.returned(self.directory, found, owed=0 if state.unproved else owed)
        self.history.sometimes["reader: read"] += 1
        return found


# --- an observer ------------------------------------------------------------------------------------------


_STATS_MAX = 4


class Observer(Process):
    """The observer of a run."""

    def __init__(
        self,
        name: str,
        stores: Stores,
        machines: "Sequence[Machine]",
        directories: Sequence[str],
        history: History,
        rng: Random,
    ) -> None:
        super().__init__(stores.network.env, name)
        self._network = stores.network
        self._machines = machines
        self._directories = directories
        self._history = history
        self._rng = rng
        self.start("work", self._work())

    async def _work(self) -> None:
        while self._directories:
            await self.sleep(0.2 + self._rng.expovariate(1 / 1.5))
            machine = self._rng.choice(self._machines)
            session = Session(self, self._network, machine.address)
            try:
                await session.open()
                await self._list_directory(machine, session)
                self._history.sometimes["observer: listed"] += 1
            except DosError as error:
                self._history.sometimes[f"observer: {type(error).__name__}"] += 1
            finally:
                session.fail(BrokenConnectionError("closed"))

    async def _list_directory(self, machine: "Machine", session: Session) -> None:
        before, directory = (machine.disk, machine.doomed), self._rng.choice(self._directories)
        reported = {name: size for (folder, name), size in machine.reported.items() if folder == directory}
        await session.open_directory(directory)
        if machine.removed_folder in ("d", f"d/{directory}") and machine.starts_without_it:
            self._history.bench.overlooked(machine, machine.removed_folder)
        infos: dict[str, ObjectInfo] = {info.name: info for info in await session.list_all()}
        for name in sorted(infos)[-_STATS_MAX:]:
            infos[name] = (await session.stat(name)).info
        if (machine.disk, machine.doomed) == before:  # otherwise files were taken away meanwhile
            self._history.bench.listed(machine, directory, reported, infos)

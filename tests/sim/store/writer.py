"""A writer: a client that takes a chain over and appends records to it, until it is superseded or killed.

The chain is the journal's own code. This file has what a well-behaved client does, and what it reports to
the history of the run.
"""

from collections.abc import Callable
from contextlib import aclosing, suppress
from random import Random

from dos_client.core.agreement import DirectoryView
from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_protocol.errors import DosError, FencedError
from dos_protocol.store_record import StoreRecord
from journal import ChainWriter, Op, Record, read_batches, take_over
from journal.core.chain import ChainState, parse_segment_name
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError, NotEnoughAnswersError
from journal.ports import ClaimPort, StorePort
from tests.sim.engine.environment import Process, Signal
from tests.sim.engine.network import Network
from tests.sim.history import History
from tests.sim.store.appending import PendingRecords, append_records
from tests.sim.store.claim import SimClaim
from tests.sim.store.sim_store import SimStore

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

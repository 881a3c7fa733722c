"""Writers and readers on `dos_client`'s own store, with all its tasks: they find its record, follow it from
generation to generation, and repair damage automatically.

They do what well-behaved clients do, as in `writer` and `reader`, and report it to the history. The real code
decides about members, records and copies.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

import trio

from dos_client import Store, open_store
from dos_client.core.replacement import era
from dos_client.errors import MissingDataError, QuorumUnavailableError, StoreNotReadyError
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import DosError, FencedError
from journal import ChainWriter, Op, Record, inspect_chain, take_over
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError, NotEnoughAnswersError
from tests.sim.engine.network import Network
from tests.sim.engine.sockets import Client
from tests.sim.history import History
from tests.sim.store.clients import CHAIN, PendingRecords, append_records, epoch_above, numbers_of, pause_s

_GRANT_PATIENCE_S = 8.0
_SUPERSEDED_WAIT_MAX_S = 30.0


class _RecordingWriter:
    """An object writer that reports what is appended to the history."""

    def __init__(self, writer: ObjectWriter, directory: str, name: str, history: History) -> None:
        self._writer = writer
        self._object = directory, name
        self._history = history
        self.wait_room = writer.wait_room
        self.seal = writer.seal

    @property
    def size(self) -> int:
        return self._writer.size

    @property
    def synced(self) -> int:
        return self._writer.synced

    @property
    def digest(self) -> int:
        return self._writer.digest

    async def wait_synced(self, size: int) -> None:
        await self._writer.wait_synced(size)
        self._history.acknowledged_to(*self._object, size)

    def append(self, data: bytes) -> int:
        before = self._writer.size
        size = self._writer.append(data)
        self._history.wrote(*self._object, before, data)
        return size


class _RecordingClaim:
    """The journal's `ClaimPort`: a claim whose writers report to the history."""

    def __init__(self, claim: Claim, history: History) -> None:
        self._claim = claim
        self._history = history
        self.epoch = claim.epoch
        self.writer_id = claim.writer_id
        self.store = claim.store
        self.wait_all = claim.wait_all
        self.read = claim.read
        self.settle = claim.settle

    @property
    def answers(self) -> Mapping[bytes, Mapping[str, Any]]:
        return self._claim.answers

    @property
    def lost(self) -> FencedError | None:
        return self._claim.lost

    def open_object(self, name: str, local: object = None) -> _RecordingWriter:
        return _RecordingWriter(self._claim.open_object(name), self._claim.directory, name, self._history)


class ShellWriter(Client):
    """One writer process of one directory. `running`: its start is acknowledged, it appends."""

    def __init__(
        self,
        name: str,
        network: Network,
        url: str,
        directory: str,
        history: History,
        rng: Random,
        *,
        pipelined: bool,
        pace_s: float,
    ) -> None:
        super().__init__(network, name, rng)
        self.url = url
        self.directory = directory
        self.history = history
        self.pipelined = pipelined
        self.pace_s = pace_s
        self.running = False
        self.hurries_until = self.large_until = 0.0
        self.pending = PendingRecords(history, directory, self._wait_appended)
        self._appended = trio.Event()
        self.begin(self._work)

    async def _work(self) -> None:
        while True:
            try:
                async with open_store(self.url, client=self.name) as store:
                    await self._claims(store)
                    return
            except StoreNotReadyError:
                self.history.sometimes["writer: store not ready"] += 1
            await trio.sleep(self.rng.random())

    async def _claims(self, store: Store) -> None:
        """Claim until superseded. Before its start is acknowledged, it tries again after a refusal (R8)."""
        superseded = 0
        while True:
            try:
                await self._one_claim(store)
            except FencedError as error:
                superseded += 1
                self._note(f"fenced: {error.args[0]}")
                self.history.sometimes[f"writer: fenced {'after' if self.running else 'before'} start"] += 1
                if self.running:
                    return
            except (QuorumUnavailableError, NotEnoughAnswersError) as error:
                self.history.sometimes[type(error).__name__] += 1
            except (MissingDataError, LostBytesError, ChainError, CorruptRecordError) as error:
                self.history.refuse(self.directory, f"{type(error).__name__}: {error}")
            except DosError as error:
                self.history.sometimes[f"writer: {type(error).__name__}"] += 1
            longest_s = min(_SUPERSEDED_WAIT_MAX_S, 0.1 * 2.0**superseded)
            await trio.sleep(0.1 + longest_s * self.rng.random())

    async def _one_claim(self, store: Store) -> None:
        view = await store.inspect(self.directory)
        epoch = epoch_above(view)
        self._note(f"claims epoch {epoch}")
        try:
            with trio.fail_after(_GRANT_PATIENCE_S):
                claim = await store.claim(self.directory, epoch, self.rng.randbytes(16))
        except trio.TooSlowError:
            raise QuorumUnavailableError(f"epoch {epoch} was not granted in time", []) from None
        async with claim:
            await self._take_over_and_write(_RecordingClaim(claim, self.history), epoch)

    async def _take_over_and_write(self, claim: _RecordingClaim, epoch: int) -> None:
        generation = claim.store.record.generation
        state = await take_over(claim, CHAIN, generation=generation, wait_s=3.0)
        found = await numbers_of(claim, state, None)
        snapshot = [Record(Op.OUTPUT, number) for number in found] if self.rng.random() < 0.2 else None
        writer = await ChainWriter.open(
            claim, CHAIN, state, generation, snapshot=snapshot, pipelined=self.pipelined
        )
        if era(claim.store.record.generation):
            self.history.continues_after_loss(self.directory, found)
        self.history.took_over(self.directory, epoch, found)
        self.running = True
        self._note(f"runs at epoch {epoch} after {len(found)} records, generation {generation}")
        self.pending.clear()
        failure: list[DosError] = []

        async def keep_failure(work: Any) -> None:
            try:
                await work
            except DosError as error:  # raised below: a nursery would wrap it in a group
                failure.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_failure, self.pending.report_acknowledged(writer))
            nursery.start_soon(keep_failure, append_records(self, writer, epoch, found, trio.sleep))
        raise failure[0]

    async def _wait_appended(self) -> None:
        self._appended = trio.Event()
        await self._appended.wait()

    def records_appended(self) -> None:
        self._appended.set()

    def rolled(self, *, snapshot: bool) -> None:
        """Not in the trace of these writers."""

    def _note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)


class ShellReader(Client):
    """One reader process of one directory."""

    def __init__(
        self, name: str, network: Network, url: str, directory: str, history: History, rng: Random
    ) -> None:
        super().__init__(network, name, rng)
        self.url = url
        self.directory = directory
        self.history = history
        self.begin(self._work)

    async def _work(self) -> None:
        while True:
            try:
                async with open_store(self.url, client=self.name) as store:
                    while True:
                        await self._read_chain(store)
                        await trio.sleep(pause_s(self.rng))
            except StoreNotReadyError:
                self.history.sometimes["reader: store not ready"] += 1
                await trio.sleep(self.rng.random())

    async def _read_chain(self, store: Store) -> None:
        try:
            owed = self.history.acknowledged_now(self.directory)
            state = await inspect_chain(store, self.directory, CHAIN)
            found = await numbers_of(store, state, self.directory)
        except DosError as error:
            self.history.sometimes[f"reader: {type(error).__name__}"] += 1
            return
        self.history.returned(self.directory, found, owed=0 if state.unproved else owed)
        self.history.sometimes["reader: read"] += 1

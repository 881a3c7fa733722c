"""Prefetch the input of sources whose data is in the store, on the link thread, on trio."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, closing, suppress
from functools import partial
from typing import TypeVar

import trio

from checkpoint import Checkpoint, InputPiece, SplitPosition, WorkerCheckpoint, limits
from checkpoint.chains.output_reading import PublishedOutput
from checkpoint.errors import InputTrimmedError
from dataflow.errors import InputChangedError
from dataflow.graph.plan import GraphPlan
from dataflow.sources.base import Positions
from dataflow.sources.prefetched import Follower, PrefetchBuffer, PrefetchedSource, Reading
from dataflow.sources.stored import MergedLogSource
from dataflow.worker.spec import WorkerSpec
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError, TokenRefusedError, open_store
from dos_protocol.errors import BrokenConnectionError, CorruptDataError
from journal import LostBytesError

T = TypeVar("T")
logger = logging.getLogger("dos.dataflow")

_UNAVAILABLE = (QuorumUnavailableError, BrokenConnectionError, StoreNotReadyError)
"""Too few members are available: the request is retried."""


class Prefetcher:
    """The buffer of one source in one incarnation, and the tasks that fill it. Run `run` in a task."""

    def __init__(
        self,
        name: str,
        source: PrefetchedSource,
        store: Store,
        *,
        uid: str,
        reader: Reading,
        worker: int,
        workers: int,
        positions: Mapping[str, SplitPosition],
        woken: Callable[[], None],
        consumer: str = "",
        at_present: bool = False,
        token: bytes = b"",
    ) -> None:
        """uid: under which name it is registered as a consumer. positions: where the checkpoint continues.
        consumer: the region to register, "" for none.
        at_present: existing splits are read from their current end. token: for another store of the source.
        """
        # at_present, outside of regions: earlier input may have been processed already, and must not be
        # twice.
        self._name, self._uid = name, uid
        self.registered = trio.Event()
        """It is registered as a consumer, or need not be: nothing that it needs is trimmed."""
        self._source = source
        self._store = store
        self._reader = reader
        self._token = token
        self._origin = source.origin(store, reader)
        self._worker, self._workers = worker, workers
        self._positions = dict(positions)
        self._present = at_present
        # Regions of one name in several stores are different consumers of an entry store.
        here = f".{store.record.store_id.hex()[:8]}" if consumer and source.store_url else ""
        self._consumer = consumer + here
        self._room = trio.Event()
        loop = trio.lowlevel.current_trio_token()

        def roomy() -> None:
            with suppress(trio.RunFinishedError):
                loop.run_sync_soon(self._wake, idempotent=True)

        self.buffer = PrefetchBuffer(woken=woken, roomy=roomy)
        self._ends: dict[str, int] | None = None
        self._skip: Mapping[str, Follower] = {}
        self._last_step = 0
        """Of an output log: the last step that was read."""
        self._reached: dict[str, int] = {}
        """Split -> the position up to which the buffer was filled."""
        self._measured_at: dict[str, float] = {}

    def _wake(self) -> None:
        self._room.set()
        self._room = trio.Event()

    async def go_to_latest(self) -> Positions:
        """Begin at the present end of this worker's splits, and return that. Call it before `run`."""
        # Registered first: what follows the end could be trimmed before it is read.
        await self._register()
        found = await _patiently(self._origin.latest)
        ours = {split: at for split, at in found.items() if self._is_ours(split)}
        self._positions = ours
        return dict(ours)

    async def run(self) -> None:
        """Run until every split is at its end. Raises read errors, but waits for members that are
        unavailable.
        """
        if not self._source.store_url:
            await self._run()
            return
        while True:
            try:
                url, client = self._source.store_url, f"{self._consumer}.{self._name}"
                async with open_store(url, token=self._token, client=client) as store:
                    self._origin = self._source.origin(store, self._reader)
                    await self._run()
                    return
            except TokenRefusedError:
                raise
            except _UNAVAILABLE as error:
                logger.warning("%s waits for its entry store: %s", self._name, error)
            await trio.sleep(limits.inputs_poll_s)

    async def _run(self) -> None:
        source = self._source
        async with trio.open_nursery() as nursery:
            # One worker records for all; a fork reads what its original records.
            if (
                isinstance(source, MergedLogSource)
                and not self._reader.is_fork
                and source.owner("", self._workers) == self._worker
            ):
                recorder = source.recorder(self._store, self._reader, self._token, self.buffer.report)
                nursery.start_soon(recorder.run)
            await self._read_origin()

    async def _read_origin(self) -> None:
        await self._register()  # before anything is read: from here on nothing that it needs is trimmed
        async with trio.open_nursery() as nursery:
            if self._present:
                self._skip = await _patiently(self._origin.present)
            await self._find_all(nursery)
        self.buffer.complete()
        if isinstance(self._origin, PublishedOutput):
            await _patiently(partial(self._origin.watch_end, self._last_step))

    async def _register(self) -> None:
        if self._consumer:
            await _patiently(partial(self._origin.register, self._consumer, self._uid))
        self.registered.set()

    def _is_ours(self, split: str) -> bool:
        return self._source.owner(split, self._workers) == self._worker

    async def _find_all(self, nursery: trio.Nursery) -> None:
        """Follow every split of this worker as it appears, until no more can appear."""
        known: set[str] = set()
        while True:
            ends = await _patiently(self._origin.ends)
            found = await _patiently(self._origin.splits)
            new = sorted({*found, *self._positions, *(ends or ())} - known)
            known.update(new)
            ours = [split for split in new if self._is_ours(split)]
            self.buffer.known(ours)
            for split in ours:
                nursery.start_soon(self._follow, split)
            if ends is not None:
                self._ends = ends
                return
            await trio.sleep(limits.inputs_poll_s)

    async def _follow(self, split: str) -> None:
        at = self._positions.get(split, SplitPosition(0))
        follower = self._skip.get(split) or self._origin.follower(split, at)
        with closing(follower):
            await self._read(split, follower)

    async def _read(self, split: str, follower: Follower) -> None:
        self._reached[split] = follower.seen
        pause_s = limits.input_poll_s
        while True:  # also from its end on: it may not be what was read any more
            before = self._reached[split]
            try:
                async with aclosing(follower.poll()) as pieces:
                    async for piece in pieces:
                        self.buffer.polled(split, caught_up=False)  # others may follow it
                        await self._put(piece, follower)
                self.buffer.polled(split, caught_up=True, rests=await follower.rests())
            except _UNAVAILABLE as error:
                self.buffer.polled(split, caught_up=False)
                logger.debug("%s of %s waits: %s", split, self._name, error)
            except InputTrimmedError as error:
                if self._consumer:
                    raise
                raise LostBytesError(f"{self._name}: {error}") from error  # a reset continues at the present
            except CorruptDataError as error:
                label = f"{self._name}, {split}"
                raise InputChangedError(label, self._reached[split], "what was read", str(error)) from error
            self._reached[split] = follower.seen
            quiet = self._reached[split] == before
            pause_s = min(2 * pause_s, limits.input_poll_max_s) if quiet else limits.input_poll_s
            if self._at_end(split):
                break
            await follower.wait(pause_s)
        self.buffer.at_end(split)

    def _at_end(self, split: str) -> bool:
        return self._ends is not None and self._reached[split] >= self._ends.get(split, 0)

    async def _put(self, piece: InputPiece, follower: Follower) -> None:
        while True:
            room = self._room  # taken first: there may be room while it is measured
            if self.buffer.has_room(piece.split):
                break
            await self._measure(piece.split, follower)
            with trio.move_on_after(limits.heartbeat_s):
                await room.wait()
        self.buffer.put(piece)
        self._last_step = max(self._last_step, piece.digest)
        self._reached[piece.split] = piece.end

    async def _measure(self, split: str, follower: Follower) -> None:
        """Measure what follows the buffer, at most once per heartbeat: that is a request to the store."""
        now = trio.current_time()
        if now >= self._measured_at.get(split, -math.inf) + limits.heartbeat_s:
            self._measured_at[split] = now
            with suppress(*_UNAVAILABLE, CorruptDataError):  # reading reports damage
                self.buffer.measured(split, max(0, await follower.end() - self._reached[split]))


async def _patiently(request: "Callable[[], Awaitable[T]]") -> T:
    while True:
        with suppress(*_UNAVAILABLE):
            return await request()
        await trio.sleep(limits.inputs_poll_s)


def feeds_of(
    spec: WorkerSpec,
    plan: GraphPlan,
    store: Store,
    part: WorkerCheckpoint | None,
    checkpoint: Checkpoint | None,
    *,
    workers: int,
    again: bool,
    uids: Mapping[str, str],
    woken: Callable[[], None],
) -> dict[str, Prefetcher]:
    """Return a prefetcher of each source whose input is in the store, from the positions in `part`, which is
    of this checkpoint, by the names of the graph. again: it is not the first incarnation.
    """
    origin = None if checkpoint is None else checkpoint.origin
    sources = {name: one for name, one in plan.specs.items() if isinstance(one, PrefetchedSource)}
    return {
        name: Prefetcher(
            name,
            source,
            store,
            reader=Reading(
                (origin and origin.application) or spec.application or spec.region,
                spec.region if origin is None else origin.region,
                uids[name],
                origin is not None,
            ),
            uid=uids[name],
            worker=spec.worker,
            workers=workers,
            positions={} if part is None else part.sources.get(name, {}),
            woken=woken,
            consumer="" if spec.without_checkpoints else spec.region,
            at_present=spec.without_checkpoints and again,
            token=spec.token,
        )
        for name, source in sources.items()
    }

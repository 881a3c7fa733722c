"""`through` in one micro-batch: a task carries the rows of the batch to the workers of a region, and takes
their output back from the logs.

    task                      driver, coordinator               workers
    RegionAsked          ->   Desk: starts the region, if it does not run
                         <-   RegionAt
    BatchAsked           ->   is it the next batch?
                         <-   BatchNeeded
    BatchShare, rows     ------------------------------------->  held outside of the circuit
                         <-------------------------------------  BatchShare: all is here
    BatchOffered         ->   OpenBatch                      ->  fed, checkpoint, record
                         <-   BatchProcessed
    reads the output logs

The task keeps its rows until the batch is in a record. If the region is reset before, it sends them again; no
task of Spark fails. What is done with a batch, and why each row counts once, is decided in
`checkpoint/core/coordination/batches.py`.
"""

import gc
import logging
import math
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import trio
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions

from checkpoint import (
    BatchAsked,
    BatchNeeded,
    BatchOffered,
    BatchProblem,
    BatchProcessed,
    BatchRefused,
    BatchShare,
    ChannelFrame,
    FrameType,
    LinkHello,
    Peer,
    ReadAlone,
    RegionAsked,
    RegionAt,
    RegionState,
    control_frame,
    decode_share,
    decode_to_desk,
    decode_to_task,
    job_digest,
)
from checkpoint.chains.visible_log import BatchOutputReader
from checkpoint.errors import ControlMessageError, LinkClosedError, RegionFailedError
from checkpoint.link import Link, connect_link, serve_links
from dataflow.schema import quoted
from dataflow.worker.failures import first_error
from dataflow.worker.partitioning import encode_batch, frames_of
from dos_client import Store, open_store, randomness
from dos_client.blocking import Portal
from dos_protocol.errors import BrokenConnectionError, DosError
from spark_integration import limits
from spark_integration.errors import (
    BatchGapError,
    BatchPlannedAgainError,
    NoBatchError,
    NotEnoughSlotsError,
    OtherQueryError,
)
from spark_integration.spark_api import spark_schema

if TYPE_CHECKING:
    # Tasks import this module, and need neither graphs nor a coordinator: 0.3 s of a core to import them.
    from dataflow.handle import RegionHandle

logger: Final = logging.getLogger("dos.spark_integration")

REFUSALS: Final[dict[BatchProblem, type[DosError]]] = {
    "gap": BatchGapError,
    "planned again": BatchPlannedAgainError,
    "other query": OtherQueryError,
    "no slot": NotEnoughSlotsError,
    "ended": RegionFailedError,
}
"""Problem -> the error of a task."""

# --- the driver: where tasks find the region ----------------------------------------------------------------


class Desk:
    """In the driver: tells tasks where the region is, and starts it for the first of them. Its address and
    its key are in the plan of the query, so they outlive the region: a query may be started again.
    """

    def __init__(
        self,
        region: str,
        start: "Callable[[bytes, BatchAsked], RegionHandle]",
        lacks_slot: Callable[[], bool],
        *,
        host: str,
        ports: Sequence[int] = (0,),
    ) -> None:
        """start: starts the region with this key of its links, for this batch. lacks_slot: whether no worker
        can start now. host: to listen on. Raises BrokenConnectionError if no port is free.
        """
        self.key: Final = secrets.token_bytes(limits.DESK_KEY_BYTES)
        self._name = region
        self._start = start
        self._lacks_slot = lacks_slot
        self._lock = threading.Lock()
        self._region: RegionHandle | None = None
        self._query_run = ""
        """The run of the query for which the region was started last."""
        self._failure: Exception | None = None
        self._stopped = False
        self._warned = False
        self._portal = Portal(f"dos-desk-{region}")
        self._held = ExitStack()
        try:
            serving = self._serving(host, ports)
            self.port: Final[int] = self._held.enter_context(self._portal.hold(serving))[1]
        except BaseException:
            self._portal.close()
            raise

    @property
    def region(self) -> "RegionHandle | None":
        """The region; None before the first batch."""
        return self._region

    def has_processed(self, query: str, batch: int) -> bool:
        """Return whether a batch of a query is in a checkpoint of the region."""
        driving = None if self._region is None else self._region.status.query
        if driving is None or driving.last_batch is None:
            return False
        return driving.query == query and driving.last_batch >= batch

    def stop(self) -> None:
        """Stop the region after a last checkpoint. No query starts it again."""
        with self._lock:
            self._stopped = True
            region = self._region
        if region is not None:
            region.stop()

    def close(self) -> None:
        """Give port and thread back. A query that asks later is not told why there is no region."""
        self._held.close()
        self._portal.close()

    @asynccontextmanager
    async def _serving(self, host: str, ports: Sequence[int]) -> AsyncGenerator[tuple[str, int]]:
        async with trio.open_nursery() as nursery:
            serve = partial(serve_links, self._serve, job=self._name, key=self.key, host=host, ports=ports)
            address = await nursery.start(serve)
            nursery.start_soon(self._watch_slots)
            yield address
            nursery.cancel_scope.cancel()

    async def _watch_slots(self) -> None:
        """End waiting tasks once workers have lacked a slot for too long. Never returns."""
        # Evaluations of a batch that come before the replacement of a lost worker take its slot, and wait for
        # it: only the end of a task gives it one.
        since = math.inf
        while True:
            await trio.sleep(limits.SLOTS_LOOK_S)
            waits = self._is_waiting() and await trio.to_thread.run_sync(self._lacks_slot)
            since = min(since, trio.current_time()) if waits else math.inf
            if trio.current_time() - since >= limits.BATCH_SLOTS_S and self._region is not None:
                since = math.inf
                self._region.batches_wait_in_vain(
                    f"a worker of region {self._name!r} has had no slot for {limits.BATCH_SLOTS_S:.0f} s:"
                    " tasks of this micro-batch hold the last ones, and wait for the worker",
                    "evaluate the DataFrame in fewer threads at a time, or use a master with more slots",
                )

    def _is_waiting(self) -> bool:
        """Return whether tasks wait for a region that does not run yet."""
        if self._region is None:
            return False
        status = self._region.status
        return status.state is not RegionState.RUNNING and bool(status.query and status.query.waits)

    async def _serve(self, link: Link) -> None:
        try:
            asked = decode_to_desk(await link.receive())
            if isinstance(asked, ReadAlone):
                self._warn_once(asked)
            else:
                await link.send(control_frame(await self._answer(asked)))
        except (BrokenConnectionError, LinkClosedError, ControlMessageError) as error:
            logger.info("region %s: a task went without its answer: %s", self._name, error.args[0])

    def _warn_once(self, read: ReadAlone) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "region %s: one task has read and parsed the %d partitions of a micro-batch, in %.1f s;"
                " df.repartition(1) before `through` has a task for each do that, and costs a shuffle",
                self._name,
                read.partitions,
                read.seconds,
            )

    async def _answer(self, asked: RegionAsked) -> RegionAt | BatchRefused:
        try:
            port = await trio.to_thread.run_sync(self._running_for, asked)
        except Exception as error:  # of a start, which runs code of Spark and of the user
            text, remedy = str(error.args[0] if error.args else error), getattr(error, "remedy", "")
            # With the traceback of a function of the user, in which the region failed for another attempt.
            text = "\n".join([text, *getattr(error, "__notes__", ())])
            logger.error("region %s cannot be started: %s", self._name, error)
            return BatchRefused(
                job=self._name,
                incarnation=0,
                problem=next((one for one, kind in REFUSALS.items() if type(error) is kind), "ended"),
                text=f"region {self._name!r} cannot be started: {text}",
                remedy=remedy,
            )
        return RegionAt(job=self._name, incarnation=0, port=port)

    def _running_for(self, asked: RegionAsked) -> int:
        """Return the port of the region's coordinator. Raises why there is none."""
        query_run = asked.query_run
        with self._lock:
            if self._stopped:
                raise RegionFailedError(
                    "its stop() was called", remedy="call through again, and start a query on its result"
                )
            ended = self._region is None or not self._region.isActive
            # A region that failed fails the query that it ran for, and all attempts of its tasks. Another
            # query on the same DataFrame starts it again.
            if ended and self._query_run == query_run:
                failure = self._failure
                if failure is None and self._region is not None:
                    failure = self._region.exception()
                if failure is not None:
                    raise failure
            if ended:
                self._query_run, self._failure = query_run, None
                try:
                    self._region = self._start(self.key, asked)
                except Exception as error:
                    self._failure = error
                    raise
            assert self._region is not None
            return self._region.coordinator_port


# --- the rows of a batch ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenRegion:
    """The region to which batches are carried, as the tasks know it. `sink`: the LogSink whose rows are the
    output.
    """

    name: str
    host: str
    """Of the driver. `desk_port`: where its desk listens."""
    desk_port: int
    key: bytes = field(repr=False)
    store_url: str
    token: bytes = field(default=b"", repr=False)
    sink: str
    read_alone_s: float
    """See `limits.READ_ALONE_S`."""


@dataclass(frozen=True, slots=True)
class CarriedBatch:
    """The batch of a task. `query_run`: the run of the query, which is another one after each start."""

    query: str
    query_run: str
    number: int
    time_us: int = 0
    """0: not known yet."""


Give: TypeAlias = Callable[[pa.RecordBatch], Awaitable[None]]


class _Frame(NamedTuple):
    """The payload of a DATA frame: in memory, or this part of the file."""

    channel: int
    payload: memoryview | None
    begin: int = 0
    size: int = 0


class BatchRows:
    """The rows of one evaluation of a batch, which one thread adds and the trio thread sends. They are kept
    until the batch is in a record: in memory, or above a limit in a file without a name.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.is_whole = False
        self._frames: list[_Frame] = []
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._spilled = 0
        self._changed = trio.Event()

    def add(self, channel: int, batch: pa.RecordBatch) -> None:
        """Add rows of an input. Call `changed` afterwards in the trio thread. Raises UserFault for a row that
        is too large to be sent.
        """
        self.rows += batch.num_rows
        for begin in range(0, batch.num_rows, limits.SHARE_FRAME_ROWS):
            for piece in frames_of(batch.slice(begin, limits.SHARE_FRAME_ROWS)):
                self._keep(channel, encode_batch(piece))

    def _keep(self, channel: int, payload: memoryview) -> None:
        size = len(payload)
        if self._in_memory + size <= limits.BATCH_MEMORY_BYTES:
            self._in_memory += size
            self._frames.append(_Frame(channel, payload))
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="dos-batch-", buffering=0)  # noqa: SIM115  # `close`
        written = 0
        while written < size:
            written += os.pwrite(self._file.fileno(), payload[written:], self._spilled + written)
        self._frames.append(_Frame(channel, None, self._spilled, size))
        self._spilled += size

    def changed(self) -> None:
        """Wake up those who send. In the trio thread."""
        self._changed.set()
        self._changed = trio.Event()

    async def dealt_to(self, worker: int, workers: int) -> AsyncIterator[tuple[int, memoryview | bytes]]:
        """Yield (channel, payload) of the frames of a worker, until the rows are whole. Each evaluation of a
        batch may deal its rows in another way.
        """
        at = worker
        while True:
            while at < len(self._frames):
                frame = self._frames[at]
                at += workers
                yield frame.channel, self._payload(frame)
            if self.is_whole:
                return
            await self._changed.wait()

    def _payload(self, frame: _Frame) -> memoryview | bytes:
        if frame.payload is not None:
            return frame.payload
        assert self._file is not None
        return os.pread(self._file.fileno(), frame.size, frame.begin)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


# --- the task -----------------------------------------------------------------------------------------------


class Carrying:
    """A batch on its way. The thread of the task adds rows, and takes the output."""

    def __init__(self, carrier: "Carrier") -> None:
        self.rows: Final = BatchRows()
        self._carrier = carrier
        self._batch: CarriedBatch | None = None
        self._known = trio.Event()
        self._failure: Exception | None = None
        self._sender, self._output = trio.open_memory_channel[pa.RecordBatch](0)

    @property
    def failed(self) -> bool:
        """Whether no further row is of any use."""
        return self._failure is not None

    def begin(self, batch: CarriedBatch) -> None:
        """Begin to carry, as this batch. In the trio thread."""
        self._batch = batch
        self._known.set()

    @asynccontextmanager
    async def on_its_way(self) -> AsyncGenerator[None]:
        """Carry the batch in the background from `begin` on, until this is left."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry)
                yield
                nursery.cancel_scope.cancel()
        finally:
            self.rows.close()

    async def _carry(self) -> None:
        async with self._sender:
            try:
                await self._known.wait()
                assert self._batch is not None
                await self._carrier.carry(self._batch, self.rows, self._sender.send)
            except Exception as error:
                self._failure = first_error(error)

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows of the output; None at its end. Raises why there are none."""
        try:
            return await self._output.receive()
        except trio.EndOfChannel:
            if self._failure is not None:
                raise self._failure from None
            return None


class Carrier:
    """The links of one process to one region, which several tasks use one after the other."""

    def __init__(self, region: DrivenRegion) -> None:
        self._region = region
        self._portal = Portal("dos-batches")
        self._held = ExitStack()
        self._store: Store | None = None
        self._coordinator: Link | None = None
        self._workers: dict[tuple[Peer, int], Link] = {}
        """(address, incarnation) -> link."""
        self._readers: dict[int, BatchOutputReader] = {}
        """Worker -> the reader of its log, as long as the link to the coordinator."""
        self._warned = False

    def through(
        self, batch: CarriedBatch, given: Iterator[tuple[int, int, pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of a batch. given: (time of the batch, or 0; input or MARKER; rows). Waits while
        the region starts, restores, or waits for its store.

        Raises BatchGapError, BatchPlannedAgainError, OtherQueryError; RegionFailedError if the region ended;
        BrokenConnectionError if its driver is gone; UserFault for a row that is too large.
        """
        portal = self._portal
        if self._store is None:
            region = self._region
            opening = open_store(region.store_url, token=region.token, client=f"{region.name}.batches")
            self._store = self._held.enter_context(portal.hold(opening))
        carrying = portal.call_sync(Carrying, self)
        is_known = False
        with portal.hold(carrying.on_its_way()):
            for time_us, channel, rows in given:
                if carrying.failed:
                    break
                if time_us:
                    is_known = True
                    portal.call_sync(carrying.begin, replace(batch, time_us=time_us))
                if channel != MARKER:
                    carrying.rows.add(channel, rows)
                    portal.soon(carrying.rows.changed)
            assert is_known, "each batch has a row with its time"
            carrying.rows.is_whole = True
            portal.soon(carrying.rows.changed)
            while (found := portal.call(carrying.next)) is not None:
                yield found

    def warn_if_slow(self, reading: "BatchReading") -> None:
        """Have the driver warn if one task has read for long what several could have read."""
        slow = reading.partitions > 1 and reading.seconds >= self._region.read_alone_s
        if slow and not self._warned:
            self._warned = True
            read = ReadAlone(job=self._region.name, partitions=reading.partitions, seconds=reading.seconds)
            self._portal.call(self._tell, read)

    def close(self) -> None:
        """Close all links and the store."""
        self._portal.call(self._drop)
        self._held.close()
        self._portal.close()

    # --- one batch ----------------------------------------------------------------------------------------

    async def carry(self, batch: CarriedBatch, rows: BatchRows, give: Give) -> None:
        """Have the region process a batch, and give its output. In the trio thread."""
        try:
            link = await self._asked(batch)
            await self._read(await self._record(link, batch, rows), give)
        except BaseException:
            await self._drop()  # an answer that this task did not take would be the next one's
            raise

    async def _asked(self, batch: CarriedBatch) -> Link:
        """Return a link on which the coordinator was asked for this batch."""
        fields: dict[str, Any] = {
            "job": self._region.name,
            "query": batch.query,
            "number": batch.number,
            "time_us": batch.time_us,
        }
        asked = BatchAsked(**fields)
        if self._coordinator is not None:
            try:
                await self._coordinator.send(control_frame(asked))
            except DosError as error:  # of a region that ended meanwhile
                logger.info("region %s is looked for again: %s", self._region.name, error.args[0])
                await self._drop()
            else:
                return self._coordinator
        region_asked = RegionAsked(**fields, query_run=batch.query_run)
        self._coordinator = await self._dial(await self._coordinator_address(region_asked))
        await self._coordinator.send(control_frame(asked))
        return self._coordinator

    async def _coordinator_address(self, asked: RegionAsked) -> tuple[str, int]:
        region = self._region
        desk = await self._dial((region.host, region.desk_port))
        try:
            await desk.send(control_frame(asked))
            answer = decode_to_task(await desk.receive())
        finally:
            await desk.aclose()
        if isinstance(answer, BatchRefused):
            raise _refused(answer)
        assert isinstance(answer, RegionAt)
        return region.host, answer.port

    async def _tell(self, message: ReadAlone) -> None:
        try:
            desk = await self._dial((self._region.host, self._region.desk_port))
            try:
                await desk.send(control_frame(message))
            finally:
                await desk.aclose()
        except DosError as error:  # the batch is processed without it
            logger.info("region %s: a warning is lost: %s", self._region.name, error.args[0])

    async def _record(self, link: Link, batch: CarriedBatch, rows: BatchRows) -> BatchProcessed:
        """Have the region process a batch; return its record."""
        sending = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            while True:
                message = decode_to_task(await link.receive())
                sending.cancel()
                if isinstance(message, BatchProcessed):
                    nursery.cancel_scope.cancel()
                    return message
                if isinstance(message, BatchRefused):
                    raise _refused(message)
                assert isinstance(message, BatchNeeded)
                sending = trio.CancelScope()
                nursery.start_soon(self._send_all, sending, link, message, batch, rows)
        raise AssertionError("the nursery ends with the answer")

    async def _send_all(
        self, scope: trio.CancelScope, link: Link, needed: BatchNeeded, batch: CarriedBatch, rows: BatchRows
    ) -> None:
        """Send each worker its share, and offer the batch once all hold theirs; again if a link breaks."""
        with scope:
            while True:
                share = BatchShare(
                    job=self._region.name,
                    incarnation=needed.incarnation,
                    number=batch.number,
                    time_us=batch.time_us,
                    attempt=randomness.fresh_id().hex(),
                )
                if await self._all_hold(share, needed.peers, rows):
                    break
                # A worker was lost, which the coordinator tells, and that ends this; or only a link broke.
                await trio.sleep(limits.SHARE_AGAIN_S)
            # Only now: an offer that overtakes a share would open a batch that a worker does not hold.
            offered = BatchOffered(
                job=self._region.name, incarnation=needed.incarnation, attempt=share.attempt, rows=rows.rows
            )
            await link.send(control_frame(offered))

    async def _all_hold(self, share: BatchShare, peers: Sequence[Peer], rows: BatchRows) -> bool:
        """Send each worker its share; return whether all have acknowledged theirs."""
        try:
            async with trio.open_nursery() as nursery:
                for worker, peer in enumerate(peers):
                    # Small batches begin with another worker each time.
                    dealt = rows.dealt_to((worker + share.number) % len(peers), len(peers))
                    nursery.start_soon(self._send_share, peer, share, dealt)
        except ExceptionGroup as errors:
            first = first_error(errors)
            if not isinstance(first, DosError):
                raise
            logger.info("batch %d is sent again: %s", share.number, first)
            return False
        return True

    async def _send_share(
        self, peer: Peer, share: BatchShare, dealt: AsyncIterator[tuple[int, memoryview | bytes]]
    ) -> None:
        key = peer, share.incarnation
        link = self._workers.pop(key, None) or await self._dial((peer.host, peer.port), share.incarnation)
        job, epoch = job_digest(share.job), share.incarnation
        kept = False
        try:
            await link.send(control_frame(share))
            sent = 0
            async for channel, payload in dealt:
                await link.send(
                    ChannelFrame(
                        FrameType.DATA,
                        job=job,
                        sender_epoch=epoch,
                        seq=sent,
                        channel=channel,
                        payload=payload,
                    )
                )
                sent += 1
            await link.send(ChannelFrame(FrameType.STEP_END, 0, job, epoch, seq=sent))
            kept = decode_share(await link.receive()) == share
        finally:
            if kept:
                self._workers[key] = link
            else:
                with trio.CancelScope(shield=True):
                    await link.aclose()

    # --- output -------------------------------------------------------------------------------------------

    async def _read(self, recorded: BatchProcessed, give: Give) -> None:
        """Give the output of a recorded batch: worker by worker, step by step, the same at each call."""
        workers = sorted(recorded.logs)
        channels = [trio.open_memory_channel[pa.RecordBatch](limits.OUTPUT_BATCHES_AHEAD) for _ in workers]
        async with trio.open_nursery() as nursery:
            for worker, (sender, _) in zip(workers, channels, strict=True):
                nursery.start_soon(self._read_log, recorded, worker, sender)
            for _, output in channels:
                async for batch in output:
                    await give(batch)

    async def _read_log(
        self, recorded: BatchProcessed, worker: int, into: trio.MemorySendChannel[pa.RecordBatch]
    ) -> None:
        region, store = self._region, self._store
        assert store is not None
        if worker not in self._readers:
            self._readers[worker] = BatchOutputReader(store, region.name, worker, region.sink)
        async with into, aclosing(self._readers[worker].read(recorded)) as outputs:
            async for output in outputs:
                if output.rows:
                    with pa.ipc.open_stream(output.data) as reader:
                        for batch in reader.read_all().to_batches():
                            await into.send(batch)

    # --- links --------------------------------------------------------------------------------------------

    async def _dial(self, address: tuple[str, int], incarnation: int = 0) -> Link:
        hello = LinkHello(role="batch", job=self._region.name, worker=-1, attempt=0, incarnation=incarnation)
        return await connect_link(*address, key=self._region.key, hello=hello)

    async def _drop(self) -> None:
        """Close all links: the next batch opens new ones."""
        with trio.CancelScope(shield=True):
            for link in [*filter(None, [self._coordinator]), *self._workers.values()]:
                await link.aclose()
        self._coordinator, self._workers, self._readers = None, {}, {}


def _refused(answer: BatchRefused) -> DosError:
    return REFUSALS[answer.problem](answer.text, remedy=answer.remedy)


# --- the DataFrame ------------------------------------------------------------------------------------------

TAG: Final = "_dos_tag"
"""The column that every row has. Of a row of an input: the number of the input, plus the number of inputs
times that of the partition. Below 0, of a row of no input: one in each batch has the time of the batch,
negated. With several inputs the columns of each are in the struct of its number; with one, each has its
position as its name. One column and not two: Spark spends as long on each as on one of the input.
"""
NO_TIME: Final = -1
"""The tag of a row that has no time."""
MARKER: Final = -1
"""The number of rows that belong to no input."""
_carriers: dict[str, tuple[DrivenRegion, Carrier]] = {}
"""Region -> its carrier in this process, which Spark uses again for later tasks."""


class BatchReading:
    """How a task has read the rows of a batch: in how many seconds, and where they come from."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._tags: set[int] = set()
        self.seconds = 0.0

    @property
    def partitions(self) -> int:
        """The partitions with rows, of the input with most of them."""
        return max(Counter(tag % self._inputs for tag in self._tags).values(), default=0)

    def timed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches."""
        begin = time.perf_counter()
        for batch in batches:
            self.seconds += time.perf_counter() - begin
            yield batch
            begin = time.perf_counter()
        self.seconds += time.perf_counter() - begin

    def by_input(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (input or MARKER, its rows)."""
        tags = batch.column(TAG)
        found: dict[int, list[int]] = {}
        for tag in pc.unique(tags).to_pylist():
            found.setdefault(MARKER if tag < 0 else tag % self._inputs, []).append(tag)
        for number, own in found.items():
            if number != MARKER:
                self._tags.update(own)
            # A batch has rows of several inputs only where their partitions meet.
            is_alone = len(found) == 1
            yield number, batch if is_alone else batch.filter(pc.is_in(tags, pa.array(own, tags.type)))


@dataclass(frozen=True, slots=True)
class CarryingTask:
    """The function of `mapInArrow`: rows of a batch in, output of the region out. schemas: of the inputs."""

    region: DrivenRegion
    schemas: tuple[pa.Schema, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query, query_run, number = _batch_of_task()
        reading = BatchReading(len(self.schemas))
        carrier = _carrier_of(self.region)
        yield from carrier.through(CarriedBatch(query, query_run, number), self._rows(reading, batches))
        carrier.warn_if_slow(reading)

    def _rows(
        self, reading: BatchReading, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield (time of the batch, or 0; input or MARKER; rows)."""
        for batch in reading.timed(batches):
            for number, rows in reading.by_input(batch):
                if number == MARKER:
                    tag = pc.min(rows.column(TAG)).as_py()
                    yield 0 if tag == NO_TIME else -tag, number, rows
                else:
                    yield 0, number, self._of(number, rows)

    def _of(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.schemas[number]
        if len(self.schemas) == 1:
            own = [rows.column(str(index)) for index in range(len(schema))]
            return pa.RecordBatch.from_arrays(own, names=schema.names).cast(schema)
        return pa.RecordBatch.from_arrays(rows.column(str(number)).flatten(), names=schema.names).cast(schema)


def _carrier_of(region: DrivenRegion) -> Carrier:
    known, carrier = _carriers.get(region.name, (None, None))
    if known != region or carrier is None:
        if carrier is not None:
            carrier.close()
        # PySpark's daemon collects all garbage after each task. With all imported modules to look at, that
        # takes longer than 300,000 rows do here. Collected before: what is frozen is never freed.
        gc.collect()
        gc.freeze()
        carrier = Carrier(region)
        _carriers[region.name] = region, carrier
    return carrier


def _batch_of_task() -> tuple[str, str, int]:
    context = TaskContext.get()
    found = [
        context and context.getLocalProperty(name)
        for name in ("sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId")
    ]
    query, query_run, number = found
    if not query or number is None:
        raise NoBatchError("the task has no batch number")
    return query, query_run or "", int(number)


def carried(
    inputs: Sequence[tuple[DataFrame, pa.Schema]], region: DrivenRegion, output: pa.Schema, *, tick: bool
) -> DataFrame:
    """Return the output of a region whose inputs are fed with the rows of these streaming DataFrames. tick: a
    batch begins at least every second, also without a row.
    """
    together, *others = [_marker(inputs[0][0].sparkSession), *_tagged([df for df, _ in inputs])]
    if tick:
        seconds = inputs[0][0].sparkSession.readStream.format("rate").option("rowsPerSecond", 1).load()
        others.append(seconds.select(functions.lit(NO_TIME).cast("bigint").alias(TAG)))
    for other in others:
        together = together.unionByName(other, allowMissingColumns=True)
    # One task carries a batch. Of several, each would have to wait until all have sent their rows: for ever,
    # with fewer free slots than tasks, or if an action evaluates a part of the partitions first (`take`).
    task = CarryingTask(region, tuple(schema for _, schema in inputs))
    return together.coalesce(1).mapInArrow(task, spark_schema(output))


def _tagged(frames: Sequence[DataFrame]) -> list[DataFrame]:
    if len(frames) == 1:
        # By position: PySpark's mapInArrow takes a column `a.b` for the field b of a.
        numbered = frames[0].toDF(*map(str, range(len(frames[0].columns))))
        return [numbered.withColumn(TAG, functions.spark_partition_id().cast("bigint"))]
    tagged = []
    for number, df in enumerate(frames):
        tag = functions.spark_partition_id() * len(frames) + number
        columns = functions.struct(*(functions.col(quoted(name)) for name in df.columns))
        tagged.append(df.select(tag.cast("bigint").alias(TAG), columns.alias(str(number))))
    return tagged


def _marker(spark: SparkSession) -> DataFrame:
    """Return a stream that has one row in each micro-batch, with its time, and never begins one."""
    # By this row a task knows the time of a batch without rows. Without it, an empty DataFrame that a
    # foreachBatch kept would be taken for the batch in which it is evaluated, whose rows would then be lost.
    row = spark.range(1)
    plan = row._jdf.queryExecution()  # noqa: SLF001  # PySpark has no public API for a stream of fixed rows
    session = spark._jsparkSession  # noqa: SLF001
    is_streaming = True
    marked = session.internalCreateDataFrame(plan.toRdd(), plan.analyzed().schema(), is_streaming)
    # Spark writes the time into the code that it generates, and would compile that anew in each micro-batch,
    # also the code for all other rows if they had the time. It generates none around `array_sort`.
    now = functions.array(functions.unix_micros(functions.current_timestamp()))
    return DataFrame(marked, spark).select((-functions.array_sort(now)[0]).alias(TAG))

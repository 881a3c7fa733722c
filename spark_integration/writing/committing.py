"""The driver's part of the sink, which commits a unit and removes leftovers, and Spark's classes for writers.

    1  become the producer: the former one can record nothing more
    2  judge: was the unit recorded before? may this writer record at all? (`core/sink_commits`)
    3  send the parts of all partitions as one batch; staged parts are read and verified before they are
       sent, the next ones while these are sent (`StagedReading`)
    4  wait until the batch is recorded: the commit
    5  remove the unit's staged objects, and older ones

A crash before 4 leaves nothing recorded, a crash after it everything; Spark then commits again. A writer is
created on the driver, in the process that commits a micro-batch, and in each task.
"""

import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from checkpoint import CommitUnit, WriteKind, encode_mark, is_orphan, producer_directory, staging_prefix
from checkpoint.chains.input_log import InputLog
from dataflow.schema import schema_text
from dataflow.values.schema_fit import misfit_of_writer
from dos_client import QuorumUnavailableError, Store, randomness
from dos_client.blocking import BlockingStore
from dos_protocol.digests import digest64
from dos_protocol.errors import DosError, FencedError, LocalProtocolError, NotFoundError, PastEndError
from spark_integration.core.options import (
    JOB_PRODUCER,
    SinkOptions,
    SourceOptions,
    check_producer,
    query_producer,
)
from spark_integration.core.sink_commits import CommitDecision, judge_commit
from spark_integration.errors import (
    NothingThereError,
    SchemaMismatchError,
    StagedRowsGoneError,
)
from spark_integration.limits import (
    SINK_COMMIT_ATTEMPTS_MAX,
    SINK_PRODUCERS_HELD_MAX,
    SINK_READ_BYTES,
    SINK_READS_AHEAD,
    SINK_SWEEP_S,
    SINK_SWEEPS_MAX,
)
from spark_integration.on_executor import expected_of_driver
from spark_integration.reading.chains import InputOrigin
from spark_integration.reading.opening import check_executor, opened
from spark_integration.reading.planning import existing_columns
from spark_integration.spark_api import DataSourceStreamArrowWriter
from spark_integration.writing.staging import (
    StagedCommit,
    StagedPart,
    collect_orphans,
    empty_part,
    prepare,
    sum_of,
)

logger = logging.getLogger("dos.spark_integration")


class Committer:
    """One producer of one handle, open in this process; a context manager."""

    def __init__(self, options: SinkOptions, producer: str) -> None:
        self._options = options
        self._producer = producer
        self._producer_directory = producer_directory(options.application, options.input, producer)
        self._stack = ExitStack()
        self._swept = False
        with ExitStack() as stack:
            self._store = stack.enter_context(opened(options))
            self._log = stack.enter_context(self._store.portal.hold(_Opening(self._store, options, producer)))
            self._stack = stack.pop_all()

    def commit(self, unit: CommitUnit, prepared: Sequence[StagedCommit], schema: pa.Schema) -> CommitDecision:
        """Record what was staged, or find that it was recorded before.
        Raises FencedError, StagedRowsGoneError, and as `judge_commit`; retry with a new Committer then.
        """
        last, mark = self._store.portal.call_sync(lambda: (self._log.last, self._log.last_mark))
        content = sum_of(one.content for one in prepared)
        verdict = judge_commit(unit, content, last, mark, self._producer_directory, self._options.repeated)
        if verdict is CommitDecision.APPEND:
            ordered = sorted(prepared, key=lambda one: one.partition)
            number = unit.number or last + 1
            self._store.portal.call(self._record, number, ordered, schema, encode_mark(unit, content))
        # After the commit: until then the staged rows are the only copy.
        self._sweep(unit, {one.directory for one in prepared if one.directory})
        return verdict

    async def _record(
        self, number: int, prepared: Sequence[StagedCommit], schema: pa.Schema, mark: bytes
    ) -> None:
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            reading = StagedReading(self._store.store, prepared)
            nursery.start_soon(reading.run)
            try:
                async with aclosing(_parts(reading, schema)) as parts:
                    await self._log.append_from(parts, number=number, mark=mark)
            except Exception as error:  # kept, so that it is not wrapped in an exception group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        await self._log.recorded(number)

    def _sweep(self, unit: CommitUnit, used: set[str]) -> None:
        """Remove the staged objects of recorded units, now or with a later commit."""
        self._store.portal.call(self._clear_all, unit, used)

    async def _clear_all(self, unit: CommitUnit, used: set[str]) -> None:
        limiter = trio.CapacityLimiter(SINK_SWEEPS_MAX)
        not_cleared: list[str] = []

        async def clear(directory: str) -> None:
            async with limiter:
                try:
                    await clear_directory(self._store.store, directory, unit)
                except DosError as error:  # the commit succeeded, whatever becomes of the cleanup
                    logger.info("%s was not cleared: %s", directory, error)
                    not_cleared.append(directory)

        directories = used if self._swept else used | await self._earlier_directories()
        async with trio.open_nursery() as nursery:
            for directory in sorted(directories):
                nursery.start_soon(clear, directory)
        self._swept |= not not_cleared

    async def _earlier_directories(self) -> set[str]:
        to = self._options
        prefix = staging_prefix(to.application, to.input, self._producer)
        try:
            return set(await self._store.store.list_directories(prefix))
        except QuorumUnavailableError as error:
            logger.info("%s: cannot list leftovers of earlier writers now: %s", to.what, error)
            return set()

    def close(self) -> None:
        """Close the producer. What was recorded stays."""
        self._stack.close()


async def clear_directory(store: Store, directory: str, unit: CommitUnit) -> None:
    """Remove staged objects that nothing will record once `unit` is recorded."""
    view = await store.inspect(directory)
    if any(is_orphan(name, unit, recorded=True) for held in view.answers.values() for name in held):
        with suppress(FencedError):  # another attempt claims it: it is alive
            async with await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id()) as claim:
                collect_orphans(claim, unit, recorded=True)
                await claim.wait_collected(SINK_SWEEP_S)


async def _parts(reading: "StagedReading", schema: pa.Schema) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield all parts; one without rows if there is none."""
    any_part = False
    async with aclosing(reading.parts()) as parts:
        async for part in parts:
            any_part = True
            yield part
    if not any_part:
        yield empty_part(schema)


class _Opening:
    """`InputLog.open` as an async context manager, for a portal."""

    def __init__(self, store: BlockingStore, options: SinkOptions, producer: str) -> None:
        self._store, self._options, self._producer = store, options, producer

    async def __aenter__(self) -> InputLog:
        to = self._options
        self._log = await InputLog.open(self._store.store, to.application, to.input, self._producer)
        return self._log

    async def __aexit__(self, *error: object) -> None:
        await self._log.aclose()


# --- the producers of this process ------------------------------------------------------------------------

_open_producers: dict[tuple[SinkOptions, str], Committer] = {}
_lock = threading.Lock()


def commit(options: SinkOptions, prepared: Sequence[StagedCommit], schema: pa.Schema) -> CommitDecision:
    """Commit what the tasks of one unit staged: when this returns, the whole unit is recorded exactly once,
    whichever process did it and however often it was tried. If it raises, call it again.

    Raises as `judge_commit`, StagedRowsGoneError, InputClosedError; FencedError if others keep opening the
    same producer; and what opening a store raises. Waits for a quorum; a new producer needs every member.
    """
    first = prepared[0]
    key = options, first.producer
    with _lock:
        for attempt in range(1, SINK_COMMIT_ATTEMPTS_MAX + 1):
            kept = _open_producers.pop(key, None)
            committer = kept or Committer(options, first.producer)
            try:
                verdict = committer.commit(first.unit, prepared, schema)
            except (FencedError, StagedRowsGoneError) as error:
                committer.close()
                fenced = isinstance(error, FencedError) or kept is not None  # a kept one may not know it yet
                if attempt == SINK_COMMIT_ATTEMPTS_MAX or not fenced:
                    raise
            except BaseException:
                committer.close()
                raise
            else:
                _keep(key, committer)
                return verdict
    raise AssertionError("the last attempt returns or raises")


def _keep(key: tuple[SinkOptions, str], committer: Committer) -> None:
    # Each opening adds a segment to the chain, and a take-over reads all of them: Spark reuses this process
    # for the next micro-batch, so the producer stays open. If Spark uses another process, that one fences
    # this one.
    _open_producers[key] = committer
    while len(_open_producers) > SINK_PRODUCERS_HELD_MAX:
        _open_producers.pop(next(iter(_open_producers))).close()


def release_producers() -> None:
    """Close the producers that this process keeps open. The next commit opens its own again."""
    with _lock:
        while _open_producers:
            _open_producers.popitem()[1].close()


@dataclass(slots=True)
class _Piece:
    """Consecutive parts of an object from `begin` on, or parts that came with their data."""

    prepared: StagedCommit
    begin: int
    parts: list[StagedPart]
    data: list[bytes] = field(default_factory=list)
    error: Exception | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class StagedReading:
    """All staged parts, in order. `run` reads and `parts` yields, in tasks of one nursery."""

    def __init__(self, store: Store, prepared: Sequence[StagedCommit]) -> None:
        self._store = store
        self._pieces = [piece for one in prepared for piece in _pieces(one)]
        self._room = trio.Semaphore(SINK_READS_AHEAD)

    async def run(self) -> None:
        """Read until everything is read. Errors are raised by `parts`."""
        async with trio.open_nursery() as nursery:
            for piece in self._pieces:
                await self._room.acquire()
                nursery.start_soon(self._read, piece)

    async def parts(self) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield rows and data of each part. Raises StagedRowsGoneError, and what reading raises."""
        for piece in self._pieces:
            await piece.ended.wait()
            if piece.error is not None:  # before any later part: a batch with a hole would be recorded
                raise piece.error
            for part, data in zip(piece.parts, piece.data, strict=True):
                yield part.rows, data
            piece.data = []
            self._room.release()

    async def _read(self, piece: _Piece) -> None:
        try:
            piece.data = await staged_data(self._store, piece.prepared, piece.begin, piece.parts)
        except Exception as error:
            piece.error = error
        finally:
            piece.ended.set()


def _pieces(prepared: StagedCommit) -> Iterator[_Piece]:
    at, begin, parts = 0, 0, list[StagedPart]()
    for part in prepared.parts:
        if parts and at - begin + part.size > SINK_READ_BYTES:
            yield _Piece(prepared, begin, parts)
            begin, parts = at, []
        parts.append(part)
        at += part.size
    if parts:
        yield _Piece(prepared, begin, parts)


async def staged_data(
    store: Store, prepared: StagedCommit, begin: int, parts: Sequence[StagedPart]
) -> list[bytes]:
    """Return the data of parts that begin at `begin` in the store. Raises StagedRowsGoneError."""
    handed = [part.data for part in parts if part.data is not None]
    if len(handed) == len(parts):
        return handed
    staged = await _bytes_of(store, prepared, begin, sum(part.size for part in parts))
    data, at = [], 0
    for part in parts:
        one = staged[at : at + part.size]
        if digest64(one) != part.digest:  # another attempt's rows would be committed as these
            location = f"{prepared.directory}/{prepared.name}, {begin + at} to {begin + at + part.size}"
            raise StagedRowsGoneError(f"{location}: the bytes differ from those that the task staged")
        data.append(one)
        at += part.size
    return data


async def _bytes_of(store: Store, prepared: StagedCommit, begin: int, size: int) -> bytes:
    chunks = list[bytes]()
    remaining = size
    try:
        while remaining:
            data = await store.read(prepared.directory, prepared.name, begin + size - remaining, remaining)
            if not data:
                break
            chunks.append(data)
            remaining -= len(data)
    except (NotFoundError, PastEndError) as error:
        location = f"{prepared.directory}/{prepared.name}"
        raise StagedRowsGoneError(f"{location} is gone: another attempt removed it ({error})") from error
    return b"".join(chunks)


QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class DosWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """The writer of a batch write, which is one batch of the producer. `job`: an id of this write alone."""

    def __init__(self, options: SinkOptions, schema: pa.Schema, job: str) -> None:
        self._options = options
        self._schema = schema
        self._expected = expected_of_driver()
        self._producer = options.producer or JOB_PRODUCER
        self._unit = CommitUnit(WriteKind.JOB, job, options.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        check_executor(self._expected)
        partition = _task().partitionId()
        return prepare(self._options, self._unit, self._producer, partition, self._schema, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        commit(self._options, _checked(messages), self._schema)
        release_producers()  # this process may never write there again

    def abort(self, messages: "Sequence[WriterCommitMessage | None]") -> None:
        _aborted(self._options, messages)


class DosStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of a stream: micro-batch N is batch N + 1 of the producer."""

    def __init__(self, options: SinkOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._expected = expected_of_driver()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        check_executor(self._expected)
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise LocalProtocolError(
                f"the task carries no query id ({QUERY_ID}={query}, {BATCH_ID}={batch}): write through"
                f" DataFrame.write or writeStream"
            )
        producer = self._options.producer or check_producer(self._options, query_producer(query))
        unit = CommitUnit(WriteKind.STREAM, query, int(batch) + 1)
        return prepare(self._options, unit, producer, task.partitionId(), self._schema, iterator)

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        del batchId  # the messages contain it, and the query
        commit(self._options, _checked(messages), self._schema)

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        del batchId
        _aborted(self._options, messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LocalProtocolError("rows can be written only inside a Spark task")
    return task


def _checked(messages: "Sequence[WriterCommitMessage | None]") -> list[StagedCommit]:
    """Return one message per partition, of one unit. Spark ensures it; an error would duplicate rows."""
    prepared = [one for one in messages if isinstance(one, StagedCommit)]
    units = {(one.unit, one.producer) for one in prepared}
    if len(prepared) != len(messages) or len(units) != 1:
        raise LocalProtocolError(
            f"{len(messages)} messages to commit: {len(prepared)} are from this sink, of {len(units)} units"
        )
    if len({one.partition for one in prepared}) != len(prepared):
        raise LocalProtocolError("the messages to commit contain a partition twice")
    return prepared


def _aborted(options: SinkOptions, messages: "Sequence[WriterCommitMessage | None]") -> None:
    """Only log: unrecorded rows are invisible, and another attempt may have committed recorded ones."""
    staged = sum(isinstance(one, StagedCommit) and bool(one.name) for one in messages)
    logger.info("%s: aborted; a later commit removes %d staged objects", options.what, staged)


@cache
def check_target(options: SinkOptions, schema: pa.Schema) -> None:
    """Check that the store is available and that rows with these columns may follow those of the handle.
    Raises SchemaMismatchError, and what opening a store raises.
    """
    reading = SourceOptions(
        servers=options.servers, directory=options.application, input=options.input, token=options.token
    )
    with opened(options) as store:
        try:
            existing = store.portal.call(existing_columns, InputOrigin(store.store, reading), reading)
        except NothingThereError:
            existing = None
        except QuorumUnavailableError:  # the commit waits for a quorum; this check only reports errors early
            return
    misfit = None if existing is None else misfit_of_writer(existing, schema)
    if misfit is not None:
        listed = schema_text(existing)
        raise SchemaMismatchError(f"{options.what} has rows with {listed}: {misfit}", remedy=misfit.remedy)

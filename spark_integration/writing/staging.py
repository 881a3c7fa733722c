"""The task's part of the sink: stages rows as parts, in its commit message or in the store.

Nothing that a task does is visible to readers. Few rows travel in the commit message. For many rows the task
claims its partition's directory, which fences any earlier attempt, and stages them in an object of its own.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from checkpoint import NO_ROWS, BatchContent, CommitUnit, is_orphan, staged_name, staging_directory
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, kind_of
from checkpoint.runtime import wall_time_ms
from dataflow.errors import UserFault
from dataflow.values.columns import fitted_column
from dos_client import Claim, randomness
from dos_client.blocking import BlockingClaim, BlockingObjectWriter, BlockingStore
from dos_protocol.digests import digest64
from spark_integration.core.options import SinkOptions
from spark_integration.errors import SchemaMismatchError
from spark_integration.limits import BATCH_ROWS, SINK_MESSAGE_BYTES, SINK_PART_BYTES, SINK_PUT_BYTES
from spark_integration.reading.opening import KEPT


class StagedPart(NamedTuple):
    """Some rows as an Arrow stream. `data`: None if they are in the store."""

    rows: int
    size: int
    digest: int
    data: bytes | None


@dataclass
class StagedCommit(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """What a task staged. `directory`, `name`: the object that holds its parts; "" if the message does."""

    unit: CommitUnit
    producer: str
    partition: int
    directory: str = ""
    name: str = ""
    parts: list[StagedPart] = field(default_factory=list)
    content: BatchContent = NO_ROWS


def prepare(
    options: SinkOptions,
    unit: CommitUnit,
    producer: str,
    partition: int,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> StagedCommit:
    """Stage the rows of one partition. Nothing is recorded; the rows are then on stable storage, or in the
    result.

    Raises SchemaMismatchError; FencedError if another attempt took over; and what opening a store raises.
    Waits for a quorum.
    """
    prepared = StagedCommit(unit, producer, partition)
    size = 0
    with ExitStack() as stack:
        staged: _Staged | None = None
        for table in tables_of(batches, schema):
            data = _arrow_stream(table)
            part = StagedPart(table.num_rows, len(data), digest64(data), data)
            prepared.content = sum_of([prepared.content, content_of(table)])
            size += len(data)
            if staged is None and size > SINK_MESSAGE_BYTES:
                staged = stack.enter_context(_Staged(options, prepared))
                prepared.parts = [staged.put(one) for one in prepared.parts]
            prepared.parts.append(part if staged is None else staged.put(part))
        if staged is not None:
            staged.wait_synced()  # before Spark hears of them: the commit reads the only copy
    return prepared


class _Staged:
    """The staged object of this attempt. Sets its location in `prepared`."""

    def __init__(self, options: SinkOptions, prepared: StagedCommit) -> None:
        self._options = options
        self._prepared = prepared
        self._stack = ExitStack()
        self._writer: BlockingObjectWriter
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

    def __enter__(self) -> Self:
        to, prepared = self._options, self._prepared
        prepared.directory = staging_directory(
            to.application, to.input, prepared.producer, prepared.partition
        )
        with ExitStack() as stack:
            store = stack.enter_context(KEPT.lent(to))
            claim = stack.enter_context(claim_above(store, prepared.directory))
            prepared.name = staged_name(prepared.unit, claim.epoch, wall_time_ms())
            store.portal.call_sync(partial(collect_orphans, claim.claim, prepared.unit, recorded=False))
            self._writer = claim.open_object(prepared.name)
            self._stack = stack.pop_all()
        return self

    def put(self, part: StagedPart) -> StagedPart:
        """Return the part without its data, which is written."""
        assert part.data is not None, "a new part has data"
        self._buffered.append(part.data)
        self._buffered_bytes += part.size
        if self._buffered_bytes >= SINK_PUT_BYTES:
            self._flush()
        return part._replace(data=None)

    def _flush(self) -> None:
        # Buffered, because each call into the store's thread costs time.
        data, self._buffered, self._buffered_bytes = b"".join(self._buffered), [], 0
        self._writer.append(data)
        self._writer.wait_room()

    def wait_synced(self) -> None:
        """Wait until everything is on stable storage of a quorum."""
        self._flush()
        self._writer.wait_synced(self._writer.size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def claim_above(store: BlockingStore, directory: str) -> BlockingClaim:
    """Claim a directory, which fences its holder. Raises FencedError if another claim follows at once."""
    # A zombie or a speculative attempt could otherwise still write into what the commit reads. One that is
    # fenced never claims again: Spark knows whether another attempt is needed.
    return store.claim(directory, store.inspect(directory).epoch_seen + 1, randomness.fresh_id())


def collect_orphans(claim: Claim, unit: CommitUnit, *, recorded: bool) -> None:
    """Delete abandoned staged objects in the background. Call it in the store's thread."""
    claim.collect(lambda name: is_orphan(name, unit, recorded=recorded))


def content_of(table: pa.Table) -> BatchContent:
    """Return what the rows count for in the content of their batch."""
    columns = [column for column in table.columns if _is_exact(column.type)]
    digest = int(hash_keys(columns).sum(dtype="uint64")) if columns and table.num_rows else 0
    return BatchContent(table.num_rows, digest)


def sum_of(contents: Iterable[BatchContent]) -> BatchContent:
    """Return the content of a batch that has these parts."""
    found = list(contents)
    return BatchContent(sum(one.rows for one in found), sum(one.digest for one in found) % (1 << 64))


def _is_exact(kind: pa.DataType) -> bool:
    try:
        found = kind_of(kind)
        return found != "float" and not isinstance(found, tuple)
    except UnsupportedKeyTypeError:
        return False


def tables_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in tables of about SINK_PART_BYTES. Raises SchemaMismatchError."""
    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for one in _handy(fitted(batch, schema)):
            if buffered and size + one.nbytes > SINK_PART_BYTES:
                yield pa.Table.from_batches(buffered, schema)
                buffered, size = [], 0
            buffered.append(one)
            size += one.nbytes
    if buffered:
        yield pa.Table.from_batches(buffered, schema)


def empty_part(schema: pa.Schema) -> tuple[int, bytes]:
    """Return the part of a batch without rows."""
    return 0, _arrow_stream(pa.Table.from_batches([], schema))


def _arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_compressed()) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@cache
def _compressed() -> pa.ipc.IpcWriteOptions:
    # It pays off: each byte of a part is written to every member twice.
    codec = pa.Codec("zstd", compression_level=1) if pa.Codec.is_available("zstd") else None
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with exactly these types. Raises SchemaMismatchError if a value would change."""
    try:
        columns = [fitted_column(batch.column(at), one) for at, one in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (UserFault, pa.ArrowException, IndexError) as error:
        raise SchemaMismatchError(f"the rows do not fit the columns of the input handle: {error}") from error


def _handy(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    step = max(1, min(BATCH_ROWS, batch.num_rows * SINK_PART_BYTES // max(batch.nbytes, 1)))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)

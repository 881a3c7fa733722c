"""The work of a task: reads the bytes of its planned ranges, and decodes their rows.

A range was committed when it was planned. So the loss of a member changes only which member is read, and a
retried task returns the same rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import pyarrow as pa

from dos_client import Bookmark, QuorumUnavailableError
from dos_client.blocking import BlockingStore
from dos_protocol.errors import NotFoundError, PastEndError
from spark_integration.core.options import ReadGuarantee, SourceOptions
from spark_integration.core.row_filter import ColumnCondition
from spark_integration.errors import DataLossError
from spark_integration.limits import READ_BYTES
from spark_integration.reading.decoding import decoder_of
from spark_integration.reading.ranges import ByteRange, DosPartition
from spark_integration.reading.rows import BatchShaper
from spark_integration.reading.store_cache import KEPT


def rows_of(
    options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition], partition: DosPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, with exactly the columns `wanted`.

    Raises NotReadableError, SchemaMismatchError, DataLossError, and what reading raises; rows that were
    yielded before must not be used then.
    """
    source = f"{options.what}, {partition.split}"
    names = frozenset([*wanted.names, *(one.column for one in comparisons)])
    with ExitStack() as stack:
        handed = all(part.data is not None for part in partition.ranges)
        store = None if handed else stack.enter_context(KEPT.lent(options))
        yield from BatchShaper(wanted, comparisons, source).shape(
            _decoded(store, options, names, wanted, partition)
        )


def _decoded(
    store: BlockingStore | None,
    options: SourceOptions,
    names: frozenset[str],
    wanted: pa.Schema,
    partition: DosPartition,
) -> Iterator[pa.RecordBatch]:
    for part in partition.ranges:
        decoder = decoder_of(options, partition.split, part, names, wanted)
        for chunk in chunks(store, options, part):
            yield from decoder.feed(chunk)
        yield from decoder.finish()


def chunks(store: BlockingStore | None, options: SourceOptions, part: ByteRange) -> Iterator[bytes]:
    """Yield the bytes of a range in order. Raises DataLossError if some are missing."""
    if part.data is not None:
        yield part.data
        return
    assert store is not None, "the store is opened if a range has no data"
    at = part.begin
    try:
        if options.read is ReadGuarantee.COMMITTED or options.content is None:
            with suppress(*_DOUBTS if options.content is None else ()):
                # a bookmark may be used, because what was planned is committed
                for chunk in store.stream(part.directory, part.object, at, part.end, Bookmark()):
                    at += len(chunk)
                    yield chunk
        while at < part.end and (options.content is None or options.read is ReadGuarantee.SYNCED):
            chunk = store.read(part.directory, part.object, at, min(part.end - at, READ_BYTES))
            if not chunk:
                break
            at += len(chunk)
            yield chunk
    except (NotFoundError, PastEndError) as error:
        raise DataLossError(f"{part.directory}/{part.object} is gone: {error}") from error
    if at < part.end:
        raise DataLossError(
            f"{part.directory}/{part.object} ends at byte {at}, but was planned up to {part.end}"
        )


_DOUBTS = (QuorumUnavailableError,)
"""Errors that do not matter for a chain: its records carry digests and were committed when they were planned,
so if too few members are left for a quorum read, the bytes of any member are sufficient.
"""

"""Spark's classes for `spark.read` and `spark.readStream` of the source `dos`, and what a task reads.

They are pickled for every task, with options, columns and conditions, and nothing that is open. Spark keeps
one reader of a stream in a separate driver process as long as the query runs; that one opens the store at the
first call.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import date
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from dos_client import Bookmark, QuorumUnavailableError
from dos_client.blocking import BlockingStore
from dos_protocol.errors import NotFoundError, PastEndError
from spark_integration.core.offsets import BatchLimits, SplitPoint, StartingKind, offset_of, points_of
from spark_integration.core.options import ReadGuarantee, SourceOptions
from spark_integration.core.row_filter import ColumnCondition
from spark_integration.errors import DataLossError
from spark_integration.limits import READ_BYTES
from spark_integration.on_executor import Expected, expected_of_driver
from spark_integration.reading.decoding import BatchShaper, decoder_of
from spark_integration.reading.opening import KEPT, check_executor, opened, origin_of, registration_of
from spark_integration.reading.origin import ByteRange, DosPartition
from spark_integration.reading.planning import StreamPlanner, plan_batch
from spark_integration.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)


def rows_of(
    options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition], partition: DosPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, with exactly the columns `wanted`. Raises NotReadableError,
    SchemaMismatchError, DataLossError, and what reading raises; what was yielded must not be used then.
    """
    source = f"{options.what}, {partition.split}"
    names = frozenset([*wanted.names, *(one.column for one in comparisons)])
    with ExitStack() as stack:
        handed = all(part.data is not None for part in partition.ranges)
        store = None if handed else stack.enter_context(KEPT.lent(options))
        shaper = BatchShaper(
            wanted, comparisons, source, fits=options.input is not None, of_output=options.output is not None
        )
        yield from shaper.shape(_decoded(store, options, names, wanted, partition))


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


class DosReader(DataSourceReader):  # type: ignore[misc]  # pyspark is not typed here
    """Reads everything that exists when Spark plans the query."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema) -> None:
        self._options = options
        self._wanted = wanted
        self._comparisons = options.filter
        self._expected = expected_of_driver()

    def partitions(self) -> Sequence[InputPartition]:
        return plan_batch(self._options, self._wanted, self._comparisons)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, DosPartition):
            return iter(())  # Spark's own partition, which it adds if there are none of ours
        check_executor(self._expected)
        return rows_of(self._options, self._wanted, self._comparisons, partition)


class PushingReader(DosReader):
    """The reader for sessions with `spark.sql.python.filterPushdown.enabled`; without it Spark refuses this
    one.
    """

    def pushFilters(self, filters: "list[datasource.Filter]") -> "Iterable[datasource.Filter]":  # noqa: N802
        """Accept the filters that are applied in full, and yield the others."""
        # Spark trusts the reader, and does not apply the accepted filters again: one with another meaning, of
        # NULL or of an order, would return wrong rows.
        for one in filters:
            comparison = comparison_of(one, self._wanted)
            if comparison is None:
                yield one
            else:
                self._comparisons = (*self._comparisons, comparison)


def comparison_of(spark_filter: "datasource.Filter", columns: pa.Schema) -> ColumnCondition | None:
    """Return the equivalent comparison; None if it is not known to have exactly the same meaning."""
    negated = isinstance(spark_filter, datasource.Not)
    inner = spark_filter.child if negated else spark_filter
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in columns.names:
        return None
    column, kind = attribute[0], columns.field(attribute[0]).type
    if type(inner) in (datasource.IsNull, datasource.IsNotNull):
        return ColumnCondition(column, "is null", negated=negated != (type(inner) is datasource.IsNotNull))
    operator = _operators().get(type(inner))
    if operator is None:
        return None
    values = tuple(inner.value) if operator == "in" else (inner.value,)
    if not values or not all(_alike(value, kind) for value in values):
        return None
    return ColumnCondition(column, operator, values, negated)


@cache
def _operators() -> dict[type, str]:
    """Not a constant, because PySpark 4.0 has no filters."""
    return {
        datasource.EqualTo: "=",
        datasource.GreaterThan: ">",
        datasource.GreaterThanOrEqual: ">=",
        datasource.LessThan: "<",
        datasource.LessThanOrEqual: "<=",
        datasource.In: "in",
        datasource.StringStartsWith: "starts",
        datasource.StringEndsWith: "ends",
        datasource.StringContains: "contains",
    }


def _alike(value: Any, kind: pa.DataType) -> bool:
    """Whether the value has exactly that type, and the type has the same order in Spark and Arrow."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(
            pa.types.is_signed_integer(kind)
            and -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1)
        )
    if isinstance(value, str):
        return bool(pa.types.is_string(kind))
    return type(value) is date and bool(pa.types.is_date32(kind))


class DosStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a stream. An offset is a vector of points as JSON, see `core/offsets.py`."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema, expected: Expected | None = None) -> None:
        self._expected = expected or expected_of_driver()
        self._options = options
        self._wanted = wanted
        self._stack = ExitStack()
        self._store: BlockingStore | None = None
        self._planner: StreamPlanner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return DosStreamReader, (self._options, self._wanted, self._expected)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset of the option `startingOffset`, by default the earliest."""
        return self._offset(self._call(self._planned.initial))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        every = isinstance(limit, ReadAllAvailable)
        limits = BatchLimits() if every else BatchLimits(self._options.rows_max, self._options.bytes_max)
        return self._offset(self._call(self._planned.latest, self._points(start), limits))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit to show to Spark; if both options are set, both are applied here."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return what exists now, for the query's progress; a limited micro-batch may end far before it."""
        return self._offset(self._call(self._planned.data_end))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what exists now, and nothing later."""
        self._call(self._planned.fix_target)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found: list[DosPartition] = self._call(
            self._planned.partitions, self._points(start), self._points(end)
        )
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark has committed the micro-batches up to `end`."""
        # Spark calls this after it has recorded the offsets of the *next* micro-batch, when the commit of the
        # one that ends here is in its checkpoint: after a restart it replays nothing below `end`, which may
        # be trimmed.
        if self._options.consumer is not None:
            self._call(self._planned.committed, self._points(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, DosPartition):
            return iter(())
        check_executor(self._expected)
        return rows_of(self._options, self._wanted, self._options.filter, partition)

    def stop(self) -> None:
        """Close the store. Spark calls this rarely: it usually kills the process."""
        if self._planner is not None:
            self._call(self._planner.aclose)
        self._store = self._planner = None
        self._stack.close()

    @property
    def _planned(self) -> StreamPlanner:
        if self._planner is None:
            store = self._opened()
            self._planner = StreamPlanner(
                origin_of(store, self._options),
                self._options,
                self._wanted,
                self._store_id,
                registration_of(store, self._options),
            )
        return self._planner

    def _opened(self) -> BlockingStore:
        if self._store is None:
            self._store = self._stack.enter_context(opened(self._options))
        return self._store

    @property
    def _store_id(self) -> str:
        return self._opened().record.store_id.hex()

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._opened().portal.call(function, *args)

    def _offset(self, points: dict[str, SplitPoint]) -> dict[str, Any]:
        return offset_of(self._store_id, self._options.what, points)

    def _points(self, offset: dict[str, Any]) -> dict[str, SplitPoint]:
        return points_of(offset, self._store_id, self._options.what)


class UnlimitedStreamReader(DosStreamReader):
    """The reader of a stream for a PySpark without admission control: its micro-batches have no limits.

    Such a PySpark requests the end of a micro-batch without naming its beginning, which is in the query's
    checkpoint. What depends on the beginning is checked when Spark requests the partitions.
    """

    def __init__(self, options: SourceOptions, wanted: pa.Schema, expected: Expected | None = None) -> None:
        super().__init__(options, wanted, expected)
        self._known: dict[str, SplitPoint] = {}
        """The end of the last micro-batch, as far as this process knows it."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the beginning of a new query."""
        # With `availableNow`, Spark has requested the end before. A query from the latest point on begins
        # there: a later point would be after its end.
        starting = self._options.starting
        if self._known and starting is not None and starting.kind is StartingKind.LATEST:
            return self._offset(self._known)
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return where the committed data ends."""
        self._known = self._call(self._planned.latest, self._known, BatchLimits())
        return self._offset(self._known)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._known = self._points(end)
        self._call(self._planned.check_beginning, self._points(start), self._known)
        return super().partitions(start, end)

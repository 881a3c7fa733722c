"""`spark.readStream.format("dos")`: Spark's class for a stream, around `stream_planning` and `tasks`.

It also converts offsets to JSON and back. Spark keeps one reader in a separate driver process as long as the
query runs; that one opens the store at the first call and keeps it open. Another one, which opens nothing, is
pickled for every task.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dos_client.blocking import BlockingStore
from spark_integration.core.admission import BatchLimits
from spark_integration.core.offsets import SplitPoint, offset_of, points_of
from spark_integration.core.options import SourceOptions
from spark_integration.on_executor import Expected, expected_of_driver
from spark_integration.reading.opening import check_executor, opened, origin_of, registration_of
from spark_integration.reading.ranges import DosPartition
from spark_integration.reading.stream_planning import StreamPlanner
from spark_integration.reading.tasks import rows_of
from spark_integration.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)


class DosStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a stream. An offset is a vector of points as JSON, see `core/source_offsets`."""

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
        """Note that Spark has committed the micro-batches up to `end`.

        Spark calls this after it has recorded the offsets of the *next* micro-batch, when the commit of the
        one that ends here is in its checkpoint: after a restart it replays nothing below `end`.
        """
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

"""`spark.readStream.format("dos")`: Spark's class for a stream, around `stream_planning` and `tasks`.

Rules of this file: Spark's calls in, ours out, offsets to JSON and back. Spark keeps one of these in a
process of its own on the driver for as long as a query runs: there the store is opened at the first call, and
stays open. Another one, that opens nothing, is pickled to every task.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dos_client.blocking import BlockingStore
from spark_integration.core.admission import BatchLimits
from spark_integration.core.source_offsets import SplitPoint, offset_of, points_of
from spark_integration.core.source_options import SourceOptions
from spark_integration.on_executor import Expected, expected_of_driver
from spark_integration.reading.ranges import DosPartition
from spark_integration.reading.session import check_executor, opened, origin_of
from spark_integration.reading.stream_planning import StreamPlanner
from spark_integration.reading.tasks import rows_of


class DosStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """An offset is a vector of points as JSON, see `core/source_offsets`."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema, expected: Expected | None = None) -> None:
        self._expected = expected or expected_of_driver()
        self._options = options
        self._wanted = wanted
        self._held = ExitStack()
        self._store: BlockingStore | None = None
        self._planner: StreamPlanner | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return DosStreamReader, (self._options, self._wanted, self._expected)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the option `startingOffset` says, the earliest without it."""
        return self._offset(self._call(self._planned.initial))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch."""
        every = isinstance(limit, ReadAllAvailable)
        limits = BatchLimits() if every else BatchLimits(self._options.rows_max, self._options.bytes_max)
        return self._offset(self._call(self._planned.latest, self._points(start), limits))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark knows one limit at a time; with two options both are kept here."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """What there is now, for the query's progress: with limits a micro-batch may end far below it."""
        return self._offset(self._call(self._planned.seen))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now and no more."""
        self._call(self._planned.fix_target)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found: list[DosPartition] = self._call(
            self._planned.partitions, self._points(start), self._points(end)
        )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, DosPartition):
            return iter(())
        check_executor(self._expected)
        return rows_of(self._options, self._wanted, self._options.filter, partition)

    def stop(self) -> None:
        """Spark ends the process as a rule, and calls this seldom."""
        if self._planner is not None:
            self._call(self._planner.aclose)
        self._store = self._planner = None
        self._held.close()

    @property
    def _planned(self) -> StreamPlanner:
        if self._planner is None:
            store = self._opened()
            self._planner = StreamPlanner(
                origin_of(store, self._options), self._options, self._wanted, self._store_id
            )
        return self._planner

    def _opened(self) -> BlockingStore:
        if self._store is None:
            self._store = self._held.enter_context(opened(self._options))
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

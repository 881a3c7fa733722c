"""`spark.readStream.format("dos-merged")`: reads a merged output ahead of Spark, in the process of a query on
the driver.

`dataflow.read_merged` gives each row once, at once. Here rows wait until the mark has passed them
(`RowsByTime`). Only this process connects to the stores, on one trio loop. The rows of a micro-batch are sent
to its tasks, so a task needs no store, and one that runs twice returns the same rows.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dos_client.blocking import Portal
from spark_integration import limits
from spark_integration.core.merged_rows import (
    END_OF_TIME,
    MERGED,
    NOTHING_READ,
    MergedOptions,
    MergedSubject,
    RowsByTime,
    mark_in,
    mark_offset,
    parse_merged,
)
from spark_integration.core.row_filter import check_filter
from spark_integration.errors import BadOptionError
from spark_integration.limits import MERGED_TASK_BYTES
from spark_integration.on_executor import Expected, expected_of_driver
from spark_integration.reading.decoding import BatchShaper, check_columns, chosen
from spark_integration.reading.opening import check_executor, with_token
from spark_integration.reading.planning import check_once
from spark_integration.spark_api import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema,
    spark_schema,
)
from spark_integration.versions import ADMISSION_CONTROL, need_pyspark

if TYPE_CHECKING:
    from dataflow import MergedOutput

logger = logging.getLogger("dos.spark_integration")


class MergedReading:
    """The rows of a merged output above `begin`, which are read ahead as far as memory allows."""

    def __init__(
        self, output: "MergedOutput", options: MergedOptions, begin: int, *, of_everything: bool
    ) -> None:
        self._output, self._options, self._of_everything = output, options, of_everything
        self._rows = RowsByTime(begin)
        self._wanted = begin
        """A mark for which a caller waits: until it is reached, nothing limits what is read."""
        self._target: int | None = None
        self._error: Exception | None = None
        self._changed = trio.Event()

    @property
    def begin(self) -> int:
        """Rows up to here are not here."""
        return self._rows.begin

    async def run(self) -> None:
        """Read until the end of the output. `end_after` and `between` raise its error."""
        from dataflow.operators.event_time import latest_times  # tasks do without it

        try:
            while True:
                while (
                    self._rows.complete_bytes > limits.MERGED_AHEAD_BYTES and self._wanted <= self._rows.mark
                ):
                    await self._changed.wait()
                if (batch := await anext(self._output, None)) is None:
                    return
                for rows in [] if batch.table is None else batch.table.to_batches():
                    self._rows.add(rows, latest_times(rows, self._options.time))
                self._rows.set_mark(batch.mark_us)
                self._wake()
        except Exception as error:
            self._fail(error)

    async def find_target(self) -> None:
        """Determine up to where a query reads that reads what is there now."""
        try:
            self._target = await self._output.wait_caught_up()
            self._wake()
        except Exception as error:
            self._fail(error)

    async def watch(self) -> None:
        """Name the replicas that are not read in the log, when they change, and what none of them has."""
        before: list[str] = []
        while True:
            await trio.sleep(limits.MERGED_WARN_S)
            found = [
                f"{one.site} is {one.state}: {one.reason or 'no answer yet'}"
                for one in self._output.status()
                if one.state != "reading"
            ]
            if (missing := self._output.missing()) is not None:
                found.append(f"no replica that is read has all rows up to {missing.upto} us")
            if found != before:
                logger.warning("%s: %s", self._options.what, "; ".join(found) or "all replicas are read")
            before = found

    async def end_after(self, start: int) -> int:
        """Return the end of the micro-batch after `start`; `start` if there are no rows. Rows up to `start`
        are not needed any more. With `of_everything`, wait until there are rows, or all of them were read.
        Raises ReplicasDifferError, or the reason for which no replica can be read.
        """
        self._rows.release(start)
        self._wake()
        while True:
            self._check()
            upto = END_OF_TIME if self._target is None else self._target
            end = self._rows.end_of_batch(start, self._options.limits, upto=upto)
            if end > start or not self._of_everything or self._rows.mark >= upto:
                return end
            await self._changed.wait()

    async def between(self, start: int, end: int) -> list[pa.RecordBatch]:
        """Return the rows of a micro-batch, when a replica has them all. Raises as `end_after`."""
        self._wanted = max(self._wanted, end)
        self._wake()
        while True:
            self._check()
            if self._rows.mark >= end:
                return self._rows.between(start, end)
            await self._changed.wait()

    def committed(self, end: int) -> None:
        """Acknowledge to the replicas that Spark has committed everything up to `end`."""
        self._output.acknowledge(end)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_reading(
    options: MergedOptions, begin: int, *, of_everything: bool
) -> AsyncGenerator[MergedReading]:
    """Open the output after `begin`. Raises as `read_merged`."""
    from dataflow import read_merged  # tasks do without it

    async with (
        read_merged(
            options.sites,
            options.region,
            options.output,
            options.schema,
            time=options.time,
            after=None if begin == NOTHING_READ else begin,
            compare=options.compare,
            on_missing=options.on_missing,
            on_difference=options.on_difference,
            consumer=options.consumer,
            consumer_retain_s=options.consumer_retain_s,
            token=options.token,
        ) as output,
        trio.open_nursery() as nursery,
    ):
        reading = MergedReading(output, options, begin, of_everything=of_everything)
        nursery.start_soon(reading.run)
        nursery.start_soon(reading.watch)
        if of_everything:
            nursery.start_soon(reading.find_target)
        yield reading
        nursery.cancel_scope.cancel()


class MergedSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """The merged output of the replicas of a region, as a stream. Raises BadOptionError, SchemaError,
    BadUrlError, BadNameError, and UnsupportedVersionError with a PySpark that has no admission control.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        # The end of each micro-batch is found by reading from its beginning on.
        need_pyspark(ADMISSION_CONTROL, f"the format {MERGED}", 'read one replica with format("dos")')
        self._options = with_token(parse_merged(dict(options)))
        self._columns, self._subject = _checked(self._options)

    @classmethod
    def name(cls) -> str:
        return MERGED

    def schema(self) -> StructType:
        """Return the columns of the sink, or those of the option `columns`."""
        return spark_schema(chosen(self._columns, pa.schema([]), self._options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        raise BadOptionError(
            f"{MERGED} is for spark.readStream: replicas do not end at one place",
            remedy="read what is there now with spark.readStream and .trigger(availableNow=True)",
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        check_once(self._options.columns, schema.names)
        wanted = arrow_schema(schema)
        check_columns(wanted, self._columns, self._options.what)
        check_filter(self._options.filter, self._columns)
        return MergedStreamReader(self._options, wanted, self._subject)


def _checked(options: MergedOptions) -> tuple[pa.Schema, MergedSubject]:
    from dataflow.merging.merge import merge_order  # late, as in `errors.nearest`
    from dataflow.schema import schema_text

    order = merge_order(options.sites, options.region, options.output, options.schema, time=options.time)
    return order.schema, MergedSubject(options.what, schema_text(order.schema), order.time)


class RowsPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """The rows of a task, as an Arrow IPC stream."""


class MergedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a stream. An offset is a mark, see `core/merged_rows.py`."""

    def __init__(
        self,
        options: MergedOptions,
        wanted: pa.Schema,
        subject: MergedSubject,
        expected: Expected | None = None,
    ) -> None:
        self._expected = expected or expected_of_driver()
        self._options = options
        self._wanted = wanted
        self._subject = subject
        self._of_everything = False
        self._stack = ExitStack()
        self._portal: Portal | None = None
        self._reading: MergedReading | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MergedStreamReader, (self._options, self._wanted, self._subject, self._expected)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first row."""
        return mark_offset(self._subject, NOTHING_READ)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. The limits of the options hold for every `limit`."""
        del limit
        begin = mark_in(start, self._subject)
        return mark_offset(self._subject, self._call(self._reading_from(begin).end_after, begin))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit to show to Spark; if both options are set, both are applied here."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadMaxBytes(self._options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what exists when the replicas are reached, and nothing later."""
        self.stop()  # a reading that is open has no target
        self._of_everything = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, upto = mark_in(start, self._subject), mark_in(end, self._subject)
        rows = self._call(self._reading_from(begin).between, begin, upto)
        shaped = BatchShaper(self._wanted, self._options.filter, self._options.what).shape(rows)
        return [RowsPartition(part) for batch in shaped for part in parts_of(batch)]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge to the replicas what Spark has committed; see `DosStreamReader.commit`."""
        if self._reading is not None and self._portal is not None:
            self._portal.call_sync(self._reading.committed, mark_in(end, self._subject))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsPartition):
            return  # Spark's own partition, which it adds if there are none of ours
        check_executor(self._expected)
        with pa.ipc.open_stream(partition.value) as found:
            yield from found

    def stop(self) -> None:
        """Close the stores. Spark calls this rarely: it usually kills the process."""
        self._reading = self._portal = None
        self._stack.close()

    def _reading_from(self, begin: int) -> MergedReading:
        """Return a reading that has the rows after `begin`; it is opened if there is none."""
        if self._reading is None or begin < self._reading.begin:
            self.stop()
            self._portal = self._stack.enter_context(Portal("dos-merged"))
            opening = open_reading(self._options, begin, of_everything=self._of_everything)
            self._reading = self._stack.enter_context(self._portal.hold(opening))
        return self._reading

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        assert self._portal is not None, "a reading is open"
        return self._portal.call(function, *args)


def parts_of(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Yield the rows of each task, as Arrow IPC streams."""
    step = max(1, rows.num_rows * MERGED_TASK_BYTES // max(1, rows.nbytes))
    for begin in range(0, rows.num_rows, step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows.slice(begin, step))
        yield sink.getvalue().to_pybytes()

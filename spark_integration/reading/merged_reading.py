"""Reads a merged output ahead of Spark, in the process of a query on the driver.

`dataflow.read_merged` gives each row once, at once. Here rows wait until the mark has passed them
(`core/rows_by_time.py`). Only this process connects to the stores. It runs on one trio loop, and imports
`dataflow`, which tasks do not need.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pyarrow as pa
import trio

from dataflow import MergedOutput, read_merged
from dataflow.operators.event_time import latest_times
from spark_integration import limits
from spark_integration.core.merged_offsets import NOTHING_READ
from spark_integration.core.merged_rows import MergedOptions
from spark_integration.core.rows_by_time import END_OF_TIME, RowsByTime

logger = logging.getLogger("dos.spark_integration")


class MergedReading:
    """The rows of a merged output above `begin`, which are read ahead as far as memory allows."""

    def __init__(
        self, output: MergedOutput, options: MergedOptions, begin: int, *, of_everything: bool
    ) -> None:
        """of_everything: read what is there now, and nothing later: see `find_target`."""
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
        """Read until the end of the output. An error is raised by those that ask for rows."""
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

        Raises ReplicasDifferError, and if no replica can be read because of what it contains, the reason.
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
        """Return the rows of a micro-batch. A query that continues may have to wait until a replica has them
        all. Raises as `end_after`.
        """
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

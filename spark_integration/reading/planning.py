"""Planning on the driver: the columns, where a stream begins, how far a micro-batch goes, and which task
reads what.

If there are rows, errors in the columns are raised here, before a task runs. Without limits a micro-batch
ends where the visible data ends. With limits, and where only the records show where a piece ends, the driver
reads ahead of the tasks; it reads nothing twice unless the query is restarted. `core/offsets` decides which
pieces it takes.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import pyarrow as pa
import trio

from checkpoint.chains.consumer_register import QueryRegistration
from dos_protocol.errors import DosError
from spark_integration.core.offsets import (
    BEGINNING,
    BatchAdmission,
    BatchLimits,
    SplitPoint,
    Starting,
    StartingKind,
    StreamPiece,
    points_of,
)
from spark_integration.core.options import ObjectContent, SourceOptions
from spark_integration.core.row_filter import ColumnCondition, check_filter
from spark_integration.errors import BadOptionError, DataLossError, MalformedOffsetError, NoSchemaError
from spark_integration.limits import SEEN_S
from spark_integration.reading.decoding import check_columns, chosen, fit_to, schema_in
from spark_integration.reading.opening import opened, origin_of
from spark_integration.reading.origin import ByteRange, DosPartition, Origin, Scan, partitions_of

Planned = TypeVar("Planned")


def columns_of(options: SourceOptions) -> pa.Schema:
    """Return the columns of a DataFrame without a user-defined schema.
    Raises NoSchemaError, NothingThereError, SchemaMismatchError.
    """
    with opened(options) as store:
        existing = store.portal.call(existing_columns, origin_of(store, options), options)
        if existing is None:
            raise NoSchemaError(f"the columns of {options.what} are unknown, because it has no rows yet")
        extra = origin_of(store, options).extra
    if options.input is not None:  # the oldest rows say nothing about null in those of other writers
        existing = pa.schema([field.with_nullable(nullable=True) for field in existing])
    return chosen(existing, extra, options.columns)


def check_once(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise BadOptionError if the option `columns` and .schema(...) differ."""
    if columns and "*" not in columns and list(dict.fromkeys(columns)) != list(names):
        raise BadOptionError(
            f"the option 'columns' is {', '.join(columns)}, but .schema(...) is {', '.join(names)}:"
            f" give only one of the two"
        )


async def existing_columns(origin: Origin, options: SourceOptions) -> pa.Schema | None:
    """Return the columns of the first existing rows; None if there are none."""
    for split in await origin.splits():
        async with aclosing(origin.first_rows(split)) as samples:
            async for data in samples:
                return schema_in(data, options, split)
    return None


async def check_against(
    origin: Origin, options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition]
) -> None:
    """Check that the existing rows have those columns. Raises SchemaMismatchError, BadOptionError."""
    existing = await existing_columns(origin, options)
    if options.content is ObjectContent.JSON:  # values are converted to the requested type, or the task fails
        check_filter(comparisons, wanted)
    elif existing is not None:
        every = pa.schema([*existing, *(field for field in origin.extra if field.name not in existing.names)])
        used = {*wanted.names, *(one.column for one in comparisons), *existing.names}
        rows = pa.schema([field for field in every if field.name in used])
        fits, of_output = options.content is None, options.output is not None
        fit = fit_to(wanted, comparisons, rows, options.what, of_output=of_output) if fits else None
        if fit is not None:
            check_filter(comparisons, fit.declared)
            return
        check_columns(wanted, every, options.what)
        check_filter(comparisons, every)


async def on_one_line(origin: Origin, plan: Callable[[int], Awaitable[Planned]]) -> Planned:
    """Return what `plan` returns for the present line of history of a region's output. Raises as it does."""
    # A restore of the region may begin another line meanwhile: then it is planned again, also after an error,
    # or the plan would have output of two lines.
    while True:
        line = await origin.line()
        try:
            planned = await plan(line)
        except DosError:
            if await origin.line(fresh=True) == line:
                raise
            continue
        if await origin.line() == line:
            return planned


def plan_batch(
    options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition]
) -> list[DosPartition]:
    """Return the partitions of everything that exists now."""

    async def plan(origin: Origin) -> list[DosPartition]:
        await check_against(origin, options, wanted, comparisons)
        return await planned_partitions(origin, options)

    with opened(options) as store:
        return store.portal.call(plan, origin_of(store, options))


async def planned_partitions(origin: Origin, options: SourceOptions) -> list[DosPartition]:
    """Return the partitions of everything that exists now, of one line of history."""

    async def plan(_line: int) -> list[DosPartition]:
        found = []
        for split in await origin.splits():
            found += partitions_of(split, await origin.all_ranges(split), options.partition_bytes)
        return found

    return await on_one_line(origin, plan)


logger = logging.getLogger("dos.spark_integration")
Points = dict[str, SplitPoint]


class StreamPlanner:
    """The planner of one query. All methods run in the store's trio thread, one at a time.
    registration: of a query with the option `consumer`.
    """

    def __init__(
        self,
        origin: Origin,
        options: SourceOptions,
        wanted: pa.Schema,
        store_id: str,
        registration: QueryRegistration | None = None,
    ) -> None:
        self._origin = origin
        self._registration = registration
        self._options = options
        self._wanted = wanted
        self._store_id = store_id
        self._scans: dict[str, _SplitScan] = {}
        self._target: Points | None = None
        self._line: int | None = None
        """The line of history of the scans and of the target."""
        self._checked = False
        self._latest: Points = {}
        self._data_end: Points = {}
        self._data_end_at_s = -math.inf

    async def initial(self) -> Points:
        """Return where a new query begins. Raises MalformedOffsetError, ConsumerRefusedError."""
        await self._register(None)
        await self._check()
        starting = self._options.starting or Starting(StartingKind.EARLIEST)
        if starting.kind is StartingKind.OFFSET:
            return points_of(starting.offset, self._store_id, self._options.what)
        return await on_one_line(self._origin, lambda line: self._first_points(starting, line))

    async def _first_points(self, starting: Starting, line: int) -> Points:
        await self._settle(line)
        points = (
            await self._origin.checkpoint(starting.number) if starting.kind is StartingKind.CHECKPOINT else {}
        )
        for split in await self._origin.splits():
            if split not in points:
                points[split] = await self._begin(split, starting)
        return points

    async def fix_target(self) -> None:
        """Fix the end of the query to what exists now."""
        self._target = await on_one_line(self._origin, self._ends)

    async def latest(self, start: Points, limits: BatchLimits) -> Points:
        """Return the end of the micro-batch that begins at `start`.
        Raises DataLossError, ConsumerRefusedError, OutputRewoundError.
        """
        self._latest, warning = await on_one_line(
            self._origin, lambda line: self._latest_on(line, start, limits)
        )
        if warning:
            logger.warning("%s", warning)
        return self._latest

    async def _latest_on(self, line: int, start: Points, limits: BatchLimits) -> tuple[Points, str]:
        await self._settle(line)
        if any(at.line > line for at in start.values()):
            return start, ""  # the restore that began that line cannot be proved now, nor what followed it
        start, warning = await self._origin.continued(start)
        await self._register(start)
        await self._check()
        splits = list(self._target) if self._target is not None else await self._origin.splits()
        self._refuse_missing(start, splits)
        if limits:
            ends = await self._limited(start, splits, limits)
        else:
            ends = self._target or {split: await self._origin.end(split) for split in splits}
        return {**start, **ends}, warning

    async def _ends(self, line: int) -> Points:
        await self._settle(line)
        return await self._ends_now()

    async def _ends_now(self) -> Points:
        return {split: await self._origin.end(split) for split in await self._origin.splits()}

    async def _settle(self, line: int) -> None:
        # What was planned and scanned on another line of history is forgotten: its pieces may be taken back.
        if line == self._line:
            return
        await self.aclose()
        if self._target is not None:
            self._target = await self._ends_now()
        if self._line is not None and self._registration is not None:
            self._registration.begun = False  # it may need more again
        self._line = line

    async def data_end(self) -> Points:
        """Return how far there is any data, so that users see how far the stream lags behind."""
        # Spark calls this with every micro-batch: the store is not asked each time.
        if trio.current_time() >= self._data_end_at_s + SEEN_S:
            self._data_end = {
                split: await self._origin.data_end(split) for split in await self._origin.splits()
            }
            self._data_end_at_s = trio.current_time()
        found = dict(self._data_end)
        for split, at in self._latest.items():
            if at.size > found.get(split, BEGINNING).size:
                found[split] = at
        return found

    async def check_beginning(self, start: Points, end: Points) -> None:
        """Check the beginning of a micro-batch whose end was planned without it. Raises as `latest`, and
        MalformedOffsetError.
        """
        for split, to in end.items():
            if to.line < start.get(split, BEGINNING).line:
                raise MalformedOffsetError(
                    f"a micro-batch of {self._options.what} begins on line {start[split].line} of its history"
                    f" and ends on line {to.line}: too few servers answered when its end was planned",
                    remedy="stop the query, delete the newest file in the directory `offsets` of its"
                    " checkpointLocation, and start it again",
                )
        line = max((to.line for to in end.values()), default=0)
        if any(at.line < line for at in start.values()):
            _, warning = await self._origin.continued(start, line)
            if warning:
                logger.warning("%s", warning)
        self._refuse_missing(start, list(end))

    async def partitions(self, start: Points, end: Points) -> list[DosPartition]:
        """Return the partitions between two offsets. Raises as `latest`."""
        begin = await self._origin.planned(start, end)
        await self._register(begin)
        await self._check()
        try:
            between = await self._ranges(begin, end)
        except DataLossError as error:
            between = await self._valid_ranges(begin, end, error)
        size = self._options.partition_bytes
        return [one for split in sorted(between) for one in partitions_of(split, between[split], size)]

    async def _valid_ranges(
        self, start: Points, end: Points, loss: DataLossError
    ) -> dict[str, list[ByteRange]]:
        """Return what is valid of a micro-batch that was taken back after it was planned. Otherwise raise
        `loss`.
        """
        left, warning = await self._origin.continued(end)
        if all(at.place == end[split].place for split, at in left.items()):
            raise loss
        logger.warning("a micro-batch is shortened: %s", warning)
        begin, _ = await self._origin.continued(start)
        ends = {split: at for split, at in left.items() if at.size > begin.get(split, BEGINNING).size}
        return await self._ranges(begin, ends)

    async def committed(self, end: Points) -> None:
        """Note that Spark has committed the micro-batches up to `end`. Raises ConsumerRefusedError."""
        if self._registration is not None:
            await self._registration.committed(_sizes(end), _lines(end))

    async def _ranges(self, start: Points, end: Points) -> dict[str, list[ByteRange]]:
        # The splits run concurrently, because each needs several requests.
        ranges: dict[str, list[ByteRange]] = {}
        failures: list[Exception] = []

        async def find_ranges(split: str, to: SplitPoint) -> None:
            try:
                ranges[split] = await self._origin.ranges(split, start.get(split, BEGINNING), to)
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for split, to in end.items():
                nursery.start_soon(find_ranges, split, to)
        if failures:
            raise failures[0]
        return ranges

    async def aclose(self) -> None:
        """End all scans."""
        for split_scan in self._scans.values():
            await split_scan.scan.aclose()
        self._scans.clear()

    async def _register(self, start: Points | None) -> None:
        # Before the first row is read: afterwards a trim could take rows that the query has not read.
        if self._registration is not None and not self._registration.begun:
            await self._origin.splits()  # data that does not exist gets no register
            here = start or {}
            await self._registration.begin(None if start is None else _sizes(here), _lines(here))

    async def _check(self) -> None:
        if not self._checked:
            await check_against(self._origin, self._options, self._wanted, self._options.filter)
            self._checked = True

    def _refuse_missing(self, start: Points, splits: Sequence[str]) -> None:
        missing = sorted(split for split, at in start.items() if at.size and split not in splits)
        if missing and self._options.fail_on_data_loss and self._target is None:
            raise DataLossError(
                f"{missing[0]!r} of {self._options.what} is gone; it was read up to {start[missing[0]].size},"
                f" and it is unknown whether that was its end"
            )

    # --- where to begin -------------------------------------------------------------------------------------

    async def _begin(self, split: str, starting: Starting) -> SplitPoint:
        if starting.kind is StartingKind.LATEST:
            return await self._origin.end(split)
        begin = await self._origin.begin(split)
        if starting.kind not in (StartingKind.STEP, StartingKind.TIME):
            return begin
        return await self._point_after(split, begin, starting)

    async def _point_after(self, split: str, begin: SplitPoint, starting: Starting) -> SplitPoint:
        by_step = starting.kind is StartingKind.STEP
        if (by_step and not self._origin.steps) or (not by_step and not self._origin.times):
            raise MalformedOffsetError(
                f"startingOffset {starting}: {self._options.what} has no {starting.kind}s to begin at",
                remedy="write earliest or latest",
            )
        at, last = begin, 0
        scan = await self._origin.scan(split, begin)
        while (piece := await scan.next()) is not None:
            if (by_step and piece.order > starting.number) or (
                not by_step and piece.time_ms >= starting.number
            ):
                break
            at, last = piece.end, piece.order
        await scan.aclose()
        if piece is None and by_step and last < starting.number:
            raise MalformedOffsetError(
                f"startingOffset {starting}: the last step of {split} of {self._options.what} is {last}"
            )
        return at

    # --- limits -------------------------------------------------------------------------------------------

    async def _limited(self, start: Points, splits: Sequence[str], limits: BatchLimits) -> Points:
        admission = BatchAdmission(list(splits), limits)
        while (split := admission.next_split()) is not None:
            split_scan = await self._scan_of(split, start.get(split, BEGINNING))
            piece = await split_scan.next()
            target = None if self._target is None else self._target[split].size
            if piece is not None and target is not None and piece.end.size > target:
                split_scan.pending.append(piece)
                piece = None
            admission.offer(split, piece)
        for split, piece in admission.left.items():
            self._scans[split].pending.append(piece)
        for split, piece in admission.taken.items():
            self._scans[split].planned_to = piece.end
        return {split: piece.end for split, piece in admission.taken.items()}

    async def _scan_of(self, split: str, start: SplitPoint) -> "_SplitScan":
        split_scan = self._scans.get(split)
        if split_scan is not None and start != split_scan.planned_to:  # the query was restarted
            await split_scan.scan.aclose()
            split_scan = None
        if split_scan is None:
            split_scan = self._scans[split] = _SplitScan(await self._origin.scan(split, start), start)
        return split_scan


def _sizes(points: Points) -> dict[str, int]:
    return {split: at.size for split, at in points.items()}


def _lines(points: Points) -> dict[str, int]:
    return {split: at.line for split, at in points.items()}


class _SplitScan:
    """A scan that continues from micro-batch to micro-batch. `planned_to`: the end of the last planned one.
    `pending`: the piece after it, if it was already read.
    """

    def __init__(self, scan: Scan, start: SplitPoint) -> None:
        self.scan = scan
        self.planned_to = start
        self.pending: list[StreamPiece] = []

    async def next(self) -> StreamPiece | None:
        return self.pending.pop() if self.pending else await self.scan.next()

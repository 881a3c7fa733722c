"""Plans a stream, on the driver: where it begins, how far a micro-batch goes, and which task reads what.

Without limits a micro-batch goes to the end of what is visible. With limits, and where only records tell
where a piece ends, the driver reads ahead of the tasks; it reads nothing twice unless the query is restarted.
`core/admission` decides which pieces a limited micro-batch takes; `stream_reader` handles JSON and Spark's
classes.
"""

import math
from collections.abc import Sequence

import pyarrow as pa
import trio

from spark_integration.core.admission import BatchAdmission, BatchLimits, StreamPiece
from spark_integration.core.source_offsets import BEGINNING, SplitPoint, Starting, StartingKind, points_of
from spark_integration.core.source_options import SourceOptions
from spark_integration.errors import DataLossError, MalformedOffsetError
from spark_integration.limits import SEEN_S
from spark_integration.reading.origin import Origin, Scan
from spark_integration.reading.planning import check_against
from spark_integration.reading.ranges import ByteRange, DosPartition, partitions_of

Points = dict[str, SplitPoint]


class StreamPlanner:
    """The planner of one query. All methods run in the store's trio thread, one at a time."""

    def __init__(self, origin: Origin, options: SourceOptions, wanted: pa.Schema, store_id: str) -> None:
        self._origin = origin
        self._options = options
        self._wanted = wanted
        self._store_id = store_id
        self._scans: dict[str, _Ahead] = {}
        self._target: Points | None = None
        self._checked = False
        self._latest: Points = {}
        self._seen: Points = {}
        self._seen_at = -math.inf

    async def initial(self) -> Points:
        """Return where a new query begins. Raises MalformedOffsetError, OtherSourceError."""
        await self._check()
        starting = self._options.starting or Starting(StartingKind.EARLIEST)
        if starting.kind is StartingKind.OFFSET:
            return points_of(starting.offset, self._store_id, self._options.what)
        points = await self._origin.cut(starting.number) if starting.kind is StartingKind.CHECKPOINT else {}
        for split in await self._origin.splits():
            if split not in points:
                points[split] = await self._begin(split, starting)
        return points

    async def fix_target(self) -> None:
        """Fix the end of the query to what exists now."""
        self._target = {split: await self._origin.end(split) for split in await self._origin.splits()}

    async def latest(self, start: Points, limits: BatchLimits) -> Points:
        """Return the end of the micro-batch that begins at `start`. Raises DataLossError."""
        await self._check()
        splits = list(self._target) if self._target is not None else await self._origin.splits()
        self._refuse_gone(start, splits)
        if limits:
            ends = await self._limited(start, splits, limits)
        else:
            ends = self._target or {split: await self._origin.end(split) for split in splits}
        self._latest = {**start, **ends}
        return self._latest

    async def seen(self) -> Points:
        """Return how far there is any data, so that users see how far the stream lags behind.

        Spark calls this with every micro-batch; the store is asked again after SEEN_S.
        """
        if trio.current_time() >= self._seen_at + SEEN_S:
            self._seen = {split: await self._origin.seen(split) for split in await self._origin.splits()}
            self._seen_at = trio.current_time()
        found = dict(self._seen)
        for split, at in self._latest.items():
            if at.size > found.get(split, BEGINNING).size:
                found[split] = at
        return found

    async def partitions(self, start: Points, end: Points) -> list[DosPartition]:
        """Return the partitions between two offsets. Raises DataLossError."""
        await self._check()
        between = await self._ranges(start, end)
        size = self._options.partition_bytes
        return [one for split in sorted(between) for one in partitions_of(split, between[split], size)]

    async def _ranges(self, start: Points, end: Points) -> dict[str, list[ByteRange]]:
        """Return the ranges of all splits. The splits run concurrently, because each needs several requests.

        Raises the first error, after all have ended.
        """
        found: dict[str, list[ByteRange]] = {}
        failures: list[Exception] = []

        async def ask(split: str, to: SplitPoint) -> None:
            try:
                found[split] = await self._origin.ranges(split, start.get(split, BEGINNING), to)
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for split, to in end.items():
                nursery.start_soon(ask, split, to)
        if failures:
            raise failures[0]
        return found

    async def aclose(self) -> None:
        """End all scans."""
        for ahead in self._scans.values():
            await ahead.scan.aclose()
        self._scans.clear()

    async def _check(self) -> None:
        if not self._checked:
            await check_against(self._origin, self._options, self._wanted, self._options.filter)
            self._checked = True

    def _refuse_gone(self, start: Points, splits: Sequence[str]) -> None:
        gone = sorted(split for split, at in start.items() if at.size and split not in splits)
        if gone and self._options.fail_on_data_loss and self._target is None:
            raise DataLossError(
                f"{gone[0]!r} of {self._options.what} is gone; it was read up to {start[gone[0]].size}, and"
                f" it is unknown whether that was its end"
            )

    # --- where to begin -------------------------------------------------------------------------------------

    async def _begin(self, split: str, starting: Starting) -> SplitPoint:
        if starting.kind is StartingKind.LATEST:
            return await self._origin.end(split)
        begin = await self._origin.begin(split)
        if starting.kind not in (StartingKind.STEP, StartingKind.TIME):
            return begin
        return await self._behind(split, begin, starting)

    async def _behind(self, split: str, begin: SplitPoint, starting: Starting) -> SplitPoint:
        """Return the end of the step, or of the last piece that was written before the time."""
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
        while (split := admission.need()) is not None:
            ahead = await self._ahead(split, start.get(split, BEGINNING))
            piece = await ahead.next()
            if piece is not None and self._beyond_target(split, piece):
                ahead.held.append(piece)
                piece = None
            admission.offer(split, piece)
        for split, piece in admission.left.items():
            self._scans[split].held.append(piece)
        for split, piece in admission.taken.items():
            self._scans[split].stands = piece.end
        return {split: piece.end for split, piece in admission.taken.items()}

    def _beyond_target(self, split: str, piece: StreamPiece) -> bool:
        return self._target is not None and piece.end.size > self._target[split].size

    async def _ahead(self, split: str, start: SplitPoint) -> "_Ahead":
        ahead = self._scans.get(split)
        if ahead is not None and start != ahead.stands:  # the query was restarted
            await ahead.scan.aclose()
            ahead = None
        if ahead is None:
            ahead = self._scans[split] = _Ahead(await self._origin.scan(split, start), start)
        return ahead


class _Ahead:
    """A scan that continues from micro-batch to micro-batch.

    `stands`: the end of the last planned micro-batch; `held`: the piece after it, if it was already read.
    """

    def __init__(self, scan: Scan, start: SplitPoint) -> None:
        self.scan = scan
        self.stands = start
        self.held: list[StreamPiece] = []

    async def next(self) -> StreamPiece | None:
        return self.held.pop() if self.held else await self.scan.next()

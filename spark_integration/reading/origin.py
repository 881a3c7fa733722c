"""What a source reads: ranges of bytes for its tasks, and the interface between the planner and what it
reads.

A range never changes. It begins between two records, and ends between two, or is marked otherwise: a task
needs no further information, and a retried task returns the same rows. Spark pickles each partition
separately, so partitions hold only names, numbers and a few bytes. `chains` and `objects` implement `Origin`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dos_client import Store
from journal import SegmentName, SegmentSpan, parse_segment_name
from spark_integration.core.offsets import SplitPoint, StreamPiece, Vector
from spark_integration.core.options import SourceOptions
from spark_integration.errors import DataLossError, MalformedOffsetError

logger = logging.getLogger("dos.spark_integration")


class ByteRange(NamedTuple):
    """Bytes from `begin` to `end` of an object; `base` is the offset of the object's first byte in its split.

    `at_head`: it ends where a writer was, perhaps within a record, which is then ignored. `data`: the bytes,
    if they were few and known at planning time. `above`: a place and a line of history; output that ends
    above this place counts only if it is of this line.
    """

    directory: str
    object: str
    begin: int
    end: int
    base: int = 0
    at_head: bool = False
    data: bytes | None = None
    above: tuple[int, int] | None = None


class DosPartition(InputPartition):  # type: ignore[misc]  # pyspark is not typed here
    """Ranges of one split, in order."""

    def __init__(self, split: str, ranges: tuple[ByteRange, ...]) -> None:
        super().__init__(split)
        self.split = split
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"DosPartition({self.split!r}, {sum(one.end - one.begin for one in self.ranges)} bytes)"


def partitions_of(split: str, ranges: Iterable[ByteRange], bytes_max: int) -> list[DosPartition]:
    """Group adjacent ranges up to `bytes_max` bytes; a longer range is a partition of its own."""
    groups: list[list[ByteRange]] = []
    size = 0
    for one in ranges:
        length = one.end - one.begin
        if not groups or size + length > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += length
    return [DosPartition(split, tuple(part)) for part in groups]


def follows(spans: Sequence[SegmentSpan], start: SplitPoint) -> bool:
    """Return whether `start` is on the line of these spans of a chain, with nothing missing in between."""
    if not spans or start.size == spans[0].base:
        return start.size == 0 or bool(spans)
    return any(
        span.base <= start.size <= span.base + span.length and epoch_of(span.name) == start.epoch
        for span in spans
    )


def resumed(spans: Sequence[SegmentSpan], start: SplitPoint) -> SplitPoint:
    """Return where a reader continues if lost data is skipped: at the first span that it has not read."""
    for span in spans:
        if epoch_of(span.name) > start.epoch or span.base >= start.size:
            return SplitPoint(epoch_of(span.name), span.base)
    return end_of(spans)


def end_of(spans: Sequence[SegmentSpan]) -> SplitPoint:
    """Return the point after the last span."""
    return SplitPoint(epoch_of(spans[-1].name), spans[-1].base + spans[-1].length) if spans else SplitPoint()


def ranges_of(directory: str, spans: Iterable[SegmentSpan], start: SplitPoint) -> list[ByteRange]:
    """Return what follows `start`, one range per segment."""
    ranges = []
    for span in spans:
        begin = max(start.size - span.base, 0)
        if begin < span.length:
            ranges.append(ByteRange(directory, span.name, begin, span.length, span.base))
    return ranges


def epoch_of(segment: str) -> int:
    return _parsed(segment).epoch


def base_of(segment: str) -> int:
    """Return the offset in its chain at which a segment begins."""
    return _parsed(segment).base


def _parsed(segment: str) -> SegmentName:
    parsed = parse_segment_name(segment)
    assert parsed is not None, f"{segment} is not a segment"
    return parsed


class Scan(Protocol):
    """A scan of one split that finds its pieces."""

    async def next(self) -> StreamPiece | None:
        """Return the next piece; None if there is none now."""
        ...

    async def aclose(self) -> None:
        """End the scan."""
        ...


class Origin(ABC):
    """Data in a store that is divided into splits. Kept for as long as a query runs.

    All methods run in trio, and may raise what reading a store raises. What is here suits data with one line
    of history, which no restore takes back.
    """

    steps = False
    """Whether a piece is the output of a step."""
    times = False
    """Whether pieces have the time at which they were written."""
    extra: pa.Schema
    """The origin columns of a row, which are returned if they are requested by name."""
    what: str
    """What it is, for people."""

    def __init__(self, store: Store, options: SourceOptions) -> None:
        self.store = store
        self.options = options

    async def line(self, *, fresh: bool = False) -> int:
        """Return the present line of history, for which a plan is made. fresh: not from a cache."""
        del fresh
        return 0

    async def continued(self, points: Vector, line: int | None = None) -> tuple[dict[str, SplitPoint], str]:
        """Return where a stream that has read up to `points` continues on a line (None: the present one), and
        a warning for people if what it has read was taken back, otherwise "".

        Raises OutputRewoundError instead unless the option `onRewind` is "follow".
        """
        del line
        return dict(points), ""

    async def planned(self, start: Vector, end: Vector) -> dict[str, SplitPoint]:
        """Return where a micro-batch that ends at `end` begins on the line of `end`, after `start`."""
        del end
        return dict(start)

    @abstractmethod
    async def splits(self) -> list[str]:
        """Return the existing splits. Raises NothingThereError if the data does not exist."""

    @abstractmethod
    async def all_ranges(self, split: str) -> list[ByteRange]:
        """Return everything that exists now, for a batch read."""

    @abstractmethod
    async def begin(self, split: str) -> SplitPoint:
        """Return the beginning of the existing data."""

    @abstractmethod
    async def end(self, split: str) -> SplitPoint:
        """Return the end of what may be read now; it lies between two pieces."""

    @abstractmethod
    async def data_end(self, split: str) -> SplitPoint:
        """Return how far there is any data, for people: cheaper than `end`, and not between two pieces."""

    @abstractmethod
    async def ranges(self, split: str, start: SplitPoint, end: SplitPoint) -> list[ByteRange]:
        """Return the ranges between two points. Raises DataLossError if some of the data is gone."""

    @abstractmethod
    async def scan(self, split: str, start: SplitPoint) -> Scan:
        """Scan from a point on. Raises DataLossError as `ranges`."""

    @abstractmethod
    def first_rows(self, split: str) -> AsyncGenerator[bytes]:
        """Yield bytes that determine the columns; nothing if there are no rows yet."""

    async def checkpoint(self, number: int) -> dict[str, SplitPoint]:
        """Return the splits' positions in a checkpoint. Raises MalformedOffsetError if there are none."""
        raise MalformedOffsetError(
            f"startingOffset checkpoint:{number}: only the output of a region has checkpoints,"
            f" not {self.what}",
            remedy="write earliest or latest" + (", or time:2026-01-31T12:00:00Z" if self.times else ""),
        )

    def lost(self, text: str) -> None:
        """Report that data is gone. Raises DataLossError unless `failOnDataLoss` is false."""
        if self.options.fail_on_data_loss:
            raise DataLossError(text)
        logger.warning("%s; continuing because of failOnDataLoss=false", text)

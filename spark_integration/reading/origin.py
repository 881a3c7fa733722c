"""The interface between the planner and what it reads: splits, their beginnings and ends, and ranges.

`outputs`, `inputs` and `objects` implement it. All methods run in trio, and may raise what reading a store
raises.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

import pyarrow as pa

from spark_integration.core.admission import StreamPiece
from spark_integration.core.offsets import SplitPoint, Vector
from spark_integration.reading.ranges import ByteRange


class Scan(Protocol):
    """A scan of one split that finds its pieces."""

    async def next(self) -> StreamPiece | None:
        """Return the next piece; None if there is none now."""
        ...

    async def aclose(self) -> None:
        """End the scan."""
        ...


class Origin(Protocol):
    """Data in a store that is divided into splits. Kept for as long as a query runs."""

    async def line(self, *, fresh: bool = False) -> int:
        """Return the present line of history of a region's output, 0 for other data. A plan is for the line
        that was returned last. fresh: not from a cache.
        """
        ...

    async def continued(self, points: Vector, line: int | None = None) -> tuple[dict[str, SplitPoint], str]:
        """Return where a stream that has read up to `points` continues on a line, and a warning for people if
        what it has read was taken back, otherwise "". line: None for the present line.

        Raises OutputRewoundError instead unless the option `onRewind` is "follow".
        """
        ...

    async def planned(self, start: Vector, end: Vector) -> dict[str, SplitPoint]:
        """Return where a micro-batch that ends at `end` begins on the line of `end`, after `start`."""
        ...

    async def splits(self) -> list[str]:
        """Return the existing splits. Raises NothingThereError if the data does not exist."""
        ...

    async def all_ranges(self, split: str) -> list[ByteRange]:
        """Return everything that exists now, for a batch read."""
        ...

    async def begin(self, split: str) -> SplitPoint:
        """Return the beginning of the existing data."""
        ...

    async def end(self, split: str) -> SplitPoint:
        """Return the end of what may be read now; it lies between two pieces."""
        ...

    async def data_end(self, split: str) -> SplitPoint:
        """Return how far there is any data, for people: cheaper than `end`, and not between two pieces."""
        ...

    async def ranges(self, split: str, start: SplitPoint, end: SplitPoint) -> list[ByteRange]:
        """Return the ranges between two points. Raises DataLossError if some of the data is gone."""
        ...

    async def scan(self, split: str, start: SplitPoint) -> Scan:
        """Scan from a point on. Raises DataLossError as `ranges`."""
        ...

    async def checkpoint(self, number: int) -> dict[str, SplitPoint]:
        """Return the splits' positions in a checkpoint. Raises MalformedOffsetError if there are none."""
        ...

    @property
    def steps(self) -> bool:
        """Whether a piece is the output of a step."""
        ...

    @property
    def times(self) -> bool:
        """Whether pieces have the time at which they were written."""
        ...

    def first_rows(self, split: str) -> AsyncGenerator[bytes]:
        """Yield bytes that determine the columns; nothing if there are no rows yet."""
        ...

    def extra(self) -> pa.Schema:
        """Return the origin columns of a row, which are returned if they are requested by name."""
        ...

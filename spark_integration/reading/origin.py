"""What the source reads, as its planner sees it: splits, where they begin and end, and what lies between.

Rules of this file: the protocol that `outputs`, `inputs` and `objects` keep, and nothing else. All methods
run in trio, and may raise what reading a store raises.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

import pyarrow as pa

from spark_integration.core.admission import StreamPiece
from spark_integration.core.source_offsets import SplitPoint
from spark_integration.reading.ranges import ByteRange


class Scan(Protocol):
    """Reads on in one split and tells its pieces."""

    async def next(self) -> StreamPiece | None:
        """The next piece, None if there is none now."""
        ...

    async def aclose(self) -> None:
        """Read no more."""
        ...


class Origin(Protocol):
    """Something in a store that has splits. Kept for as long as a query runs."""

    async def splits(self) -> list[str]:
        """Those that are there now. Raises NothingThereError for what was never there, or misspelt."""
        ...

    async def whole(self, split: str) -> list[ByteRange]:
        """All that is there now, for a batch."""
        ...

    async def begin(self, split: str) -> SplitPoint:
        """The beginning of what is there."""
        ...

    async def end(self, split: str) -> SplitPoint:
        """The end of what may be read now, between two pieces."""
        ...

    async def seen(self, split: str) -> SplitPoint:
        """How far there is anything at all, for people: cheaper than `end`, and not between two pieces."""
        ...

    async def ranges(self, split: str, start: SplitPoint, end: SplitPoint) -> list[ByteRange]:
        """What lies between. Raises DataLossError if some of it is not there any more."""
        ...

    async def scan(self, split: str, start: SplitPoint) -> Scan:
        """From there on. Raises DataLossError as `ranges`."""
        ...

    async def cut(self, number: int) -> dict[str, SplitPoint]:
        """Where a committed cut has the splits. Raises MalformedOffsetError where there are no cuts."""
        ...

    @property
    def steps(self) -> bool:
        """Whether a piece is the output of a step."""
        ...

    @property
    def times(self) -> bool:
        """Whether pieces know when they were written."""
        ...

    def first_rows(self, split: str) -> AsyncGenerator[bytes]:
        """Bytes from which the columns can be known; none where there are no rows yet."""
        ...

    def extra(self) -> pa.Schema:
        """The columns that tell where a row comes from: given when they are asked for by name."""
        ...

"""Selects what a micro-batch reads: pieces of all splits, oldest first, up to the limits of the micro-batch.

A piece is indivisible: the output of one step, a batch of a producer, a line. A micro-batch takes at least
one piece; otherwise a piece larger than the limits would stop the stream. It takes no further piece that
would exceed them. The oldest piece comes first, by step or by the clock of its writer, so that no split
starves another.

The caller scans the splits, one at a time and no further than requested.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spark_integration.core.offsets import SplitPoint


class StreamPiece(NamedTuple):
    """`end`: the point just after it. `order`: the sort key, usually the step; `time_ms`: when it was
    written, 0 if unknown.
    """

    end: SplitPoint
    rows: int
    bytes: int
    order: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one micro-batch; None: unlimited."""

    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.bytes is not None


class BatchAdmission:
    """The selection for one micro-batch.

    `next_split()` returns the split whose next piece is required; pass that piece to `offer`, None if there
    is none currently. When `next_split` returns None, `taken` holds the last piece taken of each split.
    """

    def __init__(self, splits: list[str], limits: BatchLimits) -> None:
        self._limits = limits
        self._heads: dict[str, StreamPiece] = {}
        self._unknown = sorted(splits)
        self._rows = 0
        self._bytes = 0
        self._full = False
        self.taken: dict[str, StreamPiece] = {}

    def next_split(self) -> str | None:
        """Return the split whose next piece must be known to continue; None when that is none."""
        while not self._unknown and not self._full and self._heads:
            split = min(self._heads, key=lambda one: (self._heads[one].order, one))
            if not self._fits(self._heads[split]):
                self._full = True
                break
            piece = self._heads.pop(split)
            self._rows += piece.rows
            self._bytes += piece.bytes
            self.taken[split] = piece
            self._unknown.append(split)
        return self._unknown[0] if self._unknown and not self._full else None

    def offer(self, split: str, piece: StreamPiece | None) -> None:
        """Pass the next piece of the split."""
        self._unknown.remove(split)
        if piece is not None:
            self._heads[split] = piece

    @property
    def left(self) -> dict[str, StreamPiece]:
        """Pieces that were offered and not taken: the first ones of the next micro-batch."""
        return dict(self._heads)

    def _fits(self, piece: StreamPiece) -> bool:
        if not self.taken:
            return True
        rows, size = self._limits.rows, self._limits.bytes
        return (rows is None or self._rows + piece.rows <= rows) and (
            size is None or self._bytes + piece.bytes <= size
        )

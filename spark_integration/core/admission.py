"""How much of what there is a micro-batch takes: pieces of all splits, the oldest first, up to its limits.

Rules of this file: the choice. Pieces come from whoever scans the splits, one split at a time and no further
than is asked for.

A piece is what can only be taken whole: the output of one step, a batch of a producer, a line. A micro-batch
takes at least one, or a piece that is larger than the limits would stop the stream; beyond that it takes none
that would exceed them. The oldest comes first, by step or by the clock of its writer, so that no split
starves another.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spark_integration.core.source_offsets import SplitPoint


class StreamPiece(NamedTuple):
    """`end`: the point just past it. `order`: by what the oldest is found, a step as a rule; `time_ms`: when
    it was written, 0: not known.
    """

    end: SplitPoint
    rows: int
    bytes: int
    order: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Of one micro-batch; None: none."""

    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.bytes is not None


class BatchAdmission:
    """Chooses for one micro-batch. `need()` says of which split the next piece is wanted; give it by `offer`,
    or None if there is none now. When `need` says None, `taken` has the last piece taken of each split.
    """

    def __init__(self, splits: list[str], limits: BatchLimits) -> None:
        self._limits = limits
        self._heads: dict[str, StreamPiece] = {}
        self._unknown = sorted(splits)
        self._rows = 0
        self._bytes = 0
        self._full = False
        self.taken: dict[str, StreamPiece] = {}

    def need(self) -> str | None:
        """The split whose next piece must be known to go on."""
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
        """The next piece of that split."""
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

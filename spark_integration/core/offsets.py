"""How far a stream has read each split, where it continues after a restore, and what its next micro-batch
takes. Pure.

Spark stores the JSON of an offset in its checkpoint, so its format must stay readable. It is a vector of
points, one for each split (a worker's output log, a producer, an object):

    {"version": 1, "store": "<store id, 32 hex>", "what": "output wordcount/counts",
     "splits": {"w0000": {"epoch": 3, "size": 4096, "line": 1, "step": 40}, ...}}

`store` and `what` serve to refuse an offset of something else, whose numbers would fit by accident.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from checkpoint import Checkpoint, Rewind, parting
from dos_protocol.errors import MALFORMED_JSON
from spark_integration.errors import MalformedOffsetError

VERSION: Final = 1
_REMEDY: Final = (
    "write earliest, latest, step:120, checkpoint:7, time:2026-01-31T12:00:00Z, or the JSON of an offset"
    " as a query's progress shows it"
)


class SplitPoint(NamedTuple):
    """How far a split has been read: the epoch of the segment's writer (0 for raw objects), and the offset.
    Everything below it has been read, nothing above it. Of an output also the line of history, and the last
    step; 0 if it is not known.
    """

    epoch: int = 0
    size: int = 0
    line: int = 0
    step: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and offset: equal for two points between the same records."""
        return self.epoch, self.size


BEGINNING: Final = SplitPoint()
Vector = Mapping[str, SplitPoint]


class VersionedOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every offset begins with."""

    version: int


Found = TypeVar("Found", bound=VersionedOffset)


def decode_offset(offset: Any, kind: type[Found], source: str) -> Found:
    """Return an offset that Spark stored for this source. Raises MalformedOffsetError."""
    try:
        parsed = msgspec.convert(offset, kind)
    except msgspec.ValidationError as error:
        raise MalformedOffsetError(
            f"this is not an offset of the source {source}: {error}: {str(offset)[:200]}"
        ) from error
    if parsed.version != VERSION:
        raise MalformedOffsetError(
            f"the offset has version {parsed.version}, but only version {VERSION} is supported",
            remedy="run the version of DOS that wrote it, or a newer one",
        )
    return parsed


class _Offset(VersionedOffset, frozen=True):
    store: str
    what: str
    splits: dict[str, "_Point"]


class _Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epoch: int
    size: int
    line: int = 0
    step: int = 0


def offset_of(store: str, what: str, points: Vector) -> dict[str, Any]:
    """Return the offset as Spark stores it. `store`: the id of the store, in hex."""
    lines = any(at.line or at.step for at in points.values())
    shown = SplitPoint._fields if lines else ("epoch", "size")
    splits = {split: {name: getattr(at, name) for name in shown} for split, at in sorted(points.items())}
    return {"version": VERSION, "store": store, "what": what, "splits": splits}


def points_of(offset: Any, store: str, what: str) -> dict[str, SplitPoint]:
    """Return the points of an offset of this source. Raises MalformedOffsetError."""
    parsed = _offset(offset)
    if parsed.store != store:
        raise MalformedOffsetError(
            f"the offset belongs to store {parsed.store}, but this is store {store}:"
            f" it means nothing for {what} here"
        )
    if parsed.what != what:
        raise MalformedOffsetError(f"the offset belongs to {parsed.what}, but this query reads {what}")
    return {split: SplitPoint(at.epoch, at.size, at.line, at.step) for split, at in parsed.splits.items()}


def _offset(offset: Any) -> _Offset:
    parsed = decode_offset(offset, _Offset, "dos")
    negative = [split for split, at in parsed.splits.items() if min(at.epoch, at.size, at.line, at.step) < 0]
    if negative:
        raise MalformedOffsetError(
            f"the offset has a negative point for {negative[0]!r}: {parsed.splits[negative[0]]}"
        )
    return parsed


class StartingKind(StrEnum):
    """How the start of a stream is specified."""

    EARLIEST = "earliest"
    LATEST = "latest"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    TIME = "time"
    OFFSET = "offset"


class Starting(msgspec.Struct, frozen=True):
    """The start of a new stream. `number`: step, checkpoint, or ms since 1970; `text`: an offset."""

    kind: StartingKind
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        if self.kind in (StartingKind.EARLIEST, StartingKind.LATEST):
            return str(self.kind)
        return f"{self.kind}:{self.text or self.number}"

    @property
    def offset(self) -> Any:
        """The offset, decoded from its JSON."""
        return msgspec.json.decode(self.text.encode())


def parse_starting(text: str) -> Starting:
    """Parse the option `startingOffset`. Raises MalformedOffsetError."""
    option = text.strip()
    if option.lower() in ("earliest", "latest"):
        return Starting(StartingKind(option.lower()))
    if option.startswith("{"):
        try:
            _offset(msgspec.json.decode(option.encode()))
        except MALFORMED_JSON as error:
            raise MalformedOffsetError(
                f"startingOffset is not valid JSON: {error}: {option[:200]}", remedy=_REMEDY
            ) from error
        return Starting(StartingKind.OFFSET, text=option)
    counted = re.fullmatch(r"(step|checkpoint):(\d{1,18})", option, re.IGNORECASE)
    if counted:
        return Starting(StartingKind(counted[1].lower()), int(counted[2]))
    if option.lower().startswith("time:"):
        return Starting(StartingKind.TIME, _time_ms(option[5:].strip()))
    raise MalformedOffsetError(f"startingOffset {option[:200]!r} is of no known form", remedy=_REMEDY)


def _time_ms(text: str) -> int:
    """Convert a time with a zone to ms since 1970."""
    try:
        return int(pa.scalar(text).cast(pa.timestamp("ms", "UTC")).value)
    except pa.ArrowInvalid as error:
        raise MalformedOffsetError(
            f"startingOffset time:{text[:60]} is not a time with a zone: {error}",
            remedy="write it like time:2026-01-31T12:00:00Z for UTC, or time:2026-01-31T12:00:00+01:00",
        ) from error


class LinePoints(NamedTuple):
    """Points on one line.

    moved: the splits whose point was moved; its epoch is not known then. rewind: the restore that took back
    steps that were read. read: the last of these; 0 if it is not known. complete: the last valid step that
    was read of all workers.
    """

    points: dict[str, SplitPoint]
    moved: frozenset[str] = frozenset()
    rewind: Rewind | None = None
    read: int = 0
    complete: int = 0

    @property
    def steps_text(self) -> str:
        if self.rewind is None or not self.read:
            return "an unknown number of steps"
        return f"{self.read - self.rewind.step} steps"


def points_on_line(
    checkpoint: Checkpoint | None, sink: str, points: Mapping[str, SplitPoint], line: int | None = None
) -> LinePoints:
    """Return where a reader of an output continues after `points`, split -> how far it was read.

    checkpoint: the last one. line: a later line than those of the points; None: that of the checkpoint.
    """
    # Lines part after a step, and in each worker's log after a size: a point up to there lies on both, a
    # point after it goes back to where they part, and the steps read after that were taken back. If the
    # checkpoint does not know one of the two lines yet, nothing is proved, and the points stay as they are.
    found, moved = dict(points), set()
    rewind, read = None, []
    for split, at in points.items():
        if checkpoint is None:
            break
        to = checkpoint.line if line is None else line
        parted = parting(checkpoint, at.line, to) if at.line < to <= checkpoint.line else None
        if parted is None:
            continue
        size = parted.outputs.get(int(split[1:]), {}).get(sink, 0)
        if at.size <= size:
            found[split] = at._replace(line=to)
            continue
        found[split] = SplitPoint(0, size, to, min(at.step, parted.step))
        moved.add(split)
        if at.step > parted.step or not at.step:  # otherwise only records without rows were read
            read.append(at.step)
            if rewind is None or parted.step < rewind.step:
                rewind = parted
    present = [
        at.step
        for split, at in found.items()
        if checkpoint is not None and int(split[1:]) in checkpoint.workers
    ]
    return LinePoints(found, frozenset(moved), rewind, max(read, default=0), min(present, default=0))


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
    """The selection for one micro-batch: whole pieces (a step, a batch, lines) of all splits, up to the
    limits.

    `next_split()` returns the split whose next piece is required; pass that piece to `offer`, None if there
    is none currently. When it returns None, `taken` holds the last piece taken of each split.
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
        while not self._unknown and not self._full and self._heads:
            # The oldest first, by step or by the clock of its writer: no split starves another.
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
        self._unknown.remove(split)
        if piece is not None:
            self._heads[split] = piece

    @property
    def left(self) -> dict[str, StreamPiece]:
        """Pieces that were offered and not taken: the first ones of the next micro-batch."""
        return dict(self._heads)

    def _fits(self, piece: StreamPiece) -> bool:
        if not self.taken:  # otherwise a piece larger than the limits would stop the stream
            return True
        rows, size = self._limits.rows, self._limits.bytes
        return (rows is None or self._rows + piece.rows <= rows) and (
            size is None or self._bytes + piece.bytes <= size
        )

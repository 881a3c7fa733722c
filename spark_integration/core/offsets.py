"""Offsets of a stream: how far each split has been read. Spark stores their JSON in its checkpoint.

So their format must stay readable. An offset is a vector of points, one for each split (a worker's output
log, a producer, an object):

    {"version": 2, "store": "<store id, 32 hex>", "what": "output wordcount/counts",
     "splits": {"w0000": {"epoch": 3, "size": 4096, "line": 1, "step": 40}, ...}}

A point is the epoch of the segment's writer, and the logical offset. Everything below it has been read,
nothing above it. For raw objects the epoch is 0. `store` and `what` serve to refuse an offset of something
else, whose numbers would fit by accident.

Points of an output have the line of history on which it was read (`core/rewinds`), and the step up to which.
Version 1 has neither: it means line 0, and the step is not known (0). It is still written where it says
everything, for inputs and objects.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from dos_protocol.errors import MALFORMED_JSON
from spark_integration.errors import MalformedOffsetError, OtherSourceError

VERSION: Final = 2
WITHOUT_LINES_VERSION: Final = 1
_READABLE: Final = (WITHOUT_LINES_VERSION, VERSION)
_REMEDY: Final = (
    "write earliest, latest, step:120, checkpoint:7, time:2026-01-31T12:00:00Z, or the JSON of an offset"
    " as a query's progress shows it"
)


class SplitPoint(NamedTuple):
    """How far a split has been read: the epoch of the segment's writer, and the logical offset.

    Of an output also the line of history, and the last step; 0 if it is not known.
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


class _Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
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
    version = VERSION if lines else WITHOUT_LINES_VERSION
    return {"version": version, "store": store, "what": what, "splits": splits}


def points_of(offset: Any, store: str, what: str) -> dict[str, SplitPoint]:
    """Return the points of an offset of this source. Raises MalformedOffsetError, OtherSourceError."""
    parsed = _offset(offset)
    if parsed.store != store:
        raise OtherSourceError(
            f"the offset belongs to store {parsed.store}, but this is store {store}:"
            f" it means nothing for {what} here"
        )
    if parsed.what != what:
        raise OtherSourceError(f"the offset belongs to {parsed.what}, but this query reads {what}")
    return {split: SplitPoint(at.epoch, at.size, at.line, at.step) for split, at in parsed.splits.items()}


def _offset(offset: Any) -> _Offset:
    try:
        parsed = msgspec.convert(offset, _Offset)
    except msgspec.ValidationError as error:
        raise MalformedOffsetError(
            f"this is not an offset of the source dos: {error}: {str(offset)[:200]}"
        ) from error
    if parsed.version not in _READABLE:
        raise MalformedOffsetError(
            f"the offset has version {parsed.version}, but only versions up to {VERSION} are supported",
            remedy="run the version of DOS that wrote it, or a newer one",
        )
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

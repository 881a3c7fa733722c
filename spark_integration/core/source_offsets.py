"""Offsets of a stream: how far each split is read. As JSON they are in Spark's checkpoint, so they outlive
us.

Rules of this file: values, their JSON, and what is refused. What a point means in the store is the business
of `reading/`.

An offset is a vector of points, one for each split (a worker's output log, a producer, an object):

    {"version": 1, "store": "<store id, 32 hex>", "what": "output wordcount/counts",
     "splits": {"w0000": {"epoch": 3, "size": 4096}, ...}}

A point is a size on a line of history: the epoch of the segment's writer, and the logical offset. Below it
all is read, above it nothing. For raw objects, which have one line, the epoch is 0. `store` and `what` are
there to refuse an offset of something else: its numbers would fit and mean nothing.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from spark_integration.errors import MalformedOffsetError, OtherSourceError

VERSION: Final = 1
_REMEDY: Final = (
    "write earliest, latest, step:120, checkpoint:7, time:2026-01-31T12:00:00Z, or the JSON of an offset"
    " as a query's progress shows it"
)


class SplitPoint(NamedTuple):
    """See the top of this file."""

    epoch: int = 0
    size: int = 0


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


def offset_of(store: str, what: str, points: Vector) -> dict[str, Any]:
    """The offset as Spark keeps it. store: the id of the store, in hex."""
    splits = {split: {"epoch": at.epoch, "size": at.size} for split, at in sorted(points.items())}
    return {"version": VERSION, "store": store, "what": what, "splits": splits}


def points_of(offset: Any, store: str, what: str) -> dict[str, SplitPoint]:
    """The points of an offset of this store and source. Raises MalformedOffsetError, OtherSourceError."""
    found = _offset(offset)
    if found.store != store:
        raise OtherSourceError(
            f"the offset is of store {found.store}, and this is store {store}:"
            f" {what} there and here have nothing in common"
        )
    if found.what != what:
        raise OtherSourceError(f"the offset is of {found.what}, and this query reads {what}")
    return {split: SplitPoint(at.epoch, at.size) for split, at in found.splits.items()}


def _offset(offset: Any) -> _Offset:
    try:
        found = msgspec.convert(offset, _Offset)
    except msgspec.ValidationError as error:
        raise MalformedOffsetError(
            f"this is no offset of the source dos: {error}: {str(offset)[:200]}"
        ) from error
    if found.version != VERSION:
        raise MalformedOffsetError(
            f"the offset has version {found.version}, known here is {VERSION}",
            remedy="run the version of DOS that wrote it, or a newer one",
        )
    wrong = [split for split, at in found.splits.items() if at.epoch < 0 or at.size < 0]
    if wrong:
        raise MalformedOffsetError(
            f"the offset has a negative point for {wrong[0]!r}: {found.splits[wrong[0]]}"
        )
    return found


class StartingKind(StrEnum):
    """By what a stream's beginning is said."""

    EARLIEST = "earliest"
    LATEST = "latest"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    TIME = "time"
    OFFSET = "offset"


class Starting(msgspec.Struct, frozen=True):
    """Where a new stream begins. number: the step, the cut, or ms since 1970; text: the JSON of an offset."""

    kind: StartingKind
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        if self.kind in (StartingKind.EARLIEST, StartingKind.LATEST):
            return str(self.kind)
        return f"{self.kind}:{self.text or self.number}"

    @property
    def offset(self) -> Any:
        """The JSON of an offset, decoded."""
        return msgspec.json.decode(self.text.encode())


def parse_starting(text: str) -> Starting:
    """What the option `startingOffset` says. Raises MalformedOffsetError."""
    said = text.strip()
    if said.lower() in ("earliest", "latest"):
        return Starting(StartingKind(said.lower()))
    if said.startswith("{"):
        try:
            _offset(msgspec.json.decode(said.encode()))
        except msgspec.DecodeError as error:
            raise MalformedOffsetError(
                f"startingOffset is no JSON: {error}: {said[:200]}", remedy=_REMEDY
            ) from error
        return Starting(StartingKind.OFFSET, text=said)
    counted = re.fullmatch(r"(step|checkpoint):(\d{1,18})", said, re.IGNORECASE)
    if counted:
        return Starting(StartingKind(counted[1].lower()), int(counted[2]))
    if said.lower().startswith("time:"):
        return Starting(StartingKind.TIME, _time_ms(said[5:].strip()))
    raise MalformedOffsetError(f"startingOffset {said[:200]!r} is none that is known", remedy=_REMEDY)


def _time_ms(text: str) -> int:
    """A time with its zone, to ms since 1970."""
    try:
        return int(pa.scalar(text).cast(pa.timestamp("ms", "UTC")).value)
    except pa.ArrowInvalid as error:
        raise MalformedOffsetError(
            f"startingOffset time:{text[:60]} is no time with a zone: {error}",
            remedy="write it like time:2026-01-31T12:00:00Z for UTC, or time:2026-01-31T12:00:00+01:00",
        ) from error

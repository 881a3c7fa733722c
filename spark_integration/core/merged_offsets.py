"""Offsets of a merged output. Spark stores their JSON in its checkpoint, so their format must stay readable.

    {"version": 1, "what": "merged output board.joined/out", "schema": "at timestamp, load double",
     "time": ["at"], "markUs": 1790000000000000}

`markUs` is the time of the last row that was read, in microseconds since 1970: all rows up to it were read,
and none above it. null: none was read. The other fields serve to refuse an offset of something else. The
sites are not among them, because they may change.
"""

from typing import Any, Final

import msgspec

from spark_integration.core.merged_rows import MERGED
from spark_integration.errors import MalformedOffsetError, OtherSourceError

VERSION: Final = 1
NOTHING_READ: Final = -(1 << 63)
"""The mark before any row."""


class MergedSubject(msgspec.Struct, frozen=True):
    """What an offset is of. what: region and sink; schema: all columns of the sink; time: its columns."""

    what: str
    schema: str
    time: tuple[str, ...]


class _MarkOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    what: str
    schema: str
    time: tuple[str, ...]
    mark: int | None = msgspec.field(name="markUs")


def mark_offset(of: MergedSubject, mark: int) -> dict[str, Any]:
    """Return the offset as Spark stores it."""
    read = None if mark == NOTHING_READ else mark
    return {
        "version": VERSION,
        "what": of.what,
        "schema": of.schema,
        "time": list(of.time),
        "markUs": read,
    }


def mark_in(offset: Any, of: MergedSubject) -> int:
    """Return the mark of an offset of this output. Raises MalformedOffsetError, OtherSourceError."""
    try:
        found = msgspec.convert(offset, _MarkOffset)
    except msgspec.ValidationError as error:
        raise MalformedOffsetError(
            f"this is not an offset of the source {MERGED}: {error}: {str(offset)[:200]}"
        ) from error
    if found.version != VERSION:
        raise MalformedOffsetError(
            f"the offset has version {found.version}, but only version {VERSION} is supported",
            remedy="run the version of DOS that wrote it, or a newer one",
        )
    if found.what != of.what:
        raise OtherSourceError(f"the offset is of {found.what}, but this query reads {of.what}")
    if found.schema != of.schema:
        raise OtherSourceError(f"the offset is of columns {found.schema}, but {of.what} has {of.schema}")
    if found.time != of.time:
        theirs, ours = ", ".join(found.time), ", ".join(of.time)
        raise OtherSourceError(f"the offset is of times in {theirs}, but the option 'time' is {ours}")
    return NOTHING_READ if found.mark is None else found.mark

"""Stored bytes and digests that are asked of the disk for GET and STAT: events and effects as in
`vocabulary`, of which they are a part.

Rules of this file: values only.
"""

from typing import NamedTuple

from dos_server.core.index import ExtentPlace, FoldPlaces


class ReadData(NamedTuple):
    """Verified content [start, end) of an object, found by walking from `place`."""

    session: int
    request_id: int
    directory: str
    name: str
    place: ExtentPlace
    start: int
    end: int
    version: int = 0
    """Of the object's file: a mended object has another."""


class ReadDigest(NamedTuple):
    """The prefix digest at a size, found by walking from `places`."""

    session: int
    request_id: int
    directory: str
    name: str
    places: FoldPlaces
    size: int
    version: int = 0


class GotData(NamedTuple):
    """The answer to ReadData: all of it, or its beginning when it lies in many small extents. `damaged_at`:
    the logical offset where stored bytes are not good, else None. `missed`: why nothing was read, when that
    says nothing about what is stored. `after`: where a read goes on that begins where this one ends."""

    read: ReadData
    data: bytes
    damaged_at: int | None = None
    missed: str = ""
    after: ExtentPlace | None = None


class GotDigest(NamedTuple):
    read: ReadDigest
    digest: int
    damaged_at: int | None = None
    missed: str = ""


Event = GotData | GotDigest
Effect = ReadData | ReadDigest

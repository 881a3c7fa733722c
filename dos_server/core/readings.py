"""Events and effects of reads for GET and STAT. Values only; part of `vocabulary`."""

from typing import NamedTuple

from dos_server.core.index import ExtentStart, FoldStarts


class ReadData(NamedTuple):
    """Read the verified content [start, end) of an object, walking from `extent`."""

    session: int
    request_id: int
    directory: str
    name: str
    extent: ExtentStart
    start: int
    end: int
    version: int = 0
    """The version of the object's file. A repaired object has another one."""


class ReadDigest(NamedTuple):
    """Compute the prefix digest at a size, walking from `extents`."""

    session: int
    request_id: int
    directory: str
    name: str
    extents: FoldStarts
    size: int
    version: int = 0


class GotData(NamedTuple):
    """The answer to ReadData: all of the range, or its beginning if the range lies in many small extents.

    `damaged_at`: logical offset of damaged bytes, or None. `missed`: why nothing was read, for reasons that
    say nothing about the stored bytes. `after`: where a read can continue that begins at the end of this one.
    """

    read: ReadData
    data: bytes
    damaged_at: int | None = None
    missed: str = ""
    after: ExtentStart | None = None


class GotDigest(NamedTuple):
    """The answer to ReadDigest. `damaged_at` and `missed` as in `GotData`."""

    read: ReadDigest
    digest: int
    damaged_at: int | None = None
    missed: str = ""


Event = GotData | GotDigest
Effect = ReadData | ReadDigest

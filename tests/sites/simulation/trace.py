"""Traces of network delays: servers, and the delay between every two of them every 10 s.

A trace is a Parquet file, so other tools can read and write it. One row is one pair of servers on one day, in
the order day, first server, second server, with `first` < `second`; `delays` are of one direction. A row
group is a day: a reader needs one day at a time. Every page has a checksum. The metadata has the key
`dos-site-trace`: the XXH3-64 of what follows as 16 hexadecimal digits, a space, and JSON with `version`,
`servers` (each with `name` and `area`), `days`, `start` (the date of day 0) and `origin`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from dos_protocol.errors import DosError

Delays = npt.NDArray[np.uint16]
"""[pair, sample], in units of `UNIT_S`."""

VERSION: Final = 1
STEP_S: Final = 10
SAMPLES: Final = 24 * 60 * 60 // STEP_S
"""Of each pair on a day."""
UNIT_S: Final = 0.0001
UNREACHABLE: Final = 0xFFFF
"""The sample of a pair that is cut off. Larger delays than 6.5534 s are stored as that."""
_KEY: Final = b"dos-site-trace"
_SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.int32(), nullable=False),
        pa.field("first", pa.int32(), nullable=False),
        pa.field("second", pa.int32(), nullable=False),
        pa.field("delays", pa.list_(pa.field("item", pa.uint16(), nullable=False)), nullable=False),
    ]
)


class TraceError(DosError):
    """A file is no trace, or is damaged. The message names the file and what is wrong."""

    remedy = "generate the trace again, or restore the file"


class TraceServer(msgspec.Struct, frozen=True):
    """A server of a trace. area: the metropolitan area, whose servers are near to each other."""

    name: str
    area: str


class Header(msgspec.Struct, frozen=True):
    """What a trace consists of. start: the date of the first day; origin: how it was made."""

    servers: tuple[TraceServer, ...]
    days: int
    start: str = "2007-02-13"
    origin: str = ""
    version: int = VERSION

    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs of servers, by their numbers, in the order of the delays."""
        return list(combinations(range(len(self.servers)), 2))


class Trace:
    """A trace that is open for reading, a day at a time."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError, also for a file that cannot be read."""
        self.path = path
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = self._file.schema_arrow.metadata or {}
        except (OSError, pa.ArrowException) as error:
            raise TraceError(f"{path}: it cannot be read as a Parquet file: {error}") from error
        self.header = self._header(metadata.get(_KEY, b""))
        if self._file.num_row_groups != self.header.days:
            raise TraceError(f"{path}: it has {self._file.num_row_groups} days, not {self.header.days}")

    def _header(self, value: bytes) -> Header:
        digest, _, text = value.partition(b" ")
        if not value or digest.decode(errors="replace") != xxhash.xxh3_64_hexdigest(text):
            what = "its metadata is damaged" if value else f"it has no metadata {_KEY.decode()!r}"
            raise TraceError(f"{self.path}: {what}")
        header = msgspec.json.decode(text, type=Header)
        if header.version != VERSION:
            raise TraceError(f"{self.path}: version {header.version}, and this program reads {VERSION}")
        return header

    def delays(self, day: int) -> Delays:
        """Return the delays of a day. Raises TraceError if they are damaged."""
        pairs = self.header.pairs()
        try:
            table = self._file.read_row_group(day)
            columns = [table.column(name).to_numpy() for name in ("day", "first", "second")]
            values = table.column("delays").combine_chunks()
            flat = np.asarray(values.flatten())
        except (OSError, pa.ArrowException, KeyError) as error:
            raise TraceError(f"{self.path}: day {day} is damaged: {error}") from error
        expected = [np.full(len(pairs), day), *np.array(pairs, np.int32).reshape(-1, 2).T]
        if any(not np.array_equal(one, other) for one, other in zip(columns, expected, strict=True)):
            raise TraceError(f"{self.path}: day {day} does not have each pair of servers once, in order")
        if flat.dtype != np.uint16 or len(flat) != len(pairs) * SAMPLES:
            raise TraceError(f"{self.path}: day {day} does not have {SAMPLES:,} samples of each pair")
        found: Delays = flat.reshape(len(pairs), SAMPLES)
        return found

    def verify(self) -> None:
        """Read everything. Raises TraceError."""
        for day in range(self.header.days):
            self.delays(day)


def write_trace(
    path: Path, header: Header, days: Iterable[Delays], progress: Callable[[int], None] = lambda _day: None
) -> None:
    """Write a trace. progress: called with the number of each day that is written.

    The file has its name only when it is complete. Raises OSError; then there is no file.
    """
    text = msgspec.json.encode(header)
    metadata = {_KEY: xxhash.xxh3_64_hexdigest(text).encode() + b" " + text}
    first, second = np.array(header.pairs(), np.int32).reshape(-1, 2).T
    partial = path.with_name(f"{path.name}.partial")
    try:
        with pq.ParquetWriter(
            partial, _SCHEMA.with_metadata(metadata), compression="zstd", write_page_checksum=True
        ) as writer:
            for day, delays in enumerate(_checked(header, days)):
                offsets = np.arange(0, delays.size + 1, SAMPLES, dtype=np.int32)
                columns: list[Any] = [
                    pa.array(np.full(len(delays), day, np.int32)),
                    pa.array(first),
                    pa.array(second),
                    pa.ListArray.from_arrays(offsets, delays.ravel(), type=_SCHEMA.field("delays").type),
                ]
                writer.write_table(pa.table(columns, schema=writer.schema), row_group_size=len(delays))
                progress(day)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _checked(header: Header, days: Iterable[Delays]) -> Iterator[Delays]:
    for delays in days:
        assert delays.shape == (len(header.pairs()), SAMPLES)
        yield delays

"""Find the end of a snapshot by its record headers, without reading the bodies. Pure: no I/O.

The search requests pieces of one segment and checks each header against its digest. The bodies are verified
when they are replayed. Large records (state blocks) are skipped. Where records are small, their headers lie
close together, and everything is read once.
"""

from typing import NamedTuple

from journal.core.errors import ChainError
from journal.core.record import Record, parse_header_v1, parse_v1
from journal.core.record_layout import HEADER_V1
from journal.limits import read_bytes_max, start_read_bytes_max
from journal.ops import Op


class BytesWanted(NamedTuple):
    """A requested read: at most `max_bytes` bytes from `offset` of the segment."""

    offset: int
    max_bytes: int


class SnapshotSearch:
    """A search in the first `length` bytes of a segment whose second record is a SNAPSHOT_BEGIN.

    Read the bytes that `wanted` requests and pass them to `take`, until `wanted` is None. `snapshot_end` is
    then the offset just past the SNAPSHOT_END, or 0 if there is none within `length` bytes. `take` raises
    CorruptRecordError, UnknownRecordError, ChainError.
    """

    def __init__(self, name: str, length: int) -> None:
        self._name = name
        self._length = length
        self._at = 0
        self._records = 0
        self._window = start_read_bytes_max
        self.snapshot_end = 0

    @property
    def wanted(self) -> BytesWanted | None:
        left = self._length - self._at
        if self.snapshot_end or left < HEADER_V1.size:
            return None
        return BytesWanted(self._at, min(left, self._window))

    def take(self, data: bytes) -> None:
        """Pass the bytes from the requested offset. Fewer bytes than a record header have no effect."""
        begin, size = self._at, len(data)
        at = 0
        while size - at >= HEADER_V1.size:
            header = parse_header_v1(data, at, begin, self._name)
            if begin + at + header.bytes > self._length:
                self._length = begin + at  # cut off: nothing whole follows
                break
            if header.op is Op.SNAPSHOT_END:
                if at + header.bytes > size:
                    break
                self._finish(data[at : at + header.bytes], begin + at)
                return
            self._records += 1
            at += header.bytes
        self._window = read_bytes_max if at <= size else start_read_bytes_max
        self._at = begin + at

    def _finish(self, data: bytes, offset: int) -> None:
        """Check a SNAPSHOT_END: its number must be the count of the records since SNAPSHOT_BEGIN."""
        out: list[tuple[int, Record]] = []
        parsed = parse_v1(data, 0, out, offset, self._name)
        if parsed.fault is not None:
            raise parsed.fault
        between = self._records - 2
        if out[0][1].ints != (between,):
            raise ChainError(
                self._name, offset, f"an end that fits {between} records", f"an end of {out[0][1].ints}"
            )
        self.snapshot_end = offset + len(data)

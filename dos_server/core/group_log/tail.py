"""The end of the log: encodes the next record, and finds its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    LogEntry,
    LogPlace,
    encode_entry,
    encode_record,
    padded,
)
from dos_server.core.group_log.segments import Segments


class NextRecord(NamedTuple):
    """A record and its place. `seen_bytes`: its header and table. When it is synced, `Segments.synced` gets
    `first_segment`.
    """

    slot: int
    offset: int
    record: bytearray
    seen_bytes: int
    first_segment: int


@dataclass
class LogTail:
    """Where the log continues.

    `start`: the number of the server's start. `sequence` and `digest`: of the next record, and of the one
    before, whose encoded entries are `before`.
    """

    segments: Segments
    start: int
    seed: int
    sequence: int
    digest: int = 0
    before: Sequence[bytes] = ()
    before_bytes: int = 0

    def has_room(self, table_bytes: int, content_bytes: int, *, reserved: bool) -> bool:
        """Whether the next record, with entries and contents of these sizes, has a place."""
        return self.segments.room(self._size(table_bytes, content_bytes), reserved=reserved)

    def _size(self, table_bytes: int, content_bytes: int) -> int:
        return padded(HEADER_BYTES + table_bytes + self.before_bytes + content_bytes)

    def next_record(
        self, entries: Sequence[LogEntry], contents: Sequence[Buffer], now: float, *, reserved: bool
    ) -> NextRecord:
        """Return the next record; `has_room` has returned True."""
        own = list(map(encode_entry, entries))
        table_bytes = sum(map(len, own))
        size = self._size(table_bytes, sum(map(len, contents)))
        room = self.segments.place(size, self.sequence, now, reserved=reserved)
        for entry in entries:
            self.segments.holds((entry.directory, entry.name), entry.end)
        first_segment, first_sequence = self.segments.first_live(room.segment, self.sequence)
        place = LogPlace(self.start, room.segment, self.sequence, first_segment, first_sequence, self.digest)
        record, self.digest = encode_record(place, own, contents, self.before, self.seed)
        seen_bytes = HEADER_BYTES + table_bytes + self.before_bytes
        self.sequence += 1
        self.before, self.before_bytes = own, table_bytes
        return NextRecord(room.slot, room.offset, record, seen_bytes, first_segment)

"""Which records of the group log a start has to replay.

The shell reads every slot and passes what it found. The rules, for the records of the latest start that has a
valid one (its first record made those of earlier starts obsolete):

    last     the highest sequence that is known to have been synced: of the valid records, and of `seen`
    first    the first live sequence that `last` names: what is below is filed
    missing  a sequence from first to last without a valid record: it was synced, so this is damage, not a
             crash. A record is written only after the sync of the one before it succeeded.

Each sequence is in one row:

    A  from first to last, valid                                       replayed
    B  from first to last, its contents are damaged                    its own table tells its entries
    C  from first to last, its header or table is damaged or missing   the next record tells its entries
    D  the same, and the next record does not                          `seen` tells its entries
    E  the same, and neither does                                      refused: CorruptDataError
    F  above last, not valid                                           a torn end: nothing was acknowledged
    G  valid, and does not name the digest of the one before it        refused
    H  valid, of a later start than `life` has                         refused: `life` is an older copy
    I  a header of another version                                     refused

In rows B, C and D the contents are lost: what a start does about that is decided for each object (`replay`).
In row E nobody could tell which objects miss acknowledged bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dos_protocol.errors import CorruptDataError
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    LogEntry,
    LogHeader,
    LogHeaderFault,
    content_matches,
    decode_header,
    decode_table,
)
from dos_server.core.files.scan import ReadAt
from dos_server.limits import log_align_bytes

_REMEDY = "replace the server: a repair brings its objects back from the other members"


class RecordPlace(NamedTuple):
    """Where a record begins."""

    slot: int
    offset: int


class FoundRecord(NamedTuple):
    """A record whose header is valid. `entries`, `before`: None if the table is damaged."""

    place: RecordPlace
    header: LogHeader
    entries: tuple[LogEntry, ...] | None
    before: tuple[LogEntry, ...] | None
    content_matches: bool

    @property
    def valid(self) -> bool:
        """Whether all three digests match."""
        return self.entries is not None and self.content_matches


class SeenRecord(NamedTuple):
    """The record that was synced last, or an earlier one: the file `seen`."""

    header: LogHeader
    entries: tuple[LogEntry, ...]


class LiveRecord(NamedTuple):
    """A record to replay. `place`: None if its contents are damaged; the entries are known all the same.
    `letter`: its row in the table above.
    """

    sequence: int
    entries: tuple[LogEntry, ...]
    place: RecordPlace | None
    letter: str


class LogSurvey(NamedTuple):
    """What a start has to replay, in order, and the first numbers that were never used.

    `last`: the last record, if it is valid; it is written and synced again before anything acts on it,
    because a power cut could still take it.
    """

    records: tuple[LiveRecord, ...]
    last: FoundRecord | None
    next_segment: int
    next_sequence: int


def scan_slot(read: ReadAt, slot: int, slot_bytes: int, seed: int) -> Iterator[FoundRecord]:
    """Yield the records of a slot. Raises CorruptDataError for a record of a newer version."""
    offset = 0
    while offset + HEADER_BYTES <= slot_bytes:
        header = decode_header(read(offset, HEADER_BYTES), seed)
        if header is LogHeaderFault.VERSION:
            raise CorruptDataError(
                f"slot {slot} of the group log",
                offset,
                "a record of version 1",
                "another version",
                "use the release that wrote it, or a newer one",
            )
        if isinstance(header, LogHeaderFault):
            offset += log_align_bytes
            continue
        body = read(offset + HEADER_BYTES, header.table_bytes + header.content_bytes)
        table, content = body[: header.table_bytes], body[header.table_bytes :]
        tables = decode_table(header, table)
        own, before = tables if tables is not None else (None, None)
        yield FoundRecord(
            RecordPlace(slot, offset),
            header,
            tuple(own) if own is not None else None,
            tuple(before) if before is not None else None,
            content_matches(header, content),
        )
        offset += header.size  # what its contents look like is the clients' choice


def survey(found: Iterable[FoundRecord], seen: SeenRecord | None, starts: int) -> LogSurvey:
    """Return what to replay. `starts`: the number of starts in `life`. Raises CorruptDataError."""
    records = tuple(found)
    newer = [one for one in records if one.header.start > starts]
    if newer:
        raise CorruptDataError(
            "the group log",
            0,
            f"records of at most {starts} starts",
            f"one of start {newer[0].header.start}",
            "life was replaced by an older copy: replace the server",
        )
    headers = [one.header for one in records] + ([seen.header] if seen is not None else [])
    next_segment, next_sequence = unused_numbers(headers)
    synced = [one.header for one in records if one.valid] + ([seen.header] if seen is not None else [])
    if not synced:
        return LogSurvey((), None, next_segment, next_sequence)
    end = max(synced, key=lambda one: (one.start, one.sequence))
    by_sequence = {one.header.sequence: one for one in records if one.header.start == end.start}
    live = tuple(
        _live(sequence, by_sequence, seen) for sequence in range(end.first_sequence, end.sequence + 1)
    )
    _check_chain(live, by_sequence)
    last = next((one for one in by_sequence.values() if one.valid and one.header == end), None)
    return LogSurvey(live, last, next_segment, next_sequence)


def unused_numbers(headers: Sequence[LogHeader]) -> tuple[int, int]:
    """Return a segment and a sequence above all of these."""
    next_segment = max((one.segment for one in headers), default=0) + 1
    return next_segment, max((one.sequence for one in headers), default=0) + 1


def _live(sequence: int, by_sequence: dict[int, FoundRecord], seen: SeenRecord | None) -> LiveRecord:
    one, after = by_sequence.get(sequence), by_sequence.get(sequence + 1)
    if one is not None and one.valid:
        assert one.entries is not None
        return LiveRecord(sequence, one.entries, one.place, "A")
    if one is not None and one.entries is not None:
        return LiveRecord(sequence, one.entries, None, "B")
    if after is not None and after.before is not None:
        return LiveRecord(sequence, after.before, None, "C")
    if seen is not None and seen.header.sequence == sequence:
        return LiveRecord(sequence, seen.entries, None, "D")
    raise _lost(sequence)


def _check_chain(live: Sequence[LiveRecord], by_sequence: dict[int, FoundRecord]) -> None:
    """Each record names the header digest of the one before it. Raises CorruptDataError."""
    for one in live[1:]:
        before, own = by_sequence.get(one.sequence - 1), by_sequence.get(one.sequence)
        if before is None or own is None:
            continue
        if own.header.before_digest != before.header.digest:
            raise CorruptDataError(
                f"record {one.sequence} of the group log",
                0,
                f"one that follows the record with digest {before.header.digest:016x}",
                f"{own.header.before_digest:016x}",
                _REMEDY,
            )


def _lost(sequence: int) -> CorruptDataError:
    return CorruptDataError(
        f"record {sequence} of the group log",
        0,
        "a record that was synced",
        "nothing that tells its entries",
        _REMEDY,
    )

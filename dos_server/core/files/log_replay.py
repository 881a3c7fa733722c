"""What a start does with the group log: which records are live, and what becomes of each entry.

The shell reads every slot and passes what it found. The rules, for the records of the latest start that
has a valid one (its first record made those of earlier starts obsolete):

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

In rows B, C and D the contents are lost: what a start does about that is decided for each object. In row
E nobody could tell which objects miss acknowledged bytes.

Entries of one object are carried out in the order of the log:

    1  Entries before the last REMOVED are void. The removal is finished: a file with the removed root, or
       with an unreadable head, is removed. A file of another root was created later.
    2  After REPLACED, with the new root in the file, only later entries count. With the old root there and no
       later entries, the repair had not begun to change names: entries before it count. The same if there
       is no file and was none: whether that is damage, its mark says.
    3  Entries from position 0 on: a file that begins with another root, or with no valid header, is put
       aside, and the object is created anew.
    4  Entries from above 0: the file must have their root, and no byte below them may be missing. Otherwise
       the object is damaged, and nothing is written.
    5  Every entry that is left is written, never compared: after a failed sync the cache shows what the disk
       lacks. Lost entries cannot be written; whether the file has their bytes shows the size that the mark
       requires, by the table of `files.recovery`.

Afterwards the mark requires the end of the last entry. Nothing is ever cut here.

Two small files. `life`, replaced whole, says how often the server was started, and whether the log may hold
what no other file has (its layout is `LIFE`):

    state     meaning
    0 NO_LOG  there is no log: everything is in the files of the objects
    1 IN_USE  the log has to be read before anything else is
    2 CLEAN   the server was stopped after everything was filed: as NO_LOG, and the slots exist

`seen`, overwritten in place after each sync of the log and before its answers, not synced: the header and
the table of the record that was synced last. It is a lower bound, as marks are: an older one, or an
invalid one, only makes damage to the very last records harder to detect.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from dos_protocol.errors import CorruptDataError
from dos_protocol.sealed import SealedField, SealedLayout
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    EntryKind,
    LogEntry,
    LogHeader,
    LogHeaderFault,
    TableError,
    content_matches,
    decode_header,
    decode_table,
)
from dos_server.core.files.scan import ReadAt
from dos_server.limits import log_align_bytes

_REMEDY = "replace the server: a repair brings its objects back from the other members"


class RecordPlace(NamedTuple):
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
        return self.entries is not None and self.content_matches


class SeenRecord(NamedTuple):
    header: LogHeader
    entries: tuple[LogEntry, ...]


class LiveRecord(NamedTuple):
    """A record to replay. `place`: None if its contents are damaged. `letter`: its row in the table above."""

    sequence: int
    entries: tuple[LogEntry, ...]
    place: RecordPlace | None
    letter: str


class LogSurvey(NamedTuple):
    """What a start has to replay, in order, and the first numbers that were never used. `last`: the last
    valid record.
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
    # Also if only `seen` names it: a record that was synced and is missing is damage, not the end of the log.
    end = max(synced, key=lambda one: (one.start, one.sequence))
    by_sequence = {one.header.sequence: one for one in records if one.header.start == end.start}
    live = tuple(
        _live(sequence, by_sequence, seen) for sequence in range(end.first_sequence, end.sequence + 1)
    )
    _check_chain(live, by_sequence)
    last = next((one for one in by_sequence.values() if one.valid and one.header == end), None)
    return LogSurvey(live, last, next_segment, next_sequence)


def unused_numbers(headers: Sequence[LogHeader]) -> tuple[int, int]:
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


# --- The files `life` and `seen` ---------------------------------------------------------------------------


class LogState(IntEnum):
    NO_LOG = 0
    IN_USE = 1
    CLEAN = 2


LIFE: Final = SealedLayout(
    "life",
    b"\xd0\x4e",
    SealedField("state", "B", LogState.CLEAN, "0 no log yet, 1 in use, 2 everything is filed"),
    SealedField("number of starts", "Q"),
    SealedField("key", "16s", note="secret, of the group log"),
    remedy="replace the server: without this file nobody knows whether its log holds acknowledged bytes",
)


class Life(NamedTuple):
    """The number of starts of a data directory, the state of its log, and the secret of its digests."""

    starts: int
    state: LogState
    key: bytes


def encode_life(life: Life) -> bytes:
    return LIFE.seal(life.state, life.starts, life.key)


def decode_life(data: bytes) -> Life:
    """Return what the file says. Raises CorruptDataError for anything but one whole `life`."""
    state, starts, key = LIFE.open(data, "life").values
    return Life(starts, LogState(state), key)


def decode_seen(data: bytes | None, seed: int) -> SeenRecord | None:
    """Return the record that the file `seen` names; None if it is missing or not whole."""
    if data is None or len(data) < HEADER_BYTES:
        return None
    header = decode_header(data[:HEADER_BYTES], seed)
    if isinstance(header, LogHeaderFault):
        return None
    try:
        tables = decode_table(header, data[HEADER_BYTES : HEADER_BYTES + header.table_bytes])
    except TableError:
        return None
    return SeenRecord(header, tuple(tables[0])) if tables is not None else None


# --- What to do with the entries of one object, and of one claim -------------------------------------------


class ReplayEntry(NamedTuple):
    entry: LogEntry
    content: object
    lost: bool = False


class FileFacts(NamedTuple):
    exists: bool
    root: int
    file_bytes: int


NO_FILE = FileFacts(exists=False, root=0, file_bytes=0)


class ObjectPlan(NamedTuple):
    """What to do, in this order: `remove` the file and its mark, move it `aside`, `create` an empty one,
    `writes` of (position, content). `synced`: the size that its mark requires; None: no object is left.
    """

    remove: bool = False
    aside: bool = False
    create: bool = False
    writes: tuple[tuple[int, object], ...] = ()
    synced: int | None = None
    root: int = 0
    damage: str = ""


def plan_object(entries: Sequence[ReplayEntry], file: FileFacts) -> ObjectPlan:
    removed, left = _after_removal(entries)
    # Only the file that was removed: an object that got the name later has another root.
    remove = removed is not None and file.exists and file.root in (removed.root, 0)
    if remove:
        file = NO_FILE
    gone = removed is not None and not file.exists and not left
    left, damage = _after_replacement(left, file)
    if not left and not damage:
        return ObjectPlan(remove=remove or gone)
    synced = max((one.entry.end for one in left), default=0)
    root = left[0].entry.root if left else file.root
    if damage:
        return ObjectPlan(remove, synced=synced, root=root, damage=damage)
    if any(one.entry.root != root for one in left):
        return ObjectPlan(remove, synced=synced, root=root, damage="entries of two roots without a removal")
    begins = left[0].entry.position
    aside = begins == 0 and file.file_bytes > 0 and file.root != root
    if begins > 0 and file.root != root:  # the log has the end of one history, the file the start of another
        text = f"entries of root {root:08x} from byte {begins} of a file with root {file.root:08x}"
        return ObjectPlan(remove, synced=synced, root=root, damage=text)
    size = 0 if aside else file.file_bytes
    writes = []
    for entry, content, lost in left:
        if entry.position > size:  # what was below it was acknowledged, and is gone
            text = f"an entry from byte {entry.position} of a file with {size} bytes"
            return ObjectPlan(remove, synced=synced, root=root, damage=text)
        if not lost:
            size = max(size, entry.position + entry.content_bytes)
            if entry.content_bytes:
                writes.append((entry.position, content))
    create = begins == 0 and (aside or not file.exists)
    return ObjectPlan(remove, aside, create, tuple(writes), synced, root)


def _after_removal(entries: Sequence[ReplayEntry]) -> tuple[LogEntry | None, list[ReplayEntry]]:
    last, left = None, list[ReplayEntry]()
    for one in entries:
        if one.entry.kind is EntryKind.REMOVED:
            last, left = one.entry, []
        else:
            left.append(one)
    return last, left


def _after_replacement(entries: list[ReplayEntry], file: FileFacts) -> tuple[list[ReplayEntry], str]:
    """Return the entries that count, and why the object is damaged."""
    places = [index for index, one in enumerate(entries) if one.entry.kind is EntryKind.REPLACED]
    if not places:
        return entries, ""
    replaced = entries[places[-1]].entry
    before, after = entries[: places[-1]], entries[places[-1] + 1 :]
    if file.root == replaced.position:
        return after, ""
    if file.root == replaced.root and not after:
        kept = [one for one in before if one.entry.kind is not EntryKind.REPLACED]
        return kept, ""
    if not file.exists and not before and not after:
        return [], ""
    text = f"a repair gave it root {replaced.position:08x}, and the file has {file.root:08x}"
    return [*after, entries[places[-1]]], text


def claim_to_store(entries: Sequence[ReplayEntry], held_epoch: int) -> ReplayEntry | None:
    highest = max(entries, key=lambda one: (one.entry.end, not one.lost), default=None)
    return highest if highest is not None and highest.entry.end > held_epoch else None

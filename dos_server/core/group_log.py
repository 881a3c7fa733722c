"""The group log as a part of the core: one log for the small durable writes of all objects of a server.

    written    small, and everything below is covered: an entry for the next record. Else a sync of its own
    one record is written and synced at a time; meanwhile entries gather for the next one
    synced     the entries of the record are acknowledged, in the order of their writes
    filed      the oldest segment that takes no more records: each of its objects is synced in its own file

Claims, removals and replacements are entries, too: they happen after the sync of their record. Bytes
for which the log has no room go the direct way, so nothing ever waits for the log to be filed.

Segments of the log:

    FREE -> ACTIVE -> SEALED -> FILED -> FREE

    ACTIVE   takes records; one at a time
    SEALED   takes none any more: no room, too old, or too many objects are unfiled
    FILED    everything in it is on stable storage elsewhere: objects, claims, marks
    FREE     a record that is synced names a first live segment above it. Only then is its slot overwritten:
             otherwise a crash could leave a log whose live part misses a segment.

An object is *filed* up to a size when its own file is synced up to it, name included. Segments are
released in order, so the live part of the log is always one range of sequences. `files.log_record` is the
format.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_server.core import vocabulary as v
from dos_server.core.files.log_record import (
    HEADER_BYTES,
    EntryKind,
    LogEntry,
    LogPlace,
    encode_entry,
    encode_record,
    entry_bytes,
    padded,
)
from dos_server.core.files.records import ClaimRecord, encode_claim
from dos_server.core.object_state import ObjectState
from dos_server.limits import (
    log_age_seconds,
    log_align_bytes,
    log_content_bytes_max,
    log_direct_seconds,
    log_entries_max,
    log_filing_max,
    log_idle_seconds,
    log_live_segments_max,
    log_name_seconds,
    log_reserved_bytes,
    log_small_bytes_max,
    log_unfiled_max,
)

Key = tuple[str, str]
"""Directory and object; of a claim, directory and ""."""


class RecordRoom(NamedTuple):
    slot: int
    offset: int
    segment: int


@dataclass
class Segment:
    number: int
    slot: int
    first_sequence: int
    opened_s: float
    end: int = 0
    unfiled: dict[Key, int] = field(default_factory=dict)
    keys: set[Key] = field(default_factory=set)


class Segments:
    """The live segments, oldest first; the last one is active unless it was sealed."""

    def __init__(self, slots: int, slot_bytes: int, next_segment: int, busy_slots: frozenset[int]) -> None:
        """busy_slots: those that hold what was live at the start. They are free once a record is synced."""
        self._slot_bytes = slot_bytes
        self._next_segment = next_segment
        self._free: deque[int] = deque(slot for slot in range(slots) if slot not in busy_slots)
        self._released = [Segment(next_segment - 1, slot, 0, 0.0) for slot in sorted(busy_slots)]
        """Segments whose slots are free once a record is synced that names a first live segment above."""
        self.live: deque[Segment] = deque()
        self._active: Segment | None = None
        assert self._free, "a start finds a free slot: at most all but one are live"

    def room(self, record_bytes: int, *, reserved: bool) -> bool:
        """Whether a record of that size has a place. `reserved`: it may use the rest of a slot."""
        limit = self._slot_bytes - (0 if reserved else log_reserved_bytes)
        if self._active is not None and self._active.end + record_bytes <= limit:
            return True
        return self._may_open and record_bytes <= limit

    @property
    def _may_open(self) -> bool:
        return bool(self._free) and len(self.live) < log_live_segments_max

    def place(self, record_bytes: int, sequence: int, now: float, *, reserved: bool) -> RecordRoom:
        """Take the room of a record; `room` has returned True. Seals the active segment if it has no room."""
        assert record_bytes % log_align_bytes == 0
        limit = self._slot_bytes - (0 if reserved else log_reserved_bytes)
        active = self._active
        if active is None or active.end + record_bytes > limit:
            active = self._active = Segment(self._next_segment, self._free.popleft(), sequence, now)
            self._next_segment += 1
            self.live.append(active)
        room = RecordRoom(active.slot, active.end, active.number)
        active.end += record_bytes
        return room

    def holds(self, key: Key, end: int) -> None:
        assert self._active is not None
        self._active.unfiled[key] = max(end, self._active.unfiled.get(key, 0))
        self._active.keys.add(key)

    def may_hold(self, key: Key) -> bool:
        return any(key in segment.keys for segment in (*self.live, *self._released))

    def forget(self, key: Key) -> None:
        for segment in self.live:
            segment.unfiled.pop(key, None)

    def filed(self, key: Key, upto: int) -> None:
        for segment in self.live:
            if segment.unfiled.get(key, upto + 1) <= upto:
                del segment.unfiled[key]

    def seal(self, now: float, *, idle: bool = False) -> None:
        """Seal the active segment if it is old, if too many objects in it are unfiled, or when idle."""
        active = self._active
        if active is None or not active.unfiled or not self._may_open:
            return  # what waits for the next record was promised room
        if idle or now - active.opened_s >= log_age_seconds or len(active.unfiled) >= log_unfiled_max:
            self._active = None

    def to_file(self) -> tuple[Key, ...]:
        oldest = self.live[0] if self.live else None
        return tuple(oldest.unfiled) if oldest is not None and oldest is not self._active else ()

    def release(self) -> None:
        """Release the oldest segments that are filed completely. Their marks are on stable storage."""
        while self.live and self.live[0] is not self._active and not self.live[0].unfiled:
            # Not free yet: until a synced record names a later first segment, a start still counts it as
            # live.
            self._released.append(self.live.popleft())

    @property
    def may_free(self) -> bool:
        return bool(self._released)

    def first_live(self, segment: int, sequence: int) -> tuple[int, int]:
        return (self.live[0].number, self.live[0].first_sequence) if self.live else (segment, sequence)

    def synced(self, first_segment: int) -> None:
        """Note that a record is synced that names this first live segment: earlier slots are free."""
        self._free.extend(one.slot for one in self._released if one.number < first_segment)
        self._released = [one for one in self._released if one.number >= first_segment]


class NextRecord(NamedTuple):
    """A record and its place. `seen_bytes`: its header and table. `first_segment`: for `Segments.synced`."""

    slot: int
    offset: int
    record: bytearray
    seen_bytes: int
    first_segment: int


@dataclass
class LogTail:
    """Where the log continues: `sequence` of the next record; `digest`, `before`: of the one before."""

    segments: Segments
    start: int
    seed: int
    sequence: int
    digest: int = 0
    before: Sequence[bytes] = ()
    before_bytes: int = 0

    def has_room(self, table_bytes: int, content_bytes: int, *, reserved: bool) -> bool:
        return self.segments.room(self._size(table_bytes, content_bytes), reserved=reserved)

    def _size(self, table_bytes: int, content_bytes: int) -> int:
        return padded(HEADER_BYTES + table_bytes + self.before_bytes + content_bytes)

    def next_record(
        self,
        entries: Sequence[LogEntry],
        own: Sequence[bytes],
        contents: Sequence[Buffer],
        now: float,
        *,
        reserved: bool,
    ) -> NextRecord:
        """Return the next record; `has_room` has returned True. `own`: the entries, encoded."""
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


Then = Callable[[], None]


class Pending(NamedTuple):
    """An entry that waits for a record. `state`: the object whose bytes it has. `then`: called when another
    entry is synced.
    """

    entry: LogEntry
    encoded: bytes
    content: Buffer
    state: ObjectState | None = None
    then: Then | None = None


class GroupLog:
    """The log of one server. `settled` acknowledges an object up to a size; `gone` poisons one whose file was
    removed.
    """

    def __init__(
        self,
        tail: LogTail,
        *,
        order: Callable[[v.Effect], None],
        settled: Callable[[ObjectState, int], None],
        gone: Callable[[ObjectState], None],
        find: Callable[[str, str], ObjectState | None],
        file_claim: Callable[[str], None],
    ) -> None:
        self._tail, self._segments = tail, tail.segments
        self._order, self._settled, self._gone = order, settled, gone
        self._find, self._file_claim = find, file_claim
        self._pending: list[Pending] = []
        self._content_bytes = self._table_bytes = 0
        """Of what is pending."""
        self._reserved = False
        """Whether something pending may use the reserved part of a slot."""
        self._in_flight: list[Pending] | None = None
        self._first_segment = 0
        """That the record in flight names."""
        self._used_at = 0.0
        self._filing: set[Key] = set()

    # Objects

    def takes(self, state: ObjectState, begin: int, count: int, now: float) -> bool:
        """Return whether bytes that are written at `begin` are logged. `count`: of their extents."""
        # Everything below must be covered: the acknowledgement of bytes speaks for all below them. A large
        # stream that is slow looks like small writes, so an object that was too large is direct for a while.
        if begin != state.covered or now < state.direct_until:
            return False
        if count > log_small_bytes_max or state.written - state.synced > log_small_bytes_max:
            state.direct_until = now + log_direct_seconds
            return False
        return self._has_room(entry_bytes(state.names), count)

    def add_extents(self, state: ObjectState, position: int, data: Buffer) -> None:
        count, end = len(data), state.written
        if count:
            entry = LogEntry(EntryKind.EXTENTS, state.directory, state.name, state.root, position, end, count)
        else:
            entry = LogEntry(EntryKind.CREATED, state.directory, state.name, state.root, 0, end, 0)
        state.covered, state.entry_covered = end, True
        self._add(Pending(entry, encode_entry(entry, state.names), data, state))

    def holds(self, key: Key) -> bool:
        """Return whether a start could replay an entry of this object, or of this directory's claim."""
        waits = any(
            (one.entry.directory, one.entry.name) == key for one in (*self._pending, *(self._in_flight or ()))
        )
        return waits or self._segments.may_hold(key)

    def remove(self, state: ObjectState, then: Then) -> bool:
        """Log a removal before its mark is written. False: there is no room now; try again later."""
        return self._add_bare(EntryKind.REMOVED, state, 0, 0, then)

    def replace(self, state: ObjectState, new_root: int, size: int, then: Then) -> bool:
        return self._add_bare(EntryKind.REPLACED, state, new_root, size, then)

    def _add_bare(self, kind: EntryKind, state: ObjectState, position: int, end: int, then: Then) -> bool:
        return self._add_reserved(
            LogEntry(kind, state.directory, state.name, state.root, position, end, 0), b"", then
        )

    def claim(self, directory: str, claim: ClaimRecord, then: Then) -> bool:
        data = encode_claim(claim)
        entry = LogEntry(EntryKind.CLAIM, directory, "", 0, 0, claim.epoch, len(data))
        return self._add_reserved(entry, data, then)

    def _add_reserved(self, entry: LogEntry, content: Buffer, then: Then) -> bool:
        encoded = encode_entry(entry)
        if not self._has_room(len(encoded), len(content), reserved=True):
            return False
        self._reserved = True
        self._add(Pending(entry, encoded, content, then=then))
        return True

    def gone(self, key: Key) -> None:
        self._segments.forget(key)

    def filed(self, key: Key, upto: int) -> None:
        self._segments.filed(key, upto)
        self._segments.release()
        if key in self._filing:
            self._filing.discard(key)
            self._file()

    # Records

    def _has_room(self, table_bytes: int, content_bytes: int, *, reserved: bool = False) -> bool:
        content_bytes += self._content_bytes
        if len(self._pending) >= log_entries_max or content_bytes > log_content_bytes_max:
            return False
        return self._tail.has_room(self._table_bytes + table_bytes, content_bytes, reserved=reserved)

    def _add(self, one: Pending) -> None:
        self._pending.append(one)
        self._content_bytes += len(one.content)
        self._table_bytes += len(one.encoded)

    def write_next(self, now: float) -> None:
        """Order the next record, if entries wait and none is being written. Called once for each event."""
        if not self.is_due:
            return
        self._segments.seal(now)
        self._write(now)

    def _write(self, now: float) -> None:
        pending, self._pending, self._content_bytes, self._table_bytes = self._pending, [], 0, 0
        reserved, self._reserved = self._reserved, False
        entries, own = [one.entry for one in pending], [one.encoded for one in pending]
        contents = [one.content for one in pending]
        slot, offset, record, seen_bytes, self._first_segment = self._tail.next_record(
            entries, own, contents, now, reserved=reserved
        )
        self._in_flight, self._used_at = pending, now
        objects = self._due_checks([one.state for one in pending if one.state is not None], now)
        self._order(v.WriteLog(slot, offset, record, seen_bytes, objects))

    @staticmethod
    def _due_checks(states: Iterable[ObjectState], now: float) -> list[Key]:
        # One `stat` for each record and object would cost more than the record.
        due = [state for state in states if state.named_until <= now]
        for state in due:
            state.named_until = now + log_name_seconds
        return [(state.directory, state.name) for state in due]

    def synced(self, gone: frozenset[Key]) -> None:
        """Handle the sync of the record in flight. The shell reports `LogDue` next, if entries wait."""
        done, self._in_flight = self._in_flight, None
        assert done is not None, "a record was synced that was not written"
        # Only now may released slots be overwritten: if this record were lost, the one before it would still
        # count their segments as live, and a start would miss them.
        self._segments.synced(self._first_segment)
        for entry, _, _, state, then in done:
            if then is not None:
                then()
            # Not acknowledged: nobody would find these bytes by name.
            elif state is not None and gone and (entry.directory, entry.name) in gone:
                self._gone(state)
            elif state is not None:
                self._settled(state, entry.end)

    # Filing

    def tick(self, now: float) -> None:
        self._segments.seal(now, idle=now - self._used_at >= log_idle_seconds)
        self._file()
        if self._segments.may_free and self._in_flight is None and not self._pending:
            self._write(now)  # only a synced record frees the slots of released segments

    def _file(self) -> None:
        for key in self._segments.to_file():
            if len(self._filing) >= log_filing_max:
                return
            if not key[1]:
                self._file_claim(key[0])
                continue
            state = self._find(*key)
            assert state is not None, "an object that is not filed stays in memory"
            if state.is_filed:
                self.filed(key, state.filed)
            elif state.changing is None and (sync := state.filing_sync()) is not None:
                self._filing.add(key)
                self._order(sync)

    @property
    def wants_tick(self) -> bool:
        return any(one.unfiled for one in self._segments.live) or self._segments.may_free

    @property
    def is_due(self) -> bool:
        return bool(self._pending) and self._in_flight is None

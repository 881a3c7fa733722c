"""The group log as a part of the core: which bytes are logged, what a sync of the log acknowledges, and what
is filed.

    written    small, and everything below is covered: an entry for the next record. Else a sync of its own
    one record is written and synced at a time; meanwhile entries gather for the next one
    synced     the entries of the record are acknowledged, in the order of their writes
    filed      the oldest segment that takes no more records: each of its objects is synced in its own file

Claims, removals and replacements are entries, too: they happen after the sync of their record. What has no
room in the log goes the direct way, so nothing ever waits for the log to be filed.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from dos_protocol.digests import Buffer
from dos_server.core import vocabulary as v
from dos_server.core.group_log.record import HEADER_BYTES as RECORD_HEADER_BYTES
from dos_server.core.group_log.record import (
    EntryKind,
    LogEntry,
    LogPlace,
    encode_record,
    padded,
    record_bytes,
)
from dos_server.core.group_log.segments import Key, Segments
from dos_server.core.object_state import ObjectState
from dos_server.core.records import ClaimRecord, encode_claim
from dos_server.limits import (
    log_content_bytes_max,
    log_direct_seconds,
    log_entries_max,
    log_filing_max,
    log_idle_seconds,
    log_small_bytes_max,
)

Then = Callable[[], None]


class Pending(NamedTuple):
    """An entry that waits for a record. `then` is called when it is synced. `state`: the object whose bytes
    it has; None for other entries.
    """

    entry: LogEntry
    content: Buffer
    then: Then
    reserved: bool
    state: ObjectState | None = None


class LogStart(NamedTuple):
    """Where the log continues after its first record of this start."""

    segments: Segments
    start: int
    seed: int
    sequence: int
    digest: int


class GroupLog:
    """The log of one server. `settled` acknowledges an object up to a size; `gone` poisons one whose file was
    removed under the running server; `order` emits an effect.
    """

    def __init__(
        self,
        begin: LogStart,
        *,
        order: Callable[[v.Effect], None],
        settled: Callable[[ObjectState, int], None],
        gone: Callable[[ObjectState], None],
        find: Callable[[str, str], ObjectState | None],
        file_claim: Callable[[str], None],
    ) -> None:
        self._segments, self._start, self._seed, self._sequence, self._digest = begin
        self._before: list[bytes] = []
        self._order, self._settled, self._gone = order, settled, gone
        self._find, self._file_claim = find, file_claim
        self._pending: list[Pending] = []
        self._pending_bytes = 0
        self._in_flight: list[Pending] = []
        self._first_segment = 0
        """That the record in flight names."""
        self._used_at = 0.0
        self._filing: set[Key] = set()

    # Objects

    def takes(self, state: ObjectState, begin: int, count: int, now: float) -> bool:
        """Return whether bytes that are written at `begin` are logged. `count`: of their extents.

        Everything below them must be covered: the acknowledgement of bytes speaks for all below them. A
        large stream that is slow looks like small writes, so an object that was too large is direct for a
        while.
        """
        if begin != state.covered or now < state.direct_until:
            return False
        if count > log_small_bytes_max or state.written - state.synced > log_small_bytes_max:
            state.direct_until = now + log_direct_seconds
            return False
        return self._has_room(count)

    def add_extents(self, state: ObjectState, position: int, data: Buffer) -> None:
        """Log the bytes that were just written; `takes` has returned True."""
        kind = EntryKind.EXTENTS if len(data) else EntryKind.CREATED
        entry = LogEntry(
            kind,
            state.directory,
            state.name,
            state.root,
            position if len(data) else 0,
            state.written,
            len(data),
        )
        end = state.covered = state.written
        state.entry_covered = True
        self._add(entry, data, lambda: self._settled(state, end), state=state)

    def holds(self, key: Key) -> bool:
        """Return whether a start could replay an entry of this object, or of this directory's claim."""
        waits = any(
            (one.entry.directory, one.entry.name) == key for one in (*self._pending, *self._in_flight)
        )
        return waits or self._segments.may_hold(key)

    def remove(self, state: ObjectState, then: Then) -> bool:
        """Log a removal before its mark is written. False: there is no room now; try again later."""
        return self._add_bare(EntryKind.REMOVED, state, 0, 0, then)

    def replace(self, state: ObjectState, new_root: int, size: int, then: Then) -> bool:
        """Log a repair before it changes names. False: there is no room now."""
        return self._add_bare(EntryKind.REPLACED, state, new_root, size, then)

    def _add_bare(self, kind: EntryKind, state: ObjectState, position: int, end: int, then: Then) -> bool:
        if not self._has_room(0, reserved=True):
            return False
        self._add(
            LogEntry(kind, state.directory, state.name, state.root, position, end, 0),
            b"",
            then,
            reserved=True,
        )
        return True

    def claim(self, directory: str, claim: ClaimRecord, then: Then) -> bool:
        """Log a claim. False: there is no room now, so it is stored in its file."""
        data = encode_claim(claim)
        if not self._has_room(len(data), reserved=True):
            return False
        self._add(
            LogEntry(EntryKind.CLAIM, directory, "", 0, 0, claim.epoch, len(data)), data, then, reserved=True
        )
        return True

    def gone(self, key: Key) -> None:
        """Note that an object was removed durably."""
        self._segments.forget(key)

    def filed(self, key: Key, upto: int) -> None:
        """Note that an object is filed up to a size, or a claim up to an epoch."""
        self._segments.filed(key, upto)
        self._segments.release()
        if key in self._filing:
            self._filing.discard(key)
            self._file()

    # Records

    def _has_room(self, count: int, *, reserved: bool = False) -> bool:
        if len(self._pending) >= log_entries_max or self._pending_bytes + count > log_content_bytes_max:
            return False
        return self._segments.room(self._record_bytes(count), reserved=reserved)

    def _record_bytes(self, more: int) -> int:
        """Return an upper bound of the next record's size, with one more entry of `more` bytes."""
        entries = (len(self._pending) + 1 + len(self._in_flight or self._before)) * _ENTRY_BYTES_MAX
        return padded(RECORD_HEADER_BYTES + entries + self._pending_bytes + more)

    def _add(
        self,
        entry: LogEntry,
        content: Buffer,
        then: Then,
        *,
        reserved: bool = False,
        state: ObjectState | None = None,
    ) -> None:
        self._pending.append(Pending(entry, content, then, reserved, state))
        self._pending_bytes += len(content)

    def write_next(self, now: float) -> None:
        """Order the next record, if entries wait and none is being written. Called once for each event."""
        if not self.is_due:
            return
        self._segments.seal(now)
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        self._write(pending, now)

    def _write(self, pending: list[Pending], now: float) -> None:
        entries = [one.entry for one in pending]
        reserved = any(one.reserved for one in pending)
        size = record_bytes(entries, self._before)
        room = self._segments.place(size, self._sequence, now, reserved=reserved)
        for entry in entries:
            self._segments.holds((entry.directory, entry.name), entry.end)
        self._first_segment, first = self._segments.first_live(room.segment, self._sequence)
        place = LogPlace(self._start, room.segment, self._sequence, self._first_segment, first, self._digest)
        contents = [one.content for one in pending]
        record, header, self._before = encode_record(place, entries, contents, self._before, self._seed)
        self._sequence, self._digest, self._used_at = self._sequence + 1, header.digest, now
        self._in_flight = pending or [_NOTHING]
        seen = RECORD_HEADER_BYTES + header.table_bytes
        objects = [(one.entry.directory, one.entry.name) for one in pending if one.state is not None]
        self._order(v.WriteLog(room.slot, room.offset, record, seen, objects))

    def synced(self, gone: frozenset[Key]) -> None:
        """Handle the sync of the record in flight. The shell reports `LogDue` next, if entries wait. What was
        written to files that are `gone` is not acknowledged: nobody would find it by name.
        """
        done, self._in_flight = self._in_flight, []
        self._segments.synced(self._first_segment)
        for one in done:
            if one.state is not None and (one.entry.directory, one.entry.name) in gone:
                self._gone(one.state)
            else:
                one.then()

    # Filing

    def tick(self, now: float) -> None:
        """File what the oldest sealed segment has; when nothing was logged for a while, everything."""
        self._segments.seal(now, idle=now - self._used_at >= log_idle_seconds)
        self._file()
        if self._segments.may_free and not self._in_flight and not self._pending:
            self._write([], now)  # only a synced record frees the slots of released segments

    def _file(self) -> None:
        """Order syncs of what is to be filed, a few at a time: appends are waiting for the disk, too."""
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
            elif (sync := state.filing_sync()) is not None:
                self._filing.add(key)
                self._order(sync)

    @property
    def wants_tick(self) -> bool:
        """Whether something is to be filed or freed."""
        return any(one.unfiled for one in self._segments.live) or self._segments.may_free

    @property
    def is_due(self) -> bool:
        """Whether a record can be written now."""
        return bool(self._pending) and not self._in_flight


_ENTRY_BYTES_MAX: Final = 28 + 2 * 128
_NOTHING: Final = Pending(LogEntry(EntryKind.CREATED, "d", "o", 0, 0, 0, 0), b"", lambda: None, False)  # noqa: FBT003

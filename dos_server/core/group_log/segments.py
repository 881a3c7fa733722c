"""The segments of the group log: which slot the next record goes to, and when a slot may be written again.

    FREE -> ACTIVE -> SEALED -> FILED -> FREE

    ACTIVE   takes records; one at a time
    SEALED   takes none any more: no room, too old, or too many objects are unfiled
    FILED    everything in it is on stable storage elsewhere: objects, claims, marks
    FREE     a record that is synced names a first live segment above it. Only then is its slot overwritten:
             otherwise a crash could leave a log whose live part misses a segment.

An object is *filed* up to a size when its own file is synced up to it, name included. Segments are released
in order, so the live part of the log is always one range of sequences.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dos_server.limits import (
    log_age_seconds,
    log_align_bytes,
    log_live_segments_max,
    log_reserved_bytes,
    log_unfiled_max,
)

Key = tuple[str, str]
"""Directory and object; of a claim, directory and ""."""


class RecordRoom(NamedTuple):
    """Where the next record goes."""

    slot: int
    offset: int
    segment: int


@dataclass
class Segment:
    """A live segment. `unfiled`: up to which size each object must be filed before it is released."""

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
        """Whether a record of that size has a place. `reserved`: it may use the rest of a slot, which is kept
        for entries that cannot be written without the log.
        """
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
        """Note that the active segment has bytes of an object up to a size."""
        assert self._active is not None
        self._active.unfiled[key] = max(end, self._active.unfiled.get(key, 0))
        self._active.keys.add(key)

    def may_hold(self, key: Key) -> bool:
        """Return whether a start could replay an entry of this object."""
        return any(key in segment.keys for segment in (*self.live, *self._released))

    def forget(self, key: Key) -> None:
        """Note that an object is gone durably: nothing of it has to be filed."""
        for segment in self.live:
            segment.unfiled.pop(key, None)

    def filed(self, key: Key, upto: int) -> None:
        """Note that an object is filed up to a size."""
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
        """Return what of the oldest sealed segment is to be filed."""
        oldest = self.live[0] if self.live else None
        return tuple(oldest.unfiled) if oldest is not None and oldest is not self._active else ()

    def release(self) -> None:
        """Release the oldest segments that are filed completely. Their marks are on stable storage."""
        while self.live and self.live[0] is not self._active and not self.live[0].unfiled:
            self._released.append(self.live.popleft())

    @property
    def may_free(self) -> bool:
        """Whether slots are only waiting for a synced record."""
        return bool(self._released)

    def first_live(self, segment: int, sequence: int) -> tuple[int, int]:
        """Return where the live part begins: its segment and sequence, for a record that has these."""
        return (self.live[0].number, self.live[0].first_sequence) if self.live else (segment, sequence)

    def synced(self, first_segment: int) -> None:
        """Note that a record is synced that names this first live segment: earlier slots are free."""
        self._free.extend(one.slot for one in self._released if one.number < first_segment)
        self._released = [one for one in self._released if one.number >= first_segment]


__all__: Final = ["Key", "RecordRoom", "Segment", "Segments"]

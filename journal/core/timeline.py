"""Count records, bytes and events of a journal in intervals of time or of offset. Pure: no I/O.

The time comes from records that hold a wall clock (`CLOCKS`). Records between two of them are counted at the
first one. A journal without any is divided by offset. Memory does not grow with the journal: neighboring
intervals are merged when there are too many.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from journal.core.inspection import Located
from journal.core.record import Record
from journal.core.segment import parse_segment_name
from journal.limits import timeline_stretches_max
from journal.ops import Op

CLOCKS = {
    Op.MARK: 0,
    Op.DIVISION: 1,
    Op.OUTPUT: 1,
    Op.INPUT: 5,
    Op.INPUT_CLOSED: 0,
    Op.CONSUMERS: 0,
    Op.INPUT_MARK: 6,
    Op.DEPLOYMENT: 0,
    Op.REPORT: 0,
}
"""Operation -> the index of the int that holds the wall clock, in ms since 1970."""
_CHECKPOINT_CLOCK = re.compile(rb'"wall_time_ms":(\d{1,18})\b')
"""The wall clock in the JSON of a checkpoint record."""
EVENTS = {
    Op.SEGMENT_START: "segments",
    Op.CHECKPOINT: "checkpoints",
    Op.DIVISION: "steps",
    Op.SNAPSHOT_END: "snapshots",
}
"""Operation -> the name of the event that it counts as."""


@dataclass(slots=True)
class TimelineInterval:
    """The counts of one interval. `begin` is in ms since 1970, or a logical offset. `offset`: the logical
    offset of its first record; -1 without one.
    """

    begin: int
    records: int = 0
    bytes: int = 0
    events: Counter[str] = field(default_factory=Counter)
    offset: int = -1

    def take(self, other: "TimelineInterval") -> None:
        """Add the counts of another interval to this one."""
        self.records += other.records
        self.bytes += other.bytes
        self.events += other.events
        if other.offset >= 0 and not 0 <= self.offset <= other.offset:
            self.offset = other.offset


class Timeline:
    """The counts of a journal, fed with its records in order. `by_time`: whether intervals are of time."""

    def __init__(self) -> None:
        self._by_time = _Stretches(1000)
        self._by_offset = _Stretches(4096)
        self._now_ms: int | None = None
        self._before_any: TimelineInterval = TimelineInterval(0)
        self._epoch: int | None = None

    def take(self, located: Located) -> None:
        """Count the next record."""
        clock = wall_ms(located.record)
        if clock is not None:
            self._now_ms = clock
        one = TimelineInterval(0, 1, located.end - located.offset, offset=located.offset)
        if (event := EVENTS.get(located.record.op)) is not None:
            one.events[event] += 1
        if located.record.op is Op.SEGMENT_START and self._is_another_writers(located.segment):
            one.events["resets"] += 1
        self._by_offset.add(located.offset, one)
        if self._now_ms is None:
            self._before_any.take(one)
        else:
            self._by_time.add(self._now_ms, one)

    def _is_another_writers(self, segment: str) -> bool:
        """Return whether the segment's epoch differs from the one before: the chain was taken over there."""
        name = parse_segment_name(segment)
        before, self._epoch = self._epoch, None if name is None else name.epoch
        return before is not None and self._epoch is not None and before != self._epoch

    @property
    def by_time(self) -> bool:
        return self._now_ms is not None

    def stretches(self, count: int) -> list[TimelineInterval]:
        """Return at most `count` intervals of equal length, including empty ones.

        The first interval holds the first record.
        """
        if not self.by_time:
            return self._by_offset.equal(count)
        found = self._by_time.equal(count)
        found[0].take(self._before_any)
        return found


class _Stretches:
    """Neighboring intervals of one width, which doubles when there are too many."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._found: dict[int, TimelineInterval] = {}

    def add(self, at: int, one: TimelineInterval) -> None:
        number = at // self._width
        into = self._found.get(number)
        if into is None:
            into = self._found[number] = TimelineInterval(number * self._width)
            into.take(one)
            while len(self._found) > timeline_stretches_max:
                self._widen(2)
            return
        into.take(one)

    def _widen(self, factor: int) -> None:
        self._width *= factor
        before, self._found = self._found, {}
        for stretch in before.values():
            number = stretch.begin // self._width
            into = self._found.setdefault(number, TimelineInterval(number * self._width))
            into.take(stretch)

    def equal(self, count: int) -> list[TimelineInterval]:
        if not self._found:
            return []
        first, last = min(self._found), max(self._found)
        per = -(-(last - first + 1) // count)
        found = [TimelineInterval((first + n) * self._width) for n in range(0, last - first + 1, per)]
        for number, stretch in self._found.items():
            found[(number - first) // per].take(stretch)
        return found


def wall_ms(record: Record) -> int | None:
    """Return the wall clock in a record, in ms since 1970, or None."""
    if record.op is Op.CHECKPOINT and record.strings:
        found = _CHECKPOINT_CLOCK.search(record.strings[0])
        return int(found[1]) if found is not None else None
    index = CLOCKS.get(record.op)
    return record.ints[index] if index is not None and index < len(record.ints) else None

"""Watermarks: how far event time is on a stream, and how watermarks of several streams combine. Pure.

A watermark (a punctuation in replication-transparency IV-A) is a number of microseconds since 1970. Every
later row of the stream has a larger event time. UNKNOWN: nothing is promised yet. IDLE: the stream is ignored
and delays no other stream. END: no rows follow.

A source promises lateness for each of its splits, not for the order in which a worker reads them. So each
split has its own watermark, and that of the source is the minimum over the splits that count (decision 0190).
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

Watermark: TypeAlias = int

UNKNOWN: Final[Watermark] = -(2**63)
IDLE: Final[Watermark] = -(2**63) + 1
END: Final[Watermark] = 2**63 - 1
FIRST_TIME: Final = -62_135_596_800_000_000
LAST_TIME: Final = 253_402_300_799_999_999
"""The times of rows are in the years 1 to 9999, which `datetime` can hold. In microseconds since 1970."""
_BEGIN: Final = -(2**63) + 2
_WIRE: Final = struct.Struct(">q")


def combined(watermarks: Iterable[Watermark]) -> Watermark:
    """Return the combined watermark of several streams: what all promise. Rows of IDLE streams may be late
    then.
    """
    active = [watermark for watermark in watermarks if watermark != IDLE]
    return min(active) if active else IDLE


def is_time(watermark: Watermark) -> bool:
    """Whether the watermark is a time, not one of the three special values."""
    return _BEGIN <= watermark < END


def further(before: Watermark, watermark: Watermark) -> Watermark:
    """Return the larger of the two: a watermark never decreases."""
    return max(before, watermark) if watermark >= _BEGIN else before


def behind(time: int, lateness: int) -> Watermark:
    """Return the watermark if rows are at most `lateness` behind `time`, the largest time seen."""
    return max(time - lateness - 1, _BEGIN)


def held_back(watermark: Watermark, lag: int) -> Watermark:
    """Return the watermark for times that may be `lag` microseconds behind it."""
    return watermark if watermark < _BEGIN or watermark == END else max(watermark - lag, _BEGIN)


def encode_watermark(watermark: Watermark) -> bytes:
    """Return the payload of a WATERMARK frame: 8 bytes, big-endian, signed."""
    return _WIRE.pack(watermark)


def decode_watermark(payload: bytes | bytearray | memoryview) -> Watermark:
    """Return the watermark in a payload. Raises ValueError."""
    if len(payload) != _WIRE.size:
        raise ValueError(f"a WATERMARK frame carries {_WIRE.size} bytes, not {len(payload)}")
    (watermark,) = _WIRE.unpack(payload)
    return int(watermark)


class SourceTime(NamedTuple):
    """One source at the end of a step as this worker knows it: which splits hold the watermark back."""

    at_end: bool = False
    """Every split is read to its end, and no other will follow."""
    is_known: bool = True
    """Whether the splits are known. False: any split may have rows of any time."""
    unbegun: bool = False
    """Whether there are splits, not listed here, of which nothing was read."""
    behind: Collection[str] = ()
    """Splits with rows that wait to be read."""
    caught_up: Collection[str] = ()
    """Splits without waiting rows."""
    caught_up_holds: bool = True
    """Whether such splits hold the watermark back even without `idle_after`."""
    is_read_here: bool = True
    """Whether this worker reads any split of the source, now or later."""


class HeldWatermark(NamedTuple):
    """The watermark of a source, or of an `event_time`, at the end of a step, and what holds it there."""

    watermark: Watermark
    source: str = ""
    split: str = ""
    """The split that holds it; "" if no single one does."""
    why: str = ""

    def text(self) -> str:
        """Return in words what holds the watermark; "" if nothing does."""
        split = f"split {self.split!r} of " if self.split else ""
        return f"{split}source {self.source!r}: {self.why}" if self.why else ""


_UNLISTED: Final = "its splits are not listed yet"
_UNBEGUN: Final = "it has splits of which nothing was read"
_UNREAD: Final = "nothing of it was read"
_NO_PROMISE: Final = "its rows have promised no time yet"
_NO_ROWS: Final = (
    "it was read, but none of its rows reached event_time: a filter or function above drops them, and more of"
    " them wait to be read; put event_time above the filter"
)
_NEWEST: Final = "its last row that reached event_time is the oldest of all splits"
_UNMARKED: Final = "an entry point has not marked each of its origins yet"
_MARK: Final = "its last mark is the oldest of all origins"


def _why(watermarks: tuple[Watermark, Watermark] | None) -> str:
    if watermarks is None:
        return _UNREAD
    if watermarks[0] == IDLE:
        return _NO_ROWS
    return _NEWEST if is_time(watermarks[0]) else _NO_PROMISE


def least(held: Iterable[HeldWatermark]) -> HeldWatermark:
    """Return the watermark of several sources together, as `combined`, and what holds it."""
    active = [one for one in held if one.watermark != IDLE]
    return min(active, key=lambda one: one.watermark) if active else HeldWatermark(IDLE)


class SplitWatermarks:
    """The watermark of each split of the sources above one `event_time` operator.

    Invariant: `reached` of a split never decreases while the split is known, except from IDLE with its first
    row.
    """

    # Rows of one unit (a batch of a producer) have no order, so a split's watermark advances when its unit
    # ends. A split of which no row reached the operator is IDLE: it holds the others back only while more of
    # its rows wait.
    def __init__(self) -> None:
        self._watermarks: dict[str, dict[str, tuple[Watermark, Watermark]]] = {}
        """Source -> split -> (its watermark, its watermark after the unit that is being read)."""
        self._newest: dict[str, Watermark] = {}
        """Source -> the largest watermark that any of its splits reached."""
        self._arrived: set[tuple[str, str]] = set()
        """(source, split) of which rows reached the operator in this step."""
        self._quiet_since: dict[str, dict[str, float]] = {}
        """Source -> split -> since when no row of it has reached the operator."""
        self._awaited: dict[str, list[float]] = {}
        """Source -> since when each split is silent that will be ignored if it stays so."""
        self.waits_for: dict[str, set[str]] = {}
        """Source -> splits that may hold its watermark only because more of their rows wait."""
        self.empty_holds = False
        """Whether a split holds the others back also while it was read and none of its rows arrived."""

    def read(self, source: str, split: str) -> None:
        """Note that rows of a split were read, whether or not they reach the operator."""
        self._watermarks.setdefault(source, {}).setdefault(split, (UNKNOWN, IDLE))

    def saw(self, source: str, split: str, watermark: Watermark) -> None:
        """Note that rows of a split arrived. They promise `watermark` when their unit ends."""
        splits = self._watermarks.setdefault(source, {})
        promised, coming = splits.get(split, (UNKNOWN, IDLE))
        splits[split] = promised, watermark if coming == IDLE else max(coming, watermark)
        self._arrived.add((source, split))

    def unit_ended(self, source: str, split: str) -> None:
        """Note that only whole units of the split were read."""
        splits = self._watermarks.get(source, {})
        if split in splits:
            coming = splits[split][1]
            splits[split] = coming, coming
            if is_time(coming):
                self._newest[source] = max(coming, self._newest.get(source, UNKNOWN))

    def highest(self) -> Watermark:
        """Return the largest watermark that rows promise, also of a unit that has not ended, or UNKNOWN."""
        coming = [coming for splits in self._watermarks.values() for _, coming in splits.values()]
        return max(coming, default=UNKNOWN)

    def reached(self, source: str, split: str) -> Watermark:
        """Return the watermark of a split; UNKNOWN if none of its rows promises one."""
        promised = self._watermarks.get(source, {}).get(split, (UNKNOWN, UNKNOWN))[0]
        return UNKNOWN if promised == IDLE else promised

    def of_source(
        self, source: str, now: SourceTime, *, seconds: float = 0.0, idle_after_s: float | None = None
    ) -> HeldWatermark:
        """Return the watermark of the source at the end of a step; forget exhausted splits. seconds: of a
        monotonic clock. idle_after_s: after so long without a row, a split that was read to its end is
        ignored.
        """
        if now.at_end:
            for of_splits in (self._watermarks, self._quiet_since, self._awaited, self.waits_for):
                of_splits.pop(source, None)
            return HeldWatermark(END)
        if not now.is_known:
            return HeldWatermark(UNKNOWN, source, why=_UNLISTED)
        counts = now.caught_up_holds or idle_after_s is not None
        remembered = {*now.behind, *(now.caught_up if counts else ())}
        splits = self._watermarks.get(source, {})
        for split in [split for split in splits if split not in remembered]:
            del splits[split]
        holding = [*now.behind]
        if counts:
            ignored = self._silent(source, now, seconds, idle_after_s)
            if not self.empty_holds:
                ignored |= {split for split, at in splits.items() if at[0] == IDLE}
            holding += [split for split in now.caught_up if split not in ignored]
            self.waits_for[source] = {
                split for split in now.behind if split in ignored or idle_after_s is not None
            }
        if now.unbegun:
            return HeldWatermark(UNKNOWN, source, why=_UNBEGUN)
        if holding:
            split = min(holding, key=lambda split: self.reached(source, split))
            return HeldWatermark(self.reached(source, split), source, split, _why(splits.get(split)))
        return HeldWatermark(IDLE if counts else self._newest.get(source, IDLE))

    def _silent(self, source: str, now: SourceTime, seconds: float, idle_after_s: float | None) -> set[str]:
        """Return the splits of which no row has arrived for long."""
        if idle_after_s is None:
            return set()
        before = self._quiet_since.get(source, {})
        since = {
            split: seconds if (source, split) in self._arrived else before.get(split, seconds)
            for split in (*now.behind, *now.caught_up)
        }
        silent = {split for split, at in since.items() if seconds - at >= idle_after_s}
        self._quiet_since[source] = since
        self._awaited[source] = [since[split] for split in now.caught_up if split not in silent]
        return silent

    def silent_in(self, seconds: float, idle_after_s: float) -> float | None:
        """Return the seconds until the next silent split is to be ignored, None if there is none."""
        since = [at for of_source in self._awaited.values() for at in of_source]
        return max(0.0, min(since) + idle_after_s - seconds) if since else None

    def step_over(self) -> None:
        self._arrived.clear()

    def stored(self) -> dict[str, tuple[Watermark, Watermark]]:
        """Return what a checkpoint holds: SOURCE/SPLIT -> its two watermarks; SOURCE/ -> the largest."""
        watermarks_by_split = {
            f"{source}/{split}": watermarks
            for source, splits in self._watermarks.items()
            for split, watermarks in splits.items()
        }
        return watermarks_by_split | {
            f"{source}/": (watermark, watermark) for source, watermark in self._newest.items()
        }

    def restore(self, stored: Mapping[str, tuple[Watermark, Watermark]]) -> None:
        self._watermarks, self._newest = {}, {}
        for name, watermarks in stored.items():
            source, _, split = name.partition("/")
            if split:
                self._watermarks.setdefault(source, {})[split] = watermarks
            else:
                self._newest[source] = watermarks[0]


class InputMarks(SplitWatermarks):
    """The watermark of sources that entry points mark (`checkpoint/core/records/inputs.py`): a split is an
    origin, and the pair that it stores is its mark and its number. It is the least mark of the origins 1 to
    N, where N is the newest version of the origin list in any mark that was read; it waits for one without a
    mark.
    """

    def marked(self, source: str, split: str, mark: Watermark, *, origin: int, version: int) -> None:
        """Note a mark that was read: all rows of its split that are read later are above it."""
        self._watermarks.setdefault(source, {})[split] = mark, origin
        self._newest[source] = max(version, self._newest.get(source, 0))

    def read(self, source: str, split: str) -> None:
        """Do nothing: a mark says how far a split is."""

    def saw(self, source: str, split: str, watermark: Watermark) -> None:
        """Do nothing: times of rows promise nothing here."""

    def unit_ended(self, source: str, split: str) -> None:
        """Do nothing: a mark lies between batches."""

    def of_source(
        self,
        source: str,
        now: SourceTime,
        *,
        seconds: float = 0.0,
        idle_after_s: float | None = None,
    ) -> HeldWatermark:
        """Return the input mark of a source; UNKNOWN while it does not advance."""
        del seconds, idle_after_s
        if now.at_end:
            self._watermarks.pop(source, None)
            return HeldWatermark(END)
        if not now.is_read_here:  # another worker reads all of it: what a former layout left here is old
            self._watermarks.pop(source, None)
            self._newest.pop(source, None)
            return HeldWatermark(IDLE)
        version = self._newest.get(source, 0)
        marks = {
            split: mark
            for split, (mark, origin) in self._watermarks.get(source, {}).items()
            if origin <= version
        }
        if not version or len(marks) != version:
            return HeldWatermark(UNKNOWN, source, why=_UNMARKED)
        split = min(marks, key=marks.__getitem__)
        return HeldWatermark(marks[split], source, split, _MARK)

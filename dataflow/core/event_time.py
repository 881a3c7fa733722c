"""Watermarks: how far event time is on a stream, and how watermarks of several streams combine. Pure.

A watermark (a punctuation in replication-transparency IV-A) is a number of microseconds since 1970. Every
later row of the stream has a larger event time. Three values are special:

    value     meaning
    UNKNOWN   nothing is promised yet
    IDLE      the stream is ignored and delays no other stream
    END       no rows follow

A source promises lateness for each of its splits, not for the order in which a worker reads them. So each
split has its own watermark, and the watermark of the source is the minimum over the splits that count
(docs/decisions/0190).
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
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
    """Return the combined watermark of several streams: what all of them promise.

    IDLE streams are ignored. Their rows may arrive below the combined watermark, and are late then.
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
    """Return the payload of a PUNCTUATION frame: 8 bytes, big-endian, signed."""
    return _WIRE.pack(watermark)


def decode_watermark(payload: bytes | bytearray | memoryview) -> Watermark:
    """Return the watermark in a payload. Raises ValueError."""
    if len(payload) != _WIRE.size:
        raise ValueError(f"a PUNCTUATION frame carries {_WIRE.size} bytes, not {len(payload)}")
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
    caught_up: Mapping[str, float] = MappingProxyType({})
    """Splits without waiting rows -> for how many seconds."""
    caught_up_holds: bool = True
    """Whether such splits hold the watermark back even without `idle_after`."""
    is_read_here: bool = True
    """Whether this worker reads any split of the source, now or later."""


class SplitWatermarks:
    """The watermark of each split of the sources above one `event_time` operator.

    Rows of one unit (a batch of a producer) have no order, so a split's watermark advances when its unit
    ends. Invariant: `reached` of a split never decreases while the split is known.
    """

    def __init__(self) -> None:
        self._watermarks: dict[str, dict[str, tuple[Watermark, Watermark]]] = {}
        """Source -> split -> (its watermark, its watermark after the unit that is being read)."""
        self._newest: dict[str, Watermark] = {}
        """Source -> the largest watermark that any of its splits reached."""

    def saw(self, source: str, split: str, watermark: Watermark) -> None:
        """Note that rows of a split were read. They promise `watermark` when their unit ends."""
        splits = self._watermarks.setdefault(source, {})
        promised, coming = splits.get(split, (UNKNOWN, UNKNOWN))
        splits[split] = promised, max(coming, watermark)

    def unit_ended(self, source: str, split: str) -> None:
        """Note that only whole units of the split were read."""
        splits = self._watermarks.get(source, {})
        if split in splits:
            coming = splits[split][1]
            splits[split] = coming, coming
            self._newest[source] = max(coming, self._newest.get(source, UNKNOWN))

    def reached(self, source: str, split: str) -> Watermark:
        """Return the watermark of a split, UNKNOWN if it yielded no row."""
        return self._watermarks.get(source, {}).get(split, (UNKNOWN, UNKNOWN))[0]

    def newest(self, source: str) -> Watermark:
        """Return the largest watermark of any split that the source ever had."""
        return self._newest.get(source, UNKNOWN)

    def of_source(self, source: str, now: SourceTime, idle_after_s: float | None) -> Watermark:
        """Return the watermark of the source at the end of a step. Exhausted splits are forgotten.

        idle_after_s: a split without waiting rows for this long is ignored until it yields rows again.
        """
        if now.at_end:
            self._watermarks.pop(source, None)
            return END
        if not now.is_known:
            return UNKNOWN
        counts = now.caught_up_holds or idle_after_s is not None
        remembered = {*now.behind, *(now.caught_up if counts else ())}
        splits = self._watermarks.get(source, {})
        for split in [split for split in splits if split not in remembered]:
            del splits[split]
        holding = [*now.behind]
        if counts:
            quiet = now.caught_up.items()
            holding += [split for split, s in quiet if idle_after_s is None or s < idle_after_s]
        if now.unbegun:
            return UNKNOWN
        if holding:
            return min(self.reached(source, split) for split in holding)
        return IDLE if counts else self._newest.get(source, IDLE)

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
        """Restore what `stored` returned."""
        self._watermarks, self._newest = {}, {}
        for name, watermarks in stored.items():
            source, _, split = name.partition("/")
            if split:
                self._watermarks.setdefault(source, {})[split] = watermarks
            else:
                self._newest[source] = watermarks[0]


class InputMarks(SplitWatermarks):
    """The watermark of sources that entry points mark (`checkpoint/core/entry.py`), instead of one that
    follows from rows: a split is an origin, and the pair that it stores is its mark and its number.

    The watermark is the least mark of the origins 1 to N, where N is the newest version of the origin list in
    any mark that was read. While one of them has no mark, the watermark does not advance.
    """

    def marked(self, source: str, split: str, mark: Watermark, *, origin: int, version: int) -> None:
        """Note a mark that was read: all rows of its split that are read later are above it."""
        self._watermarks.setdefault(source, {})[split] = mark, origin
        self._newest[source] = max(version, self._newest.get(source, 0))

    def saw(self, source: str, split: str, watermark: Watermark) -> None:
        """Do nothing: times of rows promise nothing here."""

    def unit_ended(self, source: str, split: str) -> None:
        """Do nothing: a mark lies between batches."""

    def of_source(self, source: str, now: SourceTime, idle_after_s: float | None) -> Watermark:
        """Return the input mark of a source; UNKNOWN while it does not advance."""
        del idle_after_s
        if now.at_end:
            self._watermarks.pop(source, None)
            return END
        if not now.is_read_here:  # another worker reads all of it: what a former layout left here is old
            self._watermarks.pop(source, None)
            self._newest.pop(source, None)
            return IDLE
        version = self._newest.get(source, 0)
        marks = [mark for mark, origin in self._watermarks.get(source, {}).values() if origin <= version]
        return min(marks) if version and len(marks) == version else UNKNOWN

"""How far event time is on a stream: marks, what they promise, and how those of several streams are one.

Rules of this file: numbers and names of splits. A *mark* is a punctuation (replication-transparency IV-A):
microseconds since 1970; every later row of the stream has a larger event time. Three marks stand apart:
`UNKNOWN` promises nothing yet; `IDLE` is that of a stream that does not count, and holds nobody up; after
`END` nothing comes at all.

A source promises lateness for each of its splits, not for the order in which a worker reads them. So each
split has a watermark of its own, and that of the source is the least over the splits that still count
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
_BEGIN: Final = -(2**63) + 2
_WIRE: Final = struct.Struct(">q")


def together(watermarks: Iterable[Watermark]) -> Watermark:
    """The mark of several streams as one: what all of them promise. Streams on which nothing ever came do
    not count; they may yet break what is promised without them, and their rows are late then.
    """
    heard = [watermark for watermark in watermarks if watermark != IDLE]
    return min(heard) if heard else IDLE


def is_time(watermark: Watermark) -> bool:
    """Whether it is a time, and none of the three that stand apart."""
    return _BEGIN <= watermark < END


def further(before: Watermark, watermark: Watermark) -> Watermark:
    """A promise that was given stays given."""
    return max(before, watermark) if watermark >= _BEGIN else before


def behind(time: int, lateness: int) -> Watermark:
    """The mark when rows come at most `lateness` behind the largest time seen, which is `time`."""
    return max(time - lateness - 1, _BEGIN)


def held_back(watermark: Watermark, lag: int) -> Watermark:
    """What a mark promises of times that may be `lag` microseconds behind it."""
    return watermark if watermark < _BEGIN or watermark == END else max(watermark - lag, _BEGIN)


def encode_watermark(watermark: Watermark) -> bytes:
    """The payload of a PUNCTUATION frame: 8 bytes, big-endian, signed."""
    return _WIRE.pack(watermark)


def decode_watermark(payload: bytes | bytearray | memoryview) -> Watermark:
    """The mark in a payload. Raises ValueError."""
    if len(payload) != _WIRE.size:
        raise ValueError(f"a PUNCTUATION frame carries {_WIRE.size} bytes, not {len(payload)}")
    (watermark,) = _WIRE.unpack(payload)
    return int(watermark)


class SourceTime(NamedTuple):
    """What a worker knows of one source at the end of a step: which of its splits hold event time back."""

    at_end: bool = False
    """Every split is read to its end, and no other will come."""
    is_known: bool = True
    """Whether the splits are known. False: any split may have rows of any time."""
    unbegun: bool = False
    """Whether there are splits, not named here, of which nothing was read."""
    behind: Collection[str] = ()
    """Splits with rows that wait to be read."""
    caught_up: Mapping[str, float] = MappingProxyType({})
    """Splits of which nothing waits at present, and for how many seconds."""
    caught_up_holds: bool = True
    """Whether such splits hold event time back although no `idle_after` was given."""


class SplitWatermarks:
    """The watermark of each split of the sources above one `event_time` operator.

    Rows of one unit (a batch of a producer) have no order: a split's watermark moves when its unit ends.
    Invariant: `reached` of a split never decreases while the split is known.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, tuple[Watermark, Watermark]]] = {}
        """Source -> split -> (its watermark, its watermark when the unit that is being read has ended)."""
        self._newest: dict[str, Watermark] = {}
        """Source -> the largest watermark that any of its splits reached."""

    def saw(self, source: str, split: str, watermark: Watermark) -> None:
        """Rows of a split were read. They promise `watermark` once their unit has ended."""
        splits = self._seen.setdefault(source, {})
        promised, coming = splits.get(split, (UNKNOWN, UNKNOWN))
        splits[split] = promised, max(coming, watermark)

    def unit_ended(self, source: str, split: str) -> None:
        """All that was read of the split is whole units."""
        splits = self._seen.get(source, {})
        if split in splits:
            coming = splits[split][1]
            splits[split] = coming, coming
            self._newest[source] = max(coming, self._newest.get(source, UNKNOWN))

    def reached(self, source: str, split: str) -> Watermark:
        """The watermark of a split, UNKNOWN if it has given no row."""
        return self._seen.get(source, {}).get(split, (UNKNOWN, UNKNOWN))[0]

    def newest(self, source: str) -> Watermark:
        """The largest watermark of any split that the source ever had."""
        return self._newest.get(source, UNKNOWN)

    def of_source(self, source: str, now: SourceTime, idle_after_s: float | None) -> Watermark:
        """The watermark of the source at the end of a step. Splits that are exhausted are forgotten.

        idle_after_s: a split of which nothing waited for so long does not count until it gives rows again.
        """
        if now.at_end:
            self._seen.pop(source, None)
            return END
        if not now.is_known:
            return UNKNOWN
        counts = now.caught_up_holds or idle_after_s is not None
        remembered = {*now.behind, *(now.caught_up if counts else ())}
        splits = self._seen.get(source, {})
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
        """What a checkpoint holds: SOURCE/SPLIT -> its two watermarks; SOURCE/ -> the largest."""
        held = {
            f"{source}/{split}": watermarks
            for source, splits in self._seen.items()
            for split, watermarks in splits.items()
        }
        return held | {f"{source}/": (watermark, watermark) for source, watermark in self._newest.items()}

    def restore(self, stored: Mapping[str, tuple[Watermark, Watermark]]) -> None:
        """Take what `stored` gave."""
        self._seen, self._newest = {}, {}
        for name, watermarks in stored.items():
            source, _, split = name.partition("/")
            if split:
                self._seen.setdefault(source, {})[split] = watermarks
            else:
                self._newest[source] = watermarks[0]

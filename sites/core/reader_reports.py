"""What a reader reports, from the counters of its sources and sinks. Pure.

`dataflow/merging` counts by source: `mark_us` of what was passed on, and for each site `SITE.first`,
`SITE.bytes`, `SITE.whole`, `SITE.mark_us`, `SITE.moved_ms_ago`, and `SITE.rank_N`, the rows that it gave as
the N-th since it was started. An input handle counts `mark_us`, which `input_counters` gives the same names:
the entry log is one stream, and whole for all who read it.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Final, NamedTuple

from sites.core.deployment import RegionReplica
from sites.core.observed import StreamReport

_BYTES: Final = ".bytes"
_END: Final = 1 << 61
"""Marks from there on say that there are no more rows."""


class SourceCounters(NamedTuple):
    """The counters of one source, which reads the replicas of a region, or an input handle."""

    sender: str
    counters: Mapping[str, int]


def input_counters(handle: RegionReplica, mark: int | None) -> SourceCounters:
    """Return the counters of an input handle that was read up to a mark, None before the first."""
    if mark is None:
        return SourceCounters(handle.node, {f"{handle.site}.whole": 0})
    counters = {"mark_us": mark, f"{handle.site}.mark_us": mark, f"{handle.site}.whole": 1}
    return SourceCounters(handle.node, counters)


class ReaderMeter:
    """Turns the counters of one reader into reports. They count up, and begin anew when the reader is
    started.
    """

    def __init__(self) -> None:
        self._before: dict[RegionReplica, tuple[int, ...]] = {}
        self._risen: dict[RegionReplica | None, tuple[int, float]] = {}
        """Sender -> its mark, and since when it has it; None: the reader itself."""
        self.mark: int | None = None
        """Up to which time the reader has given all rows."""

    def note(self, sources: Iterable[SourceCounters], given: Iterable[int | None], now_s: float) -> None:
        """Note how far everything is. given: the marks of what it gives; none: what it has read counts.
        now_s: of a monotonic clock. Call it often: it sees when marks rise.
        """
        marks = [*given] or [one.counters.get("mark_us") for one in sources]
        known = [mark for mark in marks if mark is not None]
        self.mark = min(known) if known and len(known) == len(marks) else None
        self._note(None, self.mark, now_s)
        for source in sources:
            for site in _sites_in(source.counters):
                mark = source.counters.get(f"{site}.mark_us")
                self._note(RegionReplica(source.sender, site), mark, now_s)

    def _note(self, sender: RegionReplica | None, mark: int | None, now_s: float) -> None:
        if mark is not None and (sender not in self._risen or mark > self._risen[sender][0]):
            self._risen[sender] = mark, now_s

    def moved_s(self, now_s: float, sender: RegionReplica | None = None) -> float | None:
        """Return for how long a mark stands, that of the reader if no sender is named; None before it has
        one.
        """
        return now_s - self._risen[sender][1] if sender in self._risen else None

    def time_us(self, now_s: float) -> int:
        """Return a time that has passed: marks are times of entry points, whose clocks are compared with each
        other, so a clock that is behind one is wrong. 0 before the first mark.
        """
        times = [mark + round(1e6 * (now_s - at_s)) for mark, at_s in self._risen.values() if mark < _END]
        return max(times, default=0)

    def streams(self, sources: Iterable[SourceCounters], now_us: int, now_s: float) -> list[StreamReport]:
        """Return a report of each stream. now_us: wall clock; `late_s` is how far the mark is behind it."""
        return [
            self._stream(RegionReplica(source.sender, site), source.counters, now_us, now_s)
            for source in sources
            for site in _sites_in(source.counters)
        ]

    def _stream(
        self, sender: RegionReplica, counters: Mapping[str, int], now_us: int, now_s: float
    ) -> StreamReport:
        def of_site(name: str) -> int | None:
            return counters.get(f"{sender.site}.{name}")

        mark = of_site("mark_us")
        ranks = tuple(
            counters[name]
            for number in range(1, len(counters))
            if (name := f"{sender.site}.rank_{number}") in counters
        )
        before = self._before.get(sender, ())
        self._before[sender] = ranks
        return StreamReport(
            sender=sender,
            ranks=_since(before, ranks),
            mark=mark,
            moved_s=self.moved_s(now_s, sender),
            late_s=None if mark is None else max(0.0, (now_us - mark) / 1e6),
            whole=bool(of_site("whole")),
        )


def bytes_of(sources: Iterable[SourceCounters]) -> dict[RegionReplica, int]:
    """Return the bytes that were read of each replica."""
    return {
        RegionReplica(source.sender, name.removesuffix(_BYTES)): count
        for source in sources
        for name, count in source.counters.items()
        if name.endswith(_BYTES)
    }


def _sites_in(counters: Mapping[str, int]) -> list[str]:
    return sorted({name.partition(".")[0] for name in counters if "." in name})


def _since(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(zip_longest(now, before, fillvalue=0))
    begun_anew = any(new < old for new, old in pairs)
    return now if begun_anew else tuple(new - old for new, old in pairs)

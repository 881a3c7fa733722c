"""What the reader of replicas reports, from the counters of its merged sources. Pure.

`dataflow/merging` counts by source: `mark_us` of what was passed on, and for each site `SITE.first`,
`SITE.bytes`, `SITE.whole`, `SITE.mark_us`, `SITE.moved_ms_ago`, and `SITE.rank_N`, the rows that it gave as
the N-th since it was started.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Final, NamedTuple

from sites.core.deployment import RegionReplica
from sites.core.observed import StreamReport

_BYTES: Final = ".bytes"


class SourceCounters(NamedTuple):
    """The counters of one merged source, which reads the replicas of a region."""

    sender: str
    counters: Mapping[str, int]


class ReaderMeter:
    """Turns the counters of one reader into reports. They count up, and begin anew when the reader is
    started.
    """

    def __init__(self) -> None:
        self._before: dict[RegionReplica, tuple[int, ...]] = {}

    def streams(self, sources: tuple[SourceCounters, ...], now_us: int) -> list[StreamReport]:
        """Return a report of each stream. now_us: wall clock; `late_s` is how far the mark is behind it."""
        return [
            self._stream(RegionReplica(source.sender, site), source.counters, now_us)
            for source in sources
            for site in sorted({name.partition(".")[0] for name in source.counters if "." in name})
        ]

    def _stream(self, sender: RegionReplica, counters: Mapping[str, int], now_us: int) -> StreamReport:
        def of_site(name: str) -> int | None:
            return counters.get(f"{sender.site}.{name}")

        mark, moved_ms = of_site("mark_us"), of_site("moved_ms_ago")
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
            moved_s=None if moved_ms is None else moved_ms / 1000,
            late_s=None if mark is None else max(0.0, (now_us - mark) / 1e6),
            whole=bool(of_site("whole")),
        )


def bytes_of(sources: tuple[SourceCounters, ...]) -> dict[RegionReplica, int]:
    """Return the bytes that were read of each replica."""
    return {
        RegionReplica(source.sender, name.removesuffix(_BYTES)): count
        for source in sources
        for name, count in source.counters.items()
        if name.endswith(_BYTES)
    }


def passed_mark(sources: tuple[SourceCounters, ...]) -> tuple[int | None, float | None]:
    """Return the mark up to which a reader has passed on all ports, and the seconds since it has risen: those
    of the latest port.
    """
    marks = [source.counters.get("mark_us") for source in sources]
    known = [mark for mark in marks if mark is not None]
    if not known or len(known) < len(marks):
        return None, None
    moved = [
        min((value for name, value in source.counters.items() if name.endswith(".moved_ms_ago")), default=0)
        for source in sources
    ]
    return min(known), max(moved) / 1000


def _since(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    pairs = list(zip_longest(now, before, fillvalue=0))
    begun_anew = any(new < old for new, old in pairs)
    return now if begun_anew else tuple(new - old for new, old in pairs)

"""What is known of a deployment at one time, from the reports of its readers and sites, and what these
measure. Pure.

Each reader (a replica of a region, or an exit) reports on every stream that it reads, and each site on the
replicas that it runs, every `REPORT_S`. A report replaces the one before. Readers also measure the rate of
what they read and the load of their workers, and the process at each site the network to the other sites and
the load of other programs: they stand in place of the numbers of the description.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import inf
from statistics import fmean, median
from typing import Final, NamedTuple, TypeVar

import msgspec

from dos_protocol.errors import MALFORMED_JSON, CorruptDataError
from dos_protocol.names import check_name
from sites.core.deployment import RegionReplica, StreamReplica
from sites.core.description import Description, Measured, ReplicatedStream, SiteLink

RECORD_VERSION: Final = 1
REPORT_S: Final = 30.0
"""How often a reader reports."""
RANKS_S: Final = 300.0
"""Rows by rank are counted over this time, which is that between two collections."""
ALIVE_S: Final = 30.0
"""A replica is alive if its mark has moved within this time, as of a report that is at most `FRESH_S` old."""
FRESH_S: Final = 2 * REPORT_S + 5.0
"""An older report is not used: two in a row were not written."""
REPORTS_CHAIN: Final = "report"


def reader_directory(application: str, reader: RegionReplica) -> str:
    """Return the directory of the reports of one reader. Raises BadNameError."""
    return check_name(f"{application}.sites-{reader.node}.{reader.site}")


def site_directory(application: str, site: str) -> str:
    """Return the directory of the reports of one site. Raises BadNameError."""
    return check_name(f"{application}.sites-.{site}")


class SiteRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record of an application over sites contains, as JSON."""

    version: int = RECORD_VERSION


class StreamReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stream at its reader. ranks: how many rows it gave first, second, and so on, in the last `RANKS_S`.
    mark: event time in us. moved_s: since the mark has risen. late_s: how far its rows are behind the wall
    clock. None: not yet. whole: it has given, or will give, all rows above the mark of the reader.
    """

    sender: RegionReplica
    ranks: tuple[int, ...] = ()
    mark: int | None = None
    moved_s: float | None = None
    late_s: float | None = None
    whole: bool = False


class ReaderReport(SiteRecord, frozen=True, kw_only=True, omit_defaults=True):
    """What one reader has observed. mark, moved_s: as of a stream, of what the reader has given. load:
    processors that its workers have used. rates: sender -> the bytes per second of one copy of its output.
    Both are means of the last `RANKS_S`; left out while nothing is known.
    """

    reader: RegionReplica
    at_ms: int
    streams: tuple[StreamReport, ...]
    mark: int | None = None
    moved_s: float | None = None
    load: float | None = None
    rates: dict[str, float] = {}


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The network to another site: the mean and the least latency of one direction in the last `RANKS_S`."""

    site: str
    latency_ms: float
    least_ms: float


class SiteReport(SiteRecord, frozen=True, kw_only=True, omit_defaults=True):
    """What the process at a site reports. regions: region -> the state of its replica. reasons: region -> why
    it does not run. number: of the deployment that it acts on. store_id: of the store of the site, in
    hexadecimal digits; "" before it was opened. other_load: processors that other programs use there.
    """

    site: str
    at_ms: int
    number: int
    regions: dict[str, str]
    reasons: dict[str, str] = {}
    store_id: str = ""
    links: tuple[LinkReport, ...] = ()
    other_load: float | None = None


Report = TypeVar("Report", ReaderReport, SiteReport)
SiteRecordKind = TypeVar("SiteRecordKind", bound=SiteRecord)


def encode_record(record: SiteRecord) -> bytes:
    # The version is always in it, also where it is the default, which the encoder omits.
    return msgspec.json.encode({"version": record.version, **msgspec.to_builtins(record)})


def decode_record(
    kind: type[SiteRecordKind], strings: Sequence[bytes], *, where: str, at: int
) -> SiteRecordKind:
    """Return what a record contains. It ends at byte `at` of the chain `where`. Raises CorruptDataError."""
    try:
        record = msgspec.json.decode(strings[0], type=kind)
    except (IndexError, *MALFORMED_JSON) as error:
        raise CorruptDataError(where, at, f"the JSON of a {kind.__name__}", str(error)) from error
    if record.version != RECORD_VERSION:
        expected = f"a {kind.__name__} of version {RECORD_VERSION}"
        raise CorruptDataError(where, at, expected, str(record.version))
    return record


class Ranks:
    """Rows by rank of the streams of one reader, over the last `RANKS_S`."""

    def __init__(self) -> None:
        self._periods = list[Mapping[RegionReplica, Sequence[int]]]()

    def add(self, period: Mapping[RegionReplica, Sequence[int]]) -> dict[RegionReplica, tuple[int, ...]]:
        """Add what each sender gave since the call before, `REPORT_S` ago; return the sums."""
        kept = round(RANKS_S / REPORT_S)
        self._periods = [*self._periods, period][-kept:]
        found = dict[RegionReplica, tuple[int, ...]]()
        for sender in sorted(period):
            rows = [one[sender] for one in self._periods if sender in one]
            found[sender] = tuple(
                sum(one[rank] for one in rows if rank < len(one)) for rank in range(max(map(len, rows)))
            )
        return found


@dataclass(frozen=True, slots=True)
class Observation:
    """What the reports state. weights: see `weight`. alive: the mark of these replicas and exits has moved
    within `ALIVE_S`. lateness_s: a stream that is left out has given nothing. young: streams that were
    revived a short time ago; a port with one of them is not late. lost: sites that do not answer.
    """

    weights: Mapping[StreamReplica, float] = field(default_factory=dict)
    alive: frozenset[RegionReplica] = frozenset()
    whole: frozenset[StreamReplica] = frozenset()
    lateness_s: Mapping[StreamReplica, float] = field(default_factory=dict)
    young: frozenset[StreamReplica] = frozenset()
    lost: frozenset[str] = frozenset()
    since_revival_s: float = inf


def observation(
    readers: Iterable[ReaderReport],
    sites: Iterable[SiteReport],
    now_ms: int,
    *,
    lost: Iterable[str] = (),
    young: Iterable[StreamReplica] = (),
    revived_ms: int = 0,
) -> Observation:
    """Return what the reports state at a time (wall clock). A replica is alive if its site is not lost, and
    itself or one of its readers states that its mark has moved. lost: sites that are known to be gone.
    """
    every = sorted(readers, key=lambda one: one.reader)
    fresh = [one for one in every if is_fresh(one, now_ms)]
    alive = {one.reader for one in fresh if _moved(one)}
    alive |= {stream.sender for one in fresh for stream in one.streams if _moved(stream)}
    gone = frozenset(lost) | {one.site for one in sites if not is_fresh(one, now_ms)}
    streams = {StreamReplica(one.sender, report.reader): one for report in fresh for one in report.streams}
    return Observation(
        weights={name: weight(one.ranks) for name, one in streams.items()},
        alive=frozenset(one for one in alive if one.site not in gone),
        whole=frozenset(name for name, one in streams.items() if one.whole),
        lateness_s={name: one.late_s for name, one in streams.items() if one.late_s is not None},
        young=frozenset(young),
        lost=gone,
        since_revival_s=(now_ms - revived_ms) / 1000 if revived_ms else inf,
    )


def is_fresh(one: ReaderReport | SiteReport, now_ms: int) -> bool:
    # A report from the future, by a wrong clock, is as fresh as one of now.
    return now_ms - one.at_ms <= 1000 * FRESH_S


def is_doubtful(one: ReaderReport | SiteReport, now_ms: int) -> bool:
    """Return whether its writer is gone or one of the two clocks is wrong: whether it is replaced decides."""
    return abs(now_ms - one.at_ms) > 1000 * FRESH_S


def _moved(one: ReaderReport | StreamReport) -> bool:
    return one.moved_s is not None and one.moved_s <= ALIVE_S


def weight(rows_by_rank: Iterable[int]) -> float:
    """Return the weight of a stream that gave so many rows first, so many second, and so on."""
    return sum(rows / rank for rank, rows in enumerate(rows_by_rank, start=1))


_BYTES: Final = ".bytes"
_END: Final = 1 << 61
"""Marks from there on say that there are no more rows."""


class SourceCounters(NamedTuple):
    """The counters of one source, which reads the replicas of a region, or an input handle, since it was
    started.

    `dataflow/merging` counts `mark_us` of what was passed on, and for each site `SITE.first`, `SITE.bytes`,
    `SITE.whole`, `SITE.mark_us`, `SITE.moved_ms_ago`, and `SITE.rank_N`, the rows that it gave as the N-th.
    """

    sender: str
    counters: Mapping[str, int]


def input_counters(handle: RegionReplica, mark: int | None) -> SourceCounters:
    """Return the counters of an input handle that was read up to a mark, None before the first."""
    # The entry log is one stream, and whole for all who read it.
    if mark is None:
        return SourceCounters(handle.node, {f"{handle.site}.whole": 0})
    counters = {"mark_us": mark, f"{handle.site}.mark_us": mark, f"{handle.site}.whole": 1}
    return SourceCounters(handle.node, counters)


class ReaderMeter:
    """Turns the counters of one reader into reports."""

    def __init__(self) -> None:
        self._before: dict[RegionReplica, tuple[int, ...]] = {}
        self._risen: dict[RegionReplica | None, tuple[int, float]] = {}
        """Sender -> its mark, and since when it has it; None: the reader itself."""
        self.mark: int | None = None
        """Up to which time the reader has given all rows."""

    def note(self, sources: Iterable[SourceCounters], given: Iterable[int | None], now_s: float) -> None:
        """Note how far everything is; call it often, to see when marks rise. given: the marks of what it
        gives; none: what it has read counts. now_s: of a monotonic clock.
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
        """Return for how long a mark stands, that of the reader if no sender is named."""
        return now_s - self._risen[sender][1] if sender in self._risen else None

    def time_us(self, now_s: float) -> int:
        """Return a time that has passed: marks are times of entry points, whose clocks are compared with each
        other, so a clock that is behind one is wrong. 0 before the first mark.
        """
        times = [mark + round(1e6 * (now_s - at_s)) for mark, at_s in self._risen.values() if mark < _END]
        return max(times, default=0)

    def streams(self, sources: Iterable[SourceCounters], now_us: int, now_s: float) -> list[StreamReport]:
        """Return a report of each stream. now_us: wall clock."""
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


_SPAN_S_MIN: Final = 20.0
"""Means over less time than this are not reported: a single burst of rows would decide."""
_DIGITS: Final = 6


class Usage(NamedTuple):
    """What the workers of a reader count since they began: seconds of work, and bytes of each output read."""

    busy_s: float
    bytes_of: Mapping[RegionReplica, int]


class UsageMeter:
    """The usage of one reader, as means over the last `RANKS_S`."""

    def __init__(self) -> None:
        self._samples = list[tuple[float, Usage]]()

    def add(self, now_s: float, usage: Usage) -> tuple[float | None, dict[str, float]]:
        """Return the load and the rates of a `ReaderReport`. now_s: of a monotonic clock."""
        # Counters that are lower than before begin anew, with other workers: no mean may span both.
        if self._samples and _is_less(usage, self._samples[-1][1]):
            self._samples.clear()
        self._samples = [one for one in self._samples if now_s - one[0] <= RANKS_S]
        self._samples.append((now_s, usage))
        begun_s, before = self._samples[0]
        if (span_s := now_s - begun_s) < _SPAN_S_MIN:
            return None, {}
        rates = dict[str, float]()
        for sender, count in usage.bytes_of.items():
            rate = (count - before.bytes_of.get(sender, 0)) / span_s
            # Each replica of a sender gives one whole copy; one that is behind gives less.
            rates[sender.node] = max(rates.get(sender.node, 0.0), rate)
        load = (usage.busy_s - before.busy_s) / span_s
        return round(load, _DIGITS), {node: round(rate, _DIGITS) for node, rate in rates.items()}


def _is_less(now: Usage, before: Usage) -> bool:
    return now.busy_s < before.busy_s or any(
        count < before.bytes_of.get(sender, 0) for sender, count in now.bytes_of.items()
    )


class LinkMeter:
    """The latencies from one site to the others, over the last `RANKS_S`."""

    def __init__(self) -> None:
        self._samples = dict[str, list[tuple[float, float]]]()

    def add(self, site: str, now_s: float, latency_s: float) -> None:
        """Note the latency of one direction. now_s: of a monotonic clock."""
        self._samples.setdefault(site, []).append((now_s, latency_s))

    def reports(self, now_s: float) -> tuple[LinkReport, ...]:
        found = list[LinkReport]()
        for site, samples in sorted(self._samples.items()):
            samples[:] = [one for one in samples if now_s - one[0] <= RANKS_S]
            if samples:
                ms = [round(1000 * latency_s, _DIGITS) for _, latency_s in samples]
                found.append(LinkReport(site=site, latency_ms=fmean(ms), least_ms=min(ms)))
        return tuple(found)


def measured(
    description: Description, readers: Iterable[ReaderReport], sites: Iterable[SiteReport], now_ms: int
) -> Measured:
    """Return what the reports that are not old state about a description. The rest is left out."""
    fresh = [one for one in readers if is_fresh(one, now_ms)]
    there = {one.site: one for one in sites if is_fresh(one, now_ms)}
    seen = {(site, link.site): link for site, report in there.items() for link in report.links}
    links, streams, loads = list[SiteLink](), list[ReplicatedStream](), dict[str, float]()
    for described in description.links:
        one, other = described.between
        both = [seen[pair] for pair in ((one, other), (other, one)) if pair in seen]
        if both:
            least = min(link.least_ms for link in both)
            latency = max(fmean(link.latency_ms for link in both), least)  # a mean is rounded
            links.append(SiteLink(described.between, latency, least))
    for stream in description.streams:
        of_readers = [one.rates for one in fresh if one.reader.node == stream.reader]
        rates = [found[stream.sender] for found in of_readers if stream.sender in found]
        if rates:
            # The median: a reader that catches up reads faster.
            streams.append(ReplicatedStream(stream.sender, stream.reader, median(rates)))
    for region in description.regions:
        of_replicas = [one.load for one in fresh if one.reader.node == region.name and one.load is not None]
        if of_replicas:
            loads[region.name] = max(of_replicas)
    described_sites = {site.name for site in description.sites}
    others = {
        site: report.other_load
        for site, report in sorted(there.items())
        if site in described_sites and report.other_load is not None
    }
    return Measured(tuple(links), tuple(streams), others, loads)


def toml_of(found: Measured) -> str:
    """Return measured values as the TOML that `--measured` reads. `description.py` checks names."""
    lines = list[str]()
    for link in found.links:
        one, other = link.between
        lines += ["[[links]]", f'between = ["{one}", "{other}"]', f"latency_ms = {link.latency_ms:.3f}"]
        lines += [] if link.least_ms is None else [f"least_ms = {link.least_ms:.3f}"]
        lines += [""]
    for stream in found.streams:
        lines += ["[[streams]]", f'from = "{stream.sender}"', f'to = "{stream.reader}"']
        lines += [f"bytes_per_s = {stream.bytes_per_s:.1f}", ""]
    for table, loads in (("site_loads", found.site_loads), ("region_loads", found.region_loads)):
        if loads:
            lines += [f"[{table}]", *(f"{name} = {load:.3f}" for name, load in loads.items()), ""]
    return "\n".join(lines)

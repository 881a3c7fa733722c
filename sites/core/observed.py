"""What is known of a deployment at one time, from the reports of its readers and sites. Pure.

Each reader (a replica of a region, or an exit) reports on every stream that it reads, and each site on the
replicas that it runs, every `REPORT_S`. A report replaces the one before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeVar

import msgspec

from dos_protocol.errors import MALFORMED_JSON, CorruptDataError
from dos_protocol.names import check_name
from sites.core.deployment import RegionReplica, StreamReplica
from sites.core.utility import weight

REPORT_VERSION: Final = 1
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


class StreamReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stream at its reader. ranks: how many rows it gave first, second, and so on, in the last
    `RANKS_S`. mark: its mark (event time in microseconds), None before the first. moved_s: seconds since
    the mark has risen, None if it never has. late_s: how far its rows are behind the wall clock, in seconds;
    None if it has given nothing. whole: it has given, or will give, all rows above the mark of the reader.
    """

    sender: RegionReplica
    ranks: tuple[int, ...] = ()
    mark: int | None = None
    moved_s: float | None = None
    late_s: float | None = None
    whole: bool = False


class ReaderReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one reader has observed. at_ms: wall clock of the reader. mark, moved_s: as of a stream, of what
    the reader has given. load: processors that its workers have used. rates: sender -> the bytes per
    second of one copy of its output. Both are means of the last `RANKS_S`; left out while nothing is known.
    """

    version: int = REPORT_VERSION
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


class SiteReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process that starts replicas at a site reports. regions: region -> the state of its replica.
    reasons: region -> why it does not run. number: of the deployment that it acts on. store_id: of the store
    of the site, in hexadecimal digits; "" before it was opened. links: to the sites that it can reach.
    other_load: processors that are used at the site by other programs, None if it is not known.
    """

    version: int = REPORT_VERSION
    site: str
    at_ms: int
    number: int
    regions: dict[str, str]
    reasons: dict[str, str] = {}
    store_id: str = ""
    links: tuple[LinkReport, ...] = ()
    other_load: float | None = None


Report = TypeVar("Report", ReaderReport, SiteReport)
_encoder = msgspec.json.Encoder()


def encode_report(report: ReaderReport | SiteReport) -> bytes:
    """Return the JSON of a report. The version is always in it."""
    return _encoder.encode({"version": report.version, **msgspec.to_builtins(report)})


def decode_report(kind: type[Report], strings: Sequence[bytes], *, where: str, at: int) -> Report:
    """Return the report in the record REPORT that ends at byte `at` of the chain `where`.

    Raises CorruptDataError for an invalid one, and for one of a newer version.
    """
    try:
        report = msgspec.json.decode(strings[0], type=kind)
    except (IndexError, *MALFORMED_JSON) as error:
        raise CorruptDataError(where, at, f"the JSON of a {kind.__name__}", str(error)) from error
    if report.version != REPORT_VERSION:
        expected = f"a report of version {REPORT_VERSION}"
        raise CorruptDataError(where, at, expected, str(report.version))
    return report


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
    """weights: of each stream, see `utility`. alive: the mark of these replicas and exits has moved within
    `ALIVE_S`. whole: these streams have given, or will give, all rows above the mark of their reader.
    lateness_s: how far the rows of a stream are behind, at its reader; a stream that is left out has given
    nothing. young: streams that were revived a short time ago; a port with one of them is not late.
    lost: sites that do not answer. since_revival_s: since the last one.
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
    itself or one of its readers states that its mark has moved. A report from the future, by a wrong clock,
    is as fresh as one of now. lost: sites that are known to be gone; those whose last report is old are
    added.
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
    """Return whether a report is used at a time of the wall clock."""
    return now_ms - one.at_ms <= 1000 * FRESH_S


def is_doubtful(one: ReaderReport | SiteReport, now_ms: int) -> bool:
    """Return whether a report is so old, or so far in the future, by the wall clock of the machine that reads
    it, that its writer is gone or one of the two clocks is wrong: whether it is replaced decides.
    """
    return abs(now_ms - one.at_ms) > 1000 * FRESH_S


def _moved(one: ReaderReport | StreamReport) -> bool:
    return one.moved_s is not None and one.moved_s <= ALIVE_S

"""What is measured while an application runs, in place of the numbers of its description. Pure.

Each reader measures the rate of what it reads, and the load of its workers. The process at each site measures
the network to the other sites, and the load of other programs. `measured` joins their reports.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Final, NamedTuple

from sites.core.deployment import RegionReplica
from sites.core.description import Description, Measured, ReplicatedStream, SiteLink
from sites.core.observed import RANKS_S, LinkReport, ReaderReport, SiteReport, is_fresh

_SPAN_S_MIN: Final = 20.0
"""Means over less time than this are not reported: a single burst of rows would decide."""
_DIGITS: Final = 6


class Usage(NamedTuple):
    """What the workers of a reader count since they began. busy_s: seconds of work, of all workers. bytes_of:
    source or replica -> bytes that were read of its output.
    """

    busy_s: float
    bytes_of: Mapping[RegionReplica, int]


class UsageMeter:
    """The usage of one reader, as means over the last `RANKS_S`."""

    def __init__(self) -> None:
        self._samples = list[tuple[float, Usage]]()

    def add(self, now_s: float, usage: Usage) -> tuple[float | None, dict[str, float]]:
        """Return the load and the rates of a `ReaderReport`. now_s: of a monotonic clock. Counters that are
        lower than before begin anew, with other workers.
        """
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
    """Return what the reports that are not old state about a description. What no report states is left out.

    A link has the mean of what both sites measure; a stream the median over its readers, because one that
    catches up reads faster; a region the greatest load of its replicas.
    """
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
    """Return measured values as the TOML that `--measured` reads. Names need no quotes but these:
    `description.py` checks them.
    """
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

"""The status of a deployment, as JSON. Pure."""

from collections.abc import Iterable
from typing import Any

from sites.core.collection import replicas_in
from sites.core.deployed import Situation
from sites.core.deployment import RegionReplica, StreamReplica
from sites.core.observed import ReaderReport, SiteReport, StreamReport
from sites.core.utility import utilities


def status_of(now: Situation, readers: Iterable[ReaderReport], sites: Iterable[SiteReport]) -> dict[str, Any]:
    """Return the status; docs/sites.md has the names."""
    reported = {StreamReplica(one.sender, report.reader): one for report in readers for one in report.streams}
    there = {report.site: report for report in sites if report.site not in now.observed.lost}
    useful = utilities(now.deployment, now.streams, now.observed.weights)
    known = [
        RegionReplica(region, site)
        for region, placed in sorted(now.deployed.replicas.items())
        for site in sorted(placed)
    ]
    return {
        "application": now.deployment.description.application,
        "number": now.deployed.number,
        "cost": now.cost,
        "theta": now.deployment.description.theta,
        "replicas": [_replica(one, now, reported) | _at_site(one, there) for one in known],
        "exits": [
            {"name": one.node, "site": one.site, "alive": one in now.observed.alive, "lateS": _late(one, now)}
            | _at_site(one, there)
            for one in sorted(now.deployment.exits())
        ],
        "streams": [
            {
                "from": str(one.sender),
                "to": str(one.reader),
                "lateS": now.observed.lateness_s.get(one),
                "whole": one in now.observed.whole,
                "rowsByRank": list(reported[one].ranks) if one in reported else [],
                "utility": useful[one],
                "cost": now.deployment.stream_cost(one),
            }
            for one in sorted(now.streams)
        ],
        "forgotten": list(now.deployed.forgotten),
        "decisions": [
            {"atMs": one.at_ms, "text": one.text, "cost": one.cost} for one in now.deployed.decisions
        ],
    }


def _at_site(one: RegionReplica, there: dict[str, SiteReport]) -> dict[str, Any]:
    """Return what the process at the site reports now, of a replica or an exit."""
    report = there.get(one.site)
    if report is None:
        return {"atSite": None, "reason": None}
    return {"atSite": report.regions.get(one.node), "reason": report.reasons.get(one.node)}


def _replica(
    one: RegionReplica, now: Situation, reported: dict[StreamReplica, StreamReport]
) -> dict[str, Any]:
    outputs = [stream for stream in now.streams if stream.sender == one]
    own = [stream for stream in now.streams if one in stream]
    late = [now.observed.lateness_s[stream] for stream in outputs if stream in now.observed.lateness_s]
    first = sum(_first(reported.get(stream)) for stream in outputs)
    every = sum(
        _first(seen)
        for stream, seen in reported.items()
        if stream.sender.node == one.node and stream.reader in {output.reader for output in outputs}
    )
    return {
        "region": one.node,
        "site": one.site,
        "state": "running" if one in replicas_in(now.streams) else "collected",
        "alive": one in now.observed.alive,
        "lateS": min(late, default=None),
        "first": first / every if every else None,
        "whole": bool(outputs) and now.observed.whole.issuperset(outputs),
        "cost": now.deployment.cost(own),
    }


def _first(seen: StreamReport | None) -> int:
    return seen.ranks[0] if seen is not None and seen.ranks else 0


def _late(reader: RegionReplica, now: Situation) -> float | None:
    """Return how late the latest port of an exit is, None if one has given nothing."""
    ports = dict[str, list[float | None]]()
    for one in now.streams:
        if one.reader == reader:
            ports.setdefault(one.sender.node, []).append(now.observed.lateness_s.get(one))
    best = [min((late for late in port if late is not None), default=None) for port in ports.values()]
    known = [late for late in best if late is not None]
    return max(known) if known and len(known) == len(best) else None

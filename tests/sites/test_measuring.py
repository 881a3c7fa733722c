"""What sites and readers measure, and how it replaces the numbers of a description."""

import msgspec
import pytest
import trio

from dos_client import open_store
from dos_server.testing import memory_store, threaded_store
from sites import deploying, runner
from sites.core import observed
from sites.core.deployment import RegionReplica
from sites.core.description import decode_measured, with_measured
from sites.core.observed import (
    FRESH_S,
    RANKS_S,
    LinkMeter,
    LinkReport,
    ReaderReport,
    SiteReport,
    SourceCounters,
    Usage,
    UsageMeter,
    bytes_of,
    measured,
    toml_of,
)
from sites.records import ReaderReporter, now_ms, write_report
from sites.runner import probe_links, round_trip_s
from tests.sites.test_deploying import DESCRIPTION, report_all
from tests.support.planted_source import planted
from tests.support.polling import POLL_S

LOADS, JOINED, OTHER = (
    RegionReplica("loads", "purdue"),
    RegionReplica("joined", "purdue"),
    RegionReplica("joined", "wisc"),
)
NOW_MS = 1_000_000_000
WAIT_S = 60.0


def check_usage() -> None:
    meter = UsageMeter()
    assert meter.add(0.0, Usage(5.0, {JOINED: 100, OTHER: 100})) == (None, {})
    assert meter.add(19.0, Usage(6.0, {JOINED: 9_000, OTHER: 100})) == (None, {}), "too short for a mean"
    assert meter.add(40.0, Usage(25.0, {JOINED: 40_100, OTHER: 2_100})) == (0.5, {"joined": 1000.0})
    assert meter.add(50.0, Usage(1.0, {JOINED: 10})) == (None, {}), "other workers: the counters began anew"
    assert meter.add(80.0, Usage(1.0, {JOINED: 3_010, LOADS: 60})) == (0.0, {"joined": 100.0, "loads": 2.0})
    busy = [meter.add(80.0 + 30 * number, Usage(1.0 + number, {}))[0] for number in range(1, 31)]
    assert busy[-1] == pytest.approx(1 / 30, rel=1e-3), "what was before the last five minutes has no effect"


def check_links() -> None:
    meter = LinkMeter()
    assert meter.reports(0.0) == ()
    for at, latency_s in ((0.0, 0.1), (10.0, 0.02), (200.0, 0.04)):
        meter.add("osu", at, latency_s)
    meter.add("wisc", 10.0, 0.001)
    assert meter.reports(RANKS_S + 5) == (
        LinkReport(site="osu", latency_ms=30.0, least_ms=20.0),
        LinkReport(site="wisc", latency_ms=1.0, least_ms=1.0),
    )
    (osu,) = meter.reports(RANKS_S + 100)
    assert (osu.latency_ms, osu.least_ms) == (40.0, 40.0)


def reader(one: RegionReplica, load: float | None, age_s: float = 0.0, **rates: float) -> ReaderReport:
    at_ms = NOW_MS - round(1000 * age_s)
    return ReaderReport(reader=one, at_ms=at_ms, streams=(), load=load, rates=rates)


def site(name: str, *links: LinkReport, load: float | None = None, age_s: float = 0.0) -> SiteReport:
    at_ms = NOW_MS - round(1000 * age_s)
    return SiteReport(site=name, at_ms=at_ms, number=1, regions={}, links=links, other_load=load)


def link(other: str, latency_ms: float, least_ms: float) -> LinkReport:
    return LinkReport(site=other, latency_ms=latency_ms, least_ms=least_ms)


def check_measured() -> None:
    readers = [
        reader(JOINED, 0.25, loads=1000.0),
        reader(OTHER, 0.75, loads=3000.0),
        reader(RegionReplica("joined", "osu"), 9.0, FRESH_S + 1, loads=90_000.0),
        reader(RegionReplica("board", "osu"), 2.0, joined=50.0),
    ]
    sites = [
        site("purdue", link("wisc", 10.0, 9.0), link("osu", 30.0, 20.0), load=1.5),
        site("wisc", link("purdue", 14.0, 8.0)),
        site("osu", link("wisc", 99.0, 99.0), load=9.0, age_s=FRESH_S + 1),
        site("ohio", link("purdue", 1.0, 1.0), load=1.0),
    ]
    found = measured(DESCRIPTION, readers, sites, NOW_MS)
    assert {frozenset(one.between): (one.latency_ms, one.least_ms) for one in found.links} == {
        frozenset(("purdue", "wisc")): (12.0, 8.0),
        frozenset(("purdue", "osu")): (30.0, 20.0),
    }
    assert {(one.sender, one.reader): one.bytes_per_s for one in found.streams} == {
        ("loads", "joined"): 2000.0,
        ("joined", "board"): 50.0,
    }
    assert (found.site_loads, found.region_loads) == ({"purdue": 1.5}, {"joined": 0.75})
    assert decode_measured(toml_of(found)) == found
    used = with_measured(DESCRIPTION, found)
    assert used.latencies()["osu", "wisc"] == DESCRIPTION.latencies()["osu", "wisc"], "nobody measures it"
    assert measured(DESCRIPTION, [], [], NOW_MS) == decode_measured(toml_of(decode_measured("")))


def test_what_is_measured_replaces_the_description() -> None:
    check_usage()
    check_links()
    check_measured()


BUGS = {
    "counters of other workers are joined": ("self._samples.clear()", "pass"),
    "copies are added": (
        "max(rates.get(sender.node, 0.0), rate)",
        "rates.get(sender.node, 0.0) + rate",
    ),
    "old usage counts": ("[one for one in self._samples if now_s - one[0] <= RANKS_S]", "self._samples"),
    "a burst is a rate": ("_SPAN_S_MIN: Final = 20.0", "_SPAN_S_MIN: Final = 0.1"),
    "an old report of a reader counts": ("[one for one in readers if is_fresh(one, now_ms)]", "[*readers]"),
    "an old report of a site counts": ("for one in sites if is_fresh(one, now_ms)", "for one in sites"),
    "one side of a link decides": ("fmean(link.latency_ms for link in both)", "both[0].latency_ms"),
    "the first least counts": ("min(link.least_ms for link in both)", "both[0].least_ms"),
    "an idle replica hides a busy one": ("max(of_replicas)", "min(of_replicas)"),
    "old latencies count": (
        "if now_s - one[0] <= RANKS_S]\n            if samples",
        "]\n            if samples",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = planted(observed, *BUGS[bug])
    for name in ("UsageMeter", "LinkMeter", "measured", "toml_of"):
        monkeypatch.setitem(globals(), name, names[name])
    with pytest.raises(AssertionError):
        test_what_is_measured_replaces_the_description()


def test_the_bytes_of_a_merged_source_are_those_of_its_streams() -> None:
    sources = (
        SourceCounters("joined", {"mark_us": 7, "purdue.bytes": 5, "purdue.first": 1, "wisc.bytes": 6}),
    )
    assert bytes_of(sources) == {JOINED: 5, OTHER: 6}


@pytest.mark.trio
async def test_decisions_use_what_is_measured_unless_they_are_told_not_to() -> None:
    """The link from purdue to osu is measured as slow as the world: its replica is moved."""
    description = msgspec.structs.replace(DESCRIPTION, kmax=1, kmin=1)
    async with memory_store() as servers, open_store(servers.url) as store:
        before = await deploying.apply(store, description)
        assert before.deployed.replicas == {"joined": ("purdue",)}
        await report_all(store, description)
        board = ReaderReporter(store, "board", RegionReplica("board", "osu"))
        await board.write([], mark=7, moved_s=1.0, rates={"joined": 90_000.0})
        far = SiteReport(
            site="purdue", at_ms=now_ms(), number=1, regions={}, links=(link("osu", 900.0, 800.0),)
        )
        await write_report(store, "board", far)
        found = await deploying.look_at_measured(store, description)
        assert [one.latency_ms for one in found.links] == [900.0]
        same = await deploying.apply(store, description, dry_run=True, measure=False)
        assert not same.changes
        moved = await deploying.apply(store, description, dry_run=True)
        assert moved.deployed.replicas != before.deployed.replicas
        (now, _, _), (described, _, _) = (
            await deploying.look(store, description),
            await deploying.look(store, description, measure=False),
        )
        assert now.cost == pytest.approx(90_000 * 0.9)
        assert described.cost < now.cost


@pytest.mark.trio
async def test_a_site_that_answers_is_measured_and_one_that_does_not_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "PROBE_S", POLL_S)
    with threaded_store(1) as gone:
        stores = {"purdue": "dos://here", "osu": gone.url}
    with threaded_store(2) as there:
        stores["wisc"] = there.url
        sites = (msgspec.structs.replace(one, store=stores[one.name]) for one in DESCRIPTION.sites)
        description = msgspec.structs.replace(DESCRIPTION, sites=tuple(sites))
        meter = LinkMeter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe_links, description, "purdue", meter)
            with trio.fail_after(WAIT_S):
                while not meter.reports(trio.current_time()):  # noqa: ASYNC110 - of another task
                    await trio.sleep(POLL_S)
            nursery.cancel_scope.cancel()
    (wisc,) = meter.reports(trio.current_time())
    assert wisc.site == "wisc"
    assert 0 < wisc.least_ms <= wisc.latency_ms
    assert await round_trip_s(gone.url.removeprefix("dos://")) is None

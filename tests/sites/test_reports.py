"""The reports of sites and readers, as `dos sites` uses them: which are of now, by whose clock."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from dos_client import Store, open_store
from dos_server.testing import memory_store
from sites import deploying, records
from sites.core.deployment import RegionReplica
from sites.core.observed import FRESH_S, REPORT_S, SiteReport
from sites.records import ReaderReporter, now_ms, write_report
from tests.sites.test_deploying import DESCRIPTION


@dataclass
class Reporting:
    """Sites that report. wrong_s: by how much the clock of each is wrong; failed: sites whose replicas do not
    run.
    """

    wrong_s: dict[str, int]
    began_ms: int = field(default_factory=now_ms)
    failed: set[str] = field(default_factory=set)

    def clock_ms(self, site: str = "") -> int:
        return self.began_ms + round(1000 * (trio.current_time() + self.wrong_s.get(site, 0)))

    async def report(self, store: Store, site: str) -> None:
        reporter = ReaderReporter(store, "board", RegionReplica("joined", site))
        while True:
            own = SiteReport(site=site, at_ms=self.clock_ms(site), number=1, regions={})
            await write_report(store, "board", own)
            if site not in self.failed:
                await reporter.write([], mark=7, moved_s=1.0, at_ms=own.at_ms)
            await trio.sleep(REPORT_S)


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Reporting:
    found = Reporting({"purdue": -70, "wisc": -3600, "osu": 3600})
    monkeypatch.setattr(deploying, "now_ms", found.clock_ms)
    monkeypatch.setattr(records, "now_ms", found.clock_ms)
    return found


@asynccontextmanager
async def reports(reporting: Reporting) -> AsyncIterator[tuple[Store, trio.CancelScope]]:
    """The entry store of an application of which each site has reported; they end with the scope."""
    async with memory_store() as servers, open_store(servers.url) as store:
        await deploying.apply(store, DESCRIPTION)
        async with trio.open_nursery() as nursery:
            for site in reporting.wrong_s:
                nursery.start_soon(reporting.report, store, site)
            await trio.sleep(1.1 * REPORT_S)
            yield store, nursery.cancel_scope
            nursery.cancel_scope.cancel()


async def seen(store: Store) -> tuple[frozenset[str], frozenset[str], float]:
    """Return the sites that are lost, those whose replicas are alive, and how long a command waited."""
    begun = trio.current_time()
    now, _, _ = await deploying.look(store, DESCRIPTION)
    alive = frozenset(one.site for one in now.observed.alive)
    return now.observed.lost, alive, trio.current_time() - begun


@pytest.mark.trio
async def test_a_site_with_a_wrong_clock_is_there_while_its_reports_are_replaced_and_lost_afterward(
    autojump_clock: trio.testing.MockClock, reporting: Reporting
) -> None:
    every = frozenset(reporting.wrong_s)
    async with reports(reporting) as (store, reports_end):
        lost, alive, _ = await seen(store)
        assert (lost, alive) == (frozenset(), every)
        reporting.failed |= {"purdue"}
        await trio.sleep(2.1 * FRESH_S)
        lost, alive, _ = await seen(store)
        assert (lost, alive) == (frozenset(), every - {"purdue"}), "by the clock of its site"
        reports_end.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(1.1 * FRESH_S)
            lost, _, _ = await seen(store)
            assert lost == every, "nobody reports any more"


@pytest.mark.trio
async def test_a_command_waits_only_for_sites_that_may_report_again(
    autojump_clock: trio.testing.MockClock, reporting: Reporting
) -> None:
    every = frozenset(reporting.wrong_s)
    async with reports(reporting) as (store, reports_end):
        reporting.failed |= every
        reporting.wrong_s |= dict.fromkeys(every, 0)
        await trio.sleep(2.1 * FRESH_S)
        lost, alive, waited_s = await seen(store)
        assert (lost, alive) == (frozenset(), frozenset()), "also a report of before its clock was set"
        assert waited_s < 1.0, "a replica that was collected or has failed does not report"
        reports_end.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(1.1 * FRESH_S)
            waits_s = []
            for site in sorted(every):
                begun = trio.current_time()
                await deploying.forget(store, DESCRIPTION, site)
                waits_s.append(trio.current_time() - begun)
            assert [waited_s > REPORT_S for waited_s in waits_s] == [True, True, False]
            assert (await seen(store))[2] < 1.0


@pytest.mark.trio
async def test_a_report_that_cannot_be_written_ends_nothing(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_store() as servers, open_store(servers.url) as store:
        reporter = ReaderReporter(store, "board", RegionReplica("board", "osu"))
        for number in (0, 1):
            servers[number].crash()
        await reporter.write([], mark=None, moved_s=None)
        assert "the report of board@osu was not written" in caplog.text

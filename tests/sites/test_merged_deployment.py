"""An application with two replicas and an exit that merges them: deployed, reported, collected."""

from functools import partial

import msgspec
import pytest
import trio

import dos
from checkpoint import output_register
from checkpoint.chains.consumer_register import read_register
from dos_client import Store, open_store
from sites import deploying, runner
from sites.core import observed
from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.description import Description
from sites.core.observed import ReaderMeter, ReaderReport, SourceCounters, input_counters
from sites.records import change_deployed, read_deployed, read_reports
from sites.runner import run_site
from tests.sites.deployments import application, record, until, until_shown


async def until_reported(store: Store, description: Description) -> ReaderReport:
    """Wait until the exit has reported that both replicas are whole, and have its own mark."""
    found = list[ReaderReport]()

    async def reached() -> bool:
        readers, _ = await read_reports(store, description, await read_deployed(store, "board"))
        found[:] = [
            report
            for report in readers
            if sum(one.whole and one.mark == report.mark for one in report.streams) == 2
        ]
        return bool(found)

    await until(reached)
    return found[0]


async def check_measured(store: Store, description: Description) -> None:
    """Every stream, the region and all links are measured."""
    rates = dict[tuple[str, str], float]()

    async def reached() -> bool:
        found = await deploying.look_at_measured(store, description)
        rates.update({(one.sender, one.reader): one.bytes_per_s for one in found.streams})
        if len(rates) < 2 or len(found.links) < 3 or not found.region_loads or not all(rates.values()):
            return False
        assert 0 <= found.region_loads["joined"] < 2
        assert found.site_loads.keys() == {"purdue", "wisc", "osu"}
        return True

    await until(reached)
    assert rates.keys() == {("loads", "joined"), ("joined", "board")}


async def consumers(url: str) -> list[str]:
    async with open_store(url) as store:
        return sorted((await read_register(store, output_register("board.joined", "shown"))).queries)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_an_exit_merges_the_replicas_reports_on_them_and_withdraws_from_one_that_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "REPORT_S", 3.0)
    monkeypatch.setattr(observed, "_SPAN_S_MIN", 2.0)
    with application() as description:
        trio.run(follow, description)


async def follow(description: Description) -> None:
    urls = {site.name: str(site.store) for site in description.sites}
    start = partial(dos.run_local, standby=0)
    async with (
        open_store(str(description.entry_store)) as entry,
        open_store(urls["osu"]) as osu,
        trio.open_nursery() as nursery,
    ):
        for site in urls:
            nursery.start_soon(partial(run_site, description, site, start=start))
        await deploying.apply(entry, description)
        replicas = (await read_deployed(entry, "board")).replicas["joined"]
        await record(entry, 1000, 50)
        await until_shown(osu, "board.board", range(1000, 1050))
        report = await until_reported(entry, description)
        assert report.reader == RegionReplica("board", "osu")
        assert report.mark == 1_050_000_000 - 1
        assert {one.sender.site for one in report.streams} == set(replicas)
        assert sum(one.ranks[0] for one in report.streams if one.ranks) > 0, "one of them was first"
        await check_measured(entry, description)
        gone = next(site for site in replicas if site != "osu")
        assert len(await consumers(urls[gone])) == 1

        def without(one: Deployed) -> Deployed:
            kept = tuple(stream for stream in one.streams if RegionReplica("joined", gone) not in stream)
            return msgspec.structs.replace(one, streams=kept)

        await change_deployed(entry, "board", without)
        await record(entry, 1050, 50)
        await until_shown(osu, "board.board", range(1000, 1100))

        async def withdrawn() -> bool:
            return not await consumers(urls[gone])

        await until(withdrawn)
        nursery.cancel_scope.cancel()


def test_a_report_counts_since_the_last_one_and_begins_anew_with_the_reader() -> None:
    meter = ReaderMeter()

    def ranks(**counters: int) -> list[tuple[int, ...]]:
        named = {name.replace("_at_", "."): value for name, value in counters.items()}
        return [one.ranks for one in meter.streams((SourceCounters("joined", named),), 5_000_000, 0.0)]

    assert ranks(a_at_rank_1=4, a_at_rank_2=1, b_at_rank_1=2) == [(4, 1), (2,)]
    assert ranks(a_at_rank_1=6, a_at_rank_2=1, b_at_rank_1=2, b_at_rank_2=7) == [(2, 0), (0, 7)]
    assert ranks(a_at_rank_1=1, b_at_rank_1=3, b_at_rank_2=7) == [(1,), (1, 0)]


def test_a_reader_is_as_far_as_what_it_gives_and_as_alive() -> None:
    """What it reads may move while it stands still itself."""
    one = SourceCounters("x", {"mark_us": 7, "a.mark_us": 9, "b.whole": 1})
    loads = input_counters(RegionReplica("loads", "c"), 5)
    meter = ReaderMeter()
    meter.note((one, input_counters(RegionReplica("loads", "c"), None)), [], 0.0)
    assert (meter.mark, meter.moved_s(1.0)) == (None, None), "of a port nothing is known"
    meter.note((one, loads), [], 10.0)
    assert (meter.mark, meter.moved_s(12.0)) == (5, 2.0)
    meter.note((one, loads), [4, None], 13.0)
    assert meter.mark is None
    further = SourceCounters("x", {"mark_us": 8, "a.mark_us": 3_000_000, "b.whole": 1})
    meter.note((further, loads), [5, 6], 20.0)
    assert (meter.mark, meter.moved_s(21.0)) == (5, 11.0), "only what it reads has moved"
    assert meter.time_us(21.0) == 5 + 11_000_000, "a clock that shows less is behind"
    streams = meter.streams((further, loads), 5_000_000, 21.0)
    assert [(str(one.sender), one.moved_s, one.late_s, one.whole) for one in streams] == [
        ("x@a", 1.0, 2.0, False),
        ("x@b", None, None, True),
        ("loads@c", 11.0, pytest.approx(4.999995), True),
    ]

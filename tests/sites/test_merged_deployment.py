"""An application with two replicas and an exit that merges them: deployed, reported, collected."""

from collections import Counter
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from functools import partial

import msgspec
import pytest
import trio

import dos
from checkpoint import OriginMark, output_register
from checkpoint.chains.consumer_register import read_register
from checkpoint.chains.input_log import InputLog
from dataflow.errors import NoOutputError
from dataflow.producing import parts_of
from dataflow.schema import parse_schema
from dos_client import Store, open_store
from dos_server.testing import threaded_store
from sites import deploying, runner
from sites.core import observed
from sites.core.deployed import Deployed
from sites.core.deployment import RegionReplica
from sites.core.description import Description, FixedPlace, ReplicatedRegion
from sites.core.observed import ReaderMeter, ReaderReport, SourceCounters, input_counters
from sites.records import change_deployed, read_deployed, read_reports
from sites.runner import run_site
from tests.sites.graphs import TIMED
from tests.sites.test_runner import described
from tests.support.polling import POLL_S

WAIT_S = 60.0


def application(entry: str, **stores: str) -> Description:
    """Replicas of `joined` at two sites, and the exit `board` at osu."""
    one = described(entry, **stores)
    return msgspec.structs.replace(
        one,
        kmax=2,
        kmin=1,
        distance_ms=0.0,
        regions=(ReplicatedRegion("joined", 0.4, "tests.sites.graphs:passed", workers=1),),
        exits=(FixedPlace("board", "osu", "tests.sites.graphs:board", 1),),
    )


async def record(store: Store, first: int, count: int) -> None:
    """Rows of one entry point, a second apart, and its mark."""
    schema = parse_schema(TIMED)
    async with await InputLog.open(store, "board", "loads", "p") as log:
        rows = [
            {"at": datetime.fromtimestamp(second, UTC), "word": "ab"[second % 2]}
            for second in range(first, first + count)
        ]
        await log.append(parts_of(rows, schema), number=log.last + 1)
        await log.append_mark(OriginMark(1_000_000 * (first + count) - 1, 1, 1, 0))
        await log.all_synced()


async def shown(store: Store) -> "Counter[tuple[int, str]]":
    found: Counter[tuple[int, str]] = Counter()
    try:
        async with aclosing(dos.read_output(store, "board.board", "shown")) as steps_read:
            async for step in steps_read:
                for row in step.table.to_pylist() if step.table is not None else ():
                    found[int(row["at"].timestamp()), row["word"]] += 1
    except NoOutputError:
        pass
    return found


async def until_shown(store: Store, seconds: range) -> None:
    expected = Counter({(second, "ab"[second % 2]): 1 for second in seconds})
    with trio.fail_after(WAIT_S):
        while await shown(store) != expected:  # noqa: ASYNC110 - of another process
            await trio.sleep(POLL_S)


async def until_reported(store: Store, description: Description) -> ReaderReport:
    """Wait until the exit has reported that both replicas are whole, and have its own mark."""
    with trio.fail_after(WAIT_S):
        while True:
            readers, _ = await read_reports(store, description, await read_deployed(store, "board"))
            for report in readers:
                if sum(one.whole and one.mark == report.mark for one in report.streams) == 2:
                    return report
            await trio.sleep(POLL_S)


async def until_measured(store: Store, description: Description) -> None:
    """Wait until every stream, the region and all links were measured."""
    with trio.fail_after(WAIT_S):
        while True:
            found = await deploying.look_at_measured(store, description)
            rates = {(one.sender, one.reader): one.bytes_per_s for one in found.streams}
            if len(rates) == 2 and len(found.links) == 3 and found.region_loads and all(rates.values()):
                break
            await trio.sleep(POLL_S)
    assert rates.keys() == {("loads", "joined"), ("joined", "board")}
    assert 0 <= found.region_loads["joined"] < 2
    assert found.site_loads.keys() == {"purdue", "wisc", "osu"}


async def consumers(url: str) -> list[str]:
    async with open_store(url) as store:
        return sorted((await read_register(store, output_register("board.joined", "shown"))).queries)


@pytest.mark.process
def test_an_exit_merges_the_replicas_reports_on_them_and_withdraws_from_one_that_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "REPORT_S", 3.0)
    monkeypatch.setattr(observed, "_SPAN_S_MIN", 2.0)
    with ExitStack() as stack:
        entry, *urls = (stack.enter_context(threaded_store(1)).url for _ in range(4))
        trio.run(follow, application(entry, **dict(zip(("purdue", "wisc", "osu"), urls, strict=True))))


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
        await until_shown(osu, range(1000, 1050))
        report = await until_reported(entry, description)
        assert report.reader == RegionReplica("board", "osu")
        assert report.mark == 1_050_000_000 - 1
        assert {one.sender.site for one in report.streams} == set(replicas)
        assert sum(one.ranks[0] for one in report.streams if one.ranks) > 0, "one of them was first"
        await until_measured(entry, description)
        gone = next(site for site in replicas if site != "osu")
        assert len(await consumers(urls[gone])) == 1

        def without(one: Deployed) -> Deployed:
            kept = tuple(stream for stream in one.streams if RegionReplica("joined", gone) not in stream)
            return msgspec.structs.replace(one, streams=kept)

        await change_deployed(entry, "board", without)
        await record(entry, 1050, 50)
        await until_shown(osu, range(1000, 1100))
        with trio.fail_after(WAIT_S):
            while await consumers(urls[gone]):  # noqa: ASYNC110 - of another task
                await trio.sleep(POLL_S)
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

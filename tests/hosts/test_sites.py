"""Three sites with replicas, and the faults of a site. The exit has each row once, as without a fault."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.hosts.sites import ARRIVE_S_MAX, SERVERS, Pair, Sites, open_sites
from tests.hosts.site_query import READINGS
from tests.support.polling import until

pytestmark = pytest.mark.timeout(300)
BASELINE_S = 2.5
MOVED, OTHERS = ("s0",), ("s1", "s2")
"""The servers whose producers begin at the entry point of site a, where all faults are, and the others."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with open_sites(tmp_path_factory.mktemp("sites")) as sites:
        now_s = time.time()
        sites.reach(now_s)
        yield sites


def late_s(rows: list[Pair], begin: float, end: float, servers: tuple[str, ...]) -> list[float]:
    """Return by how much rows that were sent in a range of time were late at the exit, in rising order."""
    return sorted(
        row.arrived_s - row.sent_s for row in rows if begin <= row.sent_s < end and row.server in servers
    )


def gap_s(rows: list[Pair], begin: float, end: float, servers: tuple[str, ...]) -> float:
    """Return the longest time without new rows of these servers between two moments."""
    arrived = sorted(row.arrived_s for row in rows if row.server in servers)
    times = [begin, *(at for at in arrived if begin < at < end), end]
    return max(later - before for before, later in zip(times, times[1:], strict=False))


def suffer(sites: Sites, fault: Callable[[], None], heal: Callable[[], None], seconds: float) -> list[Pair]:
    """Wait for rows that are sent during a fault at site a, and then for all others. Print by how much rows
    were late. Return the rows of the exit of the single site when the fault ends.
    """
    before_s = time.time()
    sites.reach(before_s + BASELINE_S)
    begun_s = time.time()
    fault()
    sites.reach(begun_s + seconds, OTHERS)
    shown = [*sites.shown("alone")]
    healed_s = time.time()
    heal()
    end_s = time.time()
    exits = {"replicas": sites.reach(end_s), "one site": shown}
    for name, rows in exits.items():
        for servers in (MOVED, OTHERS):
            late = [late_s(rows, *times, servers) for times in ((before_s, begun_s), (begun_s, healed_s))]
            late = [each or [float("inf")] for each in late]
            gaps = [gap_s(rows, *times, servers) for times in ((before_s, begun_s), (begun_s, healed_s))]
            print(
                f"{name}, {servers}: without the fault late {late[0][len(late[0]) // 2]:.2f} to"
                f" {late[0][-1]:.2f} s, gap {gaps[0]:.2f} s; with it, for {healed_s - begun_s:.1f} s, late"
                f" {late[1][len(late[1]) // 2]:.2f} to {late[1][-1]:.2f} s, gap {gaps[1]:.2f} s"
            )
    return [row for row in shown if row.sent_s > begun_s]


def test_a_slow_site_delays_no_row(sites: Sites) -> None:
    site = sites.sites[0]
    suffer(sites, lambda: sites.slow_down(site, 0.3, 0.02), lambda: sites.slow_down(site), 4)


def test_rows_arrive_while_a_site_is_cut_off(sites: Sites) -> None:
    site = sites.sites[0]
    found = suffer(sites, lambda: sites.network.unplug(site), lambda: sites.network.plug(site), 7)
    assert all(row.sent_s < row.arrived_s for row in found)


def test_rows_arrive_while_a_site_is_down(sites: Sites) -> None:
    site = sites.sites[0]
    suffer(sites, lambda: site.signal_all("KILL"), lambda: sites.restart(site), 4)


def test_the_rows_are_those_of_one_replica_without_failures(sites: Sites) -> None:
    """The last test of this file: the producers end."""
    rounds = sites.finish()
    sites.run_whole()

    def rows_at(region: str) -> list[tuple[str, ...]]:
        until(lambda: len(sites.shown(region)) >= rounds * SERVERS, f"all rows at {region}", ARRIVE_S_MAX)
        return sorted(row.values for row in sites.shown(region))

    expected = rows_at(READINGS)
    assert len(expected) == rounds * SERVERS
    assert rows_at("board") == expected
    assert rows_at("alone") == expected

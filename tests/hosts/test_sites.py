"""Three sites with replicas, and the faults of a site. The exit has each row once, as without a fault."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.hosts.site_query import READINGS
from tests.hosts.sites import ARRIVE_S_MAX, SERVERS, Pair, Sites, open_sites
from tests.support.polling import until

pytestmark = pytest.mark.timeout(300)
BASELINE_S = 2.0
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
    return max(later - before for before, later in pairwise(times))


def suffer(sites: Sites, fault: Callable[[], None], heal: Callable[[], None], seconds: float) -> list[Pair]:
    """Wait for rows that are sent during a fault at site a, and then for all others. Print by how much rows
    were late. Return the rows of the fault that the exit of the single site had at its end.
    """
    before_s = time.time()
    sites.reach(before_s + BASELINE_S)
    begun_s = time.time()
    fault()
    faulty_s = time.time()
    sites.reach(faulty_s + seconds, OTHERS)
    alone = [*sites.shown("alone")]
    healed_s = time.time()
    heal()
    exits = {"replicas": sites.reach(time.time()), "one site": alone}
    for name, rows in exits.items():
        for servers in (MOVED, OTHERS):
            without = lateness(rows, before_s, begun_s, servers)
            print(
                f"{name}, {servers}: {without}; with the fault {lateness(rows, faulty_s, healed_s, servers)}"
            )
    return [row for row in alone if row.sent_s > faulty_s]


def lateness(rows: list[Pair], begin: float, end: float, servers: tuple[str, ...]) -> str:
    """Describe by how much rows were late that were sent between two moments, and the longest time without
    any.
    """
    late = late_s(rows, begin, end, servers)
    text = f"{late[len(late) // 2]:.2f} to {late[-1]:.2f} s late" if late else "no row"
    return f"{text}, {gap_s(rows, begin, end, servers):.2f} of {end - begin:.1f} s without rows"


@pytest.mark.long
def test_rows_arrive_while_a_site_is_slow(sites: Sites) -> None:
    site = sites.sites[0]
    suffer(sites, lambda: sites.slow_down(site, 0.3, 0.02), lambda: sites.slow_down(site), 4)


@pytest.mark.long  # tests/sites shows the same without networks
def test_rows_arrive_while_a_site_is_cut_off(sites: Sites) -> None:
    """The cut is longer than the 3 s after which producers move. A single site has no row until it ends."""
    site = sites.sites[0]
    alone = suffer(sites, lambda: sites.network.unplug(site), lambda: sites.network.plug(site), 7)
    assert not alone


@pytest.mark.long  # tests/sites shows the same without networks
def test_rows_arrive_while_a_site_is_down(sites: Sites) -> None:
    """All its processes are killed, and then it is started again on its disks."""
    site = sites.sites[0]
    alone = suffer(sites, lambda: site.signal_all("KILL"), lambda: sites.restart(site), 3)
    assert not alone


@pytest.mark.long  # tests/sites shows the same without networks
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

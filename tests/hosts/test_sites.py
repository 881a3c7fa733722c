"""Three sites with replicas, and the faults of a site. The exit has each row once, as without a fault."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.hosts.sites import ALL, DELAY_S, INTERVAL_S, Pair, Sites, open_sites

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with open_sites(tmp_path_factory.mktemp("sites")) as sites:
        sites.reach(10)
        sites.reach(10, region="alone")
        yield sites


def late_s(rows: list[Pair], begin: float, end: float, servers: tuple[str, ...] = ALL) -> list[float]:
    """Return by how much rows that were sent in a range of time were late at the exit, in rising order."""
    return sorted(
        row.arrived_s - row.sent_s for row in rows if begin <= row.sent_s < end and row.server in servers
    )


def gap_s(rows: list[Pair], begin: float, end: float, servers: tuple[str, ...] = ALL) -> float:
    """Return the longest time without new rows of these servers between two moments."""
    arrived = sorted(row.arrived_s for row in rows if row.server in servers)
    times = [begin, *(at for at in arrived if begin < at < end), end]
    return max(later - before for before, later in zip(times, times[1:], strict=False))


def suffer(sites: Sites, fault: Callable[[], None], heal: Callable[[], None], seconds: float) -> None:
    """Measure without a fault, then with it, and print both."""
    baseline = time.time()
    sites.reach(sites.next_round() + round(3 / INTERVAL_S))
    begun = time.time()
    fault()
    sites.reach(sites.next_round() + round(seconds / INTERVAL_S), ("s1", "s2"))
    healed = time.time()
    heal()
    alone = sites.next_round("alone")
    rows = sites.reach(sites.next_round() + round(1 / INTERVAL_S))
    others = sites.reach(alone + round(1 / INTERVAL_S), region="alone")
    for name, found in (("replicas", rows), ("one site", others)):
        for begin, end in ((baseline, begun), (begun, healed + 1)):
            for servers in (("s0",), ("s1", "s2")):
                late = late_s(found, begin, end, servers)
                print(
                    f"{name} {servers} {end - begin:.1f} s: late median {late[len(late) // 2]:.2f}, max"
                    f" {late[-1]:.2f}, gap {gap_s(found, begin, end, servers):.2f}"
                )


def test_a_site_that_is_slow_delays_nothing(sites: Sites) -> None:
    def fault() -> None:
        sites.slow_down(sites.sites[0], 0.3, 0.02)

    suffer(sites, fault, lambda: sites.slow_down(sites.sites[0], DELAY_S), 4)


def test_a_site_that_is_cut_off_delays_nothing(sites: Sites) -> None:
    site = sites.sites[0]
    suffer(sites, lambda: sites.network.unplug(site), lambda: sites.network.plug(site), 7)

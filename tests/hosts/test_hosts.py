"""Regions on several hosts, with the faults of a network between them. After each, every count is exact.

The hosts, the servers and Spark are shared by all tests of this file; each test runs one region.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from tests.hosts.cluster import Cluster, Region, open_cluster
from tests.hosts.network import Host

pytestmark = pytest.mark.timeout(600)
long_only = pytest.mark.skipif(
    os.environ.get("DOS_TEST_PROFILE") != "long", reason="takes minutes: DOS_TEST_PROFILE=long"
)

ROWS = 3_000_000
KEYS = 97


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers, a master, a driver and three hosts for executors."""
    with open_cluster(tmp_path_factory.mktemp("hosts"), workers=3) as cluster:
        yield cluster


@pytest.fixture
def region(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Region]:
    """A region that runs with two workers on two hosts. At the end it finishes, and its output is exact."""
    region = cluster.run(request.node.name.replace("[", "-").replace("]", ""), ROWS)
    assert len(set(region.hosts.values())) == 2, region
    yield region
    cluster.network.heal()
    region.finish()
    assert cluster.output(region) == {f"k{key}": len(range(key, ROWS, KEYS)) for key in range(KEYS)}


def hosts_of(cluster: Cluster, region: Region) -> tuple[Host, Host]:
    """Return the hosts of the two workers."""
    one, other = (cluster.network.hosts[region.hosts[worker]] for worker in (0, 1))
    return one, other


Separate = Callable[[Cluster, Host, Host], None]


def both_ways(cluster: Cluster, one: Host, other: Host) -> None:
    cluster.network.part(one, other)


def one_way(cluster: Cluster, one: Host, other: Host) -> None:
    cluster.network.drop([one], other)


def refused(cluster: Cluster, one: Host, other: Host) -> None:
    cluster.network.refuse(one, other)


@pytest.mark.parametrize("separate", [both_ways, one_way, refused])
def test_workers_that_cannot_reach_each_other_continue_on_another_host(
    cluster: Cluster, region: Region, separate: Separate
) -> None:
    before = hosts_of(cluster, region)
    separate(cluster, *before)
    region.until_checkpoints(3)
    assert {host.name for host in before} != set(region.hosts.values()), region


def test_connections_that_vanish_without_a_reset_are_replaced(cluster: Cluster, region: Region) -> None:
    one, _ = hosts_of(cluster, region)
    assert cluster.network.vanish(one) > 0
    region.until_checkpoints(3)


def test_a_host_that_is_cut_off_and_returns_as_a_zombie_changes_nothing(
    cluster: Cluster, region: Region
) -> None:
    one, _ = hosts_of(cluster, region)
    cluster.network.unplug(one)
    region.until_checkpoints(3)
    cluster.network.plug(one)
    region.until_checkpoints(3)


@long_only
@pytest.mark.parametrize("seconds", [5, 60])
def test_a_host_that_is_cut_off_for_a_while(cluster: Cluster, region: Region, seconds: int) -> None:
    one, _ = hosts_of(cluster, region)
    cluster.network.unplug(one)
    region.pass_time(seconds)
    cluster.network.plug(one)
    region.until_checkpoints(3)


@long_only
def test_a_driver_that_cannot_reach_the_store_waits(cluster: Cluster, region: Region) -> None:
    for server in cluster.servers:
        cluster.network.part(cluster.driver, server)
    region.until(lambda: region.state == "WAITING_FOR_STORE", "waiting for the store", 60)
    cluster.network.heal()
    region.until_checkpoints(3)


def test_two_of_three_servers_that_are_cut_off_stop_checkpoints_until_they_return(
    cluster: Cluster, region: Region
) -> None:
    for server in cluster.servers[:2]:
        cluster.network.unplug(server)
    region.until(lambda: region.state == "WAITING_FOR_STORE", "waiting for the store", 60)
    for server in cluster.servers[:2]:
        cluster.network.plug(server)
    region.until_checkpoints(3)


@long_only
def test_packets_that_are_lost_at_random_delay_checkpoints_only(cluster: Cluster, region: Region) -> None:
    for host in hosts_of(cluster, region):
        cluster.network.lose(host, 0.01)
    region.until_checkpoints(10)
    assert not region.resets, region


def test_a_host_that_is_lost_for_ever_is_replaced_by_another(cluster: Cluster, region: Region) -> None:
    """The last test of this file: the cluster is a host smaller after it."""
    one, _ = hosts_of(cluster, region)
    one.end()
    region.until_checkpoints(3)
    assert one.name not in region.hosts.values(), region

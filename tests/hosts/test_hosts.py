"""Regions on several hosts, with the faults of a network between them. After each, every count is exact.

The hosts, the servers and Spark are shared by all tests of this file; each test runs one region.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.cluster import Cluster, Region, open_cluster
from tests.hosts.network import Host
from tests.support.parts import with_long

pytestmark = pytest.mark.timeout(600)

ROWS = 1_500_000
"""A worker with slow user code reads about 3,400 of them a second: they last for almost four minutes."""
KEYS = 97
RANDOM_S, RANDOM_ROWS = 600, 9_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three servers, a master, a driver and three hosts for executors."""
    with open_cluster(tmp_path_factory.mktemp("hosts"), workers=3) as cluster:
        yield cluster


def test_a_server_is_not_started_where_no_other_machine_can_connect(cluster: Cluster, tmp_path: Path) -> None:
    refused = cluster.dos(
        "serve", "--data", str(tmp_path), "--listen", "d.local:9999", "--insecure", check=False
    )
    assert refused.returncode == 2
    assert "d.local is 127.0.1.1 on this machine, which no other machine can reach" in refused.stderr


@pytest.fixture
def region(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Region]:
    """A region that runs with two workers on two hosts. At the end it finishes, and its output is exact."""
    region = cluster.run(request.node.name.replace("[", "-").replace("]", ""), ROWS)
    assert len(set(region.hosts.values())) == 2, region
    yield region
    cluster.network.heal()
    region.finish()
    assert cluster.output(region) == exact_counts(ROWS)


def exact_counts(rows: int) -> dict[str, int]:
    return {f"k{key}": len(range(key, rows, KEYS)) for key in range(KEYS)}


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


SEPARATIONS: tuple[Separate, ...] = (both_ways, one_way, refused)


def slow_host(cluster: Cluster, one: Host, _: Host) -> None:
    cluster.network.slow_down(one, delay_s=0.05, loss=0.01)


def vanished_connections(cluster: Cluster, one: Host, _: Host) -> None:
    cluster.network.vanish(one)


def unplugged(cluster: Cluster, one: Host, _: Host) -> None:
    cluster.network.unplug(one)


def stopped_host(_: Cluster, one: Host, __: Host) -> None:
    one.signal_all("STOP")


@pytest.mark.parametrize("separate", with_long(SEPARATIONS[:1], SEPARATIONS[1:]))
def test_workers_that_cannot_reach_each_other_continue_on_another_host(
    cluster: Cluster, region: Region, separate: Separate
) -> None:
    before = hosts_of(cluster, region)
    separate(cluster, *before)
    region.until_checkpoints(3)
    assert {host.name for host in before} != set(region.hosts.values()), region


def test_connections_that_vanish_without_a_reset_are_replaced(cluster: Cluster, region: Region) -> None:
    one = next(host for host in hosts_of(cluster, region) if host != cluster.workers[-1])
    connections = one.run("ss", "--no-header", "--tcp", "--numeric", "state", "established").stdout
    assert one.back_address in connections, f"the address that it advertises is not used: {connections}"
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


@pytest.mark.long(ci=False)
@pytest.mark.parametrize("seconds", [5, 60])
def test_a_host_that_is_cut_off_for_a_while(cluster: Cluster, region: Region, seconds: int) -> None:
    one, _ = hosts_of(cluster, region)
    cluster.network.unplug(one)
    region.pass_time(seconds)
    cluster.network.plug(one)
    region.until_checkpoints(3)


@pytest.mark.long(ci=False)
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


@pytest.mark.long(ci=False)
def test_a_slow_and_lossy_network_delays_checkpoints_only(cluster: Cluster, region: Region) -> None:
    for host in hosts_of(cluster, region):
        cluster.network.slow_down(host, delay_s=0.05, loss=0.01)
    region.until_checkpoints(10)
    assert not region.resets, region


@pytest.mark.long(ci=False)
@pytest.mark.timeout(RANDOM_S + 600)
def test_random_faults_for_ten_minutes(cluster: Cluster) -> None:
    """Up to three faults at once, for up to 20 s, and a pause in which they are healed."""
    seed = int(os.environ.get("DOS_HOSTS_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"repeat these faults with DOS_HOSTS_SEED={seed}")
    chance = random.Random(seed)
    region = cluster.run(f"random-{seed}", RANDOM_ROWS)
    until = time.monotonic() + RANDOM_S
    while time.monotonic() < until:
        for _ in range(chance.randint(1, 3)):
            fault = chance.choice([*SEPARATIONS, slow_host, vanished_connections, unplugged, stopped_host])
            two = chance.sample([*cluster.workers, *cluster.servers, cluster.driver], 2)
            print(f"{fault.__name__} {two[0].name} {two[1].name}")
            fault(cluster, *two)
        region.pass_time(chance.uniform(1, 20))
        for host in cluster.network.hosts.values():
            host.signal_all("CONT")
        cluster.network.heal()
        region.until_checkpoints(2)
    region.finish()
    assert cluster.output(region) == exact_counts(RANDOM_ROWS)


def test_a_host_that_is_lost_for_ever_is_replaced_by_another(cluster: Cluster, region: Region) -> None:
    """The last test of this file: the cluster is a host smaller after it."""
    one, _ = hosts_of(cluster, region)
    one.end()
    region.until_checkpoints(3)
    assert one.name not in region.hosts.values(), region

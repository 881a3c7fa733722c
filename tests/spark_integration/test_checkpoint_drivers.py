"""A query of Spark's own whose driver dies, stops, or has a double: the next driver has only the URL of the
store, and its state is that of an undisturbed run.

The query is held at the moment in which the driver is killed (`checkpoint_program`), and the tree shows that
it is that moment.
"""

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from dos_client import init_store
from tests.dos_gateway.gateways import GatewayProcess
from tests.spark_integration.checkpoint_drivers import MOMENT_S_MAX, DriverProcess
from tests.spark_integration.checkpoint_program import Order, is_whole
from tests.spark_integration.through_program import Holds
from tests.support.dos_command import dos
from tests.support.parts import with_long
from tests.support.polling import until
from tests.support.servers import ServerProcess, three_servers, url_of

__all__ = ["three_servers"]
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(600)]
CONCURRENT = re.compile("CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using")
"""Spark's error of a query whose micro-batch another one has written, before it looked or after."""


@pytest.fixture
def url(three_servers: list[ServerProcess]) -> str:
    trio.run(init_store, url_of(three_servers))
    return url_of(three_servers, "orders")


def files(url: str, path: str) -> set[str]:
    """The names in a directory of the checkpoint, as they are in the store, without temporary files."""
    listed = dos("gateway", "ls", url, f"/totals/{path}").stdout.splitlines()
    return {name for line in listed if not (name := line.split()[1]).startswith(".")}


def under_way(url: str) -> tuple[int, set[int]]:
    """How many micro-batches are committed, and which were begun and are not."""
    begun, committed = (set(map(int, files(url, log))) for log in ("offsets", "commits"))
    return len(committed), begun - committed


def versions(url: str) -> list[int]:
    """How many versions of the state of each partition are committed."""
    return [
        len({name.partition(".")[0] for name in files(url, f"state/0/{partition}") if name[0].isdigit()})
        for partition in range(2)
    ]


def everything(url: str) -> dict[str, set[str]]:
    return {path: files(url, path) for path in ("offsets", "commits", "state/0/0", "state/0/1")}


def test_a_query_whose_driver_is_killed_continues_on_an_empty_machine(url: str, tmp_path: Path) -> None:
    """It is killed after its last micro-batch is shown and before it is committed."""
    holds = Holds(tmp_path)
    holds.hold("first.shown1")
    with DriverProcess(tmp_path) as first, DriverProcess(tmp_path) as second:
        first.order(Order("first", last=9, url=url))
        first.until(partial(holds.reached, "first.shown1"))
        assert under_way(url) == (1, {1})
        first.kill()
        first.wait_nothing_left()
        assert is_whole(second.finished(Order("second", last=2, url=url)), 3)
        assert second.heard("place") == first.heard("place")
        assert second.heard("batch")[0] == {"event": "batch", "batch": 1}


@pytest.mark.parametrize(
    "provider", with_long([], ["RocksDBStateStoreProvider"], ["HDFSBackedStateStoreProvider"])
)
def test_a_driver_is_killed_in_every_part_of_a_micro_batch_and_replaced(
    url: str, tmp_path: Path, provider: str
) -> None:
    """When the offsets are written; when the state of half of the partitions is committed; before the commit,
    while its gateway hangs: Linux ends what is stopped and orphaned.
    """
    holds = Holds(tmp_path)
    order = partial(Order, url=url, provider=provider, halves=True)
    with ExitStack() as stack:
        drivers = [stack.enter_context(DriverProcess(tmp_path)) for _ in range(2)]

        def held_at(number: int, moment: str) -> DriverProcess:
            """The driver of this number, which is held there; the one after it begins to start."""
            drivers.append(stack.enter_context(DriverProcess(tmp_path)))
            holds.hold(f"d{number}.{moment}")
            drivers[number].order(order(f"d{number}", last=9))
            drivers[number].until(partial(holds.reached, f"d{number}.{moment}"))
            return drivers[number]

        driver = held_at(0, "begun1")
        assert (under_way(url), versions(url)) == ((1, {1}), [1, 1])
        driver.kill()
        driver.wait_nothing_left()

        driver = held_at(1, "half2")
        assert (under_way(url), versions(url)) == ((2, {2}), [3, 2])
        driver.kill()
        driver.wait_nothing_left()

        driver = held_at(2, "shown3")
        assert (under_way(url), versions(url)) == ((3, {3}), [4, 4])
        driver.gateway.suspend()
        driver.kill()
        driver.wait_nothing_left()
        assert is_whole(drivers[3].finished(order("d3", last=4)), 5)


@pytest.mark.long
@pytest.mark.parametrize("lives", [True, False], ids=["the next one lives", "the next one has ended"])
def test_a_driver_that_was_stopped_commits_nothing_when_it_is_woken(
    url: str, tmp_path: Path, lives: bool
) -> None:
    """It is stopped before a commit. While its gateway runs, the next driver is refused, with the reason.
    When that is stopped, too, the next one continues.
    """
    holds = Holds(tmp_path)
    holds.hold("first.shown1")
    with DriverProcess(tmp_path) as first, DriverProcess(tmp_path) as second:
        first.order(Order("first", last=9, url=url))
        first.until(partial(holds.reached, "first.shown1"))
        gateway = first.gateway
        first.stop()
        second.order(Order("second", last=9, url=url))
        assert "orders is served by" in second.error()
        gateway.suspend()
        assert is_whole(second.finished(Order("second", last=3, url=url)), 4)
        if not lives:
            second.kill()
            second.wait_nothing_left()
        before = everything(url)
        gateway.resume()
        first.wake()
        holds.release("first.shown1")
        error = first.error()
        assert "orders is served by" in error if lives else CONCURRENT.search(error)
        assert "orders: another gateway has taken over (epoch 2)" in first.log.read_text()
        assert everything(url) == before


@pytest.mark.parametrize("gateways", with_long([], [2], [1]))
def test_of_two_drivers_on_one_checkpoint_one_continues(url: str, tmp_path: Path, gateways: int) -> None:
    """Both have the same micro-batch, and one of them commits it. That one is killed later, and the other
    one continues.
    """
    holds = Holds(tmp_path)
    with ExitStack() as stack:
        served = [stack.enter_context(GatewayProcess(url)) for _ in range(gateways)]
        at = [f"127.0.0.1:{one.port}" for one in served]
        found = dos("gateway", "confs", url, *at).stdout.splitlines()
        confs = dict(line.removeprefix("spark.hadoop.").split(" ", 1) for line in found)
        order = partial(Order, place=f"webhdfs://{confs['dfs.nameservices']}", confs=confs)
        drivers = {name: stack.enter_context(DriverProcess(tmp_path)) for name in "ab"}
        for name, driver in drivers.items():
            holds.hold(f"{name}.shown1", f"{name}.shown3")
            driver.order(order(name, last=9))
            driver.until(partial(holds.reached, f"{name}.shown1"))
        assert under_way(url) == (1, {1})
        holds.release("a.shown1", "b.shown1")
        until(lambda: any(one.heard("failed") for one in drivers.values()), "one fails", MOMENT_S_MAX)
        (loser,) = (name for name, driver in drivers.items() if driver.heard("failed"))
        (winner,) = drivers.keys() - {loser}
        assert CONCURRENT.search(drivers[loser].error())
        drivers[winner].until(partial(holds.reached, f"{winner}.shown3"))
        assert under_way(url) == (3, {3})
        drivers[winner].kill()
        holds.release(f"{loser}.shown3")
        assert is_whole(drivers[loser].finished(order(loser, last=4)), 5)

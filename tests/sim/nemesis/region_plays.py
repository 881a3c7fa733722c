"""Sequences of faults on a region in which the order matters, and which random faults do not reach.

    reset_at_a_step     a user requests a reset exactly at a step of the coordinator: it is unknown whether
                        an append in flight was committed, and the same driver must find out (R11, V10)
    claimed_at_a_checkpoint    another driver claims the manifest while a checkpoint is being appended to it
    late_rows           a worker that has read all its rows becomes slow, and executes steps after another
                        worker has read its last row
    left_behind         a worker waits for the lock of its output since before its driver died, and gets it
                        when a later incarnation has committed more (row 36)
    request_at_a_start  a user requests the end, or a reset, while a driver waits for its workers, or for
                        their restore: of a region that begins, or whose driver is a new one

The last is planned by a stream of its own, at most once in a run, because most runs begin only once.

As in `scripts`. A play uses which processes run and how far the input is read, not the bugs of the code.
"""

from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final

from checkpoint.core.coordination.vocabulary import ResetWanted, StopWanted
from tests.sim.nemesis.fault import Fault, Kind
from tests.sim.regions.driver import Driver
from tests.sim.regions.region import STEP_ROWS, Region
from tests.sim.regions.worker import Worker

if TYPE_CHECKING:
    from tests.sim.run import Cluster

SHARE: Final = 0.5
"""The share of the runs with a region that has plays."""
MOMENTS: Final = (
    "appends a checkpoint",
    "appends a checkpoint",
    "event: CheckpointAppended",
    "sent: RequestCheckpoint",
    "sent: Start",
)
_POLL_S: Final = 0.02
_PATIENCE_S: Final = 6.0


class Play:
    """One play: its cluster, its region, its random stream."""

    def __init__(self, cluster: "Cluster", region: Region, rng: Random) -> None:
        self.cluster = cluster
        self.region = region
        self.rng = rng

    async def sleep(self, seconds: float) -> None:
        await self.cluster.nemesis.sleep(seconds)

    async def until(self, found: Callable[[], Any], patience_s: float = _PATIENCE_S) -> Any:
        """Return the result of `found` as soon as it is true; None if it stays false for `patience_s`."""
        deadline = self.cluster.env.now + patience_s
        while self.cluster.env.now < deadline:
            what = found()
            if what:
                return what
            await self.sleep(_POLL_S)
        return None

    def driver_without_power(self) -> None:
        """Cut the power of the running driver, without notice."""
        driver = self.region.running
        if driver is not None:
            self.cluster.network.process_died(driver, power=True)
            driver.kill()

    def waits_for_lock(self, index: int, but: "tuple[Worker, ...]") -> Worker | None:
        """Return a process of that worker that waits for the lock of its output."""
        for one in self.region.living_workers():
            if one.index == index and one not in but and one.inbox.next_restores:
                return one
        return None


async def reset_at_a_step(play: Play) -> None:
    moment, delay_s = play.rng.choice(MOMENTS), play.rng.choice([0.0, 0.0005, 0.002, 0.006])
    cluster = play.cluster

    def request() -> None:
        driver = play.region.running
        if driver is not None and not cluster.healed:
            cluster.note("nemesis", f"at {moment}: a reset is requested")
            driver.post(ResetWanted())

    play.region.at_next(moment, lambda: cluster.env.after(delay_s, request))


async def claimed_at_a_checkpoint(play: Play) -> None:
    """The second driver has the manifest claimed for a while, or dies during it."""
    cluster, region, rng = play.cluster, play.region, play.rng
    moment, delay_s = (
        rng.choice(["sent: RequestCheckpoint", "voted", "appends a checkpoint"]),
        rng.choice([0.0, 0.1, 0.3]),
    )
    survives_s = rng.choice([0.3, 0.6, 30.0])

    def die(driver: Driver) -> None:
        if driver.alive and not cluster.healed:
            cluster.network.process_died(driver, power=False)
            driver.kill()

    def come() -> None:
        if region.running is not None and not region.finished and not cluster.healed:
            cluster.note("nemesis", f"at {moment}: another driver starts")
            cluster.env.after(survives_s, die, region.new_driver())

    region.at_next(moment, lambda: cluster.env.after(delay_s, come))


async def late_rows(play: Play) -> None:
    region = play.region

    def near_the_end() -> tuple[Worker, Worker] | None:
        """Return a worker that has some steps left, and one that has none."""
        left = {one: region.readers[one.index].rows_left for one in _at_work(region)}
        late = [one for one, rows in left.items() if 2 * STEP_ROWS < rows <= 6 * STEP_ROWS]
        done = [one for one, rows in left.items() if not rows]
        return (late[0], done[0]) if late and done else None

    pair = await play.until(near_the_end, 2 * _PATIENCE_S)
    if pair is None:
        return
    late, done = pair
    play.cluster.note(
        "nemesis", f"{done.name} has read all rows, {late.name} has not, and {done.name} becomes slow"
    )
    done.slowness = play.rng.choice([1.5, 2.0, 3.0, 4.0])
    await play.until(lambda: not late.alive or not region.readers[late.index].rows_left)
    await play.sleep(play.rng.choice([0.5, 1.0, 2.0]))
    done.slowness = 1.0


async def left_behind(play: Play) -> None:
    region, network = play.region, play.cluster.network
    holders = [one for one in _at_work(region) if region.output.holders.get(one.index) is one]
    if not region.made or not holders:
        return
    first = play.rng.choice(holders)
    first.pause()
    play.driver_without_power()
    second = await play.until(lambda: play.waits_for_lock(first.index, (first,)))
    if second is not None:
        second.pause()
        play.driver_without_power()
        third = await play.until(lambda: play.waits_for_lock(first.index, (first, second)))
        first.die("killed")
        if third is not None:
            checkpoints = len(region.record.committed)
            await play.until(lambda: len(region.record.committed) > checkpoints or not third.alive)
            await play.sleep(play.rng.choice([0.0, 0.3]))
            third.die("killed")
        second.resume()
    network.process_died(first, power=False)
    first.die("killed")


async def request_at_a_start(play: Play) -> None:
    region, rng = play.region, play.rng
    moment = rng.choice(["coordinator: OPENING to GATHERING"] * 3 + ["coordinator: GATHERING to RESTORING"])
    wanted, delay_s = rng.choice([StopWanted(), StopWanted(), ResetWanted()]), rng.choice([0.0, 0.001, 0.05])

    def request() -> None:
        driver = region.running
        if driver is not None and not play.cluster.healed:
            play.cluster.note("nemesis", f"at {moment}: {type(wanted).__name__}")
            driver.post(wanted)

    region.at_next(moment, lambda: play.cluster.env.after(delay_s, request))
    if region.made:
        play.driver_without_power()


def _at_work(region: Region) -> list[Worker]:
    """Return the processes that read input."""
    return [one for one in region.living_workers() if not one.paused and one.loop.busy]


def _kind(play: Callable[[Play], Coroutine[Any, Any, None]]) -> Kind:
    def begin(cluster: "Cluster", fault: Fault, rng: Random) -> None:
        if cluster.region is not None:
            cluster.nemesis.start(fault.kind, play(Play(cluster, cluster.region, rng)))

    return begin


REGION_PLAYS: Final[dict[str, Kind]] = {
    play.__name__: _kind(play) for play in (reset_at_a_step, claimed_at_a_checkpoint, late_rows, left_behind)
}
REGION_ACTS: Final[dict[str, Kind]] = {request_at_a_start.__name__: _kind(request_at_a_start)}
_ACTS_SHARE: Final = 0.08


def plan_acts(seed: int, rng: Random, seconds: float, first: int) -> list[Fault]:
    """Return the request at a start, in few of the runs: the region's first start, or that of another
    driver."""
    if rng.random() >= _ACTS_SHARE:
        return []
    at = rng.choice([0.0, rng.uniform(0.0, 0.7 * seconds)])
    return [Fault(first, at, rng.choice(list(REGION_ACTS)), 1.0, f"{seed}/fault/{first}")]


def plan_plays(seed: int, rng: Random, seconds: float, first: int) -> list[Fault]:
    """Return the plays of a run with a region, numbered from `first` on: none in half of the runs, otherwise
    one to three."""
    if rng.random() >= SHARE:
        return []
    moments = sorted(rng.uniform(0.5, 0.7 * seconds) for _ in range(rng.randint(1, 3)))
    return [
        Fault(number, at, rng.choice(list(REGION_PLAYS)), 1.0, f"{seed}/fault/{number}")
        for number, at in enumerate(moments, first)
    ]

"""Drivers and workers of a region that die, lose power, pause, run twice, or lose their links.

As in `clients`. A kind has no effect in a run without a region, or without a living process of that kind.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from checkpoint.core.coordination.vocabulary import CheckpointWanted, PauseWanted, ResetWanted, StopWanted
from tests.sim.engine.environment import Process
from tests.sim.history import ViolationError
from tests.sim.nemesis.fault import Fault, by_name
from tests.sim.regions.driver import Driver
from tests.sim.regions.region import Region
from tests.sim.regions.worker import Worker

if TYPE_CHECKING:
    from tests.sim.run import Cluster

DRIVERS_MAX: Final = 3
"""Maximum number of drivers at a time."""
MOMENTS: Final = (
    "event: ManifestOpened",
    "event: CheckpointAppended",
    "participant: RESTORING to RESTORED",
    "participant: RESTORED to RUNNING",
    "sent: Restore",
    "sent: Start",
    "sent: RequestCheckpoint",
    "sent: Committed",
    "voted",
    "appends a checkpoint",
    "manifest opens",
)
"""Steps of a coordinator and its workers, at or after which one of them dies."""


def kill_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """SIGKILL; the launcher notices."""
    worker = _worker(cluster, rng)
    if worker is not None:
        worker.die("killed")


def power_cut_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Its machine is gone: what its outputs had not synced is lost at random, without immediate notice."""
    worker = _worker(cluster, rng)
    region = cluster.region
    if worker is not None and region is not None:
        for process in [one for one in region.living_workers() if one.index == worker.index]:
            cluster.network.process_died(process, power=True)
            process.die("lost its power")
        region.output.disks[worker.index].power_cut(rng)


def pause_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    _pause(cluster, fault, rng, _worker(cluster, rng))


def zombie_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A worker is paused; its driver dies, or cannot reach it, and another replaces it; then it continues."""
    worker, driver = _worker(cluster, rng), _driver(cluster, rng)
    if worker is None or driver is None:
        return
    worker.pause()
    cluster.env.after(fault.seconds + rng.choice([2.0, 6.0]), worker.resume)
    if rng.random() < 0.5:
        _kill_driver(cluster, driver, power=False)
    else:
        for path in ((worker.name, driver.name), (driver.name, worker.name)):
            cluster.network.block(path)
            cluster.env.after(fault.seconds + 6.0, lambda path=path: cluster.network.unblock(path))


def kill_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    driver = _driver(cluster, rng)
    if driver is not None:
        _kill_driver(cluster, driver, power=rng.random() < 0.3)


def kill_at_a_step(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The next time a certain step happens, a driver or a worker dies: at once, or a moment later."""
    region = cluster.region
    if region is None:
        return
    moment, delay_s = rng.choice(MOMENTS), rng.choice([0.0, 0.0, 0.001, 0.01])
    of_driver, power = rng.random() < 0.6, rng.random() < 0.5

    def strike() -> None:
        driver, worker = _driver(cluster, rng), _worker(cluster, rng)
        if cluster.healed:
            return
        if of_driver and driver is not None:
            cluster.note("nemesis", f"at {moment}: {driver.name} dies")
            _kill_driver(cluster, driver, power=power)
        elif worker is not None:
            cluster.note("nemesis", f"at {moment}: {worker.name} dies")
            worker.die("killed")

    region.at_next(moment, lambda: cluster.env.after(delay_s, strike))


def pause_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    _pause(cluster, fault, rng, _driver(cluster, rng))


def second_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Another driver of the same region, while one runs or is paused."""
    region = cluster.region
    living = [] if region is None else [one for one in region.drivers if one.alive and one.end is None]
    if region is None or region.finished or not living or len(living) >= DRIVERS_MAX:
        return
    if rng.random() < 0.5:
        living[-1].pause()
        cluster.env.after(fault.seconds + 1.0, living[-1].resume)
    region.new_driver()


def break_link(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A connection between processes of the region is reset."""
    names = set(_names(cluster.region))
    wires = [
        wire
        for wire in cluster.network.wires
        if wire.open and not wire.muted and all(one.name in names for one in wire.processes)
    ]
    if wires:
        rng.choice(wires).reset()


def hold_link(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """What one process of the region sends another arrives late: after later messages of others, or a
    reset."""
    names = _names(cluster.region)
    if len(names) > 1:
        here, there = rng.sample(names, 2)
        cluster.network.block((here, there))
        cluster.env.after(
            fault.seconds * rng.choice([1.0, 3.0]), lambda: cluster.network.unblock((here, there))
        )


def bad_row(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A row that cannot be read: an operator fails, the region ends, a person corrects it."""
    region = cluster.region
    if region is not None and region.made:
        region.broken = True


def user_request(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A user requests a checkpoint, a reset or the end; after the end it is started again."""
    driver = _driver(cluster, rng)
    if driver is not None:
        wanted = rng.choice([CheckpointWanted(), CheckpointWanted(), ResetWanted(), StopWanted()])
        cluster.history.sometimes[f"user request: {type(wanted).__name__}"] += 1
        driver.post(wanted)


def pause_region(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A user pauses the region for a while. The last checkpoint contains all input taken until then."""
    driver = _driver(cluster, rng)
    if driver is None:
        return
    driver.post(PauseWanted(on=True))

    def go_on() -> None:
        if driver.alive and driver.end is None:
            _check_paused(cluster, driver)
            driver.post(PauseWanted(on=False))

    cluster.env.after(fault.seconds * rng.choice([1.0, 3.0]), go_on)


def _check_paused(cluster: "Cluster", driver: Driver) -> None:
    run, checkpoints = driver.core.run, driver.core.checkpoints
    if (
        cluster.region is None
        or not checkpoints.is_paused
        or checkpoints.pending is not None
        or run.last_checkpoint is None
    ):
        return
    cluster.history.sometimes["region: paused"] += 1
    for worker in cluster.region.living_workers():
        shared = worker.shared
        if shared.incarnation == run.incarnation and shared.step > run.last_checkpoint.step:
            raise ViolationError(
                "O7",
                f"region paused at checkpoint {run.last_checkpoint.number} of step"
                f" {run.last_checkpoint.step}, and worker {worker.index} has ended step {shared.step}",
            )


REGION_KINDS: Final = by_name(
    *(kill_worker, power_cut_worker, pause_worker, zombie_worker),
    *(kill_driver, kill_at_a_step, pause_driver, second_driver),
    *(break_link, hold_link, bad_row, user_request, pause_region),
)


def plan_region(seed: int, rng: Random, seconds: float, first: int) -> list[Fault]:
    """Return the faults of a region within `seconds`, numbered from `first` on. They are few, because a
    region needs time to reach a state in which the next fault matters."""
    on = [kind for kind in REGION_KINDS if rng.random() < 0.4] or [rng.choice(list(REGION_KINDS))]
    pace = rng.choice([0.2, 0.4, 0.8])
    faults: list[Fault] = []
    at = 0.3
    while (at := at + rng.expovariate(pace)) < seconds:
        number = first + len(faults)
        length = rng.choice([0.1, 0.3, 1.0, 3.0]) * (0.5 + rng.random())
        faults.append(Fault(number, at, rng.choice(on), length, f"{seed}/fault/{number}"))
    return faults


def _names(region: Region | None) -> list[str]:
    if region is None:
        return []
    return [one.name for one in (*region.drivers, *region.workers) if one.alive]


def _worker(cluster: "Cluster", rng: Random) -> Worker | None:
    living = [] if cluster.region is None else cluster.region.living_workers()
    return rng.choice(living) if living else None


def _driver(cluster: "Cluster", rng: Random) -> Driver | None:
    drivers = [] if cluster.region is None else cluster.region.drivers
    living = [one for one in drivers if one.alive and one.end is None]
    return rng.choice(living) if living else None


def _pause(cluster: "Cluster", fault: Fault, rng: Random, process: Process | None) -> None:
    if process is not None:
        process.pause()
        cluster.env.after(fault.seconds * rng.choice([1.0, 3.0]), process.resume)


def _kill_driver(cluster: "Cluster", driver: Driver, *, power: bool) -> None:
    cluster.network.process_died(driver, power=power)
    driver.kill()

"""Faults of a run with a region: those of its store, and of its drivers and workers.

As in `tests.shells.nemesis`. A process here cannot be stopped and continued; instead it is cut off from the
network in both directions.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from checkpoint.core.coordination.vocabulary import CheckpointWanted, ResetWanted, StopWanted
from tests.shells import nemesis as store
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis.fault import Fault
from tests.sim.nemesis.regions import MOMENTS

if TYPE_CHECKING:
    from tests.shells.region.process import Driver
    from tests.shells.region.region import ShellRegion
    from tests.shells.region.worker import Worker
    from tests.shells.run import Cluster

Kind = Callable[["Cluster", Fault, Random], None]
DRIVERS_MAX: Final = 3
"""Maximum number of drivers at a time."""


def kill_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """SIGKILL; the launcher notices."""
    worker = _worker(cluster, rng)
    if worker is not None:
        worker.die("killed")


def power_cut_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Its machine is lost without notice, with what its outputs had not synced."""
    worker, region = _worker(cluster, rng), _region(cluster)
    if worker is not None:
        for process in [one for one in region.workers if one.alive and one.index == worker.index]:
            process.power_cut()
        region.output.disks[worker.index].power_cut(rng)


def kill_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    driver = _driver(cluster, rng)
    if driver is not None:
        driver.kill()


def power_cut_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    driver = _driver(cluster, rng)
    if driver is not None:
        driver.power_cut()


def second_driver(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Another driver of the same region, while one runs or is cut off."""
    region = _region(cluster)
    living = [one for one in region.drivers if one.alive and one.end is None]
    if region.finished or not living or len(living) >= DRIVERS_MAX:
        return
    if rng.random() < 0.5:
        living[-1].cut_off(fault.seconds + 1.0)
    region.new_driver()


def zombie_worker(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A worker is cut off until another has replaced it; then its messages arrive."""
    worker = _worker(cluster, rng)
    if worker is not None:
        worker.cut_off(fault.seconds + rng.choice([2.0, 6.0]))


def cancel_process(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A driver or worker is canceled before a random step of any task."""
    processes = _region(cluster).processes
    if processes:
        process = rng.choice(processes)
        at = cluster.count.steps + rng.randint(1, 300)
        cluster.count.at.setdefault(at, []).append(process.scope.cancel)


def kill_at_a_step(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The next time a certain step happens, a driver or a worker dies: at once, or a moment later."""
    region = _region(cluster)
    moment, delay_s = rng.choice(MOMENTS), rng.choice([0.0, 0.0, 0.001, 0.01])
    of_driver = rng.random() < 0.5

    def die() -> None:
        process = _driver(cluster, rng) if of_driver else _worker(cluster, rng)
        if process is not None and not cluster.healed:
            cluster.note("nemesis", f"at {moment}: {process.name} dies")
            process.kill()

    region.at_next(moment, lambda: cluster.later(delay_s, die))


def reset_link(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A connection between processes of the region is reset."""
    names = {one.name for one in _region(cluster).processes}
    links = [one for one in cluster.network.sockets if one.host in names and one.peer.host in names]
    if links:
        cluster.network.reset(rng.choice(links))


def stall_link(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """What one process of the region sends another does not arrive for a while: frames, or heartbeats."""
    names = [one.name for one in _region(cluster).processes]
    if len(names) > 1:
        here, there = rng.sample(names, 2)
        cluster.network.block(here, there)
        cluster.later(fault.seconds * rng.choice([1.0, 3.0]), cluster.network.unblock, here, there)


def no_quorum(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """All members but one are unavailable for a while."""
    for machine in rng.sample(cluster.machines, max(1, len(cluster.machines) - 1)):
        machine.kill()
        cluster.later(fault.seconds, cluster.start, machine)


def bad_row(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A row that cannot be read: an operator fails, the region ends, a person corrects it."""
    region = _region(cluster)
    region.broken = region.made


def user_request(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A user requests a checkpoint, a reset or the end; after the end it is started again."""
    driver = _driver(cluster, rng)
    if driver is not None:
        driver.post(rng.choice([CheckpointWanted(), CheckpointWanted(), ResetWanted(), StopWanted()]))


def _region(cluster: "Cluster") -> "ShellRegion":
    assert cluster.region is not None
    return cluster.region


def _worker(cluster: "Cluster", rng: Random) -> "Worker | None":
    living = [one for one in _region(cluster).workers if one.alive]
    return rng.choice(living) if living else None


def _driver(cluster: "Cluster", rng: Random) -> "Driver | None":
    living = [one for one in _region(cluster).drivers if one.alive and one.end is None]
    return rng.choice(living) if living else None


KINDS: Final[dict[str, Kind]] = {
    kind.__name__: kind
    for kind in (
        *(kill_worker, power_cut_worker, kill_driver, power_cut_driver, second_driver, zombie_worker),
        *(cancel_process, kill_at_a_step, reset_link, stall_link, no_quorum, bad_row, user_request),
        *(store.kill_server, store.power_cut, store.power_cut_midway, store.reset, store.slow_network),
        *(store.slow_disk, store.full_disk, store.sync_error, store.power_cut_all),
    )
}


def plan(streams: RandomStreams, seconds: float) -> list[Fault]:
    """Return the faults of a run of `seconds`; most of the kinds are disabled. They are few, because a region
    needs time to reach a state in which the next fault matters."""
    rng = streams.nemesis
    on = [kind for kind in KINDS if rng.random() < 0.35] or [rng.choice(list(KINDS))]
    pace = rng.choice([0.4, 0.8, 1.6])
    faults: list[Fault] = []
    at = 0.2
    while (at := at + rng.expovariate(pace)) < seconds:
        number = len(faults)
        length = rng.choice([0.1, 0.3, 1.0, 3.0]) * (0.5 + rng.random())
        faults.append(Fault(number, at, rng.choice(on), length, f"{streams.seed}/fault/{number}"))
    return faults


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Perform the fault, unless the run is healed."""
    store.strike_with(KINDS, cluster, fault)

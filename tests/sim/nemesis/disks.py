"""Disks that are slow or hang, are full, fail once, or are lost."""

import errno
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.sim.nemesis.fault import Fault
from tests.sim.nemesis.machines import down_for

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def slow_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.slowness = rng.choice([10.0, 100.0, 1000.0])

    def restore() -> None:
        machine.slowness = 1.0

    cluster.env.after(fault.seconds, restore)


def full_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.disk.fill(rng.choice([0, 100, 2000]))
    cluster.env.after(fault.seconds, machine.disk.free)


def stalled_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A disk hangs for seconds, or longer than all time-outs."""
    machine = rng.choice(cluster.machines)
    machine.hangs = True
    cluster.env.after(rng.choice([1.0, 3.0, 10.0, 60.0]) * (0.5 + rng.random()), machine.go_on)


def short_of_space(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Space becomes available and full again in moments, while a writer appends fast: of the appends in
    flight one may fit although the one before it did not."""
    machine, env = rng.choice(cluster.machines), cluster.env
    for writer in cluster.living_writers():
        writer.hurries_until = env.now + 0.3
    at = 0.0
    while at < 0.5:
        at += rng.expovariate(1 / 0.05)
        env.after(at, cluster.unless_healed(partial(machine.disk.fill, rng.choice([0, 60, 200, 600]))))
        at += rng.choice([0.002, 0.01, 0.05])
        env.after(at, machine.disk.free)


def sync_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One sync fails; the data that it should have written is lost, and later syncs succeed."""
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.had_errors = True
        machine.disk.fail("sync", errno.EIO, nth=rng.randint(1, 3))


def write_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.had_errors = True
        machine.disk.fail("write", errno.EIO, nth=rng.randint(1, 3))


def failed_sync_then_power(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A failed sync, a restart that finds the lost bytes in the cache, and a power cut after which they are
    not on the platters."""
    machine, env = cluster.victim, cluster.env
    if not cluster.may_fail(machine):
        return
    machine.had_errors = True
    machine.disk.fail("sync", errno.EIO, nth=rng.randint(1, 2))
    killed_s = 0.05 + 0.5 * rng.random()
    cut_s = killed_s + 0.05 + fault.seconds

    def kill() -> None:
        if machine.up:
            machine.kill()
            machine.start()

    def cut() -> None:
        if machine.up:
            machine.power_cut()
            down_for(cluster, machine, 0.1 * rng.random())

    env.after(killed_s, cluster.unless_healed(kill))
    env.after(cut_s, cluster.unless_healed(cut))


def wipe(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The disk of the one machine that may be damaged is lost; the machine returns empty, as another
    server."""
    machine = cluster.victim
    if cluster.may_lose(machine):
        cluster.lose(machine, rng.randbytes(16))
        down_for(cluster, machine, fault.seconds)


def full_at_the_start(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The power fails while appends wait for slow syncs; when it returns there is no space for a copy of the
    torn tail (case N of a start)."""
    machine, env = rng.choice(cluster.machines), cluster.env
    machine.slowness = 300.0
    for writer in cluster.living_writers():
        writer.hurries_until = env.now + 0.3

    def cut() -> None:
        machine.slowness = 1.0
        if machine.up:
            machine.power_cut()
            machine.disk.fill(0)
            down_for(cluster, machine, 0.05)
            env.after(0.3 + fault.seconds, machine.disk.free)

    env.after(0.1 + 0.2 * rng.random(), cluster.unless_healed(cut))

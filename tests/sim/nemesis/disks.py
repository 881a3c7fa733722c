"""Disks that are slow or full, fail once, rot, or are lost."""

import errno
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

    cluster.world.after(fault.seconds, restore)


def full_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.disk.fill(rng.choice([0, 100, 2000]))
    machine.was_full = True
    cluster.world.after(fault.seconds, machine.disk.free)


def sync_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One failed sync; what it was to write is forgotten, and later ones succeed."""
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.disk.fail("sync", errno.EIO, nth=rng.randint(1, 3))


def write_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.disk.fail("write", errno.EIO, nth=rng.randint(1, 3))


def flip(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One bit of one object, of the one machine of a run that may be damaged, while it is down."""
    machine = cluster.victim
    if not cluster.may_fail(machine) or machine.without_power:
        return
    machine.kill()
    paths = [
        f"d/{folder}/{name}"
        for folder in sorted(machine.disk.names("d") or [])
        for name in sorted(machine.disk.names(f"d/{folder}") or [])
        if not name.startswith(".")
    ]
    if paths:
        path = rng.choice(paths)
        place = machine.disk.flip(path, rng)
        machine.flipped[path] = None
        cluster.note(machine.name, f"{path} has a bit flipped in byte {place}")
    down_for(cluster, machine, fault.seconds)


def wipe(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The disk of the one machine that may be damaged is lost; it comes back empty, as another server."""
    machine = cluster.victim
    if cluster.may_fail(machine):
        machine.kill()
        machine.lose_disk(rng.randbytes(16))
        down_for(cluster, machine, fault.seconds)

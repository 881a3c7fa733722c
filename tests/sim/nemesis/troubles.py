"""Faults that pass: missing descriptors and rights, too little memory, writes that the kernel ends early,
during work and while a server starts. Also faults that do not pass: a person removes a directory under a
server; reads and writes fail for a while.

A transient cause damages nothing, so it may affect every machine, and must have no lasting effect (O14). What
is removed or cannot be read is damage, which is limited (P-5).
"""

import errno
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.engine.disk import SimDisk
from tests.sim.nemesis.fault import Fault
from tests.sim.nemesis.machines import down_for
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine

OPENING: Final = frozenset(("names", "make_folder", "open", "sync_folder", "rename", "remove"))
"""Methods that open a folder or a file, and so need a descriptor and a right."""


def begin(disk: SimDisk, error: int, methods: frozenset[str], rng: Random) -> None:
    """Let all or some calls of these methods fail from now on. Not after the disk was full: bytes that it
    accepted cannot be removed then, so the object is poisoned (docs/decisions/0202)."""
    often, draws = rng.choice((0.1, 0.3, 1.0)), Random(rng.random())

    def trouble(method: str) -> int:
        return error if method in methods and not disk.was_full and draws.random() < often else 0

    disk.trouble = trouble


def end(disk: SimDisk) -> None:
    """End the cause."""
    disk.trouble = disk.short = None


def _passing(error: int, cluster: "Cluster", fault: Fault, rng: Random) -> None:
    disk = rng.choice(cluster.machines).disk
    begin(disk, error, OPENING, rng)
    cluster.env.after(fault.seconds, partial(end, disk))


def no_descriptors(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    _passing(errno.EMFILE, cluster, fault, rng)


def no_rights(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    _passing(errno.EACCES, cluster, fault, rng)


def short_writes(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The kernel writes only a part of a write, as after a signal; the disk may also be almost full."""
    disk = rng.choice(cluster.machines).disk
    disk.short = Random(rng.random())
    cluster.env.after(fault.seconds, partial(end, disk))


def trouble_at_the_start(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A server dies, with its machine or alone, perhaps again during its start; descriptors or rights that it
    needs to start, or to load its directories, are missing for a while."""
    machine, env = rng.choice(cluster.machines), cluster.env
    if not machine.up:
        return
    (machine.power_cut if rng.random() < 0.5 else machine.kill)()
    disk, error = machine.disk, rng.choice((errno.EMFILE, errno.EACCES))
    begin(disk, error, OPENING | {"read"} if rng.random() < 0.5 else OPENING, rng)
    if rng.random() < 0.3:
        disk.cut_in = rng.randint(1, 30)  # the power fails during that start
        env.after(fault.seconds + 1.0, machine.start)
    down_for(cluster, machine, 0.05 * rng.random())
    env.after(0.1 + fault.seconds, partial(end, disk))


def failing_medium(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Reads, writes or syncs of one machine fail for a while, at work or in its start."""
    machine = cluster.victim
    if not cluster.may_fail(machine):
        return
    machine.had_errors = True
    methods = frozenset(rng.sample(("read", "write", "sync", "sync_folder", "open"), rng.randint(1, 3)))
    if rng.random() < 0.5 and machine.up:
        machine.kill()
        down_for(cluster, machine, 0.05 * rng.random())
    begin(machine.disk, errno.EIO, methods, rng)
    cluster.env.after(fault.seconds, partial(end, machine.disk))


def removed_directory(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A person removes a directory with its content, all directories, or the group log, under a running
    server or before its start. The server detects it: nothing that it receives later may be acknowledged, and
    what is missing is never taken for empty. Later the person gives the server an empty disk."""
    machine = cluster.victim
    if not cluster.may_lose(machine) or machine.hangs or machine.without_power or machine.doomed is not None:
        return
    folders = removable_folders(machine)
    if not folders:
        return
    keeps_disk, folder = rng.random() < 0.5, rng.choice(folders)
    if machine.up and rng.random() < 0.3:
        machine.kill()
        down_for(cluster, machine, 0.05 * rng.random())
    machine.folder_is_removed(folder, rng.randbytes(16), keeps_disk=keeps_disk or not machine.up)
    if keeps_disk and rng.random() < 0.5:
        cluster.env.after(fault.seconds * rng.random(), partial(_restart, machine))
    cluster.env.after(fault.seconds + rng.choice([0.2, 3.5]), machine.give_empty_disk)


def removable_folders(machine: "Machine") -> list[str]:
    """Return the folders that a person could remove: directories most often."""
    disk = machine.disk
    there = [f"d/{one}" for one in disk.entries("d") if one != LOOSE and disk.entries(f"d/{one}")]
    if not there:
        return []
    return [*there, "d", *(["log"] if disk.entries("log") else [])]


def _restart(machine: "Machine") -> None:
    if machine.up and machine.doomed is not None:
        machine.kill()
        machine.start()

"""Faults that pass: missing descriptors and rights, too little memory, writes that the kernel ends early,
during work and while a server starts. Also faults that do not pass: a person removes a directory under a
server; reads and writes fail for a while.

A cause that passes damages nothing, so it may affect every machine, and must leave no effect (O14). What is
removed or cannot be read is damage, which is bounded (P-5).
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

OPENING: Final = frozenset(("names", "make_folder", "open", "sync_folder", "rename", "remove"))
"""Methods that open a folder or a file, and so want a descriptor and a right."""


def begin(disk: SimDisk, error: int, methods: frozenset[str], rng: Random) -> None:
    """From now on calls of these methods fail, all or some of them. Not while the disk is full: what it
    let in cannot be taken back then, and is poisoned (docs/decisions/0202)."""
    often, streams = rng.choice((0.1, 0.3, 1.0)), Random(rng.random())

    def trouble(method: str) -> int:
        return error if method in methods and not disk.was_full and streams.random() < often else 0

    disk.trouble = trouble


def end(disk: SimDisk) -> None:
    """The cause is gone."""
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
    """The kernel takes a part of a write, as after a signal; the disk may be almost full, too."""
    disk = rng.choice(cluster.machines).disk
    disk.short = Random(rng.random())
    cluster.env.after(fault.seconds, partial(end, disk))


def trouble_at_the_start(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A server dies, with its machine or alone, perhaps once more while it starts, and what it needs to
    start, or to load its directories, is missing for a while."""
    machine, env = rng.choice(cluster.machines), cluster.env
    if not machine.up:
        return
    (machine.power_cut if rng.random() < 0.5 else machine.kill)()
    disk, error = machine.disk, rng.choice((errno.EMFILE, errno.EACCES))
    begin(disk, error, OPENING | {"read"} if rng.random() < 0.5 else OPENING, rng)
    if rng.random() < 0.3:
        disk.cut_in = rng.randint(1, 30)  # the power goes in that start
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
    """A person removes a directory, with all that is in it, under a server at work. It cannot know before it
    syncs; nothing may be acknowledged of what comes after. The person then gives the server an empty disk."""
    machine = cluster.victim
    there = [one for one in machine.disk.entries("d") if one != LOOSE and machine.disk.entries(f"d/{one}")]
    if not cluster.may_lose(machine) or not machine.up or machine.hangs or not there:
        return
    directory = rng.choice(there)
    machine.directory_is_removed(directory, rng.randbytes(16))

    def lose() -> None:
        if machine.doomed is not None:
            machine.kill()
            machine.start()

    cluster.env.after(0.2 + fault.seconds, lose)

"""Faults of writers and clocks: writers that are paused, die, continue after another has taken over, append
fast, or have rivals; clocks of clients and servers that jump or drift."""

from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.engine.environment import Process
from tests.sim.nemesis.fault import Fault

if TYPE_CHECKING:
    from tests.sim.run import Cluster

RIVALS_MAX: Final = 5
"""Maximum number of writers of one directory at a time that rivals lead to."""


def pause_writer(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    living = cluster.living_writers()
    if living:
        writer = rng.choice(living)
        writer.pause()
        cluster.env.after(fault.seconds, writer.resume)


def zombie(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A writer is paused, another takes over, the first continues."""
    living = [writer for writer in cluster.living_writers() if writer.running]
    if living:
        writer = rng.choice(living)
        writer.pause()
        cluster.new_writer(writer.directory)
        cluster.env.after(fault.seconds + 1.0, writer.resume)


def kill_writer(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    living = cluster.living_writers()
    if living:
        writer = rng.choice(living)
        cluster.network.process_died(writer, power=rng.random() < 0.3)
        writer.kill()


def rival(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One or two more writers of a directory; not more, because the back-off is not made for many."""
    for _ in range(rng.randint(1, 2) if cluster.directories else 0):
        directory = rng.choice(cluster.directories)
        if sum(one.alive and one.directory == directory for one in cluster.writers) < RIVALS_MAX:
            cluster.new_writer(directory)


def hurry(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A writer appends almost without pauses for a moment."""
    living = cluster.living_writers()
    if living:
        rng.choice(living).hurries_until = cluster.env.now + min(fault.seconds, 0.1)


def _clocks(cluster: "Cluster") -> list[Process]:
    servers = [machine.server for machine in cluster.machines if machine.server is not None]
    return [*servers, *(one for one in (*cluster.writers, *cluster.readers) if one.alive)]


def clock_jump(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A machine was suspended, or its clock was set ahead: a minute or an hour has passed at once, and every
    time-out with it. (Monotonic clocks never decrease, and no other clock is read here.)"""
    rng.choice(_clocks(cluster)).offset += rng.choice([60.0, 3600.0])


def clock_drift(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A clock runs up to a tenth too fast or too slow from now on."""
    process = rng.choice(_clocks(cluster))
    now, process.skew = process.now, rng.uniform(-0.1, 0.1)
    process.offset += now - process.now

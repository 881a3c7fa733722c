"""What must be true of the processes of a region.

O10  a process that has ended left nothing open; between two there is one link each way; tasks are limited;
     workers end after their driver
O11  a silent worker is given up in time; after the heal the region finishes (`phases`)

O7 and O8 are the first tier's: `tests.sim.regions.record` on the way, `tests.sim.oracles.checkpoints` at the
end.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from dos_server.memory.network import here
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.shells.region.process import RegionProcess
    from tests.shells.region.region import ShellRegion

TASKS_MAX: Final = 150
"""Tasks of one process: those of its links, of its store's sessions and of its waits."""

NOTICED_S: Final = 3.0
"""Virtual seconds that a launcher and its driver's store may take in addition."""


def check_closed(process: "RegionProcess") -> None:
    """O10: check that an ended process left nothing open. Raises ViolationError."""
    network, name = process.cluster.network, process.name
    ends = [f"{one.port} to {one.peer.host}" for one in network.sockets if one.host == name]
    listening = [port for host, port in network.listeners if host == name]
    if ends or listening:
        raise ViolationError("O10", f"{name} has ended and left open {ends[:5]}, and ports {listening}")


def check_links(region: "ShellRegion") -> None:
    """O10: check that an incarnation's links end with it. The dialing end has the listener's port at the
    other end, the same each time. Raises ViolationError."""
    names = {process.name for process in region.processes}
    dialled = Counter(
        (one.host, one.peer.host, one.peer.port)
        for one in region.cluster.network.sockets
        if one.host in names and one.peer.host in names
    )
    for (host, peer, _), count in dialled.items():
        if count > 1:
            raise ViolationError("O10", f"{host} has {count} links to {peer}")


def check_tasks(region: "ShellRegion") -> None:
    """O10: check the number of tasks. Raises ViolationError."""
    tasks = Counter(task.context.get(here) for task in region.cluster.count.tasks)
    for process in region.processes:
        if tasks[process.name] > TASKS_MAX:
            raise ViolationError("O10", f"{process.name} has {tasks[process.name]} tasks")


def check_silence(region: "ShellRegion") -> None:
    """O11: check that silent workers are given up before a checkpoint or restore times out. Raises
    ViolationError."""
    for worker in region.workers:
        since = worker.silent_since
        if since is None or worker.given_up or not worker.driver.alive:
            continue
        silent = trio.current_time() - since
        if silent > region.spec.suspect_after_s + NOTICED_S:
            raise ViolationError("O11", f"{worker.name} is silent for {silent:.0f} s, and not given up")


def check_orphans(region: "ShellRegion") -> None:
    """O10: check that no worker outlives its driver for long. Raises ViolationError."""
    left = [one.name for one in region.workers if one.alive and not one.driver.alive]
    if left:
        raise ViolationError("O10", f"workers {left} are still there, their drivers are not")

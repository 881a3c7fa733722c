"""Servers that are killed, lose their power, or are paused for a while."""

from random import Random
from typing import TYPE_CHECKING

from tests.sim.nemesis.fault import Fault
from tests.sim.store.machine import Machine

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def down_for(cluster: "Cluster", machine: Machine, seconds: float) -> None:
    cluster.env.after(seconds, machine.start)


def kill_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.kill()
        down_for(cluster, machine, fault.seconds)


def power_cut(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.power_cut()
        down_for(cluster, machine, fault.seconds)


def power_cut_all(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    for machine in cluster.machines:
        if machine.up:
            machine.power_cut()
            down_for(cluster, machine, fault.seconds * rng.random())


def power_cut_midway(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.disk.cut_in = rng.randint(1, 30)

        def restart() -> None:
            machine.disk.cut_in = None
            machine.start()

        cluster.env.after(fault.seconds + 0.5, restart)


def pause_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    server = rng.choice(cluster.machines).server
    if server is not None and server.alive and not server.paused:
        server.pause()
        cluster.env.after(fault.seconds, server.resume)

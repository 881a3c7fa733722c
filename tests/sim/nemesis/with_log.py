"""Faults that only runs with a group log have: clean stops of servers, after which nothing may need the log,
and large appends among small ones.
"""

from random import Random
from typing import TYPE_CHECKING

from tests.sim.nemesis.fault import Fault
from tests.sim.nemesis.machines import down_for

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def stop_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A person stops a server and starts it again, perhaps by switching its machine off and on."""
    machine = rng.choice(cluster.machines)
    if not machine.up or machine.hangs:
        return
    machine.stop()
    if rng.random() < 0.6 and not machine.without_power:
        machine.power_cut()
    down_for(cluster, machine, fault.seconds)


def large_records(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Writers append large and small records in turn, while the disk of a server is slow; then its power
    fails. Large appends are synced in the file, small ones in the log."""
    machine, env = rng.choice(cluster.machines), cluster.env
    machine.slowness = rng.choice([3.0, 10.0, 30.0])
    for writer in cluster.living_writers():
        writer.hurries_until = writer.large_until = env.now + 0.4

    def cut() -> None:
        machine.slowness = 1.0
        if machine.up:
            machine.power_cut()
            down_for(cluster, machine, 0.1 * rng.random())

    env.after(0.05 + 0.35 * rng.random(), cluster.unless_healed(cut))

"""Faults of connections: blocked one way or both, late, thin, refused, reset, or zombie connections."""

from random import Random
from typing import TYPE_CHECKING

from tests.sim.nemesis.fault import Fault

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def block(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Block some paths, one way or both, between some machines and some or all clients."""
    machines = rng.sample(cluster.machines, rng.randint(1, len(cluster.machines)))
    clients = cluster.client_names()
    chosen = clients if rng.random() < 0.5 else rng.sample(clients, rng.randint(1, len(clients)))
    ways = rng.choice(["to", "from", "both"])
    for machine in machines:
        for client in chosen:
            paths = [(client, machine.name)] if ways != "from" else []
            paths += [(machine.name, client)] if ways != "to" else []
            for path in paths:
                cluster.network.block(path)
                cluster.env.after(fault.seconds, cluster.network.unblock, path)


def slow(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine, client = rng.choice(cluster.machines), rng.choice(cluster.client_names())
    path = rng.choice([(machine.name, client), (client, machine.name)])
    cluster.network.slow[path] = rng.choice([10.0, 100.0, 1000.0])
    cluster.env.after(fault.seconds, cluster.network.quicken, path)


def reset(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    wires = [wire for wire in cluster.network.wires if wire.open and not wire.muted]
    for wire in rng.sample(wires, min(len(wires), rng.randint(1, 4))):
        wire.reset()


def thin(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A path that carries one KiB per second, one way or both."""
    machine, client = rng.choice(cluster.machines), rng.choice(cluster.client_names())
    ways = [(machine.name, client), (client, machine.name)]
    for path in ways if rng.random() < 0.5 else [rng.choice(ways)]:
        cluster.network.thin[path] = 1024.0
        cluster.env.after(fault.seconds, cluster.network.quicken, path)


def bar(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Some machines refuse a client: its connections there are reset, new ones refused."""
    client = rng.choice(cluster.client_names())
    for machine in rng.sample(cluster.machines, rng.randint(1, len(cluster.machines))):
        cluster.network.bar(client, machine.name)
        cluster.env.after(fault.seconds, cluster.network.unbar, client, machine.name)


def zombie_connection(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Connections end for the client, which dials again; what it had sent on them arrives later."""
    wires = [wire for wire in cluster.network.wires if wire.open and not wire.muted]
    for wire in rng.sample(wires, min(len(wires), rng.randint(1, 4))):
        wire.haunt(fault.seconds)

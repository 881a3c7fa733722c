"""Describe the parts of a run and its current faults, for the trace.

It only reads. The effect of a fault is the difference between the conditions before and after it.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.sim.engine.environment import Process
from tests.sim.store.machine import Machine

if TYPE_CHECKING:
    from tests.sim.run import Cluster

_CONNECTED = "connected"


def topology_text(cluster: "Cluster") -> str:
    """Describe the servers, their latencies, and the work of the run."""
    members, quorum = [machine.name for machine in cluster.machines], cluster.record.ack_quorum
    far: dict[float, list[str]] = defaultdict(list)
    for name in members:
        far[cluster.network.latency_s(name, "w1")].append(name)
    paths = ", ".join(f"{1000 * seconds:g} ms to {', '.join(names)}" for seconds, names in far.items())
    work = [
        f"{one}, {'pipelined' if cluster.pipelined[one] else 'one record at a time'}"
        for one in cluster.directories
    ] or ["a region: drivers d1, d2 .., worker processes kWORKER.NUMBER"]
    who = f"{len(members)} servers" if len(members) > 1 else "1 server"
    needed = f"{quorum} acknowledge" if quorum > 1 else "1 acknowledges"
    damaged = f"{cluster.victim.name} may be damaged"
    return f"{who}, {needed}; latency about {paths}; {'; '.join(work)}; {damaged}"


def acknowledged(cluster: "Cluster") -> str:
    """Describe how much was acknowledged so far."""
    lines = cluster.history.lines.items()
    counts = [f"{len(line.acknowledged)} records of {directory}" for directory, line in lines]
    return f"acknowledged so far: {', '.join(counts) or 'nothing of the plain writers'}"


def conditions(cluster: "Cluster") -> dict[str, None]:
    """Return the current conditions, in a fixed order."""
    found = [line for machine in cluster.machines for line in _machine(machine)]
    clients = [*cluster.writers, *cluster.readers]
    if cluster.region is not None:
        clients += [*cluster.region.drivers, *cluster.region.workers]
    for client in clients:
        found.append(f"{client.name} is running" if client.alive else f"{client.name} is dead")
        if client.alive and client.paused:
            found.append(f"{client.name} is paused")
        found += _clock(client)
    for writer in cluster.writers:
        if getattr(writer, "hurries_until", 0.0) > cluster.env.now:
            found.append(f"{writer.name} is in a hurry")
    found += _paths(cluster)
    return dict.fromkeys(found)


def changed(before: dict[str, None], after: dict[str, None]) -> str:
    """Describe the new conditions; or, if there are none, the connections that ended."""
    new = [line for line in after if line not in before]
    gone = [line for line in before if line not in after and line.startswith(_CONNECTED)]
    return ", ".join(new or [f"no longer {line}" for line in gone]) or "nothing changes"


def _clock(process: Process) -> list[str]:
    found = [f"the clock of {process.name} is {process.offset:.1f} s ahead"] if process.offset else []
    if process.skew:
        way = "fast" if process.skew > 0 else "slow"
        found.append(f"the clock of {process.name} runs {abs(process.skew):.0%} {way}")
    return found


def _machine(machine: Machine) -> list[str]:
    name, disk, found = machine.name, machine.disk, []
    if not machine.up:
        found.append(f"{name} is without power" if machine.without_power else f"{name} is down")
    elif machine.server is not None and machine.server.paused:
        found.append(f"{name} is paused")
    if machine.server is not None:
        found += _clock(machine.server)
    if machine.hangs:
        found.append(f"the disk of {name} hangs")
    if machine.slowness != 1.0:
        found.append(f"the disk of {name} is {machine.slowness:.0f} times slower")
    if disk.space < 1 << 40:
        found.append(f"the disk of {name} has space for {max(disk.space - disk.used, 0)} bytes")
    if disk.cut_in is not None:
        found.append(f"{name} loses its power after {disk.cut_in} more disk calls")
    for method, coming in disk._faults.items():
        found += [f"call {nth} of {method} will fail on the disk of {name}" for nth in coming]
    return found + [f"{path} of {name} is damaged" for path in machine.damaged]


def _paths(cluster: "Cluster") -> list[str]:
    network, slow = cluster.network, cluster.network.slow.items()
    ends: dict[str, list[str]] = defaultdict(list)
    for here, there in network.blocked:
        ends[here].append(there)
    found = [f"no data from {here} reaches {', '.join(there)}" for here, there in ends.items()]
    found += [f"{here} to {there} is {times:.0f} times slower" for (here, there), times in slow]
    thin = network.thin.items()
    found += [f"{here} to {there} carries {rate:.0f} bytes a second" for (here, there), rate in thin]
    found += [f"{there} refuses connections of {here}" for here, there in network._barred]
    wires = [wire.processes for wire in network.wires if wire.open and not wire.muted]
    return found + [f"{_CONNECTED} {here.name} to {there.name}" for here, there in wires]

"""The faults of a run: planned from the seed before it begins, each with a moment and numbers of its own.

So a fault can be left out and the others stay what they are: that is how a failing run is made small. Each
seed switches whole kinds off (swarm testing): constant faults of all kinds hide what needs one kind alone.

Rules of this file: a kind is a function of the cluster and a fault; the table names them all. What may be
damaged is bounded by the promise (P-5): the platters of one machine a run, at most Qa - 1 of them.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.chance import Chance
from tests.sim.server import Machine

if TYPE_CHECKING:
    from tests.sim.run import Cluster

RIVALS_MAX: Final = 5
"""Writers of one directory at a time, as far as rivals go."""


@dataclass(frozen=True)
class Fault:
    """One fault: its number in the plan, when, which kind, for how long, and a seed for its details."""

    number: int
    at_s: float
    kind: str
    seconds: float
    seed: str

    def __str__(self) -> str:
        return f"{self.number}:{self.kind}"


Kind = Callable[["Cluster", Fault, Random], None]


def plan(chance: Chance, seconds: float) -> list[Fault]:
    """The faults of a run that lasts so long."""
    rng = chance.nemesis
    on = [kind for kind in KINDS if rng.random() < 0.5] or [rng.choice(list(KINDS))]
    pace = rng.choice([1.0, 2.0, 4.0, 8.0])
    faults: list[Fault] = []
    at = 0.0
    while True:
        at += rng.expovariate(pace)
        if at > seconds:
            return faults
        number = len(faults)
        length = rng.choice([0.01, 0.1, 0.3, 1.0, 3.0]) * (0.5 + rng.random())
        faults.append(Fault(number, at, rng.choice(on), length, f"{chance.seed}/fault/{number}"))


def plan_of(seed: int, seconds: float) -> list[Fault]:
    """The plan of a seed, by itself."""
    return plan(Chance(seed), seconds)


def strike(cluster: "Cluster", fault: Fault) -> None:
    """Let the fault happen."""
    cluster.note("nemesis", f"{fault} for {fault.seconds:.3f} s")
    cluster.history.sometimes[f"fault: {fault.kind}"] += 1
    KINDS[fault.kind](cluster, fault, Random(fault.seed))


def _down_for(cluster: "Cluster", machine: Machine, seconds: float) -> None:
    cluster.world.after(seconds, machine.start)


def _kill_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.kill()
        _down_for(cluster, machine, fault.seconds)


def _power_cut(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.power_cut()
        _down_for(cluster, machine, fault.seconds)


def _power_cut_all(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    for machine in cluster.machines:
        if machine.up:
            machine.power_cut()
            _down_for(cluster, machine, fault.seconds * rng.random())


def _power_cut_midway(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if machine.up:
        machine.disk.cut_in = rng.randint(1, 30)

        def restart() -> None:
            machine.disk.cut_in = None
            machine.start()

        cluster.world.after(fault.seconds + 0.5, restart)


def _pause_server(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    server = rng.choice(cluster.machines).server
    if server is not None and server.alive and not server.paused:
        server.pause()
        cluster.world.after(fault.seconds, server.resume)


def _pause_writer(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    living = cluster.living_writers()
    if living:
        writer = rng.choice(living)
        writer.pause()
        cluster.world.after(fault.seconds, writer.resume)


def _zombie(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A writer sleeps, another takes over, the first wakes up."""
    living = [writer for writer in cluster.living_writers() if writer.running]
    if living:
        writer = rng.choice(living)
        writer.pause()
        cluster.new_writer(writer.directory)
        cluster.world.after(fault.seconds + 1.0, writer.resume)


def _kill_writer(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    living = cluster.living_writers()
    if living:
        writer = rng.choice(living)
        cluster.network.process_died(writer, power=rng.random() < 0.3)
        writer.kill()


def _rival(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Another writer, or two, where there is one; not a crowd, that nobody's back-off is made for."""
    for _ in range(rng.randint(1, 2)):
        directory = rng.choice(cluster.directories)
        if sum(one.alive and one.directory == directory for one in cluster.writers) < RIVALS_MAX:
            cluster.new_writer(directory)


def _block(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """Some paths, one way or both, between some machines and some or all clients."""
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
                cluster.world.after(fault.seconds, partial(cluster.network.unblock, path))


def _slow(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine, client = rng.choice(cluster.machines), rng.choice(cluster.client_names())
    path = rng.choice([(machine.name, client), (client, machine.name)])
    cluster.network.slow[path] = rng.choice([10.0, 100.0, 1000.0])
    cluster.world.after(fault.seconds, partial(cluster.network.quicken, path))


def _reset(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    wires = [wire for wire in cluster.network.wires if wire.open and not wire.muted]
    for wire in rng.sample(wires, min(len(wires), rng.randint(1, 4))):
        wire.reset()


def _slow_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.slowness = rng.choice([10.0, 100.0, 1000.0])

    def restore() -> None:
        machine.slowness = 1.0

    cluster.world.after(fault.seconds, restore)


def _full_disk(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    machine.disk.fill(rng.choice([0, 100, 2000]))
    machine.was_full = True
    cluster.world.after(fault.seconds, machine.disk.free)


def _sync_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """One failed sync; what it was to write is forgotten, and later ones succeed."""
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.disk.fail("sync", errno.EIO, nth=rng.randint(1, 3))


def _write_error(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    machine = rng.choice(cluster.machines)
    if cluster.may_fail(machine):
        machine.disk.fail("write", errno.EIO, nth=rng.randint(1, 3))


def _flip(cluster: "Cluster", fault: Fault, rng: Random) -> None:
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
    _down_for(cluster, machine, fault.seconds)


def _wipe(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """The disk of the one machine that may be damaged is lost; it comes back empty, as another server."""
    machine = cluster.victim
    if cluster.may_fail(machine):
        machine.kill()
        machine.lose_disk(rng.randbytes(16))
        _down_for(cluster, machine, fault.seconds)


KINDS: Final[dict[str, Kind]] = {
    "kill_server": _kill_server,
    "power_cut": _power_cut,
    "power_cut_all": _power_cut_all,
    "power_cut_midway": _power_cut_midway,
    "pause_server": _pause_server,
    "pause_writer": _pause_writer,
    "zombie": _zombie,
    "kill_writer": _kill_writer,
    "rival": _rival,
    "block": _block,
    "slow": _slow,
    "reset": _reset,
    "slow_disk": _slow_disk,
    "full_disk": _full_disk,
    "sync_error": _sync_error,
    "write_error": _write_error,
    "flip": _flip,
    "wipe": _wipe,
}

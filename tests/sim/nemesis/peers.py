"""Misbehaving clients: they send too many requests at once, or a forbidden claim.

Each is a process with one session, which ends with the fault.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from dos_protocol.errors import DosError
from dos_protocol.limits import epoch_jump_max
from dos_protocol.messages import Get, List, Stat
from tests.sim.engine.environment import Process
from tests.sim.nemesis.fault import Fault
from tests.sim.store.session import Session

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine

_Visit = Callable[[Session], Awaitable[None]]


def _visit(cluster: "Cluster", machine: "Machine", fault: Fault, visit: _Visit) -> None:
    process = Process(cluster.env, f"n{fault.number}")
    session = Session(process, cluster.network, machine.address)

    async def main() -> None:
        try:
            await session.open()
            await visit(session)
        except DosError as error:
            cluster.history.sometimes[f"bad peer: {type(error).__name__}"] += 1

    def leave() -> None:
        cluster.network.process_died(process, power=False)
        process.kill()

    process.start("work", main())
    cluster.env.after(fault.seconds + 1.0, leave)


def flood(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A client sends many requests and waits for none of the answers."""
    if not cluster.directories:
        return
    directory, count = rng.choice(cluster.directories), rng.choice([20, 50, 200])

    async def send_requests(session: Session) -> None:
        opened = await session.open_directory(directory)
        names = [info.name for info in opened.entries if info.synced]
        for number in range(count):
            name = rng.choice(names) if names else "nothing"
            requests = (Get(name, 0, 4096, 0), Stat(name, 1), List("", "", 1000))
            session.post(requests[0 if rng.random() < 0.8 else 1 + number % 2])

    _visit(cluster, rng.choice(cluster.machines), fault, send_requests)


def wild_claim(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A client claims a directory with an epoch far above all (R17), where the rules forbid it."""
    if not cluster.directories:
        return
    directory = rng.choice(cluster.directories)
    epoch = rng.choice([2 * epoch_jump_max, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])

    async def claim(session: Session) -> None:
        await session.claim(directory, epoch, rng.randbytes(16))

    _visit(cluster, rng.choice(cluster.machines), fault, claim)

"""Runs of a watched store whose members move: a server stops, and its disk comes up at another address.

At the old address there may then be nothing, an empty server, or a server with an older copy of the disk. Or
a copy of the disk, an older or a current one, comes up at another address while the member works or is lost.
Watchers look at these addresses (`--look-at`), and all clients have them in their URL. Watchers are cut off
from members meanwhile, and members are unavailable in an order in which a copy that counts loses something.

O15  a record names a member only at an address at which its own disk was, and no copy acknowledges an append

After each story the store is whole, and continues without any other member, also for clients that were
connected when the member moved. Not in these runs: a copy that nobody can distinguish from the disk, because
it is newer than the newest stamp that the others know (docs/decisions/0211).
"""

import sys
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import trio

from dos_client.membership.watching import WatchOptions
from dos_protocol.store_record import StoreRecord
from tests.shells import oracles
from tests.shells.clients import Watcher
from tests.shells.machines import Image, Machine
from tests.shells.run import NEW_RECORDS, SETTLED_S, check_liveness, final_take_over, until
from tests.shells.trio_run import TaskCount
from tests.shells.watched import WatchedCluster, run_watched, watched_seeds
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import ViolationError
from tests.sim.nemesis.fault import Fault
from tests.sim.oracles.store import check_records

PLACES = 2
"""Addresses to which a disk may move. There is one more: a server that is in no store."""


class MovedCluster(WatchedCluster):
    """The cluster of such a run. `places`: free addresses. `placed`: where the disk of each identity was;
    copies do not count. `copies`: machines with a copy of a member's disk, and how many appends they had
    acknowledged before."""

    def __init__(self, rng: RandomStreams, trace: Trace, count: TaskCount) -> None:
        super().__init__(rng, trace, count)
        self.pace_s = 0.2
        known = [*self.record.members, *self.record.spares]
        outside = self.machines[len(known) :]
        self.places = outside[1:]
        for place in self.places:
            place.gone = True
        self.url += "".join(f",{one.address}" for one in outside)
        self.look_at = [one.address for one in outside]
        self.placed = {(one.server_id, one.address) for one in known}
        self.copies: dict[Machine, int] = {}
        self.watching = trio.CancelScope()

    def sizes(self, topology: Random) -> tuple[int, int, int]:
        return topology.choice([3, 3, 2]), 2, 1 + PLACES

    def _watch_options(self, rng: Random) -> WatchOptions:
        return WatchOptions(
            look_at=self.look_at,
            replace_after_s=rng.choice([3.0, 6.0]),
            interval_s=rng.choice([0.3, 1.0]),
            stand_by_s=rng.choice([0.5, 3.0]),
        )

    def check_now(self) -> None:
        check_records(self.machines)
        for record in {one.generation: one for machine in self.machines for one in machine.records}.values():
            self._check_addresses(record)
        for copy, before in self.copies.items():
            if copy.acknowledged > before:
                raise ViolationError("O15", f"{copy.name}, a copy of a member's disk, acknowledged an append")

    def _check_addresses(self, record: StoreRecord) -> None:
        for member in record.members:
            if (member.server_id, member.address) not in self.placed:
                text = f"generation {record.generation} has a member at {member.address}; it was never there"
                raise ViolationError("O15", text)

    async def run_phases(self, faults: list[Fault]) -> None:
        async with trio.open_nursery() as processes:
            self.processes = processes
            for directory in self.directories:
                self.new_writer(directory)
                self.new_reader(directory)
            processes.start_soon(self.supervise)
            processes.start_soon(self._watch)
            await check_liveness(self)
            rng = self.rng.stream("moves")
            await rng.choice(STORIES)(self, rng)
            await self._settle(rng)
            await final_take_over(self)
            processes.cancel_scope.cancel()
        await trio.sleep(SETTLED_S)
        self.guarded(self.check_now)
        self.guarded(oracles.check_nothing_left, self)
        self.guarded(self.history.bench.ended, self)

    async def _watch(self) -> None:
        with self.watching:
            await self._supervise_watchers()

    async def _settle(self, rng: Random) -> None:
        """End the faults. The store must be whole, and work without any one of three members."""
        self.network.unblock_all()
        if not await until(self._whole):
            self.fail(ViolationError("O11", f"after the story the store is not whole: {self.in_force()}"))
        await check_liveness(self)
        self.watching.cancel()
        for client in self.clients:
            if isinstance(client, Watcher):
                client.kill()
        self.guarded(self.check_now)
        members = self.members()
        if len(members) == 3:
            other = rng.choice(members)
            other.kill()
            await check_liveness(self)
            await other.start(self.servers)

    def _whole(self) -> bool:
        return super()._whole() and not any(one in self.copies for one in self.members())

    # For stories

    def members(self) -> list[Machine]:
        """Return the machines at the addresses of the members."""
        addresses = {one.address for one in self.in_force().members}
        return [one for one in self.machines if one.address in addresses]

    async def copy_of(self, machine: Machine) -> Image:
        """Return a copy of a member's disk that is older than the newest stamp that the others know of it."""
        machine.kill()
        image = machine.image()
        await machine.start(self.servers)
        others = [one for one in self.members() if one is not machine]

        def is_old() -> bool:
            return all(one.newest_stamp_known(machine) > image.newest_stamp for one in others)

        if not await until(is_old):
            self.fail(ViolationError("O11", f"nobody knows the newest stamp of {machine.name}"))
        return image

    def start_copy(self, machine: Machine, image: Image) -> None:
        """Start a server with that copy of a disk."""
        machine.put_back(image)
        machine.gone = False
        self.copies[machine] = machine.acknowledged
        self.start(machine)

    async def expose(self, machine: Machine, rng: Random) -> list[Machine]:
        """Let a member miss what is acknowledged now, so that only `machine` and one other member have it.

        Returns the one that has less and the one that has it; nothing in other runs or stores.
        """
        others = [one for one in self.members() if one is not machine]
        if len(others) != 2 or rng.random() < 0.3:
            return []
        rng.shuffle(others)
        others[0].kill()
        await trio.sleep(NEW_RECORDS * self.pace_s)
        for writer in self.living_writers():
            writer.kill()
        return others

    async def exchange(self, exposed: list[Machine]) -> None:
        """Start the member that has less, and stop the one that has more for a while."""
        for late, early in [exposed] if exposed else []:
            early.kill()
            await late.start(self.servers)
            await trio.sleep(5.0)
            await early.start(self.servers)


def stop(machine: Machine, rng: Random) -> None:
    if rng.random() < 0.5:
        machine.kill()
    else:
        machine.power_cut()


async def disk_moves(cluster: MovedCluster, rng: Random) -> None:
    """A member stops, and its disk comes up at another address. Something else may be at the old one."""
    old, place = rng.choice(cluster.members()), cluster.places[0]
    left = rng.choice(["nothing", "an empty server", "an older copy", "an older copy"])
    image = await cluster.copy_of(old) if left == "an older copy" else None
    if rng.random() < 0.5:
        cluster._part(rng)
    exposed = await cluster.expose(old, rng)
    identity = old.identity
    stop(old, rng)
    await old.host.wait_ended()
    old.exchange_disks(place)
    cluster.placed.add((identity, place.address))
    cluster.history.sometimes[f"a disk moves, and leaves {left}"] += 1

    def arrive() -> None:
        place.gone = False
        cluster.start(place)

    old.gone = left == "nothing"
    cluster.later(rng.choice([0.0, 0.5, 4.0]), arrive)
    if image is not None:
        cluster.later(rng.choice([0.0, 0.5, 4.0]), cluster.start_copy, old, image)
    else:
        cluster.later(rng.choice([0.0, 0.5, 4.0]), cluster.start, old)
    await cluster.exchange(exposed)
    await trio.sleep(5.0)


async def older_copy_appears(cluster: MovedCluster, rng: Random) -> None:
    """An older copy of a member's disk comes up elsewhere. The member works, stops for a while, or is
    lost."""
    old, place = rng.choice(cluster.members()), cluster.places[0]
    image = await cluster.copy_of(old)
    if rng.random() < 0.5:
        cluster._part(rng)
    exposed = await cluster.expose(old, rng)
    fate = rng.choice(["works", "returns", "is lost"])
    cluster.history.sometimes[f"an older copy appears, and the member {fate}"] += 1
    if fate != "works":
        stop(old, rng)
    cluster.start_copy(place, image)
    await cluster.exchange(exposed)
    await trio.sleep(5.0)
    old.gone = fate == "is lost"
    await old.start(cluster.servers)


async def current_copy_appears(cluster: MovedCluster, rng: Random) -> None:
    """A copy of the disk of a member that works comes up elsewhere, until a person stops it."""
    old, place = rng.choice(cluster.members()), cluster.places[0]
    cluster.history.sometimes["a current copy appears"] += 1
    cluster.start_copy(place, old.image())
    for _ in range(3):
        await trio.sleep(1.5)
        for writer in cluster.living_writers():
            writer.kill()
    place.gone = True
    place.kill()


STORIES: Final[list[Callable[[MovedCluster, Random], Awaitable[None]]]] = [
    *(disk_moves, disk_moves),
    *(older_copy_appears, current_copy_appears),
]


def main() -> None:
    """Run so many seeds, and print the violations."""
    for seed in watched_seeds(int(sys.argv[1])):
        result = run_watched(seed, make=MovedCluster)
        if result.violation:
            print(f"seed {seed}: {result.violation}", flush=True)


if __name__ == "__main__":
    main()

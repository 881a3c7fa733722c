"""Runs of a store that watchers keep whole: members are lost for good, and nobody runs a command.

The clients, servers and faults are those of `run`. In addition there are two watchers, on hosts of their own,
and spares. Faults cut watchers off from members as they cut off any client, so members are also replaced
that are only unreachable for a watcher. After the heal two members are lost for good, one after the other.
Each must be replaced, and everything must continue and be found. The first one returns in the end, with the
disk that it had.
"""

import sys
from random import Random

import trio

from dos_client.core.membership import ServerAnswer, decide
from dos_client.core.quorum import filled_member
from dos_client.membership.watching import WatchOptions
from dos_protocol.store_record import StoreRecord
from tests.shells import nemesis, oracles
from tests.shells.clients import Watcher
from tests.shells.machines import Machine
from tests.shells.region.region import has_region
from tests.shells.run import (
    LIVENESS_S,
    SAFETY_S,
    SETTLED_S,
    Cluster,
    check_liveness,
    final_take_over,
    run_seed,
    until,
)
from tests.shells.trio_run import TaskCount
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.engine.trace import Trace
from tests.sim.history import ViolationError
from tests.sim.nemesis.fault import Fault
from tests.sim.oracles.store import check_records
from tests.sim.result import Result

WATCHERS = 2
PARTED_S = 6.0
"""So much longer than other runs the faults last: longer than the silence after which watchers act."""
WITHOUT = ("restored_disk",)
"""A disk that goes back while another member is replaced is one loss more than a store of three tolerates."""


class WatchedCluster(Cluster):
    """The cluster of such a run."""

    def __init__(self, rng: RandomStreams, trace: Trace, count: TaskCount) -> None:
        super().__init__(rng, trace, count)
        self.directories = self.directories[:1]  # what these runs are about needs few records
        self.pace_s = 0.5

    def sizes(self, topology: Random) -> tuple[int, int, int]:
        return topology.choice([3, 3, 2]), topology.choice([2, 4]), 0

    async def run_phases(self, faults: list[Fault]) -> None:
        async with trio.open_nursery() as processes:
            self.processes = processes
            for directory in self.directories:
                self.new_writer(directory)
                self.new_reader(directory)
            processes.start_soon(self.supervise)
            processes.start_soon(self._supervise_watchers)
            for fault in faults:
                if fault.kind not in WITHOUT:
                    self.later(fault.at_s, nemesis.strike, self, fault)
            parting = self.rng.stream("parting")
            if parting.random() < 0.6:
                self.later(0.2 + parting.random() * SAFETY_S / 2, self._part, parting)
            await trio.sleep(SAFETY_S + PARTED_S)
            await self.heal()
            await check_liveness(self)
            directories = self.directories
            if self.rng.stream("idle").random() < 0.6:  # nobody but the watchers fills a spare then
                self.directories = []
                for writer in self.living_writers():
                    writer.kill()
            lost = await self._lose_one()
            await self._lose_one()
            self.directories = directories
            if lost is not None and self.rng.stream("return").random() < 0.5:
                lost.gone = False
                await lost.start(self.servers)
                await check_liveness(self)
            await final_take_over(self)
            processes.cancel_scope.cancel()
        await trio.sleep(SETTLED_S)
        self.guarded(check_records, self.machines)
        self.guarded(oracles.check_nothing_left, self)
        self.guarded(self.history.bench.ended, self)

    def _part(self, rng: Random) -> None:
        """Cut each watcher off from another member, until the heal. All members are alive."""
        watchers = [one for one in self.clients if isinstance(one, Watcher) and one.alive]
        record = self.in_force()
        members = [one.name for one in self.machines if record.member(one.identity) is not None]
        for watcher, name in zip(watchers, rng.sample(members, len(members)), strict=False):
            self.history.sometimes["a watcher is cut off from a member"] += 1
            self.network.block(watcher.name, name)
            self.network.block(name, watcher.name)

    async def _supervise_watchers(self) -> None:
        """Start watchers again, as a supervisor does; check that a generation has one record."""
        options = self._watch_options(self.rng.stream("watchers"))
        while True:
            alive = [one for one in self.clients if isinstance(one, Watcher) and one.alive]
            for _ in range(WATCHERS - len(alive)):
                self.begin(lambda name: Watcher(self, name, options), "v")
            self.guarded(self.check_now)
            await trio.sleep(0.25)

    def check_now(self) -> None:
        """Check what must be true at every moment. Raises ViolationError."""
        check_records(self.machines)

    def _watch_options(self, rng: Random) -> WatchOptions:
        # alike, so that both act at the same time; with a short stand-by, one takes over from one that works
        return WatchOptions(
            replace_after_s=rng.choice([0.4, 1.5]),
            interval_s=rng.choice([0.3, 1.0]),
            stand_by_s=rng.choice([0.5, 3.0]),
        )

    def in_force(self) -> StoreRecord:
        """Return the store record in force, by the records on the disks."""
        answers = []
        for machine in self.machines:
            record = machine.kept_record()
            if record is not None and not machine.gone:
                answers.append(ServerAnswer(machine.address, machine.identity, record))
        return decide(answers, self.record.store_id).record or self.record

    async def _lose_one(self) -> Machine | None:
        """Lose a member for good while the store is whole and has a spare. It must be replaced."""
        rng = self.rng.stream("loss")
        await until(lambda: self._whole() or not self.in_force().spares)
        record = self.in_force()
        if not record.spares or self.violation is not None:
            self.history.sometimes["no spare is left to lose a member"] += 1
            return None
        members = [one for one in self.machines if record.member(one.identity) is not None]
        lost = rng.choice(members)
        lost.gone = True
        if rng.random() < 0.5:
            lost.kill()
        else:
            lost.power_cut()
        self.note(lost.name, "is lost for good")
        identity = lost.identity
        if not await until(lambda: self._whole() and self.in_force().member(identity) is None):
            text = f"{LIVENESS_S:.0f} s after {lost.name} was lost it is not replaced"
            self.fail(ViolationError("O11", text))
        self.url = "dos://" + ",".join(one.address for one in self.in_force().members)  # as an operator does
        await check_liveness(self)
        self.history.sometimes["a lost member was replaced"] += 1
        return lost

    def _whole(self) -> bool:
        """Return whether no change is in progress and every member is up, at its address, and has the
        record."""
        record = self.in_force()
        at = {one.address: one for one in self.machines if one.up and one.kept_record() == record}
        return filled_member(record) is None and all(
            one.address in at and at[one.address].identity == one.server_id for one in record.members
        )


class PartedCluster(WatchedCluster):
    """A short run: each of two watchers is cut off from another member at the same time, and nothing else
    happens. All members are alive. Afterwards the store is whole, and a fresh writer finds everything."""

    async def run_phases(self, faults: list[Fault]) -> None:
        async with trio.open_nursery() as processes:
            self.processes = processes
            writer = self.new_writer(self.directories[0])
            await until(lambda: writer.running)
            await trio.sleep(0.3)
            writer.kill()
            processes.start_soon(self._supervise_watchers)
            await trio.sleep(0.2)
            self._part(self.rng.stream("parting"))
            await trio.sleep(20.0)
            await self.heal()
            if not await until(self._whole):
                self.fail(ViolationError("O11", "the store is not whole after the heal"))
            await final_take_over(self)
            processes.cancel_scope.cancel()
        self.guarded(check_records, self.machines)
        self.guarded(self.history.bench.ended, self)


def run_watched(seed: int, *, keep: bool = False, make: type[WatchedCluster] = WatchedCluster) -> Result:
    """Run one seed of a watched store. The seed must not be one of a run with a region."""
    if has_region(seed):
        raise ValueError(f"seed {seed} has a region")
    return run_seed(seed, keep=keep, make=make)


def watched_seeds(count: int) -> list[int]:
    """Return the first seeds of watched stores."""
    return [seed for seed in range(1, 10 * count) if not has_region(seed)][:count]


def main() -> None:
    """Run so many seeds, and print the violations."""
    for seed in watched_seeds(int(sys.argv[1])):
        result = run_watched(seed)
        if result.violation:
            print(f"seed {seed}: {result.violation}", flush=True)


if __name__ == "__main__":
    main()

"""Sequences of faults in which the order matters: the common pattern of the violations V1 to V13 of the
take-over rules, on one directory. Which members each writer reaches, how far it gets and how it ends is drawn
for each run of a sequence.

    reigns       writer after writer, each reaching only some members; from some stage on, its messages reach
                 fewer; then it dies, or is paused and continues later, and another one reaches others (V1,
                 V2, V3, V5, V6, V8, V9)
    leftovers    a writer's last records reach too few members; another begins without them, and a third
                 reaches both (V1, V2, V6)
    late_syncs   a writer's records wait for their syncs while another claims (V4)
    old_claims   a writer is not notified that another claims some members; these crash and restart: the first
                 writer reaches them and those that were never claimed (V5)
    two_of_three of the members that acknowledged, one is damaged, or lost its disk or a directory, and one is
                 unavailable; the one that lagged is read (V7)
    backups      all members but one get back disks from before the journal existed, while that one is
                 unavailable (R16)

While a sequence uses a directory, no other sequence and no other writer is started there. A sequence uses
what writers can observe of each other, not the bugs of the code.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from dos_protocol.store_record import claims_needed
from tests.sim.engine.environment import Signal
from tests.sim.nemesis import rot
from tests.sim.nemesis.fault import Fault, Kind
from tests.sim.nemesis.troubles import removable_folders
from tests.sim.store.clients import GRANTED, RUNNING, SETTLED, Writer

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine

_STAGE_PATIENCE_S = 3.0


class Play:
    """One play: its cluster, its directory, its random stream."""

    def __init__(self, cluster: "Cluster", directory: str, rng: Random) -> None:
        self.cluster = cluster
        self.directory = directory
        self.rng = rng
        self.quorum = cluster.record.ack_quorum
        self.needed = claims_needed(len(cluster.machines), self.quorum)

    async def sleep(self, seconds: float) -> None:
        await self.cluster.nemesis.sleep(seconds)

    def clear_the_stage(self) -> None:
        """Kill or pause all writers of the directory."""
        for writer in self.cluster.living_writers():
            if writer.directory == self.directory:
                self.dismiss(writer)

    def dismiss(self, writer: Writer) -> None:
        """Kill a writer, with its machine or alone; or pause it and let it continue after others have
        proceeded."""
        if self.rng.random() < 0.3:
            writer.pause()
            self.cluster.env.after(self.rng.uniform(0.3, 3.0), writer.resume)
        else:
            self.cluster.network.process_died(writer, power=self.rng.random() < 0.3)
            writer.kill()

    def read_now(self) -> None:
        """Let the readers of the directory read now."""
        for reader in self.cluster.readers:
            if reader.directory == self.directory:
                reader.read_now.set()

    def enter(self, seen: "list[Machine]") -> Writer:
        """Start a new writer, which only the machines `seen` accept."""
        writer = self.cluster.new_writer(self.directory)
        for machine in self.cluster.machines:
            if machine not in seen:
                self.cluster.network.bar(writer.name, machine.name)
        return writer

    async def wait_for(self, writer: Writer, stage: str, then: Callable[[], None]) -> bool:
        """Wait until the writer reaches the stage, and call `then` at that moment. Return False after a
        time-out."""
        there, reached = Signal(), []

        def on_stage_reached(now: str) -> None:
            if now == stage and not reached:
                reached.append(now)
                then()
                there.set()

        writer.reached = on_stage_reached
        await self.cluster.nemesis.wait(there, _STAGE_PATIENCE_S)
        return bool(reached)

    async def running_writer(self) -> Writer | None:
        """Replace all writers of the directory by one that reaches all machines. None: it does not run in
        time."""
        self.clear_the_stage()
        writer = self.enter(self.cluster.machines)
        return writer if await self.wait_for(writer, RUNNING, lambda: None) else None

    def hold(self, writer: Writer, machines: "list[Machine]", seconds: float) -> None:
        """Delay what the writer sends to these machines from now on by `seconds`."""
        network, env = self.cluster.network, self.cluster.env
        for machine in machines:
            path = (writer.name, machine.name)
            network.block(path)
            env.after(seconds, network.unblock, path)


async def reigns(play: Play) -> None:
    rng, cluster = play.rng, play.cluster
    play.clear_the_stage()
    for _ in range(rng.randint(2, 5)):
        await _reign(play)
        await play.sleep(rng.choice([0.0, 0.0, 0.02, 0.3]))
    for one in cluster.writers:
        for machine in cluster.machines:
            cluster.network.unbar(one.name, machine.name)


async def _reign(play: Play) -> None:
    """One writer, from its claim to its end."""
    rng, machines = play.rng, play.cluster.machines
    count = rng.choice([play.needed] * 6 + [len(machines), 1])
    seen = rng.sample(machines, count)
    writer = play.enter(seen)
    stage = rng.choice([GRANTED, SETTLED, RUNNING, RUNNING, RUNNING])
    goes_on = rng.sample(seen, rng.choice([0, 1, 1, min(play.quorum, count)]))
    settling_s = rng.choice([0.0, 0.0, 0.02, 0.2])

    def cut_short() -> None:
        if settling_s == 0.0:
            play.hold(writer, [one for one in seen if one not in goes_on], rng.choice([0.1, 0.5, 2.0, 9.0]))

    if not await play.wait_for(writer, stage, cut_short):
        play.dismiss(writer)
        return
    writer.hurries_until = play.cluster.env.now + rng.choice([0.0, 0.02, 0.1])
    if settling_s:
        await play.sleep(settling_s)
        play.hold(writer, [one for one in seen if one not in goes_on], rng.choice([0.1, 0.5, 2.0, 9.0]))
    await play.sleep(rng.choice([0.0, 0.01, 0.05, 0.3, 0.8]))
    _meanwhile(play, seen)
    play.dismiss(writer)


def _meanwhile(play: Play, seen: "list[Machine]") -> None:
    """Let readers read now; or kill a member that was claimed, or cut its power."""
    rng, cluster = play.rng, play.cluster
    what = rng.random()
    if what < 0.35:
        play.read_now()
    elif what < 0.6:
        machine = rng.choice(seen)
        if machine.up:
            machine.power_cut() if rng.random() < 0.7 else machine.kill()
            cluster.env.after(rng.choice([0.0, 0.05, 0.5]), machine.start)


async def leftovers(play: Play) -> None:
    """Records that were never acknowledged may be found later or not, but consistently."""
    rng, cluster = play.rng, play.cluster
    play.clear_the_stage()
    few = rng.sample(cluster.machines, play.quorum - 1)
    others = [machine for machine in cluster.machines if machine not in few]
    if not few:
        return
    first = play.enter(cluster.machines)
    if not await play.wait_for(first, RUNNING, lambda: None):
        return
    await play.sleep(rng.choice([0.0, 0.05, 0.2]))
    play.hold(first, others, rng.choice([2.0, 9.0]))
    first.hurries_until = cluster.env.now + rng.choice([0.05, 0.1])
    await play.sleep(rng.choice([0.05, 0.1, 0.3]))
    if rng.random() < 0.5:
        play.read_now()
        await play.sleep(rng.choice([0.05, 0.3]))
    play.dismiss(first)
    second = play.enter(others[: play.needed])
    if await play.wait_for(second, rng.choice([SETTLED, RUNNING, RUNNING]), lambda: None):
        await play.sleep(rng.choice([0.0, 0.02, 0.1, 0.3]))
        play.read_now()
        await play.sleep(rng.choice([0.0, 0.1]))
    play.dismiss(second)
    third = play.enter([*few, *rng.sample(others, play.needed - len(few))])
    await play.wait_for(third, RUNNING, lambda: None)
    play.read_now()
    for machine in cluster.machines:
        cluster.network.unbar(third.name, machine.name)


async def late_syncs(play: Play) -> None:
    """The disks of some members are slow; a writer appends, another claims on a quorum of them."""
    rng, cluster = play.rng, play.cluster
    first = await play.running_writer()
    if first is None:
        return
    await play.sleep(rng.choice([0.05, 0.2]))
    late = rng.sample(cluster.machines, rng.randint(1, len(cluster.machines)))
    slowness = rng.choice([30.0, 100.0, 400.0])
    for machine in late:
        machine.slowness = slowness
    first.hurries_until = cluster.env.now + 0.1
    await play.sleep(rng.choice([0.02, 0.1, 0.3]))
    second = play.enter(rng.sample(cluster.machines, play.needed))
    await play.wait_for(second, rng.choice([GRANTED, RUNNING]), lambda: None)
    for machine in late:
        if rng.random() < 0.5:
            machine.slowness = 1.0
    await play.sleep(rng.choice([0.1, 0.5, 2.0]))
    play.dismiss(rng.choice([first, second]))
    for machine in late:
        machine.slowness = 1.0


async def old_claims(play: Play) -> None:
    """A claim must outlive the server that answered it."""
    rng, cluster = play.rng, play.cluster
    first = await play.running_writer()
    if first is None:
        return
    await play.sleep(rng.choice([0.0, 0.05, 0.3]))
    claimed = rng.sample(cluster.machines, play.needed)
    deaf = [(machine.name, first.name) for machine in claimed]
    for path in deaf:
        cluster.network.block(path)
    second = play.enter(claimed)
    await play.wait_for(second, rng.choice([GRANTED, RUNNING, RUNNING]), lambda: None)
    await play.sleep(rng.choice([0.0, 0.02, 0.3]))
    fallen = rng.sample(claimed, rng.randint(1, len(claimed)))
    for machine in fallen:
        cluster.network.bar(second.name, machine.name)
        if machine.up:
            machine.power_cut() if rng.random() < 0.6 else machine.kill()
        cluster.env.after(rng.choice([0.0, 0.05]), machine.start)
    for machine in fallen:
        cluster.network.unblock((machine.name, first.name))
    first.hurries_until = cluster.env.now + 0.1
    await play.sleep(rng.choice([0.3, 1.0]))
    for path in deaf:
        cluster.network.unblock(path)
    for machine in cluster.machines:
        cluster.network.unbar(second.name, machine.name)


async def two_of_three(play: Play) -> None:
    """Some members lag. Of the others, which are exactly a quorum, one is damaged and the rest is
    unavailable. The next writer reaches the damaged one and those that lag."""
    rng, cluster = play.rng, play.cluster
    victim = cluster.victim
    others = [one for one in cluster.machines if one is not victim]
    if not cluster.may_fail(victim) or victim.without_power:
        return
    behind = rng.sample(others, len(cluster.machines) - play.quorum)
    away = [one for one in others if one not in behind]
    first = await play.running_writer()
    if first is None:
        return
    await play.sleep(rng.choice([0.0, 0.05, 0.3]))
    for machine in behind:
        cluster.network.bar(first.name, machine.name)
    first.hurries_until = cluster.env.now + rng.choice([0.0, 0.1])
    await play.sleep(rng.choice([0.05, 0.3, 1.0]))
    play.dismiss(first)
    if not cluster.may_fail(victim) or victim.without_power:
        return
    victim.kill()
    drawn = rng.random()
    if drawn < 0.3:
        victim.lose_disk(rng.randbytes(16))
    elif drawn < 0.6 and (folders := removable_folders(victim)):
        mine = f"d/{play.directory}"
        folder = mine if mine in folders and rng.random() < 0.5 else rng.choice(folders)
        victim.folder_is_removed(folder, rng.randbytes(16), keeps_disk=True)
        cluster.env.after(rng.choice([0.5, 2.0, 5.0]), victim.give_empty_disk)
    else:
        victim.disk.write_back()
        objects = rot.objects_of(victim, play.directory)
        for path in objects[-rng.randint(1, 2) :]:
            rot.rot(cluster, path, rng)
    cluster.env.after(rng.choice([0.0, 0.05, 0.3]), victim.start)
    second = play.enter([victim, *behind])
    await play.wait_for(second, RUNNING, lambda: None)
    await play.sleep(rng.choice([0.0, 0.3]))
    for machine in away:
        cluster.network.unbar(second.name, machine.name)


async def backups(play: Play) -> None:
    """An operator restores the disks of all members but one from backups made before any journal existed,
    while that one is unavailable. More is missing then than the promise allows, but not forever: no journal
    may be created again before that member is back (R16)."""
    rng, cluster = play.rng, play.cluster
    machines, others = cluster.machines, [one for one in cluster.directories if one != play.directory]
    keeps = rng.choice(machines)
    if len(machines) < 3 or cluster.region is not None or any(one in cluster.on_stage for one in others):
        return
    if not cluster.may_fail(cluster.victim):
        return
    if any(one.without_power or one.damaged or one.wiped for one in machines):
        return
    for writer in cluster.writers:
        cluster.network.process_died(writer, power=False)
        writer.kill()
    if not _all_acknowledged_is_on(cluster, keeps):
        return
    cluster.may_damage = False
    cluster.history.put_back = True
    with _on_stage(cluster, others):
        for machine in machines:
            if machine is not keeps:
                machine.kill()
                machine.put_back(cluster.record)
                machine.start()
        _forget_what_no_disk_has(cluster)
        for directory in cluster.directories:
            play.cluster.network.bar(cluster.new_writer(directory).name, keeps.name)
        await play.sleep(rng.choice([1.0, 4.0]))
    for writer in cluster.writers:
        cluster.network.unbar(writer.name, keeps.name)


def _forget_what_no_disk_has(cluster: "Cluster") -> None:
    """Forget the segments that only the replaced disks had, as they had their claims. (All writers are
    dead.)"""
    cluster.history.forgotten.update(
        (directory, name)
        for directory, name in cluster.history.segments
        if not any(machine.disk.content(f"d/{directory}/{name}") for machine in cluster.machines)
    )


def _all_acknowledged_is_on(cluster: "Cluster", keeps: "Machine") -> bool:
    """Return whether that machine has reported each size that a quorum has reported."""
    for key in cluster.history.segments:
        reported = sorted((machine.reported.get(key, 0) for machine in cluster.machines), reverse=True)
        if keeps.reported.get(key, 0) < reported[cluster.record.ack_quorum - 1]:
            return False
    return True


@contextmanager
def _on_stage(cluster: "Cluster", directories: list[str]) -> Iterator[None]:
    for directory in directories:
        cluster.on_stage[directory] = None
    try:
        yield
    finally:
        for directory in directories:
            cluster.on_stage.pop(directory, None)


def _kind(script: Callable[[Play], Coroutine[Any, Any, None]]) -> Kind:
    def begin(cluster: "Cluster", fault: Fault, rng: Random) -> None:
        free = [one for one in cluster.directories if one not in cluster.on_stage]
        if not free:
            return
        directory = rng.choice(free)

        async def perform() -> None:
            with _on_stage(cluster, [directory]):
                await script(Play(cluster, directory, rng))

        cluster.nemesis.start(fault.kind, perform())

    return begin


KINDS = {
    script.__name__: _kind(script)
    for script in (reigns, leftovers, late_syncs, old_claims, two_of_three, backups)
}

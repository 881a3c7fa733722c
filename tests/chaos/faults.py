"""The faults, one function each. The nemesis decides which are injected and when.

A function draws its details from the random generator that it gets, describes its effect in one line, and
undoes it: even if it is cancelled, its rules end and stopped processes continue. Only disk faults lose
anything permanently, and only on one disk at a time, until that one is whole again: with Qa of 2, the store
promises to survive one lost disk.
"""

import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import trio

from dos_protocol.messages import Opcode
from tests.chaos.cluster import SERVERS, Cluster, Member, Writer
from tests.support.proxy import Ending, Way

Say = Callable[[str], None]

COMMAND_S = 120.0
SPLIT_DELAY_S = 0.5
SPLIT_PATIENCE_S = 5.0
REPAIRED_S = 240.0


@dataclass(frozen=True, slots=True)
class Act:
    """What a fault is given."""

    cluster: Cluster
    rng: random.Random
    say: Say

    def some_members(self) -> list[Member]:
        """One mostly, two sometimes, seldom all."""
        count = self.rng.choices([1, 2, 3], [14, 5, 1])[0]
        return self.rng.sample(self.cluster.members, count)

    def some_client(self) -> str:
        """All clients, or one writer alone: so that two writers see two different networks."""
        writers = [one for directory in self.cluster.writers for one in self.cluster.living(directory)]
        if not writers or self.rng.random() < 0.5:
            return ""
        return self.rng.choice(writers).name

    def some_way(self) -> Way:
        return self.rng.choice([Way.BOTH, Way.BOTH, Way.TO_SERVER, Way.TO_CLIENT])

    def some_directory(self) -> str:
        return self.rng.choice(list(self.cluster.writers))

    def moment_s(self, mean_s: float, max_s: float) -> float:
        """Seldom much longer: so long that both ends take the other for dead."""
        stretch = 6.0 if self.rng.random() < 0.04 else 1.0
        return stretch * min(max_s, self.rng.expovariate(1 / mean_s))


# --- the network --------------------------------------------------------------------------------------------


async def partition(act: Act) -> None:
    members, client, way = act.some_members(), act.some_client(), act.some_way()
    loses = act.rng.random() < 0.5
    duration_s = act.moment_s(0.7, 4.0)
    act.say(f"partition {words(members, client, way)}, {'bytes lost' if loses else 'bytes held'}")
    with ExitStack() as stack:
        for member in members:
            rule = member.proxy.lose if loses else member.proxy.hold
            stack.enter_context(rule(way, client=client))
        await trio.sleep(duration_s)


async def stall(act: Act) -> None:
    members, client, way = act.some_members(), act.some_client(), act.some_way()
    duration_s = act.moment_s(0.5, 2.0)
    act.say(f"stall {words(members, client, way)}")
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(member.proxy.stall(way, client=client))
        await trio.sleep(duration_s)


async def slow(act: Act) -> None:
    members, way = act.some_members(), act.some_way()
    bytes_per_s, delay_s = act.rng.uniform(20_000, 500_000), act.rng.uniform(0.0, 0.05)
    duration_s = act.moment_s(0.7, 2.0)
    act.say(f"slow {words(members, '', way)}")
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(member.proxy.slow(way, bytes_per_s=bytes_per_s, delay_s=delay_s))
        await trio.sleep(duration_s)


async def cut_after(act: Act) -> None:
    members, way = act.some_members(), act.rng.choice([Way.TO_SERVER, Way.TO_CLIENT])
    count = int(act.rng.choice([0, 1, 31, 33, 100, 1_000, 20_000, 200_000]) * act.rng.uniform(0.5, 1.5))
    ending = act.rng.choice(list(Ending))
    act.say(f"cut by {ending.name} after {count} bytes {words(members, '', way)}")
    with ExitStack() as stack:
        rules = [stack.enter_context(one.proxy.cut_after(count, way, ending=ending)) for one in members]
        with trio.move_on_after(1.0):
            for rule in rules:
                await rule.done.wait()


async def drop_reply(act: Act) -> None:
    members = act.some_members()
    opcode = act.rng.choice([Opcode.APPEND, Opcode.APPEND, Opcode.CHANGE_DIRECTORY, Opcode.GET, Opcode.STAT])
    nth = act.rng.randint(1, 20) if opcode is Opcode.APPEND else 1
    act.say(f"drop the reply to {opcode.name} {words(members, '', Way.TO_CLIENT)}")
    with ExitStack() as stack:
        rules = [stack.enter_context(one.proxy.drop_reply(opcode, nth)) for one in members]
        with trio.move_on_after(1.0):
            for rule in rules:
                await rule.done.wait()


async def cut(act: Act) -> None:
    members, client, ending = act.some_members(), act.some_client(), act.rng.choice(list(Ending))
    act.say(f"cut by {ending.name} {words(members, client, Way.BOTH)}")
    for member in members:
        member.proxy.cut(ending, client=client)


async def refuse(act: Act) -> None:
    members, duration_s = act.some_members(), act.moment_s(0.3, 1.0)
    act.say(f"refuse and cut {words(members, '', Way.BOTH)}")
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(member.proxy.refuse())
            member.proxy.cut()
        await trio.sleep(duration_s)


def words(members: list[Member], client: str, way: Way) -> str:
    arrow = {Way.TO_SERVER: "->", Way.TO_CLIENT: "<-"}.get(way, "<->")
    return f"{client or '*'} {arrow} {names(members)}"


def names(members: list[Member]) -> str:
    return " ".join(member.name for member in members)


# --- the servers --------------------------------------------------------------------------------------------


async def stop_server(act: Act) -> None:
    members, duration_s = act.some_members(), act.moment_s(0.8, 4.0)
    act.say(f"SIGSTOP {names(members)}")
    with stopped(members):
        await trio.sleep(duration_s)


@contextmanager
def stopped(members: list[Member]) -> Iterator[None]:
    try:
        for member in members:
            member.pause()
        yield
    finally:
        for member in members:
            member.resume()


async def kill_server(act: Act) -> None:
    members, duration_s = act.some_members(), act.moment_s(0.5, 2.0)
    act.say(f"SIGKILL {names(members)}")
    for member in members:
        async with member.turn:
            await member.kill()
    try:
        await trio.sleep(duration_s)
    finally:
        with trio.CancelScope(shield=True):
            for member in members:
                async with member.turn:
                    if not member.server.running:
                        await member.restart()


async def lose_disk(act: Act) -> None:
    """Wiped, and replaced at its own address by the command, which may itself be killed. Ends when filled."""
    member = act.rng.choice(act.cluster.members)
    kill_tool = act.rng.random() < 0.4
    kill_after_s = act.rng.uniform(0.3, 2.0)
    act.say(f"wipe {member.name}" + (", the tool killed once" if kill_tool else ""))
    with trio.CancelScope(shield=True):
        async with member.turn:
            await member.wipe()
        while not await replaced(act.cluster, member, kill_after_s if kill_tool else None):
            kill_tool = False
            await trio.sleep(0.1)
    act.say(f"{member.name} is filled again")


async def replaced(cluster: Cluster, member: Member, kill_after_s: float | None) -> bool:
    """One run of `dos store replace`."""
    where = member.proxy.location
    return await store_command(cluster, ["replace", cluster.url, where, where], kill_after_s)


async def damage_disk(act: Act) -> None:
    """A bit of one copy flips while its server is down; `dos store repair` repairs it. Ends when repaired."""
    member, draw = act.rng.choice(act.cluster.members), act.rng.random()
    with trio.CancelScope(shield=True):
        async with member.turn:
            await member.kill()
            flipped = flip_a_bit(member.server.data, random.Random(draw))
            await member.restart()
        act.say(f"a bit flips on {member.name}, in {flipped}")
        with trio.fail_after(REPAIRED_S):
            repair = ["repair", "--read", act.cluster.url]
            while not await store_command(act.cluster, repair, None):  # noqa: ASYNC110 - another process
                await trio.sleep(0.1)
    act.say(f"{member.name} is repaired")


def flip_a_bit(data: Path, rng: random.Random) -> str:
    """In any object of the workload, or near the end of the one written last; where."""
    files = sorted(path for path in (data / "d").glob("app.*/J.*") if path.stat().st_size)
    at_the_end = rng.random() < 0.5
    path = max(files, key=lambda one: one.stat().st_mtime_ns) if at_the_end else rng.choice(files)
    size = path.stat().st_size
    position = rng.randrange(max(0, size - 500) if at_the_end else 0, size)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return f"{path.parent.name}/{path.name} at {position}"


async def store_command(cluster: Cluster, arguments: list[str], kill_after_s: float | None) -> bool:
    """One run of `dos store ...`; False when it failed or was killed."""
    command = [sys.executable, "-m", "dos_cli", "store", *arguments]
    with (cluster.folder / "logs" / "store-commands").open("ab") as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
        try:
            with trio.move_on_after(kill_after_s if kill_after_s is not None else COMMAND_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
    return process.returncode == 0


# --- the writers --------------------------------------------------------------------------------------------


async def kill_writer(act: Act) -> None:
    directory = act.some_directory()
    act.say(f"SIGKILL the writer of {directory}, another takes over")
    for writer in act.cluster.living(directory):
        writer.send(SIGKILL)
    await settled(await act.cluster.add_writer(directory))


async def zombie(act: Act) -> None:
    """A writer sleeps, another takes over and is acknowledged, the first wakes up and continues to append."""
    directory = act.some_directory()
    act.say(f"SIGSTOP the writer of {directory}, another takes over, SIGCONT")
    sleeping = act.cluster.living(directory)
    for writer in sleeping:
        writer.pause()
    try:
        await settled(await act.cluster.add_writer(directory))
    finally:
        for writer in sleeping:
            writer.resume()


async def contenders(act: Act) -> None:
    directory = act.some_directory()
    act.say(f"two contenders for {directory} at once")
    new = [await act.cluster.add_writer(directory) for _ in range(2)]
    for writer in new:
        await settled(writer)


async def dying_contender(act: Act) -> None:
    """It dies somewhere between its start and its first records."""
    directory, after_s = act.some_directory(), act.rng.uniform(0.2, 1.5)
    act.say(f"a contender for {directory} dies")
    writer = await act.cluster.add_writer(directory)
    await trio.sleep(after_s)
    writer.send(SIGKILL)


async def split(act: Act) -> None:
    """The writer and a contender see different servers: the writer two, the contender the third, and at times
    one of the two. The contender has seen the store before, so it knows how many it needs."""
    directory, duration_s = act.some_directory(), act.rng.uniform(1.5, 4.0)
    alone, *others = act.rng.sample(act.cluster.members, SERVERS)
    hidden = others[: act.rng.choice([1, 2])]
    with ExitStack() as stack:
        for writer in act.cluster.living(directory):
            stack.enter_context(alone.proxy.hold(client=writer.name))
        contender = await act.cluster.add_writer(directory, SPLIT_DELAY_S)
        with trio.move_on_after(SPLIT_PATIENCE_S):
            await contender.sees_store.wait()
        act.say(f"{contender.name} does not see {names(hidden)}, the writer does not see {alone.name}")
        for member in hidden:
            stack.enter_context(member.proxy.hold(client=contender.name))
        await trio.sleep(duration_s)
    await settled(contender)


async def settled(writer: Writer) -> None:
    """Until the writer has opened and something of it is acknowledged, or it ended, or for a while."""
    with trio.move_on_after(6.0):
        while writer.running and not writer.acknowledged:  # noqa: ASYNC110 - another process writes the log
            await trio.sleep(0.05)


Fault = Callable[[Act], Awaitable[None]]

LANES: dict[str, tuple[float, dict[Fault, int]]] = {
    "network": (
        0.8,
        {partition: 6, stall: 2, slow: 2, cut_after: 4, drop_reply: 4, cut: 2, refuse: 1},
    ),
    "servers": (2.5, {stop_server: 2, kill_server: 3}),
    "disks": (3.0, {lose_disk: 2, damage_disk: 1}),
    "writers": (1.2, {kill_writer: 3, zombie: 2, contenders: 2, dying_contender: 3, split: 3}),
}
"""Lane -> (mean seconds between two of its faults, fault -> weight). Lanes run side by side."""

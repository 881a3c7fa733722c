"""Faults of sectors at rest: bits flip; sectors are zeroed, swapped, have an earlier content or cannot be
read; files end too early.

They affect only objects of the one machine of a run that may be damaged: while its server is down and
everything that it wrote is on the disk; or under a running server, whose cache hides the damage from all
reads except the scrub. Damage is recorded: a server may lose these bytes, and must report it.
"""

import re
from random import Random
from typing import TYPE_CHECKING, Final

from dos_server.core.files.extent import MAGIC
from tests.sim.nemesis.fault import Fault, Kind
from tests.sim.nemesis.machines import down_for
from tests.sim.oracles.store import payload_at
from tests.support.fake_disk import SECTOR

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine


def objects_of(machine: "Machine", directory: str | None = None) -> list[str]:
    """Return the paths of the objects with a durable name, the oldest segment first."""
    folders = [directory] if directory is not None else machine.disk.entries("d")
    return [
        f"d/{folder}/{name}"
        for folder in folders
        for name in machine.disk.entries(f"d/{folder}")
        if not name.startswith(".") and machine.disk.stable(f"d/{folder}/{name}")
    ]


def flip_one_bit(data: bytearray, rng: Random) -> None:
    """Flip one bit anywhere in a file."""
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _flip(data: bytearray, rng: Random) -> None:
    """Flip one bit, anywhere or near the end."""
    if rng.random() < 0.5:
        flip_one_bit(data, rng)
    else:
        data[len(data) - 1 - rng.randrange(min(len(data), 300))] ^= 1 << rng.randrange(8)


def _sectors(data: bytearray) -> int:
    return -(-len(data) // SECTOR)


def _zero(data: bytearray, rng: Random) -> None:
    start = SECTOR * rng.choice([rng.randrange(_sectors(data)), _sectors(data) - 1])
    data[start : start + SECTOR] = bytes(len(data[start : start + SECTOR]))


def _swap(data: bytearray, rng: Random) -> None:
    whole = len(data) // SECTOR
    if whole < 2:
        return _zero(data, rng)
    one, other = (SECTOR * number for number in rng.sample(range(whole), 2))
    data[one : one + SECTOR], data[other : other + SECTOR] = (
        data[other : other + SECTOR],
        data[one : one + SECTOR],
    )
    return None


def _older(data: bytearray, rng: Random) -> None:
    """Set a sector back to when the file ended within it."""
    start = SECTOR * rng.choice([rng.randrange(_sectors(data)), _sectors(data) - 1])
    end = min(start + SECTOR, len(data))
    then = rng.randrange(start, end)
    data[then:end] = bytes(end - then)


def _truncate(data: bytearray, rng: Random) -> None:
    """Checkpoint the file anywhere, near the end, or between two extents."""
    edges = [found.start() for found in re.finditer(re.escape(MAGIC), data)] or [0]
    near = max(0, len(data) - 1 - rng.randrange(400))
    del data[rng.choice([rng.randrange(len(data)), near, rng.choice(edges), edges[-1]]) :]


CHANGES: Final = (_flip, _zero, _swap, _older, _truncate)


def rot(
    cluster: "Cluster", path: str, rng: Random, number: int | None = None, *, cached: bool = False
) -> None:
    """Damage one object of the victim by change `number`, or by any. The victim is down, or its cache hides
    it."""
    machine = cluster.victim
    if not machine.vouched(path):
        return  # a power cut has lost the newest mark as well: the limit that decision 0002 accepts
    before = machine.disk.stable(path)
    change = CHANGES[number] if number is not None else rng.choice(CHANGES)
    machine.disk.damage(path, lambda data: change(data, rng), cached=cached)
    if machine.disk.stable(path) != before:
        _note(machine, path, before)
        cluster.note(machine.name, f"{path} is damaged: {change.__name__[1:]}")
        cluster.history.sometimes["damaged at rest"] += 1


def _note(machine: "Machine", path: str, before: bytes | None) -> None:
    """Record that an object is damaged; `before`: its previous file. If a power cut has also lost the
    object's mark, and it is not written again yet, the machine cannot know what it lost, so the reported size
    is reduced to what the file still had."""
    if not machine.damaged.get(path, True):
        _, directory, name = path.split("/")
        reported = machine.reported.get((directory, name), 0)
        machine.reported[directory, name] = min(reported, len(payload_at(before, path)))
    machine.damaged[path] = machine.vouched(path)


def _kind(number: int) -> Kind:
    def damage(cluster: "Cluster", fault: Fault, rng: Random) -> None:
        machine = cluster.victim
        if not cluster.may_fail(machine) or machine.without_power:
            return
        at_work = CHANGES[number] is not _truncate and rng.random() < 0.4
        if not at_work:
            machine.kill()
            machine.disk.write_back()
        paths = objects_of(machine)
        if paths:
            rot(cluster, rng.choice([rng.choice(paths), paths[-1]]), rng, number, cached=at_work)
        if not at_work:
            down_for(cluster, machine, fault.seconds)

    return damage


flip, zero_sector, swap_sectors, older_sector, truncate = (_kind(number) for number in range(len(CHANGES)))


def unreadable_sector(cluster: "Cluster", fault: Fault, rng: Random) -> None:
    """A sector that cannot be read from now on, also under a running server."""
    machine = cluster.victim
    if not cluster.may_fail(machine) or machine.without_power:
        return
    paths = objects_of(machine)
    if paths:
        path = rng.choice([rng.choice(paths), paths[-1]])
        data = machine.disk.stable(path)
        assert data is not None, "objects have durable names"
        machine.disk.spoil(path, rng.randrange(-(-len(data) // SECTOR)))
        _note(machine, path, data)

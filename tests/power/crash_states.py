"""From one run of a real server to many disks that a power cut may leave, and what a server shows on each.

The calls of the server as they arrived at the file system are replayed up to some moment; `disk_state` says
what the disk may hold then. It is written down as plain files, and the server's storage and core are started
on it.
"""

import copy
import functools
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec

from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError
from dos_server.disk import RealDisk
from tests.power import operations as op
from tests.power.disk_state import DiskState, Image
from tests.power.history import History, Observation, Request, observe
from tests.power.model_disk import ModelDisk
from tests.power.mount import DATA, LossyDisk
from tests.power.workload import STORE, Writer, make_store_of_one, work
from tests.support.core_harness import Harness
from tests.support.servers import NO_LOG


@dataclass
class Recorded:
    """What a server did to its disk, and what it told whom."""

    operations: list[op.AnyOperation]
    history: History

    def before(self, count: int) -> float:
        """What was acknowledged before this moment was acknowledged after at most so many operations."""
        return self.operations[count].at if count < len(self.operations) else inf

    def moments(self, rng: random.Random, count: int) -> list[int]:
        """Numbers of operations: one half anywhere, one half right after an acknowledgement."""
        anywhere = [rng.randint(1, len(self.operations)) for _ in range(count // 2)]
        facts = [fact.at for one in self.history.objects.values() for fact in one.facts]
        facts += [at for claims in self.history.epochs.values() for at, _ in claims]
        told = [
            sum(one.at <= at for one in self.operations) for at in rng.choices(facts, k=count - count // 2)
        ]
        return sorted([*anywhere, *told])


def record(folder: Path, seed: int, *, steps: int = 90, options: tuple[str, ...] = NO_LOG) -> Recorded:
    """A working server, first without a store, then as a store of one."""
    history = History()
    with LossyDisk(folder) as disk:
        server = disk.start_server(*options)
        writers = [Writer(server, history, f"dir{number}", seed + number) for number in range(3)]
        for writer in writers:
            writer.claim()
        work(writers, steps, seed)
        make_store_of_one(server)
        for writer in writers:
            writer.hello = STORE
            writer.claim()
        work(writers, steps, seed + 1)
        for writer in writers:
            writer.close()
        return Recorded(disk.journal(), history)


class Crash(NamedTuple):
    """A data directory as the power left it, and after how many operations of the run that was."""

    count: int
    image: Image


def cuts(operations: list[op.AnyOperation], moments: Iterable[int], rng: random.Random) -> Iterator[Crash]:
    """One power cut for each moment; moments in order."""
    for state in states(operations, moments):
        yield Crash(state.count, data_of(state.crash(rng.getrandbits(64))))


def cuts_in_the_start(
    operations: list[op.AnyOperation], moments: Iterable[int], rng: random.Random
) -> Iterator[Crash]:
    """At each moment the server was killed, or the power cut; in the start after that the power is cut."""
    for state in states(operations, moments):
        before = (
            copy.deepcopy(state) if rng.random() < 0.5 else DiskState.of(state.crash(rng.getrandbits(64)))
        )
        yield Crash(state.count, data_of(_cut_in_the_start(before, rng)))


def states(operations: list[op.AnyOperation], moments: Iterable[int]) -> Iterator[DiskState]:
    """The disk at each moment: always the same object."""
    state = DiskState()
    for count in moments:
        for operation in operations[state.count : count]:
            state.apply(operation)
        yield state


def _cut_in_the_start(before: DiskState, rng: random.Random) -> Image:
    """A server is started on the disk and loads all it has; somewhere in that the power goes."""
    disk = ModelDisk(copy.deepcopy(before), DATA)
    stored = disk.names("")
    if stored is None:
        return {}
    ask = session(Harness(disk), stored)
    for entry in ask(m.List()).entries:
        ask(m.ChangeDirectory(entry.name))
    for operation in disk.journal[: rng.randint(0, len(disk.journal))]:
        before.apply(operation)
    return before.crash(rng.getrandbits(64))


def data_of(image: Image) -> Image:
    """The server's directory of a disk."""
    above = f"{DATA}/"
    return {path.removeprefix(above): data for path, data in image.items() if path.startswith(above)}


def syncing_nothing(
    operations: list[op.AnyOperation], *, files: bool, folders: bool
) -> list[op.AnyOperation]:
    """The same run on a disk that answers syncs and does nothing; they stay, for their numbers."""
    lies = ((op.SyncFile,) if files else ()) + ((op.SyncFolder,) if folders else ())
    return [msgspec.structs.replace(one, since=0) if isinstance(one, lies) else one for one in operations]


@contextmanager
def plain_folder() -> Iterator[Path]:
    """A folder for disks; in memory where that is possible: their syncs are many."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dos-power-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def write_down(image: Image, folder: Path) -> None:
    """Make the folder hold the image, and nothing else."""
    for one in folder.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    for path, content in sorted(image.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def observed_on(image: Image, folder: Path) -> Observation:
    """What a server shows that is started on the image, written down in the folder."""
    write_down(image, folder)
    disk = RealDisk(folder)
    try:
        return _started(disk, image)
    finally:
        disk.shut()


def _started(disk: RealDisk, image: Image) -> Observation:
    try:
        server = Harness(disk)
    except CorruptDataError as error:
        return Observation({}, {}, [f"the server does not start: {error}"])
    try:
        return observe(session(server, image))
    finally:
        server.storage.stop()


def session(server: Harness, stored: Container[str]) -> Request:
    """A session with a server that has these files."""
    hello = STORE if "store" in stored else m.Hello()
    return functools.partial(server.ask, server.connect(hello))


def violations(run: Recorded, count: int, seed: int, *, again: bool = False) -> Counter[str]:
    """Of so many crashes of the run, what was not as promised; `again`: power goes in the start after it."""
    rng = random.Random(seed)
    wrong: Counter[str] = Counter()
    with plain_folder() as folder:
        crashes = cuts_in_the_start if again else cuts
        for crash in crashes(run.operations, run.moments(rng, count), rng):
            for one in run.history.violations(observed_on(crash.image, folder), run.before(crash.count)):
                wrong[f"after operation {crash.count}: {one}"] += 1
    return wrong

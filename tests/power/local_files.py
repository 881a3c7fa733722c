"""Power cuts below files that a program of this process writes: output, journals, mirrors, settings.

The program works on a `LossyDisk`, in a directory of its own, and states what it has promised. Then, for each
moment between two of its system calls, the disks that a power cut may leave are written down, and a reader
checks the promises that were made until then. The same after the program was killed at some system call, and
started again. Every disk is checked once: most system calls change nothing of the barest one.
"""

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from dos_tls import sync_folder
from tests.power import operations as op
from tests.power.crash_states import plain_folder, write_down
from tests.power.disk_state import DiskState, Image
from tests.power.mount import LossyDisk

P = TypeVar("P")


@dataclass
class Program(Generic[P]):
    """A program that is started one or several times. `root`: its directory, which exists and is durable."""

    root: Path
    start: int = 0
    """How often it was started before."""
    promised: list[tuple[float, P]] = field(default_factory=list)

    def promise(self, what: P) -> None:
        """State a promise that holds from now on, whatever happens to the power."""
        self.promised.append((time.monotonic(), what))

    @property
    def promises(self) -> list[P]:
        return [what for _, what in self.promised]


@dataclass(frozen=True)
class AfterCut(Generic[P]):
    """A disk after a power cut. seen: what programs saw before it. bare: it has what was synced, no more."""

    root: Path
    promises: Sequence[P]
    seen: Image
    bare: bool


Work = Callable[[Program[P]], None]
Check = Callable[[AfterCut[P]], None]


def cut_everywhere(
    folder: Path, work: Work[P], check: Check[P], *, kills: Iterable[int] = (), seeds: int = 2
) -> int:
    """Run the program, cut the power between every two of its system calls, and check what each cut leaves.

    Each cut leaves what was synced and nothing else; in the first run, also one disk for each seed. kills:
    for each, the program is run once more, killed after so many system calls, and started again.

    Raises AssertionError for what `check` raises, with the system calls before the cut. Returns the number of
    disks that were checked.
    """
    runs: list[tuple[Program[P], int, int]] = []
    with LossyDisk(folder, sync_ms=0.0) as disk:
        for kill in (0, *kills):
            program: Program[P] = Program(disk.mountpoint / f"killed-{kill}")
            program.root.mkdir()
            sync_folder(disk.mountpoint)
            begin = disk.stop(kill or None)
            if kill:
                try:
                    work(program)
                except Exception:
                    gc.collect()  # closes what it had open
                disk.stop(None)
                program.start += 1
            work(program)
            runs.append((program, begin, disk.stop(None)))
        operations = disk.journal()
    rng, state, checked = random.Random(0), DiskState(), 0
    with plain_folder() as plain:
        for program, begin, end in runs:
            for one in operations[state.count : begin]:
                state.apply(one)
            leaves = seeds if program is runs[0][0] else 0
            for after in _cuts(state, operations[begin:end], program, plain, rng, leaves):
                checked += 1
                try:
                    check(after)
                except Exception as error:
                    calls = "\n    ".join(str(one)[:150] for one in operations[begin : state.count][-12:])
                    text = f"power cut after system call {state.count - begin} of {program.root.name}"
                    raise AssertionError(f"{text}: {error!r}\n    {calls}") from error
    return checked


def _cuts(
    state: DiskState,
    operations: Sequence[op.AnyOperation],
    program: Program[P],
    plain: Path,
    rng: random.Random,
    seeds: int,
) -> Iterator[AfterCut[P]]:
    """Yield each moment of a run with each disk that it may leave, written down in `plain`."""
    known = set()
    for next_one in (*operations, None):
        promises = [what for at, what in program.promised if next_one is None or at < next_one.at]
        bare = _inside(state.bare(), program)
        for image in (bare, *(_inside(state.crash(rng.getrandbits(64)), program) for _ in range(seeds))):
            key = (len(promises), frozenset(image.items()))
            if key not in known:
                known.add(key)
                write_down(image, plain)
                yield AfterCut(plain, promises, _inside(state.seen(), program), image is bare)
        if next_one is not None:
            state.apply(next_one)


def _inside(image: Image, program: Program[P]) -> Image:
    above = f"{program.root.name}/"
    return {path.removeprefix(above): data for path, data in image.items() if path.startswith(above)}

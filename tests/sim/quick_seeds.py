"""Recorded seeds that find planted bugs: tests run them first, so they need not hunt.

A test states that one of the first N seeds finds a bug. Which one is not part of the statement, so the order
is free: the recorded seed first, then the others. After a change of the code a recorded seed is another run
and may find nothing; the test then takes as long as a whole hunt. To record again, with the N of the test:

    ./run python -m tests.sim.hunt NAME... --record --seeds-max N
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

FINDS = 3
"""So many seeds that find a bug are compared by their CPU time."""
RECORDED = Path(__file__).with_suffix(".json")


def recorded() -> dict[str, int]:
    """Return the recorded seed of each bug, of both tiers."""
    seeds: dict[str, int] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return seeds


def quick_first(name: str, seeds: Iterable[int]) -> list[int]:
    """Return the same seeds; the recorded one, if it is among them, is the first."""
    quick = recorded().get(name)
    return sorted(seeds, key=lambda seed: seed != quick)


def cheapest(seeds: Iterable[int], finds: Callable[[int], bool]) -> int | None:
    """Return the seed that finds the bug with the least CPU time, among the first `FINDS` that do; None: no
    seed does."""
    times: list[tuple[float, int]] = []
    for seed in seeds:
        begun = time.process_time()
        if finds(seed):
            times.append((time.process_time() - begun, seed))
        if len(times) == FINDS:
            break
    return min(times)[1] if times else None


def record(found: Mapping[str, int | None]) -> None:
    """Write these seeds into the file. A bug that no seed finds keeps no row."""
    seeds = {name: seed for name, seed in {**recorded(), **found}.items() if seed is not None}
    RECORDED.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n", encoding="utf-8")

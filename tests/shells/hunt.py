"""Count the seeds that it takes to find each planted bug of shells: `python -m tests.shells.hunt
[NAME...]`. `--record N NAME...` records the cheapest of the first N seeds for tests (`quick_seeds`).
"""

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count, islice

from tests.shells.bugs import BUGS, NEED_FAULT, planted
from tests.shells.region.bugs import REGION_BUGS
from tests.shells.region.region import RUNS_WITH_ONE
from tests.shells.run import plan_of, run_seed
from tests.sim.quick_seeds import cheapest, quick_first, record

SEEDS_MAX = 40
_OF_REGIONS = {patches.__name__: needs for _, needs, patches in REGION_BUGS}


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Return how many of the first `seeds_max` seeds were run until a violation or a crash, and its text; 0
    if there was none. The recorded seed is run first."""
    return _hunt(name, quick_first(name, islice(_seeds_for(name), seeds_max)))


def _hunt(name: str, seeds: Iterable[int]) -> tuple[int, str]:
    with planted(name):
        for number, seed in enumerate(seeds, start=1):
            if found := _found(seed):
                return number, found
    return 0, "not found"


def _found(seed: int) -> str:
    """Return the violation or the crash, or "". The bug is planted."""
    try:
        return run_seed(seed).violation
    except Exception as error:  # a bug may break anything
        return f"crash: {type(error).__name__}: {error}"


def cheapest_seed(name: str, seeds_max: int) -> int | None:
    """Return the seed that tests run first, see `quick_seeds`."""
    with planted(name):
        return cheapest(islice(_seeds_for(name), seeds_max), lambda seed: bool(_found(seed)))


def _seeds_for(name: str) -> Iterator[int]:
    """Yield the seeds that have the fault that a bug needs; for a bug of regions, seeds with a region."""
    of_region = name in _OF_REGIONS
    needs = _OF_REGIONS[name] if of_region else NEED_FAULT.get(name)
    seeds = count(RUNS_WITH_ONE, RUNS_WITH_ONE) if of_region else count(1)
    return (seed for seed in seeds if not needs or needs in {fault.kind for fault in plan_of(seed)})


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--record"]:
        seeds_max, *names = arguments[1:]
        record({name: cheapest_seed(name, int(seeds_max)) for name in names})
        return
    for name in arguments or BUGS:
        begun = time.process_time()
        seeds, what = _hunt(name, islice(_seeds_for(name), SEEDS_MAX))
        print(f"{seeds:5} {name:45} {time.process_time() - begun:6.1f} s  {what[:110]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

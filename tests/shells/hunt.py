"""Count the seeds that it takes to find each planted bug of shells: `python -m tests.shells.hunt
[NAME...]`."""

import sys
import time
from collections.abc import Iterator
from itertools import count, islice

from tests.shells.bugs import BUGS, NEED_FAULT, planted
from tests.shells.region.bugs import REGION_BUGS
from tests.shells.region.region import RUNS_WITH_ONE
from tests.shells.run import plan_of, run_seed

SEEDS_MAX = 40
_OF_REGIONS = {patches.__name__: needs for _, needs, patches in REGION_BUGS}


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Return how many seeds were run until a violation or a crash, and its text; 0 if there was none."""
    with planted(name):
        for number, seed in enumerate(islice(_seeds_for(name), seeds_max), start=1):
            try:
                result = run_seed(seed)
            except Exception as error:  # a bug may break anything
                return number, f"crash: {type(error).__name__}: {error}"
            if result.violation:
                return number, result.violation
    return 0, "not found"


def _seeds_for(name: str) -> Iterator[int]:
    """Yield the seeds that have the fault that a bug needs; for a bug of regions, seeds with a region."""
    of_region = name in _OF_REGIONS
    needs = _OF_REGIONS[name] if of_region else NEED_FAULT.get(name)
    seeds = count(RUNS_WITH_ONE, RUNS_WITH_ONE) if of_region else count(1)
    return (seed for seed in seeds if not needs or needs in {fault.kind for fault in plan_of(seed)})


def main() -> None:
    for name in sys.argv[1:] or BUGS:
        begun = time.process_time()
        seeds, what = seeds_to_find(name)
        print(f"{seeds:5} {name:45} {time.process_time() - begun:6.1f} s  {what[:110]}", flush=True)


if __name__ == "__main__":
    main()

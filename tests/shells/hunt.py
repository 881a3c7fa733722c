"""How many seeds it takes to find each planted bug of shells: `python -m tests.shells.hunt [NAME...]`."""

import sys
import time

from tests.shells.bugs import BUGS, planted
from tests.shells.region.bugs import REGION_BUGS
from tests.shells.region.region import RUNS_WITH_ONE
from tests.shells.run import run_seed

SEEDS_MAX = 40
_OF_REGIONS = {patches.__name__ for _, patches in REGION_BUGS}


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Seeds run until a violation (or a crash) shows it, and what showed; 0 when none did. A bug of regions
    is looked for in seeds that have one."""
    step = RUNS_WITH_ONE if name in _OF_REGIONS else 1
    with planted(name):
        for number in range(1, 1 + seeds_max):
            seed = number * step
            try:
                result = run_seed(seed)
            except Exception as error:  # a bug may break anything
                return number, f"crash: {type(error).__name__}: {error}"
            if result.violation:
                return number, result.violation
    return 0, "not found"


def main() -> None:
    for name in sys.argv[1:] or BUGS:
        begun = time.process_time()
        seeds, what = seeds_to_find(name)
        print(f"{seeds:5} {name:45} {time.process_time() - begun:6.1f} s  {what[:110]}", flush=True)


if __name__ == "__main__":
    main()

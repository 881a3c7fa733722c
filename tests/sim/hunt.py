"""How many seeds it takes to find each planted bug: `python -m tests.sim.hunt [NAME...]`."""

import logging
import sys
import time

from tests.sim.bugs import BUGS, planted
from tests.sim.run import run_seed

SEEDS_MAX = 300


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX, first: int = 1) -> tuple[int, str]:
    """Seeds run until a violation (or a crash) shows it, and what showed; 0 when none did."""
    with planted(name):
        for seed in range(first, first + seeds_max):
            try:
                result = run_seed(seed)
            except Exception as error:  # a bug may break anything
                return seed - first + 1, f"crash: {type(error).__name__}: {error}"
            if result.violation:
                return seed - first + 1, result.violation
    return 0, "not found"


def main() -> None:
    logging.disable(logging.CRITICAL)
    for name in sys.argv[1:] or BUGS:
        begun = time.monotonic()
        seeds, what = seeds_to_find(name)
        print(f"{seeds:5} {name:40} {time.monotonic() - begun:6.1f} s  {what[:110]}", flush=True)


if __name__ == "__main__":
    main()

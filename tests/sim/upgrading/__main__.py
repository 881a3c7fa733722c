"""Hunt omissions: `./run python -m tests.sim.upgrading [OMISSION]...` prints the first seeds that find
them."""

import sys

from tests.sim.history import ViolationError
from tests.sim.upgrading.histories import FOCUSES, run_history
from tests.sim.upgrading.rules import OMISSIONS

SEEDS_MAX = 1_500


def first_seed(omission: str, focus: str) -> tuple[int, str]:
    """Return the first seed that finds an omission, and how; -1 if none does."""
    for seed in range(SEEDS_MAX):
        try:
            run_history(seed, focus, without=omission)
        except ViolationError as found:
            return seed, str(found)
    return -1, "not found"


if __name__ == "__main__":
    for one in sys.argv[1:] or OMISSIONS:
        for name in FOCUSES:
            seed_, how_ = first_seed(one, name)
            sys.stdout.write(f"{one}: {name!r}, {seed_}: {how_[:100]}\n")

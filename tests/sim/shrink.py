"""Reduce the faults of a failing run: leave out faults as long as the same oracle objects."""

from collections.abc import Callable

from tests.sim.nemesis import Fault
from tests.sim.result import Result
from tests.sim.run import run_seed

RUNS_MAX = 200


def shrink(
    seed: int,
    faults: list[Fault],
    oracle: str,
    *,
    run: Callable[..., Result] = run_seed,
    runs_max: int = RUNS_MAX,
) -> list[Fault]:
    """Return the faults of the smallest run found to which the same oracle objects. None of them can be left
    out alone, unless `runs_max` was reached. (Zeller's ddmin, from halves down to single faults.)"""
    left, parts, runs = list(faults), 2, 0
    while left:
        length = max(1, len(left) // parts)
        for start in range(0, len(left), length):
            rest = left[:start] + left[start + length :]
            runs += 1
            if runs > runs_max:
                return left
            if run(seed, faults=rest).oracle == oracle:
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if length == 1:
                return left
            parts = min(parts * 2, len(left))
    return left


def numbers(faults: list[Fault]) -> str:
    """Return their numbers, for the command line."""
    return ",".join(str(fault.number) for fault in faults)

"""A failing run with as few faults as it takes: fault after fault is left out, as long as it still fails
alike."""

from collections.abc import Callable

from tests.sim.nemesis import Fault
from tests.sim.run import Result, run_seed

RUNS_MAX = 200


def shrink(
    seed: int,
    faults: list[Fault],
    oracle: str,
    *,
    run: Callable[..., Result] = run_seed,
    runs_max: int = RUNS_MAX,
) -> list[Fault]:
    """The faults of a smallest run found that the same oracle objects to: none of them can be left out alone,
    unless `runs_max` came before. (Zeller's ddmin, from halves down to single faults.)"""
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
    """As the command line takes them."""
    return ",".join(str(fault.number) for fault in faults)

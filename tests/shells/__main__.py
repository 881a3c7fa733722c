"""`./run sim --shells`: whole clusters of real shells, one from each seed. See docs/simulation.md."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice
from typing import Annotated, NamedTuple

import typer

from tests.shells.run import plan_of, run_seed
from tests.sim.campaign import numbers, shrink
from tests.sim.result import Result

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
COMMAND = "./run sim --shells"
CHECKED_AGAIN_EVERY = 100
BATCH = 8


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """Return the digest of that run in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.shells", "--seed", str(seed), "--digest"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


class Brief(NamedTuple):
    """What a process reports of a run. Its history cannot be pickled."""

    seed: int
    failed: bool
    digest: str
    sometimes: Counter[str]


def _batch(seeds: list[int]) -> list[Brief]:
    return [_brief(run_seed(seed)) for seed in seeds]


def _brief(result: Result) -> Brief:
    return Brief(result.seed, bool(result.violation), result.digest, result.history.sometimes)


def _one(seed: int, only: str | None, *, trace: bool, digest: bool) -> None:
    wanted = None if only is None else {int(number) for number in only.split(",") if number}
    faults = None if wanted is None else [fault for fault in plan_of(seed) if fault.number in wanted]
    result = run_seed(seed, keep=trace, faults=faults)
    if digest:
        print(result.digest)
        return
    print(*result.lines, sep="\n", end="\n" if result.lines else "")
    if result.violation:
        sys.exit(f"seed {seed}: {result.violation}")
    print(
        f"seed {seed}: {len(result.faults)} faults, {result.steps:,} steps of tasks, {result.seconds:.0f} s"
        f" of virtual time, no violation; digest {result.digest}"
    )


def _shrunk(seed: int) -> None:
    """Reduce the faults of a failing run, and print the command that repeats it."""
    result = run_seed(seed)
    print(f"seed {seed}: {result.violation}", file=sys.stderr)
    left = shrink(seed, result.faults, result.oracle, run=run_seed)
    print(f"{len(left)} of {len(result.faults)} faults are enough", file=sys.stderr)
    print(f"  {COMMAND} --seed {seed} --trace --faults {numbers(left) or '-1'}", file=sys.stderr)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 100,
    seed: Annotated[int | None, typer.Option(help="The first seed; with --trace, the only one.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Run seeds for that time instead.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print a line for each event.")] = False,
    faults: Annotated[str | None, typer.Option(help="Only these faults of the plan, by number.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print only the digest of the run.")] = False,
    processes: Annotated[int | None, typer.Option(help="Processes at a time; default: all cores.")] = None,
    shells: Annotated[bool, typer.Option("--shells", hidden=True)] = True,
) -> None:
    """Run whole clusters of real servers and clients in memory, one from each seed.

    Exit: 0 no violation, 1 a promise is broken (the command that repeats the run is printed), 4 a run differs
    when it is repeated.
    """
    if seed is not None and (trace or digest or faults is not None):
        _one(seed, faults, trace=trace, digest=digest)
        return
    first = 1 if seed is None else seed
    wanted = iter(count(first) if minutes is not None else range(first, first + seeds))
    begun, runs, sometimes = time.monotonic(), 0, Counter[str]()
    failed: list[int] = []
    differed: list[int] = []
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        for results in pool.map(_batch, _batches(wanted, begun, minutes)):
            for result in results:
                runs += 1
                sometimes += result.sometimes
                if result.failed:
                    failed.append(result.seed)
                if result.seed % CHECKED_AGAIN_EVERY == 0:
                    differed += [result.seed] * (digest_elsewhere(result.seed, "7") != result.digest)
    for what, number in sorted(sometimes.items()):
        print(f"{number:10,} {what}")
    print(f"{runs:,} runs, {len(failed)} failed; {runs / (time.monotonic() - begun):.1f} runs/s")
    for one in failed[:3]:
        _shrunk(one)
    if differed:
        print(f"different when repeated: seeds {differed}", file=sys.stderr)
    sys.exit(1 if failed else 4 if differed else 0)


def _batches(seeds: Iterator[int], begun: float, minutes: float | None) -> Iterator[list[int]]:
    while (batch := list(islice(seeds, BATCH))) and (
        minutes is None or time.monotonic() < begun + 60 * minutes
    ):
        yield batch


if __name__ == "__main__":
    app()

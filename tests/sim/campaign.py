"""Run many seeds on all cores; count the violations, the faults and the events."""

import gc
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.membership.kind import has_operator
from tests.sim.nemesis import has_troubles, plan
from tests.sim.regions.region import has_region
from tests.sim.result import Result
from tests.sim.run import run_seed
from tests.sim.visitors.crowd import has_visitors

CHECKED_AGAIN_EVERY = 100
"""One seed in so many is repeated in another process with another hash seed. Its digest must be the
same."""
BATCH: Final = 10
"""Seeds that a process receives at a time: few, so that a campaign ends soon after its limit."""

KINDS: Final[dict[str, Callable[[RandomStreams], bool]]] = {
    "store": lambda rng: not has_region(rng) and not has_operator(rng),
    "region": has_region,
    "membership": has_operator,
    "visitors": has_visitors,
    "troubles": has_troubles,
}
"""Kinds of seeds that a campaign can be limited to."""
MISSES_MAX: Final = 20_000
"""After so many seeds in a row that are not wanted, no more are looked for."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run, without its history."""

    seed: int
    violation: str
    oracle: str
    steps: int
    seconds: float
    digest: str
    faults: int
    sometimes: Counter[str]
    cpu_s: float


@dataclass
class Totals:
    """The result of a campaign. `failed`: the runs in which a promise was broken."""

    runs: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    faults: list[int] = field(default_factory=list)
    sometimes: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)
    """Seeds whose repetition had another digest."""

    def take(self, outcome: Outcome) -> None:
        self.runs += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.seconds
        self.cpu_s += outcome.cpu_s
        self.faults.append(outcome.faults)
        self.sometimes += outcome.sometimes
        if outcome.violation:
            self.failed.append(outcome)


def outcome_of(result: Result, cpu_s: float = 0.0) -> Outcome:
    return Outcome(
        result.seed,
        result.violation,
        result.oracle,
        result.steps,
        result.seconds,
        result.digest,
        len(result.faults),
        result.history.sometimes,
        cpu_s,
    )


def wanted_seeds(first: int, kinds: Iterable[str] = (), faults: Iterable[str] = ()) -> Iterator[int]:
    """Yield the seeds from `first` on that are of all these kinds and have all these faults in their plan."""
    checks, planned, misses = [KINDS[kind] for kind in kinds], set(faults), 0
    for seed in count(first):
        rng = RandomStreams(seed)
        if all(check(rng) for check in checks) and planned <= {fault.kind for fault in plan(rng)}:
            misses = 0
            yield seed
        elif (misses := misses + 1) == MISSES_MAX:
            return


def prepare_process() -> None:
    """Prepare a process for its runs: no log, and garbage collection between runs only, without the
    imported modules."""
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.disable()


def run_batch(seeds: Iterable[int]) -> list[Outcome]:
    """Run seeds, one after the other."""
    outcomes = []
    for seed in seeds:
        begun = time.process_time()
        result = run_seed(seed)
        outcomes.append(outcome_of(result, time.process_time() - begun))
    gc.collect()
    return outcomes


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """Return the digest of that run in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--seeds", "1", "--digest"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def run_campaign(
    first: int,
    seeds: int | None,
    *,
    seconds: float | None = None,
    failures_max: int = 1,
    progress: Callable[[Totals], None] = lambda totals: None,
    processes: int | None = None,
    kinds: Iterable[str] = (),
    faults: Iterable[str] = (),
) -> Totals:
    """Run `seeds` seeds from `first` on (None: without end), for at most `seconds`. Stop soon after
    `failures_max` failures. `kinds`, `faults`: only the seeds that `wanted_seeds` yields for them."""
    totals = Totals()
    begun = time.monotonic()
    numbers = islice(wanted_seeds(first, kinds, faults) if kinds or faults else count(first), seeds)
    workers = processes or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, initializer=prepare_process) as pool:
        running: set[Future[list[Outcome]]] = set()
        ending = False
        while True:
            while not ending and len(running) < workers + 1:
                batch = list(islice(numbers, BATCH))
                if not batch:
                    break
                running.add(pool.submit(run_batch, batch))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in [outcome for future in done for outcome in future.result()]:
                totals.take(outcome)
                if outcome.seed % CHECKED_AGAIN_EVERY == 0 and not _same_again(outcome):
                    totals.differed.append(outcome.seed)
            totals.wall_s = time.monotonic() - begun
            progress(totals)
            ending = (
                ending
                or len(totals.failed) >= failures_max
                or (seconds is not None and totals.wall_s > seconds)
            )
    totals.failed.sort(key=lambda outcome: outcome.seed)
    return totals


def _same_again(outcome: Outcome) -> bool:
    return digest_elsewhere(outcome.seed, "7") == outcome.digest

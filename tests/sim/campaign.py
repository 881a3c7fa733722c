"""Many seeds, on all cores: what was found, and what was tried.

Rules of this file: runs are what `run` says they are; here they are handed out, counted and summed up.
"""

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count

from tests.sim.run import Result, run_seed

CHECKED_AGAIN_EVERY = 100
"""One in so many seeds is run again, in another process with another hash seed: its digest must be the
same."""


@dataclass(frozen=True)
class Outcome:
    """What is kept of a run."""

    seed: int
    violation: str
    oracle: str
    steps: int
    seconds: float
    digest: str
    faults: int
    sometimes: Counter[str]


@dataclass
class Totals:
    """What a campaign came to. `failed`: the runs in which a promise was broken."""

    runs: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    faults: list[int] = field(default_factory=list)
    sometimes: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)
    """Seeds whose second run was another one."""

    def take(self, outcome: Outcome) -> None:
        self.runs += 1
        self.steps += outcome.steps
        self.virtual_s += outcome.seconds
        self.faults.append(outcome.faults)
        self.sometimes += outcome.sometimes
        if outcome.violation:
            self.failed.append(outcome)


def outcome_of(result: Result) -> Outcome:
    return Outcome(
        result.seed,
        result.violation,
        result.oracle,
        result.steps,
        result.seconds,
        result.digest,
        len(result.faults),
        result.history.sometimes,
    )


def _one(seed: int) -> Outcome:
    logging.disable(logging.CRITICAL)
    try:
        return outcome_of(run_seed(seed))
    except Exception as error:
        raise RuntimeError(f"seed {seed} ended with an error of its own: {error!r}") from error


def digest_elsewhere(seed: int, hash_seed: str) -> str:
    """The digest of that run in a fresh process."""
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
) -> Totals:
    """Run seeds from `first` on, so many of them (None: without end), or for so long; stop at that many
    failures."""
    totals = Totals()
    begun = time.monotonic()
    numbers: Iterator[int] = count(first) if seeds is None else iter(range(first, first + seeds))
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        running: set[Future[Outcome]] = set()
        ending = False
        while True:
            while not ending and len(running) < 2 * (processes or os.cpu_count() or 1):
                seed = next(numbers, None)
                if seed is None:
                    break
                running.add(pool.submit(_one, seed))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = future.result()
                totals.take(outcome)
                if (
                    outcome.seed % CHECKED_AGAIN_EVERY == 0
                    and digest_elsewhere(outcome.seed, "7") != outcome.digest
                ):
                    totals.differed.append(outcome.seed)
            totals.wall_s = time.monotonic() - begun
            progress(totals)
            ending = (
                ending
                or len(totals.failed) >= failures_max
                or (seconds is not None and totals.wall_s > seconds)
            )
    return totals

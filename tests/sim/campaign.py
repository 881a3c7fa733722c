"""Run many seeds on all cores; count the violations, the faults and the events."""

import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.nemesis import Fault
from tests.sim.result import Result
from tests.sim.run import ROOT
from tests.sim.sometimes import ENOUGH_RUNS, EVENT_GROUPS, missing
from tests.sim.tiers import CORES, tier_of

CHECKED_AGAIN_EVERY = 100
"""One seed in so many is repeated in another process with another hash seed. Its digest must be the
same."""
BATCH: Final = 10
"""Seeds that a process receives at a time: few, so that a campaign ends soon after its limit."""

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

    tier: str = CORES
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

    @property
    def missing(self) -> list[str]:
        """The events that must be seen in many runs, and were not."""
        return missing(self.sometimes) if tier_of(self.tier).has_events else []


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


def wanted_seeds(
    first: int, kinds: Iterable[str] = (), faults: Iterable[str] = (), tier: str = CORES
) -> Iterator[int]:
    """Yield the seeds from `first` on that are of all these kinds and have all these faults in their plan."""
    of = tier_of(tier)
    checks, planned, misses = [of.kinds[kind] for kind in kinds], set(faults), 0
    for seed in count(first):
        rng = RandomStreams(seed)
        if all(check(rng) for check in checks) and planned <= {fault.kind for fault in of.plan_of(seed)}:
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


def run_batch(tier: str, seeds: Iterable[int]) -> list[Outcome]:
    """Run seeds, one after the other."""
    outcomes = []
    for seed in seeds:
        begun = time.process_time()
        result = tier_of(tier).run_seed(seed)
        outcomes.append(outcome_of(result, time.process_time() - begun))
    gc.collect()
    return outcomes


def digest_elsewhere(seed: int, hash_seed: str, tier: str = CORES) -> str:
    """Return the digest of that run in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", *tier_of(tier).option.split(), "--seed", str(seed), "--digest"],
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
    tier: str = CORES,
) -> Totals:
    """Run `seeds` seeds from `first` on (None: without end), for at most `seconds`. Stop soon after
    `failures_max` failures. `kinds`, `faults`: only the seeds that `wanted_seeds` yields for them."""
    totals = Totals(tier)
    begun = time.monotonic()
    numbers = islice(wanted_seeds(first, kinds, faults, tier) if kinds or faults else count(first), seeds)
    workers = processes or os.cpu_count() or 1
    with ProcessPoolExecutor(workers, initializer=prepare_process) as pool:
        running: set[Future[list[Outcome]]] = set()
        ending = False
        while True:
            while not ending and len(running) < workers + 1:
                batch = list(islice(numbers, BATCH))
                if not batch:
                    break
                running.add(pool.submit(run_batch, tier, batch))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for outcome in [outcome for future in done for outcome in future.result()]:
                totals.take(outcome)
                if outcome.seed % CHECKED_AGAIN_EVERY == 0 and not _same_again(outcome, tier):
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


def _same_again(outcome: Outcome, tier: str) -> bool:
    return digest_elsewhere(outcome.seed, "7", tier) == outcome.digest


# --- the summary ------------------------------------------------------------------------------------------


def percentile(values: list[int], share: float) -> int:
    """Return the percentile of the values; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0


def as_json(totals: Totals) -> str:
    """Return the figures as one JSON object."""
    figures: dict[str, Any] = {
        "runs": totals.runs,
        "steps": totals.steps,
        "wall_s": round(totals.wall_s, 3),
        "cpu_s": round(totals.cpu_s, 3),
        "virtual_s": round(totals.virtual_s, 3),
        "faults_median": percentile(totals.faults, 0.5),
        "faults_p90": percentile(totals.faults, 0.9),
        "sometimes": dict(sorted(totals.sometimes.items())),
        "missing": totals.missing,
        "failed": [{"seed": one.seed, "violation": one.violation} for one in totals.failed],
        "differed": totals.differed,
    }
    return json.dumps(figures, indent=2)


def show(totals: Totals, console: Console) -> None:
    """Print the figures, then each group of events."""
    wall_s, cpu_s = max(totals.wall_s, 1e-9), max(totals.cpu_s, 1e-9)
    figures = Table(show_header=False, box=None, pad_edge=False)
    figures.add_row("runs", f"{totals.runs:,} in {totals.wall_s:,.0f} s, {len(totals.failed)} failed")
    figures.add_row("speed", f"{totals.runs / wall_s:.1f} runs/s, {totals.runs / cpu_s:.1f} a second of CPU")
    figures.add_row("virtual time", f"{totals.virtual_s:,.0f} s, {totals.virtual_s / wall_s:.0f} x real time")
    figures.add_row(
        "faults of a run", f"median {percentile(totals.faults, 0.5)}, p90 {percentile(totals.faults, 0.9)}"
    )
    console.print(figures, highlight=False)
    for title in titles(totals):
        console.print(f"\n[bold]{title}[/bold]", highlight=False)
        console.print(_group_table(totals, title), highlight=False)
    lacking = totals.missing
    if lacking:
        console.print(f"\nnever seen in {totals.runs:,} runs: {', '.join(lacking)}", highlight=False)
        if totals.runs < ENOUGH_RUNS:
            console.print(f"this is an error from {ENOUGH_RUNS:,} runs on", highlight=False)


def titles(totals: Totals) -> list[str]:
    """Return the titles of the groups, then all others that were counted, by the text before the colon."""
    known = [group.title for group in EVENT_GROUPS] if tier_of(totals.tier).has_events else []
    others = {name.partition(": ")[0] for name in totals.sometimes if ": " in name}
    return known + sorted(others - set(known))


def _group_table(totals: Totals, title: str) -> Table:
    """Return a table with three pairs of name and number in a line, in alphabetical order."""
    prefix = f"{title}: "
    counted = [
        (name.removeprefix(prefix), number)
        for name, number in sorted(totals.sometimes.items())
        if name.startswith(prefix) and number
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column()
        table.add_column(justify="right")
    for at in range(0, len(counted), 3):
        cells = [cell for name, number in counted[at : at + 3] for cell in (name, f"{number:,}")]
        table.add_row(*cells)
    return table


# --- shrinking --------------------------------------------------------------------------------------------


RUNS_MAX = 200


def shrink(
    seed: int,
    faults: list[Fault],
    oracle: str,
    *,
    tier: str = CORES,
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
            if tier_of(tier).run_seed(seed, faults=rest).oracle == oracle:
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


# --- records of failing runs ------------------------------------------------------------------------------


def line_of(seed: int, faults: list[Fault] | None, tier: str = CORES) -> str:
    """Return the command that repeats the run; `faults`: only these of the plan."""
    only = "" if faults is None else f" --faults {numbers(faults) or '-1'}"
    return f"./run sim{tier_of(tier).option} --seed {seed}{only} --trace"


def commit() -> str:
    """Return the commit of the code that ran, as git reports it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return "unknown"
    return done.stdout.strip() or "unknown"


def keep(folder: Path, result: Result, faults: list[Fault], tier: str = CORES) -> Path:
    """Write a failing run to a file and return its path. `result`: the run with only `faults`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{result.seed}.json"
    kept = {
        "seed": result.seed,
        "commit": commit(),
        "violation": result.violation,
        "again": line_of(result.seed, faults, tier),
        "faults": [asdict(fault) for fault in faults],
        "digest": result.digest,
        "sometimes": dict(sorted(result.history.sometimes.items())),
        "trace": result.lines,
    }
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return path

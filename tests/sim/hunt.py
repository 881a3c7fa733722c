"""Count the seeds that it takes to find each planted bug.

    ./run python -m tests.sim.hunt                      every bug, once
    ./run python -m tests.sim.hunt NAME... --starts 5   these, each from five first seeds
    ./run python -m tests.sim.hunt --starts 5 --write   all, and record the figures in tests/sim/hunts.csv
    ./run python -m tests.sim.hunt NAME... --record     their cheapest seeds, for tests (`quick_seeds`)
    ./run python -m tests.sim.hunt --shells             every bug of the second tier

A hunt runs seed after seed, from its first one on, with one bug planted, until an oracle objects or the code
fails. Hunts are independent, so they can run in any number of processes.
"""

import csv
import gc
import json
import logging
import statistics
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import count, islice, repeat
from pathlib import Path
from typing import Annotated

import typer

from tests.shells.bugs import planted
from tests.sim.bugs import BUGS
from tests.sim.campaign import prepare_process
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.quick_seeds import cheapest, quick_first, record
from tests.sim.tiers import CORES, SHELLS, tier_of

SEEDS_MAX = 500
_COLLECTED_EACH = 25
STARTS_APART = 1_000_000
"""Distance of the first seeds of hunts, so that no two hunts run the same seed."""

FIGURES = Path(__file__).parent / "hunts.csv"
"""The results that docs/robustness.md sums up: a row for each bug that was found."""

COLUMNS = ("planted", "found_by", "median", "worst", "found", "hunts")
HEAD = ("| planted | breaks | found by | seeds: median | worst | found |", "|---|---|---|---|---|---|")


@dataclass(frozen=True)
class Hunt:
    """The result of one hunt. `seeds`: how many were run, 0 if the bug was not found; `oracle`: the one that
    objected, or `crash`."""

    name: str
    first: int
    seeds: int
    oracle: str
    what: str


def hunt(name: str, first: int = 1, seeds_max: int = SEEDS_MAX) -> Hunt:
    """Run one hunt."""
    return _hunt(name, first, seeds_for(name, first, seeds_max))


def _hunt(name: str, first: int, seeds: Iterable[int]) -> Hunt:
    logging.disable(logging.CRITICAL)
    number = 0
    with planted(name):
        for number, seed in enumerate(seeds, 1):
            if number % _COLLECTED_EACH == 0:
                gc.collect()
            if found := _found(name, seed):
                return Hunt(name, first, number, *found)
    return Hunt(name, first, 0, "", f"not found in {number} seeds")


def seeds_for(name: str, first: int, seeds_max: int) -> Iterator[int]:
    """Yield the seeds of a hunt: those whose runs can show the bug."""
    may_show = BUGS[name].where or (lambda rng: True)
    seeds = count(BUGS[name].first + first)
    return islice((seed for seed in seeds if may_show(RandomStreams(seed))), seeds_max)


def _found(name: str, seed: int) -> tuple[str, str] | None:
    """Return the oracle that objected and its text, or None. The bug is planted."""
    try:
        result = tier_of(BUGS[name].tier).run_seed(seed)
    except Exception as error:  # a bug may break anything
        return "crash", f"{type(error).__name__}: {error}"
    return (result.oracle, result.violation) if result.violation else None


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """Return how many of the first `seeds_max` seeds were run until a violation or a crash, and its text; 0
    if there was none. The recorded seed is run first."""
    found = _hunt(name, 1, quick_first(name, seeds_for(name, 1, seeds_max)))
    return found.seeds, found.what


def cheapest_seed(name: str, seeds_max: int) -> int | None:
    """Return the seed that tests run first, see `quick_seeds`."""
    logging.disable(logging.CRITICAL)
    with planted(name):
        return cheapest(seeds_for(name, 1, seeds_max), lambda seed: _found(name, seed) is not None)


@dataclass(frozen=True)
class Row:
    """The row of one bug. `median`, `worst`: None if they fall on a hunt that did not find it."""

    name: str
    breaks: str
    oracles: tuple[str, ...]
    median: int | None
    worst: int | None
    found: int
    hunts: int

    def __str__(self) -> str:
        says = self.name.replace("_", " ")
        median, worst = (f"> {SEEDS_MAX}" if one is None else one for one in (self.median, self.worst))
        by = ", ".join(self.oracles)
        return f"| {says} | {self.breaks} | {by} | {median} | {worst} | {self.found} of {self.hunts} |"


def row_of(name: str, hunts: Iterable[Hunt]) -> Row:
    done = list(hunts)
    seeds = [one.seeds or sys.maxsize for one in done]
    median = int(statistics.median_low(seeds))
    oracles = sorted({one.oracle for one in done if one.seeds}, key=lambda one: (len(one), one))
    return Row(
        name,
        BUGS[name].breaks,
        tuple(oracles),
        median if median < sys.maxsize else None,
        max(seeds) if max(seeds) < sys.maxsize else None,
        sum(bool(one.seeds) for one in done),
        len(done),
    )


def table(rows: Iterable[Row]) -> str:
    return "\n".join([*HEAD, *map(str, rows)])


def recorded() -> dict[str, dict[str, str]]:
    """Read the recorded figures: bug -> column -> text."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        return {row["planted"]: row for row in csv.DictReader(file)}


def write(rows: Iterable[Row]) -> None:
    """Record the figures of these bugs; those of the others stay."""
    figures = recorded()
    for row in rows:
        values = (row.name, " ".join(row.oracles), row.median or "", row.worst or "", row.found, row.hunts)
        figures[row.name] = dict(zip(COLUMNS, map(str, values), strict=True))
    with FIGURES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(figures[name] for name in BUGS if name in figures)


def read_done(path: Path | None) -> list[Hunt]:
    """Read the hunts of an earlier call from the lines that it printed."""
    if path is None:
        return []
    return [Hunt(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]


def all_hunts(
    names: list[str], starts: int, seeds_max: int, processes: int, done: list[Hunt]
) -> Iterator[Hunt]:
    """Yield hunts as they end. The first hunts of all bugs begin before the second ones."""
    known = {(one.name, one.first) for one in done}
    firsts = [1 + STARTS_APART * number for number in range(starts)]
    wanted = [(name, first) for first in firsts for name in names if (name, first) not in known]
    with ProcessPoolExecutor(processes, initializer=prepare_process) as pool:
        running = [pool.submit(hunt, name, first, seeds_max) for name, first in wanted]
        for future in as_completed(running):
            yield future.result()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Planted bugs; default: all of a tier.")] = None,
    shells: Annotated[bool, typer.Option("--shells", help="All bugs of the second tier.")] = False,
    starts: Annotated[int, typer.Option(min=1, help="Hunts of each bug, from first seeds far apart.")] = 1,
    seeds_max: Annotated[int, typer.Option(min=1, help="Maximum number of seeds of a hunt.")] = SEEDS_MAX,
    processes: Annotated[int, typer.Option(min=1, help="Hunts at a time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each hunt.")] = False,
    done: Annotated[
        Path | None, typer.Option(help="JSON lines of an earlier call, which are not run again.")
    ] = None,
    write_figures: Annotated[
        bool, typer.Option("--write", help="Record the figures in tests/sim/hunts.csv.")
    ] = False,
    record_seeds: Annotated[
        bool,
        typer.Option("--record", help="Only record the cheapest of the first --seeds-max seeds, for tests."),
    ] = False,
) -> None:
    """Hunt planted bugs. Exit: 0 all were found, 1 one was not found."""
    tier = SHELLS if shells else CORES
    wanted = names or [name for name, bug in BUGS.items() if bug.tier == tier]
    unknown = [name for name in wanted if name not in BUGS]
    if unknown:
        raise typer.BadParameter(f"no such bugs: {unknown}")
    if record_seeds:
        with ProcessPoolExecutor(processes, initializer=prepare_process) as pool:
            seeds = list(pool.map(cheapest_seed, wanted, repeat(seeds_max)))
        record(dict(zip(wanted, seeds, strict=True)))
        sys.exit(0 if all(seeds) else 1)
    found = [one for one in read_done(done) if one.name in wanted]
    for one in all_hunts(wanted, starts, seeds_max, processes, found):
        found.append(one)
        print(f"{one.name:44} {one.seeds or '-':>5}  {one.what[:100]}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps(asdict(one)), flush=True)
    rows = [row_of(name, hunts) for name in wanted if (hunts := [one for one in found if one.name == name])]
    if not as_json:
        print(table(rows))
    if write_figures:
        write(rows)
    sys.exit(0 if all(row.found == row.hunts for row in rows) else 1)


if __name__ == "__main__":
    typer.run(main)

"""`./run bench dataflow`: rows per second of the dataflow library, compared with Spark, PyFlink and Bytewax.

./run bench dataflow # everything; writes its section of docs/benchmarks.md ./run bench dataflow --only
batch --rounds 3 ./run bench dataflow --only builtin --systems ours,spark --keys 1000 --rows 2000000 --json
figures.json

There are three tables, each with 1,000 and with 100,000 keys: built-in aggregates, functions of batches,
functions of rows. In addition, the processor seconds per million rows with one and with two workers are
measured, and curves over the number of keys.

Every system reads the same files, takes a checkpoint every second, uses two workers or slots, and discards
its results. The systems run alternately, `--rounds` times, and medians are reported. A measurement ends
when all rows are processed, or 60 s after its first rows (--cap), with the rate so far. A system that
processes no row within 120 s is reported as "did not finish". It may be interrupted at any time: the
results so far are printed, and are in --json.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dataflow_input import Input, make_input
from dataflow_page import write_section
from dataflow_program import CAP_S
from own_environment import BYTEWAX, FLINK, PROTOBUF
from rows import printed_at_the_end, run_json, say

TABLES = ("builtin", "batch", "row")
PARTS = (*TABLES, "workers", "curves")
KEYS = (1_000, 100_000)
CURVE_KEYS = (100, 10_000, 1_000_000)
"""In addition to KEYS, which are in the first table already."""
ROWS = {"builtin": 30_000_000, "batch": 20_000_000, "row": 5_000_000}
"""More than any system processes in the warm-up and about twenty seconds on two idle cores."""
PROCESS_S_MAX = 300.0
"""A process that takes longer, including start and warm-up, is taken for failed."""


@dataclass(frozen=True, slots=True)
class System:
    """A system to measure. `command`: (table, workers) -> the command line of its program. It may raise
    RuntimeError.
    """

    name: str
    tables: tuple[str, ...]
    says: str
    command: Callable[[str, int], list[str]]


def _ours(table: str, workers: int) -> list[str]:
    return [sys.executable, "benchmarks/dataflow_region.py", table, "--workers", str(workers)]


def _spark(table: str, workers: int) -> list[str]:
    del workers
    return [sys.executable, "benchmarks/dataflow_spark.py", table]


def _flink(table: str, workers: int) -> list[str]:
    del workers
    return [str(FLINK.python()), "benchmarks/dataflow_flink.py", table]


def _bytewax(table: str, workers: int) -> list[str]:
    del table
    return [str(BYTEWAX.python()), "benchmarks/dataflow_bytewax.py", "--workers", str(workers)]


SYSTEMS = (
    System("ours", TABLES, "ours", _ours),
    System("spark", TABLES, "Spark 4.3", _spark),
    System("flink", TABLES, "PyFlink 2.3", _flink),
    System("bytewax", ("row",), "Bytewax 0.21", _bytewax),
)


@dataclass(slots=True)
class Run:
    """The options, and the results: a list with one record per measurement."""

    options: argparse.Namespace
    found: list[dict[str, Any]]
    folder: Path
    _inputs: dict[tuple[int, int], Input]

    def input(self, keys: int, rows: int) -> Input:
        """Return the input files. They are written once for all systems."""
        made = self._inputs.get((keys, rows))
        if made is None:
            say(f"writing {rows:,} rows of {keys:,} keys")
            made = self._inputs[keys, rows] = make_input(self.folder / f"{keys}-{rows}", rows, keys)
        return made

    def measure(self, part: str, system: System, table: str, keys: int, workers: int, *, place: str) -> None:
        """Make one measurement. A failure is also stored as a record."""
        rows = self.options.rows or ROWS[table]
        given = self.input(keys, rows)
        record = {"part": part, "system": system.name, "table": table, "keys": keys, "workers": workers}
        say(f"[{place}] {part}: {system.says}, {table}, {keys:,} keys, {workers} workers ...")
        try:
            python, program, *more = system.command(table, workers)
            arguments = [*more, given.folder, keys, given.rows, "--cap", self.options.cap]
            figures = run_json(
                program,
                *map(str, arguments),
                python=python,
                timeout_s=PROCESS_S_MAX,
                environment=_environment(system, table),
            )
        except RuntimeError as error:
            figures = {"missing": str(error)}
        self.found.append({**record, **figures})
        say(f"    {summary_line(figures)}")
        self.write()

    def write(self) -> None:
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n")


def _environment(system: System, table: str) -> dict[str, str]:
    if system.name != "spark" or table != "row":
        return {}
    (packages,) = PROTOBUF.python().parent.parent.glob("lib/python*/site-packages")
    return {
        "PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }


def summary_line(figures: dict[str, Any]) -> str:
    """Return a measurement as one line."""
    if "missing" in figures:
        return f"missing: {figures['missing']}"
    if figures["rows_per_s"] is None:
        return f"did not finish: {figures['rows']:,} rows within the time limit"
    end = "" if figures["finished"] else ", stopped at the cap"
    return (
        f"{figures['rows_per_s']:,} rows/s, {figures['cpu_s_per_million']:.2f} CPU s per million rows,"
        f" {figures['peak_mb']:,} MB{end}"
    )


Asked: TypeAlias = "tuple[str, System, str, int, int]"
"""(part, system, table, keys, workers)"""


def measurements(options: argparse.Namespace) -> list[Asked]:
    """Return the requested measurements in an order in which compared systems alternate."""
    chosen = [one for one in SYSTEMS if one.name in options.systems]
    keys_of = tuple(options.keys or KEYS)
    rounds = range(options.rounds)
    found: list[Asked] = []
    for table in (table for table in TABLES if table in options.only):
        able = [one for one in chosen if table in one.tables]
        found += [(table, one, table, keys, 2) for keys in keys_of for _ in rounds for one in able]
    if "workers" in options.only:
        ours = SYSTEMS[0]
        found += [
            ("workers", ours, "builtin", keys, count) for keys in keys_of for _ in rounds for count in (1, 2)
        ]
    if "curves" in options.only:
        measured = set(keys_of) if "builtin" in options.only else set()
        along = sorted({*(keys_of if options.keys else (*CURVE_KEYS, *KEYS))} - measured)
        able = [one for one in chosen if "builtin" in one.tables]
        found += [("curves", one, "builtin", keys, 2) for keys in along for one in able]
    return found


def medians(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record with the medians of the rounds for each measurement, in the order of measurement."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault(tuple(one[name] for name in ("part", "system", "keys", "workers")), []).append(one)
    made = []
    for group in groups.values():
        good = [one for one in group if one.get("rows_per_s") is not None]
        record = dict(good[-1] if good else group[-1])
        for name in ("rows_per_s", "cpu_s_per_million", "peak_mb", "state_bytes"):
            if good and name in good[0]:
                record[name] = statistics.median(one[name] for one in good)
        made.append({**record, "rounds": len(good)})
    return made


def summary(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the medians of each measurement as lines."""
    return [
        f"{one['part']}: {one['system']}, {one['keys']:,} keys, {one['workers']} workers: {summary_line(one)}"
        for one in medians(found)
    ]


def listed(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the parser of a comma-separated option with these choices."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if unknown := set(words) - set(choices):
            raise argparse.ArgumentTypeError(
                f"no {', '.join(sorted(unknown))}; there are {', '.join(choices)}"
            )
        return words

    return parse


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="./run bench dataflow", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    systems = [one.name for one in SYSTEMS]
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement (3)")
    parser.add_argument("--only", type=listed(PARTS), default=list(PARTS), metavar=",".join(PARTS))
    parser.add_argument("--systems", type=listed(systems), default=systems, metavar=",".join(systems))
    parser.add_argument(
        "--keys", type=int, action="append", help="instead of 1,000 and 100,000; may be repeated"
    )
    parser.add_argument("--rows", type=int, help="rows of the input; default: as many as the table needs")
    parser.add_argument("--cap", type=float, default=CAP_S, metavar="SECONDS", help=f"({CAP_S:.0f})")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every measurement there, as it is made"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        run = Run(options, [], Path(name), {})
        try:
            with printed_at_the_end(lambda: summary(run.found)):
                todo = measurements(options)
                for number, asked in enumerate(todo, 1):
                    run.measure(*asked, place=f"{number} of {len(todo)}")
        except KeyboardInterrupt:
            return 130
        whole = len(options.only) == len(PARTS) and len(options.systems) == len(SYSTEMS)
        if whole and not (options.keys or options.rows or options.cap != CAP_S):
            write_section(medians(run.found), options.rounds)
            say("wrote the section of docs/benchmarks.md on the dataflow library")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`./run bench spark`: the cost of the source and the sink `dos` on Spark, compared with minimal ones.

    ./run bench spark                           # everything; writes its section of docs/benchmarks.md
    ./run bench spark --only overhead,rows --rounds 5
    ./run bench spark --rows 1000000 --journal-mb 100 --json figures.json

Each part uses three real servers and a `local[2]` session. Systems that are compared run alternately on one
session, `--rounds` times, and medians are reported. The full size takes about ten minutes on an idle machine.
It may be interrupted at any time: the results so far are printed, and are in --json.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataflow_bench import listed
from rows import json_lines, printed_at_the_end, say
from spark_page import summary_line, write_section
from yardsticks import raise_at_sigterm

PROGRAMS = {
    "overhead": "benchmarks/spark_reading.py",
    "rows": "benchmarks/spark_reading.py",
    "journal": "benchmarks/spark_reading.py",
    "sink": "benchmarks/spark_writing.py",
    "through": "benchmarks/spark_through.py",
}
PARTS = tuple(PROGRAMS)
SIZES = {"rounds": 3, "rows": 6_000_000, "batches": 60, "journal_mb": 1_000, "record_bytes": 4_096}
"""The sizes of a run whose figures go to the page. Each is an option."""
PART_S_MAX = 900.0
"""A part that takes longer, including start and warm-up, is taken for failed."""


@dataclass(slots=True)
class Run:
    """The options, and the results: a list with one record per measurement."""

    options: argparse.Namespace
    found: list[dict[str, Any]]
    folder: Path

    def measure(self, part: str) -> None:
        """Measure all rounds of a part. A failure is also stored as a record."""
        sizes = [word for name in SIZES for word in (flag(name), str(getattr(self.options, name)))]
        say(f"{part} ...")
        try:
            for record in json_lines(PROGRAMS[part], part, self.folder, *sizes, timeout_s=PART_S_MAX):
                self.add(record)
        except RuntimeError as error:
            self.add({"part": part, "missing": str(error)})

    def add(self, record: dict[str, Any]) -> None:
        self.found.append(record)
        say(f"    {summary_line(record)}")
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n")


def flag(name: str) -> str:
    """Return the command-line option of a size."""
    return f"--{name.replace('_', '-')}"


def medians(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record with the medians of the rounds for each system of each part, in the order of
    measurement.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["part"], one.get("system", "")), []).append(one)
    return [_median(group) for group in groups.values()]


def _median(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = {name: value for name, value in group[-1].items() if name != "round"}
    for name, value in made.items():
        if isinstance(value, float):
            made[name] = statistics.median(one[name] for one in group)
        elif isinstance(value, dict):
            made[name] = {key: statistics.median(one[name][key] for one in group) for key in value}
    return {**made, "rounds": len(group)}


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="./run bench spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=listed(PARTS), default=list(PARTS), metavar=",".join(PARTS))
    helps = {
        "rounds": "rounds of each measurement",
        "rows": "rows of a batch",
        "batches": "micro-batches of a query in a round",
        "journal_mb": "size of the journal in MB",
        "record_bytes": "size of a record of the journal",
    }
    for name, value in SIZES.items():
        parser.add_argument(flag(name), type=int, default=value, help=f"{helps[name]} ({value:,})")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every measurement there, as it is made"
    )
    options = parser.parse_args(arguments)
    for name in SIZES:
        if getattr(options, name) < 1:
            parser.error(f"{flag(name)} must be at least 1, not {getattr(options, name)}")
    return options


def is_whole(options: argparse.Namespace) -> bool:
    """Whether the figures go to the page."""
    asked = all(getattr(options, name) >= value for name, value in SIZES.items() if name != "record_bytes")
    return asked and set(options.only) == set(PARTS)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    raise_at_sigterm()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        run = Run(options, [], Path(name))
        try:
            with printed_at_the_end(lambda: map(summary_line, medians(run.found))):
                for part in (part for part in PARTS if part in options.only):
                    run.measure(part)
        except KeyboardInterrupt:
            return 130
    if is_whole(options):
        write_section(medians(run.found), options.rounds)
        say("wrote the section of docs/benchmarks.md on Spark's source and sink")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

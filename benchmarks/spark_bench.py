"""`./run bench spark`: what the source and the sink `dos` cost on Spark, beside the least that Spark can do.

    ./run bench spark                           # all of it; writes its section of docs/benchmarks.md
    ./run bench spark --only overhead,rows --rounds 5
    ./run bench spark --rows 1000000 --journal-mb 100 --json figures.json

Three real servers and a `local[2]` session for each part. What is compared runs in turn on one session,
`--rounds` times; the medians count. Full size takes about ten minutes on a quiet machine. Interrupt it when
you like: what was measured so far is printed, and written to --json.
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
from rows import json_lines, say, told_at_the_end
from spark_page import told, write_section
from yardsticks import end_cleanly_when_told

PROGRAMS = {
    "overhead": "benchmarks/spark_reading.py",
    "rows": "benchmarks/spark_reading.py",
    "journal": "benchmarks/spark_reading.py",
    "sink": "benchmarks/spark_writing.py",
    "through": "benchmarks/spark_through.py",
}
PARTS = tuple(PROGRAMS)
SIZES = {"rounds": 3, "rows": 6_000_000, "batches": 60, "journal_mb": 1_000, "record_bytes": 4_096}
"""Of a run whose figures are for the page; each is an option."""
PART_S_MAX = 900.0
"""What takes longer than this, start and warm-up with it, has gone wrong."""


@dataclass(slots=True)
class Run:
    """What is asked for, and what was found: a list of records, one a measurement."""

    options: argparse.Namespace
    found: list[dict[str, Any]]
    folder: Path

    def measure(self, part: str) -> None:
        """All rounds of a part; what goes wrong is a record too."""
        sizes = [word for name in SIZES for word in (flag(name), str(getattr(self.options, name)))]
        say(f"{part} ...")
        try:
            for record in json_lines(PROGRAMS[part], part, self.folder, *sizes, timeout_s=PART_S_MAX):
                self.add(record)
        except RuntimeError as error:
            self.add({"part": part, "missing": str(error)})

    def add(self, record: dict[str, Any]) -> None:
        self.found.append(record)
        say(f"    {told(record)}")
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.found, indent=1) + "\n")


def flag(name: str) -> str:
    """The option of a size."""
    return f"--{name.replace('_', '-')}"


def medians(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds of each system of each part as one record, in the order in which they came."""
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
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="./run bench spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=listed(PARTS), default=list(PARTS), metavar=",".join(PARTS))
    says = {
        "rounds": "of each measurement",
        "rows": "of a batch",
        "batches": "micro-batches of a query in a round",
        "journal_mb": "of the journal",
        "record_bytes": "of a record of the journal",
    }
    for name, value in SIZES.items():
        parser.add_argument(flag(name), type=int, default=value, help=f"{says[name]} ({value:,})")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every measurement there, as it is made"
    )
    options = parser.parse_args(arguments)
    for name in SIZES:
        if getattr(options, name) < 1:
            parser.error(f"{flag(name)} is 1 or more, not {getattr(options, name)}")
    return options


def is_whole(options: argparse.Namespace) -> bool:
    """Whether the figures are for the page."""
    asked = all(getattr(options, name) >= value for name, value in SIZES.items() if name != "record_bytes")
    return asked and set(options.only) == set(PARTS)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    end_cleanly_when_told()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        run = Run(options, [], Path(name))
        try:
            with told_at_the_end(lambda: map(told, medians(run.found))):
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

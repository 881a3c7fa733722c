"""Write the section of docs/benchmarks.md on the source and the sink `dos` on Spark (`./run bench spark`)."""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dataflow_bench import listed
from rows import Section, json_lines, printed_at_the_end, say
from yardsticks import raise_at_sigterm

PLACE = Section("spark")
STORED = "committed on two of three servers, synced"
LOCAL = "one copy on the local disk"
SECTION = """\
{begin}
## The store on Spark

Measured on {date} with no other benchmark running, {rounds}, on one session of two slots. The
load average at the end was {load:.1f}, including the benchmark itself. Rows that are read are discarded
(`noop`). Data that `dos` reads is {stored}. A write of `dos` ends when its data is, too.

| what | measured | compared with | aim |
|---|---|---|---|
{rows}
{end}"""
Record = dict[str, Any]
Found = dict[tuple[str, str], Record]
"""(part, system) -> medians"""


class Line(NamedTuple):
    """A row of the table. `figures`: the two records -> the measured figure and the compared one."""

    what: str
    part: str
    ours: str
    beside: str
    figures: Callable[[Record, Record], tuple[str, str]]
    aim: str


def _overhead(ours: Record, other: Record) -> tuple[str, str]:
    more = ours["ms"] - other["ms"]
    planned, tasks = (ours["phases"][name] - other["phases"][name] for name in ("latestOffset", "addBatch"))
    whole = f"{ours['whole_ms']:.0f} ms and {other['whole_ms']:.0f} ms"
    return (
        f"{more:.0f} ms ({planned:.0f} ms in `latestOffset`, {tasks:.0f} ms in `addBatch`)",
        f"{ours['ms']:.0f} ms beside {other['ms']:.0f} ms; including Spark's own logs {whole}",
    )


def _rate(name: str) -> Callable[[Record, Record], tuple[str, str]]:
    def figures(ours: Record, other: Record) -> tuple[str, str]:
        mine, theirs = (one["rows"] / one["seconds"] for one in (ours, other))
        return f"{mine:,.0f} rows/s", f"{name}: {theirs:,.0f} rows/s, ratio {mine / theirs:.2f}"

    return figures


def _bytes(ours: Record, other: Record) -> tuple[str, str]:
    mine, theirs = (one["bytes"] / one["seconds"] / 1e6 for one in (ours, other))
    return (
        f"{ours['seconds']:.1f} s, {mine:,.0f} MB/s, {ours['rows'] / ours['seconds']:,.0f} records/s",
        f'`dos` with `content="journal"`: {other["seconds"]:.1f} s, {theirs:,.0f} MB/s',
    )


def _backlog(ours: Record, other: Record) -> tuple[str, str]:
    mine, theirs = (
        f"{one['rows_per_s']:,.0f} rows/s, {one['cpu_s']:.1f} s of processors" for one in (ours, other)
    )
    return mine, f"Spark's own count: {theirs}; ratio of processor time {ours['cpu_s'] / other['cpu_s']:.2f}"


def _paced(ours: Record, other: Record) -> tuple[str, str]:
    mine, theirs = (f"p50 {one['p50_ms']:,.0f} ms, p99 {one['p99_ms']:,.0f} ms" for one in (ours, other))
    return mine, f"{FLOOR}: {theirs}; ratios in windows {ours['p50_ratio']:.2f} and {ours['p99_ratio']:.2f}"


def _frame(ours: Record, other: Record) -> tuple[str, str]:
    mine, theirs = (
        f"{one['rows_per_s']:,.0f} rows/s, {one['cpu_s']:.1f} s of processors, start {one['start_s']:.1f} s"
        for one in (ours, other)
    )
    return mine, f"a graph: {theirs}; ratio of rows/s {ours['rows_per_s'] / other['rows_per_s']:.2f}"


def _partitions(ours: Record, other: Record) -> tuple[str, str]:
    mine, theirs = (
        f"{one['rows_per_s']:,.0f} rows/s, {one['cpu_s']:.1f} s of processors" for one in (ours, other)
    )
    return mine, f"{SHUFFLED}: {theirs}; ratio of processor time {ours['cpu_s'] / other['cpu_s']:.2f}"


PREBUILT = "a Python source that yields prebuilt batches"
PARQUET = f"a Python sink that writes one Parquet file per task, {LOCAL}, not synced"
FLOOR = "a Python function that returns the rows, at the same time"
SHUFFLED = "parsed in a task for each partition, `df.repartition(1)`"
JSON = f"Spark's own JSON lines, {LOCAL}"
LINES = (
    Line(
        "additional time of a micro-batch of stream `dos` over an empty Python source",
        "overhead",
        "dos",
        "empty",
        _overhead,
        "at most 15 ms",
    ),
    Line("batch of `dos`, output of a region", "rows", "dos", "prebuilt", _rate(PREBUILT), "ratio 0.8"),
    Line("the same", "rows", "dos", "json", _rate(JSON), "ratio 1"),
    Line("batch of `dos`, JSON lines in the store", "rows", "dos-json", "json", _rate(JSON), "ratio 1"),
    Line("batch into an input, sink `dos`", "sink", "dos", "parquet", _rate(PARQUET), "ratio 1"),
    Line("batch of `dos-journal`", "journal", "dos-journal", "dos", _bytes, ""),
    Line(
        "a backlog that is counted, `dos.through`",
        "through",
        "backlog dos",
        "backlog spark",
        _backlog,
        "0.7 of the processor time",
    ),
    Line(
        "1,000 rows/s through a region, from sending a row to foreachBatch",
        "through",
        "paced through",
        "paced floor",
        _paced,
        "ratios 1.2",
    ),
    Line(
        "the same backlog, counted through `dos.frame`",
        "frame",
        "frame",
        "graph",
        _frame,
        "ratio 0.95, started at most 1 s later",
    ),
    Line(
        "a backlog of JSON lines in several partitions, parsed in the one task that carries it",
        "partitions",
        "carried",
        "shuffled",
        _partitions,
        "",
    ),
)


def lines_of(records: Sequence[Record]) -> list[str]:
    """Return the rows of the table; a missing figure has its reason."""
    found: Found = {(one["part"], one.get("system", "")): one for one in records}
    lines = []
    for line in LINES:
        ours, other = found.get((line.part, line.ours)), found.get((line.part, line.beside))
        if ours is None or other is None:
            why = found.get((line.part, ""), {}).get("missing", "it was not requested")
            figures = (f"not measured: {why}", "")
        else:
            figures = line.figures(ours, other)
        lines.append(f"| {_what(line, ours)} | {figures[0]} | {figures[1]} | {line.aim} |")
    return lines


def _what(line: Line, ours: Record | None) -> str:
    """Return the name of a row with the size of the data."""
    if ours is None or "rows" not in ours:
        return line.what
    size = (
        f"{ours['bytes'] / 1e6:,.0f} MB, {ours['rows']:,} records"
        if "bytes" in ours
        else f"{ours['rows']:,} rows"
    )
    return f"{line.what}, {size}"


def summary_line(record: Record) -> str:
    """Return a measurement as one line."""
    if "missing" in record:
        return f"{record['part']}: missing: {record['missing']}"
    name = f"{record['part']}, {record['system']}"
    if "p50_ms" in record:
        return f"{name}: p50 {record['p50_ms']:,.0f} ms, p99 {record['p99_ms']:,.0f} ms"
    if "rows_per_s" in record:
        return f"{name}: {record['rows_per_s']:,.0f} rows/s"
    if "seconds" not in record:
        return f"{name}: {record['ms']:.0f} ms per micro-batch, {record['whole_ms']:.0f} ms in total"
    return f"{name}: {record['seconds']:.2f} s, {record['rows'] / record['seconds']:,.0f} rows/s"


def section_of(records: Sequence[Record], rounds: int) -> str:
    """Return the text of the section."""
    return PLACE.filled(SECTION, rounds, stored=STORED, rows="\n".join(lines_of(records)))


def write_section(records: Sequence[Record], rounds: int) -> None:
    """Update the section. Raises ValueError if the page has no such section."""
    PLACE.write(section_of(records, rounds))


# --- the command ------------------------------------------------------------------------------------------


PROGRAMS = {
    "overhead": "benchmarks/spark_reading.py",
    "rows": "benchmarks/spark_reading.py",
    "journal": "benchmarks/spark_reading.py",
    "sink": "benchmarks/spark_writing.py",
    "through": "benchmarks/spark_through.py",
    "frame": "benchmarks/spark_through.py",
    "partitions": "benchmarks/spark_through.py",
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
        prog="./run bench spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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

"""The evaluation of the DADSTORM paper (`./run bench dadstorm`), as a section of docs/benchmarks.md:
messages, times, bytes and kills, beside the figures of the paper.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dataflow_page import bars, plain_numbers
from rows import DOCS, Effort, Row, Section, run_json, say, table_lines

from dataflow.core.regions import DELIVERIES
from journal.pictures import HEAD_PX, INK, drawn, points

Figures = dict[str, Any]
REPLICAS: Final = (2, 4)
OPERATORS: Final = 2
TUPLES: Final = 1_000
KILLS: Final = 8
MEASURED_S_MAX: Final = 600.0
RECORD_BYTES: Final = 16
"""The size of a tuple record in the paper's section 6.1."""
ALGORITHMS: Final = {"0": "tuple by tuple", "100": "by step"}
PAPER_S: Final = {"0/100": "0.6 and 3.3 s", "0/1000": "1.4 and 4.2 s"}
"""Table 2 of the paper, with 2 and with 4 replicas."""
PROMISES: Final = dict(zip(DELIVERIES, ("none twice", "none missing", "each once"), strict=True))
KINDS: Final = {"RECORD": "R - 1", "PURGE": "R - 1", "DELETE": "1", "CONFIRM of TUPLE": "1"}
"""The messages of the steps 2, 5 and 8 of section 5.3, and how many of each a replica sends for a tuple."""


@dataclass(frozen=True, slots=True)
class DadstormRow(Row):
    """A row of one of the four tables. `table`: messages, seconds, bytes or killed. `drawn`: figures for the
    picture by the name of their line or bar.
    """

    table: str
    drawn: Mapping[str, float] = field(default_factory=dict)


def records_bytes(replicas: int) -> int:
    """Return the bytes for a tuple by the formula of section 6.1: (R + 1) records at each operator."""
    return (replicas + 1) * RECORD_BYTES * OPERATORS


def mirror_bytes(replicas: int, tuple_bytes: int) -> int:
    """Return the bytes for a tuple if the other replicas of each operator receive all of it."""
    return (replicas - 1) * tuple_bytes * OPERATORS


def measure_dadstorm(effort: Effort) -> list[Row]:
    """Measure in processes of their own. Raises RuntimeError if a semantics does not hold, or without figures
    in time.
    """
    tuples, kills = (max(2, int(one * effort.checkpoint_scale)) for one in (TUPLES, KILLS))
    numbers = map(str, (tuples, effort.recoveries, kills))
    figures = run_json("benchmarks/dadstorm_run.py", *numbers, timeout_s=MEASURED_S_MAX)
    say(f"dadstorm: {figures}")
    return rows_of(figures)


def rows_of(figures: Figures) -> list[Row]:
    """Return the rows of these figures."""
    return [
        *message_rows(figures["messages"]),
        *time_rows(figures["seconds"]),
        *byte_rows(figures["bytes"]),
        *kill_rows(figures["killed"]),
    ]


def message_rows(messages: Mapping[str, Mapping[str, int]]) -> list[Row]:
    """Return a row for each kind of message, their sums, those of the paper, and those by step."""

    def row(what: str, kinds: Sequence[str], each: str, per_step: str = "0") -> Row:
        counts = [messages[f"{replicas}/{per_step}"] for replicas in REPLICAS]
        sums = [f"{sum(count.get(kind, 0) for kind in kinds):,}" for count in counts]
        return DadstormRow(what, *sums, each, "messages")

    rest = [f"CONFIRM of {kind}" for kind in ("RECORD", "PURGE", "DELETE")]
    everything = [*KINDS, *rest, "TUPLE"]
    frames = ["DATA", "STEP_END", "DURABLE"]
    return [
        *(row(kind, [kind], each) for kind, each in KINDS.items()),
        row("**these four, steps 2, 5 and 8 of section 5.3**", list(KINDS), "2 R"),
        row("CONFIRM of the first three", rest, "2 R - 1"),
        row("TUPLE", ["TUPLE"], "1"),
        row("**all messages, tuple by tuple**", everything, "4 R"),
        DadstormRow("table 1 of the paper", "400", "2,400", "R (R - 1)", "messages"),
        DadstormRow("formula of section 6.1", "600", "1,000", "R + 1", "messages"),
        row("DATA, 1 step of 100 tuples", ["DATA"], "", "100"),
        row("STEP_END", ["STEP_END"], "", "100"),
        row("DURABLE", ["DURABLE"], "", "100"),
        row("**all frames, 1 step of 100 tuples**", frames, "", "100"),
        row("**all frames, 10 steps of 10 tuples**", frames, "", "10"),
    ]


def time_rows(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row for each algorithm and size of a tuple."""
    rows: list[Row] = []
    for per_step, algorithm in ALGORITHMS.items():
        for size in (100, 1_000):
            cells, added = [], {}
            for replicas in REPLICAS:
                times = [seconds[f"{replicas}/{per_step}/{size}/{delivery}"] for delivery in DELIVERIES]
                difference = statistics.median(last - first for first, _, last in zip(*times, strict=True))
                added[f"R = {replicas}, {size:,} B"] = difference
                medians = ", ".join(f"{statistics.median(one):.3f}" for one in times)
                cells.append(f"{medians}: **{difference:+.3f} s**")
            paper = PAPER_S.get(f"{per_step}/{size}", "")
            rows.append(DadstormRow(f"{algorithm}, {size:,} B", cells[0], cells[1], paper, "seconds", added))
    return rows


def byte_rows(sent: Mapping[str, Sequence[tuple[int, float]]]) -> list[Row]:
    """Return a row for each size of a tuple, with the additional bytes for each tuple."""
    rows: list[Row] = []
    for at, (size, _) in enumerate(sent["2/records"]):
        drawn = {name: line[at][1] for name, line in sent.items()}
        cells = {
            name: " and ".join(f"{drawn[f'{replicas}/{name}']:,.0f}" for replicas in REPLICAS)
            for name in ("records", "confirmed", "mirror", "step")
        }
        mirror = " and ".join(f"{mirror_bytes(replicas, size):,}" for replicas in REPLICAS)
        rows.append(
            DadstormRow(
                f"{size:,}",
                f"{cells['records']}; with all CONFIRM {cells['confirmed']}",
                f"{cells['mirror']} (formula: {mirror})",
                cells["step"],
                "bytes",
                drawn,
            )
        )
    return rows


def kill_rows(killed: Mapping[str, Sequence[int]]) -> list[Row]:
    """Return a row for each semantics."""
    rows: list[Row] = []
    for delivery, promise in PROMISES.items():
        cells = []
        for replicas in REPLICAS:
            tuples, missing, again = killed[f"{replicas}/{delivery}"]
            cells.append(f"{missing:,} missing, {again:,} twice, of {tuples:,}")
        rows.append(DadstormRow(delivery, *cells, promise, "killed"))
    return rows


# --- the section ------------------------------------------------------------------------------------------


PLACE = Section("dadstorm")
SECTION = """\
{begin}
## Delivery tuple by tuple, as in DADSTORM, and by step

The evaluation of the [DADSTORM paper](papers.md) with {operators} operators of 2 and of 4 replicas.

- *Tuple by tuple* is the algorithm of its section 5: the other replicas of an operator have a record of every
  tuple, and every message is confirmed. A source sends the next tuple when the previous one is confirmed.
- *By step* is the exchange of a region: every worker has all operators, and a step has many tuples.

All processes are connected by TCP over loopback. Different from the paper: a replica confirms a tuple after
its record is shared, and broken connections replace the pings of its section 4.1. Measured on {date},
{rounds}. The load average at the end was {load:.1f}, including the benchmark itself.

### Messages

For 100 tuples with exactly-once. By step, each sender sends each receiver a STEP_END, and a DATA frame unless
it is empty, for each operator and step, and a DURABLE for each step.

| message | 2 replicas | 4 replicas | for each tuple and operator |
|---|---|---|---|
{messages}

### Time

From the first of {tuples:,} tuples that is read to the last one that is delivered, with at-most-once,
at-least-once and exactly-once, and how much longer exactly-once takes than at-most-once. A step has 100
tuples. Each worker appends its division to a file and syncs it, except with at-most-once.

| algorithm, size of a tuple | 2 replicas | 4 replicas | paper, table 2 |
|---|---|---|---|
{seconds}

![seconds that exactly-once adds to at-most-once](benchmarks/dadstorm-time.svg)

### Bytes

Bytes that are sent for each tuple in addition to the tuple, with 2 and with 4 replicas.

- *Records*: the first four messages above. The formula of section 6.1, (R + 1) x 16 B x {operators}, has
  R - 1 records, one purge and one confirmation: {two} and {four} B.
- *Mirroring*: the other replicas receive the whole tuple instead of a record. The formula is
  (R - 1) x T x {operators}. Only these messages are counted, which also have a header of 16 B.
- *By step*: STEP_END and DURABLE, in one step of 100 tuples.

| bytes of a tuple | records | mirroring | by step |
|---|---|---|---|
{bytes}

![bytes for each tuple](benchmarks/dadstorm-bytes.svg)

### A replica is killed

A replica is killed (SIGKILL) in the middle of 200 tuples, tuple by tuple, {kills} times with each semantics
and number of replicas. Up to 16 tuples of the source are not confirmed then. The next replica in the ring
takes over. What the sink received:

| semantics | 2 replicas | 4 replicas | promised |
|---|---|---|---|
{killed}
{end}"""
WIDTH, HEIGHT = 960, 400
LINES = {
    "mirror": ("mirroring", "#c8553d"),
    "confirmed": ("records, all CONFIRM", "#7b2d8b"),
    "records": ("records", "#1b6ca8"),
    "step": ("by step", "#588157"),
}


def draw(rows: Sequence[Row], folder: Path = DOCS / "benchmarks") -> None:
    """Draw the time that exactly-once adds, and the bytes for each tuple. Raises as `bars`."""
    ours = [row for row in rows if isinstance(row, DadstormRow)]
    times = [row for row in ours if row.table == "seconds"]
    names = list(ALGORITHMS.values())
    bars(
        folder / "dadstorm-time.svg",
        "seconds that exactly-once adds to at-most-once",
        {
            group: {name: row.drawn[group] for row in times for name in names if _is_bar(row, name, group)}
            for group in sorted({group for row in times for group in row.drawn})
        },
    )
    draw_bytes(folder / "dadstorm-bytes.svg", [row for row in ours if row.table == "bytes"])


def _is_bar(row: DadstormRow, name: str, group: str) -> bool:
    return group in row.drawn and row.what.startswith(name)


def draw_bytes(path: Path, rows: Sequence[DadstormRow]) -> None:
    """Draw the measured bytes as lines with marks, and the formulas as dashed lines. Raises as `drawn`."""
    sizes = [int(row.what.replace(",", "")) for row in rows]
    with drawn(path, "bytes that are sent for each tuple, in addition to it", WIDTH, HEIGHT) as picture:
        for column, replicas in enumerate(REPLICAS):
            axes = picture.figure.add_axes((0.07 + 0.37 * column, 0.14, 0.32, 0.74))
            axes.set_xscale("log")
            axes.set_yscale("log")
            plain_numbers(axes)
            axes.set_ylim(1, 100_000)
            axes.grid(visible=True)
            for name, (label, colour) in LINES.items():
                values = [row.drawn[f"{replicas}/{name}"] for row in rows]
                (line,) = axes.plot(sizes, values, color=colour, marker="o", label=label)
                picture.describe(line, "line", f"{label}, {replicas} replicas")
            formulas = {
                "mirroring, (R - 1) T O": [mirror_bytes(replicas, size) for size in sizes],
                "records, (R + 1) 16 O": [records_bytes(replicas)] * len(sizes),
            }
            for (label, line), name in zip(formulas.items(), ("mirror", "records"), strict=True):
                axes.plot(sizes, line, color=LINES[name][1], linestyle="--", label=label)
            axes.set_title(f"{replicas} replicas", loc="left", size=points(HEAD_PX), color=INK)
            axes.set_xlabel("bytes of a tuple")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def written(rows: list[Row], effort: Effort) -> str:
    """Draw the pictures, and return the text of the section."""
    draw(rows)
    return section_of(rows, effort.recoveries)


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """Return the text of the section."""
    ours = [row for row in rows if isinstance(row, DadstormRow)]
    tables = {
        name: table_lines(row for row in ours if row.table == name)
        for name in ("messages", "seconds", "bytes", "killed")
    }
    return PLACE.filled(
        SECTION,
        rounds,
        **tables,
        operators=OPERATORS,
        tuples=TUPLES,
        kills=KILLS,
        two=records_bytes(REPLICAS[0]),
        four=records_bytes(REPLICAS[1]),
    )

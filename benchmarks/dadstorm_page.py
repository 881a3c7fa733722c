"""The evaluation of the DADSTORM paper (`./run bench dadstorm`), as a section of docs/benchmarks.md."""

from collections.abc import Sequence
from pathlib import Path

from dadstorm_rows import (
    ALGORITHMS,
    KILLS,
    OPERATORS,
    REPLICAS,
    TUPLES,
    DadstormRow,
    mirror_bytes,
    records_bytes,
)
from dataflow_plot import bars, plain_numbers
from page_section import DOCS, Section
from rows import Row, table_lines

from journal.pictures import HEAD_PX, INK, drawn, points

PLACE = Section("dadstorm")
SECTION = """\
{begin}
## Delivery tuple by tuple, as in DADSTORM, and by step

The evaluation of the [DADSTORM paper](papers.md) with {operators} operators of 2 and of 4 replicas.

- *Tuple by tuple* is the algorithm of its section 5: the other replicas of an operator have a record of every
  tuple, and every message is confirmed. A source sends the next tuple when the previous one is confirmed.
- *By step* is the exchange of a region: every worker has all operators, and a step has many tuples.

All processes are connected by TCP over loopback. Different from the paper: a replica confirms a tuple after
its record is shared, not before, because a replica that is lost between the two would lose the tuple. Broken
connections replace the pings of its section 4.1.
Measured on {date}, {rounds}. The load average at the end was {load:.1f}, including the
benchmark itself.

### Messages

For 100 tuples with exactly-once, sent by the replicas of the operators. RECORD and PURGE go to the other
replicas of the operator, CONFIRM of TUPLE to the sender of the tuple. DELETE goes to that sender too, after
the next operator has confirmed the tuple. By step, each sender sends each receiver a STEP_END, and a DATA
frame unless it is empty, for each operator and step, and a DURABLE for each step.

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

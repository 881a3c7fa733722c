"""Write the section of docs/benchmarks.md on the dataflow library, and its plots (`./run bench dataflow`)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import DOCS, Section

from journal.pictures import HEAD_PX, INK, drawn, points

PLACE = Section("dataflow")
NAMES = {"ours": "DOS", "spark": "Spark 4.3", "flink": "PyFlink 2.3", "bytewax": "Bytewax 0.21"}
WAYS = {
    "builtin": {
        "ours": "`aggregate(Count, Sum, Max)`",
        "spark": "`groupBy().agg()`, RocksDB",
        "flink": "SQL, mini-batch, RocksDB",
    },
    "batch": {
        "ours": "a `UserOperator` in pandas",
        "spark": "`applyInPandasWithState`, RocksDB",
        "flink": "a pandas function, then SQL, RocksDB",
    },
    "row": {
        "ours": "`map_state`",
        "spark": "`transformWithState`, RocksDB",
        "flink": "`KeyedProcessFunction`, RocksDB",
        "bytewax": "`stateful_map`, recovery in SQLite",
    },
}
TITLES = {"builtin": "Built-in aggregates", "batch": "Functions of batches", "row": "Functions of rows"}
AIMS = {"builtin": (1.5, None), "batch": (20.0, "spark"), "row": (3.0, None)}
"""The factor by which DOS should be faster than the best of the others, or than the named one."""
SECTION = """\
{begin}
## Rows per second of the dataflow library

Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself. All systems read the same text files of lines `key,number` and compute the
count, the sum and the maximum per key. They take a checkpoint every second, have two workers or slots, and
discard their results. Start and warm-up are excluded. CPU: processor seconds of all processes, including
servers and JVMs, per million rows. Memory: the maximum that all processes used together. A
checkpoint of DOS counts when two of three servers have synced it; one of the others when there is one copy on
the local disk, not synced (Bytewax: in SQLite).

{tables}
{plots}{end}"""
COLUMNS = """\
| system | program | keys | rows/s | CPU s per million rows | memory |
|---|---|---|---|---|---|"""


def write_section(records: Sequence[dict[str, Any]], rounds: int) -> None:
    """Update the section, and the plots below docs/. Raises ValueError if the page has no such section."""
    PLACE.write(section_of(records, rounds, draw(records, DOCS / "benchmarks")))


def section_of(records: Sequence[dict[str, Any]], rounds: int, plots: Sequence[str]) -> str:
    """Return the text of the section."""
    tables = [table_of(table, [one for one in records if one["part"] == table]) for table in TITLES]
    tables.append(workers_of([one for one in records if one["part"] == "workers"]))
    return PLACE.filled(
        SECTION, rounds, tables="\n".join(tables), plots="".join(f"\n{plot}\n" for plot in plots)
    )


def table_of(table: str, records: Sequence[dict[str, Any]]) -> str:
    """Return one of the three tables."""
    lines = [f"### {TITLES[table]}\n", COLUMNS]
    for one in records:
        way = f"{NAMES[one['system']]} | {WAYS[table][one['system']]} | {one['keys']:,}"
        if one.get("rows_per_s") is None:
            why = one.get("missing", f"did not finish: {one.get('rows', 0):,} rows within the time limit")
            lines.append(f"| {way} | {why} | | |")
        else:
            cap = "" if one["finished"] else " (stopped at the cap)"
            figures = (
                f"{one['rows_per_s']:,.0f}{cap} | {one['cpu_s_per_million']:.2f} | {one['peak_mb']:,.0f} MB"
            )
            lines.append(f"| {way} | {figures} |")
    return "\n".join([*lines, "", *ratios(table, records)]) + "\n"


def ratios(table: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the ratio to the aim, for each number of keys."""
    aim, beside = AIMS[table]
    found = []
    for keys in dict.fromkeys(one["keys"] for one in records):
        rates = {
            one["system"]: one["rows_per_s"]
            for one in records
            if one["keys"] == keys and one.get("rows_per_s")
        }
        ours = rates.pop("ours", None)
        others = {name: rate for name, rate in rates.items() if beside in (None, name)}
        if ours and others:
            best = max(others, key=lambda name: others[name])
            found.append(f"{keys:,} keys: {ours / others[best]:.1f} times {NAMES[best]} (aim: {aim:g}).")
    return found


def workers_of(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of the cost of a second worker."""
    lines = [
        "### One and two workers\n",
        "| keys | workers | rows/s | CPU s per million rows |\n|---|---|---|---|",
    ]
    costs: dict[int, dict[int, float]] = {}
    for one in records:
        if one.get("rows_per_s"):
            costs.setdefault(one["keys"], {})[one["workers"]] = cpu = one["cpu_s_per_million"]
            lines.append(f"| {one['keys']:,} | {one['workers']} | {one['rows_per_s']:,.0f} | {cpu:.2f} |")
    both = [(keys, cost[2] / cost[1]) for keys, cost in costs.items() if {1, 2} <= cost.keys()]
    ratios = [
        f"{keys:,} keys: two workers use {ratio:.2f} times the CPU of one (aim: at most 1.25)."
        for keys, ratio in both
    ]
    return "\n".join([*lines, "", *ratios]) + "\n"


def draw(records: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Write the plots, and return the text of the page about them."""
    drawn = [one for one in records if one["part"] in ("builtin", "curves") and one.get("rows_per_s")]
    curves = sorted(drawn, key=lambda one: int(one["keys"]))
    if not curves:
        return []
    folder.mkdir(exist_ok=True)
    found = []
    for name, title, value in (
        ("rate", "rows per second, built-in aggregates", "rows_per_s"),
        ("memory", "memory of all processes in MB, built-in aggregates", "peak_mb"),
    ):
        lines = {
            NAMES[system]: [(one["keys"], one[value]) for one in curves if one["system"] == system]
            for system in NAMES
        }
        chart(folder / f"dataflow-{name}.svg", title, "keys", lines)
        found.append(f"![{title}](benchmarks/dataflow-{name}.svg)")
    sizes = [(one["keys"], one["state_bytes"], one["peak_mb"]) for one in curves if one.get("state_bytes")]
    rows = "\n".join(f"| {keys:,} | {size / 1e6:.1f} MB | {peak:,.0f} MB |" for keys, size, peak in sizes)
    found.append(f"| keys | state of DOS in memory | memory of all processes of DOS |\n|---|---|---|\n{rows}")
    return found


# --- charts -----------------------------------------------------------------------------------------------


WIDTH, HEIGHT = 720, 400
AREA = (0.13, 0.14, 0.66, 0.74)
"""Area of the lines: left, bottom, width and height, as fractions of the picture."""
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#7b2d8b")

Points = Sequence[tuple[float, float]]


def chart(path: Path, title: str, across: str, lines: Mapping[str, Points]) -> None:
    """Draw lines of (x, y), all above 0, on logarithmic axes.

    Raises ValueError if there is no point, and errors of `drawn`.
    """
    found = {name: sorted(line) for name, line in lines.items() if line}
    if not found:
        raise ValueError("a chart needs a point")
    colours = dict(zip(lines, COLOURS, strict=False))
    with drawn(path, title, WIDTH, HEIGHT) as picture:
        axes = picture.figure.add_axes(AREA)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True)
        for name in sorted(found, key=lambda name: found[name][-1][1], reverse=True):
            xs, ys = zip(*found[name], strict=True)
            (line,) = axes.plot(xs, ys, color=colours[name], marker="o", label=name)
            picture.describe(line, "line", name)
        plain_numbers(axes)
        axes.set_ylim(*_decades([y for line in found.values() for _, y in line]))
        axes.set_title(title, loc="left", size=points(HEAD_PX), color=INK)
        axes.set_xlabel(across)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def plain_numbers(axes: Any) -> None:
    """Write the numbers of logarithmic axes without exponents."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter("")


def bars(path: Path, title: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a bar for each name in each group, with its value. Raises as `chart`."""
    names = list({name: None for group in groups.values() for name in group})
    if not names:
        raise ValueError("a chart needs a bar")
    width = 0.8 / len(names)
    with drawn(path, title, WIDTH, HEIGHT) as picture:
        axes = picture.figure.add_axes(AREA)
        for number, name in enumerate(names):
            places = [at + width * (number - (len(names) - 1) / 2) for at, _ in enumerate(groups)]
            values = [group.get(name, 0.0) for group in groups.values()]
            drawn_bars = axes.bar(places, values, width * 0.9, color=COLOURS[number], label=name)
            axes.bar_label(drawn_bars, [f"{value:.2g}" if value else "-" for value in values])
        axes.set_xticks(range(len(groups)), list(groups))
        axes.set_title(title, loc="left", size=points(HEAD_PX), color=INK)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of ten around the values: another start of the axis would exaggerate differences."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**first, 10.0 ** max(last, first + 1)

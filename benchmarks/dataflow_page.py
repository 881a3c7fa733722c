"""Write the section of docs/benchmarks.md on the dataflow library, and its plots (`./run bench dataflow`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataflow_plot import chart
from page_section import DOCS, Section

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
TITLES = {
    "builtin": "What is built in",
    "batch": "Functions of batches",
    "row": "Functions of rows",
}
AIMS = {"builtin": (1.5, None), "batch": (20.0, "spark"), "row": (3.0, None)}
"""How many times the best of the others, or this one, we want to be."""
SECTION = """\
{begin}
## Rows a second of the dataflow library

Measured on {date}, alone, {rounds}; {load:.1f} processes wanted a core on
average when it ended, its own with them. Lines `key,number` of text files, the same for all; of each key the
count, the sum and the largest; a checkpoint each second; two workers or slots; results are let go of. Start
and warm-up do not count. *Durable* says what a checkpoint is when it counts. CPU: processor seconds of all
processes, servers and JVMs too, for a million rows; memory: the most that all of them held together.

{tables}
{plots}{end}"""
COLUMNS = """\
| system | way | keys | rows/s | CPU s a million rows | memory | durable |
|---|---|---|---|---|---|---|"""


def write_section(records: Sequence[dict[str, Any]], rounds: int) -> None:
    """Renew the section and the plots below docs/. Raises ValueError if the page has no place for it."""
    PLACE.write(section_of(records, rounds, draw(records, DOCS / "benchmarks")))


def section_of(records: Sequence[dict[str, Any]], rounds: int, plots: Sequence[str]) -> str:
    """The text."""
    tables = [table_of(table, [one for one in records if one["part"] == table]) for table in TITLES]
    tables.append(workers_of([one for one in records if one["part"] == "workers"]))
    return PLACE.filled(
        SECTION,
        rounds,
        tables="\n".join(tables),
        plots="".join(f"\n{plot}\n" for plot in plots),
    )


def table_of(table: str, records: Sequence[dict[str, Any]]) -> str:
    """One of the three."""
    lines = [f"### {TITLES[table]}\n", COLUMNS]
    for one in records:
        way = f"{NAMES[one['system']]} | {WAYS[table][one['system']]} | {one['keys']:,}"
        if one.get("rows_per_s") is None:
            why = one.get("missing", f"did not finish: {one.get('rows', 0):,} rows in its time")
            lines.append(f"| {way} | {why} | | | {one.get('durable', '')} |")
        else:
            cap = "" if one["finished"] else " (stopped at the cap)"
            figures = (
                f"{one['rows_per_s']:,.0f}{cap} | {one['cpu_s_per_million']:.2f} | {one['peak_mb']:,.0f} MB"
            )
            lines.append(f"| {way} | {figures} | {one['durable']} |")
    return "\n".join([*lines, "", *ratios(table, records)]) + "\n"


def ratios(table: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """How we stand to the aim, for each number of keys."""
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
    """What a second worker costs."""
    lines = [
        "### One worker and two\n",
        "| keys | workers | rows/s | CPU s a million rows |\n|---|---|---|---|",
    ]
    costs: dict[int, dict[int, float]] = {}
    for one in records:
        if one.get("rows_per_s"):
            costs.setdefault(one["keys"], {})[one["workers"]] = cpu = one["cpu_s_per_million"]
            lines.append(f"| {one['keys']:,} | {one['workers']} | {one['rows_per_s']:,.0f} | {cpu:.2f} |")
    both = [(keys, cost[2] / cost[1]) for keys, cost in costs.items() if {1, 2} <= cost.keys()]
    told = [
        f"{keys:,} keys: two take {ratio:.2f} times the CPU of one (aim: at most 1.25)."
        for keys, ratio in both
    ]
    return "\n".join([*lines, "", *told]) + "\n"


def draw(records: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Write the plots, and give what the page says of them."""
    drawn = [one for one in records if one["part"] in ("builtin", "curves") and one.get("rows_per_s")]
    curves = sorted(drawn, key=lambda one: int(one["keys"]))
    if not curves:
        return []
    folder.mkdir(exist_ok=True)
    found = []
    for name, title, value in (
        ("rate", "rows a second, built-in aggregates", "rows_per_s"),
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
    found.append(f"| keys | our state in memory | memory of all our processes |\n|---|---|---|\n{rows}")
    return found

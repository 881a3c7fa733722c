"""Another number of workers (`./run bench scale`), as a section of docs/benchmarks.md: how much state a
layout moves, which is calculated, and for how long a running region pauses, which is measured and compared
with PyFlink and Spark.

If a system to compare with is not available, its row contains the reason.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from checkpoint_rows import flink_figures, spark_figures
from dataflow_page import bars, chart
from rows import DOCS, Effort, Row, Section, run_json, say, table_lines

from checkpoint.core.records.layout import (
    SHARD_BITS,
    Layout,
    even_layout,
    least_moved,
    moved_units,
    rebalanced,
)

PLACE = Section("scale")
SECTION = """\
{begin}
## Layouts for other workers

The share of the state that moves when a region gets another number of workers. *Fixed* sharding assigns
65,536 units, *dynamic* sharding the shards of a tolerance of 0.1 (decision 0231). "Even ranges anew" divides
the hash space into equal ranges as for a new region. Calculated on {date}.

| workers | fixed, dynamic | other rules | least |
|---|---|---|---|
{rows}

![share of the state that moves](benchmarks/scale-moved.svg)

![imbalance](benchmarks/scale-imbalance.svg)

A region that runs goes to another number of workers and back, {times} times (local processes, three servers,
medians; the load average at the end was {load:.1f}). *Pause of output*: the longest time in which the output
of 1,000 generated rows per second does not grow; without a change, a step makes gaps of up to 0.1 s. *With as
much input as is counted*: the input of the count is never at its end.

PyFlink 2.3 counts the same number of keys with RocksDB state on the local disk; its job is stopped with a
native savepoint and started at the other parallelism, in a cluster that has the task slots. Spark 4.3 counts
the same in micro-batches with RocksDB state. It [keeps the number of
partitions](https://spark.apache.org/docs/latest/streaming/additional-information.html) with which a query
began; its figures are those of a method that is not public yet (`_streamingCheckpointManager.repartition`).

| change | figure | beside | aim |
|---|---|---|---|
{changes}

![pause of output](benchmarks/scale-pause.svg)
{end}"""
UNITS: Final = 1 << SHARD_BITS
MORE: Final = ((2, 3), (4, 5), (16, 17), (64, 65), (2, 4), (8, 16), (3, 5))
FEWER: Final = ((3, 2), (5, 4), (13, 12), (26, 25))
TOLERANCE: Final = 0.1
TOLERANCES: Final = (0.02, 0.05, 0.1, 0.2, 0.5)


def of_workers(workers: int, tolerance: float) -> Layout:
    """Return the layout of a new region."""
    return rebalanced(even_layout(1), range(workers), tolerance=tolerance)


def moved(old: int, new: int, tolerance: float = 0.0) -> float:
    """Return the share of the state that our layouts move."""
    before = of_workers(old, tolerance)
    return moved_units(before, rebalanced(before, range(new), tolerance=tolerance)) / UNITS


def moved_modulo(old: int, new: int) -> float:
    """Return the share that `hash % workers` moves."""
    return 1 - min(old, new) / math.lcm(old, new)


def moved_anew(old: int, new: int) -> float:
    """Return the share that moves if the ranges of a new region are used."""
    return moved_units(even_layout(old), even_layout(new)) / UNITS


def imbalance(workers: int, tolerance: float) -> float:
    """Return how far the largest share is above the average."""
    layout = of_workers(workers, tolerance)
    largest = max(sum(r.end - r.begin for r in layout.shards_of(worker)) for worker in range(workers))
    return largest * workers / UNITS - 1


def measure_scale(effort: Effort) -> list[Row]:
    """Return a row for each change of a layout, then one for each change of a region."""
    return [*layout_rows(), *region_rows(effort)]


def layout_rows() -> list[Row]:
    """Return a row for each change of a layout."""
    return [
        Row(
            f"{old} to {new}",
            f"{moved(old, new):.4f}, {moved(old, new, TOLERANCE):.4f}",
            f"`hash % workers` {moved_modulo(old, new):.4f}; even ranges anew {moved_anew(old, new):.4f}",
            f"{least_moved(even_layout(old), range(new)) / UNITS:.4f}",
        )
        for old, new in (*MORE, *FEWER)
    ]


def draw(rows: Sequence[Row]) -> None:
    """Draw what one more worker moves, how uneven shares are beside the tolerance, and measured pauses."""
    folder = DOCS / "benchmarks"
    folder.mkdir(exist_ok=True)
    counts = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]

    def line(share: Callable[[int], float]) -> list[tuple[float, float]]:
        return [(workers, share(workers)) for workers in counts]

    chart(
        folder / "scale-moved.svg",
        "share of the state that one more worker moves",
        "workers before",
        {
            "hash % W": line(lambda workers: moved_modulo(workers, workers + 1)),
            "even anew": line(lambda workers: moved_anew(workers, workers + 1)),
            "fixed": line(lambda workers: moved(workers, workers + 1)),
            "dynamic": line(lambda workers: moved(workers, workers + 1, TOLERANCE)),
        },
    )
    # the worst are just below a power of two times the tolerance
    sizes = (20, 25, 40, 51, 63, 81, 102, 163, 204)
    chart(
        folder / "scale-imbalance.svg",
        "how far the largest share is above the average, at worst",
        "tolerance",
        {
            "tolerance": [(tolerance, tolerance) for tolerance in TOLERANCES],
            "dynamic": [
                (tolerance, max(imbalance(workers, tolerance) for workers in sizes))
                for tolerance in TOLERANCES
            ],
        },
    )

    pauses = [row for row in rows if isinstance(row, PauseRow)]
    bars(
        folder / "scale-pause.svg",
        "pause of output while the number of workers changes, in seconds",
        {row.change: row.pauses_s for row in pauses},
    )


def written(rows: list[Row], effort: Effort) -> str:
    """Draw the pictures, and return the text of the section."""
    draw(rows)
    return section_of(rows, effort.recoveries)


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """Return the text of the section."""
    layouts = len(MORE) + len(FEWER)
    return PLACE.filled(
        SECTION, 1, rows=table_lines(rows[:layouts]), changes=table_lines(rows[layouts:]), times=rounds
    )


# --- a region ---------------------------------------------------------------------------------------------


KEYS: Final = 1_000_000
CHANGES_S_MAX: Final = 900.0
CHANGES: Final = ((2, 3), (3, 2))
MB: Final = 1e6
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PauseRow(Row):
    """A row with the pause of the region and of PyFlink in seconds, for the picture. Spark's is too long."""

    change: str
    pauses_s: Mapping[str, float]


def region_rows(effort: Effort) -> list[Row]:
    """Measure a region, PyFlink and Spark; return four rows for more workers, four for fewer, one for
    Spark.
    """
    keys = max(int(KEYS * effort.checkpoint_scale), 1_000)
    rounds = effort.recoveries
    ours = run_json("benchmarks/scale_region.py", str(keys), str(rounds), timeout_s=CHANGES_S_MAX)
    say(f"scale: {ours}")
    return rows_of(ours, flink_figures("scale", keys, rounds), spark_figures("scale", keys, rounds))


def rows_of(ours: Figures, flink: Figures, spark: Figures) -> list[Row]:
    """Return the rows of these figures."""
    rows: list[Row] = []
    for old, new in CHANGES:
        what = f"{ours['keys']:,} keys, {old} to {new} workers"
        found = Change(ours["changes"], new)
        others = {"PyFlink": flink, "Spark": spark}
        changes = {name: Change(one.get("changes", ()), new) for name, one in others.items()}
        pauses = {name: one.median("pause_s") for name, one in changes.items() if one}
        compared = "; ".join(
            f"{name}: {changes[name].ms('pause_s')}, {pauses[name] / found.median('gap_s'):.1f} times ours"
            if changes[name]
            else f"{name}: not measured, {one.get('missing', 'not in time')}"
            for name, one in others.items()
        )
        rows += [
            PauseRow(
                f"{what}: pause of output",
                f"{found.ms('gap_s')} (no input: {found.ms('pause_s')})",
                compared,
                "at most 1,000 ms, and a fifth of PyFlink's",
                f"{old} to {new}",
                {"DOS": found.median("gap_s")} | {one: pauses[one] for one in ("PyFlink",) if one in pauses},
            ),
            Row(
                f"{what}: whole change",
                found.ms("seconds"),
                "; ".join(f"{name}: {one.ms('seconds')}" for name, one in changes.items() if one),
                "",
            ),
            moved_row(what, found, least_moved(even_layout(old), range(new)) / (1 << SHARD_BITS)),
            input_row(what, Change(ours["with_input"], new)),
        ]
    return [*rows, spark_row(spark)]


class Change:
    """The figures of all changes to one number of workers. Falsy if there are none."""

    def __init__(self, changes: Sequence[Figures], workers: int) -> None:
        self._changes = [one for one in changes if one["workers"] == workers]

    def __len__(self) -> int:
        return len(self._changes)

    def median(self, name: str, over: str = "") -> float:
        """Return the median of a figure, or of its ratio to another one."""
        found = [one[name] / one[over] if over else one[name] for one in self._changes]
        return float(statistics.median(found))

    def ms(self, name: str) -> str:
        return f"{1000 * self.median(name):,.0f} ms"


def moved_row(what: str, found: Change, least: float) -> Row:
    read, ratio = found.median("copied_bytes") / MB, found.median("copied_bytes", "moved_bytes")
    share = found.median("moved_rows", "rows")
    return Row(
        f"{what}: bytes read of other workers' state",
        f"{read:.1f} MB, {ratio:.2f} times the {found.median('moved_bytes') / MB:.1f} MB that move",
        f"rows that move: {share:.4f} of all, {share / least:.2f} times the least",
        "1.0 times",
    )


def input_row(what: str, found: Change) -> Row:
    before, meanwhile = found.median("rows_per_s"), found.median("copying_rows_per_s")
    return Row(
        f"{what}, with as much input as is counted: rows/s from the request to the pause",
        f"{meanwhile:,.0f} rows/s, {found.median('copying_rows_per_s', 'rows_per_s'):.2f} times those before",
        f"before: {before:,.0f} rows/s; copying {found.ms('copy_s')}, pause {found.ms('pause_s')}",
        "0.8 times",
    )


def spark_row(spark: Figures) -> Row:
    """Return what Spark does with another number of partitions."""
    if "missing" in spark:
        return Row("Spark, another `spark.sql.shuffle.partitions`", "not measured", spark["missing"], "")
    return Row(
        f"Spark, {spark['keys']:,} keys, started again with 3 `spark.sql.shuffle.partitions` instead of 2",
        f"has {spark['kept']} partitions",
        f"start from empty state: {spark['built_s']:.1f} s until all keys are counted again",
        "",
    )

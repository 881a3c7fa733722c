"""The rows of `./run bench scale` that are measured: a region that goes from two workers to three and back,
compared with PyFlink and Spark.

It runs the programs of this directory one after the other. If a system to compare with is not available, its
row contains the reason.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from checkpoint_rows import flink_figures, spark_figures
from rows import Effort, Row, run_json, say

from checkpoint.core.records.layout import SHARD_BITS, even_layout, least_moved

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

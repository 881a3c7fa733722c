"""`./run bench checkpoint`: checkpoints, recovery and latency of a region, compared with Spark and PyFlink.

It runs the programs of this directory one after the other and formats their results as table rows. If a
system to compare with is not available, its row contains the reason.
"""

import statistics
import sys
from pathlib import Path
from typing import Any

from own_environment import FLINK
from rows import Effort, Row, run_json, say

SMALL_KEYS, LARGE_KEYS = 10_000, 1_000_000
DURABLE = "2 of 3 disks"
SPARK_DURABLE = "one copy, local disk"
CHECKPOINTS = 10
SLOW_ROWS_PER_S = 1_000
"""A rate that Spark's micro-batches can process even if a tenth of our maximum rate is too much for them."""
PART_S_MAX = 300.0
"""A program that takes longer is not measured."""


def measure_checkpoint(effort: Effort) -> list[Row]:
    """Measure checkpoints, recovery and latency once. The programs repeat their rounds, and run one after the
    other.
    """
    large = max(int(LARGE_KEYS * effort.checkpoint_scale), 20_000)
    rounds = effort.recoveries
    ours = our_figures("latency", effort.latency_s)
    spark = spark_figures("latency", ours["rows_per_s"], effort.latency_s)
    rows = latency_rows(ours, spark, "a tenth of the maximum rate")
    ours = our_figures("latency", effort.latency_s, "--rate", SLOW_ROWS_PER_S)
    rows += latency_rows(
        ours, spark_figures("latency", SLOW_ROWS_PER_S, effort.latency_s), "the same rate for both"
    )
    checkpoints = our_figures("checkpoint", large, CHECKPOINTS)
    rows.insert(0, checkpoint_row(checkpoints, flink_figures("checkpoint", large, CHECKPOINTS)))
    for keys in (SMALL_KEYS, large):
        found = our_figures("recovery", keys, rounds)["rounds"]
        cold = our_figures("recovery", keys, rounds, "--standby", 0)["rounds"]
        others = spark_figures("recovery", keys, rounds), flink_figures("recovery", keys, rounds)
        rows += recovery_rows(keys, found, cold, *others)
    return rows


def our_figures(*arguments: Any) -> dict[str, Any]:
    figures = run_json("benchmarks/checkpoint_region.py", *map(str, arguments), timeout_s=PART_S_MAX)
    say(f"a region, {arguments}: {figures}")
    return figures


def spark_figures(*arguments: Any) -> dict[str, Any]:
    """Return the figures of Spark's program, or the reason why there are none."""
    return compared_figures("Spark", "benchmarks/checkpoint_spark.py", sys.executable, *arguments)


def flink_figures(*arguments: Any) -> dict[str, Any]:
    """Return the figures of PyFlink's program, or the reason why there are none."""
    try:
        python = FLINK.python()
    except RuntimeError as error:
        return {"missing": str(error)}
    return compared_figures("PyFlink", "benchmarks/checkpoint_flink.py", python, *arguments)


def compared_figures(name: str, program: str, python: str | Path, *arguments: Any) -> dict[str, Any]:
    try:
        figures = run_json(
            program,
            *map(str, arguments),
            python=python,
            timeout_s=PART_S_MAX,
            environment={"PYTHONPATH": str(Path(__file__).parent)},
        )
    except RuntimeError as error:
        figures = {"missing": str(error)}
    say(f"{name}, {arguments}: {figures}")
    return figures


def checkpoint_row(ours: dict[str, Any], flink: dict[str, Any]) -> Row:
    phases = ", ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in ours["phases_s"].items())
    what = f"checkpoint of {ours['keys']:,} keys, 1 % of them changed ({DURABLE})"
    figure = f"{ours['median_s'] * 1000:.0f} ms ({phases} ms)"
    return Row(what, figure, beside("PyFlink", flink, "median_s", ours["median_s"]), "half of PyFlink's")


def recovery_rows(
    keys: int,
    ours: list[dict[str, Any]],
    cold: list[dict[str, Any]],
    spark: dict[str, Any],
    flink: dict[str, Any],
) -> list[Row]:
    """Return the rows of a recovery: its time compared with the others, its phases, and the time without a
    stand-by.
    """
    median = statistics.median(one["seconds"] for one in ours)
    others = [with_median(figures) for figures in (spark, flink)]
    compared = (
        beside(name, one, "median_s", median) for name, one in zip(("Spark", "PyFlink"), others, strict=True)
    )
    what = f"recovery, from the SIGKILL of a process with state to the next output, {keys:,} keys ({DURABLE})"
    without = statistics.median(one["seconds"] for one in cold)
    return [
        Row(what, f"{median * 1000:,.0f} ms", "; ".join(compared), "a third of the faster of the two"),
        Row(f"phases of that recovery, {keys:,} keys", phases_of(ours), "", ""),
        Row(f"the same without a stand-by, {keys:,} keys", f"{without * 1000:,.0f} ms", phases_of(cold), ""),
    ]


def phases_of(rounds: list[dict[str, Any]]) -> str:
    """Return the medians of the phases, in their order."""
    medians = {
        name: statistics.median(one["phases_s"][name] for one in rounds) for name in rounds[0]["phases_s"]
    }
    return ", ".join(f"{name} {seconds * 1000:,.0f}" for name, seconds in medians.items()) + " ms"


def latency_rows(ours: dict[str, Any], spark: dict[str, Any], which: str) -> list[Row]:
    rate = f"{ours['rows_per_s']:,} rows/s, {which}"
    rows = []
    for kind, aim in (("step", "a tenth of Spark's"), ("checkpoint", "")):
        found = ours[kind]
        figure = f"p50 {found['p50_ms']:,.0f} ms, p99 {found['p99_ms']:,.0f} ms"
        if kind == "step" and "starting" in ours:
            figure += f"; while a stand-by starts p99 {ours['starting']['p99_ms']:,.0f} ms"
        other = spark_latency(spark, found["p50_ms"])
        what = f"latency from input to visible output, published by {kind}; {rate} ({DURABLE})"
        rows.append(Row(what, figure, other, aim))
    return rows


def spark_latency(spark: dict[str, Any], ours_ms: float) -> str:
    """Return Spark's latency and the ratio. If most batches were not visible in time, there is a backlog, for
    which a ratio has no meaning.
    """
    if "missing" in spark:
        return f"Spark: not measured, {spark['missing']}"
    if 2 * spark["late"] > spark["batches"]:
        return f"Spark did not keep up: {spark['late']} of {spark['batches']} batches not visible at the end"
    late = f"; {spark['late']} of {spark['batches']} batches not visible at the end" if spark["late"] else ""
    return (
        f"Spark's micro-batch: p50 {spark['p50_ms']:,.0f} ms, p99 {spark['p99_ms']:,.0f} ms,"
        f" {spark['p50_ms'] / ours_ms:.1f} times ours at p50{late}"
    )


def with_median(figures: dict[str, Any]) -> dict[str, Any]:
    return figures if "missing" in figures else {**figures, "median_s": statistics.median(figures["seconds"])}


def beside(name: str, figures: dict[str, Any], key: str, ours: float) -> str:
    if "missing" in figures:
        return f"{name}: not measured, {figures['missing']}"
    other = figures[key]
    return f"{name} ({SPARK_DURABLE}): {other * 1000:,.0f} ms, {other / ours:.1f} times ours"

"""`./run bench checkpoint`: checkpoints, recovery and latency of a region, beside Spark and PyFlink.

Rules of this file: it runs the programs of this directory in turn and makes lines of what they say. A
yardstick that cannot be had is a line that says why.
"""

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from flink_environment import flink_python
from rows import ROOT, Effort, Row, run_json, say

SMALL_KEYS, LARGE_KEYS = 10_000, 1_000_000
DURABLE = "2 of 3 disks"
SPARK_DURABLE = "one copy, local disk"


def measure_checkpoint(effort: Effort) -> list[Row]:
    """All of it, once; the rounds are within."""
    large = max(int(LARGE_KEYS * effort.checkpoint_scale), 20_000)
    sizes = [SMALL_KEYS, large]
    ours = run_json(
        "benchmarks/checkpoint_region.py",
        "--json",
        "--keys",
        *map(str, sizes),
        "--rounds",
        str(effort.recoveries),
        "--latency-s",
        str(effort.latency_s),
    )
    say(f"a region: {ours}")
    spark = {keys: spark_figures("recovery", keys, effort.recoveries) for keys in sizes}
    flink = {keys: flink_figures("recovery", keys, effort.recoveries) for keys in sizes}
    rows = [checkpoint_row(ours["checkpoint"], flink_figures("checkpoint", large, 10))]
    rows += [recovery_row(keys, ours["recovery"][str(keys)], spark[keys], flink[keys]) for keys in sizes]
    rate = ours["latency"]["rows_per_s"]
    return rows + latency_rows(ours["latency"], spark_figures("latency", rate, effort.latency_s))


def spark_figures(*arguments: Any) -> dict[str, Any]:
    """What Spark's program says, or why it says nothing."""
    try:
        figures = run_json("benchmarks/checkpoint_spark.py", *map(str, arguments))
    except RuntimeError as error:
        figures = {"missing": str(error)}
    say(f"Spark, {arguments}: {figures}")
    return figures


def flink_figures(*arguments: Any) -> dict[str, Any]:
    """What PyFlink's program says, or why it says nothing."""
    try:
        python = flink_python()
        done = subprocess.run(
            [python, "benchmarks/checkpoint_flink.py", *map(str, arguments)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode != 0 or not lines:
            raise RuntimeError(f"it ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        figures: dict[str, Any] = json.loads(lines[-1])
    except RuntimeError as error:
        figures = {"missing": str(error)}
    say(f"PyFlink, {arguments}: {figures}")
    return figures


def checkpoint_row(ours: dict[str, Any], flink: dict[str, Any]) -> Row:
    phases = ", ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in ours["phases_s"].items())
    what = f"a cut of {ours['keys']:,} keys, 1 % changed ({DURABLE})"
    figure = f"{ours['median_s'] * 1000:.0f} ms ({phases} ms)"
    return Row(what, figure, beside("PyFlink", flink, "median_s", ours["median_s"]), "half of PyFlink's")


def recovery_row(keys: int, ours: list[dict[str, Any]], spark: dict[str, Any], flink: dict[str, Any]) -> Row:
    median = statistics.median(one["seconds"] for one in ours)
    others = [with_median(figures) for figures in (spark, flink)]
    said = (
        beside(name, one, "median_s", median) for name, one in zip(("Spark", "PyFlink"), others, strict=True)
    )
    what = f"from the SIGKILL of a process with state to the next output, {keys:,} keys ({DURABLE})"
    return Row(what, f"{median * 1000:,.0f} ms", "; ".join(said), "a third of the faster one's")


def latency_rows(ours: dict[str, Any], spark: dict[str, Any]) -> list[Row]:
    rate = f"{ours['rows_per_s']:,} rows/s, a tenth of the top rate"
    rows = []
    for kind, aim in (("step", "a tenth of Spark's"), ("cut", "")):
        found = ours[kind]
        figure = f"p50 {found['p50_ms']:,.0f} ms, p99 {found['p99_ms']:,.0f} ms"
        other = (
            f"Spark: not measured, {spark['missing']}"
            if "missing" in spark
            else f"Spark's micro-batch: p50 {spark['p50_ms']:,.0f} ms, p99 {spark['p99_ms']:,.0f} ms,"
            f" {spark['p50_ms'] / found['p50_ms']:.1f} times at p50"
        )
        rows.append(Row(f"from input to visible output, by {kind}; {rate} ({DURABLE})", figure, other, aim))
    return rows


def with_median(figures: dict[str, Any]) -> dict[str, Any]:
    return figures if "missing" in figures else {**figures, "median_s": statistics.median(figures["seconds"])}


def beside(name: str, figures: dict[str, Any], key: str, ours: float) -> str:
    if "missing" in figures:
        return f"{name}: not measured, {figures['missing']}"
    other = figures[key]
    return f"{name} ({SPARK_DURABLE}): {other * 1000:,.0f} ms, {other / ours:.1f} times ours"

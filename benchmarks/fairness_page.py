"""What a greedy client costs others (`./run bench fairness`), as a section of docs/benchmarks.md."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairness import CASES
from page_section import Section
from rows import Effort, Row, run_json, table_lines

PLACE = Section("fairness")
SECTION: Final = """\
{begin}
## One greedy client among others

Eight clients append 4 KiB each, twenty times a second, to one server, and wait until each append is durable:
alone, beside a greedy client of the same server, and beside the same client of another server on this
machine. Measured on {date}, {rounds}. The load average at the end was {load:.1f}, including the benchmark
itself.

| the greedy client | p99 of the others | compared with | aim |
|---|---|---|---|
{rows}
{end}"""


def rows_of(found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows for the figures of `fairness.py`."""
    rows = []
    for case, figures in found.items():
        alone, other = figures["alone"], figures["other"]
        beside = (
            f"alone: {alone['p99_ms']:.1f} ms, ratio {figures['ratio']:.1f};"
            f" of another server: {other['p99_ms']:.1f} ms, ratio {figures['ratio_other']:.1f}"
        )
        same = figures["same"]
        text = f"{same['p99_ms']:.1f} ms, p50 {same['p50_ms']:.1f} ms (alone {alone['p50_ms']:.1f} ms)"
        rows.append(Row(CASES[case][0], text, beside, "ratio 3 to alone"))
    return rows


def measure_fairness(effort: Effort) -> list[Row]:
    """Measure every greedy client."""
    seconds = 6.0 * effort.server_scale
    command = ["benchmarks/fairness.py", "--json", "--pairs", str(effort.pairs), "--seconds", str(seconds)]
    return rows_of(run_json(*command))


def section_of(rows: Sequence[Row], rounds: int) -> str:
    """Return the text of the section."""
    return PLACE.filled(SECTION, rounds, rows=table_lines(rows))

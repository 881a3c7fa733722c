"""The section of docs/benchmarks.md about other numbers of workers."""

from pathlib import Path

import scale as page
from dataflow_page import bars
from scale import PauseRow, rows_of


def change(workers, pause_s, **more):
    return {"workers": workers, "pause_s": pause_s, "seconds": 2 * pause_s, **more}


def ours():
    figures = {"gap_s": 0.5, "copied_bytes": 6_000_000, "moved_bytes": 2_000_000, "copy_s": 0.2}
    figures |= {"rows": 900, "moved_rows": 300, "rows_per_s": 1_000, "copying_rows_per_s": 700}
    changes = [change(workers, 0.4, **figures) for workers in (3, 2)]
    return {"keys": 900, "changes": changes, "with_input": changes}


FLINK = {"keys": 900, "changes": [change(3, 2.0), change(3, 3.0), change(3, 4.0), change(2, 1.0)]}
SPARK = {"keys": 900, "kept": 2, "built_s": 7.0, "changes": [change(3, 5.0), change(2, 4.0)]}


def test_the_section_has_the_layouts_and_then_the_regions() -> None:
    rows = page.layout_rows()
    measured = rows_of(ours(), FLINK, SPARK)
    text = page.section_of([*rows, *measured], 2)
    first, second = text.split("A region that runs")
    assert all(f"| {row.what} | {row.figure} |" in first for row in rows)
    assert all(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" in second for row in measured)
    assert "and back, 2 times" in second


def test_each_figure_is_beside_those_of_the_other_systems() -> None:
    rows = rows_of(ours(), FLINK, SPARK)
    pause, whole, moved, counted = rows[:4]
    assert pause.what == "900 keys, 2 to 3 workers: pause of output"
    assert pause.figure == "500 ms (no input: 400 ms)"
    assert pause.beside == "PyFlink: 3,000 ms, 6.0 times ours; Spark: 5,000 ms, 10.0 times ours"
    assert (whole.figure, whole.beside) == ("800 ms", "PyFlink: 6,000 ms; Spark: 10,000 ms")
    assert moved.figure == "6.0 MB, 3.00 times the 2.0 MB that move"
    assert moved.beside == "rows that move: 0.3333 of all, 1.00 times the least"
    assert counted.figure == "700 rows/s, 0.70 times those before"
    assert rows[-1].figure == "has 2 partitions"


def test_a_system_that_was_not_measured_is_named_with_the_reason() -> None:
    missing = {"missing": "there is no Java"}
    rows = rows_of(ours(), missing, missing)
    reason = "not measured, there is no Java"
    assert rows[0].beside == f"PyFlink: {reason}; Spark: {reason}"
    assert rows[1].beside == ""
    assert (rows[-1].figure, rows[-1].beside) == ("not measured", "there is no Java")


def test_the_pauses_are_drawn_as_bars(tmp_path: Path) -> None:
    pauses = [row for row in rows_of(ours(), FLINK, SPARK) if isinstance(row, PauseRow)]
    assert [row.change for row in pauses] == ["2 to 3", "3 to 2"]
    bars(tmp_path / "pause.svg", "pause", {row.change: row.pauses_s for row in pauses})
    text = (tmp_path / "pause.svg").read_text()
    assert all(name in text for name in ("DOS", "PyFlink", "2 to 3"))

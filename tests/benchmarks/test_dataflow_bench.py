"""`./run bench dataflow` compares equal work, and its figures and page state what was measured. Measures
nothing.
"""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dataflow_bench as bench
import dataflow_meter as meter
import dataflow_page as page
import dataflow_region as region
import pytest
from dataflow_input import FILE_ROWS, make_input
from dataflow_page import chart

from dataflow import CallSink, FileSource, Graph
from dataflow.testing import Trial

GOOD = {
    "part": "builtin",
    "table": "builtin",
    "keys": 1_000,
    "workers": 2,
    "rows": 5,
    "of": 5,
    "finished": True,
    "cpu_s_per_million": 1.5,
    "peak_mb": 400,
}


def test_the_input_is_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    one, other = (make_input(tmp_path / name, 2 * FILE_ROWS - 1, 1_000) for name in ("one", "other"))
    assert (one.files, one.rows) == (2, 2 * FILE_ROWS)
    for name in ("0000.csv", "0001.csv"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    last = (one.folder / "0001.csv").read_text().splitlines()[-1]
    assert last.endswith(",000199999")


@pytest.mark.parametrize("way", region.WAYS)
def test_each_way_of_ours_gives_the_same_totals(way: str, tmp_path: Path) -> None:
    lines = [f"k{number % 7},{number:09}" for number in range(2_000)]
    graph = Graph("totals")
    source = graph.source("lines", FileSource([tmp_path / "none"]))
    region.WAYS[way](source).sink("shown", CallSink(region.forget, takes="batch"))
    trial = Trial(graph, workers=2)
    half = len(lines) // 2
    trial.step({"lines": [[{"line": line} for line in lines[:half]]]}, checkpoint=True)
    trial.crash()
    trial.step({"lines": [[{"line": line} for line in lines[half:]]]}, end=True)
    last = {row["key"]: row for row in trial.rows("shown")}
    numbers: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        key, number = line.split(",")
        numbers[key].append(int(number))
    wanted = {
        key: {"key": key, "rows": len(found), "total": sum(found), "largest": max(found)}
        for key, found in numbers.items()
    }
    assert last == wanted


def test_a_rate_leaves_the_warm_up_out_and_a_slow_start_is_reported() -> None:
    watched = meter.Meter(1_000, cap_s=60)
    assert watched.figures(finished=False)["rows_per_s"] is None
    watched._samples = [
        meter.Sample(0.0, 10, 5.0),
        meter.Sample(6.0, 100, 6.0),
        meter.Sample(8.0, 1_000, 9.0),
    ]
    found = watched.figures(finished=True)
    assert found["rows_per_s"] == 450
    assert found["cpu_s_per_million"] == round(3 / 900 * 1e6, 3)


def test_the_meter_ends_with_the_input() -> None:
    counts = iter([0, 400, 1_000])
    found = meter.Meter(1_000, cap_s=60).watch(lambda: next(counts))
    assert (found["rows"], found["finished"]) == (1_000, True)
    assert found["peak_mb"] > 0
    assert os.getpid() in meter.tree(os.getppid())


def test_the_page_tells_ratios_what_was_stopped_and_what_is_missing() -> None:
    records: list[dict[str, Any]] = [
        {**GOOD, "system": "ours", "rows_per_s": 300},
        {**GOOD, "system": "spark", "rows_per_s": 100, "finished": False},
        {"part": "builtin", "system": "flink", "keys": 1_000, "workers": 2, "missing": "there is no Java"},
    ]
    text = page.section_of(bench.medians(records), 1, [])
    assert "1,000 keys: 3.0 times Spark 4.3 (aim: 1.5)." in text
    assert "100 (stopped at the cap) | 1.50 | 400 MB |" in text
    assert "there is no Java" in text


def test_a_curve_is_a_picture_with_the_names_in_the_order_of_their_ends(tmp_path: Path) -> None:
    lines = {"theirs": [(100, 9e5), (1e6, 2e4)], "ours": [(1e6, 2e5), (100, 5e5)], "nobody": []}
    chart(tmp_path / "a.svg", "rows", "keys", lines)
    drawn = (tmp_path / "a.svg").read_text()
    texts = [one.text for one in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-2:] == ["ours", "theirs"]
    assert {"rows", "keys", "1,000,000", "10,000"} <= set(texts)
    assert drawn.count('<g id="line-') == 2
    with pytest.raises(ValueError, match="needs a point"):
        chart(tmp_path / "b.svg", "rows", "keys", {"nobody": []})
    assert not (tmp_path / "b.svg").exists()


def test_unknown_words_on_the_command_line_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.options_of(["--only", "builtin,bilt"])
    assert "no bilt; there are builtin, batch, row, workers, curves" in capsys.readouterr().err
    asked = bench.measurements(bench.options_of(["--only", "row", "--rounds", "1", "--keys", "5"]))
    assert [one[1].name for one in asked] == ["ours", "spark", "flink", "bytewax"]

"""`./run bench port`: two variants of a job are compared, and what its page states. Spark is started only by
the long test.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import port
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import PAGE

SESSIONS = pa.table({"user": ["a", "b"], "begin_ms": [1, 2], "end_ms": [3, 4], "clicks": [5, 6]})


def test_equal_outputs_with_all_rows_are_right() -> None:
    port.check("sessions", 11, {"dos": SESSIONS, "spark": SESSIONS})


@pytest.mark.parametrize(
    ("ours", "text"),
    [
        (SESSIONS.slice(1), "the output of dos has 6 of 11 rows"),
        (pa.concat_tables([SESSIONS, SESSIONS.slice(1)]), "the output of dos has 17 of 11 rows"),
        (SESSIONS.set_column(2, "end_ms", pa.array([3, 5])), "the outputs differ: 2 rows of dos, 2 of Spark"),
    ],
)
def test_a_wrong_output_is_no_figure(ours: pa.Table, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        port.check("sessions", 11, {"dos": ours, "spark": SESSIONS})


def test_rows_that_both_have_lost_are_missed() -> None:
    with pytest.raises(RuntimeError, match="has 6 of 11 rows"):
        port.check("sessions", 11, {"dos": SESSIONS.slice(1), "spark": SESSIONS.slice(1)})


@pytest.mark.parametrize("job", ["sessions", "fraud"])
def test_rows_are_late_by_less_than_the_watermark_and_no_two_have_one_time(job: str, tmp_path: Path) -> None:
    port.write_input(tmp_path, job, 6_000, 10)
    paths = sorted((tmp_path / "input").iterdir())
    files = [pq.read_table(path).column("ms").to_pylist() for path in paths]
    assert [len(one) for one in files] == [1_000] * port.BATCHES + [1] * port.CLOSING
    read = [ms for one in files for ms in one]
    assert len(set(read)) == len(read)
    newest = 0
    for ms in read:
        newest = max(newest, ms)
        assert newest - ms < port.LATE_MS
    for before, after in itertools.pairwise(files):
        assert max(before) < min(after), "a file has no rows of the time of another"


def test_json_has_the_times_of_the_rows(tmp_path: Path) -> None:
    port.write_input(tmp_path, "totals", 6, 10)
    lines = [path.read_text() for path in sorted((tmp_path / "input").iterdir())]
    assert [json.loads(line)["at"][:13] for line in lines[:2]] == ["2026-01-01T00", "2026-01-01T01"]


def test_only_committed_rows_are_read(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "_spark_metadata").mkdir(parents=True)
    closing = pa.table({"user": [port.CLOSES], "begin_ms": [9], "end_ms": [9], "clicks": [1]})
    for number, table in enumerate([SESSIONS.slice(1), SESSIONS.slice(0, 1), closing, SESSIONS]):
        pq.write_table(table, output / f"{number}.parquet")
    for number in range(3):
        line = json.dumps({"path": f"file://{output}/{number}.parquet"})
        (output / "_spark_metadata" / str(number)).write_text(f"v1\n{line}\n")
    assert port.output_of(tmp_path, "user").equals(SESSIONS)


def figures(rate: float, recovery: float) -> dict[str, Any]:
    return {
        "rows_per_s": rate,
        "cpu_s_per_million": 300.0,
        "peak_mb": 900,
        "recovery_s": recovery,
        "session_s": 4.0,
    }


def test_the_page_has_medians_and_the_ratio_of_each_round() -> None:
    found = [
        {"job": "sessions", "rows": 6_000, "keys": 100, "dos": figures(*ours), "spark": figures(*theirs)}
        for ours, theirs in [((900.0, 5.0), (100.0, 20.0)), ((1_000.0, 6.0), (200.0, 20.0))]
    ]
    text = port.PLACE.table(port.rows_of(found), 2)
    assert "| sessions (`transformWithStateInPandas`), 6,000 rows, 100 keys | 950 rows/s |" in text
    assert "| 150 rows/s, ratio 7.00 | ratio 10 |" in text
    assert "| 5.5 s, of which 4.0 s until there is a session | 20.0 s, of which 4.0 s" in text
    assert "ratio 0.28 | ratio 0.33 |" in text


def test_only_a_whole_run_is_for_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert port.is_for_the_page(port.options_of([]))
    assert not port.is_for_the_page(port.options_of(["--rows", "1000"]))
    assert not port.is_for_the_page(port.options_of(["--only", "fraud"]))
    assert port.is_for_the_page(port.options_of(["--rows", "1000", "--page"]))
    with pytest.raises(SystemExit):
        port.options_of(["--rows", "5"])
    assert "--rows must be at least 6, not 5" in capsys.readouterr().err
    assert port.PLACE.found_in(PAGE.read_text()) in PAGE.read_text()


@pytest.mark.long
def test_both_variants_of_each_job_have_one_output_after_a_kill(capsys: pytest.CaptureFixture[str]) -> None:
    assert port.main(["--rounds", "1", "--keys", "50", "--rows", "600"]) == 0
    assert len(re.findall("ratio", capsys.readouterr().out)) == len(port.FIGURES) * len(port.JOBS)

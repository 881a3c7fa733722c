"""The lines about journals: which figure stands where, and the section that they make."""

from typing import Any

import bench
import journal_page
import journal_rows
import pytest
from rows import Effort, Row

RATES = {"mb_per_s": 210.4, "mb_per_cpu_s": 420.4, "records_per_s": 310_000.0, "records_per_cpu_s": 620_000.0}
WHOLE = {"journal_mb": 1000.0, "seconds": 4.0, "mb_per_s": 250.0, "mb_per_cpu_s": 400.0, "peak_mb": 60.0}
FIGURES: dict[str, Any] = {
    **{f"{what}_{size}": RATES for what in ("encode", "replay") for size in (4096, 100)},
    "restore_all": WHOLE,
    "restore_half": {**WHOLE, "journal_mb": 500.0, "peak_mb": 61.0},
    "restore_quarter": {**WHOLE, "journal_mb": 250.0, "peak_mb": 59.0},
    "restore_snapshots": {**WHOLE, "seconds": 1.1, "mb_per_s": 244.0, "read_mb": 268.0},
    "alone": {"put_get_mb_per_s": 60.0, "get_mb_per_s": 160.0},
    "archive": {"seconds": 9.0, "mb_per_s": 30.0},
    "restore_s3": {**WHOLE, "read_mb": 268.0, "seconds": 3.4, "mb_per_s": 80.0, "peak_mb": 130.0},
}


EFFORT = Effort(
    5,
    1,
    1.0,
    1.0,
    1,
    1.0,
    large_object_mb=1000,
    chain_mb=200,
    checkpoint_scale=1.0,
    recoveries=1,
    latency_s=1.0,
    trace_days=1,
    managed_h=1.0,
)


def test_each_figure_has_its_line_its_unit_and_its_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def given(*command: Any) -> dict[str, Any]:
        asked.append(command)
        return FIGURES

    monkeypatch.setattr(journal_rows, "run_json", given)
    rows = journal_rows.measure_journal(EFFORT)
    assert [(row.figure, row.beside, row.aim) for row in rows] == [
        ("210 MB/s", "420 MB per CPU second", "200 MB/s"),
        ("310,000 records/s", "620,000 records per CPU second", "300,000 records/s"),
        ("210 MB/s", "420 MB per CPU second", "200 MB/s"),
        ("310,000 records/s", "620,000 records per CPU second", "300,000 records/s"),
        ("4.0 s, 250 MB/s", "400 MB per CPU second", "200 MB/s"),
        ("1.1 s, 244 MB/s", "268 MB of 1000 read", ""),
        ("59, 61, 60 MB", "of journals of 250, 500, 1000 MB", "flat"),
        ("30 MB/s", "boto3 alone puts and gets them: 60 MB/s, ratio 0.50", ""),
        (
            "3.4 s, 80 MB/s, peak memory 130 MB",
            "boto3 alone gets them, one request after the other: 160 MB/s, ratio 0.50",
            "",
        ),
    ]
    sizes = ("--megabytes", "1000", "--s3-megabytes", "350", "--pairs", "3")
    assert asked == [("benchmarks/journal_speed.py", "--json", *sizes)]


def test_its_section_is_written_whoever_asks_for_it_and_its_rows_are_in_no_other_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    monkeypatch.setattr(bench, "MEASURES", {"journal": lambda _: [Row("what", "figure", "beside", "aim")]})
    monkeypatch.setattr(journal_page.Section, "write", lambda place, text: written.append(text))
    monkeypatch.setattr(bench, "write_page", lambda rows, _: written.append(f"page of {len(rows)} rows"))
    monkeypatch.setattr("sys.argv", ["bench", "journal", "--pairs", "1"])
    assert bench.main() == 0
    (text,) = written
    assert text.startswith(journal_page.PLACE.begin)
    assert text.endswith(journal_page.PLACE.end)
    assert "each once" in text
    assert "| what | figure | beside | aim |" in text
    monkeypatch.setattr("sys.argv", ["bench"])
    assert bench.main() == 0
    assert written[1].startswith(journal_page.PLACE.begin)
    assert written[2] == "page of 0 rows"

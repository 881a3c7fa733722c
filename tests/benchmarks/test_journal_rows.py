"""The lines about journals: which figure stands where."""

from typing import Any

import journal_rows
import pytest
from rows import Effort

FIGURES: dict[str, Any] = {
    **{f"{what}_4096": {"mb_per_s": 210.4, "records_per_s": 51_000.0} for what in ("encode", "replay")},
    **{f"{what}_100": {"mb_per_s": 31.0, "records_per_s": 310_000.0} for what in ("encode", "replay")},
    "restore_all": {
        "journal_mb": 1000.0,
        "seconds": 4.0,
        "mb_per_s": 250.0,
        "read_mb": 1000.0,
        "peak_mb": 60.0,
    },
    "restore_quarter": {"journal_mb": 250.0, "seconds": 1.0, "peak_mb": 59.0},
    "restore_snapshots": {"seconds": 1.1, "read_mb": 268.0},
    "archive": {"mb_per_s": 30.0},
    "restore_s3": {"mb_per_s": 40.0},
}


def test_each_figure_has_its_line_its_unit_and_its_aim(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def given(*command: Any) -> dict[str, Any]:
        asked.append(command)
        return FIGURES

    monkeypatch.setattr(journal_rows, "run_json", given)
    effort = Effort(
        3,
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
    )
    rows = journal_rows.measure_journal(effort)
    assert [(row.figure, row.aim) for row in rows[:4]] == [
        ("210 MB/s", "200 MB/s"),
        ("310,000 records/s", "300,000 records/s"),
        ("210 MB/s", "200 MB/s"),
        ("310,000 records/s", "300,000 records/s"),
    ]
    assert rows[4].figure == "4.0 s, 250 MB/s"
    assert rows[4].beside == "with snapshots: 1.1 s, 268 MB read"
    assert (rows[5].figure, rows[5].beside) == ("60 MB", "of a journal of 250 MB: 59 MB")
    assert rows[6].beside == "restore from the bucket alone: 40 MB/s"
    assert asked[0][1:] == ("--json", "--megabytes", "1000", "--s3-megabytes", "200", "--pairs", "3")

"""The reports of a region's progress: rows and rates between two cuts, also when a worker began again."""

import json

import pytest

from checkpoint.core.messages import Counters
from checkpoint.core.region import CutCommitted, RegionState, RegionStatus, WorkerStatus
from spark_integration.core.progress import ProgressMeter


def status(*rows_in: int) -> RegionStatus:
    workers = tuple(
        WorkerStatus(index, "RUNNING", counters=Counters(rows_in=rows, step=7))
        for index, rows in enumerate(rows_in)
    )
    return RegionStatus(RegionState.RUNNING, "", 3, 5, 7, 5, 0, workers, ())


CUT = CutCommitted(cut=5, step=7, final=False, seconds=0.25, phases_s={"sync": 0.125})


def test_the_first_report_has_no_rate_and_the_next_has() -> None:
    meter = ProgressMeter("words")
    first = meter.report(CUT, status(10, 20), now=100.0, timestamp="then")
    assert (first["numInputRows"], first["inputRowsPerSecond"]) == (30, None)
    second = meter.report(CUT, status(60, 70), now=102.0, timestamp="now")
    assert (second["numInputRows"], second["inputRowsPerSecond"]) == (100, 50.0)


def test_a_worker_that_began_again_does_not_make_rows_negative() -> None:
    meter = ProgressMeter("words")
    meter.report(CUT, status(1000, 1000), now=1.0, timestamp="")
    assert meter.report(CUT, status(1010, 5), now=2.0, timestamp="")["numInputRows"] >= 0


def test_a_report_is_plain_json_with_names_a_spark_user_knows() -> None:
    report = ProgressMeter("words").report(CUT, status(1), now=0.0, timestamp="2026-01-02T03:04:05.678Z")
    assert json.loads(json.dumps(report)) == report
    assert report["name"] == "words"
    assert report["cut"] == 5
    assert report["workers"][0]["step"] == 7
    assert report["phaseSeconds"] == pytest.approx({"sync": 0.125})

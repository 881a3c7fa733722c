"""The reports of a region's progress, and the estimate of a recovery."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.cli.region import event_time_text
from checkpoint.coordinator.figures import RegionFigures
from checkpoint.core.coordination.recovery_estimate import (
    RecoveryInputs,
    RestoreSample,
    StepMeter,
    bytes_to_restore,
    estimate,
    restore_bytes_per_s,
    restore_seconds,
)
from checkpoint.core.coordination.vocabulary import WorkerEnded
from checkpoint.core.links.messages import Counters, EventTime, Progress, Restored
from checkpoint.core.progress import (
    RECENT_PROGRESS_MAX,
    IdleMeter,
    ProgressMeter,
    as_json,
    recovery_text,
    span_of,
    status_json,
)
from checkpoint.core.records.manifest import NO_NOTE, WorkerCheckpoint
from checkpoint.core.records.views import savepoint_row
from checkpoint.core.region import (
    CheckpointCommitted,
    RecoveryEstimate,
    RegionState,
    RegionStatus,
    ResetReport,
    UnderWayStatus,
    WorkerStatus,
)
from checkpoint.limits import idle_report_s
from journal.core.chain import Position
from tests.checkpoint.coordinator_harness import CoordinatorHarness
from tests.checkpoint.manifest_samples import a_checkpoint, notes, numbered_checkpoint, worker_checkpoint
from tests.support.site_tables import names_in

CHECKPOINT = CheckpointCommitted(
    checkpoint=5,
    step=7,
    final=False,
    seconds=0.25,
    phases_s={"sync": 0.125, "commit": 0.05},
    worker_phases_s={0: {"sync": 0.125}, 1: {"sync": 0.01}},
)
RESET = ResetReport(time=1.0, worker=1, reason="killed", seconds=0.5, bytes=10, incarnation=4, checkpoint=5)


def status(*rows_in: int, attempt: int = 1, incarnation: int = 3, counted: int = 0) -> RegionStatus:
    workers = tuple(
        WorkerStatus(
            index,
            "RUNNING",
            attempt=attempt,
            counters=Counters(
                rows_in=rows,
                rows_out=2 * rows,
                step=7,
                lag_bytes=11,
                operators={
                    "counts": {
                        "rows_in": counted or rows,
                        "rows_out": rows,
                        "busy_us": 1_000 * rows,
                        "keys": 4,
                    }
                },
            ),
        )
        for index, rows in enumerate(rows_in)
    )
    return RegionStatus(RegionState.RUNNING, "", incarnation, 5, 7, 5, 0, workers, (RESET,))


def test_the_first_report_has_no_rate_and_the_next_has() -> None:
    meter = ProgressMeter("words")
    assert meter.last is None
    first = meter.report(CHECKPOINT, status(10, 20), now=100.0, timestamp="then")
    assert (first["numInputRows"], first["inputRowsPerSecond"]) == (30, None)
    second = meter.report(CHECKPOINT, status(60, 70), now=102.0, timestamp="now")
    assert (second["numInputRows"], second["inputRowsPerSecond"]) == (100, 50.0)
    assert (second["numOutputRows"], second["outputRowsPerSecond"]) == (200, 100.0)
    assert meter.last is second


def test_a_worker_that_began_again_counts_from_its_restart_on_and_the_other_continues() -> None:
    meter = ProgressMeter("words")
    meter.report(CHECKPOINT, status(1000, 1000), now=1.0, timestamp="")
    both = status(1010, 1005)
    again = RegionStatus(
        **{
            **{name: getattr(both, name) for name in RegionStatus.__slots__},
            "workers": (both.workers[0], status(0, 1005, attempt=2).workers[1]),
        }
    )
    assert meter.report(CHECKPOINT, again, now=2.0, timestamp="")["numInputRows"] == 10 + 1005


def counts(rows: int) -> dict[str, Any]:
    return {
        "name": "counts",
        "kind": "count",
        "rowsIn": rows,
        "rowsOut": rows,
        "busySeconds": rows / 1000,
        "keys": 8,
    }


def test_operators_count_between_two_checkpoints_and_anew_in_a_new_incarnation() -> None:
    meter = ProgressMeter("words", notes(counts="count"))
    first = meter.report(CHECKPOINT, status(10, 20), now=1.0, timestamp="")
    assert first["operators"] == [counts(30)]
    second = meter.report(CHECKPOINT, status(15, 20), now=2.0, timestamp="")
    assert second["operators"] == [counts(5)]
    third = meter.report(CHECKPOINT, status(100, 100, incarnation=4), now=3.0, timestamp="")
    assert third["operators"] == [counts(200)]


def test_take_overs_have_spans_and_counters_of_their_own() -> None:
    figures, taken_over = RegionFigures("words"), replace(RESET, term=3, seconds=0.25)
    for event in (RESET, taken_over, taken_over):
        figures.observe(event, 0.0)
    values = {one.name: one.value for family in figures.collect() for one in family.samples}
    assert values["dos_region_resets_total"] == 1
    assert values["dos_region_taken_over_total"] == 2
    assert values["dos_region_reset_seconds_total"] == 1.0
    spans = [span_of("words", event) for event in (RESET, taken_over)]
    assert [span and span.name for span in spans] == ["dos.recovery", "dos.take_over"]
    assert spans[1] is not None
    assert (spans[1].end_s, spans[1].attributes["dos.worker"]) == (0.25, 1)


def test_the_event_time_of_a_region_is_that_of_the_worker_that_is_furthest_behind() -> None:
    at_10 = EventTime(10_000_000, "split 'a' of source 'rows': its last row")
    times = [at_10, EventTime(9_000_000, "split 'b' of source 'rows': its last row"), EventTime(None, "")]
    region = status(1, 2, 3)
    for count, text in (
        (1, "1970-01-01T00:00:10+00:00, held by worker 0, split 'a'"),
        (2, "1970-01-01T00:00:09+00:00, held by worker 1, split 'b'"),
        (3, "has not begun"),
    ):
        workers = tuple(
            replace(one, counters=Counters(event_times={"timed": time}))
            for one, time in zip(region.workers, times[:count], strict=False)
        )
        (found,) = status_json(replace(region, workers=workers))["eventTimes"]
        assert (found["name"], found["worker"]) == ("timed", count - 1)
        assert text in event_time_text(found)
    far = replace(region.workers[0], counters=Counters(event_times={"timed": EventTime(2**62, "")}))
    (found,) = status_json(replace(region, workers=(far,)))["eventTimes"]
    assert event_time_text(found) == f"event time of 'timed' is at {2**62} us"


def test_a_report_is_plain_json_with_names_a_spark_user_knows() -> None:
    report = ProgressMeter("words").report(
        CHECKPOINT, status(1, 2), now=0.0, timestamp="2026-01-02T03:04:05.678Z"
    )
    assert json.loads(json.dumps(report)) == report
    assert report["name"] == "words"
    assert report["checkpoint"] == 5
    assert report["lagBytes"] == 22
    assert report["workers"][0]["step"] == 7
    assert report["phaseSeconds"] == pytest.approx({"sync": 0.125, "commit": 0.05})
    assert [one["phaseSeconds"]["sync"] for one in report["workers"]] == [0.125, 0.01]


def test_a_region_is_idle_while_it_has_no_step_since_its_checkpoint_and_that_is_reported_now_and_then() -> (
    None
):
    idle, calm = IdleMeter(), status(1)
    busy = replace(calm, last_checkpoint_step=6)
    assert (calm.step, busy.step) == (7, 7)
    assert not idle.is_due(busy, 100.0)
    assert not idle.is_due(calm, 100.0 + idle_report_s - 0.1)
    assert idle.is_due(calm, 100.0 + idle_report_s)
    assert not idle.is_due(calm, 101.0 + idle_report_s)
    for other in (
        busy,
        replace(calm, state=RegionState.PAUSED),
        replace(calm, under_way=UnderWayStatus(6, 1.0)),
    ):
        assert not idle.is_due(other, 200.0)
        assert not idle.is_due(calm, 200.0 + idle_report_s - 0.1)
    assert idle.is_due(calm, 200.0 + idle_report_s)


def test_a_status_is_one_line_in_a_terminal_and_escaped_in_a_notebook() -> None:
    now = status(10, 20)
    failed = replace(now.workers[1], error="Traceback:\n  ...\nValueError: <b>no & yes</b>\n", host="<h>")
    now = replace(now, state=RegionState.FAILED, reason="<script>", workers=(now.workers[0], failed))
    assert repr(now) == f"<RegionStatus {now}>" == "<RegionStatus FAILED, 2 workers, checkpoint 5; <script>>"
    shown = now._repr_html_()
    assert "ValueError: &lt;b&gt;no &amp; yes&lt;/b&gt;</td>" in shown
    assert "Traceback" not in shown
    assert not {"<script>", "<h>"} & set(re.findall("<[^>]*>", shown))
    many = replace(now, workers=tuple(replace(failed, index=n) for n in range(23)))
    assert many._repr_html_().count("<tr>") == 21
    assert "and 3 workers more" in many._repr_html_()
    killed = [replace(one, state="LOST", error="its process 7 ended with signal 9") for one in now.workers]
    stopped = replace(now, state=RegionState.STOPPED, reason="stopped", workers=tuple(killed))
    assert str(stopped) == "STOPPED, 2 workers, checkpoint 5", "a reason that repeats the state is none"
    assert "LOST" not in stopped._repr_html_(), "they were ended on purpose"
    assert "signal 9" not in stopped._repr_html_()


def test_reports_are_kept_up_to_a_limit() -> None:
    # EVIDENCE-OF: P-9
    meter = ProgressMeter("words")
    for number in range(RECENT_PROGRESS_MAX + 5):
        meter.report(CHECKPOINT, status(number), now=float(number), timestamp=str(number))
    assert len(meter.recent) == RECENT_PROGRESS_MAX
    assert meter.recent[-1]["timestamp"] == str(RECENT_PROGRESS_MAX + 4)


def test_the_docs_explain_every_name_of_a_report_and_no_other() -> None:
    report = ProgressMeter("words").report(CHECKPOINT, status(1), now=0.0, timestamp="")
    assert names_in("progress") == set(report)
    assert names_in("worker") == set(report["workers"][0])
    assert names_in("status") == set(status_json(status(1)))
    assert names_in("recovery") == set(as_json(RecoveryEstimate(0, 0, 0, 0, 0, 0, 1)))
    assert names_in("reset") == set(as_json(RESET))
    assert names_in("savepoint") == set(savepoint_row("good", numbered_checkpoint(), NO_NOTE, 0))


# --- the estimate of a recovery ---------------------------------------------------------------------------


MB = 1_000_000
_samples = st.lists(
    st.builds(RestoreSample, st.integers(0, 2_000 * MB), st.floats(0.0, 100.0)), min_size=1, max_size=5
)


@given(_samples, st.integers(0, 4_000 * MB), st.integers(0, 4_000 * MB))
def test_more_bytes_never_take_less_time(samples: list[RestoreSample], one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert 0.0 <= restore_seconds(samples, less) <= restore_seconds(samples, more)


@given(st.integers(0, 2_000 * MB), st.floats(0.0, 100.0), st.integers(1, 5))
def test_a_restore_of_the_measured_size_is_estimated_as_measured(size: int, taken_s: float, n: int) -> None:
    assert restore_seconds([RestoreSample(size, taken_s)] * n, size) == pytest.approx(taken_s, abs=1e-6)


def test_the_time_for_a_byte_is_measured_if_sizes_differ_and_assumed_otherwise() -> None:
    start, reset = RestoreSample(0, 0.2), RestoreSample(100 * MB, 1.2)
    assert restore_seconds([start, reset], 50 * MB) == pytest.approx(0.7)
    assert restore_seconds([start, reset], 300 * MB) == pytest.approx(3.2)
    assumed = 0.2 + 50 * MB / restore_bytes_per_s
    assert restore_seconds([start], 50 * MB) == pytest.approx(assumed)
    near = RestoreSample(1 * MB, 0.9)
    assert restore_seconds([start, near], 0) < 1.0, "the difference of two small restores is not the bytes"
    assert restore_seconds([start, near], 100 * MB) < 4.0


def test_the_parts_add_up_and_nothing_is_estimated_before_anything_was_measured() -> None:
    assert estimate(RecoveryInputs(launch_s=1.0, steps=5, step_s=1.0)) is None
    found = estimate(
        RecoveryInputs(
            launch_s=1.1,
            manifests_s=(0.2, 0.4, 9.0),
            claims_s=(0.3, 0.1, 9.0),
            restores=(RestoreSample(100 * MB, 0.75),) * 3,
            state_bytes=120 * MB,
            steps=12,
            step_s=0.04,
        )
    )
    assert found is not None
    assert (found.launch_s, found.claim_s, found.state_s) == (1.1, 0.3, pytest.approx(1.15))
    assert found.replay_s == pytest.approx(0.48)
    assert found.seconds == pytest.approx(3.03)
    assert recovery_text(as_json(found)) == (
        "recovery: about 3.0 s (launch 1.1, claim 0.3, state 1.1 for 120 MB, replay 0.5 for 12 steps)"
    )


def test_the_bytes_are_those_above_the_floors_of_the_worker_with_most() -> None:
    part = WorkerCheckpoint(
        state=Position(3, 900, 0),
        steps=Position(3, 70, 0),
        directories={"own": Position(3, 500, 0), "other": Position(3, 40, 0)},
        floors={"state": (2, 600), "steps": (1, 0), "files-own": (3, 480)},
    )
    assert bytes_to_restore(a_checkpoint(workers={0: worker_checkpoint(), 1: part})) == 300 + 70 + 20 + 40
    assert bytes_to_restore(None) == 0


def test_a_step_takes_the_time_that_the_worker_was_busy_in_recent_ones() -> None:
    meter = StepMeter()
    assert meter.step_s == 0.0
    meter.note(10, 5.0)
    meter.note(20, 6.0)
    assert meter.step_s == pytest.approx(6.0 / 20)
    meter.note(15, 6.5)
    assert meter.step_s == pytest.approx(6.0 / 20), "steps that went back belong to another incarnation"
    meter.note(25, 0.5)
    assert meter.step_s == pytest.approx(6.0 / 20), "a counter that went back belongs to another process"
    for number in range(1_000):
        meter.note(26 + number, 0.5 + 0.01 * number)
    assert meter.step_s == pytest.approx(0.01, rel=0.05), "old steps are forgotten"


def test_the_coordinator_notes_every_round() -> None:
    region = CoordinatorHarness()
    assert region.core.status().recovery is None
    region.now += 1.0
    region.opened()
    region.now += 2.0
    region.join(0)
    region.join(1)
    region.now += 0.5
    region.receive_from_all(Restored, last_step=0, seconds=0.5, phases_s={"claim": 0.1, "open": 0.4})
    started = region.core.status().recovery
    assert started is not None
    assert (started.launch_s, started.claim_s, started.rounds) == (3.0, pytest.approx(0.1), 1)
    assert (started.state_s, started.steps, started.replay_s) == (0.4, 0, 0.0)

    region.receive(0, Progress, counters=Counters(step=8, busy_s=2.0))
    region.receive(1, Progress, counters=Counters(step=6, busy_s=3.0))
    running = region.core.status().recovery
    assert running is not None
    assert (running.steps, running.replay_s) == (8, 4.0), "the slowest worker determines the time of a step"

    region.die(1)
    region.now += 0.25
    region.opened()
    region.play(WorkerEnded(1, 1, None))
    region.now += 0.5
    region.join(1, 2)
    big = {"claim": 0.1, "open": 0.4, "load": 2.0}
    region.receive(0, Restored, last_step=0, seconds=2.5, replayed_bytes=80 * MB, phases_s=big)
    region.receive(1, Restored, last_step=0, seconds=0.2, replayed_bytes=90 * MB, phases_s={"claim": 0.2})
    after = region.core.status().recovery
    assert after is not None
    assert (after.launch_s, after.rounds) == (0.75, 2), "it was launched while the manifest was claimed"
    assert list(region.core.rounds.history.manifests_s) == [1.0, 0.25]
    restores = region.core.rounds.history.restores
    assert list(restores) == [RestoreSample(0, 0.4), RestoreSample(80 * MB, pytest.approx(2.4))]

"""One worker's jobs, one attempt after another: the table of `core/attempts.py`; what holds in any order."""

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.jobs import (
    HOLD_TICKS,
    CancelJob,
    CancelRequested,
    Effect,
    JobEnded,
    JobState,
    LauncherTick,
    ReportEnd,
    StartRequested,
    SubmitJob,
    WorkerJobs,
)


def test_a_first_attempt_is_submitted() -> None:
    jobs = WorkerJobs()
    assert jobs.handle(StartRequested(0)) == [SubmitJob(0)]
    assert jobs.state is JobState.RUNNING


def test_an_attempt_asked_for_while_another_is_canceled_waits_for_its_end() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    assert jobs.handle(CancelRequested()) == [CancelJob(0)]
    assert jobs.handle(StartRequested(1)) == [CancelJob(0)]
    assert jobs.handle(JobEnded(0, "killed")) == [ReportEnd(0, "killed"), SubmitJob(1)]
    assert jobs.handle(JobEnded(1, None)) == [ReportEnd(1, None)]
    assert jobs.state is JobState.IDLE


def test_an_attempt_that_a_stand_by_can_become_does_not_wait_for_the_canceled_one() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    jobs.handle(CancelRequested(0))
    jobs.handle(StartRequested(1))
    assert jobs.handle(StartRequested(2, standby=True)) == [SubmitJob(2)]
    assert jobs.rejected == [], "its host is good"
    assert jobs.handle(LauncherTick()) == [CancelJob(0)], "until Spark knows it"
    assert jobs.handle(JobEnded(0, "killed")) == [ReportEnd(0, "killed")], "the one that waited is forgotten"
    assert jobs.handle(CancelRequested(0)) == []
    assert jobs.handle(JobEnded(2, None)) == [ReportEnd(2, None)]
    assert jobs.is_idle


def test_a_rejected_attempt_keeps_its_slot_until_the_next_one_has_another() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    assert jobs.handle(StartRequested(1, standby=True)) == [SubmitJob(1)], "the first one is not canceled yet"
    assert jobs.rejected == [0]
    assert [jobs.handle(LauncherTick()) for _ in range(HOLD_TICKS - 1)] == [[]] * (HOLD_TICKS - 1)
    assert jobs.handle(StartRequested(2)) == [SubmitJob(2)], "the second one was rejected, too"
    assert jobs.handle(LauncherTick()) == [CancelJob(0)]
    assert jobs.rejected == [1]
    assert jobs.handle(LauncherTick()) == [CancelJob(0)], "until Spark knows it"
    assert jobs.handle(JobEnded(0, "cancelled")) == [ReportEnd(0, "cancelled")]
    assert jobs.handle(JobEnded(2, None)) == [ReportEnd(2, None)]
    assert not jobs.is_idle
    assert jobs.handle(JobEnded(1, None)) == [ReportEnd(1, None)], "it ended on its own"
    assert jobs.is_idle


def test_a_cancel_ends_held_attempts_at_once() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    jobs.handle(StartRequested(1))
    assert jobs.handle(CancelRequested()) == [CancelJob(0), CancelJob(1)]
    assert jobs.handle(LauncherTick()) == [CancelJob(0), CancelJob(1)]


def test_a_cancel_is_repeated_until_the_job_has_ended() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(3))
    assert jobs.handle(LauncherTick()) == []
    assert jobs.handle(CancelRequested()) == [CancelJob(3)]
    assert jobs.handle(LauncherTick()) == [CancelJob(3)]
    assert jobs.handle(JobEnded(3, "cancelled")) == [ReportEnd(3, "cancelled")]
    assert jobs.handle(LauncherTick()) == []


def test_a_cancel_forgets_the_attempt_that_waited() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    jobs.handle(CancelRequested())
    jobs.handle(StartRequested(1))
    assert jobs.handle(CancelRequested()) == [CancelJob(0)]
    assert jobs.handle(JobEnded(0, "x")) == [ReportEnd(0, "x")]


def test_cancelling_when_nothing_runs_does_nothing() -> None:
    assert WorkerJobs().handle(CancelRequested()) == []


def test_an_attempt_beside_another_does_not_end_it_until_one_of_them_is_canceled() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    assert jobs.handle(StartRequested(1, beside=True)) == [SubmitJob(1)]
    assert [jobs.handle(LauncherTick()) for _ in range(2 * HOLD_TICKS)] == [[]] * (2 * HOLD_TICKS)
    assert jobs.handle(CancelRequested(1)) == [CancelJob(1)], "it could not take over"
    assert jobs.handle(JobEnded(1, "cancelled")) == [ReportEnd(1, "cancelled")]
    assert jobs.handle(StartRequested(2, beside=True)) == [SubmitJob(2)], "the first one is current again"
    assert jobs.handle(CancelRequested(0)) == [CancelJob(0)], "replaced"
    assert jobs.handle(LauncherTick()) == [CancelJob(0)]
    assert jobs.handle(JobEnded(0, None)) == [ReportEnd(0, None)]
    assert jobs.handle(CancelRequested(0)) == [], "it has ended"
    assert jobs.handle(JobEnded(2, None)) == [ReportEnd(2, None)]
    assert jobs.is_idle


@given(
    st.lists(
        st.sampled_from(["start", "beside", "standby", "cancel", "cancel old", "end", "end old", "tick"]),
        max_size=40,
    )
)
def test_each_attempt_submitted_is_reported_once_and_old_ones_are_canceled(story: list[str]) -> None:
    jobs, attempt = WorkerJobs(), 0
    running: list[int] = []
    kept: list[int] = []
    submitted: list[int] = []
    reported: list[int] = []
    effects: list[Effect]
    for event in [*story, *["tick"] * HOLD_TICKS]:
        canceled: set[int] = set()
        if event in ("start", "beside", "standby"):
            if jobs.state is JobState.RUNNING and jobs.attempt is not None:
                kept = [one for one in kept if one != jobs.attempt]
                kept += [jobs.attempt] if event == "beside" else []
            effects = jobs.handle(StartRequested(attempt, event == "beside", event == "standby"))
            assert event != "standby" or effects == [SubmitJob(attempt)], "it waits for nothing"
            attempt += 1
        elif event == "cancel old":
            if not running:
                continue
            kept = [one for one in kept if one != running[0]]
            effects = jobs.handle(CancelRequested(running[0]))
            assert CancelJob(running[0]) in effects
        elif event.startswith("end"):
            if not running:
                continue
            effects = jobs.handle(JobEnded(running.pop(0 if event == "end old" else -1), None))
        else:
            effects = jobs.handle(CancelRequested() if event == "cancel" else LauncherTick())
        for effect in effects:
            if isinstance(effect, SubmitJob):
                running.append(effect.attempt)
                submitted.append(effect.attempt)
            elif isinstance(effect, CancelJob):
                assert effect.attempt in running
                canceled.add(effect.attempt)
            else:
                reported.append(effect.attempt)
        if event == "cancel":
            kept = []
            assert canceled == set(running)
    assert canceled >= set(running[:-1]) - set(kept), "only the current one continues, and those beside it"
    assert sorted([*reported, *running]) == submitted
    assert jobs.is_idle == (not running)

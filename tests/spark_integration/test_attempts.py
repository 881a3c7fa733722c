"""One worker's jobs, one attempt after another: the table of `core/attempts.py`; what holds in any order."""

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.attempts import (
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


def test_an_attempt_asked_for_while_another_runs_waits_for_its_end() -> None:
    jobs = WorkerJobs()
    jobs.handle(StartRequested(0))
    assert jobs.handle(StartRequested(1)) == [CancelJob(0)]
    assert jobs.handle(JobEnded(0, "killed")) == [ReportEnd(0, "killed"), SubmitJob(1)]
    assert jobs.handle(JobEnded(1, None)) == [ReportEnd(1, None)]
    assert jobs.state is JobState.IDLE


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
    jobs.handle(StartRequested(1))
    assert jobs.handle(CancelRequested()) == [CancelJob(0)]
    assert jobs.handle(JobEnded(0, "x")) == [ReportEnd(0, "x")]


def test_cancelling_when_nothing_runs_does_nothing() -> None:
    assert WorkerJobs().handle(CancelRequested()) == []


@given(st.lists(st.sampled_from(["start", "cancel", "end", "tick"]), max_size=40))
def test_at_most_one_attempt_runs_and_each_one_submitted_is_reported_once(story: list[str]) -> None:
    jobs, attempt, running = WorkerJobs(), 0, None
    submitted: list[int] = []
    reported: list[int] = []
    effects: list[Effect]
    for event in story:
        if event == "start":
            effects = jobs.handle(StartRequested(attempt))
            attempt += 1
        elif event == "end":
            if running is None:
                continue
            ended, running = running, None
            effects = jobs.handle(JobEnded(ended, None))
        else:
            effects = jobs.handle(CancelRequested() if event == "cancel" else LauncherTick())
        for effect in effects:
            if isinstance(effect, SubmitJob):
                assert running is None, "two attempts at once"
                running = effect.attempt
                submitted.append(effect.attempt)
            elif isinstance(effect, CancelJob):
                assert effect.attempt == running
            else:
                reported.append(effect.attempt)
    assert reported == [done for done in submitted if done != running]
    assert submitted == sorted(set(submitted))

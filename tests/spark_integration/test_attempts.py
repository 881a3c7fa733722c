"""The Spark jobs of workers and stand-bys (`core/jobs.py`): the table, what holds in any order of events, and
what is kept of Spark's words when a task failed.
"""

import random

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.jobs import (
    AGAIN_MAX_S,
    AGAIN_S,
    END_S,
    GRAPH_CHARS_MAX,
    HOLD_TICKS,
    CancelJob,
    CancelRequested,
    Effect,
    JobEnded,
    JobState,
    LauncherTick,
    ReportEnd,
    StandbyJobs,
    StartRequested,
    SubmitJob,
    WorkerJobs,
    cancel_reason,
    is_own_cancel,
    job_texts,
    task_error,
)
from spark_integration.limits import ERROR_TEXT_CHARS_MAX


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


def test_as_many_run_as_are_wanted_and_one_that_became_a_worker_is_followed_by_another() -> None:
    jobs = StandbyJobs(2)
    assert [jobs.submit(), jobs.submit()] == [1, 2]
    assert not jobs.is_due(0.0)
    jobs.assigned(1, worker=0, attempt=4)
    assert jobs.is_due(0.0)
    assert (jobs.number_of(0, 4), jobs.number_of(0, 5)) == (1, None)
    assert jobs.ended(1, 0.0) == (0, 4), "the end of its job is the end of the attempt"
    assert jobs.number_of(0, 4) is None
    assert jobs.ended(1, 0.0) is None


def test_without_stand_bys_none_is_due() -> None:
    jobs = StandbyJobs(0)
    assert jobs.is_idle
    assert not jobs.is_due(0.0)


def test_one_that_dies_while_it_waits_is_replaced_later_each_time_until_one_is_used() -> None:
    jobs, now, delays = StandbyJobs(1), 0.0, []
    for _ in range(9):
        assert jobs.ended(jobs.submit(), now) is None
        begun = now
        while not jobs.is_due(now):
            now += AGAIN_S / 2
        delays.append(now - begun)
    assert delays == [1, 2, 4, 8, 16, 32, AGAIN_MAX_S, AGAIN_MAX_S, AGAIN_MAX_S]
    jobs.assigned(jobs.submit(), worker=1, attempt=2)
    jobs.ended(jobs.submit(), now)
    assert jobs.is_due(now + AGAIN_S)


def test_a_shortage_of_slots_is_reported_once_and_looked_at_again_later() -> None:
    jobs = StandbyJobs(1)
    assert jobs.no_slot(0.0)
    assert not jobs.is_due(AGAIN_S / 2)
    assert jobs.is_due(AGAIN_S)
    assert not jobs.no_slot(AGAIN_S)
    jobs.cancel([jobs.submit()])
    assert jobs.no_slot(9.0), "there was a slot in between"


def test_a_worker_that_is_submitted_comes_before_stand_bys_that_do_not_wait_yet() -> None:
    jobs = StandbyJobs(3)
    for _ in range(3):
        jobs.submit()
    assert jobs.worker_submitted([2]) == [1, 3]
    assert jobs.tick(0.0, over=False) == [1, 3], "Spark ignores a cancel until it knows the job"
    assert jobs.live == {2}
    jobs.ended(1, 0.0)
    jobs.ended(3, 0.0)
    assert jobs.tick(0.0, over=False) == []
    assert jobs.is_due(0.0), "a canceled one has not failed"


def test_at_the_end_those_that_wait_end_on_their_own_and_the_others_are_canceled() -> None:
    jobs = StandbyJobs(2)
    jobs.submit()
    jobs.submit()
    assert jobs.tick(10.0, over=True) == []
    assert jobs.ended(1, 10.1) is None
    assert not jobs.is_due(99.0)
    assert jobs.tick(10.0 + END_S, over=True) == [2]
    assert not jobs.is_idle
    jobs.ended(2, 11.0)
    assert jobs.is_idle


@given(
    st.integers(0, 3),
    st.lists(st.sampled_from(["tick", "over", "assign", "end", "worker", "cancel", "no slot"]), max_size=60),
    st.randoms(),
)
def test_each_job_ends_once_as_what_it_has_become(count: int, story: list[str], rng: random.Random) -> None:
    jobs, now, over = StandbyJobs(count), 0.0, False
    running: set[int] = set()
    became: dict[int, tuple[int, int]] = {}
    for attempt, event in enumerate(story):
        now += 0.5
        live = sorted(jobs.live)
        if event in ("tick", "over"):
            over = over or event == "over"
            assert running.issuperset(jobs.tick(now, over=over))
            if jobs.is_due(now):
                running.add(jobs.submit())
        elif event == "assign" and live:
            number = rng.choice(live)
            became[number] = (rng.choice([0, 1]), attempt)
            jobs.assigned(number, *became[number])
        elif event == "end" and running:
            number = rng.choice(sorted(running))
            running.remove(number)
            assert jobs.ended(number, now) == became.pop(number, None)
        elif event == "worker":
            assert set(jobs.worker_submitted(live[:1])) == set(live[1:])
        elif event == "cancel":
            assert jobs.cancel(live) == live
        elif event == "no slot":
            jobs.no_slot(now)
        assert len(jobs.live) <= count
        assert jobs.live | jobs.canceled | became.keys() == running
        assert jobs.is_idle == (not running - became.keys())
        assert all(jobs.number_of(*which) == number for number, which in became.items())
    now += END_S
    jobs.tick(now, over=True)
    assert jobs.tick(now + END_S, over=True) == sorted(running - became.keys()), "what is left"


CRASHED = """An error occurred while calling o76.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (10.0.0.1 executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""

RAISED = """An error occurred while calling o104.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 in stage 2.0: \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 10, in main
    process()
  File "mine.py", line 3, in split
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""


def test_of_a_crashed_worker_the_innermost_message_is_kept() -> None:
    assert task_error(CRASHED) == "Python worker exited unexpectedly (crashed)."


def test_of_an_exception_the_python_traceback_is_kept() -> None:
    text = task_error(RAISED)
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "\tat " not in text


def test_of_a_canceled_job_the_reason_is_kept_and_the_regions_own_is_known() -> None:
    text = (
        "An error occurred while calling o252.collect.\n: org.apache.spark.SparkException:"
        " [SPARK_JOB_CANCELLED] Job 7 cancelled {} SQLSTATE: XXKDA"
    )
    assert task_error(text.format("because killed via the Web UI")).startswith("Job 7 cancelled because kill")
    assert task_error(text.format("because killed via the Web UI")).endswith("the Web UI")
    own = text.format(cancel_reason("shop", "stopped"))
    assert task_error(own) == "Job 7 cancelled by DOS region shop: stopped"
    assert is_own_cancel("shop", own)
    assert not is_own_cancel("shop.orders", own)
    assert not is_own_cancel("shop", text.format(cancel_reason("shop.orders", "")))


def test_the_texts_of_jobs_are_bounded_and_a_stand_by_says_what_it_waits_for() -> None:
    many = [(f"operator{number}", "map from (lines)") for number in range(100)]
    worker = job_texts("shop", 1, 2, store_url="dos://h1,h2", operators=many)
    assert (
        worker.description
        == "DOS region shop, worker 1, attempt 2; to stop: dos region stop dos://h1,h2 shop"
    )
    assert len(worker.name) == GRAPH_CHARS_MAX
    assert worker.name.startswith("graph: operator0, operator1, ")
    assert worker.details.endswith("  operator99: map from (lines)")
    standby = job_texts("shop", None, 4, store_url="dos://h1,h2", operators=[])
    assert standby.description.startswith("DOS region shop, stand-by 4; to stop: ")
    assert "It waits to replace a worker." in standby.details


def test_a_text_of_another_shape_is_kept_but_bounded() -> None:
    assert task_error("SparkContext was shut down") == "SparkContext was shut down"
    assert len(task_error("x" * 1_000_000)) == ERROR_TEXT_CHARS_MAX
    assert task_error("") == ""

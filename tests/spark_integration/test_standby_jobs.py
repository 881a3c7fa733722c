"""Which stand-bys run: the rules of `core/standbys.py`, and what holds in any order of events."""

import random

from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.jobs import AGAIN_MAX_S, AGAIN_S, END_S, StandbyJobs


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

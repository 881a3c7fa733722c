"""The policy of `autoscale`: limits, monotony, steadiness; and few changes, no oscillation and no needless
workers over recorded loads, on which policies with planted bugs fail.
"""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.coordination.autoscaling import AutoscalePolicy, WorkerLoad
from checkpoint.core.region import AutoScale
from tests.support.autoscale_plant import MB, Plant, Run, recorded, simulate

SPEC = AutoScale(2, 8)


def feed(
    policy: AutoscalePolicy, seconds: int, load_of: Callable[[int], list[WorkerLoad]], *, begin: int = 0
) -> tuple[int, int] | None:
    """Take a sample each second until a change is requested. Return (second, workers), None if none was."""
    for now in range(begin, begin + seconds):
        wanted = policy.take(load_of(now), float(now))
        if wanted is not None:
            return now, wanted
    return None


def steady(
    workers: int, *, rate: float = 1.0, busy: float = 0.6, others: float | None = None, backlog: int = 0
) -> Callable[[int], list[WorkerLoad]]:
    """Each worker reads `rate` MB/s. The first one is busy for the share `busy`, the others for `others`."""
    shares = [busy, *[busy if others is None else others] * (workers - 1)]
    return lambda now: [WorkerLoad(int(now * rate * MB), now * share, backlog) for share in shares]


def growing(workers: int, *, rate: float, by: float, busy: float = 1.0) -> Callable[[int], list[WorkerLoad]]:
    """As `steady`, and the backlog of each worker grows by `by` MB/s."""
    return lambda now: [WorkerLoad(int(now * rate * MB), now * busy, int(now * by * MB))] * workers


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"minimum": 0, "maximum": 2}, "1 <= minimum <= maximum <= 4096 workers, got 0 and 2"),
        ({"minimum": 3, "maximum": 2}, "got 3 and 2"),
        ({"minimum": 1, "maximum": 5000}, "got 1 and 5000"),
        ({"minimum": 1, "maximum": 2, "busy": 1.0}, "busy must be a share above 0 and below 1, got 1.0"),
        ({"minimum": 1, "maximum": 2, "window": 1}, "window must be 3 to 3600 seconds, got 1"),
        ({"minimum": 1, "maximum": 2, "window": float("nan")}, "window must be"),
        ({"minimum": 1, "maximum": 2, "catch_up": 0}, "catch_up must be a time above 0 in seconds, got 0"),
        ({"minimum": 1, "maximum": 2, "cool_down": float("inf")}, "cool_down must be a time above 0"),
    ],
)
def test_a_setting_out_of_range_is_named(fields: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AutoScale(**fields)  # type: ignore[arg-type]


def test_it_acts_after_two_full_windows_of_load_and_states_the_figures() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 30, growing(2, rate=1.0, by=0.5)) is None
    assert policy.reason == "the load is being measured for another 1 s"
    assert policy.next_s(29.0) == 1.0
    at, workers = feed(policy, 60, growing(2, rate=1.0, by=0.5), begin=30) or (0, 0)
    assert (at, workers) == (60, 5)
    assert policy.reason == (
        "the load needs 5 workers; load 169% of 2 workers: busiest worker 100% busy, 2.0 MB/s read,"
        " 3.0 MB/s arrive, 45.0 MB wait"
    )


@pytest.mark.parametrize(
    ("rate", "figure"),
    [(2500.0, "2.5 GB/s"), (999.9, "999.9 MB/s"), (0.0015, "1.5 kB/s"), (0.000_9, "900.0 B/s")],
)
def test_rates_are_stated_in_the_unit_that_fits(rate: float, figure: str) -> None:
    policy = AutoscalePolicy(SPEC)
    feed(policy, 60, steady(1, rate=rate))
    assert f", {figure} read" in policy.reason


def test_a_load_that_calls_for_a_change_names_the_time_it_must_last_and_another_load_does_not() -> None:
    policy = AutoscalePolicy(SPEC)
    feed(policy, 40, growing(2, rate=1.0, by=0.5))
    assert re.fullmatch(r"the load needs 5 workers; .*, if that stays so for another \d+ s", policy.reason)
    policy = AutoscalePolicy(SPEC)
    feed(policy, 40, steady(2, busy=0.7))
    assert "the load needs 2 workers" in policy.reason
    assert "if that stays so" not in policy.reason


def test_the_busiest_worker_counts_because_workers_run_in_step() -> None:
    one_is_busy = feed(AutoscalePolicy(SPEC), 100, steady(3, busy=0.95, others=0.2))
    assert one_is_busy == (60, 5)


def test_a_backlog_that_does_not_grow_is_read_within_the_time_that_is_set() -> None:
    def of(catch_up: float) -> tuple[int, int] | None:
        policy = AutoscalePolicy(AutoScale(2, 20, catch_up=catch_up))
        return feed(policy, 100, steady(2, rate=1.0, busy=0.8, backlog=300 * MB))

    assert of(10_000) is None
    assert of(300) == (60, 5)
    assert of(100) == (60, 10)


def test_between_the_aim_and_the_bound_above_it_nothing_changes() -> None:
    for busy in (0.5, 0.7, 0.84):
        policy = AutoscalePolicy(SPEC)
        assert feed(policy, 300, steady(3, busy=busy)) is None, busy
        assert "the load needs 3 workers" in policy.reason
        assert policy.wanted == 3


def test_workers_leave_after_a_whole_cool_down_of_lower_load_to_the_highest_number_of_it() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 300, steady(6, busy=0.2)) == (90, 2)
    assert "the load needs only 2 workers" in policy.reason

    def with_a_busy_moment(now: int) -> list[WorkerLoad]:
        busy_s = 0.2 * now + (4.0 if now > 70 else 0.0)
        return [WorkerLoad(now * MB, busy_s, 0)] * 6

    assert feed(AutoscalePolicy(SPEC), 300, with_a_busy_moment) == (90, 4)


def test_no_worker_leaves_while_a_backlog_is_read() -> None:
    policy = AutoscalePolicy(AutoScale(2, 8, busy=0.9))
    assert feed(policy, 300, steady(8, rate=1.0, busy=0.5)) == (90, 5)
    for seconds in (0.1, 3, 4.99):
        found = feed(AutoscalePolicy(policy.spec), 300, steady(8, busy=0.5, backlog=int(seconds * MB)))
        assert found is not None, f"{seconds} s to read are no backlog"
        assert found[1] < 8
    for seconds in (5.01, 6, 20):
        policy = AutoscalePolicy(policy.spec)
        assert feed(policy, 300, steady(8, busy=0.5, backlog=int(seconds * MB))) is None
        assert "a backlog is being read" in policy.reason


def test_an_idle_region_goes_to_the_minimum() -> None:
    assert feed(AutoscalePolicy(SPEC), 300, steady(6, rate=0.0, busy=0.01)) == (90, 2)
    assert feed(AutoscalePolicy(SPEC), 300, steady(2, rate=0.0, busy=0.0)) is None


def test_input_that_waits_while_no_worker_is_busy_changes_nothing_and_the_reason_is_named() -> None:
    for load in (steady(3, rate=0.1, busy=0.2, backlog=50 * MB), growing(3, rate=0.1, by=5.0, busy=0.2)):
        policy = AutoscalePolicy(SPEC)
        assert feed(policy, 300, load) is None
        assert "input waits, but no worker is busy: they wait for the store" in policy.reason
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 300, steady(3, rate=0.0, busy=1.0, backlog=50 * MB)) is None
    assert "input waits, and none was read" in policy.reason


def test_if_more_workers_did_not_help_no_more_are_added_until_they_do() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 61, growing(2, rate=1.0, by=0.2)) == (60, 4)
    policy.settled(4, "", 66.0)
    stuck = growing(4, rate=0.5, by=0.2)  # four read what two read before
    assert feed(policy, 300, stuck, begin=66) is None
    assert "more workers did not help; 4 workers can read 2.0 MB/s, and 2 could read 2.0 MB/s" in (
        policy.reason
    )
    policy.interrupted("the store waited")
    assert feed(policy, 300, growing(4, rate=1.0, by=1.0), begin=366) == (426, 8)


def test_workers_that_helped_once_do_not_hold_others_back_when_rows_become_more_expensive() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 61, growing(2, rate=1.0, by=0.2)) == (60, 4)
    policy.settled(4, "", 66.0)
    assert feed(policy, 60, steady(4, rate=0.6, busy=0.6), begin=66) is None, "4 MB/s"
    assert feed(policy, 100, growing(4, rate=0.5, by=0.2), begin=126) == (186, 8), "2 MB/s, as before"


def test_workers_that_come_because_of_the_limits_need_not_help() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 100, steady(1, rate=0.0, busy=0.0)) == (30, 2)
    policy.settled(2, "", 36.0)
    assert feed(policy, 300, growing(2, rate=1.0, by=0.2), begin=36) == (96, 4)


def test_a_change_that_failed_is_not_tried_again_before_the_cool_down_and_the_reason_is_named() -> None:
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 61, growing(2, rate=1.0, by=0.2)) == (60, 4)
    policy.settled(2, "worker 2 did not join", 70.0)
    assert feed(policy, 60, growing(2, rate=1.0, by=0.2), begin=70) is None
    assert policy.reason.startswith("the last change failed: worker 2 did not join; the load needs")
    assert policy.reason.endswith("no change for another 1 s")
    at, _ = feed(policy, 10, growing(2, rate=1.0, by=0.2), begin=130) or (0, 0)
    assert at == 130
    assert "failed" not in policy.reason


def test_a_region_outside_of_the_limits_returns_to_them_whatever_its_load() -> None:
    assert feed(AutoscalePolicy(SPEC), 100, steady(10, busy=0.7)) == (30, 8)
    assert feed(AutoscalePolicy(SPEC), 100, steady(1, busy=0.7)) == (30, 2)


def test_an_interruption_a_new_process_or_a_source_that_learns_its_backlog_begins_the_window_anew() -> None:
    def restarted(now: int) -> list[WorkerLoad]:
        return [WorkerLoad(now * MB, now * 0.95, 0), WorkerLoad((now % 25) * MB, now % 25 * 0.95, 0)]

    def learned(now: int) -> list[WorkerLoad]:
        return [WorkerLoad(now * MB, now * 0.95, -1 if now < 50 else 0)] * 2

    assert feed(AutoscalePolicy(SPEC), 300, restarted) is None
    assert feed(AutoscalePolicy(SPEC), 300, learned) == (110, 3)
    policy = AutoscalePolicy(SPEC)
    assert feed(policy, 50, steady(2, busy=0.95)) is None
    policy.interrupted("the region is paused")
    assert policy.reason == "the region is paused"
    assert policy.next_s(50.0) == 30.0
    assert feed(policy, 300, steady(2, busy=0.95), begin=50) == (110, 3)


def test_without_a_known_backlog_the_busy_share_decides() -> None:
    assert feed(AutoscalePolicy(SPEC), 100, steady(2, busy=1.0, backlog=-1)) == (60, 3)


loads = st.tuples(st.floats(0, 20), st.floats(0, 1), st.floats(-5, 20), st.integers(0, 1_000))


@given(st.integers(1, 12), loads, st.integers(1, 8), st.integers(0, 12))
def test_the_number_is_always_within_the_limits(
    workers: int, load: tuple[float, float, float, int], minimum: int, more: int
) -> None:
    rate, busy, growth, backlog = load
    policy = AutoscalePolicy(AutoScale(minimum, minimum + more))

    def at(now: int) -> list[WorkerLoad]:
        waits = max(0, int((backlog + now * growth) * MB))
        return [WorkerLoad(int(now * rate * MB), now * busy, waits)] * workers

    found = feed(policy, 150, at)
    assert found is None or (found[1] != workers and minimum <= found[1] <= minimum + more)
    assert policy.wanted is not None
    assert minimum <= policy.wanted <= minimum + more
    if workers != policy.spec.limited(workers) and (rate or growth <= 0):
        assert found is not None


@given(st.integers(1, 8), loads, st.floats(0, 10), st.integers(0, 500))
def test_a_higher_load_never_wants_fewer_workers(
    workers: int, load: tuple[float, float, float, int], more: float, waits: int
) -> None:
    """The workers are as fast in both cases: they read as much, and more arrives or waits."""
    rate, busy, growth, backlog = load

    def wanted(growth: float, backlog: int) -> int:
        policy = AutoscalePolicy(AutoScale(1, 16))
        for now in range(31):
            waits = max(0, int((backlog + now * growth) * MB))
            policy.take([WorkerLoad(int(now * rate * MB), now * max(busy, 0.5), waits)] * workers, float(now))
        assert policy.wanted is not None
        return policy.wanted

    if rate:
        growth = max(0.0, growth)
        assert wanted(growth, backlog) <= wanted(growth + more, backlog + waits)


@given(st.integers(1, 12), st.floats(0.01, 0.95), st.integers(0, 2**32), st.integers(30, 100))
def test_noise_of_a_fifth_around_a_constant_load_makes_at_most_one_change(
    workers: int, share: float, seed: int, cool_down: int
) -> None:
    """Each worker reads 1 MB/s at most; the load is this share of it."""
    policy, random = AutoscalePolicy(AutoScale(1, 16, cool_down=cool_down)), Random(seed)
    counters, load, backlog, changes = [(0.0, 0.0)] * workers, share * workers, 0.0, []
    for now in range(600):
        backlog += load * random.uniform(0.8, 1.2)
        read = min(backlog, float(workers))
        backlog -= read
        counters = [(got + read / workers, busy + read / workers) for got, busy in counters]
        samples = [WorkerLoad(int(got * MB), busy, int(backlog * MB / workers)) for got, busy in counters]
        wanted = policy.take(samples, float(now))
        if wanted is not None:
            changes.append((now, workers, wanted))
            workers, counters = wanted, [(0.0, 0.0)] * wanted
            policy.settled(wanted, "", float(now))
    assert len(changes) <= 1, changes


# --- recorded loads ---------------------------------------------------------------------------------------


PLANT = Plant()


class Case(NamedTuple):
    """A load, and what a good policy may do with it."""

    load: str
    changes: int
    """Changes at most. Those of a day are many, because it is six times as fast."""
    turns: int
    """Changes of direction at most. A day falls at night and after each of its two peaks."""
    waits_s: int
    """For how long input may wait at most."""
    spec: AutoScale = AutoScale(1, 10)
    plant: Plant = PLANT


CASES = {
    "step": Case("step", changes=2, turns=1, waits_s=120),
    "spike": Case("spike", changes=4, turns=1, waits_s=120),
    "day": Case("day", changes=12, turns=4, waits_s=20),
    "step, backlog unknown": Case(
        "step", 6, 1, 700, AutoScale(1, 10, cool_down=90), Plant(knows_backlog=False)
    ),
    "spike, backlog unknown": Case("spike", 6, 1, 300, plant=Plant(knows_backlog=False)),
}


def enough(rate: float, load: float) -> int:
    """Return the lowest number of workers whose load is at most `load` of what they can."""
    return next(n for n in range(1, 100) if rate <= load * PLANT.capacity(n))


def check(name: str, policy: Callable[[AutoScale], AutoscalePolicy], seed: int) -> Run:
    """Run a policy over a load, and assert what holds for a good one."""
    case, load = CASES[name], recorded(CASES[name].load)
    run = simulate(policy(case.spec), load, seed=seed, plant=case.plant)
    assert len(run.changes) <= case.changes, run.changes
    assert run.turns <= case.turns, run.changes
    for (before, _, _), (after, _, _) in pairwise(run.changes):
        assert after - before >= case.spec.cool_down, run.changes
    assert all(workers == case.spec.limited(workers) for _, workers, _ in run.changes)
    waits_s = sum(one.backlog > 5 * one.arrived for one in run.seconds)
    assert waits_s <= case.waits_s, f"input waited for {waits_s} s"
    assert run.seconds[-1].backlog < 5 * MB
    least = sum(enough(rate, 0.85) for _, rate in load) / len(load)
    assert run.worker_seconds / len(run.seconds) <= 1.4 * least, "needless workers"
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_it_follows_a_load_with_few_changes_and_without_oscillation(name: str, seed: int) -> None:
    check(name, AutoscalePolicy, seed)


def test_a_step_is_answered_by_one_change_within_a_minute() -> None:
    ((at, workers, reason), *_) = check("step", AutoscalePolicy, 1).changes
    assert 300 < at <= 360
    assert enough(9 * MB, 0.85) <= workers <= enough(9 * MB, 0.7) + 2
    assert "MB/s arrive" in reason


@pytest.mark.parametrize("speed_up", [0.0, 0.5, 1.0])
def test_workers_that_add_little_or_nothing_are_not_added_for_ever(speed_up: float) -> None:
    run = simulate(AutoscalePolicy(AutoScale(1, 10)), recorded("step"), plant=Plant(speed_up=speed_up))
    assert run.turns <= 1, run.changes
    if not speed_up:
        assert len(run.changes) == 1, run.changes


class CoolDownIgnored(AutoscalePolicy):
    """Planted bug: a change may follow the one before at any time."""

    def _may_act(self, now: float) -> bool:
        del now
        return True


class MeanInsteadOfBusiest(AutoscalePolicy):
    """Planted bug: workers that wait for the busiest one make the region look less busy."""

    def _busiest(self, shares: Sequence[float]) -> float:
        return sum(shares) / len(shares)


class BacklogIgnored(AutoscalePolicy):
    """Planted bug: what waits does not count."""

    def take(self, workers: Sequence[WorkerLoad], now: float) -> int | None:
        return super().take([one._replace(backlog_bytes=0) for one in workers], now)


class WithoutHysteresis(AutoscalePolicy):
    """Planted bug: every judgment is followed at once, and one bound is used for both directions."""

    def _highest(self) -> float:
        return self.spec.busy

    def _spare(self) -> tuple[float, float]:
        return 1.0, 1.0

    def _due_in(self, *args: object) -> float:
        super()._due_in(*args)  # type: ignore[arg-type]
        return 0.0


@pytest.mark.parametrize("bug", [CoolDownIgnored, MeanInsteadOfBusiest, BacklogIgnored, WithoutHysteresis])
def test_a_policy_with_a_planted_bug_fails(bug: type[AutoscalePolicy]) -> None:
    def fails(name: str) -> bool:
        try:
            check(name, bug, 1)
        except AssertionError:
            return True
        return False

    assert [name for name in CASES if fails(name)]

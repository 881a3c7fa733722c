"""The policy of `autoscale` over recorded loads: few changes, no oscillation, no backlog that stays, no
needless workers. Policies with planted bugs must fail.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from checkpoint.core.coordination.autoscaling import AutoscalePolicy, WorkerLoad
from checkpoint.core.region import AutoScale
from tests.support.autoscale_plant import MB, Plant, Run, recorded, simulate

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

"""The plan of the faults: a seed determines it, and it keeps its rules for any seed."""

import random
from itertools import pairwise

import pytest

from dos_chaos.core.plan import DEFAULT_KINDS, KINDS, WIPE, PlannedFault, make_plan, problem_of, seconds_min


def planned(seed: int, kinds: tuple[str, ...] = tuple(KINDS), seconds: float = 120.0) -> list[PlannedFault]:
    return make_plan(kinds, 3, seconds, random.Random(seed).random)


def test_a_seed_determines_the_faults() -> None:
    assert planned(1) == planned(1)
    assert planned(1) != planned(2)


@pytest.mark.parametrize("seconds", [seconds_min(len(KINDS)), 60.0, 3_600.0])
def test_every_kind_occurs_and_faults_follow_one_another(seconds: float) -> None:
    for seed in range(50):
        plan = planned(seed, seconds=seconds)
        assert {fault.kind for fault in plan[: len(KINDS)]} == set(KINDS)
        assert plan[0].start_s > 0
        for one, following in pairwise(plan):
            assert one.start_s + one.duration_s < following.start_s
        assert plan[-1].start_s + plan[-1].duration_s < seconds
        assert all(len(fault.servers) == 1 for fault in plan if fault.kind == WIPE)


def test_some_faults_leave_no_quorum_and_most_do() -> None:
    plan = [fault for seed in range(100) for fault in planned(seed)]
    alone = sum(len(fault.servers) == 1 for fault in plan)
    assert len(plan) / 2 < alone < len(plan)
    assert {len(fault.servers) for fault in plan} == {1, 2, 3}


def test_what_cannot_be_planned_is_named() -> None:
    assert problem_of(DEFAULT_KINDS, 1, 60.0) == ""
    assert problem_of((WIPE,), 3, 60.0) == ""
    assert "wipe needs 3 servers" in problem_of((WIPE,), 2, 60.0)
    assert "unknown fault kil" in problem_of(("kil",), 3, 60.0)
    assert "at least 0.2 minutes" in problem_of(tuple(KINDS), 3, 11.9)
    assert problem_of(tuple(KINDS), 3, 12.0) == ""

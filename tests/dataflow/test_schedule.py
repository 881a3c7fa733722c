"""What a worker does next, by the numbers of its steps alone."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import CallSink, Graph, RateSource
from dataflow.core.plan import NodeSpec, OperatorKind, make_plan
from dataflow.core.schedule import (
    Barrier,
    DurableSteps,
    FixedCost,
    Produce,
    RunStage,
    Schedule,
    Wait,
    fixed_s_max,
)
from dataflow.limits import WorkerLimits
from dataflow.operators.base import OperatorContext
from dataflow.sources.rate import RateReader
from dataflow.worker.spec import Clock
from tests.dataflow.region_in_one_thread import OneThreadRegion

PLAN = make_plan(
    [
        NodeSpec("lines", OperatorKind.SOURCE),
        NodeSpec("k1", OperatorKind.KEY_BY, (0,)),
        NodeSpec("c1", OperatorKind.COUNT, (1,)),
        NodeSpec("k2", OperatorKind.KEY_BY, (2,)),
        NodeSpec("c2", OperatorKind.COUNT, (3,)),
        NodeSpec("out", OperatorKind.SINK, (4,)),
    ]
)


def schedule(*, first: int = 1, replay_until: int = 0, owed_ahead: int = 0) -> Schedule:
    return Schedule(PLAN, first, 0, replay_until, 2, owed_ahead)


def following(
    one: Schedule,
    complete: set[tuple[int, int]] | None = None,
    *,
    input_waits: bool = True,
    room: bool = True,
    peers_at: int = 0,
) -> Produce | RunStage | Wait:
    done = complete or set()
    return one.next_action(
        lambda channel, step: (channel, step) in done, input_waits=input_waits, room=room, peers_at=peers_at
    )


def test_sources_run_ahead_by_two_steps_and_then_wait() -> None:
    one = schedule()
    assert following(one) == Produce(1, replay=False)
    one.step_produced()
    assert following(one) == Produce(2, replay=False)
    one.step_produced()
    assert following(one) == Wait("step 1 is not complete")


def test_a_worker_that_takes_over_makes_recorded_steps_and_those_that_peers_have_ended_up_to_a_limit() -> (
    None
):
    one = schedule(replay_until=4, owed_ahead=6)
    for step in range(1, 7):
        assert following(one, peers_at=5 + step // 6) == Produce(step, replay=step <= 4)
        one.step_produced()
    assert following(one, peers_at=9) == Wait("step 1 is not complete")


def test_a_worker_that_takes_over_makes_no_other_step_further_ahead() -> None:
    """For input of its own it waits until it has run the steps before, as any worker does."""
    one = schedule(replay_until=3, owed_ahead=6)
    for _ in range(3):
        one.step_produced()
    assert following(one, peers_at=3) == Wait("step 1 is not complete")


def test_a_worker_that_is_behind_runs_two_steps_for_each_that_it_owes() -> None:
    one = schedule(replay_until=8, owed_ahead=100)
    every = {(channel, step) for channel in (0, 1) for step in range(1, 100)}
    assert isinstance(following(one), Produce)
    for _ in range(8):
        one.step_produced()
    made, ran = [], []
    while one.consumed < one.produced - 1:
        action = following(one, every, peers_at=1_000)
        if isinstance(action, Produce):
            made.append(action.step)
            one.step_produced()
        else:
            assert isinstance(action, RunStage)
            if action.stage == 1:
                one.step_aligned(action.step, Barrier())
            if one.stage_done(*action):
                ran.append(action.step)
                one.forget(action.step)
    assert one.owed_ahead > len(made) > 4, "the peers did not wait for all of it"
    assert len(ran) >= 2 * len(made)


def test_the_highest_stage_that_can_run_runs_first() -> None:
    one = schedule()
    one.step_produced()
    assert following(one, {(0, 1)}) == RunStage(1, 1)
    one.step_aligned(1, Barrier())
    assert not one.stage_done(1, 1)
    one.step_produced()
    assert following(one, {(0, 2), (1, 1)}) == RunStage(2, 1)
    assert one.stage_done(2, 1)
    assert following(one, {(0, 2)}) == RunStage(1, 2)


def test_an_idle_worker_makes_a_step_only_for_a_peer_or_a_checkpoint() -> None:
    one = schedule()
    assert following(one, input_waits=False) == Wait("there is no input")
    assert following(one, input_waits=False, peers_at=1) == Produce(1, replay=False)
    one.request_checkpoint(1, final=False)
    assert following(one, input_waits=False) == Produce(1, replay=False)
    assert one.step_produced() == Barrier(1, final=False)
    assert following(one, input_waits=False) == Wait("there is no input")


def test_sources_stop_while_the_store_has_no_room_but_peers_are_not_held_up() -> None:
    one = schedule()
    assert following(one, room=False) == Wait("the store has no room")
    assert following(one, room=False, peers_at=1) == Produce(1, replay=False)


def test_recorded_steps_are_replayed_even_without_room() -> None:
    one = schedule(first=5, replay_until=5)
    assert following(one, room=False) == Produce(5, replay=True)
    one.step_produced()
    assert following(one) == Produce(6, replay=False)


def test_a_checkpoint_that_a_peer_asked_for_first_is_not_asked_for_again() -> None:
    one = schedule()
    one.step_produced()
    one.request_checkpoint(1, final=False)
    one.step_aligned(1, Barrier(1))
    assert one.checkpoint_at(1) == Barrier(1)
    assert one.step_produced() == Barrier()
    one.request_checkpoint(1, final=False)
    assert one.step_produced() == Barrier(), "a request for a checkpoint that has happened"


def test_after_the_final_checkpoint_nothing_is_produced() -> None:
    one = schedule()
    one.request_checkpoint(3, final=True)
    assert one.step_produced() == Barrier(3, final=True)
    one.step_aligned(1, Barrier(3, final=True))
    one.stage_done(1, 1)
    one.stage_done(2, 1)
    assert one.forget(1) == Barrier(3, final=True)
    assert following(one, peers_at=9) == Wait("the final checkpoint is taken")


# --- where the time of a circuit goes -----------------------------------------------------------------------


def load_share(
    rows_of: Callable[[random.Random], int], fixed_s: float, row_s: float, runs: int = 400
) -> float:
    """The share of the time of these runs that counts as load, after the first ones."""
    rng, cost, busy, load = random.Random(1), FixedCost(), 0.0, 0.0
    for run in range(runs):
        rows = rows_of(rng)
        seconds = (fixed_s + row_s * rows) * rng.uniform(0.8, 1.2) + rng.expovariate(1) * 1e-4
        fixed = cost.of_run(1, rows, seconds)
        if run >= 50:
            busy, load = busy + seconds, load + seconds - fixed
    return load / busy


@pytest.mark.parametrize(
    ("rows_of", "fixed_s", "row_s", "least", "most"),
    [
        pytest.param(lambda rng: rng.randint(0, 10), 3e-3, 1e-5, 0, 0.15, id="tiny steps of a free function"),
        pytest.param(lambda rng: rng.randint(0, 4), 3e-3, 3e-3, 0.5, 0.8, id="tiny steps of a slow one"),
        pytest.param(lambda rng: rng.randint(0, 2), 0, 2e-2, 0.9, 1, id="rows that cost all"),
        pytest.param(lambda _: 1, 0, 3e-3, 1, 1, id="one row in each step"),
        pytest.param(lambda rng: rng.randint(990, 1010), 3e-3, 2.5e-4, 1, 1, id="full steps"),
        pytest.param(
            lambda rng: rng.choice([0, 1000]), 3e-3, 2.5e-4, 0.95, 1, id="full steps and empty ones"
        ),
        pytest.param(lambda _: 0, 3e-3, 0, 1, 1, id="no rows"),
    ],
)
def test_what_counts_as_load(
    rows_of: Callable[[random.Random], int], fixed_s: float, row_s: float, least: float, most: float
) -> None:
    assert least <= load_share(rows_of, fixed_s, row_s) <= most


def test_stages_are_separate_and_a_long_time_is_no_fixed_cost() -> None:
    cost = FixedCost()
    for run in range(100):
        assert cost.of_run(0, run % 5, 1.0) <= fixed_s_max
        assert cost.of_run(1, 7, 2e-3) == 0


def test_a_worker_with_few_cheap_rows_in_many_steps_has_little_load() -> None:
    """1,500 rows/s of a nearly free function were 70 % of four workers for ever."""

    class Costly(Clock):
        """Each step takes 3 ms, and each look at the clock, as for each call of an operator, 0.01 ms."""

        now = 0.0

        def seconds(self) -> float:  # type: ignore[override]
            self.now += 1e-5
            return self.now

        def wall_ms(self) -> int:  # type: ignore[override]
            self.now += 3e-3
            return super().wall_ms()

    class InItsOwnTime(RateSource):
        """Each look at the time is up to 0.5 ms after the one before."""

        def open(self, context: OperatorContext) -> RateReader:
            draw = random.Random(1)
            looks = itertools.accumulate(iter(lambda: draw.randrange(500), None))
            return RateReader(self, context.worker, context.workers, lambda: next(looks))

    graph = Graph("cheap")
    rows = graph.source("rows", InItsOwnTime(20_000, rows=4_000))
    rows.key_by("by_value", "value").count("counts").sink("out", CallSink(list))
    limits = WorkerLimits(step_bytes_max=1 << 12, batch_bytes_max=1 << 12)
    region = OneThreadRegion(graph, 1, random.Random(1).randrange, limits, clock=Costly())
    region.restore()
    region.finish()
    (side,) = region.sides
    assert side.shared.step > 20
    assert 0 <= side.shared.load_s < side.shared.busy_s / 2


def test_the_time_of_an_operator_is_that_of_its_own_calls() -> None:
    class Stopped(Clock):
        now = 0.0

        def seconds(self) -> float:  # type: ignore[override]
            return self.now

    clock = Stopped()

    def takes(seconds: float) -> Callable[[Any], Any]:
        def function(row: Any) -> tuple[int]:
            clock.now += seconds
            return (row["value"],)

        return function

    graph = Graph("timed")
    rows = graph.source("rows", RateSource(20_000, rows=100))
    slow = rows.map("slow", takes(2.0), schema="value bigint")
    quick = slow.map("quick", takes(0.5), schema="value bigint")
    quick.key_by("by_value", "value").count("counts").sink(
        "out", CallSink(lambda _: takes(3.0)({"value": 0}))
    )
    region = OneThreadRegion(graph, 1, random.Random(1).randrange, clock=clock)
    region.restore()
    region.finish()
    (side,) = region.sides
    found = {name: counters["busy_us"] / 1e6 for name, counters in side.shared.operators.items()}
    out = found.pop("out")
    assert found == {"rows": 0, "slow": 200, "quick": 50, "by_value": 0, "counts": 0}
    assert out > 0
    assert sum(found.values()) + out == side.shared.busy_s


# --- output by step waits until the division of its input is durable at every worker ------------------------


def test_a_worker_alone_waits_for_itself() -> None:
    steps = DurableSteps(peers=0)
    assert steps.everywhere == 0
    steps.own(3)
    assert steps.everywhere == 3


def test_a_peer_that_has_said_nothing_holds_everything_up() -> None:
    steps = DurableSteps(peers=2)
    steps.own(9)
    steps.of_peer(0, 9)
    assert steps.everywhere == 0
    steps.floor(4)
    assert steps.everywhere == 4, "what the coordinator found durable when the incarnation began"
    steps.of_peer(2, 6)
    assert steps.everywhere == 6


@given(st.lists(st.tuples(st.sampled_from(["own", "floor", 1, 2]), st.integers(0, 20))))
def test_it_is_the_least_of_all_and_only_rises(events: list[tuple[str | int, int]]) -> None:
    steps = DurableSteps(peers=2)
    said: dict[str | int, int] = {"own": 0, "floor": 0, 1: 0, 2: 0}
    before = 0
    for who, step in events:
        said[who] = max(said[who], step)
        if who == "own":
            steps.own(step)
        elif who == "floor":
            steps.floor(step)
        else:
            assert isinstance(who, int)
            steps.of_peer(who, step)
        assert before <= steps.everywhere == max(said["floor"], min(said["own"], said[1], said[2]))
        before = steps.everywhere

"""Where the time of a circuit goes: to each operator, and to the fixed cost of steps."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from dataflow import CallSink, Graph, RateSource
from dataflow.core.schedule import FixedCost, fixed_s_max
from dataflow.limits import WorkerLimits
from dataflow.worker.spec import Clock
from tests.dataflow.region_in_one_thread import OneThreadRegion


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

    graph = Graph("cheap")
    rows = graph.source("rows", RateSource(20_000, rows=4_000))
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

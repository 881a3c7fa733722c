"""The rule that decides whether a figure grows, and the census of containers."""

import json
import random
from collections import deque
from pathlib import Path

import pytest

from checkpoint.core.records.manifest import Rolling
from checkpoint.core.verbs import RequestHandler
from tests.support.census import census, census_of_process
from tests.support.growth import SAMPLES_MIN, Samples


def samples_of(values: list[float]) -> Samples:
    samples = Samples()
    for time, value in enumerate(values):
        samples.add(time, {"figure": value})
    return samples


def grows(values: list[float]) -> bool:
    return bool(samples_of(values).grown())


def test_what_only_fluctuates_does_not_grow() -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert not grows([rng.expovariate(0.01) for _ in range(80)])
    assert not grows([step % 10 * 100 for step in range(80)]), "a saw tooth"
    assert not grows([0.0] * 20 + [500.0] * 60), "warm-up"


@pytest.mark.parametrize("base", [0.0, 10.0, 100.0])
def test_a_steady_leak_grows_also_below_fluctuations(base: float) -> None:
    rng = random.Random(2)
    assert grows([base + step * 0.5 + rng.uniform(0.0, 5.0) for step in range(80)])


def test_a_figure_that_begins_late_was_zero_before() -> None:
    samples = samples_of([1.0] * 60)
    for time in range(60, 80):
        samples.add(time, {"figure": 1.0, "late": 50.0})
    assert [one.name for one in samples.grown()] == ["late"]
    assert samples.of("late")[:60] == [0.0] * 60


def test_figures_of_a_kind_have_a_limit_of_their_own() -> None:
    samples = Samples({"memory": (2.0, 10.0)}, limit=(1.0, 0.0))
    for time in range(40):
        samples.add(time, {"memory of a": 10.0 + 0.5 * time, "disk": 10.0 + 0.5 * time})
    assert [one.name for one in samples.grown()] == ["disk"]
    assert "| disk | 19.5 | 27.25 | grows |" in samples.table(["disk"])


def test_too_few_samples_are_refused_and_figures_are_written(tmp_path: Path) -> None:
    samples = samples_of([1.0] * (SAMPLES_MIN - 1))
    with pytest.raises(ValueError, match="too few"):
        samples.grown()
    samples.write_json(tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["grown"] == []


class Holder:
    def __init__(self) -> None:
        self.by_name: dict[str, deque[int]] = {"a": deque([1, 2, 3]), "b": deque()}
        self.rolling = [Rolling(), Rolling()]
        self.buffer = bytearray(5)
        self.itself = self


def test_the_census_counts_entries_by_class_and_attribute_and_instances_of_the_product() -> None:
    found = census([Holder()])
    assert found == {
        "Holder.by_name": 2,
        "Holder.by_name[]": 3,
        "Holder.rolling": 2,
        "Rolling instances": 2,
        "Holder.buffer bytes": 5,
    }


def test_the_census_follows_closures_coroutines_and_bound_methods_and_stops_where_it_is_told() -> None:
    held = [1, 2]

    async def waits() -> None:
        assert held

    class Other:
        def __init__(self) -> None:
            self.many = [0] * 100

    coroutine = waits()
    roots = Holder()
    roots.__dict__ = {"call": Holder().by_name.get, "task": coroutine, "stopped": Other()}
    found = census([roots], stop=(Other,))
    coroutine.close()
    assert sum(found.values()) == 2, found


def test_the_census_of_the_process_counts_what_product_instances_hold() -> None:
    before = census_of_process()
    held = RequestHandler("region")
    held._known.update({"one", "two"})
    after = census_of_process()
    assert after["RequestHandler instances"] == before.get("RequestHandler instances", 0) + 1
    assert after["RequestHandler._known"] == before.get("RequestHandler._known", 0) + 2

"""A region whose last checkpoints are damaged on some or all members again and again, while things fail."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from checkpoint.chains import whole_checkpoints
from checkpoint.core.records.manifest import Checkpoint, Examination
from tests.sim.region_runs import Planted, seen_in
from tests.sim.regions.region import Region
from tests.sim.result import Result
from tests.sim.run import run_seed

SEEDS = [1, 15, 56, 68, 127]
"""Regions of which most fall back."""


def run(seed: int) -> Result:
    with mock.patch.multiple(Region, is_spoiled=True):
        return run_seed(seed)


def test_a_region_falls_back_only_if_it_must_and_only_to_what_is_whole() -> None:
    """Each row is in the output once, and every checkpoint that is retained has the state of its input."""
    seen = seen_in(run, SEEDS)
    assert seen["a region fell back"] >= 2


def the_next_older_one_is_taken_without_reading_it() -> Planted:
    async def examine(store: Any, region: str, kept: Sequence[Checkpoint]) -> Examination:
        found = await original(store, region, kept)
        return Examination(found.damaged, kept[-2].number) if found.damaged else found

    original = whole_checkpoints.examine
    return mock.patch.object(whole_checkpoints, "examine", examine)


BUGS = {the_next_older_one_is_taken_without_reading_it: 56}
"""Bug -> a seed that shows it."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_falling_back_is_found(bug: Callable[[], Planted]) -> None:
    assert not run(BUGS[bug]).violation
    with bug():
        found = run(BUGS[bug])
    assert found.violation
    print(found.seed, found.violation)

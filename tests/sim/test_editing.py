"""The state of a region is edited, and it goes back, with other workers, while everything fails."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace as replaced

from checkpoint.core.records.manifest import Checkpoint
from checkpoint.maintenance import editing
from tests.sim.region_runs import SEEDS, Planted, assert_found, seen_in
from tests.sim.regions.region import Region
from tests.sim.result import Result
from tests.sim.run import run_seed

RUNS = 14


def run(seed: int) -> Result:
    with mock.patch.multiple(
        Region,
        edits=True,
        goes_back=seed % 3 == 0,
        scales=seed % 2 == 0,
        makes_savepoints=seed % 3 == 0,
        trims=True,
    ):
        return run_seed(seed)


def test_an_edited_region_has_each_row_once_and_the_edits_of_its_line() -> None:
    seen = seen_in(run, SEEDS[:RUNS])
    assert seen["a state is edited"] > RUNS / 3
    assert seen["a worker stays in another line"] > RUNS / 2


def changed(**fields: Any) -> Callable[[], Planted]:
    """The record of an edit has other fields."""
    original = editing.edited

    def edited(kept: Any, target: Checkpoint, *args: Any, **more: Any) -> Checkpoint:
        record = original(kept, target, *args, **more)
        return replaced(record, **{name: make(record, target) for name, make in fields.items()})

    return lambda: mock.patch.object(editing, "edited", edited)


def it_counts_for_the_checkpoint_that_was_edited() -> Planted:
    """A restore to it is a restore to that checkpoint."""
    return mock.patch.object(
        Checkpoint, "voted_as", property(lambda self: self.rolled_back_to or self.number)
    )


def its_state_is_that_of_the_edited_checkpoint() -> Planted:
    return changed(workers=lambda _, target: target.workers)()


BUGS = [
    it_counts_for_the_checkpoint_that_was_edited,
    its_state_is_that_of_the_edited_checkpoint,
]


RARE = {it_counts_for_the_checkpoint_that_was_edited: [198]}
"""Bugs that few runs show -> seeds that do. `SEEDS` has them all."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_editing_is_found(bug: Callable[[], Planted]) -> None:
    assert_found(run, bug, RARE.get(bug, SEEDS))

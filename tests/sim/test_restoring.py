"""A region goes back to older checkpoints again and again, and its workers change, while everything fails."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace as replaced

from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination import run as region_run
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.run import CoordinatorPhase
from checkpoint.core.coordination.vocabulary import CheckpointAppended
from checkpoint.core.records.manifest import Checkpoint, floors_of
from tests.sim.region_runs import SEEDS, Planted, assert_found, seen_in
from tests.sim.regions.region import Region
from tests.sim.result import Result
from tests.sim.run import run_seed

RUNS = 18


def run(seed: int) -> Result:
    """Every other region changes its workers too: a restore is refused meanwhile."""
    with mock.patch.multiple(Region, goes_back=True, scales=seed % 2 == 0, makes_savepoints=True, trims=True):
        return run_seed(seed)


def test_a_region_that_goes_back_has_each_row_once_and_restores_every_retained_checkpoint() -> None:
    seen = seen_in(run, SEEDS[:RUNS])
    assert seen["a checkpoint is restored"] > RUNS / 3
    assert seen["a worker stays in another line"] > RUNS / 2


def changed(**fields: Any) -> Callable[[], Planted]:
    """The record of a restore has other fields."""
    original = checkpoints.restored

    def restored(kept: Sequence[Checkpoint], target: Checkpoint, *args: Any, **more: Any) -> Checkpoint:
        record = original(kept, target, *args, **more)
        return replaced(record, **{name: make(record, kept, target) for name, make in fields.items()})

    return lambda: mock.patch.object(checkpoints, "restored", restored)


def its_savepoints_are_those_of_then() -> Planted:
    return changed(savepoints=lambda _, __, target: target.savepoints)()


def what_came_after_is_released() -> Planted:
    def retained(record: Checkpoint, kept: Sequence[Checkpoint], target: Checkpoint) -> tuple[int, ...]:
        return (
            *(checkpoint.number for checkpoint in kept if checkpoint.number <= target.number),
            record.number,
        )

    return changed(retained=retained)()


def all_below_the_last_checkpoint_is_deleted() -> Planted:
    """Also what lies between the positions of two retained checkpoints and the floors of the next."""
    stack = contextlib.ExitStack()
    for module in (checkpoints, region_run):
        gaps = mock.patch.object(
            module,
            "gaps_of",
            lambda kept, worker: {
                chain: (((0, 0), floor),) for chain, floor in floors_of(kept[-1:], worker).items()
            },
        )
        stack.enter_context(gaps)
    return stack


def inputs_continue_where_they_are() -> Planted:
    def workers(record: Checkpoint, kept: Sequence[Checkpoint], _: Checkpoint) -> dict[int, Any]:
        now = kept[-1].workers
        return {
            worker: replaced(part, sources=now[worker].sources if worker in now else part.sources)
            for worker, part in record.workers.items()
        }

    return changed(workers=workers)()


def a_checkpoint_is_requested_meanwhile() -> Planted:
    """One append can follow the other, and take the number of the restore."""

    def can_checkpoint(self: Checkpoints) -> bool:
        return self._run.phase is CoordinatorPhase.RUNNING and self.pending is None

    return mock.patch.object(Checkpoints, "can_checkpoint", property(can_checkpoint))


def it_counts_before_the_commit() -> Planted:
    """The workers are reset to the restored checkpoint while its record is on its way."""
    original = Coordinator.handle

    def handle(self: Coordinator, event: Any, now: float) -> Any:
        effects = original(self, event, now)
        if (record := self.checkpoints.appending) is not None and record.rewound:
            effects += original(self, CheckpointAppended(record), now)
        return effects

    return mock.patch.object(Coordinator, "handle", handle)


BUGS = [
    its_savepoints_are_those_of_then,
    what_came_after_is_released,
    all_below_the_last_checkpoint_is_deleted,
    inputs_continue_where_they_are,
    a_checkpoint_is_requested_meanwhile,
    it_counts_before_the_commit,
]


RARE = {its_savepoints_are_those_of_then: [82]}
"""Bugs that few runs show -> seeds that do. `SEEDS` has them all, and takes a minute."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_restoring_is_found(bug: Callable[[], Planted]) -> None:
    assert_found(run, bug, RARE.get(bug, SEEDS))

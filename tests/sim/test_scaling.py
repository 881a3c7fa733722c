"""The number of workers of a region changes again and again, and savepoints come and go, while everything
fails.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace as replaced

from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination import run as region_run
from checkpoint.core.coordination.checkpoints import PendingCheckpoint
from checkpoint.core.coordination.rounds import Gathering
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.layout import TakenPart
from checkpoint.core.records.manifest import Checkpoint, floors_of
from dataflow.state.base import Share
from dataflow.worker import layout_change
from dataflow.worker.circuit import Circuit
from dataflow.worker.layout_change import CopiedState
from tests.sim.region_runs import SEEDS, Planted, assert_found, seen_in
from tests.sim.regions import trimmer
from tests.sim.regions.region import Region
from tests.sim.run import run_seed

RUNS = 20


@pytest.fixture(autouse=True)
def _scales() -> Iterator[None]:
    with mock.patch.multiple(Region, scales=True, makes_savepoints=True, trims=True):
        yield


def test_rows_and_keys_survive_any_change_of_the_number_of_workers() -> None:
    seen = seen_in(run_seed, SEEDS[:RUNS])
    assert seen["a worker joins in another layout"] > RUNS / 4
    assert seen["a worker stays in another layout"] > RUNS / 4
    assert seen["state was copied ahead"] > RUNS / 4
    assert seen["a savepoint is settled"] > RUNS


def a_range_is_lost() -> Planted:
    original = layout_change.state_parts

    def parts(*args: Any, **more: Any) -> dict[int, tuple[TakenPart, ...]]:
        found = original(*args, **more)
        return {
            worker: tuple(
                part if part.worker == worker else part._replace(ranges=part.ranges[:-1]) for part in taken
            )
            for worker, taken in found.items()
        }

    return mock.patch.object(layout_change, "state_parts", parts)


def a_range_is_owned_twice() -> Planted:
    return mock.patch.object(Share, "owns", lambda _, hashes: np.ones(len(hashes), np.bool_))


def a_part_is_not_read_to_its_end() -> Planted:
    original = CopiedState._taken_over

    async def taken_over(self: CopiedState, *args: Any) -> AsyncGenerator[Any]:
        found = [block async for block in original(self, *args)]
        for block in found[:-1]:
            yield block

    return mock.patch.object(CopiedState, "_taken_over", taken_over)


def the_tail_after_the_copy_is_not_read() -> Planted:
    async def nothing(*_: Any) -> AsyncGenerator[Any]:
        for block in ():
            yield block

    return mock.patch.object(layout_change, "blocks_between", nothing)


def sources_begin_anew() -> Planted:
    return mock.patch.object(layout_change, "dealt_sources", return_value={})


def splits_are_dealt_to_the_former_number() -> Planted:
    original = layout_change.dealt_sources

    def dealt(plan: Any, of_workers: Any, share: Share) -> Any:
        return original(plan, of_workers, replace(share, workers=len(of_workers)))

    return mock.patch.object(layout_change, "dealt_sources", dealt)


def workers_start_before_the_commit() -> Planted:
    on_restored, start_all = Gathering.on_restored, Gathering.start_all

    def at_once(self: Gathering, *args: Any) -> Any:
        with mock.patch.object(RegionRun, "layout_changes", new=False):
            return on_restored(self, *args)

    def once(self: Gathering, now: float) -> None:
        if self._run.phase is CoordinatorPhase.RESTORING:
            start_all(self, now)

    return mock.patch.multiple(Gathering, on_restored=at_once, start_all=once)


def nobody_completes_the_output_of_a_worker_that_left() -> Planted:
    return mock.patch.object(Circuit, "complete_output")


def output_of_former_workers_is_forgotten() -> Planted:
    return mock.patch.object(checkpoints, "_retired", return_value={})


def chains_are_released_before_they_are_taken_over() -> Planted:
    def floors(kept: Any, worker: int) -> Any:
        found = floors_of(kept, worker)
        return {**found, "state": (kept[-1].incarnation + 1, 0)} if kept else found

    return mock.patch.object(region_run, "floors_of", floors)


def the_former_layout_is_stored() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any) -> Any:
        return original(self, parent, layout if parent is None else parent.layout, *args)

    return mock.patch.object(PendingCheckpoint, "build", build)


def without_savepoints(kept: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    return [
        checkpoint for checkpoint in kept if checkpoint.number not in kept[-1].savepoints.values()
    ] or kept


def floors_ignore_savepoints() -> Planted:
    def floors(kept: Sequence[Checkpoint], worker: int) -> Any:
        return floors_of(without_savepoints(kept), worker)

    return mock.patch.multiple(checkpoints, floors_of=floors)


def savepoints_are_dropped_by_another_layout() -> Planted:
    original = PendingCheckpoint.build

    def build(self: PendingCheckpoint, parent: Any, layout: Any, *args: Any) -> Any:
        checkpoint = original(self, parent, layout, *args)
        return (
            checkpoint if parent is None or parent.layout == layout else replaced(checkpoint, savepoints={})
        )

    return mock.patch.object(PendingCheckpoint, "build", build)


def input_is_trimmed_that_savepoints_need() -> Planted:
    return mock.patch.object(trimmer, "need_of", lambda kept, *args: need_of(without_savepoints(kept), *args))


BUGS: list[Callable[[], Planted]] = [
    a_range_is_lost,
    a_range_is_owned_twice,
    a_part_is_not_read_to_its_end,
    the_tail_after_the_copy_is_not_read,
    sources_begin_anew,
    splits_are_dealt_to_the_former_number,
    workers_start_before_the_commit,
    nobody_completes_the_output_of_a_worker_that_left,
    output_of_former_workers_is_forgotten,
    chains_are_released_before_they_are_taken_over,
    the_former_layout_is_stored,
    floors_ignore_savepoints,
    savepoints_are_dropped_by_another_layout,
    input_is_trimmed_that_savepoints_need,
]


RARE = {
    a_range_is_owned_twice: [476],
    workers_start_before_the_commit: [83],
    floors_ignore_savepoints: [56],
    savepoints_are_dropped_by_another_layout: [83],
}
"""Bugs that few runs show -> seeds that do. `SEEDS` has them all, and takes a minute."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_of_scaling_is_found(bug: Callable[[], Planted]) -> None:
    assert_found(run_seed, bug, RARE.get(bug, SEEDS))

"""Workers are replaced by other processes, and drivers by others, while everything fails."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.coordinator import ManifestClaim
from checkpoint.core.coordination.vocabulary import ManifestOpened
from checkpoint.core.coordination.workers import Roster, Worker
from tests.sim.region_runs import SEEDS, Planted, seen_in
from tests.sim.regions.region import Region
from tests.sim.run import run_seed

RUNS = 25


@pytest.fixture(autouse=True)
def _replaces() -> Iterator[None]:
    with mock.patch.object(Region, "replaces", new=True):
        yield


def test_rows_survive_any_replacement_of_workers_and_drivers() -> None:
    seen = seen_in(run_seed, SEEDS[:RUNS])
    assert seen["workers are replaced"] > RUNS / 8
    assert seen["a region was handed over"] > RUNS / 8


def the_checkpoint_seen_before_the_claim_is_restored() -> Planted:
    """The other driver has committed further ones by the time it is fenced off."""
    original, seen = ManifestClaim.on_manifest_opened, {}
    may = ManifestClaim.may_begin

    def note(self: ManifestClaim, checkpoint: Any, now: float) -> bool:
        seen[id(self)] = checkpoint
        return may(self, checkpoint, now)

    def opened(self: ManifestClaim, event: ManifestOpened, now: float) -> None:
        first = seen.pop(id(self), None)
        original(self, event if first is None else replace(event, last_checkpoint=first), now)

    return mock.patch.multiple(ManifestClaim, may_begin=note, on_manifest_opened=opened)


def the_pause_of_a_switch_is_not_lifted() -> Planted:
    original = Checkpoints.order_pause

    def order(self: Checkpoints, *, on: bool) -> None:
        if on:
            original(self, on=on)

    return mock.patch.object(Checkpoints, "order_pause", order)


def a_successor_gets_the_number_of_an_attempt_that_runs() -> Planted:
    """A launcher and a coordinator know attempts by their numbers."""
    original = Roster.launch

    def launch(self: Roster, worker: Worker, *args: Any) -> int:
        with mock.patch.dict(self._attempts, {worker.index: worker.attempt}):
            return original(self, worker, *args)

    return mock.patch.object(Roster, "launch", launch)


BUGS = [
    the_checkpoint_seen_before_the_claim_is_restored,
    the_pause_of_a_switch_is_not_lifted,
    a_successor_gets_the_number_of_an_attempt_that_runs,
]


RARE = {the_checkpoint_seen_before_the_claim_is_restored: [239], the_pause_of_a_switch_is_not_lifted: [82]}
"""Bugs that few runs find -> the seeds of such runs, which are among `SEEDS[:RUNS]`."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: Callable[[], Planted]) -> None:
    with bug():
        assert any(run_seed(seed).violation for seed in RARE.get(bug, SEEDS[:RUNS])), (
            "found in none of the runs"
        )

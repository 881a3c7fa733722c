"""A region is forked, and both go on and back, with other workers and trimmed input, while all fails."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace as replaced

from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.coordination import checkpoints
from checkpoint.core.coordination.checkpoints import Checkpoints
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.lines import forked, needs_original
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin
from checkpoint.core.region import SavepointSettled
from dataflow.worker.journals import Journals
from tests.sim.region_runs import SEEDS, Planted, assert_found, seen_in
from tests.sim.regions import forking, trimmer
from tests.sim.regions.region import Region
from tests.sim.result import Result
from tests.sim.run import run_seed

RUNS = 14


def run(seed: int) -> Result:
    with mock.patch.multiple(
        Region,
        forks=True,
        goes_back=seed % 3 == 0,
        scales=seed % 2 == 0,
        makes_savepoints=seed % 3 == 0,
        trims=True,
    ):
        return run_seed(seed)


def test_a_fork_continues_from_its_checkpoint_and_the_original_is_not_affected() -> None:
    seen = seen_in(run, SEEDS[:RUNS])
    assert seen["a region is forked"] > RUNS / 3
    assert seen["the savepoint of a fork is dropped"] > RUNS / 6


def the_first_checkpoint_has_only_changes() -> Planted:
    return mock.patch.object(Journals, "_is_whole", return_value=False)


def the_savepoint_is_dropped_as_soon_as_the_fork_exists() -> Planted:
    async def needs(store: Any, region: str, savepoint: str, note: Any) -> bool | None:
        kept = await retained_checkpoints(store, note.fork)
        return False if needs_original(kept, region, savepoint) is not None else None

    return mock.patch.object(forking, "fork_needs", needs)


def the_savepoint_is_made_after_the_fork() -> Planted:
    """What only the forked checkpoint needs is released meanwhile."""
    original = Checkpoints.on_savepoint_wanted

    def wanted(self: Checkpoints, event: SavepointWanted, now: float) -> None:
        if event.note.fork:
            self._run.report(SavepointSettled(event.name, event.checkpoint))
        else:
            original(self, event, now)

    return mock.patch.object(Checkpoints, "on_savepoint_wanted", wanted)


def changed(**fields: Callable[[Checkpoint, Checkpoint], Any]) -> Callable[[], Planted]:
    """The first record of a fork has other fields."""

    def other(source: Checkpoint, origin: ForkOrigin, incarnation: int) -> Checkpoint:
        record = forked(source, origin, incarnation)
        return replaced(record, **{name: make(record, source) for name, make in fields.items()})

    return lambda: mock.patch.object(forking, "forked", other)


def its_output_continues_that_of_the_original() -> Planted:
    return changed(workers=lambda _, source: source.workers)()


def it_starts_without_a_checkpoint_of_its_own() -> Planted:
    return mock.patch.object(Checkpoint, "begins", lambda self, layout: self.rewound or self.layout != layout)


def a_restore_to_its_first_checkpoint_reads_its_own_journals() -> Planted:
    original = checkpoints.restored

    def restored(*args: Any, **more: Any) -> Checkpoint:
        return replaced(original(*args, **more), in_origin=False)

    return mock.patch.object(checkpoints, "restored", restored)


def its_input_is_trimmed_as_if_it_did_not_exist() -> Planted:
    async def retained(store: Any, region: str) -> Any:
        return () if region == forking.FORK else await retained_checkpoints(store, region)

    return mock.patch.object(trimmer, "retained_checkpoints", retained)


def its_input_begins_anew() -> Planted:
    return changed(
        workers=lambda record, _: {
            worker: replaced(part, sources={}) for worker, part in record.workers.items()
        }
    )()


BUGS = [
    the_first_checkpoint_has_only_changes,
    the_savepoint_is_dropped_as_soon_as_the_fork_exists,
    the_savepoint_is_made_after_the_fork,
    its_output_continues_that_of_the_original,
    it_starts_without_a_checkpoint_of_its_own,
    a_restore_to_its_first_checkpoint_reads_its_own_journals,
    its_input_is_trimmed_as_if_it_did_not_exist,
    its_input_begins_anew,
]


RARE = {
    the_first_checkpoint_has_only_changes: [243],
    the_savepoint_is_dropped_as_soon_as_the_fork_exists: [239],
    its_output_continues_that_of_the_original: [82],
    it_starts_without_a_checkpoint_of_its_own: [243],
    a_restore_to_its_first_checkpoint_reads_its_own_journals: [381],
    its_input_is_trimmed_as_if_it_did_not_exist: [312],
}
"""Bugs that few runs show -> seeds that do. `SEEDS` has them all, and takes minutes."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_forking_is_found(bug: Callable[[], Planted]) -> None:
    assert_found(run, bug, RARE.get(bug, SEEDS))

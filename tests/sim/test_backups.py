"""A region is backed up by processes that are killed, while it goes back, changes and is trimmed."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace as replaced

from checkpoint.core.records import backups as rules
from checkpoint.core.records.backups import BackupRecord
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.maintenance import backup
from journal import ChainState
from tests.sim.region_runs import SEEDS, Planted, assert_found, seen_in
from tests.sim.regions.region import Region
from tests.sim.result import Result
from tests.sim.run import run_seed

MANY = [24, 52, 56, 82]
"""Seeds whose regions commit early, so that there are many backups. `SEEDS` has all, and takes minutes."""


def run(seed: int) -> Result:
    with mock.patch.multiple(
        Region,
        backs_up=True,
        finishing_pace=0.4,
        forks=seed % 3 == 0,
        goes_back=seed % 3 == 1,
        edits=seed % 3 == 2,
        scales=seed % 2 == 0,
        makes_savepoints=seed % 2 == 1,
        trims=True,
    ):
        return run_seed(seed)


def test_every_retained_backup_restores_its_checkpoint_in_an_empty_store() -> None:
    seen = seen_in(run, MANY)
    assert seen["a backup is made"] > 12
    assert seen["a process that makes backups is killed"] > 12
    assert seen["a backup is restored"] == 8


def only_sealed_segments_are_copied() -> Planted:
    original = backup.inspect_chain_at

    async def sealed(*args: Any, **more: Any) -> ChainState:
        state = await original(*args, **more)
        return replaced(state, segments=state.segments[:-1])

    return mock.patch.object(backup, "inspect_chain_at", sealed)


def the_pieces_of_older_backups_are_deleted() -> Planted:
    original = rules.unneeded_pieces

    def unneeded(listed: Any, record: BackupRecord, retained: Any) -> list[str]:
        del retained
        return original(listed, replaced(record, retained=(record.number,)), [record])

    return mock.patch.object(backup, "unneeded_pieces", unneeded)


def only_the_newest_segment_is_copied() -> Planted:
    """The floor of a chain is where its newest segment begins, whatever a replay needs."""
    original = backup.needed_chains

    def needed(checkpoint: Checkpoint, region: str) -> list[rules.NeededChain]:
        return [one._replace(floor=one.at.size) for one in original(checkpoint, region)]

    return mock.patch.object(backup, "needed_chains", needed)


BUGS = {
    only_sealed_segments_are_copied: [1],
    only_the_newest_segment_is_copied: SEEDS[:6],
    the_pieces_of_older_backups_are_deleted: MANY,
}
"""Planted bug -> seeds of which one shows it."""


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_of_backups_is_found(bug: Callable[[], Planted]) -> None:
    assert_found(run, bug, BUGS[bug])

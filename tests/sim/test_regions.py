"""Regions in the simulator: no fault of a run costs a row, a checkpoint or the region."""

from types import SimpleNamespace
from typing import cast

import pytest

from checkpoint.core.region import coordinator_directory
from dos_server.core.vocabulary import RemoveObject
from tests.sim import hunt
from tests.sim.bugs import BUGS
from tests.sim.campaign import digest_elsewhere
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.history import ViolationError
from tests.sim.nemesis import plan_of
from tests.sim.nemesis.region_plays import REGION_PLAYS
from tests.sim.nemesis.regions import REGION_KINDS
from tests.sim.regions.record import Record
from tests.sim.regions.region import Region, has_region
from tests.sim.run import run_seed
from tests.sim.store.alone import machine

FOUND_SOON = {
    "a_vote_may_be_missing": 2,
    "partial_manifest": 2,
    "state_is_not_waited_for": 2,
    "divisions_are_not_waited_for": 20,
    "outputs_are_not_synced": 2,
    "outputs_are_not_cut_back": 6,
    "manifest_start_is_not_waited_for": 1,
    "longest_state_is_restored": 12,
    "votes_of_any_incarnation": 40,
    "old_markers_count": 12,
    "barrier_overtakes_data": 4,
    "channel_state_is_dropped": 2,
    "sources_are_ahead_of_the_checkpoint": 6,
    "deletes_when_it_votes": 4,
    "only_the_last_checkpoint_has_floors": 4,
    "a_missing_segment_is_empty": 4,
}
"""Planted bugs that few runs with a region find, with the maximum number of runs."""
SEEDS = [seed for seed in range(1, 400) if has_region(RandomStreams(seed))]


def test_without_faults_a_region_runs_through_and_is_restored_at_its_end() -> None:
    result = run_seed(SEEDS[0], faults=[])
    assert not result.violation
    assert result.history.sometimes["end: FINISHED"] == 2
    assert result.history.sometimes["event: ManifestOpened"] == 2, (
        "one incarnation, and one for the final restore"
    )
    assert result.history.sometimes["event: CheckpointAppended"] > 5


def test_data_of_released_checkpoints_is_deleted_from_the_servers() -> None:
    """Most of the runs delete, and no oracle misses anything: see `test_nothing_is_lost_with_group_logs`."""
    # EVIDENCE-OF: P-9
    result = run_seed(SEEDS[1])
    assert not result.violation
    assert result.history.sometimes["collected"] > 10


def test_a_start_that_is_acknowledged_late_may_have_been_removed_by_a_newer_driver() -> None:
    one = machine()
    region = SimpleNamespace(spec=SimpleNamespace(name="region"), machines=[one], quorum=1)
    record = Record(cast("Region", region))
    segment = (coordinator_directory("region"), "manifest.0000000000000002.0000000000000000")
    one.note_effect(RemoveObject(1, 1, *segment, 0, damaged=False))
    with pytest.raises(ViolationError, match="0 members have its start"):
        record.started(2, None)
    one.reported[segment] = 175
    one.note_effect(RemoveObject(1, 1, *segment, 0, damaged=False))
    record.started(2, None)


@pytest.mark.long
def test_a_run_with_a_region_is_the_same_in_another_process() -> None:
    seed = SEEDS[1]
    assert digest_elsewhere(seed, "1") == digest_elsewhere(seed, "2") == run_seed(seed).digest


def test_every_kind_of_fault_of_a_region_is_planned_sometimes() -> None:
    kinds = {fault.kind for seed in SEEDS for fault in plan_of(seed)}
    assert kinds >= {*REGION_KINDS, *REGION_PLAYS}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOUND_SOON))
def test_a_planted_bug_of_a_region_is_found(name: str) -> None:
    seeds, what = hunt.seeds_to_find(name, FOUND_SOON[name])
    assert seeds, f"{name} ({BUGS[name].breaks}) was not found in {FOUND_SOON[name]} runs: {what}"

"""Hundreds of disks that a power cut may leave, from runs of a real server: record once, crash anywhere.

Whatever a client had been told by the moment of the crash must be there, and nothing that was not written.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.power.crash_states import (
    Recorded,
    cuts,
    cuts_in_the_start,
    plain_folder,
    record,
    shown_by,
    syncing_nothing,
)

pytestmark = pytest.mark.process


def violations(run: Recorded, states: int, seed: int, *, again: bool = False) -> Counter[str]:
    """Of so many crashes of the run, what was not as promised; `again`: power goes in the start after it."""
    rng = random.Random(seed)
    wrong: Counter[str] = Counter()
    with plain_folder() as folder:
        crashes = cuts_in_the_start if again else cuts
        for crash in crashes(run.operations, run.moments(rng, states), rng):
            for one in run.history.violations(shown_by(crash.image, folder), run.before(crash.count)):
                wrong[f"after operation {crash.count}: {one}"] += 1
    return wrong


def test_after_a_power_cut_at_any_moment_all_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    run = record(tmp_path / "disk", 1)
    assert run.history.acknowledged_bytes > 300_000
    assert not violations(run, 300, 1)


def test_after_a_power_cut_in_the_start_after_a_kill_or_a_power_cut_it_is_too(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    run = record(tmp_path / "disk", 2)
    assert not violations(run, 200, 2, again=True)


@pytest.mark.parametrize(("files", "folders"), [(True, False), (False, True), (True, True)])
def test_the_same_states_of_a_disk_that_lies_show_what_is_lost(
    tmp_path: Path, *, files: bool, folders: bool
) -> None:
    """The mutant: were nothing synced, this would be seen."""
    run = record(tmp_path / "disk", 3, steps=30)
    assert not violations(run, 20, 3)
    run.operations = syncing_nothing(run.operations, files=files, folders=folders)
    assert violations(run, 20, 3)

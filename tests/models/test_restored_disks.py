"""A disk restored from an older copy: which rule finds it, and what none can find (docs/decisions/0205)."""

import pytest

from tests.models.explore import explore
from tests.models.restored_disks import RestoredDisk, RestoredRules, RestoredSetup

# EVIDENCE-OF: P-5

STATES_MAX = 200_000


def test_starts_that_both_others_record_show_every_copy_of_a_stopped_member() -> None:
    explored = explore(RestoredDisk(RestoredSetup(), RestoredRules()), STATES_MAX)
    assert explored.loss == "", "\n".join(explored.story)
    assert explored.complete


@pytest.mark.parametrize("switch", RestoredRules._fields)
def test_without_any_one_of_these_a_restored_disk_loses_what_was_acknowledged(switch: str) -> None:
    rules = RestoredRules()._replace(**{switch: False})
    explored = explore(RestoredDisk(RestoredSetup(), rules), STATES_MAX)
    assert "acknowledged records, and go on" in explored.loss
    assert "A's disk is replaced by the copy, and A starts" in explored.story


def test_no_rule_about_starts_shows_a_copy_that_was_taken_of_a_running_member() -> None:
    setup = RestoredSetup(copy_of_a_running_member=True)
    explored = explore(RestoredDisk(setup, RestoredRules()), STATES_MAX)
    assert "acknowledged records, and go on" in explored.loss

"""The models: with all rules every state is safe, and without any one of them there is a loss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.configurations import CONFIGURATIONS, EXPLORED, LONG, LOSSES, switches, without
from tests.models.explore import explore
from tests.models.test_decisions import told_losses, told_states
from tests.support.parts import with_long

ROOT = Path(__file__).parent.parent.parent
STATES_MAX = 2_000_000
"""Far above what any of these needs: a world that grew beyond it is not for CI."""

# EVIDENCE-OF: P-1, P-4, P-5, P-6


@pytest.mark.parametrize("name", with_long(EXPLORED, LONG))
def test_with_all_rules_every_state_of_a_world_is_safe(name: str) -> None:
    configuration = CONFIGURATIONS[name]
    explored = explore(configuration.make(configuration.rules), STATES_MAX)
    assert explored.loss == "", "\n".join(explored.story)
    assert explored.complete
    assert explored.states == told_states()[name], "bring the decision up to date"


@pytest.mark.parametrize("switch", LOSSES)
def test_without_any_one_rule_there_is_a_loss_and_a_story_of_it(switch: str) -> None:
    explored = explore(without(CONFIGURATIONS[LOSSES[switch]], switch), STATES_MAX)
    assert explored.loss, f"{explored.states} states and no loss"
    assert len(explored.story) == explored.depth
    assert (LOSSES[switch], explored.states, explored.depth) == told_losses()[switch], "as above"


def test_every_rule_of_every_model_can_be_switched_off() -> None:
    fields = {field for one in CONFIGURATIONS.values() for field in one.rules._fields}
    assert fields == set(LOSSES)
    needed = {f"R{number}" for number in (*range(1, 10), 12, 14, 15)}
    assert not [rule for rule in needed if not switches(rule)]


def test_by_hand_one_rule_is_switched_off_and_the_story_told() -> None:
    command = [sys.executable, "-m", "tests.models", "--without", "R8", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)
    assert row["without"] == "r8_silent_until_the_start"
    assert row["verdict"] == "loss"
    assert row["story"][-1].startswith("C copies record"), "figure 8: a copy on a quorum is not yet history"

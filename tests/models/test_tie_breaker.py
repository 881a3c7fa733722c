"""A store of two whose first spare decides: safe with all rules, not without each one (decision 0223)."""

import pytest

from tests.models.explore import explore
from tests.models.tie_breaker import TieBreaker, TieRules, TieSetup

# EVIDENCE-OF: P-4, P-5

STATES_MAX = 200_000
SMALLER = {"two_decide", "older_generations_are_refused", "decided_first", "one_spare_decides"}
"""Switches whose loss is found with two changes of the record; the others need a third one."""


def test_with_all_rules_one_member_and_the_first_spare_lose_nothing() -> None:
    explored = explore(TieBreaker(TieSetup(), TieRules()), STATES_MAX)
    assert explored.loss == "", "\n".join(explored.story)
    assert explored.complete
    assert explored.states > 20_000


@pytest.mark.parametrize("switch", TieRules._fields)
def test_without_any_one_rule_acknowledged_records_are_lost(switch: str) -> None:
    setup = TieSetup(generations=2 if switch in SMALLER else 3)
    explored = explore(TieBreaker(setup, TieRules()._replace(**{switch: False})), STATES_MAX)
    assert "acknowledged records, and go on" in explored.loss

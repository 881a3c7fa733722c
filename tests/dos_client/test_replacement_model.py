"""The model of replacement: safe with all rules, and each rule is needed. The whole of it runs by hand, see
the decision."""

import pytest

from tests.dos_client.replacement_model import (
    START,
    TAKEN_OVER,
    Rules,
    State,
    explore,
    filled,
    filled_early,
    joining,
)


def test_after_a_take_over_every_order_of_steps_is_safe() -> None:
    # EVIDENCE-OF: P-4, P-5
    result = explore(Rules(), 100_000, joining(TAKEN_OVER))
    assert result.loss == "", result.story
    assert result.complete


@pytest.mark.parametrize("start", [START, TAKEN_OVER], ids=["beginning", "taken over"])
def test_from_further_back_the_first_states_are_safe(start: State) -> None:
    # EVIDENCE-OF: P-5
    result = explore(Rules(), 8_000, start)
    assert result.loss == "", result.story
    assert result.states == 8_000


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        ("both_sets", filled(START)),
        ("fence_first", filled_early(START)),
        ("carry_claims", joining(TAKEN_OVER)),
        ("fill_first", TAKEN_OVER),
        ("look_at_f", TAKEN_OVER),
        ("refuse_stale", filled(START)),
        ("tell_again", joining(TAKEN_OVER)),
    ],
)
def test_without_any_one_rule_the_model_finds_the_loss(rule: str, start: State) -> None:
    result = explore(Rules()._replace(**{rule: False}), 150_000, start)
    assert result.loss, f"{result.states} states and no loss"
    assert result.story

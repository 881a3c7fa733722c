"""When a standby takes over, and which requests it sends on."""

from typing import Final

import pytest

from dos_gateway.core.roles import NO_REACH, CopyReach, TreeWatch, acknowledged_at_most
from dos_gateway.limits import claim_patience_s, silent_s

FIRST, SECOND, THIRD = CopyReach(1, 0, 100), CopyReach(1, 0, 200), CopyReach(2, 200, 50)
BEGINS: Final = 0.0


def watch(reached: CopyReach | None = FIRST, epoch: int = 1) -> TreeWatch:
    one = TreeWatch()
    one.begin()
    one.observe(reached, epoch, BEGINS)
    return one


def test_a_tree_that_nobody_has_claimed_is_taken_at_once() -> None:
    assert watch(NO_REACH, 0).is_silent(BEGINS)
    assert not watch(NO_REACH, 1).is_silent(BEGINS)


@pytest.mark.parametrize("reached", [SECOND, None])
def test_growth_and_missing_answers_are_no_silence(reached: CopyReach | None) -> None:
    one = watch()
    one.observe(FIRST, 1, BEGINS + silent_s)
    assert not one.is_silent(BEGINS + silent_s)
    assert one.is_silent(BEGINS + silent_s + 0.1)
    one.observe(reached, 1, BEGINS + silent_s)
    assert not one.is_silent(BEGINS + 2 * silent_s)
    assert one.is_silent(BEGINS + 2 * silent_s + 0.1)


def test_what_came_before_the_first_look_is_sent_on() -> None:
    """Another gateway may have served since: a DELETE could remove what was committed meanwhile."""
    assert watch().grew_at == BEGINS
    assert watch(NO_REACH).grew_at < BEGINS  # nothing was ever committed
    one = watch(None)
    assert one.grew_at < BEGINS
    one.observe(FIRST, 1, BEGINS + 1)
    assert one.grew_at == BEGINS + 1
    one.begin()
    one.observe(FIRST, 1, BEGINS + 2)
    assert one.grew_at == BEGINS + 2


def test_a_claim_is_given_time_until_it_writes() -> None:
    one = watch()
    one.observe(FIRST, 2, BEGINS)
    assert not one.is_silent(BEGINS + claim_patience_s + 2 * silent_s - 0.1)
    assert one.is_silent(BEGINS + claim_patience_s + 2 * silent_s + 0.1)
    one.observe(THIRD, 2, BEGINS + 1)
    assert one.is_silent(BEGINS + 1 + 2 * silent_s + 0.1)


def test_two_gateways_that_take_the_tree_from_each_other_wait_ever_longer() -> None:
    one, now, waits = watch(), BEGINS, []
    for number in range(3):
        own = 2 + 2 * number
        one.begin(own)  # it serves, and then the other one claims
        one.observe(CopyReach(own + 1, 0, 10), own + 1, now)
        one.observe(CopyReach(own + 1, 0, 20), own + 1, now)
        waits.append(next(tenth for tenth in range(1000) if one.is_silent(now + tenth / 10)))
        now += 1
    assert waits[0] < waits[1] < waits[2]


@pytest.mark.parametrize(
    ("sizes", "reach"),
    [([300, 200, 100], 200), ([300, 100, 100], 100), ([300, 100], 300), ([300], None), ([], None)],
)
def test_the_chain_has_grown_only_if_a_quorum_may_hold_it(sizes: list[int], reach: int | None) -> None:
    found = acknowledged_at_most([CopyReach(1, 0, size) for size in sizes], 3, 2)
    assert found == (None if reach is None else CopyReach(1, 0, reach))

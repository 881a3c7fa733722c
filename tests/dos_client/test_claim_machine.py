"""The claim's state machine, and what FENCED means to the one who gets it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.claim import (
    CLAIM_TABLE,
    ClaimEvent,
    ClaimMachine,
    ClaimState,
    FenceReason,
    climb,
    diagram,
    is_unrecoverable,
    judge_fenced,
)
from dos_client.core.quorum import Quorums
from dos_client.limits import backoff_first_s, backoff_max_s
from dos_client.randomness import backoff_s
from dos_protocol.limits import epoch_jump_max
from tests.dos_client.records import record, server_id

A, B, C, J = (server_id(letter) for letter in "abcj")
G1 = Quorums(record("abc", 2))
G2 = Quorums(record("abc", 2, 2, joining="j", after="c"))


def claimed(*members: bytes) -> ClaimMachine:
    machine = ClaimMachine(G1)
    for one in members:
        machine.claimed(one)
    return machine


def test_a_claim_is_granted_by_f_members() -> None:
    machine = claimed(A)
    assert machine.state is ClaimState.CLAIMING
    machine.claimed(B)
    assert machine.state is ClaimState.HELD


def test_a_member_with_damaged_objects_does_not_count_towards_the_grant() -> None:
    # EVIDENCE-OF: P-5
    machine = claimed(A)
    machine.claimed(B, trusted=False)
    assert machine.state is ClaimState.CLAIMING
    machine.claimed(C)
    assert machine.state is ClaimState.HELD


def test_without_a_quorum_it_waits_and_continues_automatically() -> None:
    # EVIDENCE-OF: P-10
    machine = claimed(A, B)
    machine.left(A)
    assert machine.state is ClaimState.WAITING
    machine.claimed(C)
    assert machine.state is ClaimState.HELD


def test_one_member_with_a_higher_epoch_ends_it_for_good() -> None:
    # EVIDENCE-OF: P-4
    machine = claimed(A, B)
    assert machine.fenced(C)
    machine.claimed(C)
    assert machine.state is ClaimState.LOST
    assert not machine.fenced(A)


def test_another_record_makes_all_sessions_anew() -> None:
    machine = claimed(A, C)
    machine.record_changed(G2)
    assert machine.state is ClaimState.WAITING
    machine.claimed(A)
    machine.claimed(C)
    assert machine.state is ClaimState.WAITING, "a and c are a quorum of the old set, not of the new one"
    machine.claimed(J)
    assert machine.state is ClaimState.HELD


def test_every_state_can_be_closed_and_nothing_follows() -> None:
    for state, row in CLAIM_TABLE.items():
        if state is not ClaimState.CLOSED:
            assert row[ClaimEvent.ENDED] is ClaimState.CLOSED
    assert CLAIM_TABLE[ClaimState.CLOSED] == {}
    assert "LOST --> CLOSED" in diagram()


members = st.sampled_from([A, B, C, J])
events = st.one_of(
    st.builds(lambda one, trusted: ("claimed", one, trusted), members, st.booleans()),
    st.builds(lambda one: ("left", one), members),
    st.builds(lambda one: ("fenced", one), members),
    st.builds(lambda quorums: ("record_changed", quorums), st.sampled_from([G1, G2])),
    st.just(("close",)),
)


@given(st.lists(events, max_size=30))
def test_in_any_order_of_events_held_means_a_quorum_is_live_and_lost_stays_lost(
    sequence: list[tuple[Any, ...]],
) -> None:
    machine = ClaimMachine(G1)
    lost = closed = False
    for name, *arguments in sequence:
        if name == "claimed":
            machine.claimed(arguments[0], trusted=arguments[1])
        else:
            getattr(machine, name)(*arguments)
        lost = lost or (name == "fenced" and not closed)
        closed = closed or name == "close"
        if closed:
            assert machine.state is ClaimState.CLOSED
        elif lost:
            assert machine.state is ClaimState.LOST
        elif machine.state is ClaimState.HELD:
            assert machine.quorums.can_acknowledge(machine.live)
        elif machine.state is ClaimState.WAITING:
            assert not machine.quorums.can_acknowledge(machine.live)


@pytest.mark.parametrize(
    ("held", "at_claim", "meaning"),
    [
        (6, True, FenceReason.LOST),
        (6, False, FenceReason.LOST),
        (5, True, FenceReason.READ_HOLDER),
        (5, False, FenceReason.RECLAIM),
        (4, True, FenceReason.CLIMB),
        (4, False, FenceReason.RECLAIM),
    ],
)
def test_what_fenced_means_to_epoch_5(held: int, at_claim: bool, meaning: FenceReason) -> None:
    assert judge_fenced(5, held, at_claim=at_claim) is meaning


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 24))
def test_climbing_makes_no_jump_that_is_refused(held: int, above: int) -> None:
    steps = list(climb(held, held + above))
    assert steps[-1] == held + above
    assert all(
        0 < after - before <= epoch_jump_max for before, after in zip([held, *steps], steps, strict=False)
    )


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_waiting_before_the_next_attempt_grows_and_is_bounded(attempt: int, rng: float) -> None:
    seconds = backoff_s(attempt, rng)
    assert backoff_first_s / 2 <= seconds <= backoff_max_s
    assert backoff_s(attempt + 1, rng) >= seconds


def test_a_damaged_copy_beside_a_member_that_is_unavailable_does_not_say_that_bytes_are_lost() -> None:
    """R4: one member lacks them, one is damaged; the third, which is away, may hold them with the damaged
    one."""
    first, second, third = (server_id(letter) for letter in "abc")
    quorums = Quorums(record("abc", 2))
    assert not is_unrecoverable(quorums, {first}, {second})
    assert is_unrecoverable(quorums, {first, third}, {second})
    assert is_unrecoverable(quorums, {first, second}, set())
    assert is_unrecoverable(quorums, set(), {first, second, third}), "all have answered, and none can give it"

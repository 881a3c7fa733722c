"""How a member's copy compares with what its writer knows, and what follows from it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.replica import (
    AGREED,
    REPLICA_TABLE,
    CopyRelation,
    LocalKnown,
    ObjectGoal,
    ObjectView,
    Replica,
    ReplicaAgreed,
    ReplicaDiffered,
    ReplicaEffect,
    ReplicaEntered,
    ReplicaEvent,
    ReplicaFellBehind,
    ReplicaLeft,
    ReplicaReached,
    ReplicaState,
    compare,
    diagram,
    step,
    worst_state_text,
)
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import LocalProtocolError, RemoteProtocolError
from dos_protocol.messages import ObjectInfo

CONTENT = bytes(range(100))
OPEN, SEALED = ObjectGoal(100, sealed=False), ObjectGoal(100, sealed=True)


def known(size: int) -> int | None:
    return prefix_digest(CONTENT[:size]) if 40 <= size <= 100 else None


VIEW = ObjectView(OPEN, 40, known)


def copy(size: int, content: bytes = CONTENT, **marks: bool) -> ObjectInfo:
    return ObjectInfo("x", size, size, prefix_digest(content[:size]), **marks)


@pytest.mark.parametrize(
    ("info", "goal", "expected"),
    [
        (ObjectInfo("x"), OPEN, CopyRelation.AGREES),
        (copy(100), OPEN, CopyRelation.AGREES),
        (copy(60), OPEN, CopyRelation.AGREES),
        (copy(30), OPEN, CopyRelation.QUERY_OTHERS),
        (copy(60, bytes(100)), OPEN, CopyRelation.DIFFERS),
        (copy(101, CONTENT + b"x"), OPEN, CopyRelation.DIFFERS),
        (copy(101, CONTENT + b"x"), SEALED, CopyRelation.QUERY_MEMBER),
        (copy(60, poisoned=True), OPEN, CopyRelation.DIFFERS),
        (copy(60, corrupt=True), OPEN, CopyRelation.DIFFERS),
        (copy(60, corrupt=True), SEALED, CopyRelation.DIFFERS),
        (copy(100, corrupt=True), SEALED, CopyRelation.AGREES),
    ],
)
def test_comparing_by_size_and_digest(info: ObjectInfo, goal: ObjectGoal, expected: CopyRelation) -> None:
    assert compare(info, goal, known) is expected


@given(st.binary(max_size=200))
def test_a_copy_agrees_only_if_it_is_a_prefix(content: bytes) -> None:
    # EVIDENCE-OF: P-3
    info = ObjectInfo("x", len(content), len(content), prefix_digest(content))
    if compare(info, OPEN, lambda size: prefix_digest(CONTENT[:size])) is CopyRelation.AGREES:
        assert CONTENT.startswith(content)


PATHS: dict[ReplicaState, list[ReplicaEvent]] = {
    ReplicaState.DISCOVER_LOCAL_SIZE: [],
    ReplicaState.ENTER: [ReplicaEvent.LOCAL_KNOWN],
    ReplicaState.DISCOVER_REMOTE_SIZE: [ReplicaEvent.LOCAL_KNOWN, ReplicaEvent.ENTERED],
    ReplicaState.CATCH_UP: [ReplicaEvent.LOCAL_KNOWN, ReplicaEvent.ENTERED, ReplicaEvent.BEHIND],
    ReplicaState.IN_SYNC: [ReplicaEvent.LOCAL_KNOWN, ReplicaEvent.ENTERED, ReplicaEvent.NEAR],
    ReplicaState.BROKEN: [ReplicaEvent.LOCAL_KNOWN, ReplicaEvent.ENTERED, ReplicaEvent.DIFFERS],
}
"""How each state is reached from the beginning."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(ReplicaState, ReplicaEvent)))
def test_every_event_in_every_state_is_allowed_or_a_named_error(
    state: ReplicaState, event: ReplicaEvent
) -> None:
    here = ReplicaState.DISCOVER_LOCAL_SIZE
    for before in PATHS[state]:
        here = step(here, before)
    assert here is state
    if event in REPLICA_TABLE[state]:
        assert step(state, event) in ReplicaState
    else:
        with pytest.raises(LocalProtocolError, match=f"^{event.name} is not valid .* {state.name}$"):
            step(state, event)


def test_a_broken_copy_counts_again_only_in_another_session() -> None:
    assert REPLICA_TABLE[ReplicaState.BROKEN] == {ReplicaEvent.LEFT: ReplicaState.DISCOVER_LOCAL_SIZE}


def test_every_attempt_at_a_session_can_fail_and_the_next_begins_with_what_is_here() -> None:
    for state, row in REPLICA_TABLE.items():
        assert (ReplicaEvent.LEFT in row) == (state is not ReplicaState.DISCOVER_LOCAL_SIZE)
    assert REPLICA_TABLE[ReplicaState.DISCOVER_LOCAL_SIZE] == {ReplicaEvent.LOCAL_KNOWN: ReplicaState.ENTER}
    assert "DISCOVER_REMOTE_SIZE --> IN_SYNC" in diagram()


def entered(info: ObjectInfo, view: ObjectView = VIEW) -> tuple[Replica, list[ReplicaEffect]]:
    replica = Replica(0.0)
    replica.handle(LocalKnown(0), 1.0)
    return replica, replica.handle(ReplicaEntered(info, view), 2.0)


@pytest.mark.parametrize(
    ("info", "goal", "state", "effects"),
    [
        (copy(60), OPEN, ReplicaState.IN_SYNC, [ReplicaEffect.COUNT, ReplicaEffect.FOLLOW]),
        (copy(0), OPEN, ReplicaState.CATCH_UP, [ReplicaEffect.COUNT, ReplicaEffect.FILL]),
        (copy(30), OPEN, ReplicaState.DISCOVER_REMOTE_SIZE, [ReplicaEffect.FIND_DIGEST]),
        (copy(101, CONTENT + b"x"), SEALED, ReplicaState.DISCOVER_REMOTE_SIZE, [ReplicaEffect.QUERY_MEMBER]),
        (copy(60, bytes(100)), OPEN, ReplicaState.BROKEN, [ReplicaEffect.DISCOUNT]),
    ],
)
def test_what_follows_from_what_the_member_has(
    info: ObjectInfo, goal: ObjectGoal, state: ReplicaState, effects: list[ReplicaEffect]
) -> None:
    replica, found = entered(info, ObjectView(goal, 40, known))
    assert (replica.state, found) == (state, effects)


def test_a_copy_whose_digest_was_asked_for_counts_from_the_answer_on() -> None:
    replica, _ = entered(copy(30))
    assert replica.synced == 0, "not compared yet"
    assert replica.handle(ReplicaAgreed(30, VIEW), 3.0) == [ReplicaEffect.COUNT, ReplicaEffect.FILL]
    assert (replica.sent, replica.synced) == (30, 30)
    with pytest.raises(LocalProtocolError, match="byte 30 is not in memory, which begins at byte 40"):
        replica.handle(ReplicaReached(VIEW), 4.0)
    replica.sent_to(45)
    assert replica.handle(ReplicaReached(VIEW), 4.0) == [ReplicaEffect.FOLLOW]


def test_a_watermark_beyond_what_was_sent_or_below_what_was_synced_ends_the_session() -> None:
    # EVIDENCE-OF: P-1
    replica, _ = entered(copy(60))
    replica.sent_to(80)
    assert replica.acknowledge(80, 70)
    for received, synced in ((81, 70), (80, 69), (70, 75)):
        with pytest.raises(RemoteProtocolError, match=f"watermark {received}/{synced}: 80 bytes were sent"):
            replica.acknowledge(received, synced)


def test_nothing_is_sent_to_a_copy_that_was_not_compared() -> None:
    # EVIDENCE-OF: P-3
    for info in (copy(30), copy(60, bytes(100))):
        replica, _ = entered(info)
        assert replica.state not in AGREED
        with pytest.raises(LocalProtocolError, match=r"cannot send up to byte .* to a replica in state"):
            replica.sent_to(100)


def test_a_broken_copys_watermarks_count_for_nothing_and_it_names_the_reason() -> None:
    replica, _ = entered(copy(60))
    assert replica.handle(ReplicaDiffered("its disk failed"), 3.0) == [ReplicaEffect.DISCOUNT]
    assert not replica.acknowledge(60, 60)
    assert (replica.synced, replica.why, replica.since) == (0, "its disk failed", 3.0)
    replica.handle(ReplicaLeft("cut off"), 4.0)
    assert (replica.sent, replica.received, replica.synced) == (0, 0, 0)
    assert (replica.why, replica.since, replica.state) == ("cut off", 4.0, ReplicaState.DISCOVER_LOCAL_SIZE)


def test_what_the_memory_moved_on_past_is_filled() -> None:
    replica, _ = entered(copy(60))
    assert replica.handle(ReplicaFellBehind(), 3.0) == [ReplicaEffect.FILL]
    assert replica.state is ReplicaState.CATCH_UP


def test_a_member_is_visible_as_its_worst_copy() -> None:
    assert worst_state_text([]) == "in sync"
    assert worst_state_text([ReplicaState.IN_SYNC, ReplicaState.CATCH_UP]) == "catching up"
    assert worst_state_text([ReplicaState.CATCH_UP, ReplicaState.ENTER, ReplicaState.BROKEN]) == "broken"
    assert {worst_state_text([state]) for state in ReplicaState} == {
        *("unavailable", "entering", "comparing", "catching up", "in sync", "broken")
    }

"""How a member's copy compares with what its writer knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_client.core.replica import (
    REPLICA_TABLE,
    Comparison,
    Goal,
    ReplicaEvent,
    ReplicaState,
    compare,
    diagram,
    step,
)
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import LocalProtocolError
from dos_protocol.vocabulary import ObjectInfo

CONTENT = bytes(range(100))
OPEN, SEALED = Goal(100, sealed=False), Goal(100, sealed=True)


def known(size: int) -> int | None:
    return prefix_digest(CONTENT[:size]) if 40 <= size <= 100 else None


def copy(size: int, content: bytes = CONTENT, **marks: bool) -> ObjectInfo:
    return ObjectInfo("x", size, size, prefix_digest(content[:size]), **marks)


@pytest.mark.parametrize(
    ("info", "goal", "expected"),
    [
        (ObjectInfo("x"), OPEN, Comparison.AGREES),
        (copy(100), OPEN, Comparison.AGREES),
        (copy(60), OPEN, Comparison.AGREES),
        (copy(30), OPEN, Comparison.ASK_ANOTHER),
        (copy(60, bytes(100)), OPEN, Comparison.DIFFERS),
        (copy(101, CONTENT + b"x"), OPEN, Comparison.DIFFERS),
        (copy(101, CONTENT + b"x"), SEALED, Comparison.ASK_MEMBER),
        (copy(60, poisoned=True), OPEN, Comparison.DIFFERS),
        (copy(60, corrupt=True), OPEN, Comparison.DIFFERS),
        (copy(60, corrupt=True), SEALED, Comparison.DIFFERS),
        (copy(100, corrupt=True), SEALED, Comparison.AGREES),
    ],
)
def test_comparing_by_size_and_digest(info: ObjectInfo, goal: Goal, expected: Comparison) -> None:
    assert compare(info, goal, known) is expected


@given(st.binary(max_size=200))
def test_a_copy_agrees_only_if_it_is_a_prefix(content: bytes) -> None:
    # EVIDENCE-OF: P-3
    info = ObjectInfo("x", len(content), len(content), prefix_digest(content))
    if compare(info, OPEN, lambda size: prefix_digest(CONTENT[:size])) is Comparison.AGREES:
        assert CONTENT.startswith(content)


def test_a_broken_copy_counts_again_only_in_another_session() -> None:
    assert REPLICA_TABLE[ReplicaState.BROKEN] == {ReplicaEvent.LEFT: ReplicaState.AWAY}
    with pytest.raises(LocalProtocolError, match="IN_WINDOW cannot happen to a replica that is BROKEN"):
        step(ReplicaState.BROKEN, ReplicaEvent.IN_WINDOW)


def test_every_state_with_a_session_can_lose_it() -> None:
    for state, row in REPLICA_TABLE.items():
        assert (ReplicaEvent.LEFT in row) == (state is not ReplicaState.AWAY)
    assert "COMPARING --> FOLLOWING" in diagram()

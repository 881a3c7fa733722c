"""One copy through many sessions, with events in any order that the world can bring them, and in orders it
cannot.

The machine below is the world: a writer with a history and a memory that forgets, a member whose copy is a
prefix of it, or is not; sessions that come and go. What the core must never do: count a byte that is not
durable there and the writer's, send behind other bytes, or take an event its table does not have.
"""

import itertools
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dos_client.core.replica import (
    AGREED,
    REPLICA_TABLE,
    CopyRelation,
    Event,
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


def may_come_in(event: ReplicaEvent) -> set[ReplicaState]:
    return {state for state, row in REPLICA_TABLE.items() if event in row}


COMES_IN = {
    LocalKnown: may_come_in(ReplicaEvent.LOCAL_KNOWN),
    ReplicaEntered: may_come_in(ReplicaEvent.ENTERED),
    ReplicaAgreed: {ReplicaState.DISCOVER_REMOTE_SIZE},
    ReplicaDiffered: may_come_in(ReplicaEvent.DIFFERS),
    ReplicaReached: {ReplicaState.CATCH_UP},
    ReplicaFellBehind: may_come_in(ReplicaEvent.FELL_BEHIND),
    ReplicaLeft: may_come_in(ReplicaEvent.LEFT),
}


class Meanwhile(Enum):
    """What became of the member's copy between two sessions."""

    NOTHING = "it is as it was"
    SHORTER = "a server before this one wrote less, or it is a new one"
    OTHER = "another content of some length"
    LONGER = "another writer appended to it"
    POISONED = "its disk failed"


class OneCopy(RuleBasedStateMachine):
    """See the head of this file."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.replica = Replica(self.now)
        self.history = b""
        self.base = 0
        self.sealed = False
        self.stored = b""  # what the member holds durably
        self.under_way = b""  # what is sent and has not arrived
        self.counted: int | None = None  # what counts for the member, None: nothing
        self.query: ReplicaEffect | None = None
        self.filling = self.following = False
        self.broken_disk = False

    def view(self) -> ObjectView:
        def digest_at(size: int) -> int | None:
            known = size == len(self.history) if self.sealed else self.base <= size <= len(self.history)
            return prefix_digest(self.history[:size]) if known else None

        base = len(self.history) if self.sealed else self.base
        return ObjectView(ObjectGoal(len(self.history), self.sealed), base, digest_at)

    def handle(self, event: Event) -> None:
        self.now += 1
        for effect in self.replica.handle(event, self.now):
            match effect:
                case ReplicaEffect.COUNT:
                    self.counted = self.replica.synced
                case ReplicaEffect.DISCOUNT:
                    self.counted = None
                    self.filling = self.following = False
                case ReplicaEffect.QUERY_MEMBER | ReplicaEffect.FIND_DIGEST:
                    self.query = effect
                case ReplicaEffect.FILL:
                    self.filling, self.following = True, False
                case ReplicaEffect.FOLLOW:
                    self.following, self.filling = True, False
        assert self.replica.since == self.now

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        if not self.sealed:
            self.history += bytes(2 * (len(self.history) + i) % 256 for i in range(count))

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        self.base += int(share * (len(self.history) - self.base))

    @precondition(lambda self: len(self.history) > 9)
    @rule()
    def seal(self) -> None:
        self.sealed = True

    @precondition(lambda self: self.replica.state is ReplicaState.DISCOVER_LOCAL_SIZE)
    @rule(size=st.integers(0, 12), meanwhile=st.sampled_from(Meanwhile), enters=st.integers(0, 4))
    def a_session_is_tried(self, size: int, meanwhile: "Meanwhile", enters: int) -> None:
        """In between, the member may have become another one, in the ways that claims and disks allow."""
        match meanwhile:
            case Meanwhile.SHORTER:
                self.stored = self.history[:size]
            case Meanwhile.OTHER:
                self.stored = bytes(byte ^ 1 for byte in self.history[:size])
            case Meanwhile.LONGER:
                self.stored = self.history + bytes(1)
        self.broken_disk = meanwhile is Meanwhile.POISONED
        self.handle(LocalKnown(7))
        if enters:
            size = len(self.stored)
            info = ObjectInfo("x", size, size, prefix_digest(self.stored), poisoned=self.broken_disk)
            self.handle(ReplicaEntered(info, self.view()))

    @precondition(lambda self: self.replica.state is ReplicaState.DISCOVER_REMOTE_SIZE)
    @rule()
    def the_digest_is_found(self) -> None:
        assert self.query is not None, "it was asked for"
        upto = len(self.history) if self.query is ReplicaEffect.QUERY_MEMBER else len(self.stored)
        if self.stored[:upto] == self.history[:upto]:
            self.handle(ReplicaAgreed(upto, self.view()))
        else:
            self.handle(ReplicaDiffered("another content"))

    @precondition(lambda self: self.filling and self.replica.state is ReplicaState.CATCH_UP)
    @rule(count=st.integers(1, 10))
    def fill(self, count: int) -> None:
        sent = self.replica.sent
        if sent >= self.view().base:
            self.handle(ReplicaReached(self.view()))
        else:
            self.send(min(sent + count, len(self.history)))

    @precondition(lambda self: self.following and self.replica.state is ReplicaState.IN_SYNC)
    @rule(count=st.integers(1, 10))
    def follow(self, count: int) -> None:
        sent = self.replica.sent
        if sent < self.view().base:
            self.handle(ReplicaFellBehind())
        elif sent < len(self.history):
            self.send(min(sent + count, len(self.history)))

    def send(self, upto: int) -> None:
        """The server takes an append only behind the very prefix; so what arrives stands behind it."""
        sent = self.replica.sent
        assert (self.stored + self.under_way)[:sent] == self.history[:sent], "it was sent behind other bytes"
        self.under_way += self.history[sent:upto]
        self.replica.sent_to(upto)

    @precondition(lambda self: self.under_way)
    @rule(count=st.integers(1, 20), report=st.booleans())
    def arrive(self, count: int, report: bool) -> None:
        self.stored += self.under_way[:count]
        self.under_way = self.under_way[count:]
        if report:
            self.report()

    @precondition(lambda self: self.replica.state in (*AGREED, ReplicaState.BROKEN))
    @rule()
    def report(self) -> None:
        size = min(len(self.stored), self.replica.sent)
        if self.replica.acknowledge(size, size):
            self.counted = size

    @precondition(lambda self: self.replica.state in AGREED)
    @rule(beyond=st.integers(1, 9))
    def a_watermark_beyond_what_was_sent_is_refused(self, beyond: int) -> None:
        try:
            self.replica.acknowledge(self.replica.sent + beyond, self.replica.synced)
        except RemoteProtocolError:
            return
        raise AssertionError("it was believed")

    @precondition(lambda self: ReplicaEvent.DIFFERS in REPLICA_TABLE[self.replica.state])
    @rule()
    def the_disk_fails(self) -> None:
        self.handle(ReplicaDiffered("poisoned"))

    @precondition(lambda self: self.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE)
    @rule(arrives=st.integers(0, 20))
    def the_session_ends(self, arrives: int) -> None:
        self.stored += self.under_way[:arrives]
        self.under_way = b""
        self.handle(ReplicaLeft("cut"))
        self.query, self.filling, self.following = None, False, False
        self.counted = None

    @rule(kind=st.sampled_from(list(COMES_IN)))
    def an_event_that_cannot_happen_changes_nothing(self, kind: type) -> None:
        if self.replica.state in COMES_IN[kind]:
            return
        view = self.view()
        events: dict[type, Event] = {
            LocalKnown: LocalKnown(9),
            ReplicaEntered: ReplicaEntered(ObjectInfo("x"), view),
            ReplicaAgreed: ReplicaAgreed(0, view),
            ReplicaDiffered: ReplicaDiffered("?"),
            ReplicaReached: ReplicaReached(view),
            ReplicaFellBehind: ReplicaFellBehind(),
            ReplicaLeft: ReplicaLeft("?"),
        }
        before = [getattr(self.replica, name) for name in Replica.__slots__]
        try:
            self.replica.handle(events[kind], self.now + 1)
        except LocalProtocolError:
            assert [getattr(self.replica, name) for name in Replica.__slots__] == before
            return
        raise AssertionError(f"{kind.__name__} happened to a replica that is {self.replica.state.name}")

    @invariant()
    def what_counts_is_stored_and_is_the_writers(self) -> None:
        # EVIDENCE-OF: P-1, P-5
        if self.counted is not None:
            assert self.stored[: self.counted] == self.history[: self.counted]
            assert len(self.stored) >= self.counted

    @invariant()
    def sizes_are_in_order(self) -> None:
        replica = self.replica
        assert replica.synced <= replica.received <= replica.sent
        assert replica.state in AGREED or replica.sent == 0

    @invariant()
    def a_compared_copy_has_somebody_who_moves_it_on(self) -> None:
        state = self.replica.state
        assert state is not ReplicaState.CATCH_UP or self.filling
        assert state is not ReplicaState.IN_SYNC or self.following
        assert (state is ReplicaState.DISCOVER_REMOTE_SIZE) <= (self.query is not None)


TestOneCopy = OneCopy.TestCase
TestOneCopy.settings = settings(stateful_step_count=40, max_examples=2 * settings().max_examples)


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

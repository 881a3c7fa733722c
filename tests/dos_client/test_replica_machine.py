"""One copy through many sessions, with events in any order that the world can bring them, and in orders it
cannot.

The machine below is the world: a writer with a history and a memory that forgets, a member whose copy is a
prefix of it, or is not; sessions that come and go. What the core must never do: count a byte that is not
durable there and the writer's, send behind other bytes, or take an event its table does not have.
"""

from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dos_client.core.replica import (
    AGREED,
    REPLICA_TABLE,
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

"""One object on one member, as its writer sees it, as a state machine. Pure: no I/O.

A replica is always a prefix of what the writer wrote. Which prefix is determined by size *and digest*, after
every claim of the member's session. That resolves a lost answer: bytes that arrived are there, the others are
sent, and nothing is sent twice. It also detects a copy with another history. Bytes count only after the
digest agreed, and only in the session in which it did.

Each attempt at a session begins with what the writer's own machine has of the object (memory, and a local
copy that may be gone). Then the member's size is read. The two decide where the missing bytes come from.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_protocol.errors import LocalProtocolError, RemoteProtocolError
from dos_protocol.messages import ObjectInfo


class ReplicaState(Enum):
    DISCOVER_LOCAL_SIZE = "DISCOVER_LOCAL_SIZE"
    """No session. The writer finds out what its own machine has of the object before the next attempt."""
    ENTER = "ENTER"
    """A session is being opened: the member is connected and the claim is sent to it."""
    DISCOVER_REMOTE_SIZE = "DISCOVER_REMOTE_SIZE"
    """The member holds the claim and reported its size. Its digest is being compared."""
    CATCH_UP = "CATCH_UP"
    """It lacks more than the writer has in memory. It is filled from the local copy or another member."""
    IN_SYNC = "IN_SYNC"
    """It is sent what the writer appends, as it is appended."""
    BROKEN = "BROKEN"
    """Its content differs, or its disk failed. It does not count until a later check."""


class ReplicaEvent(Enum):
    """The events that change the state. The values are the labels of the diagram in protocol.md."""

    LOCAL_KNOWN = "what is here is known, an attempt begins"
    ENTERED = "the member holds the claim"
    NEAR = "digest agrees, the rest is in memory"
    BEHIND = "digest agrees, the rest is not in memory"
    DIFFERS = "the copy is broken"
    FELL_BEHIND = "the memory moved on past it"
    LEFT = "no session"


_LEAVING: Final = {ReplicaEvent.LEFT: ReplicaState.DISCOVER_LOCAL_SIZE}

REPLICA_TABLE: Final[dict[ReplicaState, dict[ReplicaEvent, ReplicaState]]] = {
    ReplicaState.DISCOVER_LOCAL_SIZE: {ReplicaEvent.LOCAL_KNOWN: ReplicaState.ENTER},
    ReplicaState.ENTER: _LEAVING | {ReplicaEvent.ENTERED: ReplicaState.DISCOVER_REMOTE_SIZE},
    ReplicaState.DISCOVER_REMOTE_SIZE: _LEAVING
    | {
        ReplicaEvent.NEAR: ReplicaState.IN_SYNC,
        ReplicaEvent.BEHIND: ReplicaState.CATCH_UP,
        ReplicaEvent.DIFFERS: ReplicaState.BROKEN,
    },
    ReplicaState.CATCH_UP: _LEAVING
    | {ReplicaEvent.NEAR: ReplicaState.IN_SYNC, ReplicaEvent.DIFFERS: ReplicaState.BROKEN},
    ReplicaState.IN_SYNC: _LEAVING
    | {ReplicaEvent.FELL_BEHIND: ReplicaState.CATCH_UP, ReplicaEvent.DIFFERS: ReplicaState.BROKEN},
    ReplicaState.BROKEN: _LEAVING,
}

AGREED: Final = frozenset({ReplicaState.CATCH_UP, ReplicaState.IN_SYNC})
"""The states in which the digest agreed in this session. Bytes count and are sent only in these."""

_STATE_TEXTS: Final = {
    ReplicaState.BROKEN: "broken",
    ReplicaState.DISCOVER_LOCAL_SIZE: "unavailable",
    ReplicaState.ENTER: "entering",
    ReplicaState.DISCOVER_REMOTE_SIZE: "comparing",
    ReplicaState.CATCH_UP: "catching up",
    ReplicaState.IN_SYNC: "in sync",
}
"""In plain words, worst first."""


def step(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    try:
        return REPLICA_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} is not valid for a replica in state {state.name}") from None


def worst_state_text(states: Iterable[ReplicaState]) -> str:
    """Return the state of a member with copies in these states, in plain words: that of its worst copy."""
    return worst_text(_STATE_TEXTS[state] for state in states)


def worst_text(texts_given: Iterable[str]) -> str:
    texts = set(texts_given)
    return next((one for one in _STATE_TEXTS.values() if one in texts), "in sync")


class CopyRelation(Enum):
    AGREES = "a prefix of what was written"
    DIFFERS = "not what was written"
    QUERY_MEMBER = "longer than needed: request its digest of that prefix"
    QUERY_OTHERS = "shorter than the writer remembers: find the digest of that prefix elsewhere"


@dataclass(frozen=True, slots=True)
class ObjectGoal:
    """The end of an object. `sealed`: bytes after `size` do not exist (R6); else only this writer can have
    written them.
    """

    size: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class ObjectView:
    """The writer's present knowledge of the object. `base`: the first byte in memory. `digest_at(size)`: None
    if unknown.
    """

    goal: ObjectGoal
    base: int
    digest_at: Callable[[int], int | None]


def compare(info: ObjectInfo, goal: ObjectGoal, digest_at: Callable[[int], int | None]) -> CopyRelation:
    """Compare a copy, as reported in the answer to a claim, with what the writer remembers."""
    if info.poisoned or (info.corrupt and not (goal.sealed and info.synced >= goal.size)):
        return CopyRelation.DIFFERS
    if info.received > goal.size and not goal.sealed:
        return CopyRelation.DIFFERS
    if info.synced > goal.size:
        return CopyRelation.QUERY_MEMBER
    expected = 0 if info.synced == 0 else digest_at(info.synced)
    if expected is None:
        return CopyRelation.QUERY_OTHERS
    return CopyRelation.AGREES if expected == info.digest else CopyRelation.DIFFERS


def difference(info: ObjectInfo, goal: ObjectGoal) -> str:
    if info.poisoned:
        return "poisoned by a failed write or sync"
    if info.corrupt:
        return f"damaged from byte {info.synced} on"
    if info.received > goal.size:
        return f"{info.received} bytes, of which this writer wrote {goal.size}"
    return f"different content before byte {info.synced}"


@dataclass(frozen=True, slots=True)
class LocalKnown:
    """An attempt at a session begins. The local copy has `size` bytes (0: there is none)."""

    size: int


@dataclass(frozen=True, slots=True)
class ReplicaEntered:
    """The member holds the claim, and its answer describes the object as `info`."""

    info: ObjectInfo
    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaAgreed:
    """A requested digest agrees: the member's first `size` bytes are the writer's."""

    size: int
    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaDiffered:
    """The copy is not the writer's, or its disk failed; `spoiled` in the second case."""

    why: str
    spoiled: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaReached:
    """Catching up has reached the bytes that are in memory."""

    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaFellBehind:
    """The memory no longer has the next bytes to send to the copy."""


@dataclass(frozen=True, slots=True)
class ReplicaLeft:
    """The session ended, or the attempt at one failed."""

    why: str


Event = (
    LocalKnown
    | ReplicaEntered
    | ReplicaAgreed
    | ReplicaDiffered
    | ReplicaReached
    | ReplicaFellBehind
    | ReplicaLeft
)


class ReplicaEffect(Enum):
    COUNT = "the copy's `received` and `synced` count for the member from now on"
    DISCOUNT = "nothing of it counts any more"
    QUERY_MEMBER = "request the digest at the goal from the member; then Agreed or Differed"
    FIND_DIGEST = "find the digest at `claimed.synced` here or elsewhere; then Agreed or Differed, and fill"
    FILL = "fill it from `sent` on, until Reached"
    FOLLOW = "send it what the window has from `sent` on"


class Replica:
    """One object on one member, during the life of the claim.

    Invariants: `synced <= received <= sent`; all three are 0 in states outside `AGREED`. `claimed`: how the
    member described the object when it took the claim. `spoiled`: its disk failed, so what it once held is
    not known. `since`: when `state` last changed.
    """

    __slots__ = ("claimed", "local_size", "received", "sent", "since", "spoiled", "state", "synced", "why")

    def __init__(self, now: float) -> None:
        self.state = ReplicaState.DISCOVER_LOCAL_SIZE
        self.since = now
        self.why = "not connected yet"
        self.spoiled = False
        self.local_size = 0
        self.claimed: ObjectInfo | None = None
        self.sent = self.received = self.synced = 0

    def handle(self, event: Event, now: float) -> list[ReplicaEffect]:
        """Apply the event and return the effects. Raises LocalProtocolError, unchanged, if it is not valid
        now.
        """
        match event:
            case LocalKnown(size):
                self._move(ReplicaEvent.LOCAL_KNOWN, now)
                self.local_size = size
                return []
            case ReplicaEntered(info, view):
                self._move(ReplicaEvent.ENTERED, now)
                self.why, self.claimed = "", info
                return self._discover(info, view, now)
            case ReplicaAgreed(size, view):
                return self._agreed(size, size, view, now)
            case ReplicaDiffered(why, spoiled):
                self._move(ReplicaEvent.DIFFERS, now)
                self.why, self.spoiled = why, spoiled
                self.sent = self.received = self.synced = 0
                return [ReplicaEffect.DISCOUNT]
            case ReplicaReached(view):
                if self.state is not ReplicaState.CATCH_UP:
                    raise LocalProtocolError(f"Reached is not valid for a replica in state {self.state.name}")
                if self.sent < view.base:
                    raise LocalProtocolError(
                        f"byte {self.sent} is not in memory, which begins at byte {view.base}"
                    )
                self._move(ReplicaEvent.NEAR, now)
                return [ReplicaEffect.FOLLOW]
            case ReplicaFellBehind():
                self._move(ReplicaEvent.FELL_BEHIND, now)
                return [ReplicaEffect.FILL]
            case ReplicaLeft(why):
                self._move(ReplicaEvent.LEFT, now)
                self.why, self.claimed = why, None
                self.sent = self.received = self.synced = 0
                return []

    def acknowledge(self, received: int, synced: int) -> bool:
        """Apply a durability ack. Returns whether it counts. Raises RemoteProtocolError if impossible."""
        if self.state is ReplicaState.BROKEN:
            return False
        if not self.synced <= synced <= received <= self.sent:
            raise RemoteProtocolError(
                f"impossible watermark {received}/{synced}: {self.sent} bytes were sent,"
                f" {self.synced} were synced"
            )
        self.received, self.synced = received, synced
        return True

    def sent_to(self, size: int) -> None:
        if self.state not in AGREED or size < self.sent:
            raise LocalProtocolError(f"cannot send up to byte {size} to a replica in state {self.state.name}")
        self.sent = size

    def _discover(self, info: ObjectInfo, view: ObjectView, now: float) -> list[ReplicaEffect]:
        match compare(info, view.goal, view.digest_at):
            case CopyRelation.AGREES:
                return self._agreed(info.received, info.synced, view, now)
            case CopyRelation.DIFFERS:
                return self.handle(
                    ReplicaDiffered(difference(info, view.goal), info.poisoned or info.corrupt), now
                )
            case CopyRelation.QUERY_MEMBER:
                return [ReplicaEffect.QUERY_MEMBER]
            case CopyRelation.QUERY_OTHERS:
                return [ReplicaEffect.FIND_DIGEST]

    def _agreed(self, received: int, synced: int, view: ObjectView, now: float) -> list[ReplicaEffect]:
        if self.state is not ReplicaState.DISCOVER_REMOTE_SIZE:
            raise LocalProtocolError(f"a comparison is not valid for a replica in state {self.state.name}")
        near = received >= view.base
        self._move(ReplicaEvent.NEAR if near else ReplicaEvent.BEHIND, now)
        self.sent, self.received, self.synced = received, received, synced
        return [ReplicaEffect.COUNT, ReplicaEffect.FOLLOW if near else ReplicaEffect.FILL]

    def _move(self, event: ReplicaEvent, now: float) -> None:
        self.state = step(self.state, event)
        self.since = now


def diagram() -> str:
    lines = ["stateDiagram-v2", "    [*] --> DISCOVER_LOCAL_SIZE"]
    for state, row in REPLICA_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join(lines)

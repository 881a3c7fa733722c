"""One object on one member, as its writer sees it, from the claim's beginning to its end: a table of states,
and what each event makes true. Pure.

Rules of this file: what a copy is worth, and what is to be done with it next. Sessions, files and who waits
are the shell's (`copies`, `catch_up`).

Theory. A replica is only ever a prefix of what the writer wrote. Which prefix is found by size *and
digest*, after every claim of the member's session: that resolves a lost answer (what arrived is there, what
did not is sent, nothing is sent twice) and unmasks a copy that is another history. Bytes count only once
the digest agreed, and only in the session in which it did.

One life goes through many sessions. Each attempt at one begins with what is *here*: how much of the object
the writer's own machine still has (memory, and a local copy that may be gone by now). Then the member is
asked what is *there*, and from the two follows where the missing bytes come from.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_protocol.errors import LocalProtocolError, RemoteProtocolError
from dos_protocol.vocabulary import ObjectInfo


class ReplicaState(Enum):
    """Where the copy of one member stands."""

    DISCOVER_LOCAL_SIZE = "DISCOVER_LOCAL_SIZE"
    """No session. What the writer's own machine has of the object is found out before the next attempt."""
    ENTER = "ENTER"
    """A session is being made: the member is dialled, and asked to take the claim."""
    DISCOVER_REMOTE_SIZE = "DISCOVER_REMOTE_SIZE"
    """The member holds the claim and told its size; its digest is being compared."""
    CATCH_UP = "CATCH_UP"
    """It lacks more than the writer has in memory: it is filled from the local copy or another member."""
    IN_SYNC = "IN_SYNC"
    """It is sent what the writer appends, as it comes."""
    BROKEN = "BROKEN"
    """Its content differs, or its disk failed. Never counts; looked at again in the next session."""


class ReplicaEvent(Enum):
    """What moves a replica."""

    LOCAL_KNOWN = "what is here is known, an attempt begins"
    ENTERED = "the member holds the claim"
    NEAR = "digest agrees, the rest is in memory"
    BEHIND = "digest agrees, the rest is not in memory"
    DIFFERS = "digest differs, too long, corrupt or poisoned"
    FELL_BEHIND = "the memory moved on past it"
    LEFT = "the session ended, or none was had"


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
"""The digest was compared in this session, and agreed: only here do bytes count, only here are bytes sent."""

_WORDS: Final = {
    ReplicaState.BROKEN: "broken",
    ReplicaState.DISCOVER_LOCAL_SIZE: "away",
    ReplicaState.ENTER: "entering",
    ReplicaState.DISCOVER_REMOTE_SIZE: "comparing",
    ReplicaState.CATCH_UP: "catching up",
    ReplicaState.IN_SYNC: "in sync",
}
"""In plain words, the worst first."""


def step(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """The state after the event. Raises LocalProtocolError for an event the table does not have."""
    try:
        return REPLICA_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} cannot happen to a replica that is {state.name}") from None


def in_words(states: Iterable[ReplicaState]) -> str:
    """What a member with copies in these states is, in plain words: as its worst copy."""
    return worst_words(_WORDS[state] for state in states)


def worst_words(found: Iterable[str]) -> str:
    """The worst of what `in_words` says of several."""
    words = set(found)
    return next((one for one in _WORDS.values() if one in words), "in sync")


class CopyRelation(Enum):
    """What a member's copy is, seen from what the writer knows."""

    AGREES = "a prefix of what was written"
    DIFFERS = "not what was written"
    ASK_MEMBER = "longer than needed: ask it for the digest of that prefix"
    ASK_ANOTHER = "shorter than the writer remembers: find the digest of that prefix elsewhere"


@dataclass(frozen=True, slots=True)
class ObjectGoal:
    """How far an object goes. `sealed`: exactly to `size`, and what is past it does not exist (R6); else it
    is open, and nobody but this writer can have put a byte behind `size`."""

    size: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class ObjectView:
    """What the writer knows of the object at this moment. `base`: the first byte it has in memory, the
    goal's size for one that is sealed. `digest_at(size)` is the digest of that prefix, None when it is no
    longer known."""

    goal: ObjectGoal
    base: int
    digest_at: Callable[[int], int | None]


def compare(info: ObjectInfo, goal: ObjectGoal, digest_at: Callable[[int], int | None]) -> CopyRelation:
    """Compare a copy, as told by the answer to a claim, with the writer's memory."""
    if info.poisoned or (info.corrupt and not (goal.sealed and info.synced >= goal.size)):
        return CopyRelation.DIFFERS
    if info.received > goal.size and not goal.sealed:
        return CopyRelation.DIFFERS
    if info.synced > goal.size:
        return CopyRelation.ASK_MEMBER
    expected = 0 if info.synced == 0 else digest_at(info.synced)
    if expected is None:
        return CopyRelation.ASK_ANOTHER
    return CopyRelation.AGREES if expected == info.digest else CopyRelation.DIFFERS


def difference(info: ObjectInfo, goal: ObjectGoal) -> str:
    """Why a copy is not what was written, for people."""
    if info.poisoned:
        return "poisoned by a failed write or sync"
    if info.corrupt:
        return f"damaged from byte {info.synced} on"
    if info.received > goal.size:
        return f"{info.received} bytes, of which this writer wrote {goal.size}"
    return f"another content below byte {info.synced}"


@dataclass(frozen=True, slots=True)
class LocalKnown:
    """An attempt at a session begins; the local copy goes as far as `size` (0: there is none)."""

    size: int


@dataclass(frozen=True, slots=True)
class ReplicaEntered:
    """The member holds the claim, and its answer says `info` of the object."""

    info: ObjectInfo
    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaAgreed:
    """A digest that had to be asked for agrees: the first `size` bytes there are the writer's."""

    size: int
    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaDiffered:
    """Something showed that the copy is not the writer's, or that its disk failed: then it is `spoiled`."""

    why: str
    spoiled: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaReached:
    """Catching up came to where the memory begins."""

    view: ObjectView


@dataclass(frozen=True, slots=True)
class ReplicaFellBehind:
    """The memory moved on past what the copy was sent."""


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


class Effect(Enum):
    """What the shell is to do, in the order given."""

    COUNT = "the copy's `received` and `synced` count for the member from now on"
    DISCOUNT = "nothing of it counts any more"
    ASK_MEMBER = "ask the member for the digest at the goal; then Agreed or Differed"
    FIND_DIGEST = "find the digest at `claimed.synced` here or elsewhere; then Agreed or Differed, and fill"
    FILL = "fill it from `sent` on, until Reached"
    FOLLOW = "send it what the window has from `sent` on"


class Replica:
    """One object on one member, for as long as the claim lives.

    Invariants: `synced <= received <= sent`; outside `AGREED` all three are 0; `claimed` is what the member
    said of the object when it took the claim, None without a session; `why` says what is wrong, '' when
    nothing is; `spoiled`, once it is BROKEN: its disk failed, so what it once held is not known; `since` is
    when `state` last changed."""

    __slots__ = ("claimed", "local_size", "received", "sent", "since", "spoiled", "state", "synced", "why")

    def __init__(self, now: float) -> None:
        self.state = ReplicaState.DISCOVER_LOCAL_SIZE
        self.since = now
        self.why = "not connected yet"
        self.spoiled = False
        self.local_size = 0
        self.claimed: ObjectInfo | None = None
        self.sent = self.received = self.synced = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What is to be done upon the event. Raises LocalProtocolError, and changes nothing, for one that
        cannot happen now."""
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
                return [Effect.DISCOUNT]
            case ReplicaReached(view):
                if self.state is not ReplicaState.CATCH_UP:
                    raise LocalProtocolError(f"nothing was filled of a replica that is {self.state.name}")
                if self.sent < view.base:
                    raise LocalProtocolError(f"byte {self.sent} is not in memory: it begins at {view.base}")
                self._move(ReplicaEvent.NEAR, now)
                return [Effect.FOLLOW]
            case ReplicaFellBehind():
                self._move(ReplicaEvent.FELL_BEHIND, now)
                return [Effect.FILL]
            case ReplicaLeft(why):
                self._move(ReplicaEvent.LEFT, now)
                self.why, self.claimed = why, None
                self.sent = self.received = self.synced = 0
                return []

    def told(self, received: int, synced: int) -> bool:
        """The member told a watermark. Whether it counts; RemoteProtocolError for one that cannot be."""
        if self.state is ReplicaState.BROKEN:
            return False
        if not self.synced <= synced <= received <= self.sent:
            raise RemoteProtocolError(
                f"watermark {received}/{synced}: {self.sent} bytes were sent, {self.synced} were synced"
            )
        self.received, self.synced = received, synced
        return True

    def sent_to(self, size: int) -> None:
        """Bytes up to `size` are on their way."""
        if self.state not in AGREED or size < self.sent:
            raise LocalProtocolError(f"nothing is sent to a replica that is {self.state.name}, to {size}")
        self.sent = size

    def _discover(self, info: ObjectInfo, view: ObjectView, now: float) -> list[Effect]:
        match compare(info, view.goal, view.digest_at):
            case CopyRelation.AGREES:
                return self._agreed(info.received, info.synced, view, now)
            case CopyRelation.DIFFERS:
                return self.handle(
                    ReplicaDiffered(difference(info, view.goal), info.poisoned or info.corrupt), now
                )
            case CopyRelation.ASK_MEMBER:
                return [Effect.ASK_MEMBER]
            case CopyRelation.ASK_ANOTHER:
                return [Effect.FIND_DIGEST]

    def _agreed(self, received: int, synced: int, view: ObjectView, now: float) -> list[Effect]:
        if self.state is not ReplicaState.DISCOVER_REMOTE_SIZE:
            raise LocalProtocolError(f"nothing is compared with a replica that is {self.state.name}")
        near = received >= view.base
        self._move(ReplicaEvent.NEAR if near else ReplicaEvent.BEHIND, now)
        self.sent, self.received, self.synced = received, received, synced
        return [Effect.COUNT, Effect.FOLLOW if near else Effect.FILL]

    def _move(self, event: ReplicaEvent, now: float) -> None:
        self.state = step(self.state, event)
        self.since = now


def diagram() -> str:
    """The table as a Mermaid state diagram, as protocol.md shows it."""
    lines = ["stateDiagram-v2", "    [*] --> DISCOVER_LOCAL_SIZE"]
    for state, row in REPLICA_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join(lines)

"""One object on one member, as its writer sees it: a table of states, and the comparison that begins it.
Pure.

A replica is only ever a prefix of what the writer wrote. Which prefix is found by size *and digest*, after
every claim of the member's session: that resolves a lost answer (what arrived is there, what did not is
sent, nothing is sent twice) and unmasks a copy that is another history. Bytes count as synced only once the
digest agreed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_protocol.errors import LocalProtocolError
from dos_protocol.vocabulary import ObjectInfo


class ReplicaState(Enum):
    """Where the copy of one member stands."""

    AWAY = "AWAY"
    """No session with the member."""
    COMPARING = "COMPARING"
    """Its size is known; its digest is being compared, if need be with another member's."""
    CATCHING_UP = "CATCHING_UP"
    """It is behind what the writer still has in memory, and is filled from another member."""
    FOLLOWING = "FOLLOWING"
    """It is sent what the writer appends, as it comes."""
    BROKEN = "BROKEN"
    """Its content differs, or its disk failed. Never counts; looked at again in the next session."""


class ReplicaEvent(Enum):
    """What moves a replica."""

    ENTERED = "the member holds the claim"
    IN_WINDOW = "digest agrees, the rest is in memory"
    BEHIND = "digest agrees, the rest is not in memory"
    DIFFERS = "digest differs, too long, corrupt or poisoned"
    FELL_BEHIND = "the memory moved on past it"
    LEFT = "the session ended"


_LEAVING: Final = {ReplicaEvent.LEFT: ReplicaState.AWAY}

REPLICA_TABLE: Final[dict[ReplicaState, dict[ReplicaEvent, ReplicaState]]] = {
    ReplicaState.AWAY: {ReplicaEvent.ENTERED: ReplicaState.COMPARING},
    ReplicaState.COMPARING: _LEAVING
    | {
        ReplicaEvent.IN_WINDOW: ReplicaState.FOLLOWING,
        ReplicaEvent.BEHIND: ReplicaState.CATCHING_UP,
        ReplicaEvent.DIFFERS: ReplicaState.BROKEN,
    },
    ReplicaState.CATCHING_UP: _LEAVING
    | {ReplicaEvent.IN_WINDOW: ReplicaState.FOLLOWING, ReplicaEvent.DIFFERS: ReplicaState.BROKEN},
    ReplicaState.FOLLOWING: _LEAVING
    | {ReplicaEvent.FELL_BEHIND: ReplicaState.CATCHING_UP, ReplicaEvent.DIFFERS: ReplicaState.BROKEN},
    ReplicaState.BROKEN: _LEAVING,
}


def step(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """The state after the event. Raises LocalProtocolError for an event the table does not have."""
    try:
        return REPLICA_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} cannot happen to a replica that is {state.name}") from None


class Comparison(Enum):
    """What a member's copy is, seen from what the writer knows."""

    AGREES = "a prefix of what was written"
    DIFFERS = "not what was written"
    ASK_MEMBER = "longer than needed: ask it for the digest of that prefix"
    ASK_ANOTHER = "shorter than the writer remembers: ask another member for the digest of that prefix"


@dataclass(frozen=True, slots=True)
class Goal:
    """How far an object goes. `sealed`: exactly to `size`, and what is past it does not exist (R6); else it
    is open, and nobody but this writer can have put a byte behind `size`."""

    size: int
    sealed: bool


def compare(info: ObjectInfo, goal: Goal, digest_at: Callable[[int], int | None]) -> Comparison:
    """Compare a copy, as told by the answer to a claim, with the writer's memory.

    `digest_at(size)` is the digest the writer knows of that prefix, None when it no longer knows."""
    if info.poisoned or (info.corrupt and not (goal.sealed and info.synced >= goal.size)):
        return Comparison.DIFFERS
    if info.received > goal.size and not goal.sealed:
        return Comparison.DIFFERS
    if info.synced > goal.size:
        return Comparison.ASK_MEMBER
    expected = 0 if info.synced == 0 else digest_at(info.synced)
    if expected is None:
        return Comparison.ASK_ANOTHER
    return Comparison.AGREES if expected == info.digest else Comparison.DIFFERS


def diagram() -> str:
    """The table as a Mermaid state diagram, as protocol.md shows it."""
    lines = ["stateDiagram-v2", "    [*] --> AWAY"]
    for state, row in REPLICA_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join(lines)

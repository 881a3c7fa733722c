"""The claim of one directory on the members of a store, as a state machine. Pure: no I/O.

The shell keeps the sessions.

A claim is one pair (epoch, writer id). Its states:

- It is *granted* once F members (in each set of the record) hold it (R1). A member that disconnected and came
  back is claimed again with the same pair.
- It is *lost*, permanently, when any member rejects it because that member holds a higher epoch, or this
  epoch for another writer id. Another claim then has F members or is about to get them, and this claim can
  never again be sure to reach a quorum (P-4).
- A granted claim with fewer than Qa sessions *waits*. Nothing is lost, and it continues automatically.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from dos_client.core.quorum import Quorums
from dos_protocol.limits import epoch_jump_max
from dos_protocol.messages import ObjectInfo


class ClaimState(Enum):
    CLAIMING = "CLAIMING"
    """Fewer than F members hold it. No object may be opened."""
    HELD = "HELD"
    """Granted, and a quorum is connected."""
    WAITING = "WAITING"
    """Granted; too few members are connected to acknowledge anything."""
    LOST = "LOST"
    """Superseded. It never acknowledges anything again."""
    CLOSED = "CLOSED"


class ClaimEvent(Enum):
    """The events that change the state. The values are the labels of the diagram in protocol.md."""

    GRANTED = "F members hold it"
    QUORUM_LOST = "fewer than Qa members connected"
    QUORUM_BACK = "Qa members connected again"
    SUPERSEDED = "a member refused it as fenced"
    ENDED = "closed by its owner"


CLAIM_TABLE: Final[dict[ClaimState, dict[ClaimEvent, ClaimState]]] = {
    ClaimState.CLAIMING: {
        ClaimEvent.GRANTED: ClaimState.HELD,
        ClaimEvent.SUPERSEDED: ClaimState.LOST,
        ClaimEvent.ENDED: ClaimState.CLOSED,
    },
    ClaimState.HELD: {
        ClaimEvent.QUORUM_LOST: ClaimState.WAITING,
        ClaimEvent.SUPERSEDED: ClaimState.LOST,
        ClaimEvent.ENDED: ClaimState.CLOSED,
    },
    ClaimState.WAITING: {
        ClaimEvent.QUORUM_BACK: ClaimState.HELD,
        ClaimEvent.SUPERSEDED: ClaimState.LOST,
        ClaimEvent.ENDED: ClaimState.CLOSED,
    },
    ClaimState.LOST: {ClaimEvent.ENDED: ClaimState.CLOSED},
    ClaimState.CLOSED: {},
}


class ClaimMachine:
    """One claim. Its methods say what members did; `state` follows.

    `held`: trusted members that answered; `live`: those connected now. Once granted, it stays so until it
    is lost or closed.
    """

    def __init__(self, quorums: Quorums) -> None:
        self.quorums = quorums
        self.state = ClaimState.CLAIMING
        self.held: set[bytes] = set()
        self.live: set[bytes] = set()

    def claimed(self, server_id: bytes, *, trusted: bool = True) -> None:
        """A member holds the claim durably. `trusted`: nothing that it lists is damaged (R4)."""
        if trusted:
            self.held.add(server_id)
        self.live.add(server_id)
        self._count()

    def left(self, server_id: bytes) -> None:
        self.live.discard(server_id)
        self._count()

    def fenced(self, server_id: bytes) -> bool:
        """A member holds a higher epoch, or this one for another writer. Return whether the claim ends."""
        self.live.discard(server_id)
        ends = self.state not in (ClaimState.LOST, ClaimState.CLOSED)
        if ends:
            self._step(ClaimEvent.SUPERSEDED)
        return ends

    def record_changed(self, quorums: Quorums) -> None:
        """Another store record is in use now. All sessions are reconnected."""
        self.quorums = quorums
        self.live.clear()
        self._count()

    def close(self) -> None:
        if self.state is not ClaimState.CLOSED:
            self._step(ClaimEvent.ENDED)

    def _count(self) -> None:
        enough = self.quorums.can_acknowledge(self.live)
        match self.state:
            # Only those connected now: a member that left may have granted a higher claim since (R1).
            case ClaimState.CLAIMING if self.quorums.can_take_over(self.held & self.live):
                self._step(ClaimEvent.GRANTED)
            case ClaimState.HELD if not enough:
                self._step(ClaimEvent.QUORUM_LOST)
            case ClaimState.WAITING if enough:
                self._step(ClaimEvent.QUORUM_BACK)

    def _step(self, event: ClaimEvent) -> None:
        self.state = CLAIM_TABLE[self.state][event]


class FenceReason(Enum):
    """What a FENCED error means for the writer that received it."""

    LOST = "another writer holds a higher epoch, or this one"
    RECLAIM = "only this session is superseded, by another of the same writer: claim again"
    READ_HOLDER = "the same epoch: read who holds it, it may be this very writer's newer session"
    CLIMB = "the epoch is too far above the one held: claim in steps"


def judge_fenced(epoch: int, epoch_held: int, *, at_claim: bool) -> FenceReason:
    """Return how to react to a FENCED error. `at_claim`: it answered a claim, not an append."""
    if epoch_held > epoch:
        return FenceReason.LOST
    # With its own epoch, a session was superseded by a newer one of the same (epoch, writer id): the writer's
    # own, or one of `dos store replace`, which fills a member for the writer. The next claim shows whether
    # the id is ours; a claim that is rejected so must query the holder.
    if epoch_held == epoch:
        return FenceReason.READ_HOLDER if at_claim else FenceReason.RECLAIM
    return FenceReason.CLIMB if at_claim else FenceReason.RECLAIM


class Copies(Protocol):
    """What a claim knows of the copies of one object: `sizes` of those that were compared, the members
    `without` it, with a `spoiled` copy, and those whose copy is being compared (`unsure`).
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...

    sizes: dict[bytes, int]
    without: set[bytes]
    spoiled: set[bytes]
    unsure: set[bytes]


def was_held(
    answers: Mapping[bytes, Mapping[str, ObjectInfo]], copies: Copies, without: Collection[bytes]
) -> bool:
    """Return whether a member has had all of the object since the claim, and has only lost its session
    since.
    """
    told = [objects.get(copies.name) for one, objects in answers.items() if one not in without]
    have = [info.synced for info in told if info is not None]
    return any(size >= copies.size for size in (*have, *copies.sizes.values()))


def proves_what_exists(entries: Iterable[ObjectInfo], disregard: Collection[str]) -> bool:
    """Return whether a member's answer may be used for a take-over: nothing that it lists is damaged (R4),
    except what is to be disregarded.
    """
    # A failed write always counts, because the bytes may come back.
    return not any(info.poisoned or (info.corrupt and info.name not in disregard) for info in entries)


def has_lost_objects(first: Mapping[str, ObjectInfo], now: Iterable[ObjectInfo]) -> bool:
    """Return whether a member that is claimed again lost part of what its first answer listed."""
    # if so, its disk lost data in between, and the first answer no longer proves what exists (R4)
    sound = {info.name: info.synced for info in now if not (info.corrupt or info.poisoned)}
    return any(sound.get(name, -1) < info.synced for name, info in first.items())


def has_no_source(quorums: Quorums, copies: Copies, connected: Iterable[bytes]) -> bool:
    """Return whether no member can give the object's bytes, as far as this claim knows."""
    # A member that has them and is not connected is no source: its machine may never return, and a quorum can
    # decide without it, in a new claim.
    if copies.unsure or any(copies.sizes.get(one, 0) >= copies.size for one in connected):
        return False
    return is_unrecoverable(quorums, copies.without, copies.spoiled)


def is_unrecoverable(quorums: Quorums, without: Collection[bytes], spoiled: Collection[bytes]) -> bool:
    """Return whether no member can still hold the object's bytes."""
    # F members hold less, or every member holds less or has a damaged copy. Damage proves nothing about what
    # a copy held (R4): together with a member that is unavailable, it may be part of the quorum.
    return quorums.can_take_over(without) or quorums.members <= {*without, *spoiled}


def climb(epoch_held: int, epoch: int) -> Iterable[int]:
    """Return the epochs to claim, in order, without a jump that the server rejects (R17)."""
    while epoch - epoch_held > epoch_jump_max:
        epoch_held += epoch_jump_max
        yield epoch_held
    yield epoch


def diagram() -> str:
    lines = ["stateDiagram-v2", "    [*] --> CLAIMING"]
    for state, row in CLAIM_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])


Garbage = Callable[[str], bool]
"""Returns whether an object of that name is garbage, which is permanent."""


class Collecting:
    """The garbage of one member, over its sessions. Invariant: `held` are names that the member may hold."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._postponed: set[str] = set()

    def entered(self, names: Iterable[str]) -> None:
        """Start a session in which the member has these objects. Postponed deletions are tried again."""
        self.held = set(names)
        self._postponed.clear()

    def made(self, name: str) -> None:
        self.held.add(name)
        self._postponed.discard(name)

    def next(self, garbage: Garbage) -> str | None:
        return min((name for name in self.held - self._postponed if garbage(name)), default=None)

    def gone(self, name: str) -> None:
        self.held.discard(name)

    def postpone(self, name: str) -> None:
        self._postponed.add(name)

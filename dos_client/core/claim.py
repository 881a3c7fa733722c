"""The claim of one directory on the members of a store: a state machine. Pure.

Events say what members did; effects say what became true of the claim. The shell keeps the sessions.

A claim is one (epoch, writer id). It is *granted* once F members (in each set of the record) hold it (R1).
A member that left and came back claims again with the same pair. It is *lost*, for good, when any member
refuses it because that member holds a higher epoch, or this epoch for another id: F claims of another are
then certain or under way, and this one can never again be sure to gain a quorum (P-4). A granted claim with
fewer than Qa sessions *waits*: nothing is lost, it goes on by itself.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_client.core.quorum import Quorums
from dos_protocol.errors import LocalProtocolError
from dos_protocol.limits import epoch_jump_max
from dos_protocol.vocabulary import ObjectInfo


class ClaimState(Enum):
    """What a claim is."""

    CLAIMING = "CLAIMING"
    """Fewer than F members hold it. Nothing may be opened."""
    HELD = "HELD"
    """Granted, and a quorum is connected."""
    WAITING = "WAITING"
    """Granted; too few members are connected to acknowledge anything."""
    LOST = "LOST"
    """Superseded. It acknowledges nothing more, for ever."""
    CLOSED = "CLOSED"
    """Given up by its owner."""


class ClaimEvent(Enum):
    """What moves a claim, as counted by the machine."""

    GRANTED = "F members hold it"
    QUORUM_GONE = "fewer than Qa members connected"
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
        ClaimEvent.QUORUM_GONE: ClaimState.WAITING,
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


@dataclass(frozen=True, slots=True)
class MemberClaimed:
    """A member holds the claim, durably, and its session is live.

    `trusted`: its answer may be used to take over; a member with a damaged object has not answered (R4)."""

    server_id: bytes
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """The session with a member ended."""

    server_id: bytes


@dataclass(frozen=True, slots=True)
class MemberFenced:
    """A member refused the claim itself: it holds `epoch_held`, higher, or this one for another writer."""

    server_id: bytes
    epoch_held: int


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """Another store record counts now; all sessions are made anew."""

    quorums: Quorums


@dataclass(frozen=True, slots=True)
class ClaimClosed:
    """The owner is done with it."""


Event = MemberClaimed | MemberLeft | MemberFenced | RecordChanged | ClaimClosed


@dataclass(frozen=True, slots=True)
class ClaimMoved:
    """The claim is in another state now."""

    before: ClaimState
    after: ClaimState


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """The claim was superseded, by the epoch `epoch_held` on that member."""

    server_id: bytes
    epoch_held: int


Effect = ClaimMoved | ClaimLost


class ClaimMachine:
    """One claim. Invariants: `held` are trusted members that answered, `live` those connected now; once
    granted, it stays granted until it is lost or closed."""

    def __init__(self, quorums: Quorums) -> None:
        self.quorums = quorums
        self.state = ClaimState.CLAIMING
        self.held: set[bytes] = set()
        self.live: set[bytes] = set()

    def handle(self, event: Event) -> list[Effect]:
        """What became true by the event, in order."""
        effects: list[Effect] = []
        match event:
            case MemberClaimed(server_id, trusted):
                if trusted:
                    self.held.add(server_id)
                self.live.add(server_id)
            case MemberLeft(server_id):
                self.live.discard(server_id)
            case MemberFenced(server_id, epoch_held):
                self.live.discard(server_id)
                if self.state not in (ClaimState.LOST, ClaimState.CLOSED):
                    effects += self._step(ClaimEvent.SUPERSEDED)
                    effects.append(ClaimLost(server_id, epoch_held))
            case RecordChanged(quorums):
                self.quorums = quorums
                self.live.clear()
            case ClaimClosed():
                if self.state is not ClaimState.CLOSED:
                    effects += self._step(ClaimEvent.ENDED)
        return effects + self._count()

    def _count(self) -> list[Effect]:
        enough = self.quorums.can_acknowledge(self.live)
        match self.state:
            case ClaimState.CLAIMING if self.quorums.can_take_over(self.held & self.live):
                return self._step(ClaimEvent.GRANTED)
            case ClaimState.HELD if not enough:
                return self._step(ClaimEvent.QUORUM_GONE)
            case ClaimState.WAITING if enough:
                return self._step(ClaimEvent.QUORUM_BACK)
        return []

    def _step(self, event: ClaimEvent) -> list[Effect]:
        before = self.state
        try:
            self.state = CLAIM_TABLE[before][event]
        except KeyError:
            raise LocalProtocolError(f"{event.name} cannot happen to a claim that is {before.name}") from None
        return [ClaimMoved(before, self.state)]


class FenceReason(Enum):
    """What FENCED means to the writer that got it."""

    LOST = "another writer holds a higher epoch, or this one"
    AGAIN = "only this session is superseded, by another of the same writer: claim again"
    ASK = "the same epoch: ask who holds it, it may be this very writer's newer session"
    CLIMB = "the epoch is too far above the one held: claim in steps"


def judge_fenced(epoch: int, epoch_held: int, *, at_claim: bool) -> FenceReason:
    """What to do upon FENCED. `at_claim`: it answered a claim, else an append or nothing.

    A session refused with its own epoch was superseded by a newer one of the same (epoch, writer id): of
    the writer itself, or of `dos store replace` filling a member for it. Whether the id is ours the next
    claim shows; a claim refused with its own epoch has to ask."""
    if epoch_held > epoch:
        return FenceReason.LOST
    if epoch_held == epoch:
        return FenceReason.ASK if at_claim else FenceReason.AGAIN
    return FenceReason.CLIMB if at_claim else FenceReason.AGAIN


def hopes_for(
    answers: Mapping[bytes, Mapping[str, ObjectInfo]], name: str, size: int, without: Collection[bytes]
) -> bool:
    """Whether a member answered the claim with that much of the object, and has only lost its session
    meanwhile: it is not among those found to be `without` it."""
    return any(
        server_id not in without and objects[name].synced >= size
        for server_id, objects in answers.items()
        if name in objects
    )


def has_less_than_it_said(first: Mapping[str, ObjectInfo], now: Iterable[ObjectInfo]) -> bool:
    """Whether a member that takes the same claim again lacks, or cannot give, something of its first answer:
    its disk lost it in between. The first answer says nothing any more of what there is (R4)."""
    sound = {info.name: info.synced for info in now if not (info.corrupt or info.poisoned)}
    return any(sound.get(name, -1) < info.synced for name, info in first.items())


def nobody_has(quorums: Quorums, without: Collection[bytes], spoiled: Collection[bytes]) -> bool:
    """Whether nobody is left who may hold an object's bytes: F members hold less, or every member holds
    less or has a copy that is damaged. One that is damaged alone says nothing of what it held (R4): beside
    a member that is away, which is waited for, it may be the one of the quorum."""
    return quorums.can_take_over(without) or quorums.members <= {*without, *spoiled}


def climb(epoch_held: int, epoch: int) -> Iterable[int]:
    """The epochs to claim, in order, to get from the one held to `epoch` without a jump the server refuses
    (R17)."""
    while epoch - epoch_held > epoch_jump_max:
        epoch_held += epoch_jump_max
        yield epoch_held
    yield epoch


def diagram() -> str:
    """The table as a Mermaid state diagram, as protocol.md shows it."""
    lines = ["stateDiagram-v2", "    [*] --> CLAIMING"]
    for state, row in CLAIM_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])

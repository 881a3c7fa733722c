"""One directory, with its names and the sessions in it: which of them may write it.

A claim (epoch, writer id) is *held* from the moment it is accepted: from then on older sessions receive no
durability acks and their appends are refused. It is *answered* after it is on stable storage and everything
accepted before it is synced, so the sizes in the answer are final for every older writer. (Rules R2, R3, R4
of protocol.md: without any of them, an acknowledged record can be lost.)

An epoch is refused permanently if it is lower than the held one, equal to it but from another writer, or more
than 2^20 above it. A claim that could not be stored stays held in memory: refusing too much is safe.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dos_protocol.frames import Frame
from dos_protocol.limits import epoch_jump_max
from dos_protocol.messages import ChangeDirectory, SessionEvent, SessionState, step
from dos_protocol.names import NO_ID, id_text
from dos_server.core.access import EVERYTHING, Access
from dos_server.core.files.records import NO_CLAIM, ClaimRecord
from dos_server.core.object_state import ObjectState

# --- Names in byte order, for LIST: a page costs what its entries cost, not what the names cost ------------


class Page(NamedTuple):
    """A page of names. `more`: further names match after these."""

    names: list[str]
    more: bool


def page_of(ordered: list[str], prefix: str, after: str, count: int) -> Page:
    start = max(bisect_right(ordered, after), bisect_left(ordered, prefix))
    names = ordered[start : start + count]
    matching = bisect_left(names, 1, key=lambda name: int(not name.startswith(prefix)))
    beyond = start + matching
    more = matching == count and beyond < len(ordered) and ordered[beyond].startswith(prefix)
    return Page(names[:matching], more)


class NameTable:
    def __init__(self, names: Iterable[str] = ()) -> None:
        self._ordered = sorted(set(names))
        self._known = set(self._ordered)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __len__(self) -> int:
        return len(self._ordered)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ordered)

    def add(self, name: str) -> None:
        if name not in self._known:
            self._known.add(name)
            insort(self._ordered, name)

    def page(self, prefix: str, after: str, count: int, seen: Callable[[str], bool] | None = None) -> Page:
        ordered = self._ordered if seen is None else [*filter(seen, self._ordered)]
        return page_of(ordered, prefix, after, count)


class ObjectTable(dict[str, ObjectState]):
    """The objects of a directory by name. Their order is computed on first use and then maintained."""

    _ordered: list[str] | None = None

    def __setitem__(self, name: str, state: ObjectState) -> None:
        if self._ordered is not None and name not in self:
            insort(self._ordered, name)
        super().__setitem__(name, state)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, name)]

    def ordered(self) -> list[str]:
        """Return all names in order. The caller must not change the list."""
        if self._ordered is None:
            self._ordered = sorted(self)
        return self._ordered

    def page(self, prefix: str, after: str, count: int) -> Page:
        found: list[str] = []
        more = True
        while more and len(found) <= count:
            names, more = page_of(self.ordered(), prefix, after, count + 1 - len(found))
            found += [name for name in names if self[name].exists]
            after = names[-1] if names else after
        return Page(found[:count], len(found) > count)


# --- Sessions ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Session:
    """The state of one connection and its outstanding requests.

    `opening`: the directory of the CWD that is not answered yet. `deferred`: frames received after that CWD.
    `wrote`: it appended in its current directory. `stream`: the object that a version 0 session appends to.
    `leaving`: it sends nothing more. `pending`: requests that wait or are with the disk; `reading`: those
    that read. `unsynced_*`: of appends accepted from it that are neither synced nor refused.
    """

    number: int
    state: SessionState = SessionState.NEW
    store_id: bytes = NO_ID
    generation: int = 0
    directory: str | None = None
    opening: str | None = None
    wrote: bool = False
    deferred: deque[Frame] = field(default_factory=deque)
    pending: int = 0
    reading: int = 0
    unsynced_bytes: int = 0
    unsynced_appends: int = 0
    quit_request: int | None = None
    leaving: bool = False
    version: int = 1
    host: str = ""
    access: Access = EVERYTHING
    stream: ObjectState | None = None

    def move(self, event: SessionEvent) -> None:
        self.state = step(self.state, event)

    @property
    def closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def answered(self) -> bool:
        return not (self.pending or self.unsynced_appends or self.opening or self.deferred)


# --- Directories -------------------------------------------------------------------------------------------


class LoadState(Enum):
    LOADING = "loading"
    READY = "ready"
    BROKEN = "broken"


class Opening(NamedTuple):
    """A CWD that is not answered yet."""

    session: Session
    request: ChangeDirectory
    request_id: int


Claimant = Opening
"""A CWD whose claim is held and not yet answered."""


class DirectoryState:
    """The state of one directory in memory.

    Invariants: `stored` is never above `claim`; `storing` is set while a claim is being stored, in the group
    log or in its file. `filed`: the claim in the file; `filing`: it is being replaced by `stored`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loading = LoadState.LOADING
        self.problem = ""
        self.exists = False
        self.claim = NO_CLAIM
        self.stored = NO_CLAIM
        self.storing: ClaimRecord | None = None
        self.filed = NO_CLAIM
        self.filing = False
        self.holder: Session | None = None
        self.claimant: Claimant | None = None
        self.objects = ObjectTable()
        self.sessions: dict[int, Session] = {}
        self.opening: list[Opening] = []

    @property
    def claimed(self) -> bool:
        return self.claim.epoch > 0

    @property
    def settled(self) -> bool:
        return all(state.settled for state in self.objects.values())

    @property
    def idle(self) -> bool:
        """Whether it is unused and settled, so that it can be dropped from memory."""
        return (
            not self.sessions
            and not self.opening
            and self.storing is None
            and self.stored == self.filed
            and not self.filing
            and self.claimant is None
            and self.loading is not LoadState.LOADING
            and all(state.may_forget for state in self.objects.values())
        )

    def why_no_claim(self, claim: ClaimRecord) -> str:
        """Return the epoch rule that forbids the claim, or '' if none does."""
        held, requested = self.claim, f"epoch {claim.epoch} of {self.name}"
        if claim.epoch < 1:
            return f"{requested}: epochs begin at 1"
        if claim.epoch > held.epoch + epoch_jump_max:
            return f"{requested} is more than {epoch_jump_max} above the held epoch {held.epoch}"
        if claim.epoch > held.epoch or claim == held:
            return ""
        return (
            f"{requested} is not above epoch {held.epoch}, which is held by writer {id_text(held.writer_id)}"
        )

    def hold(self, claim: ClaimRecord, claimant: Claimant) -> None:
        """Accept the claim. It is answered when `claim_ready` becomes true."""
        self.claim = claim
        self.claimant = claimant
        # Nobody holds it until the claim is answered: an ack to the older writer could be of bytes that the
        # sizes in the answer lack (R3).
        self.holder = None

    def claim_to_store(self) -> ClaimRecord | None:
        """Return the claim that must be stored now; None if none must, or one is being stored."""
        if self.storing is not None or self.stored == self.claim:
            return None
        # One at a time: two could reach the disk in the wrong order, and the lower epoch would stay there.
        self.storing = self.claim
        return self.storing

    @property
    def claim_ready(self) -> bool:
        return self.claimant is not None and self.stored == self.claim and self.settled

    def enter(self, session: Session, *, holds: bool) -> None:
        """Note that the session's CWD is answered. `holds`: it is now the writer."""
        self.sessions[session.number] = session
        if holds:
            self.holder = session
        elif self.holder is session:
            self.holder = None

    def leave(self, session: Session) -> None:
        self.sessions.pop(session.number, None)
        if self.holder is session:
            self.holder = None

    def forget_opening(self, session: Session) -> int:
        """Discard the session's unanswered CWD. Return how many of them waited for loading."""
        before = len(self.opening)
        self.opening = [one for one in self.opening if one.session is not session]
        if self.claimant is not None and self.claimant.session is session:
            self.claimant = None
        return before - len(self.opening)

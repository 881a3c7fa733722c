"""One directory: which session may write it, and its objects.

A claim (epoch, writer id) is *held* from the moment it is accepted: from then on older sessions receive no
durability acks and their appends are refused. It is *answered* after it is on stable storage and everything
accepted before it is synced, so the sizes in the answer are final for every older writer. (Take-over rules
R2, R3, R4 of protocol.md: without any of them, an acknowledged record can be lost.)

An epoch is refused permanently if it is lower than the held one, equal to it but from another writer, or more
than 2^20 above it. A claim that could not be stored stays held in memory: refusing too much is safe.

Claims and the table of objects belong here. `claims` decides which session is sent which answer.
"""

from enum import Enum
from typing import NamedTuple

from dos_protocol.limits import epoch_jump_max
from dos_protocol.messages import ChangeDirectory
from dos_protocol.names import id_text
from dos_server.core.files.records import NO_CLAIM, ClaimRecord
from dos_server.core.name_table import ObjectTable
from dos_server.core.session import Session


class LoadState(Enum):
    """The state of loading a directory into memory."""

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
        """Whether the directory was ever claimed."""
        return self.claim.epoch > 0

    @property
    def settled(self) -> bool:
        """Whether everything accepted in any object has reached the disk or never will."""
        return all(state.settled for state in self.objects.values())

    @property
    def idle(self) -> bool:
        """Whether the directory is unused and settled, so that it can be dropped from memory."""
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

    def may_claim(self, claim: ClaimRecord) -> bool:
        """Return whether the epoch rules allow the claim."""
        return not self.why_no_claim(claim)

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
        self.holder = None

    def claim_to_store(self) -> ClaimRecord | None:
        """Return the claim that must be stored now, or None if none must or a WriteClaim is in progress.

        One at a time: two could reach the disk in the wrong order.
        """
        if self.storing is not None or self.stored == self.claim:
            return None
        self.storing = self.claim
        return self.storing

    @property
    def claim_ready(self) -> bool:
        """Whether the held claim can be answered."""
        return self.claimant is not None and self.stored == self.claim and self.settled

    def enter(self, session: Session, *, holds: bool) -> None:
        """Record that the session's CWD is answered. `holds`: the session is now the writer."""
        self.sessions[session.number] = session
        if holds:
            self.holder = session
        elif self.holder is session:
            self.holder = None

    def leave(self, session: Session) -> None:
        """Remove a session that opens another directory or has ended. Its claim stays held."""
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

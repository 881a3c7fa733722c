"""One directory: who may write it, and its objects.

A claim (epoch, writer id) is *held* from the moment it is accepted: from then on older sessions get no
watermark and their appends are refused. It is *answered* only when it is on stable storage and everything
accepted before it is synced; the sizes told are then final for every older writer. (Take-over rules R2, R3,
R4: without each, an acknowledged record is lost.)

An epoch is refused for ever if it is lower than the held one, the same from another writer, or more than 2^20
above. A claim whose storing failed stays held in memory: refusing too much is safe.

Rules of this file: claims and the table of objects. What is sent to whom is decided in `server`.
"""

from enum import Enum
from typing import NamedTuple

from dos_protocol.limits import epoch_jump_max
from dos_protocol.messages import ChangeDirectory
from dos_protocol.names import id_text
from dos_server.core.name_table import ObjectTable
from dos_server.core.records import NO_CLAIM, ClaimRecord
from dos_server.core.session import Session


class LoadState(Enum):
    """Where a directory is on its way into memory."""

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
    """See the module.

    Invariant: `stored` is never above `claim`; `storing` is set while one WriteClaim is out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loading = LoadState.LOADING
        self.problem = ""
        self.exists = False
        self.claim = NO_CLAIM
        self.stored = NO_CLAIM
        self.storing: ClaimRecord | None = None
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
        """Everything accepted in any object has reached the disk, or never will."""
        return all(state.settled for state in self.objects.values())

    @property
    def idle(self) -> bool:
        """Nobody uses it and nothing is on its way: it can be forgotten."""
        return (
            not self.sessions
            and not self.opening
            and self.storing is None
            and self.claimant is None
            and self.loading is not LoadState.LOADING
            and all(state.may_forget for state in self.objects.values())
        )

    def may_claim(self, claim: ClaimRecord) -> bool:
        """Whether the rules of epochs allow the claim."""
        return not self.why_no_claim(claim)

    def why_no_claim(self, claim: ClaimRecord) -> str:
        """The rule of epochs that forbids the claim; '' when none does."""
        held, asked = self.claim, f"epoch {claim.epoch} of {self.name}"
        if claim.epoch < 1:
            return f"{asked}: epochs begin at 1"
        if claim.epoch > held.epoch + epoch_jump_max:
            return f"{asked} is more than {epoch_jump_max} above epoch {held.epoch}, which is held"
        if claim.epoch > held.epoch or claim == held:
            return ""
        return f"{asked} is not above epoch {held.epoch}, which writer {id_text(held.writer_id)} holds"

    def hold(self, claim: ClaimRecord, claimant: Claimant) -> None:
        """The claim is accepted; answer it when `claim_ready`."""
        self.claim = claim
        self.claimant = claimant
        self.holder = None

    def claim_to_store(self) -> ClaimRecord | None:
        """The claim that must go to the disk now, if one must and none is on its way."""
        if self.storing is not None or self.stored == self.claim:
            return None
        self.storing = self.claim
        return self.storing

    @property
    def claim_ready(self) -> bool:
        """The held claim can be answered."""
        return self.claimant is not None and self.stored == self.claim and self.settled

    def enter(self, session: Session, *, holds: bool) -> None:
        """The session's CWD is answered; with `holds` it is the directory's writer."""
        self.sessions[session.number] = session
        if holds:
            self.holder = session
        elif self.holder is session:
            self.holder = None

    def leave(self, session: Session) -> None:
        """The session looks elsewhere, or is gone. The claim stays held by its writer, without a session."""
        self.sessions.pop(session.number, None)
        if self.holder is session:
            self.holder = None

    def forget_opening(self, session: Session) -> int:
        """The session will not hear the answer to its CWD. How many waited for the directory to be loaded."""
        before = len(self.opening)
        self.opening = [one for one in self.opening if one.session is not session]
        if self.claimant is not None and self.claimant.session is session:
            self.claimant = None
        return before - len(self.opening)

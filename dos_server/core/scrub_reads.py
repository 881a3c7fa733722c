"""What the scrub hears and asks for: events and effects as in `vocabulary`, of which they are a part.

Rules of this file: values only.
"""

from typing import NamedTuple

from dos_server.core.verify import VerifiedChain, VerifyGoal


class ScrubDue(NamedTuple):
    """It is time for the next look. `busy`: the disk is at work for clients."""

    busy: bool


class ScrubRead(NamedTuple):
    """Read the next part of an object from the disk, not from memory, and verify it; then report.

    `chain` says how far the object was followed, `goal` what was synced when that began.
    """

    directory: str
    name: str
    chain: VerifiedChain
    goal: VerifyGoal


class ScrubReadDone(NamedTuple):
    """How a look ended: `chain` goes on; or content is damaged from `damaged_at` on; or neither, and nothing
    is known. `what`: was found then; `seconds`: it took."""

    look: ScrubRead
    chain: VerifiedChain | None
    damaged_at: int | None
    what: str
    seconds: float


class ScrubLater(NamedTuple):
    """Report `ScrubDue` after so many seconds."""

    seconds: float


class LogNotice(NamedTuple):
    """What whoever runs the server should know, in the log. `bad`: something may have to be done about it."""

    text: str
    bad: bool = True


Event = ScrubDue | ScrubReadDone
Effect = ScrubRead | ScrubLater | LogNotice

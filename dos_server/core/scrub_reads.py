"""Events and effects of the scrub. Values only; part of `vocabulary`."""

from typing import NamedTuple

from dos_server.core.verify import VerifiedChain, VerifyGoal


class ScrubDue(NamedTuple):
    """The next read of the scrub is due. `busy`: the disk is working for clients."""

    busy: bool


class ScrubRead(NamedTuple):
    """Read the next part of an object from the disk, bypassing the cache, verify it, then report.

    `chain`: how far the object was verified. `goal`: what was synced when its verification began.
    """

    directory: str
    name: str
    chain: VerifiedChain
    goal: VerifyGoal


class ScrubReadDone(NamedTuple):
    """`ScrubRead` finished.

    `chain`: where to continue. `damaged_at`: content is damaged from there on. If both are None, the part
    could not be read. `what`: the finding in words. `seconds`: the duration of the read.
    """

    read: ScrubRead
    chain: VerifiedChain | None
    damaged_at: int | None
    what: str
    seconds: float


class ScrubLater(NamedTuple):
    """Report `ScrubDue` after that many seconds."""

    seconds: float


class ScrubNow(NamedTuple):
    """End the wait for the next `ScrubDue`, if there is one."""


class LogNotice(NamedTuple):
    """Log a line for the operator. `bad`: action may be needed."""

    text: str
    bad: bool = True


Event = ScrubDue | ScrubReadDone
Effect = ScrubRead | ScrubLater | ScrubNow | LogNotice

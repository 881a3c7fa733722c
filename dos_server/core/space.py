"""The reserve: how much may still be taken before what is left is kept for what must not fail.

Claims, marks, store records, removals and a restart need a little space, and on a disk without any they would
fail just when they are needed to get out of it. So appends and new copies are refused, whole, before the
last of it is gone.

Theory. The shell looks at the file system now and then and says what is free; between two looks what is
taken is subtracted here. So an append costs a subtraction and no system call. What was taken since before
the look is subtracted though it may have been seen: rather a second of refusals than a reserve that is gone.

Once something did not fit, every append is refused until there is room again for that and a bit more: no
writer gets its small appends in between another's large ones, and the log hears of it once.

Rules of this file: sums and their words. It does not know what is written, nor where.
"""

from dos_protocol.errors import ErrorCode
from dos_server.core.object_state import Refusal
from dos_server.limits import (
    extent_header_bytes,
    extent_payload_bytes_max,
    new_file_bytes,
    reserve_bytes_default,
    reserve_fraction_max,
    resume_fraction,
)


def reserve_of(total_bytes: int) -> int:
    """What is kept of a file system of that size when nobody says how much."""
    return min(reserve_bytes_default, total_bytes // reserve_fraction_max)


def cost(payload_bytes: int, *, new_file: bool) -> int:
    """What a payload takes on disk, about: its extents, and what a new file costs before its first byte."""
    extents = -(-payload_bytes // extent_payload_bytes_max)
    return payload_bytes + extents * extent_header_bytes + new_file * new_file_bytes


class Space:
    """See the module. `reserve_bytes` None: by the size of the file system.

    Until the first look, and where a file system does not say its size, there is room for everything.
    """

    def __init__(self, reserve_bytes: int | None = None) -> None:
        self.refusing = False
        self._asked_reserve = reserve_bytes
        self._reserve = 0
        self._room: float = float("inf")
        self.taken_bytes = 0
        self._wanted = 0
        self._since = 0.0

    def seen(self, free_bytes: int, total_bytes: int, taken_before: int, now: float) -> str | None:
        """What a look found that began when `taken_bytes` was so much. Something for the log, when appends
        begin or cease to be refused."""
        if total_bytes <= 0:
            self._room = float("inf")
        else:
            asked = self._asked_reserve
            self._reserve = reserve_of(total_bytes) if asked is None else asked
            self._room = free_bytes - self._reserve - (self.taken_bytes - taken_before)
        if not self.refusing:
            return self._begin(0, now) if self._room <= 0 else None
        if self._room <= max(self._wanted, self._reserve // resume_fraction):
            return None
        self.refusing, self._wanted = False, 0
        return (
            f"appends are taken again after {now - self._since:.0f} s: {free_bytes} bytes are free,"
            f" {self._reserve} of them the reserve"
        )

    def has_room(self, count: int) -> bool:
        """Whether so much can be taken now."""
        return count < self._room and not self.refusing

    def take(self, count: int) -> None:
        """So much is on its way to the disk."""
        self._room -= count
        self.taken_bytes += count

    def ran_out(self, count: int, now: float) -> str | None:
        """An append of so much has no room: none is taken until it has. Something for the log, the first
        time."""
        if self.refusing:
            self._wanted = max(self._wanted, count)
            return None
        return self._begin(count, now)

    def refusal(self, what: str) -> Refusal:
        """Why `what` is not taken."""
        return Refusal(
            ErrorCode.NO_SPACE,
            f"no space for {what} above the reserve of {self._reserve} bytes; nothing was written",
        )

    def _begin(self, count: int, now: float) -> str:
        self.refusing, self._wanted, self._since = True, count, now
        return (
            f"appends are refused: about {max(int(self._room), 0)} bytes are free above the reserve of"
            f" {self._reserve} bytes, which is kept for claims, removals and restarts; free space on the disk"
        )

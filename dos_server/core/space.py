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

from typing import Final

from dos_protocol.errors import ErrorCode
from dos_server.core.object_state import AppendRefusal
from dos_server.limits import (
    extent_header_bytes,
    new_file_bytes,
    reserve_bytes_default,
    reserve_fraction_max,
    resume_fraction,
)


def reserve_of(total_bytes: int) -> int:
    """What is kept of a file system of that size when nobody says how much."""
    return min(reserve_bytes_default, total_bytes // reserve_fraction_max)


def cost(payload_bytes: int, *, new_file: bool) -> int:
    """What a payload takes on disk, about: a header of some extents, and a new file's first block."""
    return payload_bytes + (new_file_bytes if new_file else extent_header_bytes)


_ENOUGH: Final = 1 << 62


class DiskSpace:
    """See the module. `reserve_bytes` None: by the size of the file system. `room_bytes`: may be taken
    until the next look.

    Until the first look, and where a file system does not say its size, there is room for everything.
    """

    def __init__(self, reserve_bytes: int | None = None) -> None:
        self.refusing = False
        self.room_bytes = _ENOUGH
        self._asked_reserve = reserve_bytes
        self._reserve = 0
        self._wanted = 0
        self._since = 0.0

    def seen(self, free_bytes: int, total_bytes: int, room_before: int, now: float) -> str | None:
        """What a look found that began when `room_bytes` was so much. Something for the log, when appends
        begin or cease to be refused."""
        if total_bytes <= 0:
            self.room_bytes = _ENOUGH
        else:
            asked = self._asked_reserve
            self._reserve = reserve_of(total_bytes) if asked is None else asked
            self.room_bytes += free_bytes - self._reserve - room_before
        if not self.refusing:
            return self._begin(0, now) if self.room_bytes <= 0 else None
        if self.room_bytes <= max(self._wanted, self._reserve // resume_fraction):
            return None
        self.refusing, self._wanted = False, 0
        return (
            f"appends are taken again after {now - self._since:.0f} s: {free_bytes} bytes are free,"
            f" {self._reserve} of them the reserve"
        )

    def has_room(self, count: int) -> bool:
        """Whether so much could be taken now."""
        return count < self.room_bytes and not self.refusing

    def take(self, count: int) -> bool:
        """Take so much, if there is room for it."""
        if self.refusing or count >= self.room_bytes:
            return False
        self.room_bytes -= count
        return True

    def spend(self, count: int) -> None:
        """So much is on its way to the disk, whatever room there is: it was asked for before."""
        self.room_bytes -= count

    def ran_out(self, count: int, now: float) -> str | None:
        """An append of so much has no room: none is taken until it has. Something for the log, the first
        time."""
        if self.refusing:
            self._wanted = max(self._wanted, count)
            return None
        return self._begin(count, now)

    def refusal(self, what: str) -> AppendRefusal:
        """Why `what` is not taken."""
        return AppendRefusal(
            ErrorCode.NO_SPACE,
            f"no space for {what} above the reserve of {self._reserve} bytes; nothing was written",
        )

    def _begin(self, count: int, now: float) -> str:
        self.refusing, self._wanted, self._since = True, count, now
        return (
            f"appends are refused: about {max(self.room_bytes, 0)} bytes are free above the reserve of"
            f" {self._reserve} bytes, which is kept for claims, removals and restarts; free space on the disk"
        )

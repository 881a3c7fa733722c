"""The reserve: disk space that is kept for operations that must not fail.

Claims, marks, store records, removals and restarts need a little space. On a completely full disk they would
fail just when they are needed to recover from it. So appends and new copies are refused, whole, before the
reserve is touched.

The shell measures the free space of the file system periodically. Between two measurements, the bytes taken
are subtracted here, so an append costs a subtraction and no system call. Bytes taken while a measurement runs
are subtracted even if it has already counted them: a second of refusals is better than a reserve that is used
up.

After something did not fit, every append is refused until there is space for it and a margin. Otherwise one
writer's small appends would get in between another's large ones. The log has one line per such period.

Pure: sums and their messages.
"""

from typing import Final

from dos_protocol.errors import ErrorCode
from dos_server.core.pending import AppendRefusal
from dos_server.limits import (
    extent_header_bytes,
    new_file_bytes,
    reserve_bytes_default,
    reserve_fraction_max,
    resume_fraction,
)


def reserve_of(total_bytes: int) -> int:
    """Return the default reserve, in bytes, for a file system of that size."""
    return min(reserve_bytes_default, total_bytes // reserve_fraction_max)


def cost(payload_bytes: int, *, new_file: bool) -> int:
    """Return about how much disk space a payload takes, with headers or a new file's first block."""
    return payload_bytes + (new_file_bytes if new_file else extent_header_bytes)


_ENOUGH: Final = 1 << 62


class DiskSpace:
    """The free space above the reserve.

    `reserve_bytes` None: derived from the size of the file system. `room_bytes`: bytes that may be taken
    before the next measurement.

    Before the first measurement, and if the file system does not report its size, everything fits.
    """

    def __init__(self, reserve_bytes: int | None = None) -> None:
        self.refusing = False
        self.room_bytes = _ENOUGH
        self._configured_reserve = reserve_bytes
        self._reserve = 0
        self._wanted = 0
        self._since = 0.0

    def seen(self, free_bytes: int, total_bytes: int, room_before: int, now: float) -> str | None:
        """Apply a measurement that began when `room_bytes` was `room_before`.

        Returns a line for the log when appends begin or cease to be refused.
        """
        if total_bytes <= 0:
            self.room_bytes = _ENOUGH
        else:
            configured = self._configured_reserve
            self._reserve = reserve_of(total_bytes) if configured is None else configured
            self.room_bytes += free_bytes - self._reserve - room_before
        if not self.refusing:
            return self._begin_refusing(0, now) if self.room_bytes <= 0 else None
        if self.room_bytes <= max(self._wanted, self._reserve // resume_fraction):
            return None
        self.refusing, self._wanted = False, 0
        return (
            f"appends are accepted again after {now - self._since:.0f} s: {free_bytes} bytes are free,"
            f" {self._reserve} of them the reserve"
        )

    def has_room(self, count: int) -> bool:
        """Return whether that many bytes could be taken now."""
        return count < self.room_bytes and not self.refusing

    def take(self, count: int) -> bool:
        """Take that many bytes, and return whether they fit."""
        if self.refusing or count >= self.room_bytes:
            return False
        self.room_bytes -= count
        return True

    def spend(self, count: int) -> None:
        """Subtract bytes that are written in any case, because they were admitted before."""
        self.room_bytes -= count

    def ran_out(self, count: int, now: float) -> str | None:
        """Refuse appends until `count` bytes fit. Returns a log line if they were not refused before."""
        if self.refusing:
            self._wanted = max(self._wanted, count)
            return None
        return self._begin_refusing(count, now)

    def refusal(self, what: str) -> AppendRefusal:
        """Return the refusal for `what`."""
        return AppendRefusal(
            ErrorCode.NO_SPACE,
            f"no space for {what} above the reserve of {self._reserve} bytes; nothing was written",
        )

    def _begin_refusing(self, count: int, now: float) -> str:
        self.refusing, self._wanted, self._since = True, count, now
        return (
            f"appends are refused: about {max(self.room_bytes, 0)} bytes are free above the reserve of"
            f" {self._reserve} bytes, which is kept for claims, removals and restarts; free space on the disk"
        )

"""What the two threads of a worker share of one directory of an operator, besides messages.

Rules of this file: one condition, two numbers, no message. The circuit's thread takes room before it hands a
change over, and waits for it; the link thread gives it back when the change is in the chain. Who waits is let
go when the incarnation ends.
"""

import threading
from pathlib import Path

from dos_protocol.errors import ClosedError


class Handover:
    """See the top of this file. `path`: where the files are in this incarnation."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self.snapshot_due = False
        """Written by the link thread: the next cut had better come with a copy of all files."""
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._under_way = 0
        self.closed = False
        """Written by the link thread: the incarnation is over, what the circuit meets then is no fault."""

    def take(self, size: int) -> None:
        """Wait until so many bytes more may be under way: always when none are. Raises ClosedError when
        nobody takes them any more.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed or not self._under_way or self._under_way + size <= self._bytes_max
            )
            if self.closed:
                raise ClosedError(f"the files at {self.path} are of an incarnation that is over")
            self._under_way += size

    def give(self, size: int) -> None:
        """So many are in the chain."""
        with self._changed:
            self._under_way -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is taken any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

"""The state that both threads of a worker share for one directory of an operator, in addition to messages.

The circuit thread reserves room before it hands over a change, and waits for it. The link thread releases the
room when the change is in the chain. All waiting callers are released when the incarnation ends.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

from dos_protocol.errors import ClosedError


class Handover:
    """The budget of one directory. `path`: its files in this incarnation."""

    def __init__(
        self, path: Path, bytes_max: int, sources: Mapping[int, Path] | None = None, *, divides: bool = True
    ) -> None:
        self.path = path
        self.sources = sources
        """If the layout changes: former worker -> a copy of its files, for the operator to make its own. In a
        fork of the same layout: the files of this worker in the original.
        """
        self.divides = divides
        """Whether the operator makes its files from `sources`; otherwise they are copied."""
        self.snapshot_due = False
        """Set by the link thread: the next checkpoint should have a copy of all files."""
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._reserved = 0
        self.closed = False
        """Set by the link thread: the incarnation has ended, and errors of the circuit after that are no
        failures.
        """

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes; block until they fit. They always fit if nothing else is reserved.

        Raises ClosedError after the end of the incarnation.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.closed or not self._reserved or self._reserved + size <= self._bytes_max
            )
            if self.closed:
                raise ClosedError(f"the files at {self.path} belong to an incarnation that has ended")
            self._reserved += size

    def release(self, size: int) -> None:
        """Release `size` bytes that are in the chain."""
        with self._changed:
            self._reserved -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Release all callers; nothing is accepted any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

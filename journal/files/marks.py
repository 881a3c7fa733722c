"""Marks of the wall clock between the changes of files: by them a moment is found again.

Rules of this file: when one is due, nothing more.
"""

from collections.abc import Callable

from journal.core.record import Record
from journal.limits import file_marks_every_s
from journal.ops import Op


class TimeMarks:
    """Of one journal. `clock_ms` says what time it is."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._last_ms: int | None = None

    def now(self) -> Record:
        """A mark, due or not."""
        self._last_ms = self._clock_ms()
        return Record(Op.MARK, ints=(self._last_ms,))

    def due(self) -> Record | None:
        """A mark goes before the first change after it is due: a change lies at most so long after a mark."""
        now = self._clock_ms()
        if self._last_ms is None or not 0 <= now - self._last_ms < file_marks_every_s * 1000:
            self._last_ms = now
            return Record(Op.MARK, ints=(now,))
        return None

"""MARK records: the wall clock between the changes of files, by which a restore finds a moment.

This module only decides when a MARK record is due.
"""

from collections.abc import Callable

from journal.core.record import Record
from journal.limits import file_marks_every_s
from journal.ops import Op


class TimeMarks:
    """The times of the MARK records of one journal. `clock_ms` returns the wall clock in ms since 1970."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._last_ms: int | None = None

    def now(self) -> Record:
        """Return a MARK record, whether due or not."""
        self._last_ms = self._clock_ms()
        return Record(Op.MARK, ints=(self._last_ms,))

    def due(self) -> Record | None:
        """Return the MARK record to append before a change, if one is due.

        So every change follows a MARK record by less than `file_marks_every_s`.
        """
        now = self._clock_ms()
        if self._last_ms is None or not 0 <= now - self._last_ms < file_marks_every_s * 1000:
            self._last_ms = now
            return Record(Op.MARK, ints=(now,))
        return None

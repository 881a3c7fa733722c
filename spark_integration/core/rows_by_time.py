"""The rows of a merged output that are read ahead of Spark, and which of them belong to a micro-batch.

A micro-batch (A, B] has exactly the rows with times above A, up to B. B is the time of a row that the *mark*
has passed: every later row has a later time. Replicas give the same rows with the same times. So the rows of
(A, B] do not depend on the replica that gave them, on the order in which they came, or on the marks until
then; a query that is started again reads the same ones.
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_integration.core.admission import BatchLimits

Times = npt.NDArray[np.int64]
END_OF_TIME: Final = (1 << 63) - 1


class _Run(NamedTuple):
    """Rows in the order of their times."""

    times: Times
    rows: pa.RecordBatch

    def between(self, above: int, upto: int) -> "_Run":
        begin, end = np.searchsorted(self.times, [above, upto], side="right").tolist()
        return _Run(self.times[begin:end], self.rows.slice(begin, end - begin))


class RowsByTime:
    """Rows with times above `begin`. Those up to `mark` are complete: each is here, and once."""

    def __init__(self, begin: int) -> None:
        self.begin = self.mark = begin
        self.complete_bytes = 0
        self._above: list[_Run] = []
        """Rows above the mark."""
        self._complete: deque[_Run] = deque()
        """Rows up to the mark. All times of a run are later than those of the run before it."""

    def add(self, rows: pa.RecordBatch, times: Times) -> None:
        """Take rows, with the time of each, that are all above the mark."""
        order = np.argsort(times, kind="stable")
        if len(order):
            self._above.append(_Run(times[order], rows.take(pa.array(order))))

    def set_mark(self, mark: int) -> None:
        """Take the mark after these rows: it is the same, or higher."""
        assert mark >= self.mark
        parts, above = [], []
        for run in self._above:
            if run.times[0] <= mark:
                parts.append(run.between(self.mark, mark))
                run = run.between(mark, END_OF_TIME)
            if len(run.times):
                above.append(run)
        self._above, self.mark = above, mark
        if parts:
            self._append(parts)

    def _append(self, parts: list[_Run]) -> None:
        times = np.concatenate([part.times for part in parts])
        order = np.argsort(times, kind="stable")
        table = pa.Table.from_batches([part.rows for part in parts]).take(pa.array(order))
        at = 0
        for rows in table.combine_chunks().to_batches():
            self._complete.append(_Run(times[order[at : at + rows.num_rows]], rows))
            self.complete_bytes += rows.nbytes
            at += rows.num_rows

    def end_of_batch(self, above: int, limits: BatchLimits, *, upto: int = END_OF_TIME) -> int:
        """Return the end of the micro-batch after `above`: the time of its last row, up to `upto`; `above` if
        there is no row. Rows of one time are never divided, also if they are more than the limits.
        """
        end = above
        rows_left = END_OF_TIME if limits.rows is None else limits.rows
        bytes_left = float("inf") if limits.bytes is None else limits.bytes
        for whole in self._complete:
            run = whole.between(above, upto)
            rows = len(run.times)
            if not rows:
                continue
            row_bytes = whole.rows.nbytes / len(whole.times)
            fit = rows if row_bytes * rows <= bytes_left else int(bytes_left / row_bytes)
            fit = min(fit, rows, rows_left)
            if fit < rows:
                before = int(np.searchsorted(run.times, run.times[fit], side="left"))
                if before:
                    return int(run.times[before - 1])
                return int(run.times[fit]) if end == above else end
            end = int(run.times[-1])
            rows_left -= rows
            bytes_left -= row_bytes * rows
        return end

    def between(self, above: int, upto: int) -> list[pa.RecordBatch]:
        """Return the rows of a micro-batch, in the order of their times."""
        assert self.begin <= above <= upto <= self.mark, "what is outside is not here, or not complete"
        found = [run.between(above, upto).rows for run in self._complete]
        return [rows for rows in found if rows.num_rows]

    def release(self, upto: int) -> None:
        """Drop the rows up to a time, which are not asked for again."""
        self.begin = max(self.begin, upto)
        while self._complete and self._complete[0].times[0] <= upto:
            run = self._complete.popleft()
            self.complete_bytes -= run.rows.nbytes
            left = run.between(upto, END_OF_TIME)
            if len(left.times):
                self._complete.appendleft(left)
                self.complete_bytes += left.rows.nbytes
                return

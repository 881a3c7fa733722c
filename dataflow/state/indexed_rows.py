"""Rows that wait for partners: they are found by key and time, and leave by time.

The rows are in *runs*: chunks that are sorted by `_hash`, then by time. So a run is its own index, without a
byte more for each row: binary searches find the rows of many keys in a range of time at once, however many
rows one key has. The rows of a step are a run. Four runs of about one size become one, so that there are few
to search, and a row is copied once for each factor of four; a run above `run_rows_max` or `run_bytes_max` is
not merged again, which bounds what a step may copy.

A row leaves when the watermark reaches its time. From then on it is not found and in no checkpoint. A run is
rewritten when a quarter of its rows have left: until then they cost memory, and no time.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow import limits
from dataflow.core.event_time import UNKNOWN, Watermark
from dataflow.state.key_index import Slots, key_column
from dataflow.state.row_table import RowChunk, Rows, RowTable, ascending, joined


def by_key_and_time(rows: Rows) -> Rows:
    """Return the rows in the order of a run."""
    return rows.take(ascending([pa.array(rows.hashes), pa.array(rows.times)]))


class IndexedRows(RowTable):
    """The waiting rows of one operator on one worker. No row has a null in its key."""

    def __init__(self, columns: pa.Schema, keys: Sequence[str]) -> None:
        super().__init__(columns)
        self._keys = tuple(keys)
        self._left: Watermark = UNKNOWN
        """Rows with times up to this one have left."""

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(chunk.rows.times > self._left)) for chunk in self._chunks)

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [batch.column(name) for name in self._keys]

    def insert(self, rows: Rows) -> None:
        super().insert(by_key_and_time(rows))
        while alike := self._alike():
            merged = joined([run.rows for run in alike], self._columns)
            self._chunks = [run for run in self._chunks if run not in alike]
            self._chunks.append(self._chunk(by_key_and_time(merged)))

    def _alike(self) -> list[RowChunk]:
        """Return runs of about one size that should be one; none if there is no size with enough of them."""
        by_size = defaultdict(list)
        for run in self._chunks:
            if run.size is not None:
                by_size[run.size].append(run)
        return next((runs for runs in by_size.values() if len(runs) >= limits.runs_alike_max), [])

    def _chunk(self, rows: Rows) -> RowChunk:
        count, quarter = len(rows), len(rows) // 4
        large = count >= limits.run_rows_max or rows.batch.nbytes >= limits.run_bytes_max
        due = int(np.partition(rows.times, quarter)[quarter])
        return RowChunk(rows, due, None if large else count.bit_length() // 2)

    def near(self, rows: Rows, keys: Sequence[pa.Array], within: int) -> Iterator[tuple[Slots, Rows]]:
        """Yield the pairs of given rows with these keys and rows of the table that have an equal key and are
        less than `within` apart: positions in the given rows, and the rows of the table.
        """
        columns = [key_column(values.type) for values in keys]
        for column, values in zip(columns, keys, strict=True):
            column.append(values)
        for run in (chunk.rows for chunk in self._chunks):
            at, found = self._candidates(run, rows, within)
            if not len(at):
                continue
            same = np.ones(len(at), np.bool_)
            # Different keys may have one hash.
            for column, values in zip(columns, self.key_columns(run.batch), strict=True):
                same &= column.equal(at, values.take(pa.array(found)))
            yield at[same], run.take(found[same])

    def _candidates(self, run: Rows, rows: Rows, within: int) -> tuple[Slots, Slots]:
        """Return positions in the given rows and in the run, of all pairs with one hash that are near."""
        low = np.searchsorted(run.hashes, rows.hashes)
        at = np.flatnonzero(run.hashes[np.minimum(low, len(run) - 1)] == rows.hashes)
        if not len(at):
            return at, at
        low, high = low[at], np.searchsorted(run.hashes, rows.hashes[at], "right")
        times = rows.times[at]
        low = _first_after(run.times, np.maximum(times - within, self._left), low, high)
        high = _first_after(run.times, times + (within - 1), low, high)
        counts = high - low
        begins = np.repeat(low - (np.cumsum(counts) - counts), counts)
        return np.repeat(at, counts), begins + np.arange(len(begins))

    def leave(self, watermark: Watermark) -> None:
        """Let the rows leave whose time is at or below the watermark."""
        self._left = max(self._left, watermark)
        due = [chunk for chunk in self._chunks if chunk.due <= self._left]
        self._remove(due, lambda rows: rows.times <= self._left)

    def take(self, watermark: Watermark) -> Rows:
        return self._remove(self._chunks, lambda rows: rows.times <= watermark)

    def all(self) -> Rows:
        self._compact()
        return super().all()

    def _compact(self) -> None:
        self.take(self._left)


def _first_after(
    times: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64], low: Slots, high: Slots
) -> Slots:
    """Return for each i the first position from low[i] whose time is above bounds[i], at most high[i]. Times
    ascend from low[i] to high[i].
    """
    while (open_ := low < high).any():
        middle = np.where(open_, (low + high) // 2, 0)
        above = times[middle] > bounds
        high = np.where(open_ & above, middle, high)
        low = np.where(open_ & ~above, middle + 1, low)
    return low

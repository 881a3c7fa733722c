"""Time windows: the windows of a row, when a window is over, and keys by window as state.

The state is a `KeyedTable` with the start of the window as its last key column. The operators decide what is
stored per key and window.

Times are whole microseconds. A watermark p promises that later times are above p, so a window [start, end) is
over when p >= end - 1 (replication-transparency, algorithm 3, line 6). `_hash` in the blocks is the hash of
the key alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import TakenPart
from dataflow.core.event_time import END, FIRST_TIME, LAST_TIME, Watermark
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import StateTable
from dataflow.operators.event_time import micros_of
from dataflow.state.columns import Slots
from dataflow.state.keyed_table import KeyedTable, SlotValues
from dataflow.state.moving import Share
from dataflow.worker.partitioning import hashes_of

START: Final = "window_start"
STOP: Final = "window_end"
_windows_per_row_max: Final = 1000


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Consecutive windows of `size`, starting at 1970-01-01 00:00 UTC + `offset`. `time` is a timestamp
    column.

        Tumbling("at", timedelta(minutes=5))
    """

    time: str
    size: timedelta
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        _check(self.size, self.size, self.offset)

    def __str__(self) -> str:
        return f"tumbling {self.time} {self.size} + {self.offset}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size`, with a new one every `slide`: each row is in size / slide windows.

    Example:

        Sliding("at", timedelta(hours=1), slide=timedelta(minutes=10))
    """

    time: str
    size: timedelta
    slide: timedelta
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        _check(self.size, self.slide, self.offset)

    def __str__(self) -> str:
        return f"sliding {self.time} {self.size} every {self.slide} + {self.offset}"


Window: TypeAlias = Tumbling | Sliding


def _check(size: timedelta, slide: timedelta, offset: timedelta) -> None:
    long, step = micros_of(size, "the size of a window"), micros_of(slide, "the slide of a window")
    micros_of(offset, "the offset of windows")
    if not 0 < step <= long:
        raise SchemaError(
            f"a window needs a size above 0 and a slide of at most the size, not {size} and {slide}"
        )
    if long > _windows_per_row_max * step:
        raise SchemaError(
            f"a row may be in at most {_windows_per_row_max} windows; use a slide above {slide}"
        )


class WindowKeys(StateTable):
    """A state table of keys by window, with `values` for each."""

    def __init__(
        self, keys: Sequence[str], window: Window, columns: pa.Schema, values: Sequence[SlotValues]
    ) -> None:
        """Raises ValueError if two columns of the state have one name."""
        self._keys = tuple(keys)
        self.size = micros_of(window.size, "size")
        self._slide = micros_of(window.slide, "slide") if isinstance(window, Sliding) else self.size
        self._offset = micros_of(window.offset, "offset")
        self.start_type = pa.timestamp("us", columns.field(window.time).type.tz)
        fields = [columns.field(name) for name in keys]
        self.table = KeyedTable(
            pa.schema([*fields, (START, self.start_type)]),
            values,
            salt_of=lambda block: _starts_in(block) // self._slide,
        )
        self._first_end = END
        """A lower bound of the ends of all open windows."""

    def newest(self, times: npt.NDArray[np.int64]) -> Slots:
        """Return the start of the last window that contains each time."""
        return np.asarray((times - self._offset) // self._slide * self._slide + self._offset)

    def are_closed(self, starts: Slots, watermark: Watermark) -> npt.NDArray[np.bool_]:
        """Return whether each of these windows is over: no more rows can arrive for it."""
        return np.asarray(starts + self.size - 1 <= watermark)

    def open_for(self, times: npt.NDArray[np.int64], watermark: Watermark) -> Iterator[tuple[Slots, Slots]]:
        """Yield rows, each with the start of a window that contains it and is not over. A row may be in
        several windows.
        """
        newest = self.newest(times)
        if len(newest) and (newest.max() > LAST_TIME - self.size or newest.min() < FIRST_TIME + self.size):
            outside = (newest > LAST_TIME - self.size) | (newest < FIRST_TIME + self.size)
            row = int(np.flatnonzero(outside)[0])
            raise UserFault(
                f"the window of the time {np.datetime64(int(times[row]), 'us')} is not within the years 1 to"
                " 9999",
                row=row,
                remedy="filter such rows or correct their time before the window",
            )
        for back in range(-(-self.size // self._slide)):
            starts = newest - back * self._slide
            rows = np.flatnonzero((times < starts + self.size) & ~self.are_closed(starts, watermark))
            if len(rows):
                yield rows, starts[rows]

    def find_or_add(self, batch: pa.RecordBatch, starts: Slots) -> Slots:
        """Return the slot of the key and window of each row."""
        if not len(starts):
            return np.empty(0, np.int64)
        self._first_end = min(self._first_end, int(starts.min()) + self.size)
        keys = [batch.column(name) for name in self._keys]
        windows = pa.array(starts).cast(self.start_type)
        return self.table.find_or_add([*keys, windows], hashes_of(batch), starts // self._slide)

    def take_closed(self, watermark: Watermark) -> Slots:
        """Return the slots of windows that are over. The caller must remove them."""
        if self._first_end - 1 > watermark:
            return np.empty(0, np.int64)
        slots = self.table.live()
        starts = self.starts(slots)
        closed = self.are_closed(starts, watermark)
        self._first_end = int(starts[~closed].min(initial=END - self.size)) + self.size
        return slots[closed]

    def starts(self, slots: Slots) -> Slots:
        """Return the start of each slot's window."""
        starts: Slots = self.table.keys(slots)[-1].cast(pa.int64()).to_numpy()
        return starts

    def in_order(self, slots: Slots) -> Slots:
        """Sort slots by window, then by key. Slot numbers cannot be used: they change after a restore."""
        *keys, starts = self.table.keys(slots)
        columns = [starts, pa.array(self.table.hashes(slots)), *keys]
        names = [str(index) for index in range(len(columns))]
        order = pc.sort_indices(pa.table(columns, names=names), [(name, "ascending") for name in names])
        return np.asarray(slots[order.to_numpy()])

    def checkpoint(self) -> pa.RecordBatch:
        return self.table.checkpoint()

    def snapshot(self) -> pa.RecordBatch:
        return self.table.snapshot()

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        return self.table.snapshot_pieces()

    def restore(self, block: pa.RecordBatch) -> None:
        self._note_starts(block)
        self.table.restore(block)

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        self._note_starts(block)
        self.table.restore_part(block, part, share)

    def parts_restored(self, share: Share) -> None:
        self.table.parts_restored(share)

    def _note_starts(self, block: pa.RecordBatch) -> None:
        self._first_end = min(
            self._first_end, int(_starts_in(block).min(initial=END - self.size)) + self.size
        )


def _starts_in(block: pa.RecordBatch) -> Slots:
    starts: Slots = block.column(START).cast(pa.int64()).to_numpy()
    return starts

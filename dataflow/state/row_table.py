"""State of rows that wait for event time: each has a number and is kept until it is taken.

A row's key in the blocks is its number (`_row`), in order of arrival. `_hash` is that of the exchange for a
keyed operator, so that the rows of a shard are a slice. Rows are in chunks with their minimum time, so a
punctuation touches only chunks with rows for it. An operator sorts its output: a restore changes the order.
Rows that are searched for by key and time are in runs (`IndexedRows`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import DELETED_COLUMN, block_schema, make_block, newest_rows
from checkpoint.errors import RecordTooLargeError, UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, hash_rows
from dataflow.core.event_time import Watermark
from dataflow.errors import SchemaError
from dataflow.state.base import GatheredParts, Share, StateTable
from dataflow.state.key_index import Hashes, Slots, hashes_of, in_pieces
from dataflow.values.columns import concatenated

ROW: Final = "_row"
_RELEASE: Final = "_release"
"""The time at which a row is taken."""


@dataclass(slots=True)
class Rows:
    """Some rows with the times at which they are taken, their hashes and numbers. Arrays of equal length."""

    batch: pa.RecordBatch
    times: npt.NDArray[np.int64]
    hashes: Hashes
    numbers: Slots

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Slots) -> "Rows":
        batch = self.batch.take(pa.array(rows))
        return Rows(batch, self.times[rows], self.hashes[rows], self.numbers[rows])


@dataclass(frozen=True, slots=True, eq=False)
class RowChunk:
    """Some rows, and the watermark from which on they are searched for rows to take. size: chunks of one size
    may be merged, by a table that does so.
    """

    rows: Rows
    due: Watermark
    size: int | None = None


def one_batch(parts: Sequence[pa.RecordBatch], columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows of batches as one. Raises RecordTooLargeError if that has too much text."""
    try:
        return concatenated(parts, columns)
    except pa.ArrowInvalid as error:
        raise RecordTooLargeError(
            f"{sum(part.num_rows for part in parts)} rows of the state of an operator on one worker do not"
            f" fit one batch, in which a column of text or lists has at most 2 GiB: {error}",
            remedy="run the region with more workers, or keep less: shorter times of waiting, fewer columns",
        ) from error


def joined(parts: Sequence[Rows], columns: pa.Schema) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(
        one_batch([part.batch for part in parts], columns),
        np.concatenate([np.empty(0, np.int64), *(part.times for part in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.numbers for part in parts)]),
    )


def check_stored(columns: pa.Schema) -> None:
    """Raise SchemaError for column names that this state uses itself."""
    reserved = [name for name in columns.names if name in (ROW, _RELEASE)]
    if reserved:
        raise SchemaError(f"column {reserved[0]!r} has a name that this operator's state uses; rename it")


class RowTable(StateTable):
    """The waiting rows of one operator on one worker."""

    def __init__(self, columns: pa.Schema, *, keyed: bool = True) -> None:
        """keyed: the rows belong to the worker of their key, so `add` is given their hashes."""
        self._columns = columns
        self._keyed = self.by_key = keyed
        self._gathered = GatheredParts()
        fields = [pa.field(field.name, field.type) for field in columns]
        self._blocks = block_schema(
            pa.schema([(ROW, pa.int64())]), pa.schema([*fields, (_RELEASE, pa.int64())])
        )
        self._chunks: list[RowChunk] = []
        self._removed: list[tuple[Hashes, Slots]] = []
        """Rows that are in stored blocks and were taken since the last checkpoint."""
        self._next = 0
        self._stored = 0
        """Rows with smaller numbers are in stored blocks."""

    def __len__(self) -> int:
        return sum(len(chunk.rows) for chunk in self._chunks)

    @property
    def bytes_held(self) -> int:
        return sum(chunk.rows.batch.nbytes + 24 * len(chunk.rows) for chunk in self._chunks)

    def add(self, batch: pa.RecordBatch, times: npt.NDArray[np.int64], hashes: Hashes | None = None) -> None:
        """Add rows that wait until their times are reached."""
        self.insert(self.numbered(batch, times, hashes))

    def numbered(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64], hashes: Hashes | None = None
    ) -> Rows:
        """Return rows with their numbers, to be inserted before the next checkpoint."""
        numbers: Slots = np.arange(self._next, self._next + len(times))
        self._next += len(times)
        given = hash_keys([pa.array(numbers)]) if hashes is None else hashes
        return Rows(batch.select(self._columns.names), times, given, numbers)

    def insert(self, rows: Rows) -> None:
        """Add rows that have numbers."""
        if len(rows):
            self._chunks.append(self._chunk(rows))

    def _chunk(self, rows: Rows) -> RowChunk:
        return RowChunk(rows, int(rows.times.min()))

    def all(self) -> Rows:
        return joined([chunk.rows for chunk in self._chunks], self._columns)

    def take(self, watermark: Watermark) -> Rows:
        """Remove and return the rows whose time is at or below the watermark."""
        due = [chunk for chunk in self._chunks if chunk.due <= watermark]
        return self._remove(due, lambda rows: rows.times <= watermark)

    def keep_only(self, numbers: Slots) -> None:
        """Remove all rows except these."""
        self._remove(self._chunks, lambda rows: ~np.isin(rows.numbers, numbers))

    def _remove(self, chunks: Sequence[RowChunk], goes: Callable[[Rows], npt.NDArray[np.bool_]]) -> Rows:
        """Remove and return the rows of these chunks for which `goes` is true."""
        searched = {*chunks}
        removed, kept = [], [chunk for chunk in self._chunks if chunk not in searched]
        for chunk in chunks:
            gone = goes(chunk.rows)
            if not gone.any():
                kept.append(chunk)
                continue
            removed.append(chunk.rows.take(np.flatnonzero(gone)))
            if not gone.all():
                kept.append(self._chunk(chunk.rows.take(np.flatnonzero(~gone))))
        self._chunks = kept
        return self._deleted_later(joined(removed, self._columns))

    def _deleted_later(self, removed: Rows) -> Rows:
        """Note for the next checkpoint which of these rows are stored: a restore would bring them back."""
        stored = removed.numbers < self._stored
        if stored.any():
            self._removed.append((removed.hashes[stored], removed.numbers[stored]))
        return removed

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self) -> pa.RecordBatch:
        self._compact()
        parts = [chunk.rows for chunk in self._chunks if int(chunk.rows.numbers.max()) >= self._stored]
        new = joined(
            [rows.take(np.flatnonzero(rows.numbers >= self._stored)) for rows in parts], self._columns
        )
        hashes = np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in self._removed)])
        numbers = np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers in self._removed)])
        self._removed, self._stored = [], self._next
        return self._block(new, hashes, numbers)

    def _compact(self) -> None:
        """Make one chunk of all rows."""
        if len(self._chunks) > 1:
            self._chunks = [self._chunk(self.all())]

    def snapshot(self) -> pa.RecordBatch:
        return self._block(self.all(), np.empty(0, np.uint64), np.empty(0, np.int64))

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        rows = self.all()
        for piece in in_pieces(np.arange(len(rows)), rows.hashes):
            yield self._block(rows.take(piece), np.empty(0, np.uint64), np.empty(0, np.int64))

    def _block(self, rows: Rows, removed_hashes: Hashes, removed: Slots) -> pa.RecordBatch:
        columns = [*rows.batch.columns, pa.array(rows.times)]
        values = [pa.concat_arrays([column, pa.nulls(len(removed), column.type)]) for column in columns]
        numbers = pa.array(np.concatenate([rows.numbers, removed]))
        deleted = np.arange(len(rows) + len(removed)) >= len(rows)
        hashes = np.concatenate([rows.hashes, removed_hashes])
        return make_block(self._blocks, [numbers], hashes, values, deleted)

    def restore(self, block: pa.RecordBatch) -> None:
        deleted = block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        numbers = block.column(ROW).to_numpy()
        if deleted.any():
            self._remove(self._chunks, lambda rows: np.isin(rows.numbers, numbers[deleted]))
            self._removed = []
        rows = block.filter(pc.invert(block.column(DELETED_COLUMN)))
        if rows.num_rows:
            batch = pa.RecordBatch.from_arrays(
                [rows.column(name) for name in self._columns.names], schema=self._columns
            )
            times = rows.column(_RELEASE).to_numpy()
            self.insert(Rows(batch, times, hashes_of(rows), rows.column(ROW).to_numpy()))
        self._next = self._stored = max(self._next, int(numbers.max(initial=-1)) + 1)

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        if self._keyed or part.stays:
            self._gathered.add(share.of_part(block, part) if self._keyed else block, part)

    def parts_restored(self, share: Share) -> None:
        """Number the rows of all parts anew, in the order of the parts and of arrival."""
        if self._keyed:
            self._remove(self._chunks, lambda rows: ~share.owns(rows.hashes))
        for _, blocks in self._gathered.take(share.parts):
            rows = newest_rows(blocks)
            rows = rows.take(pa.array(np.argsort(rows.column(ROW).to_numpy())))
            batch = pa.RecordBatch.from_arrays(
                [rows.column(name) for name in self._columns.names], schema=self._columns
            )
            self.add(batch, rows.column(_RELEASE).to_numpy(), hashes_of(rows) if self._keyed else None)


def check_order(columns: pa.Schema) -> None:
    """Raise SchemaError if rows of these columns cannot be ordered."""
    for field in columns:
        if not has_order(field.type):
            try:
                hash_rows([pa.array([], field.type)])
            except (UnsupportedKeyTypeError, pa.ArrowException):
                raise SchemaError(
                    f"rows of equal time are ordered by all columns, and {field.name!r} of type {field.type}"
                    " has values that cannot be compared; remove it in a map before"
                ) from None


@lru_cache(maxsize=4_096)
def has_order(kind: pa.DataType) -> bool:
    """Return whether values of this type have an order of their own; lists, maps and structs have none."""
    if pa.types.is_nested(kind):
        return False
    try:
        pc.sort_indices(pa.array([], kind))
    except pa.ArrowNotImplementedError:
        return False
    return True


def in_order(batch: pa.RecordBatch, times: npt.NDArray[np.int64]) -> Slots:
    """Return the order by time, then by all columns that have an order, then by a digest of the others: it
    depends on the rows alone (replication-transparency IV-C).
    """
    return ascending([pa.array(times), *order_columns(batch.columns)])


def ascending(columns: Sequence[pa.Array]) -> Slots:
    """Return the order of rows by these columns."""
    names = [str(index) for index in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    order: Slots = pc.sort_indices(table, [(name, "ascending") for name in names]).to_numpy()
    return order.astype(np.int64)


def order_columns(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Return columns whose ascending order is one of these columns' rows: only equal rows are ties."""
    by = [part for column in columns if has_order(column.type) for part in (column, *zeros_by_sign(column))]
    others = [column for column in columns if not has_order(column.type)]
    if others:
        # A digest of 16 bytes: rows that differ and have the same one would keep the order of their arrival.
        halves = hash_rows(others, signed_zeros=True).view(np.uint64).reshape(-1, 2)
        by += [pa.array(half) for half in halves.T]
    return by


def zeros_by_sign(column: pa.Array) -> list[pa.Array]:
    """Return a column that puts -0.0 before 0.0, if there is a -0.0."""
    # Arrow takes them for equal, and would leave them in the order of arrival.
    if not pa.types.is_floating(column.type):
        return []
    values = column.fill_null(1).to_numpy()
    negative = (values == 0) & np.signbit(values)
    return [pa.array(~negative)] if negative.any() else []

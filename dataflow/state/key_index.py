"""The index of a keyed operator: key to slot. Vectorized: no Python object per key, no loop per row.

Slots are numbered from 0 in order of first appearance, and never move or disappear; what an operator keeps
per key is an array indexed by slot. It is an open addressing table over the low bits of `_hash` (the high
bits choose the worker), at most half full, with linear probing. A whole batch probes at once; nearly all rows
are placed in two rounds. Against a Python dict, with 456,000 words: 0.2 instead of 0.7 microseconds a row,
and a third of the memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.key_hash import HASH_COLUMN
from dataflow import limits
from dataflow.errors import SchemaError
from dataflow.schema import type_text

# --- columns of keys ----------------------------------------------------------------------------------------
#
# Growing columns of keys in plain buffers: ten million keys are ten million values, not objects.
#
# They append, take and compare values; they know no hashes. Null is an ordinary key that equals itself, as
# in GROUP BY. `HeapColumn` stores strings and binaries as a heap of bytes and an array of ends;
# `FixedColumn` stores fixed-width types as the bytes of the values. Both return Arrow arrays that share or
# copy the buffers.

Slots: TypeAlias = npt.NDArray[np.int64]

_FIRST_ROWS = 1024
_FIRST_BYTES = 16 * 1024


def grown(array: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    """Return the array, or a copy of at least twice the size with room for `needed`: appends are amortized
    O(1).
    """
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


def position_in_run(is_first: npt.NDArray[np.bool_]) -> Slots:
    """Return the position of each row in its run, from 0. is_first: whether a row begins a run."""
    begins = np.flatnonzero(is_first)
    return np.asarray(np.arange(len(is_first)) - np.repeat(begins, np.diff(np.r_[begins, len(is_first)])))


class _Nulls:
    """The nulls of a growing column. It costs no memory and no time before the first null."""

    def __init__(self) -> None:
        self._null: npt.NDArray[np.bool_] | None = None

    @property
    def bytes_held(self) -> int:
        return 0 if self._null is None else self._null.nbytes

    def append(self, values: pa.Array, rows: int) -> None:
        """Note values that follow `rows` others."""
        if self._null is None:
            if not values.null_count:
                return
            self._null = np.zeros(_FIRST_ROWS, np.bool_)
            self._null = grown(self._null, rows)
            self._null[:rows] = False
        self._null = grown(self._null, rows + len(values))
        self._null[rows : rows + len(values)] = _null_mask(values)

    def mask(self, slots: Slots) -> npt.NDArray[np.bool_] | None:
        """Return which of these slots are null; None if the column has no null."""
        return None if self._null is None else self._null[slots]

    def put_into(self, values: pa.Array, slots: Slots) -> pa.Array:
        mask = self.mask(slots)
        if mask is None or not mask.any():
            return values
        return pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)

    def equal(self, same: npt.NDArray[np.bool_], slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Correct `same`, which also compared the bytes under nulls, where either side is null."""
        mask = self.mask(slots)
        if mask is None:
            return same if not values.null_count else same & ~_null_mask(values)
        null = _null_mask(values)
        return (same & ~mask & ~null) | (mask & null)


def _null_mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return mask


class HeapColumn:
    """A growing column of strings or binaries: value i is heap[ends[i]:ends[i+1]]."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._large = pa.large_string() if kind.equals(pa.string()) else pa.large_binary()
        self._heap: npt.NDArray[np.uint8] = np.empty(_FIRST_BYTES, np.uint8)
        self._ends: npt.NDArray[np.int64] = np.zeros(_FIRST_ROWS + 1, np.int64)
        self._nulls = _Nulls()
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        return self._heap.nbytes + self._ends.nbytes + self._nulls.bytes_held

    def append(self, values: pa.Array) -> None:
        """Append values. Arrays returned before stay valid."""
        count = len(values)
        if not count:
            return
        self._nulls.append(values, self._rows)
        buffers = values.buffers()
        ends = np.frombuffer(buffers[1], np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
        begin, size = int(ends[0]), int(ends[-1] - ends[0])
        used = int(self._ends[self._rows])
        self._heap = grown(self._heap, used + size)
        self._ends = grown(self._ends, self._rows + count + 1)
        if size:
            self._heap[used : used + size] = np.frombuffer(buffers[2], np.uint8)[begin : begin + size]
        self._ends[self._rows + 1 : self._rows + count + 1] = ends[1:] - begin + used
        self._rows += count

    def take(self, slots: Slots) -> pa.Array:
        """Return the values at these slots, in the column's own type."""
        return self._nulls.put_into(self._raw(slots), slots)

    def equal(self, slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the value at slots[i] is values[i]."""
        same = pc.equal(self._raw(slots), values)
        if same.null_count:
            same = same.fill_null(fill_value=False)
        return self._nulls.equal(same.to_numpy(zero_copy_only=False), slots, values)

    def _raw(self, slots: Slots) -> pa.Array:
        return self._view().take(pa.array(slots)).cast(self._kind)

    def _view(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._heap)]
        return pa.Array.from_buffers(self._large, self._rows, buffers)


class FixedColumn:
    """A growing column of numbers, booleans, dates and the like: a value of 1, 2, 4, 8 or 16 bytes a row."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._boolean = pa.types.is_boolean(kind)
        width = 1 if self._boolean else kind.bit_width // 8
        self._values: npt.NDArray[Any] = np.empty(_FIRST_ROWS, np.dtype(f"V{width}"))
        self._nulls = _Nulls()
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        return self._values.nbytes + self._nulls.bytes_held

    def append(self, values: pa.Array) -> None:
        self._nulls.append(values, self._rows)
        raw = self._raw(values)
        self._values = grown(self._values, self._rows + len(raw))
        self._values[self._rows : self._rows + len(raw)] = raw
        self._rows += len(raw)

    def take(self, slots: Slots) -> pa.Array:
        raw = self._values[slots]
        if self._boolean:
            found = pa.array(raw.view(np.uint8).astype(np.bool_))
        else:
            buffers = [None, pa.py_buffer(np.ascontiguousarray(raw))]
            found = pa.Array.from_buffers(self._kind, len(raw), buffers)
        return self._nulls.put_into(found, slots)

    def equal(self, slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the value at slots[i] is values[i], byte for byte."""
        same: npt.NDArray[np.bool_] = self._values[slots] == self._raw(values)
        return self._nulls.equal(same, slots, values)

    def _raw(self, values: pa.Array) -> npt.NDArray[Any]:
        if self._boolean:
            if values.null_count:
                values = values.fill_null(fill_value=False)
            bits: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(np.uint8)
            return bits.view(self._values.dtype)
        all_rows: npt.NDArray[Any] = np.frombuffer(values.buffers()[1], self._values.dtype)
        return all_rows[values.offset : values.offset + len(values)]


class StructColumn:
    """A growing column of structs: a column for each field."""

    def __init__(self, kind: pa.StructType) -> None:
        self._kind = kind
        self._fields = [key_column(field.type) for field in kind]
        self._nulls = _Nulls()
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        return self._nulls.bytes_held + sum(field.bytes_held for field in self._fields)

    def append(self, values: pa.Array) -> None:
        self._nulls.append(values, self._rows)
        for at, field in enumerate(self._fields):
            field.append(values.field(at))
        self._rows += len(values)

    def take(self, slots: Slots) -> pa.Array:
        mask = self._nulls.mask(slots)
        nulls = None if mask is None else pa.array(mask)
        fields = [field.take(slots) for field in self._fields]
        return pa.StructArray.from_arrays(fields, fields=list(self._kind), mask=nulls)

    def equal(self, slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the value at slots[i] is values[i]: a null in a field equals a null there."""
        same: npt.NDArray[np.bool_] = np.ones(len(slots), np.bool_)
        for at, field in enumerate(self._fields):
            same &= field.equal(slots, values.field(at))
        return self._nulls.equal(same, slots, values)


KeyColumn: TypeAlias = HeapColumn | FixedColumn | StructColumn


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type can be (part of) a key: of normalized values, equality must be equality
    of bytes.
    """
    types = pa.types
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return 0 < len(set(names)) == len(names) and all(is_key_type(field.type) for field in kind)
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal128(kind)
    )


def key_column(kind: pa.DataType) -> KeyColumn:
    """Return an empty column for keys of this type. Raises SchemaError for a type that cannot be a key."""
    if not is_key_type(kind):
        raise SchemaError(
            f"{type_text(kind)} cannot be a key; use string, binary, boolean, a number, date, timestamp, or a"
            " struct of these"
        )
    if pa.types.is_struct(kind):
        return StructColumn(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return HeapColumn(kind)
    return FixedColumn(kind)


def normalized_key(values: pa.Array) -> pa.Array:
    """Return key values as Spark groups by them: -0.0 is 0.0, and every NaN has the same bytes. It must be
    applied before `find_or_add`, which compares bytes.
    """
    if pa.types.is_struct(values.type):
        fields = [values.field(at) for at in range(values.type.num_fields)]
        changed = [normalized_key(field) for field in fields]
        if all(one is other for one, other in zip(fields, changed, strict=True)):
            return values
        nulls = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(changed, fields=list(values.type), mask=nulls)
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.fill_null(1).to_numpy(zero_copy_only=False)
    nan = np.isnan(numbers)
    if not (nan.any() or (np.signbit(numbers) & (numbers == 0)).any()):
        return values
    made = np.where(nan, numbers.dtype.type(np.nan), numbers + numbers.dtype.type(0))
    return pa.array(made, values.type, mask=values.is_null().to_numpy(zero_copy_only=False))


# --- the index ----------------------------------------------------------------------------------------------

Hashes: TypeAlias = npt.NDArray[np.uint64]

Weights: TypeAlias = npt.NDArray[np.int64]

WEIGHT_COLUMN: Final = "_weight"

_EMPTY: Final = -1
_FIRST_CELLS: Final = 4096


def hashes_of(batch: pa.RecordBatch) -> Hashes:
    """Return the `_hash` column as numbers."""
    hashes: Hashes = batch.column(HASH_COLUMN).to_numpy()
    return hashes


def weights_of(batch: pa.RecordBatch) -> Weights | None:
    """Return the `_weight` column, None if each row counts once."""
    if batch.schema.get_field_index(WEIGHT_COLUMN) < 0:
        return None
    weights: Weights = batch.column(WEIGHT_COLUMN).to_numpy()
    return weights


class KeyIndex:
    """The keys of one operator on one worker. Invariant: `2 * len(self) <= cells`, so probing ends."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        self._columns = [key_column(kind) for kind in kinds]
        self._hashes: Hashes = np.empty(_FIRST_CELLS // 2, np.uint64)
        self._rows = 0
        self._cell_slots: Slots = np.full(_FIRST_CELLS, _EMPTY, np.int64)
        self._cell_hashes: Hashes = np.zeros(_FIRST_CELLS, np.uint64)

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        """The memory of the index in bytes, without what operators keep per slot."""
        own = self._hashes.nbytes + self._cell_slots.nbytes + self._cell_hashes.nbytes
        return own + sum(column.bytes_held for column in self._columns)

    def hashes(self, slots: Slots) -> Hashes:
        hashes: Hashes = self._hashes[slots]
        return hashes

    def keys(self, slots: Slots) -> list[pa.Array]:
        """Return the key columns of these slots, in the order of `slots`."""
        return [column.take(slots) for column in self._columns]

    def find_or_add(self, keys: Sequence[pa.Array], hashes: Hashes) -> Slots:
        """Return the slot of each row's key; new keys get the next slots. A batch may contain a key twice."""
        count = len(hashes)
        self._reserve(count)
        slots: Slots = np.empty(count, np.int64)
        rows: Slots = np.arange(count)
        cells = self._first_cells(hashes)
        while len(rows):
            rows, cells = self._probe(keys, hashes, rows, cells, slots)
        return slots

    def _first_cells(self, hashes: Hashes) -> Slots:
        return (hashes & np.uint64(len(self._cell_slots) - 1)).astype(np.int64)

    def _probe(
        self, keys: Sequence[pa.Array], hashes: Hashes, rows: Slots, cells: Slots, slots: Slots
    ) -> tuple[Slots, Slots]:
        """Run one round over `rows`, each at its cell. Return the rows that are not placed, and their next
        cells.
        """
        # A cell that holds the row's hash: its key is compared, since two keys with one hash get two slots.
        # Rows whose cell is empty write their number into it: the one that is read back has won, and is a new
        # key. The others probe the same cell again, which may hold their own key now. Each round places the
        # winners, so the rounds end.
        found = self._cell_slots[cells]
        empty = found == _EMPTY
        same = ~empty & (self._cell_hashes[cells] == hashes[rows])
        at = np.flatnonzero(same)
        if len(at):
            same[at] = self._equal(keys, rows[at], found[at])
            at = np.flatnonzero(same)
            slots[rows[at]] = found[at]
        again = ~same
        cells = cells + again  # the next cell, for those that met another key
        vacant = np.flatnonzero(empty)
        if len(vacant):
            cells[vacant] -= 1  # a row that lost probes the same cell again
            again[self._settle(keys, hashes, rows, cells, vacant, slots)] = False
        return rows[again], cells[again] & (len(self._cell_slots) - 1)

    def _settle(
        self,
        keys: Sequence[pa.Array],
        hashes: Hashes,
        rows: Slots,
        cells: Slots,
        vacant: Slots,
        slots: Slots,
    ) -> Slots:
        """Give each empty cell to one row, as a new key. Return which of `rows` (as indices) won."""
        wanted = cells[vacant]
        self._cell_slots[wanted] = vacant
        winners = vacant[self._cell_slots[wanted] == vacant]
        won_rows, won_cells = rows[winners], cells[winners]
        new = np.arange(self._rows, self._rows + len(winners))
        self._cell_slots[won_cells] = new
        self._cell_hashes[won_cells] = hashes[won_rows]
        self._hashes[new] = hashes[won_rows]
        self._rows += len(winners)
        slots[won_rows] = new
        chosen = None if len(won_rows) == len(hashes) else pa.array(won_rows)
        for column, values in zip(self._columns, keys, strict=True):
            column.append(values if chosen is None else values.take(chosen))
        return np.asarray(winners)

    def _equal(self, keys: Sequence[pa.Array], rows: Slots, slots: Slots) -> npt.NDArray[np.bool_]:
        chosen = None if len(rows) == len(keys[0]) else pa.array(rows)
        result: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        for column, values in zip(self._columns, keys, strict=True):
            result &= column.equal(slots, values if chosen is None else values.take(chosen))
        return result

    def _reserve(self, more: int) -> None:
        needed = self._rows + more
        if needed > limits.state_rows_max:
            raise SchemaError(
                f"one operator on one worker holds at most {limits.state_rows_max} keys; use more workers"
            )
        self._hashes = grown(self._hashes, needed)
        cells = len(self._cell_slots)
        if 2 * needed <= cells:
            return
        while 2 * needed > cells:
            cells *= 2
        self._rebuild(cells)

    def _rebuild(self, cells: int) -> None:
        """Build a larger table of the same keys. They are all different, so no key is compared."""
        self._cell_slots = np.full(cells, _EMPTY, np.int64)
        self._cell_hashes = np.zeros(cells, np.uint64)
        slots: Slots = np.arange(self._rows)
        at = self._first_cells(self._hashes[: self._rows])
        while len(slots):
            vacant = self._cell_slots[at] == _EMPTY
            self._cell_slots[at[vacant]] = slots[vacant]
            placed = self._cell_slots[at] == slots
            self._cell_hashes[at[placed]] = self._hashes[slots[placed]]
            slots, at = slots[~placed], (at[~placed] + 1) & (cells - 1)


def in_pieces(slots: Slots, hashes: Hashes) -> Iterator[Slots]:
    """Yield these slots in hash order, in pieces of the size of a snapshot block."""
    ordered = slots[np.argsort(hashes)]
    for begin in range(0, len(ordered), limits.snapshot_piece_rows):
        yield ordered[begin : begin + limits.snapshot_piece_rows]


class SlotArray:
    """One number per slot, growing with the index; new slots start with `fill`."""

    def __init__(self, dtype: Any, fill: Any = 0) -> None:
        self._fill = fill
        self.values: npt.NDArray[Any] = np.full(_FIRST_CELLS // 2, fill, dtype)

    def reach(self, slots: int) -> npt.NDArray[Any]:
        before = len(self.values)
        if slots > before:
            self.values = grown(self.values, slots)
            self.values[before:] = self._fill
        return self.values


_touched_rows_min: Final = 1 << 20
"""Below this number of rows it does not matter that a slot is noted for each of them."""


class TouchedSlots:
    """The slots that rows touched in the current step, or in the current micro-batch."""

    def __init__(self) -> None:
        self._batches: list[Slots] = []
        self._rows, self._rows_max = 0, _touched_rows_min
        self._position_of = SlotArray(np.int64, fill=-1)
        self._next_position = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, slots: Slots, slot_count: int) -> None:
        self._batches.append(slots)
        self._rows += len(slots)
        if self._rows > self._rows_max:  # a micro-batch may have any number of rows
            distinct = self.take(slot_count)
            self._batches, self._rows = [distinct], len(distinct)
            self._rows_max = max(_touched_rows_min, 2 * len(distinct))

    def clear(self) -> None:
        self._batches, self._rows = [], 0

    def take(self, slot_count: int) -> Slots:
        """Return the slots, each once, by their first occurrence, and discard them."""
        if not self._batches:
            return np.empty(0, np.int64)
        slots = np.concatenate(self._batches)
        self.clear()
        # One array is both the flag and the position: written from the last row to the first, it keeps the
        # position of the first row of each slot. Positions never repeat, so it need not be cleared.
        position_of = self._position_of.reach(slot_count)
        positions = np.arange(self._next_position, self._next_position + len(slots))
        position_of[slots[::-1]] = positions[::-1]
        self._next_position += len(slots)
        touched: Slots = slots[position_of[slots] == positions]
        return touched

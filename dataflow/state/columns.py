"""Growing columns of keys in plain buffers: ten million keys are ten million values, not objects.

They append, take and compare values; they know no hashes. Null is an ordinary key that equals itself, as in
GROUP BY. `HeapColumn` stores strings and binaries as a heap of bytes and an array of ends; `FixedColumn`
stores fixed-width types as the bytes of the values. Both return Arrow arrays that share or copy the buffers.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import SchemaError

Slots: TypeAlias = npt.NDArray[np.int64]

_FIRST_ROWS = 1024
_FIRST_BYTES = 16 * 1024


def grown(array: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    """Return the array, or a copy with room for `needed`.

    The size at least doubles, so appends are amortized O(1).
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
        """Return the values of these slots with nulls restored."""
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
    """A growing column of strings or binaries.

    Invariant: `ends[i] <= ends[i + 1]`; value i is heap[ends[i]:ends[i+1]].
    """

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
        return self._nulls.equal(_as_mask(same), slots, values)

    def _raw(self, slots: Slots) -> pa.Array:
        return self._view().take(pa.array(slots)).cast(self._kind)

    def _view(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._heap)]
        return pa.Array.from_buffers(self._large, self._rows, buffers)


class FixedColumn:
    """A growing column of integers, booleans, dates and the like: a value of 1, 2, 4, 8 or 16 bytes a row."""

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
        """Append values."""
        self._nulls.append(values, self._rows)
        raw = self._raw(values)
        self._values = grown(self._values, self._rows + len(raw))
        self._values[self._rows : self._rows + len(raw)] = raw
        self._rows += len(raw)

    def take(self, slots: Slots) -> pa.Array:
        """Return the values at these slots."""
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


def _as_mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask


KeyColumn: TypeAlias = HeapColumn | FixedColumn


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type can be (part of) a key: equality must be equality of bytes."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal128(kind)
    )


def key_column(kind: pa.DataType) -> KeyColumn:
    """Return an empty column for keys of this type. Raises SchemaError for a type that cannot be a key."""
    if not is_key_type(kind):
        raise SchemaError(
            f"{kind} cannot be a key; use string, binary, boolean, an integer, date, timestamp or decimal"
        )
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return HeapColumn(kind)
    return FixedColumn(kind)

"""Growing columns of keys, held as plain buffers so that ten million keys are ten million values and no
objects.

Rules of this file: append, take, compare; no hashes and no meaning. A key has no nulls (the exchange refuses
them). `HeapColumn` keeps strings and binaries as one heap of bytes and one array of ends; `FixedColumn`
keeps anything of a fixed width as the bytes of its values. Both hand out Arrow arrays that share or copy
those buffers.
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
    """The same array, or a copy with room for `needed`, at least doubled: appends cost a constant each."""
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


class HeapColumn:
    """A growing column of strings or binaries. Invariant: `ends[i] <= ends[i + 1]`, value i is
    heap[ends[i]:ends[i+1]].
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._large = pa.large_string() if kind.equals(pa.string()) else pa.large_binary()
        self._heap: npt.NDArray[np.uint8] = np.empty(_FIRST_BYTES, np.uint8)
        self._ends: npt.NDArray[np.int64] = np.zeros(_FIRST_ROWS + 1, np.int64)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        return self._heap.nbytes + self._ends.nbytes

    def append(self, values: pa.Array) -> None:
        """Add values at the end. Those handed out before stay valid."""
        count = len(values)
        if not count:
            return
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
        """The values at these slots, in the column's own type."""
        return self._view().take(pa.array(slots)).cast(self._kind)

    def equal(self, slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Whether the value at slots[i] is values[i]."""
        return _as_mask(pc.equal(self.take(slots), values))

    def _view(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._heap)]
        return pa.Array.from_buffers(self._large, self._rows, buffers)


class FixedColumn:
    """A growing column of integers, booleans, dates and the like: one 1, 2, 4, 8 or 16 byte value a row."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._boolean = pa.types.is_boolean(kind)
        width = 1 if self._boolean else kind.bit_width // 8
        self._values: npt.NDArray[Any] = np.empty(_FIRST_ROWS, np.dtype(f"V{width}"))
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def bytes_held(self) -> int:
        return self._values.nbytes

    def append(self, values: pa.Array) -> None:
        """Add values at the end."""
        raw = self._raw(values)
        self._values = grown(self._values, self._rows + len(raw))
        self._values[self._rows : self._rows + len(raw)] = raw
        self._rows += len(raw)

    def take(self, slots: Slots) -> pa.Array:
        """The values at these slots."""
        raw = self._values[slots]
        if self._boolean:
            return pa.array(raw.view(np.uint8).astype(np.bool_))
        return pa.Array.from_buffers(self._kind, len(raw), [None, pa.py_buffer(np.ascontiguousarray(raw))])

    def equal(self, slots: Slots, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Whether the value at slots[i] is values[i], byte for byte."""
        result: npt.NDArray[np.bool_] = self._values[slots] == self._raw(values)
        return result

    def _raw(self, values: pa.Array) -> npt.NDArray[Any]:
        if self._boolean:
            bits: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(np.uint8)
            return bits.view(self._values.dtype)
        all_rows: npt.NDArray[Any] = np.frombuffer(values.buffers()[1], self._values.dtype)
        return all_rows[values.offset : values.offset + len(values)]


def _as_mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return mask


KeyColumn: TypeAlias = HeapColumn | FixedColumn


def is_key_type(kind: pa.DataType) -> bool:
    """Whether a column of this type can be (part of) a key: equality must be plain equality of bytes."""
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
    """An empty column for keys of this type. Raises SchemaError for a type that cannot be a key."""
    if not is_key_type(kind):
        raise SchemaError(
            f"{kind} cannot be a key; use string, binary, boolean, an integer, date, timestamp or decimal"
        )
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return HeapColumn(kind)
    return FixedColumn(kind)

"""Encode and decode values of a declared state as bytes, for a state on disk.

Columns to bytes; no store, no keys.

A value is one msgpack array with a *cell* for each declared column:

    type                                                  cell
    numbers, strings, bytes, lists and structs of them    the msgpack value
    dates, times, timestamps                              the integer that Arrow keeps
    all others (decimals, maps, lists of times)           a record batch of one row, without its schema

The last form is correct for all types, but slow. Nothing is pickled.

Values are encoded in groups, through Arrow arrays, because writes are batched; they are decoded one by one. A
decoded value is normalised (`values/columns.py`), as after a restore.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.state.migration import Value
from dataflow.values.nested import values_of
from dataflow.values.python_rows import time_reader

Cell: TypeAlias = Any


class ValueBytes:
    """The codec for states of these columns. Raises SchemaError for a column that cannot be encoded."""

    def __init__(self, columns: pa.Schema) -> None:
        self._names: list[str] = columns.names
        self._cells = [_cells_of(field) for field in columns]
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list).decode

    def of_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return the bytes of each row."""
        cells = [kind.of_array(column) for kind, column in zip(self._cells, columns, strict=True)]
        return [self._encode(row) for row in zip(*cells, strict=True)]

    def of_values(self, values: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Return the bytes of each value. All must fit the columns."""
        return self.of_columns(
            [
                pa.array([value[name] for value in values], kind.type)
                for name, kind in zip(self._names, self._cells, strict=True)
            ]
        )

    def value(self, data: bytes) -> Value:
        """Return the value of these bytes."""
        cells = self._decode(data)
        found = {}
        for name, kind, cell in zip(self._names, self._cells, cells, strict=True):
            found[name] = cell if cell is None or kind.to_python is None else kind.to_python(cell)
        return found

    def columns(self, rows: Sequence[bytes | None]) -> list[pa.Array]:
        """Return the columns of the decoded values, null where there is none."""
        nothing = [None] * len(self._names)
        cells = [nothing if data is None else self._decode(data) for data in rows]
        return [kind.to_array([row[index] for row in cells]) for index, kind in enumerate(self._cells)]


class _AsItIs:
    """Cells of types that msgpack knows."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self.to_python: Callable[[Cell], Any] | None = None

    def of_array(self, column: pa.Array) -> list[Cell]:
        cells: list[Cell] = column.to_pylist()
        return cells

    def to_array(self, cells: list[Cell]) -> pa.Array:
        return pa.array(cells, self.type)


class _AsInteger(_AsItIs):
    """Cells of times: their integers."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._integers = pa.int32() if kind.bit_width == 32 else pa.int64()
        self.to_python = self._reader(kind)

    def of_array(self, column: pa.Array) -> list[Cell]:
        cells: list[Cell] = column.cast(self._integers).to_pylist()
        return cells

    def to_array(self, cells: list[Cell]) -> pa.Array:
        return pa.array(cells, self._integers).cast(self.type)

    def _reader(self, kind: pa.DataType) -> Callable[[Cell], Any]:
        if pa.types.is_timestamp(kind) and kind.unit != "ns":
            return time_reader(kind)
        return lambda cell: pa.scalar(cell, self._integers).cast(kind).as_py()


class _AsBatch(_AsItIs):
    """Cells of all other types: Arrow batches of one row."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._schema = pa.schema([("cell", kind)])
        self.to_python = lambda cell: values_of(self._array(cell))[0]

    def of_array(self, column: pa.Array) -> list[Cell]:
        valid = column.is_valid().to_pylist()
        return [
            pa.record_batch([column.slice(row, 1)], schema=self._schema).serialize().to_pybytes()
            if valid[row]
            else None
            for row in range(len(column))
        ]

    def to_array(self, cells: list[Cell]) -> pa.Array:
        found = [pa.nulls(1, self.type) if cell is None else self._array(cell) for cell in cells]
        return pa.concat_arrays(found) if found else pa.array([], self.type)

    def _array(self, cell: bytes) -> pa.Array:
        return pa.ipc.read_record_batch(pa.py_buffer(cell), self._schema).column(0)


def _cells_of(field: pa.Field) -> _AsItIs:
    kind, types = field.type, pa.types
    if _has_dictionary(kind):
        raise SchemaError(
            f"state column {field.name!r} of type {kind} cannot be kept on disk: declare the type of its"
            " values, or keep this state in memory"
        )
    if _is_plain(kind):
        return _AsItIs(kind)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind):
        return _AsInteger(kind)
    return _AsBatch(kind)


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return len(set(names)) == len(names) and all(_is_plain(field.type) for field in kind)
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_dictionary(kind))

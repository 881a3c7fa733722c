"""The values that user functions keep for each key, on the local disk: LMDB as scratch space (decision 0130).

The journal is authoritative: the file is filled from its blocks at each reset, so nothing is synced. A slot
with a value has a *disk key*, a number that is its key in LMDB, assigned in order, so new values fill whole
pages. Values that were read or changed since the last write are *cached* as objects; when a limit is reached,
the changed ones are written in one transaction, and the cache is emptied.
"""

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow import limits
from dataflow.errors import SchemaError
from dataflow.state.accumulators import SlotNumbers
from dataflow.state.key_index import Slots
from dataflow.state.migration import Value
from dataflow.state.scratch import of_scratch, scratch_directory
from dataflow.values.kinds import values_of
from dataflow.values.python_rows import time_reader

if TYPE_CHECKING:
    import lmdb


# --- the bytes of a value -----------------------------------------------------------------------------------
#
# Encode and decode values of a declared state as bytes, for a state on disk.
#
# Columns to bytes; no store, no keys.
#
# A value is one msgpack array with a *cell* for each declared column:
#
#     type                                                  cell
#     numbers, strings, bytes, lists and structs of them    the msgpack value
#     dates, times, timestamps                              the integer that Arrow keeps
#     all others (decimals, maps, lists of times)           a record batch of one row, without its schema
#
# The last form is correct for all types, but slow. Nothing is pickled.
#
# Values are encoded in groups, through Arrow arrays, because writes are batched; they are decoded one by
# one. A decoded value is normalised (`values/columns.py`), as after a restore.

Cell: TypeAlias = Any


class ValueBytes:
    """The codec for states of these columns. Raises SchemaError for a column that cannot be encoded."""

    def __init__(self, columns: pa.Schema) -> None:
        self._names: list[str] = columns.names
        self._cells = [_cells_of(field) for field in columns]
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list).decode

    def of_columns(self, columns: Sequence[pa.Array]) -> list[bytes]:
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


# --- the store ----------------------------------------------------------------------------------------------

_NO_KEY: Final = -1
_key: Callable[[int], bytes] = struct.Struct("=Q").pack
"""LMDB's integer keys are in native byte order."""


class DiskValueStore:
    """`ValueStore` in an LMDB file, which is created with the first value."""

    # The file has no name: it is unlinked once open, so its space is freed when the process ends in any way.
    def __init__(self, columns: pa.Schema, scratch: str = "") -> None:
        """scratch: a directory, created if needed; '' for that of temporary files. Raises SchemaError for
        columns that cannot be stored as bytes, and if lmdb is not installed. Other methods raise UserFault.
        """
        try:
            import lmdb  # only graphs that use it need it
        except ModuleNotFoundError:
            raise SchemaError(
                "a state on disk needs the package lmdb; install it where the region is started and where its"
                " workers run: pip install 'dos-journal[dataflow]'"
            ) from None
        self._lmdb = lmdb
        self._bytes = ValueBytes(columns)
        self._scratch = scratch
        self._file: _File | None = None
        self._disk_keys = SlotNumbers(np.int64, _NO_KEY)
        self._slots = 0
        self._next = 0
        self._cached: dict[int, Value] = {}
        """Slot -> its value."""
        self._changed: set[int] = set()
        self._freed: list[Slots] = []
        """Disk keys that are free but still in the file."""
        self._cached_max = limits.cached_values_min

    # --- slots ----------------------------------------------------------------------------------------------

    def reach(self, slots: int) -> None:
        self._disk_keys.reach(slots)
        self._slots = slots

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._cached.pop(slot, None)
            self._changed.discard(slot)
        self._free(slots)

    def keep(self, slots: Slots) -> None:
        if not len(slots):
            self.close()
        self.settle()
        self._cached.clear()
        before = self._disk_keys.values[: self._slots]
        self._freed.append(np.setdiff1d(before, [_NO_KEY, *before[slots]]))
        self._disk_keys.keep(slots)
        self._slots = len(slots)

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        present: npt.NDArray[np.bool_] = self._disk_keys.values[slots] != _NO_KEY
        return present

    def _free(self, slots: Slots) -> None:
        disk_keys = self._disk_keys.values[slots]
        self._freed.append(disk_keys[disk_keys != _NO_KEY])
        self._disk_keys.values[slots] = _NO_KEY

    # --- values ---------------------------------------------------------------------------------------------

    def get(self, slot: int) -> Value | None:
        disk_key = int(self._disk_keys.values[slot])
        if disk_key == _NO_KEY:
            return None
        cached = self._cached.get(slot)
        if cached is None:
            self._evict()
            with self._disk_errors("read"):
                cached = self._cached[slot] = self._bytes.value(self._opened().get(disk_key))
        return cached

    def put(self, slot: int, value: Value | None) -> None:
        if value is None:
            self.clear(np.array([slot]))
            return
        if self._disk_keys.values[slot] == _NO_KEY:
            self._evict()
            self._disk_keys.values[slot] = self._next
            self._next += 1
        self._cached[slot] = value
        self._changed.add(slot)

    def settle(self) -> None:
        if not self._changed and not self._freed:
            return
        slots = sorted(self._changed)
        rows = self._bytes.of_values([self._cached[slot] for slot in slots])
        self._write(self._disk_keys.values[np.array(slots, np.int64)], rows)
        self._changed.clear()
        if rows:
            mean = sum(map(len, rows)) // len(rows) + 1
            fitting = limits.cached_bytes_max // mean
            self._cached_max = min(limits.cached_values_max, max(limits.cached_values_min, fitting))

    def _evict(self) -> None:
        if len(self._cached) >= self._cached_max:
            self.settle()
            self._cached.clear()

    # --- blocks ---------------------------------------------------------------------------------------------

    def store(self, slots: Slots) -> list[pa.Array]:
        self.settle()
        parts = [self._bytes.columns(self._read(part)) for part in _pieces(slots)]
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]

    def _read(self, slots: Slots) -> list[bytes | None]:
        with self._disk_errors("read"):
            disk_keys = self._disk_keys.values[slots].tolist()
            return [None if disk_key == _NO_KEY else self._opened().get(disk_key) for disk_key in disk_keys]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._disk_keys.values[slots] = np.arange(self._next, self._next + len(slots))
        self._next += len(slots)
        done = 0
        for part in _pieces(slots):
            rows = self._bytes.of_columns([column.slice(done, len(part)) for column in columns])
            self._write(self._disk_keys.values[part], rows)
            done += len(part)

    def _write(self, disk_keys: Slots, rows: Sequence[bytes]) -> None:
        freed, self._freed = self._freed, []
        with self._disk_errors("written"):
            self._opened().write(np.concatenate([np.empty(0, np.int64), *freed]), disk_keys, rows)

    # --- the file -------------------------------------------------------------------------------------------

    def _opened(self) -> "_File":
        if self._file is None:
            self._file = _File(self._lmdb, scratch_directory(self._scratch))
        return self._file

    def _disk_errors(self, action: str) -> AbstractContextManager[None]:
        return of_scratch(self._scratch, f"its state could not be {action}", self._lmdb.Error)

    def counters(self) -> dict[str, int]:
        return {"disk_bytes": 0 if self._file is None else self._file.size}

    def close(self) -> None:
        self._cached.clear()
        self._changed.clear()
        self._freed.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


class _File:
    """An unnamed LMDB database. Raises OSError and lmdb.Error; earlier writes stay."""

    def __init__(self, library: Any, directory: Path) -> None:
        self._library = library
        made, path = tempfile.mkstemp(prefix="dos-state-", dir=directory)
        os.close(made)
        try:
            # No other process opens it, so no lock; neighbors are rarely read together, so no readahead.
            self._env: lmdb.Environment = library.open(
                path,
                subdir=False,
                map_size=limits.disk_map_bytes_min,
                sync=False,
                metasync=False,
                lock=False,
                readahead=False,
                meminit=False,
                max_dbs=1,
            )
        finally:
            Path(path).unlink()
        self._db = self._env.open_db(b"values", integerkey=True)
        self._reader: lmdb.Transaction | None = None

    @property
    def size(self) -> int:
        info = self._env.info()
        return int((info["last_pgno"] + 1) * self._env.stat()["psize"])

    def get(self, disk_key: int) -> bytes:
        if self._reader is None:
            self._reader = self._env.begin(db=self._db)
        data = self._reader.get(_key(disk_key))
        assert isinstance(data, bytes), f"disk key {disk_key} has no value"
        return data

    def write(self, freed: Slots, disk_keys: Slots, rows: Sequence[bytes]) -> None:
        """Delete the keys `freed` and write `rows` under `disk_keys`, in one transaction."""
        self._end_read()
        items = sorted(zip(disk_keys.tolist(), rows, strict=True))
        while True:
            try:
                with self._env.begin(write=True, db=self._db) as transaction:
                    for disk_key in freed.tolist():
                        transaction.delete(_key(disk_key))
                    transaction.cursor().putmulti([(_key(disk_key), row) for disk_key, row in items])
                return
            except self._library.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _end_read(self) -> None:
        """End the read transaction: pages that it can see are not reused."""
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def close(self) -> None:
        self._end_read()
        self._env.close()


def _pieces(slots: Slots) -> Iterator[Slots]:
    """Yield pieces of the slots, at least one."""
    for begin in range(0, max(len(slots), 1), limits.cached_values_max):
        yield slots[begin : begin + limits.cached_values_max]

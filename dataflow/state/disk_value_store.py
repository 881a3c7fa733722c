"""The values that user functions keep for each key, on the local disk: LMDB as scratch space (decision 0130).

This module maps slots to places in a file, and decides what is in memory. `value_bytes.py` encodes values.

The journal is authoritative: the file is discarded at each reset and filled from the journal's blocks. So
nothing is synced, and the file has no name: it is unlinked as soon as it is open, and its space is freed when
the process ends in any way.

A slot with a value has a *place*, a number that is its key in LMDB. Places are assigned in order, so new
values fill whole pages. Values that were read or changed since the last write are *held* as objects: each is
decoded once, and changed ones are encoded together. When more are held than `held_values_max` or
`held_bytes_max` allow, the changed ones are written in one transaction and all are dropped. The memory map is
page cache, which the operating system reclaims if necessary.

Errors of a full or failing disk are reported as in `scratch.py`.
"""

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow import limits
from dataflow.errors import SchemaError
from dataflow.state.accumulators import SlotNumbers
from dataflow.state.columns import Slots
from dataflow.state.migration import Value
from dataflow.state.scratch import of_scratch, scratch_directory
from dataflow.state.value_bytes import ValueBytes

if TYPE_CHECKING:
    import lmdb

_NOWHERE: Final = -1
_key: Callable[[int], bytes] = struct.Struct("=Q").pack
"""LMDB's integer keys are in native byte order."""


class DiskValueStore:
    """`ValueStore` in an LMDB file, which is created with the first value.

    All methods that read or write raise UserFault; the held values are invalid then.
    """

    def __init__(self, columns: pa.Schema, scratch: str = "") -> None:
        """scratch: a directory, created if it does not exist; '' for the system's directory for temporary
        files.

        Raises SchemaError for columns that cannot be stored as bytes, and if lmdb is not installed.
        """
        try:
            import lmdb  # only graphs that use it need it
        except ModuleNotFoundError:
            raise SchemaError(
                "a state on disk needs the package lmdb; install it where the region is started and where its"
                " workers run: pip install 'dos-journal[spark]'"
            ) from None
        self._lmdb = lmdb
        self._bytes = ValueBytes(columns)
        self._scratch = scratch
        self._file: _File | None = None
        self._places = SlotNumbers(np.int64, _NOWHERE)
        self._slots = 0
        self._next = 0
        self._held: dict[int, Value] = {}
        """Slot -> its value."""
        self._changed: set[int] = set()
        self._gone: list[Slots] = []
        """Places that are free but still in the file."""
        self._held_max = limits.held_values_min

    # --- slots ----------------------------------------------------------------------------------------------

    def reach(self, slots: int) -> None:
        self._places.reach(slots)
        self._slots = slots

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._held.pop(slot, None)
            self._changed.discard(slot)
        self._free(slots)

    def keep(self, slots: Slots) -> None:
        if not len(slots):
            self.close()
        self.settle()
        self._held.clear()
        before = self._places.values[: self._slots]
        self._gone.append(np.setdiff1d(before, [_NOWHERE, *before[slots]]))
        self._places.keep(slots)
        self._slots = len(slots)

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._places.values[slots] != _NOWHERE
        return found

    def _free(self, slots: Slots) -> None:
        places = self._places.values[slots]
        self._gone.append(places[places != _NOWHERE])
        self._places.values[slots] = _NOWHERE

    # --- values ---------------------------------------------------------------------------------------------

    def get(self, slot: int) -> Value | None:
        place = int(self._places.values[slot])
        if place == _NOWHERE:
            return None
        found = self._held.get(slot)
        if found is None:
            self._make_room()
            with self._telling("read"):
                found = self._held[slot] = self._bytes.value(self._opened().get(place))
        return found

    def put(self, slot: int, value: Value | None) -> None:
        if value is None:
            self.clear(np.array([slot]))
            return
        if self._places.values[slot] == _NOWHERE:
            self._make_room()
            self._places.values[slot] = self._next
            self._next += 1
        self._held[slot] = value
        self._changed.add(slot)

    def settle(self) -> None:
        if not self._changed and not self._gone:
            return
        slots = sorted(self._changed)
        rows = self._bytes.of_values([self._held[slot] for slot in slots])
        self._write(self._places.values[np.array(slots, np.int64)], rows)
        self._changed.clear()
        if rows:
            mean = sum(map(len, rows)) // len(rows) + 1
            fitting = limits.held_bytes_max // mean
            self._held_max = min(limits.held_values_max, max(limits.held_values_min, fitting))

    def _make_room(self) -> None:
        if len(self._held) >= self._held_max:
            self.settle()
            self._held.clear()

    # --- blocks ---------------------------------------------------------------------------------------------

    def store(self, slots: Slots) -> list[pa.Array]:
        self.settle()
        parts = [self._bytes.columns(self._read(part)) for part in _pieces(slots)]
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]

    def _read(self, slots: Slots) -> list[bytes | None]:
        with self._telling("read"):
            places = self._places.values[slots].tolist()
            return [None if place == _NOWHERE else self._opened().get(place) for place in places]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._places.values[slots] = np.arange(self._next, self._next + len(slots))
        self._next += len(slots)
        done = 0
        for part in _pieces(slots):
            rows = self._bytes.of_columns([column.slice(done, len(part)) for column in columns])
            self._write(self._places.values[part], rows)
            done += len(part)

    def _write(self, places: Slots, rows: Sequence[bytes]) -> None:
        gone, self._gone = self._gone, []
        with self._telling("written"):
            self._opened().write(np.concatenate([np.empty(0, np.int64), *gone]), places, rows)

    # --- the file -------------------------------------------------------------------------------------------

    def _opened(self) -> "_File":
        if self._file is None:
            self._file = _File(self._lmdb, scratch_directory(self._scratch))
        return self._file

    def _telling(self, what: str) -> AbstractContextManager[None]:
        return of_scratch(self._scratch, f"its state could not be {what}", self._lmdb.Error)

    def counters(self) -> dict[str, int]:
        return {"disk_bytes": 0 if self._file is None else self._file.size}

    def close(self) -> None:
        self._held.clear()
        self._changed.clear()
        self._gone.clear()
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

    def get(self, place: int) -> bytes:
        """Return the bytes at a place."""
        if self._reader is None:
            self._reader = self._env.begin(db=self._db)
        found = self._reader.get(_key(place))
        assert isinstance(found, bytes), f"place {place} has no value"
        return found

    def write(self, gone: Slots, places: Slots, rows: Sequence[bytes]) -> None:
        """Delete the places `gone` and write `rows` to `places`, in one transaction."""
        self._let_go()
        items = sorted(zip(places.tolist(), rows, strict=True))
        while True:
            try:
                with self._env.begin(write=True, db=self._db) as transaction:
                    for place in gone.tolist():
                        transaction.delete(_key(place))
                    transaction.cursor().putmulti([(_key(place), row) for place, row in items])
                return
            except self._library.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def _let_go(self) -> None:
        """End the read transaction: pages that it can see are not reused."""
        if self._reader is not None:
            self._reader.abort()
            self._reader = None

    def close(self) -> None:
        self._let_go()
        self._env.close()


def _pieces(slots: Slots) -> Iterator[Slots]:
    """Yield pieces of the slots, at least one."""
    for begin in range(0, max(len(slots), 1), limits.held_values_max):
        yield slots[begin : begin + limits.held_values_max]

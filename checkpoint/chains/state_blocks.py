"""State blocks: the changes of one operator's state in one checkpoint, as an Arrow IPC stream.

This file builds, encodes, decodes and folds blocks; `state_store.py` stores them.

A block is one journal record STATE_BLOCK, ints = [checkpoint], strings = [operator, Arrow IPC stream of one
batch], whose bodies are compressed in large blocks. Its columns, in this order:

| column | content |
|---|---|
| key columns | |
| `_hash` uint64 | xxh3-64 of the key's canonical bytes (`core/records/layout.py`) |
| value columns | null if deleted |
| `_deleted` bool | whether the key was deleted |

A row of a later block replaces an earlier one of the same key. Blocks of one checkpoint contain a key at most
once.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.ipc import get_record_batch_size

from checkpoint import limits
from checkpoint.errors import RecordTooLargeError
from checkpoint.key_hash import HASH_COLUMN, U64, hash_keys, kind_of
from dos_protocol.errors import CorruptDataError

BLOCK_VERSION: Final = 1
DELETED_COLUMN: Final = "_deleted"
_VERSION_KEY: Final = b"dos.block"
_KEYS_KEY: Final = b"dos.keys"
_STATE_KEY: Final = b"dos.state"
_UID_KEY: Final = b"dos.uid"
_stream_overhead_bytes: Final = 16 * 1024
_CODEC: Final = "zstd"
_false: Final = pa.array([False])[0]


# The metadata makes a block self-describing: `dos.block` is the version of this layout, `dos.keys` the number
# of key columns. A state that its user declared with a version above 1 carries it as `dos.state`, for a later
# version to migrate from. A value column whose identity is not its name carries that as `dos.uid`: after a
# change of the graph, older blocks may have another column of that name (`stored_names`).
def block_schema(keys: Any, values: Any, *, state_version: int = 1) -> Any:
    """Return the Arrow schema of an operator's blocks, from those of its key and value columns.

    state_version: of the values, as their user declares it. Raises UnsupportedKeyTypeError for a key column
    without canonical bytes, ValueError for a reserved or duplicate name.
    """
    for field in keys:
        kind_of(field.type)
    names = [*keys.names, *values.names]
    bad = sorted({name for name in names if name in (HASH_COLUMN, DELETED_COLUMN) or names.count(name) > 1})
    if bad or not keys.names:
        raise ValueError(
            f"column names of a state must differ, {HASH_COLUMN} and {DELETED_COLUMN} are reserved: {bad}"
        )
    fields = [
        *keys,
        pa.field(HASH_COLUMN, pa.uint64(), nullable=False),
        *(_value_field(field) for field in values),
        pa.field(DELETED_COLUMN, pa.bool_(), nullable=False),
    ]
    metadata = {_VERSION_KEY: str(BLOCK_VERSION).encode(), _KEYS_KEY: str(len(keys.names)).encode()}
    if state_version != 1:
        metadata[_STATE_KEY] = str(state_version).encode()
    return pa.schema(fields, metadata=metadata)


def _value_field(field: Any) -> Any:
    uid = (field.metadata or {}).get(_UID_KEY)
    return pa.field(field.name, field.type, metadata=None if uid is None else {_UID_KEY: uid})


def with_uid(field: Any, uid: str) -> Any:
    """Return the field of a value column that is identified by a uid, which may be its name."""
    return field if uid == field.name else field.with_metadata({_UID_KEY: uid.encode()})


def stored_names(schema: Any) -> dict[str, str]:
    """Return the uid of each column of a block -> its name there."""
    uids = [(field.metadata or {}).get(_UID_KEY, field.name.encode()).decode() for field in schema]
    return dict(zip(uids, schema.names, strict=True))


def state_version_of(schema: Any) -> int:
    """Return the version of the values in a block, as their user declared it; 1 if it has none."""
    return int((schema.metadata or {}).get(_STATE_KEY, 1))


def key_columns(schema: Any) -> list[str]:
    """Return the names of the key columns of a block's schema. Raises ValueError if it is not one."""
    metadata = schema.metadata or {}
    if metadata.get(_VERSION_KEY) != str(BLOCK_VERSION).encode():
        raise ValueError(
            f"expected a state block of layout {BLOCK_VERSION}, its schema has metadata {metadata!r}"
        )
    count = int(metadata[_KEYS_KEY])
    names: list[str] = schema.names
    if not 0 < count < len(names) or names[count] != HASH_COLUMN or names[-1] != DELETED_COLUMN:
        raise ValueError(f"columns {names} are not those of a state block with {count} keys")
    return names[:count]


def make_block(
    schema: Any,
    keys: Sequence[Any],
    hashes: U64,
    values: Sequence[Any],
    deleted: "npt.NDArray[np.bool_] | None" = None,
) -> Any:
    """Return a block of changed rows in any order, sorted by hash. Each key occurs at most once."""
    order = np.argsort(hashes)
    rows = pa.array(order)
    is_deleted = np.zeros(len(hashes), np.bool_) if deleted is None else deleted
    columns = [
        *(column.take(rows) for column in keys),
        pa.array(hashes[order], pa.uint64()),
        *(column.take(rows) for column in values),
        pa.array(is_deleted[order], pa.bool_()),
    ]
    return pa.record_batch(columns, schema=schema)


HASH_MAX: Final = (1 << 64) - 1


class EncodedBlock(NamedTuple):
    """A block of a table. first, last: the hashes of its first and last row; all hashes if its rows do not
    belong to the worker of their key, so that every reader needs it.
    """

    table: str
    data: bytes
    """The Arrow IPC stream."""
    first: int = 0
    last: int = HASH_MAX


def encoded_blocks(table: str, block: Any, *, by_key: bool) -> list[EncodedBlock]:
    """Return the blocks of a table, several above a limit, none if it is empty, in the order of their hashes.
    by_key: whether each row belongs to the worker of its hash. Raises RecordTooLargeError if the state of
    one key is above the limit.
    """
    found = []
    for piece in _pieces(block):
        hashes = piece.column(HASH_COLUMN)
        bounds = (hashes[0].as_py(), hashes[-1].as_py()) if by_key else ()
        found.append(EncodedBlock(table, _encoded(piece), *bounds))
    return found


def encode_block(block: Any) -> list[bytes]:
    """Return the IPC streams of `encoded_blocks`."""
    return [_encoded(piece) for piece in _pieces(block)]


def _pieces(block: Any) -> Iterator[Any]:
    # Rows are sorted by `_hash`, so a shard (a range of the hash) is a slice.
    if not block.num_rows:
        return
    parts = max(
        -(-block.num_rows // limits.state_block_rows_max),
        -(-block.nbytes // (limits.state_block_bytes_max - _stream_overhead_bytes)),
    )
    if parts > 1 and block.num_rows > 1:
        half = block.num_rows // 2
        yield from _pieces(block.slice(0, half))
        yield from _pieces(block.slice(half))
        return
    # `nbytes` of a slice of lists may count the lists of other rows.
    if block.nbytes > limits.row_bytes_max and (size := get_record_batch_size(block)) > limits.row_bytes_max:
        key = {name: block.column(name)[0].as_py() for name in key_columns(block.schema)}
        raise RecordTooLargeError(
            f"the state of the key {key!r:.200} has {size / (1 << 20):.1f} MiB, and at most"
            f" {limits.row_bytes_max >> 20} MiB are stored of one key",
            remedy="correct the function so that it keeps less of one key, for example by a key for each day,"
            " and run the region again: it continues from its last checkpoint",
        )
    yield block


def _encoded(block: Any) -> bytes:
    # docs/decisions/0296-state-blocks-are-compressed.md has ratios and times. A reader learns the codec from
    # the Arrow stream.
    codec = _CODEC if block.nbytes >= limits.state_compressed_bytes_min else None
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, block.schema, options=options) as writer:
        writer.write_batch(block)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_block(data: bytes, *, where: str = "a state block") -> Any:
    """Decode and verify the block in an IPC stream. Raises CorruptDataError, and MemoryError if this process
    has too little memory, which says nothing about the block.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batches = list(reader)
        if len(batches) != 1:
            raise ValueError(f"{len(batches)} batches in one block")
        block = batches[0]
        key_columns(block.schema)
        block.validate(full=True)
        hashes = block.column(HASH_COLUMN).to_numpy()
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowMemoryError,
        ValueError,
        OSError,
        KeyError,
    ) as error:
        if _is_shortage(error):
            raise MemoryError(f"{where}: too little memory to decode it: {error}") from error
        raise CorruptDataError(
            where, 0, "an Arrow IPC stream of one state block", str(error)[:300]
        ) from error
    if block.column(HASH_COLUMN).null_count or np.any(hashes[1:] < hashes[:-1]):
        raise CorruptDataError(where, 0, f"rows sorted by {HASH_COLUMN}", "another order")
    return block


def _is_shortage(error: Exception) -> bool:
    """Return whether a sound block may cause this error in a process with too little memory. A length that no
    sound block has is a damaged one.
    """
    if isinstance(error, pa.ArrowMemoryError):
        wanted = re.search(r"size (\d+)", str(error))
        return wanted is None or int(wanted[1]) <= limits.data_bytes_max
    return isinstance(error, OSError) and "not enough memory" in str(error)  # of the decompression


def with_columns(block: Any, schema: Any) -> Any:
    """Return a block with the columns that a later graph stores: a column that it did not have is null, and
    one that the later graph does not have is left out. Raises ValueError for blocks of another state.
    """
    if block.schema.equals(schema, check_metadata=True):
        return block
    names = stored_names(block.schema)
    keys = key_columns(schema)
    if block.schema.metadata != schema.metadata or key_columns(block.schema) != keys:
        raise ValueError(f"blocks of two states: {block.schema}, and {schema}")
    columns = []
    for uid, name in stored_names(schema).items():
        field = schema.field(name)
        if uid in names:
            columns.append(block.column(names[uid]))
        elif uid != name:  # it came later
            columns.append(pa.nulls(block.num_rows, field.type))
        else:
            raise ValueError(f"a block lacks the column {name!r}: it has {', '.join(block.schema.names)}")
        if not columns[-1].type.equals(field.type):
            raise ValueError(f"the column {name!r} of a block is {columns[-1].type}, and was {field.type}")
    return pa.record_batch(columns, schema=schema)


def newest_rows(blocks: Sequence[Any], *, keep_deleted: bool = False) -> Any:
    """Return one block with the newest row of each key, sorted by hash, without deleted ones unless
    `keep_deleted`. `blocks` are oldest first; the result has the columns of the last one. Raises ValueError
    for no blocks or those of another state.
    """
    if not blocks:
        raise ValueError("no blocks to fold: their schema is unknown")
    schema = blocks[-1].schema
    table = pa.Table.from_batches([with_columns(block, schema) for block in blocks]).combine_chunks()
    hashes = _numpy(table.column(HASH_COLUMN))
    order, second_hashes = _newest_last(table, key_columns(schema), hashes)
    kept = order[_last_of_key(table, key_columns(schema), hashes[order], second_hashes[order], order)]
    if not keep_deleted:
        kept = kept[~_numpy(table.column(DELETED_COLUMN))[kept]]
    columns = [_combined(column).take(pa.array(kept)) for column in table.columns]
    return pa.record_batch(columns, schema=schema)


def _newest_last(table: Any, keys: list[str], hashes: U64) -> tuple[Any, U64]:
    """Return the order by hash, by a second hash of all key columns, and by age; and that hash."""
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    if not np.any(in_order[1:] == in_order[:-1]):
        return order, hashes
    second_hashes = hash_keys([table.column(name) for name in keys])
    return np.lexsort((second_hashes, hashes)), second_hashes


def _combined(column: Any) -> Any:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _numpy(column: Any) -> Any:
    return _combined(column).to_numpy(zero_copy_only=False)


def _last_of_key(table: Any, keys: list[str], hashes: U64, second_hashes: U64, order: Any) -> Any:
    """Return a mask of the sorted rows that are the last of their key."""
    same_hash = (hashes[1:] == hashes[:-1]) & (second_hashes[1:] == second_hashes[:-1])
    same_key = same_hash.copy()
    rows = pa.array(order)
    for name in keys:
        column = _combined(table.column(name)).take(rows)
        same_key &= _equal(column.slice(0, max(len(column) - 1, 0)), column.slice(1))
    last = np.ones(len(hashes), np.bool_)
    last[:-1] = ~same_key
    for row in np.flatnonzero(same_hash & ~same_key).tolist():
        _mark_last_by_key(table, keys, hashes, order, last, row)
    return last


def _equal(left: Any, right: Any) -> Any:
    if pa.types.is_struct(left.type):
        nulls = [one.is_null().to_numpy(zero_copy_only=False) for one in (left, right)]
        same = np.ones(len(left), np.bool_)
        for at in range(left.type.num_fields):
            same &= _equal(left.field(at), right.field(at))
        return (same & ~nulls[0] & ~nulls[1]) | (nulls[0] & nulls[1])
    equal = pc.fill_null(pc.equal(left, right), _false)
    equal = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
    if pa.types.is_floating(left.type):
        nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(equal, pc.fill_null(nan, _false))
    return equal.to_numpy(zero_copy_only=False)


def _mark_last_by_key(table: Any, keys: list[str], hashes: U64, order: Any, last: Any, row: int) -> None:
    """Handle different keys with equal hashes (as null and ''): comparing neighbors is not sufficient for
    them.
    """
    begin, end = np.searchsorted(hashes, hashes[row], "left"), np.searchsorted(hashes, hashes[row], "right")
    newest: dict[tuple[Any, ...], int] = {}
    for index in range(int(begin), int(end)):
        key = tuple(_hashable(table.column(name)[int(order[index])].as_py()) for name in keys)
        newest[key] = index
    last[begin:end] = False
    last[list(newest.values())] = True


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_hashable, value.values()))
    return "nan" if isinstance(value, float) and math.isnan(value) else value


class StateFold:
    """Folds the blocks of several operators, oldest first, in memory for about twice the state."""

    def __init__(self, *, keep_deleted: bool = False) -> None:
        self._keep_deleted = keep_deleted
        self._blocks: dict[str, list[Any]] = {}
        self._rows: dict[str, int] = {}
        self._folded: dict[str, int] = {}

    def add(self, operator: str, block: Any) -> None:
        """Add the next block of an operator."""
        blocks = self._blocks.setdefault(operator, [])
        blocks.append(block)
        self._rows[operator] = self._rows.get(operator, 0) + block.num_rows
        if self._rows[operator] > max(2 * self._folded.get(operator, 0), limits.state_fold_rows_min):
            self._fold(operator)

    def operators(self) -> list[str]:
        """Return the operators that have a block."""
        return sorted(self._blocks)

    def take(self, operator: str) -> Any | None:
        """Remove and return the state of an operator as one block, without deleted rows unless kept; None if
        it has none.
        """
        blocks = self._blocks.pop(operator, None)
        self._rows.pop(operator, None)
        self._folded.pop(operator, None)
        return newest_rows(blocks, keep_deleted=self._keep_deleted) if blocks else None

    def _fold(self, operator: str) -> None:
        block = newest_rows(self._blocks[operator], keep_deleted=self._keep_deleted)
        self._blocks[operator] = [block]
        self._rows[operator] = self._folded[operator] = block.num_rows


def hash_range(block: Any, begin: int, end: int) -> Any:
    """Return the rows whose `_hash` is in [begin, end)."""
    hashes = block.column(HASH_COLUMN).to_numpy()
    first = int(np.searchsorted(hashes, np.uint64(begin)))
    last = len(hashes) if end >= 1 << 64 else int(np.searchsorted(hashes, np.uint64(end)))
    return block.slice(first, last - first)


def slices(block: Any, rows_max: int = limits.state_block_rows_max) -> Iterator[Any]:
    """Yield the block in pieces, for a snapshot."""
    for start in range(0, block.num_rows, rows_max):
        yield block.slice(start, rows_max)

"""The exchange: which worker a row belongs to, what is merged before it is sent, and the bytes of a batch.

The hash of a key is that of `checkpoint.key_hash` (xxh3-64 of its canonical bytes), which state blocks also
carry. The layout maps it to a worker. If all consumers of a keyed stream accept weights, rows that are equal
in the columns they need become one row whose `_weight` is the sum: a word count sends a quarter of its rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import Layout
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from checkpoint.limits import row_bytes_max
from dataflow import limits
from dataflow.core.plan import NodePlan
from dataflow.errors import SchemaError, UserFault
from dataflow.graph.plan import GraphPlan
from dataflow.operators.routing import KeyBySpec
from dataflow.state.base import in_ranges
from dataflow.state.key_index import WEIGHT_COLUMN, Hashes, KeyIndex, Weights, hashes_of, weights_of
from dataflow.values.columns import column_of


class Partitioner:
    """The division of a step's batches among the workers, for one `key_by` on one worker."""

    def __init__(
        self, keys: Sequence[str], layout: Layout, workers: int, merge_columns: Sequence[str] | None
    ) -> None:
        """merge_columns: the columns that consumers need, if all accept weights; None: do not merge rows."""
        self._keys = tuple(keys)
        self._merge = None if merge_columns is None else tuple(merge_columns)
        self._workers = workers
        bounds, owners = layout.upper_bounds()
        self._bounds = np.array(bounds, np.uint64)
        self._owners = np.array(owners, np.int64)

    def partition(self, batches: Sequence[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
        """Return the batches of each worker, in an order that depends only on the rows."""
        if not batches:
            return [[] for _ in range(self._workers)]
        if self._merge is not None:
            batches = [merge_rows(batches, self._merge)]
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(self._workers)]
        for batch in batches:
            columns = [batch.column(name) for name in self._keys]
            hashed = batch.append_column(HASH_COLUMN, pa.array(key_hashes(columns), pa.uint64()))
            for worker, part in enumerate(self._split(hashed)):
                if part.num_rows:
                    parts[worker].append(part)
        return parts

    def _split(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if self._workers == 1:
            return [batch]
        # By the ranges of the layout, as state is divided: elsewhere, a row would begin another state.
        owners = self._owners[np.searchsorted(self._bounds, hashes_of(batch), side="left")]
        return [batch.take(pa.array(np.flatnonzero(owners == worker))) for worker in range(self._workers)]


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Return `hash_keys` of the columns; repeated keys are hashed once."""
    # Finding equal keys takes a quarter of the time of hashing them, but doubles the time if few keys repeat.
    if len(columns) > 1 or len(columns[0]) < 2 * limits.key_sample_rows or _is_nested(columns[0]):
        return hash_keys(columns)
    sample = columns[0].slice(0, limits.key_sample_rows)
    if pc.count_distinct(sample).as_py() > limits.key_sample_rows * limits.key_sample_distinct_max:
        return hash_keys(columns)
    encoded = columns[0].dictionary_encode(null_encoding="encode")
    hashes: Hashes = hash_keys([encoded.dictionary])[encoded.indices.to_numpy()]
    return hashes


def key_owner(
    graph: GraphPlan, node: NodePlan, layout: Layout, worker: int
) -> Callable[[Sequence[Any]], bool] | None:
    """Return a function that tells whether the rows of a key come to an operator here; None without a key. It
    raises SchemaError for values that are no key of the stream.
    """
    spec = graph.specs[node.inputs[0]] if node.inputs else None
    columns = graph.schemas[node.inputs[0]] if node.inputs else None
    if not isinstance(spec, KeyBySpec) or columns is None:
        return None
    fields = [columns.field(name) for name in spec.keys]
    ranges = [(one.begin, one.end) for one in layout.shards_of(worker)]

    def owns(key: Sequence[Any]) -> bool:
        try:
            values = [column_of([value], field) for value, field in zip(key, fields, strict=True)]
        except (ValueError, TypeError, UserFault) as error:
            expected = ", ".join(f"{field.name} {field.type}" for field in fields)
            raise SchemaError(f"{key!r} is no key of the stream ({expected}): {error}") from None
        return bool(in_ranges(hash_keys(values), ranges, layout.shard_bits)[0])

    return owns


class Broadcaster:
    """Sends all rows to every worker, for one broadcast table on one worker."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def partition(self, batches: Sequence[pa.RecordBatch]) -> list[list[pa.RecordBatch]]:
        return [list(batches) for _ in range(self._workers)]


def merge_rows(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    """Merge equal rows, in order of first appearance; `_weight` is the sum of theirs, 1 each by default."""
    table = pa.Table.from_batches([batch.select(columns) for batch in batches])
    weights = _all_weights(batches)
    if any(_is_nested(column) for column in table.columns):
        merged, sums = _merge_nested(table, weights)
    elif len(columns) == 1:
        values, sums = _merge_one(table.column(0).combine_chunks(), weights)
        merged = [values]
    else:
        merged, sums = _merge_many(table, weights)
    return pa.RecordBatch.from_arrays([*merged, pa.array(sums, pa.int64())], names=[*columns, WEIGHT_COLUMN])


def _all_weights(batches: Sequence[pa.RecordBatch]) -> Weights | None:
    known = [weights_of(batch) for batch in batches]
    if all(weights is None for weights in known):
        return None
    return np.concatenate(
        [
            np.ones(batch.num_rows, np.int64) if weights is None else weights
            for batch, weights in zip(batches, known, strict=True)
        ]
    )


def _merge_one(column: pa.Array, weights: Weights | None) -> tuple[pa.Array, Weights]:
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    count = len(encoded.dictionary)
    if weights is None:
        return encoded.dictionary, np.bincount(indices, minlength=count).astype(np.int64, copy=False)
    sums: Weights = np.zeros(count, np.int64)
    np.add.at(sums, indices, weights)
    return encoded.dictionary, sums


def _is_nested(column: Any) -> bool:
    return bool(pa.types.is_nested(column.type))


def _merge_nested(table: pa.Table, weights: Weights | None) -> tuple[list[Any], Weights]:
    """Merge rows with structs, which Arrow does not group by."""
    columns = [_one_array(column) for column in table.columns]
    index = KeyIndex([column.type for column in columns])
    slots = index.find_or_add(columns, hash_keys(columns))
    sums: Weights = np.zeros(len(index), np.int64)
    np.add.at(sums, slots, 1 if weights is None else weights)
    return index.keys(np.arange(len(index))), sums


def _merge_many(table: pa.Table, weights: Weights | None) -> tuple[list[Any], Weights]:
    names = table.schema.names
    if weights is None:
        weights = np.ones(table.num_rows, np.int64)
    weighed = table.append_column(WEIGHT_COLUMN, pa.array(weights))
    grouped = weighed.group_by(names, use_threads=False).aggregate([(WEIGHT_COLUMN, "sum")]).combine_chunks()
    columns = [_one_array(grouped.column(name)) for name in names]
    sums: Weights = grouped.column(f"{WEIGHT_COLUMN}_sum").to_numpy()
    return columns, sums


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def frames_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices that fit a DATA frame well, so that links have small buffers. Raises UserFault for a large
    row.
    """
    rows = batch.num_rows
    pieces = max(1, -(-batch.nbytes // limits.frame_bytes_aim), -(-rows // limits.frame_rows_max))
    size = max(1, -(-rows // pieces))
    for begin in range(0, rows, size):
        yield from _fitting(batch.slice(begin, size))


def _fitting(piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a slice, or parts of it if some of its rows are much larger than others."""
    rows = piece.num_rows
    # `nbytes` of a slice of lists may count the lists of other rows.
    if piece.nbytes <= row_bytes_max or (size := pa.ipc.get_record_batch_size(piece)) <= row_bytes_max:
        yield piece
    elif rows > 1:
        yield from _fitting(piece.slice(0, rows // 2))
        yield from _fitting(piece.slice(rows // 2))
    else:
        sizes = {name: piece.column(name).nbytes for name in piece.schema.names}
        raise UserFault(
            f"a row has {size / (1 << 20):.1f} MiB, most of them in column"
            f" {max(sizes, key=sizes.__getitem__)!r}, and a row that is sent to another worker has at most"
            f" {row_bytes_max >> 20} MiB",
            remedy="make the row smaller before it, or pass on a reference to the data",
        )


def encode_batch(batch: pa.RecordBatch) -> memoryview:
    """Return the payload of a DATA frame: an Arrow IPC stream of schema, batch and end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def decode_batch(payload: bytes | bytearray | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in the payload of a DATA frame. Raises ValueError for another schema."""
    # The frame's digest was correct, so the sender runs another graph or has a bug.
    try:
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise ValueError(f"a DATA frame contains no Arrow batch: {error}") from error
    if not batch.schema.equals(schema):
        raise ValueError(f"a DATA frame has the columns {batch.schema.names}, expected {schema.names}")
    batch.validate()
    return batch

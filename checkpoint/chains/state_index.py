"""The index of state blocks by hash: a reader of some keys reads only the blocks that may have them.

An index is one journal record INDEX directly before the STATE_BLOCK records that it describes, in a snapshot
or in the changes of a checkpoint. ints = [checkpoint, number of blocks, bytes of their records], strings =
[Arrow IPC stream of one batch], whose schema has the metadata `dos.index`, the version of this layout. Its
columns, with a row for each block, in their order:

| column | content |
|---|---|
| `table` | dictionary of string: as in the block |
| `first`, `last` uint64 | the hashes of its first and last row; 0 and 2^64-1: every reader needs the block |
| `bytes` uint32 | of its record |
| `digest` uint64 | xxh3-64 of its Arrow IPC stream |

A block to which a reader has jumped is used if and only if its record is whole and sound, and has the op, the
checkpoint, the table, the size and the digest that the index states: the digest of the span, which tells
bytes of another history apart, is not checked by a reader that leaves out some of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from checkpoint.chains.state_blocks import HASH_MAX, EncodedBlock
from dos_protocol.errors import CorruptDataError
from journal import Op, Record, bytes_of_record

INDEX_VERSION: Final = 1
HashRanges: TypeAlias = Sequence[tuple[int, int]]
"""Ranges of hashes: (first, last), both included."""
_SCHEMA: Final = pa.schema(
    [
        pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("first", pa.uint64(), nullable=False),
        pa.field("last", pa.uint64(), nullable=False),
        pa.field("bytes", pa.uint32(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
    ],
    metadata={"dos.index": str(INDEX_VERSION)},
)


class BlockEntry(NamedTuple):
    """What an index states of a block."""

    table: str
    first: int
    last: int
    bytes: int
    """Of its record."""
    digest: int

    @classmethod
    def of(cls, block: EncodedBlock) -> "BlockEntry":
        size = bytes_of_record(1, (len(block.table.encode()), len(block.data)))
        return cls(block.table, block.first, block.last, size, xxhash.xxh3_64_intdigest(block.data))


def block_record(checkpoint: int, table: str, data: bytes) -> Record:
    """Return the record of a block."""
    return Record(Op.STATE_BLOCK, ints=(checkpoint,), strings=(table.encode(), data))


def encode_index(checkpoint: int, entries: Sequence[BlockEntry]) -> Record:
    """Return the index of the blocks that follow it directly."""
    by_column = zip(*entries, strict=True)
    columns = [pa.array(values, kind) for values, kind in zip(by_column, _SCHEMA.types, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    ints = (checkpoint, len(entries), sum(entry.bytes for entry in entries))
    return Record(Op.INDEX, ints=ints, strings=(sink.getvalue().to_pybytes(),))


class StateIndex:
    """An index that was read. ends: for each block, the offset just past its record, and 0 before the first,
    counted from the end of the index.
    """

    def __init__(self, record: Record, where: str, offset: int) -> None:
        """offset: of the end of the record in `where`. Raises CorruptDataError."""
        self._where, self._offset = where, offset
        try:
            self._checkpoint, blocks, size = record.ints
            (data,) = record.strings
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                if not reader.schema.equals(_SCHEMA, check_metadata=True):
                    raise ValueError(f"columns {reader.schema}")
                (rows,) = reader
            rows.validate(full=True)
            self._tables: Any = rows.column("table")
            self.first, self.last, sizes, self._digests = (
                rows.column(name).to_numpy() for name in ("first", "last", "bytes", "digest")
            )
            self.ends: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
            if any(column.null_count for column in rows.columns) or (blocks, size) != (
                rows.num_rows,
                self.ends[-1],
            ):
                raise ValueError(f"{rows.num_rows} blocks of {self.ends[-1]} bytes")
        except (pa.ArrowException, ValueError, OSError) as error:
            expected = f"an index of state blocks of layout {INDEX_VERSION}"
            raise CorruptDataError(where, offset, expected, f"{record.ints}: {str(error)[:300]}") from error

    def overlapping(self, ranges: HashRanges) -> npt.NDArray[np.bool_]:
        """Return which blocks may have rows with these hashes, or are needed by every reader."""
        needed = (self.first == 0) & (self.last == np.uint64(HASH_MAX))
        for first, last in ranges:
            needed |= (self.first <= np.uint64(last)) & (self.last >= np.uint64(first))
        return np.asarray(needed)

    def table(self, block: int) -> str:
        """Return the table of a block."""
        return str(self._tables[block].as_py())

    def check(self, block: int, record: Record, end: int) -> None:
        """Check that a record that ends there is that block. Raises CorruptDataError."""
        stated = self._checkpoint, self.table(block), int(self._digests[block]), int(self.ends[block + 1])
        found: tuple[object, ...] = ()
        if record.op is Op.STATE_BLOCK and len(record.ints) == 1 and len(record.strings) == 2:
            table, data = record.strings
            digest = xxhash.xxh3_64_intdigest(data)
            found = record.ints[0], table.decode("utf-8", "replace"), digest, end
        if found != stated:
            at = self._offset + int(self.ends[block])
            expected = "the block that its index states (checkpoint, table, digest, end)"
            raise CorruptDataError(self._where, at, f"{expected}, {stated}", f"{found or record.op.name}")


def runs(needed: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of what is needed without a gap."""
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], needed, [False]]).astype(np.int8)))
    yield from zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True)

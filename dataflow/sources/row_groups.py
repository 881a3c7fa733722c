"""Formats whose files are groups of rows, Parquet, Arrow's files and streams: bytes to rows. Pure: no I/O.

A position is the end of a group, and the rest of a file belongs to its last one. Where groups are is known
from the footer, or of a stream from its messages. A group of Parquet is a row group, one of Arrow a record
batch, decoded with the dictionaries before it.

Arrow (format of columnar data 1.0, "Serialization and Interprocess Communication"):

    message:   FF FF FF FF, length of the metadata int32, metadata (FlatBuffers, Message), body
    stream:    schema message, messages of dictionaries and record batches, FF FF FF FF 00 00 00 00
    file:      "ARROW1" 00 00, stream, footer (FlatBuffers, Footer), its length int32, "ARROW1"

A file is valid if and only if (1) its footer is, (2) the record batches that the footer lists follow each
other before it, (3) its stream begins with the schema of the footer. A stream is valid if and only if its
messages end with the end of the stream, which is the end of the file: without that mark, one that was cut
short looks whole.
"""

import errno
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataflow import limits
from dataflow.errors import SchemaError
from dataflow.sources.formats import FAULTS, Head, Indexes, check_once, joined, no_rows
from dos_protocol.digests import digest64

GroupKind: TypeAlias = Literal["parquet", "arrow"]
ReadAt: TypeAlias = Callable[[int, int], bytes]
"""read(position, count) returns bytes of a file, fewer at its end."""
_Span: TypeAlias = tuple[int, int]

PARQUET_MAGIC: Final = b"PAR1"
ARROW_MAGIC: Final = b"ARROW1"
_TAIL_BYTES: Final = {"parquet": 4 + len(PARQUET_MAGIC), "arrow": 4 + len(ARROW_MAGIC)}
"""The size of the footer, in four bytes, and the magic number."""
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_END_OF_STREAM: Final = _CONTINUATION + bytes(4)
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3  # MessageHeader


class BadRow(NamedTuple):
    """A row with a value that does not fit. `byte`: where its group begins in the file."""

    number: int
    byte: int
    reason: str
    data: bytes


class RowGroup(NamedTuple):
    """The rows of one group: bytes `begin` to `end` of the file."""

    begin: int
    end: int
    rows: pa.RecordBatch
    numbers: Indexes
    """Of the rows, from 1 on."""
    bad: list[BadRow]


@dataclass(frozen=True)
class GroupFormat:
    """Groups of rows become rows of `schema`, whose columns are found by name and converted without loss."""

    schema: pa.Schema
    name: GroupKind

    @property
    def unit(self) -> str:
        """What the number of a row counts from: the file, or its record batch, as no file has the others'."""
        return "row" if self.name == "parquet" else "record batch"

    def head(self, size: int, read: ReadAt, part: int = 0, parts: int = 1) -> Head:
        """Return the groups of a file of `size` bytes that begin in that one of its parts of equal size.
        Raises SchemaError if it is no whole file, or does not have the columns of the schema.
        """
        head = group_head(self.name, size, read)
        assert head.footer is not None
        found = head.footer.schema
        for field in self.schema:
            check_once(field.name, found.names, "it")
            try:
                pa.array([], found.field(field.name).type).cast(field.type)
            except pa.ArrowNotImplementedError as error:
                raise SchemaError(f"its column {field.name!r} cannot be converted: {error}") from error
        return _groups_of_part(head, size, part, parts) if parts > 1 else head

    def end_of(self, head: Head, begin: int, want: int) -> int:
        """Return the end of the groups from `begin` on: about `want` bytes, at least one if there is one."""
        end = next((end for end in head.ends if end > begin), begin)
        return max([end, *(one for one in head.ends if begin < one <= begin + want)])

    def decode(self, data: bytes, head: Head, begin: int) -> Iterator[RowGroup]:
        """Yield whole groups. Raises what `FAULTS` has and OSError for damage."""
        assert head.footer is not None
        spans = list(pairwise((0, *head.ends)))[: head.footer.count - head.first]
        groups = [one for one, (_, end) in enumerate(spans) if begin < end <= begin + len(data)]
        numbers, names = [head.first + one for one in groups], self.schema.names
        tables = head.footer.tables(numbers, data, head.begin + begin, names) if groups else iter(())
        for one, table in zip(groups, tables, strict=True):
            rows, kept, bad = self._converted(table)
            first = head.footer.first_row(head.first + one) + 1
            at, end = (head.begin + bound for bound in spans[one])
            wrong = [
                BadRow(first + row, at, reason, repr(_shown(table, row)).encode()) for row, reason in bad
            ]
            yield RowGroup(at, end, rows, kept + first, wrong)

    def _converted(self, table: pa.Table) -> tuple[pa.RecordBatch, Indexes, list[tuple[int, str]]]:
        """Return the rows that fit, their indexes, and the indexes of the others with the reason of each."""
        parts, kept, bad = [no_rows(self.schema)], [np.zeros(0, np.int64)], list[tuple[int, str]]()
        waiting = [(0, table.num_rows)]
        while waiting:
            at, end = waiting.pop()
            try:
                part = table.slice(at, end - at).cast(self.schema).combine_chunks()
                part.validate(full=True)  # pyarrow takes text from files as it is
                parts += part.to_batches()
                kept.append(np.arange(at, end))
            except pa.ArrowInvalid as error:
                if end - at > 1:
                    middle = (at + end) // 2
                    waiting += [(middle, end), (at, middle)]
                else:
                    bad.append((at, " ".join(str(error).split())))
        return joined(parts), np.concatenate(kept), bad


def _shown(table: pa.Table, row: int) -> dict[str, object]:
    def value(column: pa.ChunkedArray) -> object:
        try:
            return column[row].as_py()
        except UnicodeDecodeError:
            return column[row].cast(pa.binary()).as_py() if _is_text(column.type) else "not UTF-8"
        except ValueError:  # a time with nanoseconds, of which Python has none
            return str(column[row])

    return {name: value(table.column(name)) for name in table.column_names}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def group_head(kind: GroupKind, size: int, read: ReadAt) -> Head:
    """Return the groups of a file. Raises SchemaError if it is not a whole file of that kind."""
    return parquet_head(size, read) if kind == "parquet" else _arrow_head(size, read)


def _groups_of_part(head: Head, size: int, part: int, parts: int) -> Head:
    begins = (0, *head.ends[:-1])
    own = [one for one, begin in enumerate(begins) if begin * parts // size == part]
    if not own:
        return head._replace(ends=())
    begin = begins[own[0]]
    return head._replace(ends=tuple(head.ends[one] - begin for one in own), begin=begin, first=own[0])


def is_complete(kind: GroupKind, size: int, read: ReadAt) -> bool:
    """Return whether a file that another program writes ends as a whole one does."""
    magic = PARQUET_MAGIC if kind == "parquet" else ARROW_MAGIC
    tail = read(max(0, size - len(_END_OF_STREAM)), len(_END_OF_STREAM))
    if tail.endswith(magic):
        return True
    if kind == "parquet" or tail != _END_OF_STREAM:
        return False
    try:  # numbers in a record batch may look like the end of a stream
        _arrow_head(size, read)
    except SchemaError:
        return False
    return True


def _check_order(what: str, spans: Sequence[_Span], end: int) -> None:
    """Raise SchemaError unless groups follow each other. end: of the last one at most."""
    if any(one > other for (_, one), (other, _) in pairwise([*spans, (end, end)])) or any(
        begin < 0 or one < begin for begin, one in spans
    ):
        raise SchemaError(f"its {what} do not follow each other")


class _Sparse(io.RawIOBase):
    """A file of which only bytes from `begin` on are known."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._data, self._begin, self._at = data, begin, 0
        self._size = begin + len(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if self._at < self._begin:
            raise OSError(errno.EIO, f"bytes {self._at} to {end} are outside of the row groups")
        data = self._data[self._at - self._begin : end - self._begin]
        self._at = end
        return data


def _footer(kind: GroupKind, size: int, read: ReadAt) -> bytes:
    """Return the footer with its size and the magic number."""
    magic, what = (PARQUET_MAGIC, "Parquet") if kind == "parquet" else (ARROW_MAGIC, "Arrow")
    tail = read(max(0, size - _TAIL_BYTES[kind]), _TAIL_BYTES[kind])
    footer_bytes = int.from_bytes(tail[:4], "little") + _TAIL_BYTES[kind]
    if not tail.endswith(magic) or not _TAIL_BYTES[kind] < footer_bytes <= size - len(magic):
        raise SchemaError(f"it is not a whole {what} file")
    return read(size - footer_bytes, footer_bytes)


# --- Parquet ------------------------------------------------------------------------------------------------


class ParquetFooter:
    """What the footer of a Parquet file tells."""

    def __init__(self, metadata: "pq.FileMetaData") -> None:
        self._metadata = metadata
        self.schema: pa.Schema = metadata.schema.to_arrow_schema()
        self.count: int = metadata.num_row_groups
        rows = (metadata.row_group(one).num_rows for one in range(self.count))
        self._first_rows: list[int] = list(accumulate(rows, initial=0))

    def first_row(self, group: int) -> int:
        return self._first_rows[group]

    def tables(
        self, groups: Sequence[int], data: bytes, begin: int, names: Sequence[str]
    ) -> Iterator[pa.Table]:
        file = pq.ParquetFile(_Sparse(data, begin), metadata=self._metadata)
        nested = any("." in name for name in names)  # pyarrow takes such a name for a path
        for group in groups:
            table = file.read_row_group(group, columns=None if nested else names, use_threads=False)
            yield table.select(names)


def parquet_head(size: int, read: ReadAt) -> Head:
    """Return the row groups of a file. Raises SchemaError if it is no whole Parquet file."""
    footer = _footer("parquet", size, read)
    try:
        metadata = pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + footer))
        found = ParquetFooter(metadata)
        _ = found.schema.names  # may be no UTF-8
    except (*FAULTS, OSError) as error:
        raise SchemaError(f"its footer cannot be read: {error}") from error
    spans = [_span(metadata.row_group(one)) for one in range(found.count)]
    _check_order("row groups", spans, size)
    ends = (*(begin for begin, _ in spans[1:]), size)
    return Head(0, (), digest64(footer), ends, found)


def _span(group: "pq.RowGroupMetaData") -> _Span:
    columns = [group.column(one) for one in range(group.num_columns)]
    begins = [one.dictionary_page_offset or one.data_page_offset for one in columns]
    begins = [min(begin, one.data_page_offset) for begin, one in zip(begins, columns, strict=True)]
    ends = [begin + one.total_compressed_size for begin, one in zip(begins, columns, strict=True)]
    return min(begins), max(ends)


# --- Arrow --------------------------------------------------------------------------------------------------


class ArrowFooter:
    """Where the record batches of an Arrow file or stream are, and what is needed to decode them."""

    def __init__(
        self,
        schema: pa.Schema,
        message: bytes,
        dictionaries: Sequence[tuple[int, bytes]],
        spans: Sequence[_Span],
    ) -> None:
        """message: the schema's. dictionaries: their messages, with the position from which each holds."""
        self.schema, self.count = schema, len(spans)
        self._message, self._dictionaries, self._spans = message, dictionaries, spans

    def first_row(self, group: int) -> int:
        del group  # only its record batches know how many rows come before
        return 0

    def tables(
        self, groups: Sequence[int], data: bytes, begin: int, names: Sequence[str]
    ) -> Iterator[pa.Table]:
        messages = [(at, message) for at, message in self._dictionaries if at < self._spans[groups[-1]][0]]
        messages += [(at, data[at - begin : end - begin]) for at, end in (self._spans[one] for one in groups)]
        stream = pa.BufferReader(b"".join([self._message, *(message for _, message in sorted(messages))]))
        columns = [self.schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        reader = pa.ipc.open_stream(stream, options=options)
        for _ in groups:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                raise pa.ArrowInvalid("a record batch is missing") from None
            for column in batch.columns:
                _check_values(column)
            yield pa.Table.from_batches([batch]).select(names)


def _check_values(column: pa.Array) -> None:
    """Raise pa.ArrowInvalid for offsets and indexes outside of their data, which pyarrow would follow."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        # After the offsets of the column were found right: text that is not UTF-8 is a matter of its rows.
        if not (_is_text(column.type) and "UTF8" in str(error)):
            raise


def _arrow_head(size: int, read: ReadAt) -> Head:
    start = read(0, len(_END_OF_STREAM))
    try:
        if start.startswith((ARROW_MAGIC, _CONTINUATION)):
            head = _arrow_file(size, read) if start.startswith(ARROW_MAGIC) else _arrow_stream(size, read)
            assert head.footer is not None
            _ = head.footer.schema.names  # may be no UTF-8
            return head
    except (*FAULTS, OSError, struct.error) as error:
        raise SchemaError(f"its metadata cannot be read: {error}") from error
    raise SchemaError("it is neither an Arrow file nor an Arrow stream")


def _arrow_file(size: int, read: ReadAt) -> Head:
    footer = _footer("arrow", size, read)
    end = size - len(footer)
    schema = pa.ipc.open_file(pa.PythonFile(_Sparse(footer, end), mode="r")).schema  # verifies the footer
    dictionaries, spans = _blocks(footer, 2), _blocks(footer, 3)
    for blocks in (dictionaries, spans):
        _check_order("record batches", blocks, end)
    _check_dictionaries(sum(stop - at for at, stop in dictionaries))
    kind, message, _ = _message(read, 8)
    if kind != _SCHEMA or not pa.ipc.open_stream(pa.BufferReader(message)).schema.equals(schema):
        raise SchemaError("its stream does not begin with the schema of its footer")
    held = [(-1, read(at, stop - at)) for at, stop in dictionaries]  # any batch may use any of them
    ends = (*(stop for _, stop in spans[:-1]), size)
    return Head(0, (), digest64(footer), ends, ArrowFooter(schema, message, held, spans))


def _arrow_stream(size: int, read: ReadAt) -> Head:
    _, first, _ = _message(read, 0)
    schema = pa.ipc.open_stream(pa.BufferReader(first)).schema
    at, digest, held, held_bytes = len(first), digest64(first), list[tuple[int, bytes]](), 0
    spans: list[_Span] = []
    while at < size and (start := read(at, len(_END_OF_STREAM))) != _END_OF_STREAM:
        if not start.startswith(_CONTINUATION):
            raise SchemaError(f"it has no message at byte {at}")
        kind, message, body_bytes = _message(read, at)
        end = at + len(message) + body_bytes
        if end > size:
            break
        if kind == _DICTIONARY:
            held_bytes += end - at
            _check_dictionaries(held_bytes)
            held.append((at, read(at, end - at)))
        elif kind == _RECORDS:
            spans.append((at, end))
        else:
            raise SchemaError(
                f"it has a message at byte {at} that is neither a dictionary nor a record batch"
            )
        digest, at = digest64(message, digest), end
    if at + len(_END_OF_STREAM) > size:
        raise SchemaError("it is not a whole Arrow stream: the mark of its end is missing")
    if at + len(_END_OF_STREAM) < size:
        raise SchemaError(f"it has {size - at - len(_END_OF_STREAM)} bytes after the end of its stream")
    ends = (*(stop for _, stop in spans[:-1]), size)
    return Head(0, (), digest, ends, ArrowFooter(schema, first, held, spans))


def _check_dictionaries(size: int) -> None:
    if size > limits.row_group_bytes_max:
        raise SchemaError(
            f"it has {size} bytes of dictionaries, which are in memory; the maximum is"
            f" {limits.row_group_bytes_max}"
        )


def _message(read: ReadAt, at: int) -> tuple[int, bytes, int]:
    """Return the kind of a message, its bytes without the body, and the size of the body."""
    length = struct.unpack("<4xi", read(at, 8))[0]
    if not 0 < length <= limits.line_bytes_max:
        raise SchemaError(f"it has a message at byte {at} with metadata of {length} bytes")
    message = read(at, 8 + length)
    table = 8 + _integer("<I", message, 8)
    body = _field(message, table, 3)
    body_bytes = _integer("<q", message, body) if body else 0
    if body_bytes < 0:
        raise SchemaError(f"it has a message at byte {at} with a body of {body_bytes} bytes")
    return _integer("<B", message, _field(message, table, 1)), message, body_bytes


def _blocks(footer: bytes, number: int) -> list[_Span]:
    """Return a field of the footer: where messages are."""
    field = _field(footer, _integer("<I", footer, 0), number)
    if not field:
        return []
    vector = field + _integer("<I", footer, field)
    # Block: offset int64, size of the metadata int32, 4 bytes of padding, size of the body int64
    blocks = [
        struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * one)
        for one in range(_integer("<I", footer, vector))
    ]
    return [(at, at + metadata_bytes + body_bytes) for at, metadata_bytes, body_bytes in blocks]


def _integer(form: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table of FlatBuffers is, 0 if it has its default."""
    slots = table - _integer("<i", data, table)
    if 4 + 2 * number >= _integer("<H", data, slots):
        return 0
    offset = _integer("<H", data, slots + 4 + 2 * number)
    return table + offset if offset else 0

"""Lines of text, and records of a format: bytes of several files as one batch that knows the position of each
row.

As in Spark, a line ends with a newline, with or without a carriage return before it, and a byte order mark is
not part of the first line. An end is added to a last line without one, so that it does not run into the next
file.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.partitions import PathColumns
from dataflow.errors import InputEncodingError, InputReadError, InputRowError, SchemaError
from dataflow.sources.base import BatchPiece, SourceBatch, SourceDivision, SplitDivision
from dataflow.sources.formats import (
    BAD_SCHEMA,
    BYTE_ORDER_MARK,
    FAULTS,
    NO_HEAD,
    Head,
    OnBad,
    RecordFormat,
    end_of_lines,
    no_rows,
)
from dataflow.sources.input_files import FileBytes
from dataflow.sources.row_groups import GroupFormat

Errors: TypeAlias = Literal["strict", "replace"]
LINE_SCHEMA: Final = pa.schema([pa.field("line", pa.string())])


def lines_of(data: bytes, errors: Errors) -> pa.Array:
    """Return the lines of `data`, which ends with a newline. Raises UnicodeDecodeError at the first invalid
    byte.
    """
    text = _one_string(data)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        data = data.decode("utf-8", errors).encode()
        text = _one_string(data)
    if b"\r\n" in data:
        text = _one_string(data.replace(b"\r\n", b"\n"))
    lines = pc.split_pattern(text, "\n").values
    return lines.slice(0, len(lines) - 1)  # the empty string after the last \n is not a line


def _one_string(data: bytes) -> pa.Array:
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))


def line_start(data: bytes, line: int) -> int:
    """Return the byte at which line number `line` of `data` begins. Slow, for error messages only."""
    at = 0
    for _ in range(line):
        at = data.index(b"\n", at) + 1
    return at


class SplitChunk(NamedTuple):
    """Whole lines or records of a split that start at byte `begin`, after `line` other lines."""

    split: str
    begin: int
    data: bytes
    line: int = 0
    head: Head = NO_HEAD
    values: Sequence[pa.Scalar] = ()
    """Of the columns that are in the path of the file."""


class LineChunks:
    """Collects chunks of whole lines. `size` is the number of input bytes since the last batch."""

    def __init__(
        self, errors: Errors, path_of: Callable[[str], str], columns: PathColumns | None = None
    ) -> None:
        self._errors, self._columns = errors, columns
        self._path_of = path_of
        """Return the file of a split, for error messages."""
        self._empty()

    def _empty(self) -> None:
        self.size = self._joined_bytes = 0
        self._chunks: list[bytes] = []
        self._pieces: list[BatchPiece] = []
        self._files: list[tuple[int, Sequence[pa.Scalar]]] = []

    def add(self, added: SplitChunk) -> None:
        """Add bytes of a split."""
        split, begin, chunk = added[:3]
        if chunk:
            self.size += len(chunk)
            end = begin + len(chunk)
            text = chunk if begin else chunk.removeprefix(BYTE_ORDER_MARK)
            self._pieces.append(BatchPiece(split, end - len(text), end, self._joined_bytes))
            self._chunks.append(text if text.endswith(b"\n") or not text else text + b"\n")
            self._joined_bytes += len(self._chunks[-1])
            if self._columns is not None:
                self._files.append((self._chunks[-1].count(b"\n"), added.values))

    def take(self) -> SourceBatch | None:
        """Remove and return the collected lines, or None if there are none. Raises InputEncodingError."""
        if not self._chunks:
            return None
        data, pieces, size = b"".join(self._chunks), tuple(self._pieces), self.size
        files = self._files
        self._empty()
        try:
            lines = lines_of(data, self._errors)
        except UnicodeDecodeError as error:
            piece = _piece_at(pieces, error.start)
            found = data[error.start : error.end].hex()
            at = piece.begin + error.start - piece.at
            raise InputEncodingError(self._path_of(piece.split), at, found) from error
        rows = pa.RecordBatch.from_arrays([lines], schema=LINE_SCHEMA)
        if self._columns is not None:
            rows = self._columns.extended(rows, files)
        return SourceBatch(rows, pieces, size, data)


_Bad: TypeAlias = tuple[str, int, int, str, bytes]
"""A row of `BAD_SCHEMA`."""


class _Part(NamedTuple):
    """Rows of one piece of a split, and what is no row in it."""

    piece: BatchPiece
    rows: pa.RecordBatch
    begins: npt.NDArray[np.int64]
    bad: list[_Bad]


class RecordChunks:
    """Collects the rows of chunks of whole records. `size` is as that of `LineChunks`."""

    def __init__(
        self,
        records: RecordFormat | GroupFormat,
        on_bad: OnBad,
        path_of: Callable[[str], str],
        columns: PathColumns | None = None,
    ) -> None:
        self._records, self._on_bad, self._path_of, self._columns = records, on_bad, path_of, columns
        self._unit = records.unit if isinstance(records, GroupFormat) else "byte"
        self.bad_count = 0
        """The number of records that are no rows, since the beginning."""
        self._empty()

    def _empty(self) -> None:
        self.size = self._row_count = 0
        self._rows: list[pa.RecordBatch] = []
        self._bad: list[pa.RecordBatch] = []
        self._begins: list[npt.NDArray[np.int64]] = []
        self._pieces: list[BatchPiece] = []

    def add(self, added: SplitChunk) -> None:
        """Decode records of a split. Raises InputRowError if one is no row and on_bad is "error"."""
        if not added.data:
            return
        self.size += len(added.data)
        parts = self._groups(added) if isinstance(self._records, GroupFormat) else [self._decoded(added)]
        for part in parts:
            rows = part.rows
            if self._columns is not None:
                rows = self._columns.extended(rows, [(rows.num_rows, added.values)])
            self._pieces.append(part.piece)
            self._rows.append(rows)
            self._begins.append(part.begins)
            self._row_count += part.rows.num_rows
            if part.bad:
                self._put_aside(part.bad)

    def _groups(self, added: SplitChunk) -> Iterator["_Part"]:
        path, records = self._path_of(added.split), self._records
        assert isinstance(records, GroupFormat)
        try:
            for group in records.decode(added.data, added.head, added.begin):
                piece = BatchPiece(added.split, group.begin, group.end, self._row_count)
                bad = [(path, *row) for row in group.bad]
                yield _Part(piece, group.rows, group.numbers, bad)
        except (*FAULTS, OSError) as error:
            raise InputReadError(
                f"input {path!r} has a damaged row group from byte {added.begin} on: {error}",
                remedy="repair the file, or write it again",
            ) from error

    def _decoded(self, added: SplitChunk) -> "_Part":
        path, records = self._path_of(added.split), self._records
        assert isinstance(records, RecordFormat)
        end = added.begin + len(added.data)
        piece = BatchPiece(added.split, added.begin, end, self._row_count)
        skipped = 0 if added.begin else added.head.size
        data, begin = added.data[skipped:], added.begin + skipped
        rows, begins, wrong = records.decode(data, added.head)
        bad, line, at = list[_Bad](), added.line + added.data.count(b"\n", 0, skipped) + 1, 0
        for one in wrong:
            line, at = line + data.count(b"\n", at, one.begin), one.begin
            bad.append((path, line, begin + at, one.reason, data[at : one.end]))
        return _Part(piece, rows, begins + begin, bad)

    def _put_aside(self, rows: list[_Bad]) -> None:
        if self._on_bad == "error":
            raise InputRowError(*rows[0])
        self.bad_count += len(rows)
        if self._on_bad == "side":
            columns = [
                pa.array(values, kind)
                for values, kind in zip(zip(*rows, strict=True), BAD_SCHEMA.types, strict=True)
            ]
            self._bad.append(pa.RecordBatch.from_arrays(columns, schema=BAD_SCHEMA))

    def take(self) -> SourceBatch | None:
        """Remove and return the collected rows, perhaps none; or None if no bytes were added."""
        if not self.size:
            return None
        if not self._rows:  # a file without a row group
            schema = self._records.schema if self._columns is None else self._columns.schema
            self._rows, self._begins = [no_rows(schema)], [np.zeros(0, np.int64)]
        rows, begins = pa.concat_batches(self._rows), np.concatenate(self._begins)
        made = SourceBatch(
            rows, tuple(self._pieces), self.size, begins=begins, bad=self._bad, unit=self._unit
        )
        self._empty()
        return made


def replay_lines(
    chunks: LineChunks | RecordChunks,
    division: SourceDivision,
    read: Callable[[str, SplitDivision], SplitChunk],
    *,
    split_by_split: bool,
) -> list[SourceBatch]:
    """Return the lines of a division, in its order. read: returns the bytes of a range. split_by_split: each
    batch has the lines of one split.
    """
    batches: list[SourceBatch | None] = []
    for split, part in division.items():
        chunks.add(read(split, part))
        if chunks.size >= limits.batch_bytes_max or split_by_split:
            batches.append(chunks.take())
    batches.append(chunks.take())
    return [batch for batch in batches if batch is not None]


def whole_lines(
    file: FileBytes, path: str, at: int, want: int, end_of: Callable[[bytes], int] = end_of_lines
) -> tuple[bytes, bytes, bool]:
    """Read whole lines, or the records that `end_of` ends, from `at` on: about `want` bytes, at least one
    line. Return them, the rest after them if the end of the file was reached, and whether it was. Raises
    InputReadError, and as `read`.
    """
    while True:
        block = file.read(at, want)
        end = end_of(block)
        if len(block) < want:
            return block[:end], block[end:], True
        if end:
            return block[:end], b"", False
        if want >= limits.line_bytes_max:
            raise InputReadError(
                f"input {path!r} has a line of more than {limits.line_bytes_max} bytes at byte {at}",
                remedy="split such lines before, or read the file with another source; in CSV, a quote at the"
                " beginning of a field must be closed",
            )
        want = min(4 * want, limits.line_bytes_max)


def position_text(source: SourceBatch, row: int | None, name_of: Callable[[BatchPiece], str]) -> str:
    """Describe the position of a row of a batch (None: of any row). `name_of` names the file of a piece."""
    if row is None:
        first, last = source.pieces[0], source.pieces[-1]
        if first is last:
            return f"{name_of(first)}, bytes {first.begin} to {first.end}"
        return f"{name_of(first)}, byte {first.begin}, to {name_of(last)}, byte {last.end}"
    if source.begins is not None:
        piece, unit = _piece_at(source.pieces, row), source.unit
        unit = f"byte {piece.begin}, row" if unit == "record batch" else unit
        return f"{name_of(piece)}, {unit} {source.begins[row]}"
    start = line_start(source.data, row)
    piece = _piece_at(source.pieces, start)
    return f"{name_of(piece)}, byte {piece.begin + start - piece.at}"


def _piece_at(pieces: tuple[BatchPiece, ...], at: int) -> BatchPiece:
    return next(piece for piece in reversed(pieces) if piece.at <= at)


def check_errors(errors: object) -> None:
    """Raise SchemaError if `errors` is not a valid way to treat bytes that are not UTF-8."""
    known = get_args(Errors)
    if errors not in known:
        raise SchemaError(f"errors must be {' or '.join(map(repr, known))}, not {errors!r}")

"""Lines of text: bytes of several files as one batch that knows the position of each line.

As in Spark, a line ends with a newline, with or without a carriage return before it, and a byte order mark is
not part of the first line. An end is added to a last line without one, so that it does not run into the next
file.
"""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.errors import InputEncodingError, InputReadError, SchemaError
from dataflow.sources.base import BatchPiece, SourceBatch, SourceDivision, SplitDivision
from dataflow.sources.input_files import FileBytes

Errors: TypeAlias = Literal["strict", "replace"]
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
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


class LineChunks:
    """Collects chunks of whole lines. `size` is the number of input bytes since the last batch."""

    def __init__(self, errors: Errors, path_of: Callable[[str], str]) -> None:
        self._errors = errors
        self._path_of = path_of
        """Return the file of a split, for error messages."""
        self._empty()

    def _empty(self) -> None:
        self.size = self._joined_bytes = 0
        self._chunks: list[bytes] = []
        self._pieces: list[BatchPiece] = []

    def add(self, split: str, begin: int, chunk: bytes) -> None:
        """Add bytes of a split that start at `begin`."""
        if chunk:
            self.size += len(chunk)
            end = begin + len(chunk)
            text = chunk if begin else chunk.removeprefix(BYTE_ORDER_MARK)
            self._pieces.append(BatchPiece(split, end - len(text), end, self._joined_bytes))
            self._chunks.append(text if text.endswith(b"\n") or not text else text + b"\n")
            self._joined_bytes += len(self._chunks[-1])

    def take(self) -> SourceBatch | None:
        """Remove and return the collected lines, or None if there are none. Raises InputEncodingError."""
        if not self._chunks:
            return None
        data, pieces, size = b"".join(self._chunks), tuple(self._pieces), self.size
        self._empty()
        try:
            lines = lines_of(data, self._errors)
        except UnicodeDecodeError as error:
            piece = _piece_at(pieces, error.start)
            found = data[error.start : error.end].hex()
            at = piece.begin + error.start - piece.at
            raise InputEncodingError(self._path_of(piece.split), at, found) from error
        return SourceBatch(pa.RecordBatch.from_arrays([lines], schema=LINE_SCHEMA), pieces, size, data)


def replay_lines(
    chunks: LineChunks,
    division: SourceDivision,
    read: Callable[[str, SplitDivision], bytes],
    *,
    split_by_split: bool,
) -> list[SourceBatch]:
    """Return the lines of a division, in its order. read: returns the bytes of a range. split_by_split: each
    batch has the lines of one split.
    """
    batches: list[SourceBatch | None] = []
    for split, part in division.items():
        chunks.add(split, part.begin, read(split, part))
        if chunks.size >= limits.batch_bytes_max or split_by_split:
            batches.append(chunks.take())
    batches.append(chunks.take())
    return [batch for batch in batches if batch is not None]


def whole_lines(file: FileBytes, path: str, at: int, want: int) -> tuple[bytes, bytes, bool]:
    """Read whole lines from `at` on: about `want` bytes, at least one line. Return them, the rest after the
    last newline if the end of the file was reached, and whether it was. Raises InputReadError, and as `read`.
    """
    while True:
        block = file.read(at, want)
        end = block.rfind(b"\n") + 1
        if len(block) < want:
            return block[:end], block[end:], True
        if end:
            return block[:end], b"", False
        if want >= limits.line_bytes_max:
            raise InputReadError(
                f"input {path!r} has a line of more than {limits.line_bytes_max} bytes at byte {at}",
                remedy="split such lines before, or read the file with another source",
            )
        want = min(4 * want, limits.line_bytes_max)


def position_text(source: SourceBatch, row: int | None, name_of: Callable[[BatchPiece], str]) -> str:
    """Describe the position of a row of a batch (None: of any row). `name_of` names the file of a piece."""
    if row is None:
        first, last = source.pieces[0], source.pieces[-1]
        if first is last:
            return f"{name_of(first)}, bytes {first.begin} to {first.end}"
        return f"{name_of(first)}, byte {first.begin}, to {name_of(last)}, byte {last.end}"
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

"""Combines bytes of several files into one batch of lines that knows the position of each line.

This file holds what file sources share; they decide which bytes are read, and in which order. If a file does
not end with a newline, one is added, so that its last line does not run into the first line of the next file.
"""

from collections.abc import Callable

import pyarrow as pa

from dataflow import limits
from dataflow.errors import InputEncodingError, LineTooLongError
from dataflow.sources.base import BatchPiece, SourceBatch, SourceDivision, SplitDivision
from dataflow.sources.file_bytes import FileBytes
from dataflow.sources.text import BYTE_ORDER_MARK, LINE_SCHEMA, Errors, line_start, lines_of


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
    """Return the lines of a division, in its order.

    read: returns the bytes of a split's range. split_by_split: each batch has the lines of one split.
    """
    batches: list[SourceBatch | None] = []
    for split, part in division.items():
        chunks.add(split, part.begin, read(split, part))
        if chunks.size >= limits.batch_bytes_max or split_by_split:
            batches.append(chunks.take())
    batches.append(chunks.take())
    return [batch for batch in batches if batch is not None]


def whole_lines(file: FileBytes, path: str, at: int, want: int) -> tuple[bytes, bytes, bool]:
    """Read whole lines from `at` on: about `want` bytes, at least one line.

    Returns the lines, the rest after the last newline if the end of the file was reached, and whether it was
    reached. Raises LineTooLongError, and what `read` raises.
    """
    while True:
        block = file.read(at, want)
        end = block.rfind(b"\n") + 1
        if len(block) < want:
            return block[:end], block[end:], True
        if end:
            return block[:end], b"", False
        if want >= limits.line_bytes_max:
            raise LineTooLongError(
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

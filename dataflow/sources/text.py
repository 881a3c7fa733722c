"""Converts bytes of text to a column of lines without per-line work in Python.

A line ends with \\n, which is not part of it. A \\r before it stays in the line: it is data, and a file with
mixed line ends must give the same rows however it is divided (splitting at whitespace removes it; otherwise
strip it in a map). The last line of a file needs no \\n. UTF-8 is verified: invalid bytes are an error or are
replaced by U+FFFD, as the user chooses.
"""

from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Errors: TypeAlias = Literal["strict", "replace"]
LINE_SCHEMA: Final = pa.schema([pa.field("line", pa.string())])


def lines_of(data: bytes, errors: Errors) -> pa.Array:
    """Return the lines of `data`, which must end with \\n. Raises UnicodeDecodeError (strict); its `start`
    is the first invalid byte.
    """
    text = _one_string(data)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        text = _one_string(data.decode("utf-8", errors).encode())
    lines = pc.split_pattern(text, "\n").values
    return lines.slice(0, len(lines) - 1)  # the empty string after the last \n is not a line


def _one_string(data: bytes) -> pa.Array:
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))


def line_start(data: bytes, line: int) -> int:
    """Return the byte at which line number `line` (from 0) of `data` begins. Slow: scans all previous lines;
    for error messages only.
    """
    at = 0
    for _ in range(line):
        at = data.index(b"\n", at) + 1
    return at

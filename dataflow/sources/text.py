"""Converts bytes of text to a column of lines without per-line work in Python.

A line ends with \\n or \\r\\n, which is not part of it, as in Spark. A \\r elsewhere is data. The last line
of a file needs no end. A byte order mark at the beginning of a file is not part of its first line. UTF-8 is
verified: invalid bytes are an error or are replaced by U+FFFD, as the user chooses.
"""

from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Errors: TypeAlias = Literal["strict", "replace"]
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
LINE_SCHEMA: Final = pa.schema([pa.field("line", pa.string())])


def lines_of(data: bytes, errors: Errors) -> pa.Array:
    """Return the lines of `data`, which must end with \\n. Raises UnicodeDecodeError (strict); its `start`
    is the first invalid byte.
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
    """Return the byte at which line number `line` (from 0) of `data` begins. Slow: scans all previous lines;
    for error messages only.
    """
    at = 0
    for _ in range(line):
        at = data.index(b"\n", at) + 1
    return at

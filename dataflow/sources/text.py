"""Bytes of text to a column of lines, without work per line in Python.

A line ends with \\n, which is not part of it. A \\r before it stays in the line: it is data, and a file that
mixes both ends must read the same however it is cut (whitespace splitting drops it; otherwise strip it in a
map). The last line of a file needs no \\n. UTF-8 is checked: a line of other bytes is an error, or U+FFFD
stands in their place, as the user says.
"""

from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Errors: TypeAlias = Literal["strict", "replace"]
LINE_SCHEMA: Final = pa.schema([pa.field("line", pa.string())])


def lines_of(data: bytes, errors: Errors) -> pa.Array:
    """The lines of `data`, which ends with \\n. Raises UnicodeDecodeError (strict): `start` is the first bad
    byte.
    """
    whole = _one_string(data)
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        whole = _one_string(data.decode("utf-8", errors).encode())
    lines = pc.split_pattern(whole, "\n").values
    return lines.slice(0, len(lines) - 1)  # what stands after the last \n is nothing


def _one_string(data: bytes) -> pa.Array:
    ends = np.array([0, len(data)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(data))


def line_start(data: bytes, line: int) -> int:
    """The byte at which line number `line` (from 0) of `data` begins. For people: it looks at every line
    before.
    """
    at = 0
    for _ in range(line):
        at = data.index(b"\n", at) + 1
    return at

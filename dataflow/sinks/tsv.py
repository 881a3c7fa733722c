"""Converts rows to tab-separated text without per-row work in Python.

The format is PostgreSQL's COPY text format: one row per line, columns separated by tabs, \\N for null, and
\\\\ \\t \\n \\r for these characters inside a value. Any TSV reader accepts it, and `parse_row` restores
every value exactly.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import SchemaError

_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NULL: Final = "\\N"


def check_columns(schema: pa.Schema) -> None:
    """Raise SchemaError if a column has no text form."""
    for field in schema:
        try:
            if pa.types.is_binary(
                field.type
            ):  # Arrow would accept it and fail at the first byte that is not UTF-8
                raise pa.ArrowNotImplementedError
            pa.array([], field.type).cast(pa.string())
        except pa.ArrowException:
            raise SchemaError(
                f"column {field.name!r} of type {field.type} has no text form; convert it to a string with"
                " a map"
            ) from None


def tsv_of(batch: pa.RecordBatch) -> memoryview:
    """Return the rows as bytes; every line ends with \\n."""
    if not batch.num_rows:
        return memoryview(b"")
    columns = [_text(column) for column in batch.columns]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "", "\n")
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "\t")
    return _bytes_of(joined)


def _text(column: pa.Array) -> pa.Array:
    text = column if pa.types.is_string(column.type) else column.cast(pa.string())
    if not _plain(column.type) and len(text):
        content = _bytes_of(text).tobytes()
        for character, escaped in _ESCAPES:
            if character.encode() in content:
                text = pc.replace_substring(text, character, escaped)
    return pc.fill_null(text, _NULL) if text.null_count else text


def _plain(kind: pa.DataType) -> bool:
    """Return whether text of this type never contains a character to escape."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind))


def _bytes_of(text: pa.Array) -> memoryview:
    """Return all values of a string array, concatenated, without copying."""
    _, ends, data = text.buffers()
    if data is None:
        return memoryview(b"")
    bounds = memoryview(ends).cast("B").cast("i")
    return memoryview(data).cast("B")[bounds[text.offset] : bounds[text.offset + len(text)]]


def parse_row(line: str) -> list[str | None]:
    """Return the values of one line (without its \\n). For readers and tests."""
    return [None if value == _NULL else _unescaped(value) for value in line.split("\t")]


def _unescaped(value: str) -> str:
    if "\\" not in value:
        return value
    out, at = [], 0
    unescaped = {escaped[1]: character for character, escaped in _ESCAPES}
    while at < len(value):
        if value[at] == "\\":
            out.append(unescaped[value[at + 1]])
            at += 2
        else:
            out.append(value[at])
            at += 1
    return "".join(out)

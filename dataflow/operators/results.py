"""Converts what user functions return into batches: rows from functions of rows, columns from functions of
batches.

It raises `UserFault`, with the index of the row if one row caused the fault. It calls no user code.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from dataflow.errors import UserFault

FAULTS = BaseException
"""Exceptions of a user function that become a UserFault: all, because `sys.exit()`, or a `GeneratorExit` that
a function raises, must not end a worker without a message.
"""


def several(result: Any) -> Iterable[Any]:
    """Return the rows that a function returned or yields. Raises TypeError for a single row."""
    # checked first, because most results are lists and isinstance(Mapping) costs as much as the call
    if type(result) is list:
        return result
    if result is None:
        return ()
    if isinstance(result, (str, bytes, Mapping)):
        raise TypeError(
            f"rows must be returned as a list or yielded, not as one {type(result).__name__};"
            " wrap it in a list"
        )
    rows: Iterable[Any] = result
    return rows


def batch_of_rows(rows: Sequence[Any], sources: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows to a batch. `sources` holds the index of the input row of each row. Raises UserFault."""
    columns = _columns_of_dicts(rows, schema.names)
    if columns is None:
        columns = [[] for _ in schema.names]
        for row, source in zip(rows, sources, strict=True):
            for column, value in zip(columns, _values(row, source, schema), strict=True):
                column.append(value)
    arrays = [_array_of(values, sources, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns_of_dicts(rows: Sequence[Any], names: Sequence[str]) -> list[list[Any]] | None:
    """Return the columns of rows that are all dicts with exactly these names (the common case); otherwise
    None.
    """
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(names)}:
        return None
    try:
        return [list(map(itemgetter(name), rows)) for name in names]
    except KeyError:
        return None


def _values(row: Any, source: int, schema: pa.Schema) -> Sequence[Any]:
    names = schema.names
    if isinstance(row, Mapping):
        if set(row) != set(names):
            raise UserFault(
                f"a row has the columns {', '.join(map(repr, row))}; the schema says "
                f"{', '.join(map(repr, names))}",
                row=source,
            )
        return [row[name] for name in names]
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise UserFault(
                f"a row has {len(row)} values; the schema has {len(names)} columns: {', '.join(names)}",
                row=source,
            )
        return row
    if len(names) != 1:
        raise UserFault(
            f"a row is a dict or a tuple of {len(names)} values ({', '.join(names)}), not "
            f"{type(row).__name__}",
            row=source,
        )
    return (row,)


def _array_of(values: list[Any], sources: Sequence[int], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for value, source in zip(values, sources, strict=True):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise UserFault(
                    f"column {field.name!r} is {field.type}, but a value is {type(value).__name__} "
                    f"{value!r:.80}",
                    row=source,
                ) from error
        raise UserFault(f"column {field.name!r}: {error}") from error


def batch_of_result(result: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the result of a batch function to a batch of this schema. Raises UserFault for other
    columns.
    """
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema):
        return result
    columns = _columns_of_result(result, schema)
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        try:
            array = (
                column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column, field.type)
            )
            if not array.type.equals(field.type):
                array = array.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserFault(f"column {field.name!r} cannot be converted to {field.type}: {error}") from error
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, ValueError) as error:
        raise UserFault(f"the columns do not form a batch: {error}") from error


def _columns_of_result(result: Any, schema: pa.Schema) -> Sequence[Any]:
    names = schema.names
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        given: Mapping[str, Any] = dict(zip(result.schema.names, result.columns, strict=True))
    elif isinstance(result, Mapping):
        given = result
    elif isinstance(result, (pa.Array, pa.ChunkedArray)) and len(names) == 1:
        return (result,)
    else:
        raise UserFault(
            f"a batch function returns a RecordBatch with the columns {', '.join(names)}, not "
            f"{type(result).__name__}"
        )
    if set(given) != set(names):
        raise UserFault(
            f"it returned the columns {', '.join(map(repr, given))}; the schema says "
            f"{', '.join(map(repr, names))}"
        )
    return [given[name] for name in names]

"""Converts what user functions return into batches: rows from functions of rows, columns from functions of
batches. `values/` decides which values a column takes.

It raises `UserFault`, with the index of the row if one row caused the fault. It calls no user code.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.limits import forked_exit_code
from dataflow.values.columns import column_of, fitted_column
from dataflow.values.kinds import shown
from dataflow.values.nested import named

FAULTS = BaseException
"""Exceptions of a user function that become a UserFault: all, because `sys.exit()`, or a `GeneratorExit` that
a function raises, must not end a worker without a message.
"""


def end_forked_child(operator: str = "") -> NoReturn:
    """End this process: user code forked it, and it returned into the engine. Otherwise it would write the
    rows of the worker a second time, and hold its connections open after the worker has ended.
    """
    named = f"operator {operator!r}" if operator else "a function of this worker"
    text = (
        f"{named} called os.fork(), and the child (process {os.getpid()}) returned from it: the child ends."
        " End it with os._exit() in the function, or use subprocess\n"
    )
    os.write(2, text.encode())
    os._exit(forked_exit_code)


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
    arrays = [column_of(values, field, sources) for values, field in zip(columns, schema, strict=True)]
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
    names, row = schema.names, named(row)
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


def batch_of_result(result: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the result of a batch function to a batch of this schema. Raises UserFault for other
    columns.
    """
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema) and not _has_wrong_null(result):
        return result
    arrays = [
        fitted_column(column, field)
        if isinstance(column, (pa.Array, pa.ChunkedArray))
        else column_of(listed(column, field.name), field)
        for field, column in zip(schema, _columns_of_result(result, schema), strict=True)
    ]
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, ValueError) as error:
        raise UserFault(f"the columns do not form a batch: {error}") from error


def _has_wrong_null(batch: pa.RecordBatch) -> bool:
    return any(
        not field.nullable and column.null_count
        for field, column in zip(batch.schema, batch.columns, strict=True)
    )


def listed(column: Any, name: str) -> list[Any]:
    """Return the values of a column that is no Arrow array. Raises UserFault if it has none."""
    if isinstance(column, (list, tuple, np.ndarray)):
        return [*column]
    raise UserFault(f"column {name!r} is a list or an array of values, not {shown(column)}")


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
            f"the columns are {', '.join(map(repr, given))}; the schema says {', '.join(map(repr, names))}"
        )
    return [given[name] for name in names]

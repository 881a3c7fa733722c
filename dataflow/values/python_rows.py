"""Batches as rows of Python values for user functions, and what these return as batches.

A wrong result of a function raises `UserFault`, with the index of the row if one row caused it.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import UserFault
from dataflow.limits import forked_exit_code
from dataflow.values.columns import column_of, fitted_column
from dataflow.values.kinds import named, shown, values_of

FAULTS = BaseException
"""What becomes a UserFault: all, because `sys.exit()` of a function must not end a worker without a message.
"""


def end_forked_child(operator: str = "") -> NoReturn:
    """End this process: user code forked it, and it returned into the engine."""
    # It would write the worker's rows a second time, and hold its connections open after the worker's end.
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
    """Return the columns of dicts with exactly these names (the common case); otherwise None."""
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
    """Convert the result of a batch function to this schema. Raises UserFault for other columns."""
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


_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
_FIRST_S: Final = int((datetime.min - datetime(1970, 1, 1)).total_seconds())  # noqa: DTZ001, DTZ901
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_END_S: Final = int((datetime(9999, 12, 31) - datetime(1970, 1, 1)).total_seconds())  # noqa: DTZ001


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows, each a dict by column name."""
    names = batch.schema.names
    if not names or len(set(names)) != len(names):
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    columns = [_python_values(column) for column in batch.columns]
    return _dicts(tuple(names))(*columns)


@lru_cache(maxsize=256)
def _dicts(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    # Generated code: dict displays with literal names take a quarter of the time of `dict(zip(names, row))`.
    cells = [f"cell{index}" for index in range(len(names))]
    columns = [f"column{index}" for index in range(len(names))]
    row = ", ".join(f"{name!r}: {cell}" for name, cell in zip(names, cells, strict=True))
    code = (
        f"lambda {', '.join(columns)}:"
        f" [{{{row}}} for {', '.join(cells)}, in zip({', '.join(columns)}, strict=True)]"
    )
    made: Callable[..., list[dict[str, Any]]] = eval(code)  # noqa: S307 - names are in it as their repr
    return made


def _python_values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit in _SECOND and column.type.tz in (None, "UTC"):
        times = _times(column)
        if times is not None:
            return times
    return values_of(column)


def _times(column: pa.Array) -> list[Any] | None:
    """Return the values of a column of times, None if they might differ from pyarrow's."""
    # pyarrow takes 5 microseconds for each in UTC. numpy's timedeltas plus an epoch are a hundred times
    # faster.
    if not len(column) or column.null_count:
        return None
    numbers, per_s = column.view(pa.int64()), _SECOND[column.type.unit]
    ends = pc.min_max(numbers).as_py()
    if ends["min"] < _FIRST_S * per_s or ends["max"] >= _END_S * per_s:
        return None
    gaps = numbers.to_numpy().view(np.dtype(f"m8[{column.type.unit}]")).tolist()
    epoch = datetime(1970, 1, 1, tzinfo=column[0].as_py().tzinfo)
    return [epoch + gap for gap in gaps]


def time_reader(kind: pa.DataType) -> Callable[[int], datetime]:
    """Return a function from an integer of this type, microseconds or coarser, to what `as_py` returns for
    it.
    """
    # A scalar of Arrow takes 5 microseconds for what takes 0.5 here.
    scale = _MICROS[kind.unit]
    if kind.tz is None:
        begin = _EPOCH.replace(tzinfo=None)
        return lambda number: begin + timedelta(microseconds=number * scale)
    zone = pa.scalar(0, kind).as_py().tzinfo
    return lambda number: (_EPOCH + timedelta(microseconds=number * scale)).astimezone(zone)


def micros_of_time(time: datetime) -> int:
    """Return whole microseconds since 1970, as Arrow does: a time without a zone counts as UTC."""
    gap = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    return (gap.days * 86_400 + gap.seconds) * 1_000_000 + gap.microseconds


@dataclass(frozen=True, slots=True)
class OnFrames:
    """Calls `function` with a DataFrame and converts a returned DataFrame or Series to Arrow arrays."""

    function: Callable[..., Any]

    def __call__(self, batch: pa.RecordBatch, *more: Any) -> Any:
        import pandas as pd  # imported late, because only graphs with such functions need pandas

        result = self.function(batch.to_pandas(types_mapper=pd.ArrowDtype), *more)
        if isinstance(result, pd.DataFrame):
            return columns_of_frame(result)
        return column_of_series(result) if isinstance(result, pd.Series) else result


def columns_of_frame(frame: Any) -> dict[str, Any]:
    """Return the columns of a DataFrame by name, as `column_of_series`. Raises UserFault."""
    if not frame.columns.is_unique:
        raise UserFault(f"a DataFrame has a column twice: {', '.join(map(str, frame.columns))}")
    return {str(name): column_of_series(frame[name]) for name in frame.columns}


def column_of_series(series: Any) -> Any:
    """Return a Series as an Arrow array, or a list of Python values if it holds objects. NaN stays NaN."""
    if series.dtype == object:
        return [*series]
    return pa.array(series, from_pandas=False)

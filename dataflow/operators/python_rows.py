"""Batches as rows of Python values, for functions of rows: like `RecordBatch.to_pylist`, but faster, and maps
are dicts.

Values and types are the same otherwise; columns for which that is not certain are left to pyarrow. pyarrow is
slow at times, 5 microseconds each in UTC. numpy converts them to timedeltas from an epoch, and adding these
to an epoch with that zone is a hundred times faster.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.values.nested import values_of

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
    columns = [_values(column) for column in batch.columns]
    return _dicts(tuple(names))(*columns)


@lru_cache(maxsize=256)
def _dicts(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """Return a function from columns to dicts.

    It is generated code, as in dataclasses: dict displays with literal names take a quarter of the time of
    `dict(zip(names, row))`.
    """
    cells = [f"cell{index}" for index in range(len(names))]
    columns = [f"column{index}" for index in range(len(names))]
    row = ", ".join(f"{name!r}: {cell}" for name, cell in zip(names, cells, strict=True))
    code = (
        f"lambda {', '.join(columns)}:"
        f" [{{{row}}} for {', '.join(cells)}, in zip({', '.join(columns)}, strict=True)]"
    )
    made: Callable[..., list[dict[str, Any]]] = eval(code)  # noqa: S307 - names are in it as their repr
    return made


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit in _SECOND and column.type.tz in (None, "UTC"):
        times = _times(column)
        if times is not None:
            return times
    return values_of(column)


def _times(column: pa.Array) -> list[Any] | None:
    """Return the values of a column of times, None if they might differ from pyarrow's."""
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
    """Return a function from the integer of one timestamp of this type to what `as_py` returns for it, for
    timestamps of microseconds or coarser.

    It exists because a scalar of Arrow takes 5 microseconds for what takes 0.5 here.
    """
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

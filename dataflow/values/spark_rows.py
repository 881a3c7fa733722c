"""Convert rows, keys and times to the form that functions written for Spark expect, and back.

Times are UTC, where Spark uses the zone of the session or machine: without a zone in DataFrames, as pandas
reads such times anyway; with it in rows, because `datetime.timestamp()` needs it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.values.columns import taker
from dataflow.values.python_rows import batch_of_result, columns_of_frame, micros_of_time, rows_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def refuse(call: str, remedy: str) -> NoReturn:
    """Raise NotImplementedError for a call that a replay could not repeat or that is not implemented."""
    raise NotImplementedError(f"{call} is not supported here: {remedy}")


class Row(tuple[Any, ...]):
    """A row like Spark's: values by position, by name in brackets, and as attributes."""

    __fields__: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Row":
        row = cls(values.values())
        row.__fields__ = tuple(values)
        return row

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self.__fields__.index(at) if isinstance(at, str) else at)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__fields__:
            raise AttributeError(f"the row has no column {name!r}; it has {', '.join(self.__fields__)}")
        return tuple.__getitem__(self, self.__fields__.index(name))

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(zip(self.__fields__, self, strict=True))


def plain(value: Any) -> Any:
    """Return a value as Spark passes it to a function: a time without its zone, in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return value


class Tuples:
    """Converts tuples of these columns between the form of user functions and the stored form."""

    def __init__(self, columns: pa.Schema, *, naive: bool) -> None:
        """naive: the function gets times without their zone."""
        self._takers = {field.name: taker(field, f"state {field.name!r}") for field in columns}
        self._naive = naive

    def to_stored(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return the stored form. Raises ValueError for their number, UserFault for an unfit value."""
        given, takers = tuple(values), self._takers
        if len(given) != len(takers):
            raise ValueError(f"a state is a tuple of {', '.join(takers)}, not of {len(given)} values")
        return {name: take(value) for (name, take), value in zip(takers.items(), given, strict=True)}

    def to_user(self, stored: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(map(plain, stored.values()) if self._naive else stored.values())


take_millis: Final = taker(
    pa.field("timer", pa.int64(), nullable=False), "the time of a timer, in milliseconds,"
)
"""Normalises the milliseconds that a function gives for a timer, or raises UserFault."""


def millis(time: datetime) -> int:
    """Return whole milliseconds since 1970, rounded down. A time without a zone is UTC."""
    return micros_of_time(time) // 1_000


def time_of(ms: int, column: pa.DataType) -> datetime:
    """Return the time of milliseconds since 1970, in the form of that timestamp column."""
    time = _EPOCH + ms * _MS
    return time if column.tz is not None else time.replace(tzinfo=None)


class Frames:
    """Converts a row to a DataFrame as Spark does for these columns: numpy types, times without a zone."""

    def __init__(self, columns: pa.Schema) -> None:
        naive = [
            pa.field(
                field.name, pa.timestamp(field.type.unit) if pa.types.is_timestamp(field.type) else field.type
            )
            for field in columns
        ]
        self._columns = pa.schema(naive)

    def of(self, row: Mapping[str, Any]) -> Any:
        values = {name: plain(value) for name, value in row.items()}
        batch = pa.RecordBatch.from_pylist([values], self._columns)
        return batch.to_pandas(coerce_temporal_nanoseconds=True, maps_as_pydicts="strict")


def rows_of_frames(frames: Iterable[Any] | None, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield the rows of DataFrames that a function returned or yields. A DataFrame without columns is none,
    as in Spark. Raises UserFault.
    """
    for frame in frames or ():
        if len(getattr(frame, "columns", schema.names)) == 0:
            continue
        names = [str(name) for name in getattr(frame, "columns", ())]
        if set(names) != set(schema.names):
            returned = ", ".join(names) if names else type(frame).__name__
            raise UserFault(
                f"it must return DataFrames of {', '.join(schema.names)}, and returned {returned}"
            )
        yield from rows_of(batch_of_result(columns_of_frame(frame), schema))


def rows_of_rows(rows: Iterable[Any] | None, names: Sequence[str]) -> Iterator[Any]:
    """Yield rows that a function returned or yields; rows with field names as dicts."""
    for row in rows or ():
        fields = getattr(row, "__fields__", None)
        if fields is not None and set(fields) == set(names):
            yield dict(zip(fields, row, strict=True))
        else:
            yield tuple(row) if isinstance(row, tuple) else row

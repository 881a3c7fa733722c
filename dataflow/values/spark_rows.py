"""Convert rows, keys and times to the form that functions written for Spark expect, and back.

Times are in one zone, that of the session in Spark: without it in DataFrames and their keys and states, and
with it in rows. Where Spark uses the zone of the machine, as for states of processors of rows, they are also
in that zone, so that nothing depends on the machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import SchemaError, UserFault
from dataflow.values.columns import taker
from dataflow.values.kinds import is_list, named, plain, values_of, zone_of
from dataflow.values.python_rows import batch_of_result, columns_of_frame, micros_of_time, rows_of

Convert: TypeAlias = Callable[[Any], Any]

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


UTC_ZONE: Final = "UTC"


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """How functions written for Spark see times, and give them back: in a zone, which is that of the session
    in Spark. `naive`: without the zone, as in DataFrames; otherwise with it, as in rows.
    """

    zone: str
    naive: bool
    pairs: bool = False
    """Whether maps are lists of pairs, as in Spark's rows, and not dicts."""

    def tzinfo(self) -> Any:
        """Raises SchemaError for a zone that is not known here."""
        try:
            return zone_of(pa.timestamp("us", self.zone))
        except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise SchemaError(
                f"time zone {self.zone!r} is not known: use a name like 'Europe/Berlin', or an offset like"
                " '+01:00'"
            ) from error

    def to_user(self, kind: pa.DataType) -> Convert | None:
        """Return a function from a value as columns give it to what the user gets; None if it is the same."""
        types = pa.types
        if types.is_timestamp(kind) and kind.tz is not None:
            zone, naive = self.tzinfo(), self.naive
            if not naive:
                return None if self.zone in (UTC_ZONE, kind.tz) else lambda time: time.astimezone(zone)
            return lambda time: time.astimezone(zone).replace(tzinfo=None)
        if types.is_map(kind):
            key, item = self.to_user(kind.key_type) or _same, self.to_user(kind.item_type) or _same
            if key is _same and item is _same and not self.pairs:
                return None
            return lambda value: _map_of(value, key, item, pairs=self.pairs)
        if is_list(kind):
            element = self.to_user(kind.value_type)
            return None if element is None else lambda value: [_unless_none(element, one) for one in value]
        if types.is_struct(kind):
            fields = {field.name: self.to_user(field.type) or _same for field in kind}
            if any(convert is not _same for convert in fields.values()):
                return lambda value: {name: _unless_none(fields[name], one) for name, one in value.items()}
        return None

    def from_user(self, kind: pa.DataType) -> Convert | None:
        """Return a function from a value of the user to one for a column: a time without a zone is in this
        zone. None: the rule of columns does the same.
        """
        types = pa.types
        if self.zone == UTC_ZONE:
            return None
        if types.is_timestamp(kind) and kind.tz is not None:
            zone = self.tzinfo()
            return lambda value: _with_zone(value, zone)
        if types.is_map(kind):
            key, item = self.from_user(kind.key_type) or _same, self.from_user(kind.item_type) or _same
            if key is _same and item is _same:
                return None
            return lambda value: (
                [(key(one), item(of_one)) for one, of_one in pairs_of(value)] if _has_pairs(value) else value
            )
        if is_list(kind):
            element = self.from_user(kind.value_type)
            return (
                None
                if element is None
                else lambda value: [*map(element, value)] if _is_array(value) else value
            )
        if types.is_struct(kind):
            fields = {field.name: self.from_user(field.type) or _same for field in kind}
            if any(convert is not _same for convert in fields.values()):
                return lambda value: _fields_from_user(value, fields)
        return None

    def type_of(self, kind: pa.DataType) -> pa.DataType:
        """Return the type of a column in a DataFrame of the user."""
        types = pa.types
        if types.is_timestamp(kind) and kind.tz is not None:
            return pa.timestamp(kind.unit)
        if types.is_map(kind):
            return pa.map_(self.type_of(kind.key_type), self.type_of(kind.item_type))
        if is_list(kind):
            return pa.list_(self.type_of(kind.value_type))
        if types.is_struct(kind):
            return pa.struct([(field.name, self.type_of(field.type)) for field in kind])
        return kind

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as columns of a DataFrame of the user."""
        assert self.naive, "rows are converted one by one"
        arrays = [self._array(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    def _array(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return pc.local_timestamp(column.cast(pa.timestamp(kind.unit, self.zone)))
        convert = self.to_user(kind)
        if convert is None:
            return column
        values = [_unless_none(convert, value) for value in values_of(column)]
        return pa.array(values, self.type_of(kind))

    def column(self, column: Any, kind: pa.DataType) -> Any:
        """Return a column of the user, an Arrow array or a list, for a column of this type. Raises UserFault
        for a time that the zone does not have.
        """
        convert = self.from_user(kind)
        if convert is None:
            return column
        if isinstance(column, (pa.Array, pa.ChunkedArray)):
            if not pa.types.is_timestamp(column.type):
                column = values_of(column)
            elif column.type.tz is not None:
                return column
            else:
                try:  # as in Spark, an ambiguous time is the later one
                    return pc.assume_timezone(column, self.zone, ambiguous="latest", nonexistent="raise")
                except pa.ArrowInvalid as error:
                    raise UserFault(f"a time does not exist in the zone {self.zone}: {error}") from error
        return [_unless_none(convert, value) for value in column]

    def key(self, key: Mapping[str, Any], columns: pa.Schema) -> tuple[Any, ...]:
        """Return the values of a key as the user gets them."""
        converts = (self.to_user(columns.field(name).type) or _same for name in key)
        return tuple(
            _unless_none(convert, value) for convert, value in zip(converts, key.values(), strict=True)
        )

    def millis(self, time: datetime) -> int:
        """Return whole milliseconds since 1970 of a time of the user, rounded down."""
        return millis(_with_zone(time, self.tzinfo()))


def _same(value: Any) -> Any:
    return value


def _unless_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _map_of(value: Any, key: Convert, item: Convert, *, pairs: bool) -> Any:
    made = ((key(one), _unless_none(item, of_one)) for one, of_one in pairs_of(value))
    return list(made) if pairs or not isinstance(value, Mapping) else dict(made)


def _with_zone(value: Any, zone: Any) -> Any:
    value = plain(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - its zone follows
    if not isinstance(value, datetime) or value.tzinfo is not None or _nanos(value):
        return value
    # without the class of pandas, which refuses times that a zone does not have
    return datetime.combine(value.date(), value.time(), zone)


def _nanos(time: Any) -> int:
    return int(getattr(time, "nanosecond", 0))


def pairs_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and items of a map."""
    return value.items() if isinstance(value, Mapping) else value


def _has_pairs(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, (list, tuple))
        and all(isinstance(one, (list, tuple)) and len(one) == 2 for one in value)
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def _fields_from_user(value: Any, fields: Mapping[str, Convert]) -> Any:
    value = named(value)
    if isinstance(value, Mapping):
        return {name: fields.get(name, _same)(one) for name, one in value.items()}
    if isinstance(value, tuple) and len(value) == len(fields):
        return tuple(convert(one) for convert, one in zip(fields.values(), value, strict=True))
    return value


class Tuples:
    """Converts tuples of these columns between the form of user functions and the stored form."""

    def __init__(self, columns: pa.Schema, times: SessionTimes) -> None:
        self.times = times
        self._takers = {field.name: taker(field, f"state {field.name!r}") for field in columns}
        self._given = {field.name: times.from_user(field.type) or _same for field in columns}
        converts = {field.name: times.to_user(field.type) for field in columns}
        self._converts = {name: convert for name, convert in converts.items() if convert is not None}

    def to_stored(self, values: Iterable[Any]) -> dict[str, Any]:
        """Return the stored form. Raises ValueError for their number, UserFault for an unfit value."""
        given, takers = tuple(values), self._takers
        if len(given) != len(takers):
            raise ValueError(f"a state is a tuple of {', '.join(takers)}, not of {len(given)} values")
        return {
            name: take(self._given[name](value))
            for (name, take), value in zip(takers.items(), given, strict=True)
        }

    def to_user(self, stored: Mapping[str, Any]) -> tuple[Any, ...]:
        converts = self._converts
        if not converts:
            return tuple(stored.values())
        return tuple(_unless_none(converts.get(name, _same), value) for name, value in stored.items())


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

    def __init__(self, columns: pa.Schema, times: SessionTimes) -> None:
        self._columns = columns
        self._times = times

    def of(self, row: Mapping[str, Any]) -> Any:
        return frame_of(self._times.batch(pa.RecordBatch.from_pylist([row], self._columns)))


def frame_of(batch: pa.RecordBatch) -> Any:
    """Return rows as a DataFrame as Spark makes it: maps are dicts, times in nested values are Timestamps."""
    frame = batch.to_pandas(coerce_temporal_nanoseconds=True, maps_as_pydicts="strict")
    for field in batch.schema:
        if pa.types.is_nested(field.type) and _has_times(field.type):
            frame[field.name] = frame[field.name].map(_with_timestamps)
    return frame


@lru_cache(maxsize=4_096)
def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


def _with_timestamps(value: Any) -> Any:
    import pandas as pd  # imported late, because only graphs with such functions need pandas

    if isinstance(value, np.ndarray) and value.dtype.kind in "OM":
        found = np.empty(len(value), np.object_)
        found[:] = [*map(_with_timestamps, value)]
        return found
    if isinstance(value, dict):
        return {_with_timestamps(key): _with_timestamps(one) for key, one in value.items()}
    if isinstance(value, (datetime, np.datetime64)):
        return None if pd.isna(value) else pd.Timestamp(value)
    return value


class SparkRows:
    """Converts a row to a `Row` as Spark does for these columns: times with the zone, maps as pairs."""

    def __init__(self, columns: pa.Schema, times: SessionTimes) -> None:
        given = replace(times, pairs=True)
        converts = {field.name: given.to_user(field.type) for field in columns}
        self._converts = {name: convert for name, convert in converts.items() if convert is not None}

    def of(self, row: Mapping[str, Any]) -> Row:
        if not self._converts:
            return Row.of(row)
        converts = self._converts
        return Row.of({name: _unless_none(converts.get(name, _same), value) for name, value in row.items()})


def rows_of_frames(
    frames: Iterable[Any] | None, schema: pa.Schema, times: SessionTimes
) -> Iterator[dict[str, Any]]:
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
        columns = columns_of_frame(frame)
        given = {name: times.column(column, schema.field(name).type) for name, column in columns.items()}
        yield from rows_of(batch_of_result(given, schema))


def rows_of_rows(rows: Iterable[Any] | None, schema: pa.Schema, times: SessionTimes) -> Iterator[Any]:
    """Yield rows that a function returned or yields; rows with field names as dicts."""
    converts = [times.from_user(field.type) or _same for field in schema]
    changes = any(convert is not _same for convert in converts)
    names = schema.names
    for row in rows or ():
        fields = getattr(row, "__fields__", None)
        if fields is not None and set(fields) == set(names):
            made: Any = dict(zip(fields, row, strict=True))
        else:
            made = tuple(row) if isinstance(row, tuple) else row
        yield _fields_from_user(made, dict(zip(names, converts, strict=True))) if changes else made

"""Convert rows, keys and times to the form that functions written for Spark expect, and back.

Times are in one zone, that of the session in Spark: without it in DataFrames and their keys and states, and
with it in rows. Where Spark uses the zone of the machine, as for states of processors of rows, they are also
in that zone, so that nothing depends on the machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import SchemaError, UserFault
from dataflow.values.columns import column_of, fitted_column, one_array, taker
from dataflow.values.kinds import is_bytes, is_list, named, plain, values_of, zone_of
from dataflow.values.python_rows import column_of_series, micros_of_time

Convert: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_T = TypeVar("_T")


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

    def keys(self, columns: pa.Schema) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """Return a function from a key of these columns to its values as the user gets them."""
        converts = [self.to_user(field.type) for field in columns]
        if not any(converts):
            return lambda key: tuple(key.values())
        used = [convert or _same for convert in converts]
        return lambda key: tuple(map(_unless_none, used, key.values()))

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
    """DataFrames of consecutive rows of a batch, as Spark makes them from those rows alone: numpy types,
    times without a zone.
    """

    # Slices of one conversion of all rows take a twentieth of the time of a conversion for each. But the type
    # of a column may depend on nulls in other rows: integers become doubles, which hold fewer of them. Rows
    # without such nulls are slices of a conversion without nulls, others of one in which these columns have
    # them.
    def __init__(self, batch: pa.RecordBatch, times: SessionTimes) -> None:
        # The categories of a batch would depend on its other rows, and Spark has none.
        plain_batch = pa.RecordBatch.from_arrays(
            [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in batch.columns
            ],
            batch.schema.names,
        )
        self._batch = times.batch(plain_batch)
        arrays = self._batch.columns
        self._nulls = {
            index: np.cumsum(np.concatenate([[0], column.is_null().to_numpy(zero_copy_only=False)]))
            for index, column in enumerate(arrays)
            if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
        }
        """For each column whose type depends on nulls, how many there are before each row."""
        self._alone = any(_depends_on_others(column) for column in arrays)
        self._converted: dict[tuple[int, ...], Any] = {}
        """By the columns that have nulls."""

    def of(self, begin: int, end: int) -> Any:
        """Return the rows from `begin` up to `end`, with an index that begins at 0."""
        if not self._alone:
            nulls = tuple(at for at, before in self._nulls.items() if before[end] > before[begin])
            frame = self._converted.get(nulls)
            if frame is None:
                try:
                    frame = self._converted[nulls] = frame_of(self._filled(nulls))
                except pa.ArrowException:
                    self._alone = True  # a value has no place in a DataFrame: the call for its row fails
            if frame is not None:
                return _rows_of_frame(frame, begin, end)
        return frame_of(self._batch.take(pa.array(range(begin, end))))

    def _filled(self, nulls: tuple[int, ...]) -> pa.RecordBatch:
        """Return the rows with zeros for nulls in columns other than these."""
        filled = self._nulls.keys() - set(nulls)
        arrays = [
            column.fill_null(pa.scalar(0).cast(column.type)) if at in filled else column
            for at, column in enumerate(self._batch.columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, self._batch.schema.names)


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


def _rows_of_frame(frame: Any, begin: int, end: int) -> Any:
    # In a third of the time of `iloc` and `reset_index`, which copies. No other call gets these rows, so the
    # function may write into them.
    manager = frame._mgr.get_slice(slice(begin, end), axis=1)  # noqa: SLF001
    manager.set_axis(1, frame.index[: end - begin])
    return frame._constructor_from_mgr(manager, manager.axes)  # noqa: SLF001


def _depends_on_others(column: pa.Array) -> bool:
    """Return whether the form of a value in a DataFrame may depend on other rows, except for the nulls of
    integers and booleans.
    """
    kind, types = column.type, pa.types
    if not types.is_nested(kind):
        return False
    if types.is_map(kind):
        parts = [column.keys, column.items]
    elif types.is_struct(kind):
        parts = column.flatten()
    else:
        parts = [column.flatten()]
    return any(part.null_count or _depends_on_others(part) for part in parts)


class InSlices(Generic[_T]):
    """Converts rows of a batch a limited number at a time, to bound memory."""

    rows_max: Final = 4_096

    def __init__(self, batch: pa.RecordBatch, convert: Callable[[pa.RecordBatch], _T]) -> None:
        self._batch = batch
        self._convert = convert
        self._begin = self._end = 0
        self._converted: _T | None = None

    def of(self, begin: int, end: int) -> tuple[_T, int]:
        """Return converted rows, and how many of them are before `begin`; those up to `end` are there if they
        are at most `rows_max`.
        """
        if begin < self._begin:  # the rest of a call: the next call is not there
            return self._convert(self._batch.slice(begin, end - begin)), 0
        if self._converted is None or min(end, begin + self.rows_max) > self._end:
            self._converted = self._convert(self._batch.slice(begin, self.rows_max))
            self._begin, self._end = begin, begin + self.rows_max
        return self._converted, begin - self._begin

    def each(self, begin: int, end: int) -> Iterator[tuple[_T, int, int]]:
        """Yield the rows from `begin` up to `end` in parts: converted rows, begin and end of a part."""
        for first in range(begin, end, self.rows_max):
            last = min(first + self.rows_max, end)
            converted, at = self.of(first, last)
            yield converted, at, at + last - first


_Cells: TypeAlias = "npt.NDArray[Any] | pa.Array"
"""The values of one column of a DataFrame."""


def cells_of_frames(
    frames: Iterable[Any] | None, schema: pa.Schema, times: SessionTimes
) -> Iterator[list[_Cells]]:
    """Yield the columns of each DataFrame that a function returned or yields. One without columns is none,
    as in Spark. Raises UserFault.
    """
    wanted = schema.names
    changed = _fields_with_times(times, schema) if times.zone != UTC_ZONE else ()
    for frame in frames or ():
        names = list(getattr(frame, "columns", ()))
        if names != wanted:
            if not names and hasattr(frame, "columns"):
                continue
            names = _checked_names(frame, names, wanted)
        if not len(frame):
            continue
        # Not `items()`: each Series that it makes takes twice the time of everything else here.
        arrays = frame._iter_column_arrays()  # noqa: SLF001
        if names != wanted:
            by_name = dict(zip(names, arrays, strict=True))
            arrays = [by_name[name] for name in wanted]
        yield [
            _cells_with_times(array, field, times) if field.name in changed else _cells(array, field)
            for array, field in zip(arrays, schema, strict=True)
        ]


def _checked_names(frame: Any, names: Iterable[Any], wanted: Sequence[str]) -> list[str]:
    """Return the names of columns. Raises UserFault unless they are the wanted ones, in any order."""
    found = [str(name) for name in names]
    if set(found) != set(wanted):
        returned = ", ".join(found) if found else type(frame).__name__
        raise UserFault(f"it must return DataFrames of {', '.join(wanted)}, and returned {returned}")
    if len(found) != len(wanted):
        raise UserFault(f"a DataFrame has a column twice: {', '.join(found)}")
    return found


@lru_cache(maxsize=256)
def _fields_with_times(times: SessionTimes, schema: pa.Schema) -> frozenset[str]:
    return frozenset(field.name for field in schema if times.from_user(field.type) is not None)


def _cells_with_times(array: Any, field: pa.Field, times: SessionTimes) -> pa.Array:
    import pandas as pd  # imported late, because only graphs with such functions need pandas

    column = times.column(column_of_series(pd.Series(array)), field.type)
    return column_of(column, field) if isinstance(column, list) else fitted_column(column, field)


def _cells(array: Any, field: pa.Field) -> _Cells:
    """Copy the values of an array of pandas: the function may go on to change it."""
    kind = array.dtype.kind if isinstance(array.dtype, np.dtype) else ""
    if kind == "O" and (pa.types.is_nested(field.type) or is_bytes(field.type)):
        return column_of([*array], field)
    if kind and kind in "biufmMO":
        copied: npt.NDArray[Any] = np.array(array)
        return copied
    import pandas as pd  # imported late, because only graphs with such functions need pandas

    converted = one_array(pa.array(pd.Series(array), from_pandas=False))
    return converted.dictionary_decode() if pa.types.is_dictionary(converted.type) else converted


def batch_of_cells(frames: Sequence[Sequence[_Cells]], schema: pa.Schema) -> pa.RecordBatch:
    """Convert the columns of DataFrames to a batch. Raises UserFault with the index of a DataFrame."""
    try:
        arrays = [_column([frame[at] for frame in frames], field) for at, field in enumerate(schema)]
    except UserFault:
        for index, frame in enumerate(frames) if len(frames) > 1 else ():
            try:
                batch_of_cells([frame], schema)
            except UserFault as fault:
                raise UserFault(str(fault), row=index, remedy=fault.remedy) from fault.__cause__
        raise
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(parts: Sequence[_Cells], field: pa.Field) -> pa.Array:
    """Join the values of one column. Values of different types are converted one type after the other."""
    arrays = []
    for _, run in groupby(parts, lambda part: part.dtype if isinstance(part, np.ndarray) else part.type):
        cells = [*run]
        if not isinstance(cells[0], np.ndarray):
            arrays.append(fitted_column(pa.concat_arrays(cells), field))
        elif cells[0].dtype == object:
            arrays.append(column_of(np.concatenate(cells).tolist(), field))
        else:
            arrays.append(fitted_column(pa.array(np.concatenate(cells), from_pandas=False), field))
    return pa.concat_arrays(arrays) if len(arrays) != 1 else arrays[0]


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

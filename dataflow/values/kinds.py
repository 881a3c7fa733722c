"""How columns of each type take values: the rule of `columns.py`. A `ValueRule` has two functions for it:

- `take(value)` returns one value normalised, or raises `MisfitError`. It defines the rule.
- `quick(values)` says whether Arrow converts all values as `take` does, or raises. It looks at types alone,
  at the speed of C, and may say no to values that `take` takes.
"""

import struct
from array import array as packed_numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.schema import type_text

Take: TypeAlias = Callable[[Any], Any]
Test: TypeAlias = Callable[[pa.DataType], bool]

_shown_chars: Final = 80
_whole_digits_max: Final = 80
"""More than any column holds; so that the digits of Decimal("1E+999999") are not written out."""


class MisfitError(Exception):
    """A value that a column does not hold exactly. path: where in the value, for nested ones."""

    def __init__(self, kind: pa.DataType, holds: str, value: Any, remedy: str) -> None:
        super().__init__(holds)
        self.kind, self.holds, self.value, self.remedy = kind, holds, value, remedy
        self.path = ""

    def inside(self, part: str) -> "MisfitError":
        self.path = part + self.path
        return self

    def fault(self, subject: str, row: int | None = None) -> UserFault:
        text = f"{subject}{self.path} is {type_text(self.kind)}, which holds {self.holds}; it was given"
        remedy = self.remedy
        if isinstance(self.value, float) and self.value != self.value:
            remedy = "return None for a missing value: NaN is a number, not null"
        return UserFault(f"{text} {shown(self.value)}", row=row, remedy=remedy)


def shown(value: Any) -> str:
    """Return the type and the beginning of a value, for a message. Raises nothing."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception:
        text = "that cannot be shown"
    return f"{type(value).__name__} {text[:_shown_chars]}"


def no(values: Sequence[Any]) -> bool:
    """Return False: no values are certain."""
    del values
    return False


@dataclass(frozen=True, slots=True)
class ValueRule:
    """How a type takes values, without null; `rule_of` adds null."""

    take: Take
    quick: Callable[[Sequence[Any]], bool]
    same: Callable[[Sequence[Any]], bool] = no
    """Says whether all values are normalised and cannot be changed in place."""


Makers: TypeAlias = tuple[tuple[Test, Callable[[pa.DataType], ValueRule]], ...]


def plain(value: Any) -> Any:
    """Return a value without the classes of numpy, pandas and Arrow; None for their nulls."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        if np.isnat(value) or np.datetime_data(value.dtype) == ("ns", 1):
            return None if np.isnat(value) else pa.scalar(value).as_py()
        found = value.item()
        return value if isinstance(found, int) else found  # of a unit that Python does not have
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pa.Scalar):
        return value.as_py()
    if type(value).__module__.startswith("pandas.") and type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value


def types_of(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


# --- numbers ------------------------------------------------------------------------------------------------


def ends_of(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    high = 1 << (kind.bit_width - 1)
    return -high, high - 1


def _number(value: Any) -> int | float | Decimal | None:
    """Return a number as a plain one; None for any other value, also a bool."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value if isinstance(value, Decimal) else None


def _whole(number: int | float | Decimal) -> int | None:
    """Return a number as an int, None if it is not whole."""
    if isinstance(number, int):
        return number
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    if not number.is_finite() or number.adjusted() > _whole_digits_max:
        return None
    whole = int(number)
    return whole if whole == number else None


def _integer(kind: pa.DataType) -> ValueRule:
    low, high = ends_of(kind)
    holds = f"whole numbers from {low} to {high}"
    remedy = "convert it with int() or round(), or use a column that holds it"

    def take(value: Any) -> int | None:
        if type(value) is not int:
            value = plain(value)
            if value is None:
                return None
            number = _number(value)
            whole = None if number is None else _whole(number)
        else:
            whole = value
        if whole is None or not low <= whole <= high:
            raise MisfitError(kind, holds, value, remedy)
        return whole

    def quick(values: Sequence[Any]) -> bool:
        return not values or types_of(values) == {int}  # Arrow refuses what is out of range

    def same(values: Sequence[Any]) -> bool:
        return not values or (quick(values) and min(values) >= low and max(values) <= high)

    return ValueRule(take, quick, same)


_packing: Final = {16: "e", 32: "f", 64: "d"}
_significand_bits: Final = {16: 11, 32: 24, 64: 53}


def _held(number: int | float | Decimal, width: int) -> float | None:
    """Return a number as a float of this many bits, None if it is not exactly one."""
    if isinstance(number, int):
        return float(number) if abs(number) <= 1 << _significand_bits[width] else None
    if isinstance(number, Decimal) and (not number.is_finite() or Decimal(float(number)) != number):
        return None
    found = float(number)
    if found != found:
        return found
    try:
        (packed,) = struct.unpack(_packing[width], struct.pack(_packing[width], found))
    except OverflowError:
        return None
    return found if packed == found else None


def _floating(kind: pa.DataType) -> ValueRule:
    width = kind.bit_width
    narrow = width < 64
    holds = f"numbers that {width} bits hold exactly, and whole numbers up to 2**{_significand_bits[width]}"
    remedy = (
        f"declare the column as double, or round it with numpy.float{width}(value)"
        if narrow
        else "convert it with float(), which may round it"
    )

    def take(value: Any) -> float | None:
        if type(value) is float and not narrow:
            return value
        value = plain(value)
        if value is None:
            return None
        number = _number(value)
        found = None if number is None else _held(number, width)
        if found is None:
            raise MisfitError(kind, holds, value, remedy)
        return found

    def quick(values: Sequence[Any]) -> bool:
        if values and types_of(values) != {float}:
            return False
        if not narrow:
            return True
        if width != 32:
            return False
        wide = np.frombuffer(packed_numbers("d", values), np.float64)
        with np.errstate(over="ignore"):
            return bool(np.array_equal(wide.astype(np.float32), wide, equal_nan=True))

    return ValueRule(take, quick, quick)


def _decimal(kind: pa.DataType) -> ValueRule:
    step = Decimal(1).scaleb(-kind.scale)
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    holds = f"{kind.precision} digits, {kind.scale} of them after the point, exactly"
    remedy = f"round it, for example Decimal(str(value)).quantize(Decimal('{step:f}'))"

    def take(value: Any) -> Decimal | None:
        value = plain(value)
        if value is None:
            return None
        number = _number(value)
        if number is not None:
            if not isinstance(number, Decimal) and number - number == 0:  # finite
                number = Decimal(number)
            if isinstance(number, Decimal) and number.is_finite():
                try:
                    made = number.quantize(step, context=exact)
                except (Inexact, InvalidOperation):
                    pass
                else:
                    return made or made.copy_abs()  # there is no -0 in a decimal column
        raise MisfitError(kind, holds, value, remedy)

    def quick(values: Sequence[Any]) -> bool:
        return not values or types_of(values) == {Decimal}  # Arrow refuses what does not fit

    return ValueRule(take, quick)


# --- truth, text and bytes ----------------------------------------------------------------------------------


def _boolean(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> bool | None:
        value = plain(value)
        if value is None or type(value) is bool:
            return value
        raise MisfitError(kind, "True and False", value, "compare it: value == 'true'")

    def quick(values: Sequence[Any]) -> bool:
        return not values or types_of(values) == {bool}

    return ValueRule(take, quick, quick)


def _string(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> str | None:
        value = plain(value)
        if value is None:
            return None
        if not isinstance(value, str):
            raise MisfitError(kind, "text", value, "convert it with str() or bytes.decode()")
        text = value if type(value) is str else str.__str__(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                remedy = "replace what is no text: value.encode('utf-8', 'replace').decode()"
                holds = "text that can be encoded in UTF-8"
                raise MisfitError(kind, holds, text, remedy) from None
        return text

    def quick(values: Sequence[Any]) -> bool:
        return not values or types_of(values) == {str}  # Arrow refuses surrogates

    return ValueRule(take, quick, lambda values: quick(values) and all(map(str.isascii, values)))


def _binary(kind: pa.DataType) -> ValueRule:
    size = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    holds = "bytes" if size is None else f"{size} bytes"

    def take(value: Any) -> bytes | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, (bytes, bytearray, memoryview)) and size in (None, memoryview(value).nbytes):
            return bytes(value)
        raise MisfitError(kind, holds, value, "convert it, for example with str.encode()")

    return ValueRule(take, lambda values: not values or types_of(values) == {bytes})  # Arrow checks the size


def is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


SCALARS: Final[Makers] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_boolean, _boolean),
    (is_text, _string),
    (is_bytes, _binary),
)


# --- times --------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def zone_of(kind: pa.DataType) -> Any:
    """Return the zone of the values of a timestamp type, None for a wall clock."""
    return None if kind.tz is None else pa.scalar(0, kind).as_py().tzinfo


def _nanos(value: Any) -> int:
    """Return the nanoseconds below a microsecond of a Timestamp or Timedelta of pandas."""
    return 0 if type(value) in (datetime, timedelta) else int(getattr(value, "nanosecond", 0) or 0)


def _day(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> date | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, datetime):
            if value.tzinfo is None and value.time() == time() and not _nanos(value):
                return value.date()
        elif isinstance(value, date):
            return date(value.year, value.month, value.day)
        holds = "days, and times without a zone at 00:00"
        raise MisfitError(kind, holds, value, "say which day it is, with .date()")

    return ValueRule(take, lambda values: not values or types_of(values) == {date})


def _held_time(value: datetime, kind: pa.DataType, zone: Any) -> datetime | None:
    """Return a time as a column gives it back; None if it differs. Raises OverflowError for years out of
    range.
    """
    if value.tzinfo is not None and (zone is None or value.utcoffset() is None):
        return None
    if kind.unit == "ns":
        return _held_nanos(value, kind)
    if _nanos(value) or value.microsecond % _MICROS[kind.unit]:
        return None
    if type(value) is not datetime or value.fold:
        value = datetime.combine(value.date(), value.timetz())  # without the class of pandas
        value = value.replace(fold=0) if value.tzinfo is None else value.astimezone(UTC)
    if zone is None or value.tzinfo is zone:
        return value
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).astimezone(zone)


def _held_nanos(value: datetime, kind: pa.DataType) -> datetime | None:
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    nanos = _micros(since) * 1_000 + _nanos(value)
    if not -(1 << 63) <= nanos < 1 << 63:
        return None
    made: datetime = pa.scalar(nanos, pa.int64()).cast(kind).as_py()
    return made


def _timestamp(kind: pa.DataType) -> ValueRule:
    unit, zone = kind.unit, zone_of(kind)
    quick_zones = {None, UTC, zone} if kind.tz == "UTC" else {zone}
    # In other zones, the first and last times that Arrow takes could not be read
    if zone is None:
        holds = "times without a zone"
        remedy = "pass a datetime without a zone: value.astimezone(zone).replace(tzinfo=None)"
    else:
        holds = "times; one without a zone is in UTC"
        remedy = "pass a datetime: datetime.fromtimestamp(seconds, UTC), or datetime.fromisoformat(text)"
    if unit in ("s", "ms"):
        holds += f", of whole {unit}"

    def take(value: Any) -> datetime | None:
        if type(value) is not datetime:
            value = plain(value)
            if value is None:
                return None
        made = None
        try:
            if isinstance(value, datetime):
                made = _held_time(value, kind, zone)
            elif isinstance(value, date):
                made = _held_time(datetime(value.year, value.month, value.day), kind, zone)  # noqa: DTZ001 - the rule says UTC
        except OverflowError:
            pass  # a year that does not exist in the zone of the column
        if made is None:
            raise MisfitError(kind, holds, value, remedy)
        return made

    def quick(values: Sequence[Any]) -> bool:
        if not values:
            return True
        return (
            unit == "us"
            and types_of(values) == {datetime}
            and set(map(attrgetter("tzinfo"), values)) <= quick_zones
        )

    return ValueRule(take, quick)


def _micros(gap: timedelta) -> int:
    return (gap.days * 86_400 + gap.seconds) * 1_000_000 + gap.microseconds


def _time_of_day(kind: pa.DataType) -> ValueRule:
    step = _MICROS.get(kind.unit, 1)

    def take(value: Any) -> time | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, time) and value.tzinfo is None and value.microsecond % step == 0:
            return value.replace(fold=0)
        holds = f"times of day without a zone, of whole {kind.unit}"
        raise MisfitError(kind, holds, value, "pass a datetime.time")

    return ValueRule(take, no)


def _duration(kind: pa.DataType) -> ValueRule:
    nanos_of = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}[kind.unit]

    def take(value: Any) -> timedelta | None:
        value = plain(value)
        if value is None:
            return None
        if isinstance(value, timedelta):
            below = 0 if type(value) is timedelta else int(getattr(value, "nanoseconds", 0))
            nanos = _micros(value) * 1_000 + below
            if nanos % nanos_of == 0 and -(1 << 63) <= nanos // nanos_of < 1 << 63:
                made: timedelta = pa.scalar(nanos // nanos_of, pa.int64()).cast(kind).as_py()
                return made
        raise MisfitError(kind, f"durations of whole {kind.unit}", value, "pass a datetime.timedelta")

    return ValueRule(take, no)


TIMES: Final[Makers] = (
    (pa.types.is_date, _day),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time_of_day),
    (pa.types.is_duration, _duration),
)


# --- any type, and nested ones ------------------------------------------------------------------------------

REFUSED: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for a value that does not fit."""


@lru_cache(maxsize=4_096)
def rule_of(field: pa.Field) -> ValueRule:
    """Return the rule of a field: that of its type, and None if it is nullable."""
    bare, nullable, kind = _bare_rule(field.type), field.nullable, field.type

    def take(value: Any) -> Any:
        if value is not None:
            taken = bare.take(value)
            if taken is not None:  # pandas' NA and NaT
                return taken
        if not nullable:
            raise MisfitError(kind, "no null", value, NO_NULL)
        return None

    def quick(values: Sequence[Any]) -> bool:
        if bare.quick(values):
            return True
        if not nullable:
            return False
        present = [value for value in values if value is not None]
        return len(present) < len(values) and bare.quick(present)

    return ValueRule(take, quick, bare.same)


NO_NULL: Final = "return a value, or declare the column without NOT NULL"


def _bare_rule(kind: pa.DataType) -> ValueRule:
    for test, make in _makers:
        if test(kind):
            return make(kind)
    return _other(kind)


# --- nested types -------------------------------------------------------------------------------------------


def _list(kind: pa.DataType) -> ValueRule:
    element = rule_of(kind.value_field)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    holds = "lists" if size is None else f"lists of {size} values"

    def take(value: Any) -> list[Any] | None:
        if type(value) is not list:
            value = plain(value)
            if isinstance(value, (pa.Array, pa.ChunkedArray)):
                value = values_of(value)
            if value is None:
                return None
        if not isinstance(value, (list, tuple, np.ndarray)) or size not in (None, len(value)):
            raise MisfitError(kind, holds, value, "pass a list; a text is not one of its letters")
        found = list(value)
        if element.same(found):
            return found
        taken = []
        for index, one in enumerate(found):
            try:
                taken.append(element.take(one))
            except MisfitError as misfit:
                raise misfit.inside(f"[{index}]") from None
        return taken

    def quick(values: Sequence[Any]) -> bool:
        if values and types_of(values) != {list}:
            return False
        return (size is None or set(map(len, values)) <= {size}) and element.quick(
            [*chain.from_iterable(values)]
        )

    return ValueRule(take, quick)


def _struct(kind: pa.DataType) -> ValueRule:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    names = [field.name for field in fields]
    kinds = [rule_of(field) for field in fields]
    known = set(names)
    if len(known) < len(names):
        return _other(kind)
    holds = f"dicts with exactly {', '.join(map(repr, names))}, and tuples of {len(names)} values"

    def take(value: Any) -> dict[str, Any] | None:
        value = plain(value)
        if value is None:
            return None
        given = _fields(value)
        if given is None:
            raise MisfitError(kind, holds, value, "pass all fields, None for those without a value")
        taken = {}
        for name, of_field, one in zip(names, kinds, given, strict=True):
            try:
                taken[name] = of_field.take(one)
            except MisfitError as misfit:
                raise misfit.inside(f".{name}") from None
        return taken

    def _fields(value: Any) -> Sequence[Any] | None:
        value = named(value)
        if isinstance(value, Mapping):
            return [value[name] for name in names] if value.keys() == known else None
        return value if isinstance(value, tuple) and len(value) == len(names) else None

    def quick(values: Sequence[Any]) -> bool:
        if values and (types_of(values) != {dict} or set(map(len, values)) != {len(names)}):
            return False
        try:
            columns = [list(map(itemgetter(name), values)) for name in names]
        except KeyError:
            return False
        return all(of_field.quick(column) for of_field, column in zip(kinds, columns, strict=True))

    return ValueRule(take, quick)


def named(row: Any) -> Any:
    """Return a row of Spark, a tuple with the names of its fields, as a dict; others unchanged."""
    names = getattr(row, "__fields__", None) if isinstance(row, tuple) else None
    return row if names is None else dict(zip(names, row, strict=True))


def _map(kind: pa.DataType) -> ValueRule:
    key, item, as_dict = rule_of(kind.key_field), rule_of(kind.item_field), _reads_as_dict(kind)
    holds = "dicts, and lists of pairs, with different keys"

    def take(value: Any) -> Any:
        value = plain(value)
        if value is None:
            return None
        pairs = [*value.items()] if isinstance(value, Mapping) else value
        if not isinstance(pairs, (list, tuple)) or not all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs
        ):
            raise MisfitError(kind, holds, value, "pass a dict")
        taken = []
        for one, of_one in pairs:
            try:
                taken.append((key.take(one), item.take(of_one)))
            except MisfitError as misfit:
                raise misfit.inside(f"[{shown(one)}]") from None
        if not as_dict:
            return taken
        made = dict(taken)
        if len(made) < len(taken):
            raise MisfitError(kind, holds, value, "give each key once")
        return made

    def quick(values: Sequence[Any]) -> bool:
        if values and types_of(values) != {dict}:
            return False
        items = [*chain.from_iterable(map(dict.values, values))]
        return key.quick([*chain.from_iterable(values)]) and item.quick(items)

    return ValueRule(take, quick)


def _reads_as_dict(kind: pa.DataType) -> bool:
    """Whether the values of a map are read as dicts: its keys can be keys of one."""
    return not pa.types.is_nested(kind.key_type)


def values_of(column: "pa.Array | pa.ChunkedArray") -> list[Any]:
    """Return the values of a column as functions read them: as Arrow gives them, but maps as dicts."""
    values: list[Any] = column.to_pylist()
    read = _map_reader(column.type)
    return values if read is None else [None if value is None else read(value) for value in values]


@lru_cache(maxsize=4_096)
def _map_reader(kind: pa.DataType) -> Take | None:
    """Return a function that reads the maps in a value as dicts; None if there is none in the type."""
    types = pa.types
    if types.is_map(kind):
        key, item = _map_reader(kind.key_type), _map_reader(kind.item_type)

        def read_map(pairs: Any) -> Any:
            read = [(_read(key, one), _read(item, of_one)) for one, of_one in pairs]
            made = dict(read) if _reads_as_dict(kind) else read
            if len(made) < len(read):
                raise UserFault(f"a {type_text(kind)} has a key twice: {shown(pairs)}")
            return made

        return read_map
    if is_list(kind):
        element = _map_reader(kind.value_type)
        return None if element is None else lambda value: [_read(element, one) for one in value]
    if types.is_struct(kind):
        readers = {kind.field(at).name: _map_reader(kind.field(at).type) for at in range(kind.num_fields)}
        if any(readers.values()):
            return lambda value: {name: _read(readers[name], one) for name, one in value.items()}
    return None


def _read(read: Take | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


# --- the rest -----------------------------------------------------------------------------------------------


def _null(kind: pa.DataType) -> ValueRule:
    def take(value: Any) -> None:
        if plain(value) is not None:
            raise MisfitError(kind, "null alone", value, "declare the type of the column")

    return ValueRule(take, lambda values: not values)


def _dictionary(kind: pa.DataType) -> ValueRule:
    return _bare_rule(kind.value_type)


def _other(kind: pa.DataType) -> ValueRule:
    """Return the rule of a type without a rule of its own: it takes what Arrow gives back unchanged."""

    def take(value: Any) -> Any:
        try:
            made = pa.scalar(value, kind).as_py()
            if type(made) is type(value) and made == value:
                return made
        except REFUSED:
            pass
        raise MisfitError(kind, "what Arrow gives back unchanged", value, "declare another type")

    return ValueRule(take, lambda values: not values)


def is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


_makers: Final[Makers] = (
    *SCALARS,
    *TIMES,
    (pa.types.is_map, _map),
    (is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_dictionary, _dictionary),
    (pa.types.is_null, _null),
)

"""How columns of numbers, truth values, text and bytes take values: the rule of `columns.py`.

Each type has a `ValueRule`, with functions for one rule:

- `take(value)` returns one value normalised, or raises `MisfitError`. It defines the rule.
- `quick(values)` says whether Arrow converts all values as `take` does, or raises. It looks at types alone,
  at the speed of C, and may say no to values that `take` takes.

`times.py` and `nested.py` have the other types.
"""

import struct
from array import array as packed_numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
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

"""Counts, sums and extremes, one per slot, updated by whole batches. Pure: arrays to arrays.

A result does not depend on the order of the updates: doubles are summed exactly and rounded when read.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.key_hash import hash_keys
from dataflow.errors import UserFault
from dataflow.schema import type_text
from dataflow.state.key_index import SlotArray, Slots, Weights, grown
from dataflow.state.keyed_table import SlotValues
from dos_protocol.lazy_names import MissingExtraError, install_command

# --- exact sums ---------------------------------------------------------------------------------------------
#
# Exact sums of integers and doubles, one per slot, independent of the order of the rows.
#
# Adding doubles rounds each time, so the result depends on the order, which may differ for replicas and
# replays. Here a sum is an integer in units of 2^-1152 (for integers: of 1), as *limbs* of 32 bits in 64-bit
# numbers. A double is its 53-bit fraction, shifted, so it has parts in three limbs. Limbs are added
# independently and do not overflow for 2^30 rows; then, and before a sum is read, carries are propagated.
# Only limbs that a value touched are stored: values of everyday size touch four or five, so a sum takes
# about 40 bytes. A sum is rounded once, when it is read: to the double nearest to the true sum, as by
# `math.fsum`.
#
# A *canonical* sum has a sign and limbs in [0, 2^32). A stored sum is a list of 64-bit numbers: the index of
# the first limb, then the limbs, all in [0, 2^32) except the last, which carries the sign.

Limbs: TypeAlias = npt.NDArray[np.int64]
"""Rows of limbs, the lowest first."""

_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1
_FRACTION_BITS: Final = 53
_UNIT_EXPONENT: Final = -1152
"""Of the lowest limb of doubles: the smallest is 2^-1074, the lowest bit of its fraction 2^-1126."""
assert _UNIT_EXPONENT % _BITS == 0
assert _UNIT_EXPONENT <= -1074 - _FRACTION_BITS + 1
_rows_before_carry: Final = 1 << 28
"""A row adds less than 2^34 to a limb."""
STORED_TYPE: Final = pa.list_(pa.int64())


class ExactSums:
    """One sum per slot, initially 0. `of_doubles`: finite doubles are added, otherwise integers."""

    def __init__(self, *, of_doubles: bool) -> None:
        self._of_doubles = of_doubles
        self._limbs: dict[int, Limbs] = {}
        self._slots = 0
        self._rows = 0

    @property
    def bytes_held(self) -> int:
        return sum(limb.nbytes for limb in self._limbs.values())

    def reach(self, slots: int) -> None:
        self._slots = max(slots, self._slots)

    def clear(self, slots: Slots) -> None:
        for index in self._limbs:
            self._limb(index)[slots] = 0

    def keep(self, slots: Slots) -> None:
        """Move the sum of slot slots[i] to slot i; drop all other slots."""
        self._limbs = {index: self._limb(index)[slots] for index in self._limbs}
        self._slots = len(slots)

    # --- adding ---------------------------------------------------------------------------------------------

    def add(self, slots: Slots, values: npt.NDArray[Any]) -> None:
        """Add values[i] to the sum of slots[i]; slots may repeat."""
        if self._rows + len(slots) > _rows_before_carry:
            self._carry()
        self._rows += len(slots)
        if self._of_doubles:
            self._add_doubles(slots, values)
        else:
            self._add_integers(slots, values)

    def _add_integers(self, slots: Slots, values: npt.NDArray[Any]) -> None:
        negative = values < 0
        size = np.abs(values).astype(np.uint64)  # abs of the lowest int64 is itself, and as uint64 2^63
        self._add_parts(0, slots, [size & np.uint64(_MASK), size >> np.uint64(_BITS)], negative)

    def _add_doubles(self, slots: Slots, values: npt.NDArray[np.float64]) -> None:
        fractions, exponents = np.frexp(values)
        mantissas = np.ldexp(np.abs(fractions), _FRACTION_BITS).astype(np.uint64)
        positions = exponents.astype(np.int64) - _FRACTION_BITS - _UNIT_EXPONENT
        shifts = (positions % _BITS).astype(np.uint64)
        low = (mantissas & np.uint64(_MASK)) << shifts
        high = (mantissas >> np.uint64(_BITS)) << shifts
        parts = [
            low & np.uint64(_MASK),
            (low >> np.uint64(_BITS)) + (high & np.uint64(_MASK)),
            high >> np.uint64(_BITS),
        ]
        negative = values < 0
        firsts = positions // _BITS
        for first in np.unique(firsts).tolist():
            chosen = firsts == first
            if chosen.all():
                self._add_parts(first, slots, parts, negative)
            else:
                self._add_parts(first, slots[chosen], [part[chosen] for part in parts], negative[chosen])

    def _add_parts(
        self, first: int, slots: Slots, parts: list[npt.NDArray[np.uint64]], negative: npt.NDArray[np.bool_]
    ) -> None:
        for index, part in enumerate(parts, first):
            signed = part.astype(np.int64)
            np.negative(signed, out=signed, where=negative)
            if signed.any():
                np.add.at(self._limb(index), slots, signed)

    def _limb(self, index: int) -> Limbs:
        limb = self._limbs.get(index)
        if limb is None:
            limb = np.zeros(self._slots, np.int64)
        elif len(limb) < self._slots:
            before = len(limb)
            limb = grown(limb, self._slots)
            limb[before:] = 0
        self._limbs[index] = limb
        return limb

    def _carry(self) -> None:
        for slots in np.array_split(np.arange(self._slots), max(1, self._slots >> 20)):
            first, limbs = self._carried(slots)
            for index in range(limbs.shape[1]):
                if limbs[:, index].any() or first + index in self._limbs:
                    self._limb(first + index)[slots] = limbs[:, index]
        self._rows = 0

    # --- reading --------------------------------------------------------------------------------------------

    def _carried(self, slots: Slots) -> tuple[int, Limbs]:
        """Return the index of the first limb, and the limbs after all carries; the last has the sign."""
        if not self._limbs:
            return 0, np.zeros((len(slots), 1), np.int64)
        first, last = min(self._limbs), max(self._limbs)
        limbs = np.zeros((len(slots), last - first + 2), np.int64)
        for index in self._limbs:
            limbs[:, index - first] = self._limb(index)[slots]
        return first, _carry_up(limbs)

    def _canonical(self, slots: Slots) -> tuple[int, Limbs, npt.NDArray[np.bool_]]:
        """Return the index of the first limb, the limbs in [0, 2^32), and which sums are negative."""
        first, limbs = self._carried(slots)
        negative = limbs[:, -1] < 0
        limbs[negative] *= -1
        return first, _carry_up(limbs), negative

    def as_doubles(self, slots: Slots) -> npt.NDArray[np.float64]:
        """Return the double nearest to each sum; infinite if it is out of range."""
        first, limbs, negative = self._canonical(slots)
        padded = np.pad(limbs, ((0, 0), (2, 0))).astype(np.uint64)
        rows = np.arange(len(slots))
        filled = padded != 0
        top_at = padded.shape[1] - 1 - np.argmax(filled[:, ::-1], axis=1)
        top_at = np.maximum(top_at, 2)  # for a zero any will do
        top, middle, low = (padded[rows, top_at - back] for back in range(3))
        below = np.cumsum(filled, axis=1)[rows, top_at - 2] - (low != 0) > 0
        # 64 bits from the highest one on; the last is sticky for all bits below, so rounding is correct.
        free = (_BITS - np.frexp(top.astype(np.float64))[1]).astype(np.uint64)
        bits = ((top << np.uint64(_BITS) | middle) << free) | (low >> (np.uint64(_BITS) - free))
        cut_off = below | (((low << free) & np.uint64(_MASK)) != 0)
        rounded = (bits | cut_off.astype(np.uint64)).astype(np.float64)
        unit = _UNIT_EXPONENT if self._of_doubles else 0
        exponents = (top_at - 2 + first - 1) * _BITS - free.astype(np.int64) + unit
        with np.errstate(over="ignore"):
            values: npt.NDArray[np.float64] = np.ldexp(rounded, exponents.astype(np.int32))
        return np.where(negative, -values, values) + 0.0

    def as_integers(self, slots: Slots) -> tuple[Limbs, npt.NDArray[np.bool_]]:
        """Return the sums of integers, and which of them fit 64 bits (the others are meaningless)."""
        first, limbs, negative = self._canonical(slots)
        # `first` may be 2: the low limbs of a sum of -2^64 are zero, and are not stored.
        wide = np.pad(limbs, ((0, 0), (first, 2))).astype(np.uint64)
        size = wide[:, 1] << np.uint64(_BITS) | wide[:, 0]
        fits = ~wide[:, 2:].any(axis=1) & (size <= np.uint64(2**63 - 1) + negative.astype(np.uint64))
        values = size.astype(np.int64)
        np.negative(values, out=values, where=negative)
        return values, fits

    # --- storing --------------------------------------------------------------------------------------------

    def store(self, slots: Slots) -> pa.Array:
        first, limbs = self._carried(slots)
        lists = np.concatenate([np.full((len(slots), 1), first), limbs], axis=1)
        ends = np.arange(len(slots) + 1, dtype=np.int32) * lists.shape[1]
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(lists.ravel()))

    def load(self, slots: Slots, stored: pa.Array) -> None:
        """Load stored sums into slots whose sum is 0. A null leaves it 0."""
        lengths = stored.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        values = stored.flatten().to_numpy(zero_copy_only=False)
        begins = np.cumsum(lengths) - lengths
        for length in np.unique(lengths[lengths > 0]).tolist():
            chosen = np.flatnonzero(lengths == length)
            lists = values[begins[chosen][:, None] + np.arange(length)]
            for first in np.unique(lists[:, 0]).tolist():
                same = lists[:, 0] == first
                for index in range(1, length):
                    if lists[same, index].any():
                        self._limb(first + index - 1)[slots[chosen[same]]] = lists[same, index]


def _carry_up(limbs: Limbs) -> Limbs:
    for index in range(limbs.shape[1] - 1):
        limbs[:, index + 1] += limbs[:, index] >> _BITS
        limbs[:, index] &= _MASK
    return limbs


_limbs_max: Final = 80
"""More than any sum of doubles has."""


def is_stored_sum(value: Sequence[int | None] | None) -> bool:
    """Return whether a list has the form of a stored sum."""
    if not value or None in value or len(value) > _limbs_max:
        return False
    first, *limbs = value
    return 0 <= (first or 0) < _limbs_max and all(abs(limb or 0) <= 1 << 32 for limb in limbs)


# --- numbers ------------------------------------------------------------------------------------------------


class Accumulator(SlotValues):
    """One aggregate over many slots."""

    @abstractmethod
    def update(self, slots: Slots, column: pa.Array | None) -> None:
        """Add rows: row i belongs to slots[i]. `column` is None if the aggregate has no column."""

    @abstractmethod
    def results(self, slots: Slots) -> pa.Array:
        """Return the results of these slots. Raises UserFault for a result that does not fit its type."""

    @property
    @abstractmethod
    def bytes_held(self) -> int:
        """The memory of all slots in bytes."""


def present(slots: Slots, column: pa.Array) -> tuple[Slots, pa.Array]:
    """Return slots and column without the rows in which the column is null."""
    if not column.null_count:
        return slots, column
    return slots[column.is_valid().to_numpy(zero_copy_only=False)], column.drop_null()


class SlotNumbers:
    """A `SlotArray` that knows the number of slots."""

    def __init__(self, dtype: Any, fill: Any = 0) -> None:
        self._array = SlotArray(dtype, fill)
        self._fill = fill
        self._slots = 0

    def reach(self, slots: int) -> None:
        self._slots = max(slots, self._slots)
        self._array.reach(self._slots)

    @property
    def values(self) -> npt.NDArray[Any]:
        return self._array.values

    def clear(self, slots: Slots) -> None:
        self.values[slots] = self._fill

    def keep(self, slots: Slots) -> None:
        kept = self.values[slots]
        self._array = SlotArray(kept.dtype, self._fill)
        self._slots = len(kept)
        self._array.reach(self._slots)[: self._slots] = kept


class CountAccumulator(Accumulator):
    """The number of rows, or of values that are not null."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = SlotNumbers(np.int64)

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.int64())]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        if column is not None:
            slots, _ = present(slots, column)
        self.add(slots, 1)

    def add(self, slots: Slots, numbers: Weights | int) -> None:
        """Count rows, or for each slot a number of rows."""
        np.add.at(self._counts.values, slots, numbers)

    def results(self, slots: Slots) -> pa.Array:
        return pa.array(self._counts.values[slots])

    def reach(self, slots: int) -> None:
        self._counts.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._counts.clear(slots)

    def keep(self, slots: Slots) -> None:
        self._counts.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        return [self.results(slots)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._counts.values[slots] = columns[0].to_numpy()

    @property
    def bytes_held(self) -> int:
        return self._counts.values.nbytes


_SEEN_NAN: Final = 1
_SEEN_ABOVE: Final = 2
_SEEN_BELOW: Final = 4


class SumAccumulator(Accumulator):
    """Sum or mean of integers or doubles. `_seen` records NaN and infinities, which cannot be summed."""

    def __init__(self, name: str, kind: pa.DataType, *, mean: bool = False) -> None:
        self._name = name
        self._of_doubles = not pa.types.is_integer(kind)
        self._mean = mean
        self._counts = SlotNumbers(np.int64)
        self._seen = SlotNumbers(np.int8)
        self._sums = ExactSums(of_doubles=self._of_doubles)

    def fields(self) -> list[pa.Field]:
        return [
            pa.field(self._name, STORED_TYPE),
            pa.field(f"{self._name}.rows", pa.int64()),
            pa.field(f"{self._name}.seen", pa.int8()),
        ]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        np.add.at(self._counts.values, slots, 1)
        values = column.to_numpy()
        if self._of_doubles:
            values = values.astype(np.float64, copy=False)
            finite = np.isfinite(values)
            if not finite.all():
                self._note(slots[~finite], values[~finite])
                slots, values = slots[finite], values[finite]
        self._sums.add(slots, values)

    def _note(self, slots: Slots, values: npt.NDArray[np.float64]) -> None:
        seen = np.where(values > 0, _SEEN_ABOVE, _SEEN_BELOW)
        seen[np.isnan(values)] = _SEEN_NAN
        np.bitwise_or.at(self._seen.values, slots, seen.astype(np.int8))

    def results(self, slots: Slots) -> pa.Array:
        counts = self._counts.values[slots]
        nothing = counts == 0
        if not self._of_doubles and not self._mean:
            values, fits = self._sums.as_integers(slots)
            if not fits.all():
                raise UserFault(
                    f"the sum {self._name!r} does not fit a bigint",
                    remedy="sum a double: map the column before",
                )
            return pa.array(values, mask=nothing)
        sums = self._with_special_values(slots, self._sums.as_doubles(slots))
        if self._mean:
            sums = sums / np.maximum(counts, 1)
        return pa.array(sums, mask=nothing)

    def _with_special_values(self, slots: Slots, sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        seen = self._seen.values[slots]
        sums[seen == _SEEN_ABOVE] = np.inf
        sums[seen == _SEEN_BELOW] = -np.inf
        sums[(seen & _SEEN_NAN != 0) | (seen == _SEEN_ABOVE | _SEEN_BELOW)] = np.nan
        return sums

    def reach(self, slots: int) -> None:
        for one in (self._counts, self._seen, self._sums):
            one.reach(slots)

    def clear(self, slots: Slots) -> None:
        for one in (self._counts, self._seen, self._sums):
            one.clear(slots)

    def keep(self, slots: Slots) -> None:
        for one in (self._counts, self._seen, self._sums):
            one.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        counts, seen = self._counts.values[slots], self._seen.values[slots]
        return [self._sums.store(slots), pa.array(counts), pa.array(seen)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._sums.load(slots, columns[0])
        self._counts.values[slots] = columns[1].to_numpy()
        self._seen.values[slots] = columns[2].to_numpy()

    @property
    def bytes_held(self) -> int:
        return self._sums.bytes_held + self._counts.values.nbytes + self._seen.values.nbytes


class ExtremeAccumulator(Accumulator):
    """The smallest or largest value. NaN sorts above all numbers."""

    def __init__(self, name: str, kind: pa.DataType, *, largest: bool) -> None:
        self._name = name
        self._kind = kind
        plain = _plain_type(kind)
        self._plain = plain
        floating = pa.types.is_floating(plain)
        dtype = plain.to_pandas_dtype()
        if floating:
            self._best = SlotNumbers(dtype, -np.inf if largest else np.nan)
        else:
            self._best = SlotNumbers(dtype, np.iinfo(dtype).min if largest else np.iinfo(dtype).max)
        self._extreme_of = np.maximum if largest else (np.fmin if floating else np.minimum)
        self._any = SlotNumbers(np.bool_)

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, self._kind)]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        values = column.cast(self._plain).to_numpy()
        if pa.types.is_floating(self._plain):
            values = values + values.dtype.type(0)  # make -0.0 equal to 0.0
        with np.errstate(invalid="ignore"):  # of NaN
            self._extreme_of.at(self._best.values, slots, values)
        self._any.values[slots] = True

    def results(self, slots: Slots) -> pa.Array:
        nothing = ~self._any.values[slots]
        return pa.array(self._best.values[slots], self._plain, mask=nothing).cast(self._kind)

    def reach(self, slots: int) -> None:
        self._best.reach(slots)
        self._any.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._best.clear(slots)
        self._any.clear(slots)

    def keep(self, slots: Slots) -> None:
        self._best.keep(slots)
        self._any.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        return [self.results(slots)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self.update(slots, columns[0])

    @property
    def bytes_held(self) -> int:
        return self._best.values.nbytes + self._any.values.nbytes


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the number type that represents a value in its order."""
    if pa.types.is_boolean(kind):
        return pa.uint8()
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


# --- decimals and text --------------------------------------------------------------------------------------
#
# Exact sums of decimals, and extremes of text and decimals, one per slot, as Python values.
#
# A sum of decimals is a whole number of units of the column's scale, of any size. Additions are exact, so
# their order does not matter, and an intermediate sum that is too large may fit again later. Text is
# compared by its UTF-8 bytes, as in Arrow and `COLLATE "C"`.

DECIMAL_DIGITS: Final = 38
_EXACT: Final = Context(prec=DECIMAL_DIGITS + 1)
_DIVIDED_DIGITS: Final = DECIMAL_DIGITS + 1
_CELL_BYTES: Final = 64
"""The approximate size of a Python value and its reference."""


class DecimalSumAccumulator(Accumulator):
    """The sum of a column of decimals; `kind` is the type of the result. Null where no value occurred."""

    def __init__(self, name: str, kind: pa.Decimal128Type) -> None:
        self._name = name
        self._kind = kind
        self._sums = SlotNumbers(np.object_, None)

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.string())]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        sums = self._sums.values
        for slot, units in zip(slots.tolist(), _units(column), strict=True):
            before = sums[slot]
            sums[slot] = units if before is None else before + units

    def results(self, slots: Slots) -> pa.Array:
        return self._decimals("sum", self._sums.values[slots])

    def _decimals(self, what: str, values: Iterable[int | None]) -> pa.Array:
        """Return numbers of units of the result's scale as decimals."""
        units, limit = list(values), 10**self._kind.precision
        if any(one is not None and abs(one) >= limit for one in units):
            raise UserFault(
                f"the {what} {self._name!r} does not fit {type_text(self._kind)}",
                remedy=f"compute the {what} of a double: map the column before",
            )
        scale = -self._kind.scale
        made = [None if one is None else Decimal(one).scaleb(scale, _EXACT) for one in units]
        return pa.array(made, self._kind)

    def reach(self, slots: int) -> None:
        self._sums.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._sums.clear(slots)

    def keep(self, slots: Slots) -> None:
        self._sums.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        """Return the sums as text: an intermediate sum may be larger than any decimal type."""
        units = self._sums.values[slots]
        return [pa.array([None if one is None else str(one) for one in units], pa.string())]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        for slot, text in zip(slots.tolist(), columns[0].to_pylist(), strict=True):
            self._sums.values[slot] = None if text is None else int(text)

    @property
    def bytes_held(self) -> int:
        return len(self._sums.values) * _CELL_BYTES


class DecimalMeanAccumulator(DecimalSumAccumulator):
    """The mean of a column of decimals of a scale; `kind` is the type of the result."""

    def __init__(self, name: str, kind: pa.Decimal128Type, scale: int) -> None:
        super().__init__(name, kind)
        self._scale = scale
        self._counts = CountAccumulator(f"{name}.rows")

    def fields(self) -> list[pa.Field]:
        return [*super().fields(), *self._counts.fields()]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        super().update(slots, column)
        self._counts.update(slots, column)

    def results(self, slots: Slots) -> pa.Array:
        counts = self._counts.results(slots).to_pylist()
        sums = self._sums.values[slots]
        means = (
            None if units is None else self._mean(units, rows)
            for units, rows in zip(sums, counts, strict=True)
        )
        return self._decimals("mean", means)

    def _mean(self, units: int, rows: int) -> int:
        # Spark divides to 39 digits after the point, and rounds the quotient to the type of the result.
        quotient = _half_up(units * 10 ** (_DIVIDED_DIGITS - self._scale), rows)
        return _half_up(quotient, 10 ** (_DIVIDED_DIGITS - self._kind.scale))

    def reach(self, slots: int) -> None:
        super().reach(slots)
        self._counts.reach(slots)

    def clear(self, slots: Slots) -> None:
        super().clear(slots)
        self._counts.clear(slots)

    def keep(self, slots: Slots) -> None:
        super().keep(slots)
        self._counts.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        return [*super().store(slots), *self._counts.store(slots)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        super().load(slots, columns[:1])
        self._counts.load(slots, columns[1:])

    @property
    def bytes_held(self) -> int:
        return super().bytes_held + self._counts.bytes_held


def _half_up(number: int, divisor: int) -> int:
    """Return the quotient, rounded to the nearest integer, a tie away from zero."""
    size = (2 * abs(number) + divisor) // (2 * divisor)
    return size if number >= 0 else -size


def is_stored_decimal_sum(value: str | None) -> bool:
    """Return whether a text has the form of a stored sum of decimals; null is the sum of nothing."""
    return value is None or re.fullmatch(r"-?[0-9]{1,100}", value) is not None


def _units(column: pa.Array) -> list[int]:
    """Return decimals without nulls as whole numbers of their last digit, from Arrow's two 64-bit halves."""
    halves: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    low = halves[:, 0].view(np.uint64).tolist()
    return [(high << 64) + one for one, high in zip(low, halves[:, 1].tolist(), strict=True)]


def _order_columns(column: pa.Array) -> list[pa.Array]:
    """Return columns by which rows have the order of this one: as in Spark, null is the smallest value of a
    field of a struct, NaN the largest number, and -0.0 equals 0.0.
    """
    if pa.types.is_struct(column.type):
        return [part for field in column.flatten() for part in (field.is_valid(), *_order_columns(field))]
    if pa.types.is_floating(column.type):
        return [pc.is_nan(column), pc.add(column, pa.scalar(0, column.type))]
    return [column]


def _order_key(value: Any) -> Any:
    """The order of `_order_columns`, of one value."""
    if isinstance(value, dict):
        return tuple((one is not None, _order_key(one)) for one in value.values())
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value


def _without_negative_zero(value: Any) -> Any:
    """Equal values become the same value, so that it does not matter which one came first."""
    if isinstance(value, dict):
        return {name: _without_negative_zero(one) for name, one in value.items()}
    return value + 0.0 if isinstance(value, float) else value


class ValueExtremeAccumulator(Accumulator):
    """The smallest or largest value of a column of text, bytes, decimals or structs."""

    def __init__(self, name: str, kind: pa.DataType, *, largest: bool) -> None:
        self._name = name
        self._kind = kind
        self._largest = largest
        self._is_struct = pa.types.is_struct(kind)
        self._best = SlotNumbers(np.object_, None)

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, self._kind)]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        if not len(slots):
            return
        columns = _order_columns(column)
        names = [str(number) for number in range(len(columns))]
        table = pa.Table.from_arrays([pa.array(slots), *columns], names=["slot", *names])
        direction = "descending" if self._largest else "ascending"
        order = pc.sort_indices(table, [("slot", "ascending"), *((name, direction) for name in names)])
        sorted_slots = np.asarray(slots)[order.to_numpy()]
        firsts = np.flatnonzero(np.r_[True, sorted_slots[1:] != sorted_slots[:-1]])
        found = column.take(order.take(pa.array(firsts))).to_pylist()
        best = self._best.values
        for slot, value in zip(sorted_slots[firsts].tolist(), found, strict=True):
            before = best[slot]
            if before is None or self._precedes(value, before):
                best[slot] = _without_negative_zero(value) if self._is_struct else value

    def _precedes(self, value: Any, other: Any) -> bool:
        if self._is_struct:
            value, other = _order_key(value), _order_key(other)
        return bool(value > other if self._largest else value < other)

    def results(self, slots: Slots) -> pa.Array:
        return pa.array(list(self._best.values[slots]), self._kind)

    def reach(self, slots: int) -> None:
        self._best.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._best.clear(slots)

    def keep(self, slots: Slots) -> None:
        self._best.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        return [self.results(slots)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._best.values[slots] = np.array([*columns[0].to_pylist(), None], np.object_)[:-1]

    @property
    def bytes_held(self) -> int:
        cells = self._kind.num_fields or 1
        return len(self._best.values) * _CELL_BYTES * cells


# --- distinct counts ----------------------------------------------------------------------------------------
#
# Approximate distinct counts with the theta sketch of Apache DataSketches. It maps hashes to sketches.
#
# A theta sketch keeps the k smallest hashes it saw, and the next one above them (theta). So it is a function
# of the set of values, whatever their order and however often each occurred. HyperLogLog is not used because
# its better estimator depends on the order. The stored form is the library's compact form, which its
# releases in C++, Java and Python can read.


def sketch_library() -> Any:
    """Return the module `datasketches`, which only graphs that use it need. Raises MissingExtraError."""
    try:
        import datasketches
    except ModuleNotFoundError as error:
        missing = MissingExtraError(
            "ApproxDistinct needs the library datasketches, which is not installed",
            remedy=f"{install_command('dataflow')}; Python 3.14 has no release of it: use 3.11 to 3.13",
        )
        missing.name = error.name
        raise missing from None
    return datasketches


class DistinctAccumulator(Accumulator):
    """A compact sketch per slot. Hashes are buffered and added, each once, when the sketches are needed."""

    def __init__(self, name: str, precision: int) -> None:
        self._library = sketch_library()
        self._name = name
        self._precision = precision
        self._sketches: list[Any] = []
        self._waiting: list[tuple[Slots, Any]] = []

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, pa.binary())]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        if len(slots):
            self._waiting.append((slots, hash_keys([column])))

    def _settle(self) -> None:
        if not self._waiting:
            return
        slots = np.concatenate([slots for slots, _ in self._waiting])
        hashes = np.concatenate([hashes for _, hashes in self._waiting])
        self._waiting = []
        order = np.lexsort((hashes, slots))
        slots, hashes = slots[order], hashes[order]
        new = np.ones(len(slots), np.bool_)
        new[1:] = (slots[1:] != slots[:-1]) | (hashes[1:] != hashes[:-1])
        slots, signed = slots[new], hashes[new].view(np.int64)
        begins = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
        for slot, part in zip(slots[begins].tolist(), np.split(signed, begins[1:]), strict=True):
            sketch = self._library.update_theta_sketch(lg_k=self._precision)
            for value in part.tolist():
                sketch.update(value)
            union = self._library.theta_union(lg_k=self._precision)
            union.update(sketch)
            if self._sketches[slot] is not None:
                union.update(self._sketches[slot])
            self._sketches[slot] = union.get_result()

    def results(self, slots: Slots) -> pa.Array:
        self._settle()
        found = [self._sketches[slot] for slot in slots.tolist()]
        return pa.array([0 if one is None else round(one.get_estimate()) for one in found], pa.int64())

    def reach(self, slots: int) -> None:
        self._sketches += [None] * (slots - len(self._sketches))

    def clear(self, slots: Slots) -> None:
        self._settle()
        for slot in slots.tolist():
            self._sketches[slot] = None

    def keep(self, slots: Slots) -> None:
        self._settle()
        self._sketches = [self._sketches[slot] for slot in slots.tolist()]

    def store(self, slots: Slots) -> list[pa.Array]:
        self._settle()
        found = [self._sketches[slot] for slot in slots.tolist()]
        return [pa.array([None if one is None else one.serialize() for one in found], pa.binary())]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        for slot, data in zip(slots.tolist(), columns[0].to_pylist(), strict=True):
            if data is not None:
                self._sketches[slot] = self._library.compact_theta_sketch.deserialize(data)

    @property
    def bytes_held(self) -> int:
        return 8 * sum(int(one.num_retained) for one in self._sketches if one is not None)

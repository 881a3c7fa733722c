"""Counts, sums and extremes, one per slot, updated by whole batches.

Pure: arrays to arrays; no keys, no windows.

A result does not depend on the order of the updates: counts and integers are exact, doubles are summed
exactly (`exact_sum.py`) and rounded when read.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.state.columns import Slots
from dataflow.state.exact_sum import STORED_TYPE, ExactSums
from dataflow.state.key_index import SlotArray
from dataflow.state.keyed_table import SlotValues


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
        np.add.at(self._counts.values, slots, 1)

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
    """The smallest or largest value.

    NaN sorts above all numbers: a minimum is NaN if nothing else occurred.
    """

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

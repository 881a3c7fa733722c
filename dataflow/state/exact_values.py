"""Exact sums of decimals, and extremes of text and decimals, one per slot, as Python values.

Arrays to arrays. `accumulators.py` handles numbers of a fixed width.

A sum of decimals is a whole number of units of the column's scale, of any size. Additions are exact, so their
order does not matter, and an intermediate sum that is too large may fit again later. Text is compared by its
UTF-8 bytes, as in Arrow and `COLLATE "C"`.
"""

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.errors import UserFault
from dataflow.state.accumulators import Accumulator, SlotNumbers, present
from dataflow.state.columns import Slots

DECIMAL_DIGITS: Final = 38
_EXACT: Final = Context(prec=DECIMAL_DIGITS + 1)
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
        sums = self._sums.values[slots]
        limit = 10**self._kind.precision
        if any(units is not None and abs(units) >= limit for units in sums):
            raise UserFault(
                f"the sum {self._name!r} does not fit {self._kind}",
                remedy="sum a double: map the column before",
            )
        scale = -self._kind.scale
        made = [None if units is None else Decimal(units).scaleb(scale, _EXACT) for units in sums]
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


def _units(column: pa.Array) -> list[int]:
    """Return decimals without nulls as whole numbers of their last digit, from Arrow's two 64-bit halves."""
    halves: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    low = halves[:, 0].view(np.uint64).tolist()
    return [(high << 64) + one for one, high in zip(low, halves[:, 1].tolist(), strict=True)]


class ValueExtremeAccumulator(Accumulator):
    """The smallest or largest value of a column of text or decimals."""

    def __init__(self, name: str, kind: pa.DataType, *, largest: bool) -> None:
        self._name = name
        self._kind = kind
        self._largest = largest
        self._best = SlotNumbers(np.object_, None)

    def fields(self) -> list[pa.Field]:
        return [pa.field(self._name, self._kind)]

    def update(self, slots: Slots, column: pa.Array | None) -> None:
        assert column is not None
        slots, column = present(slots, column)
        if not len(slots):
            return
        table = pa.table({"slot": pa.array(slots), "value": column})
        direction = "descending" if self._largest else "ascending"
        order = pc.sort_indices(table, [("slot", "ascending"), ("value", direction)])
        sorted_slots = np.asarray(slots)[order.to_numpy()]
        firsts = np.flatnonzero(np.r_[True, sorted_slots[1:] != sorted_slots[:-1]])
        found = column.take(order.take(pa.array(firsts))).to_pylist()
        best = self._best.values
        for slot, value in zip(sorted_slots[firsts].tolist(), found, strict=True):
            before = best[slot]
            if before is None or (value > before if self._largest else value < before):
                best[slot] = value

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
        return len(self._best.values) * _CELL_BYTES


__all__ = ["DECIMAL_DIGITS", "DecimalSumAccumulator", "ValueExtremeAccumulator"]

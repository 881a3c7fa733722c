"""Exact sums of integers and doubles, one per slot, independent of the order of the rows. Arrays to arrays.

Adding doubles rounds each time, so the result depends on the order, which may differ for replicas and
replays. Here a sum is an integer in units of 2^-1152 (for integers: of 1), as *limbs* of 32 bits in 64-bit
numbers. A double is its 53-bit fraction, shifted, so it has parts in three limbs. Limbs are added
independently and do not overflow for 2^30 rows; then, and before a sum is read, carries are propagated. Only
limbs that a value touched are stored: values of everyday size touch four or five, so a sum takes about 40
bytes. A sum is rounded once, when it is read: to the double nearest to the true sum, as by `math.fsum`.

A *canonical* sum has a sign and limbs in [0, 2^32). A stored sum is a list of 64-bit numbers: the index of
the first limb, then the limbs, all in [0, 2^32) except the last, which carries the sign.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.state.columns import Slots, grown

Limbs: TypeAlias = npt.NDArray[np.int64]
"""Rows of limbs, the lowest first."""

_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1
_FRACTION_BITS: Final = 53
_UNIT_EXPONENT: Final = -1152
"""The exponent of the lowest limb of doubles.

The smallest double is 2^-1074; the lowest bit of its fraction of 53 bits is 2^-1126.
"""
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
        """Make room for `slots` slots."""
        self._slots = max(slots, self._slots)

    def clear(self, slots: Slots) -> None:
        """Set these sums to 0."""
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
        """Return the index of the first limb, and the limbs with carries propagated: the last one has the
        sign.
        """
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
        assert first in (0, 1)
        wide = np.pad(limbs, ((0, 0), (first, 2))).astype(np.uint64)
        size = wide[:, 1] << np.uint64(_BITS) | wide[:, 0]
        fits = ~wide[:, 2:].any(axis=1) & (size <= np.uint64(2**63 - 1) + negative.astype(np.uint64))
        values = size.astype(np.int64)
        np.negative(values, out=values, where=negative)
        return values, fits

    # --- storing --------------------------------------------------------------------------------------------

    def store(self, slots: Slots) -> pa.Array:
        """Return the sums of these slots in stored form."""
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

"""Sums that do not depend on the order: those of `math.fsum`, and of Python's integers."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.state import accumulators
from dataflow.state.accumulators import ExactSums

_doubles = st.floats(allow_nan=False, allow_infinity=False)
_int64 = st.integers(-(2**63), 2**63 - 1)


def summed(pairs: list[tuple[int, Any]], dtype: type, data: st.DataObject) -> ExactSums:
    """Three slots, in batches, stored and loaded anywhere."""
    sums = ExactSums(of_doubles=dtype is np.float64)
    sums.reach(3)
    at = 0
    while at < len(pairs):
        batch = pairs[at : at + data.draw(st.integers(1, 4))]
        at += len(batch)
        sums.add(np.array([slot for slot, _ in batch]), np.array([value for _, value in batch], dtype))
        if data.draw(st.booleans()):
            stored = sums.store(np.arange(3))
            sums = ExactSums(of_doubles=dtype is np.float64)
            sums.reach(3)
            sums.load(np.arange(3), stored)
    return sums


def nearest(values: list[float]) -> float:
    """As `math.fsum`, which gives up where a sum on the way is too large."""
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@given(pairs=st.lists(st.tuples(st.integers(0, 2), _doubles)), data=st.data())
def test_a_sum_of_doubles_is_the_double_nearest_to_the_true_sum(
    pairs: list[tuple[int, float]], data: st.DataObject
) -> None:
    found = summed(pairs, np.float64, data).as_doubles(np.arange(3)).tolist()
    assert found == [nearest([value for at, value in pairs if at == slot]) for slot in range(3)]


@pytest.mark.parametrize(
    "values",
    [[1e16, 1.0, -1e16], [0.1] * 10, [5e-324] * 3, [1e308, 1e308], [2.0**53, 1.0], [2.0**53, 1.0, 2.0**-60]],
)
def test_sums_that_rounding_on_the_way_gets_wrong(values: list[float]) -> None:
    sums = ExactSums(of_doubles=True)
    sums.reach(1)
    sums.add(np.zeros(len(values), np.int64), np.array(values))
    assert sums.as_doubles(np.zeros(1, np.int64))[0] == nearest(values)


def test_a_sum_whose_low_limbs_are_zero_is_said_not_to_fit_after_a_restore() -> None:
    sums = ExactSums(of_doubles=False)
    sums.reach(1)
    sums.add(np.zeros(2, np.int64), np.array([-(2**63)] * 2))
    restored = ExactSums(of_doubles=False)
    restored.reach(1)
    restored.load(np.arange(1), sums.store(np.arange(1)))
    assert restored.as_integers(np.arange(1))[1].tolist() == [False]


@given(pairs=st.lists(st.tuples(st.integers(0, 2), _int64)), data=st.data())
def test_a_sum_of_integers_is_exact_or_said_not_to_fit(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    sums = summed(pairs, np.int64, data)
    values, fits = sums.as_integers(np.arange(3))
    for slot in range(3):
        true = sum(value for at, value in pairs if at == slot)
        assert fits[slot] == (-(2**63) <= true < 2**63)
        assert not fits[slot] or values[slot] == true
        assert sums.as_doubles(np.arange(3))[slot] == float(true)


def test_carries_move_up_before_a_limb_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulators, "_rows_before_carry", 10)
    sums = ExactSums(of_doubles=False)
    sums.reach(2)
    for _ in range(200):
        sums.add(np.array([0, 0, 1, 1]), np.array([2**62, 2**62, -(2**62), -1]))
    assert all(abs(limb).max() < 2**37 for limb in sums._limbs.values())
    assert sums.as_doubles(np.arange(2)).tolist() == [400.0 * 2**62, float(-200 * 2**62 - 200)]


def test_slots_may_be_cleared_and_moved() -> None:
    sums = ExactSums(of_doubles=True)
    sums.reach(3)
    sums.add(np.arange(3), np.array([1.5, 2.5, 1e300]))
    sums.clear(np.array([1]))
    sums.keep(np.array([2, 1]))
    sums.reach(3)
    assert sums.as_doubles(np.arange(3)).tolist() == [1e300, 0.0, 0.0]

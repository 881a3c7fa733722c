"""Rules for rows that are written into the state of `map_state`, and of the functions written for Spark:
states and timers by key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.core.event_time import Watermark, is_time
from dataflow.editing.rows import GivenRows, typed
from dataflow.editing.rules import EditRules, flags_of, numbers
from dataflow.operators.base import Operator
from dataflow.operators.map_state import MapStateSpec
from dataflow.state.key_states import CALLED, IS_SET, NONE, TIMER
from dataflow.state.processor_states import TIMERS


class MapStateRules(EditRules):
    """States and timers by key. The columns of the framework may be left out: they stay as they are."""

    _spec: MapStateSpec

    def open(self) -> Operator:
        return replace(self._spec, state_on="memory").open(self._context)

    @property
    def hashed(self) -> Sequence[str]:
        return self._spec.keys

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        values = self._values(rows)
        is_set = self._are_set(rows, values)
        mask = pa.array(is_set)
        rows.values = {
            name: pc.if_else(mask, value, pa.scalar(None, value.type)) for name, value in values.items()
        }
        rows.values[IS_SET] = mask
        timers = self._timers(rows)
        stored = numbers(rows.stored_column(TIMER), NONE)
        new = (timers != NONE) & (timers != stored)
        rows.refuse_where(
            new & (timers <= watermark),
            f"its timer is not above the watermark of the operator, {watermark} us since 1970",
            remedy="set a later time, or no timer",
        )
        rows.refuse_where(
            ~is_set & (timers == NONE),
            "it has neither a state nor a timer",
            remedy="to remove a key, write it with _deleted",
        )
        rows.values[TIMER] = pa.array(timers)
        if CALLED in self.schema.names:
            rows.values[CALLED] = pa.array(self._called(rows, is_set, watermark))

    def _values(self, rows: GivenRows) -> dict[str, pa.Array]:
        """Return the columns of the state: as given, or as stored if only timers are given."""
        names = self._spec.state.names
        given = any(name in rows.columns for name in names if name != TIMERS)
        return {
            name: self._declared(rows, name)
            if name in rows.columns or (given and name != TIMERS)
            else rows.stored_column(name)
            for name in names
        }

    def _are_set(self, rows: GivenRows, values: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which keys have a state. A reader that leaves `_is_set` out sees nulls for a key that has
        only a timer: written back, it still has no state.
        """
        if IS_SET in rows.columns:
            return flags_of(rows.typed(IS_SET))
        nulls = [value.is_null().to_numpy(zero_copy_only=False) for value in values.values()]
        was_unset = (rows.at >= 0) & ~flags_of(rows.stored_column(IS_SET))
        if any(name in rows.columns for name in values):
            return np.asarray(~(np.logical_and.reduce(nulls) & was_unset))
        return flags_of(rows.stored_column(IS_SET))

    def _timers(self, rows: GivenRows) -> npt.NDArray[np.int64]:
        given = None
        if TIMER in rows.columns:
            given = numbers(_micros(rows, TIMER), NONE)
        if TIMERS not in self._spec.state.names:
            return numbers(rows.stored_column(TIMER), NONE) if given is None else given
        firsts = [min(times, default=None) for times in (rows.values[TIMERS].fill_null([])).to_pylist()]
        timers = np.array([NONE if first is None else first * 1_000 for first in firsts], np.int64)
        if given is not None:
            rows.refuse_where(
                given != timers,
                f"its {TIMER!r} is not the first of its {TIMERS!r}",
                remedy=f"leave {TIMER!r} out: it follows from {TIMERS!r}",
            )
        return timers

    def _called(
        self, rows: GivenRows, is_set: npt.NDArray[np.bool_], watermark: Watermark
    ) -> npt.NDArray[np.int64]:
        """Return when each state was last left by a call: as stored, otherwise the watermark."""
        column = _micros(rows, CALLED) if CALLED in rows.columns else rows.stored_column(CALLED)
        called = numbers(column, NONE)
        unknown = is_set & (called == NONE)
        if is_time(watermark):
            called = np.where(unknown, watermark, called)
        else:
            rows.refuse_where(
                unknown,
                f"its state has a time to live, and {CALLED!r} is not given",
                remedy=f"give {CALLED!r}, the time from which it counts",
            )
        return np.where(is_set, called, NONE)


def _micros(rows: GivenRows, name: str) -> pa.Array:
    """Return a column of times in microseconds. It may be given as timestamps."""
    column = rows.columns[name]
    are_times = (
        any(isinstance(value, date) for value in column)
        if isinstance(column, list)
        else pa.types.is_timestamp(column.type)
    )
    if are_times:
        return typed(rows.operator, name, column, pa.timestamp("us", "UTC")).cast(pa.int64())
    return rows.typed(name)

"""Rules for rows that are written into the state of `aggregate`: results by key.

A sum or a mean is stored exactly, as a list of numbers (`state/exact_sum.py`). It may also be given as a
number of the type of the result, as a batch query makes it.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from dataflow.core.event_time import Watermark
from dataflow.editing.rows import GivenRows, typed
from dataflow.editing.rules import EditRules, numbers
from dataflow.operators.aggregate import AggregateSpec
from dataflow.operators.aggregates import Aggregate, Count, Mean, Sum
from dataflow.operators.base import OperatorContext
from dataflow.state.accumulators import Accumulator, SumAccumulator
from dataflow.state.distinct import DistinctAccumulator

_limbs_max: Final = 80
"""More than any sum of doubles has."""


class AggregateRules(EditRules):
    """Results by key. A sum may be given as a number of the type of the result."""

    _spec: AggregateSpec

    def __init__(self, name: str, spec: AggregateSpec, context: OperatorContext) -> None:
        super().__init__(name, spec, context)
        self.ignored = frozenset(
            one
            for result, aggregate in spec.aggregates
            if isinstance(accumulator := self._open(result, aggregate), SumAccumulator | DistinctAccumulator)
            for one in [accumulator.fields()[0].name]
        )

    @property
    def hashed(self) -> Sequence[str]:
        return self._spec.keys

    def _type_of(self, aggregate: Aggregate) -> pa.DataType | None:
        columns = self._context.inputs[0]
        return None if aggregate.column is None else columns.field(aggregate.column).type

    def _open(self, result: str, aggregate: Aggregate) -> Accumulator:
        return aggregate.open(result, self._type_of(aggregate))

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        for result, aggregate in self._spec.aggregates:
            fields = [field.name for field in self._open(result, aggregate).fields()]
            if isinstance(aggregate, Sum | Mean) and self._is_number(rows, result):
                rows.values |= self._summed(rows, result, aggregate)
                continue
            for name in fields:
                rows.values[name] = self._declared(rows, name)
            if isinstance(aggregate, Count) or len(fields) > 1:
                counts = rows.values[result if isinstance(aggregate, Count) else f"{result}.rows"]
                rows.refuse_where(numbers(counts, -1) < 0, f"{result!r} must be a count of 0 or more")
            if len(fields) > 1:
                wrong = np.array(
                    [not _is_stored_sum(one) for one in rows.values[result].to_pylist()], np.bool_
                )
                rows.refuse_where(wrong, f"{result!r} is no stored sum", remedy="give it as a number")

    def _is_number(self, rows: GivenRows, result: str) -> bool:
        given = rows.columns.get(result)
        if isinstance(given, list):
            return all(
                value is None or isinstance(value, (int, float, Decimal, np.number)) for value in given
            )
        if given is None or given.type == self.schema.field(result).type:
            return False
        kind, types = given.type, pa.types
        return bool(
            types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
        )

    def _summed(self, rows: GivenRows, result: str, aggregate: Sum | Mean) -> dict[str, pa.Array]:
        """Return the stored columns of a sum that is given as a number."""
        kind = aggregate.result_type(self._type_of(aggregate))
        if isinstance(aggregate, Mean) and pa.types.is_integer(self._type_of(aggregate)):
            kind = pa.int64()
        number = typed(rows.operator, result, rows.columns[result], kind)
        accumulator, slots = self._open(result, aggregate), np.arange(len(rows))
        accumulator.reach(len(rows))
        accumulator.update(slots, number)
        names = [field.name for field in accumulator.fields()]
        made = dict(zip(names, accumulator.store(slots), strict=True))
        count = f"{result}.rows"
        if count in made and count in rows.columns:
            made[count] = rows.typed(count)
        elif count in made and len(rows.kept) and isinstance(aggregate, Mean):
            rows.refuse(
                f"the mean {result!r} is given as the sum {result!r} without the number of rows {count!r}",
                remedy=f"give both columns, {result!r} and {count!r}",
            )
        if count in made:
            rows.refuse_where(numbers(made[count], -1) < 0, f"{count!r} must be a count of 0 or more")
        return made


def _is_stored_sum(value: Sequence[int | None] | None) -> bool:
    """Whether a list has the form of a stored sum (`state/exact_sum.py`)."""
    if not value or None in value or len(value) > _limbs_max:
        return False
    first, *limbs = value
    return 0 <= (first or 0) < _limbs_max and all(abs(limb or 0) <= 1 << 32 for limb in limbs)

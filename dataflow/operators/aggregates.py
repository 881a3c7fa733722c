"""Aggregates of the rows of a key or a window (Count, Sum, ...), and the operators aggregate and count.

    orders.key_by("by_item", "item").aggregate("sold", orders=Count(), income=Sum("price"))

All results are independent of the order of the rows, also for doubles (replication-transparency, algorithm
3). As in SQL, nulls are ignored; over nulls only, all results but counts are null. A NaN makes a sum and a
mean NaN, and is larger than all other numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from checkpoint import ResultNote
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import kind_of
from dataflow.core.event_time import Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import (
    Emit,
    Operator,
    OperatorContext,
    OperatorSpec,
    ReplicaProblem,
    StateTable,
)
from dataflow.schema import columns_named, type_text
from dataflow.state.accumulators import (
    DECIMAL_DIGITS,
    Accumulator,
    CountAccumulator,
    DecimalMeanAccumulator,
    DecimalSumAccumulator,
    DistinctAccumulator,
    ExtremeAccumulator,
    SumAccumulator,
    ValueExtremeAccumulator,
    is_stored_decimal_sum,
    is_stored_sum,
    sketch_library,
)
from dataflow.state.given_rows import GivenRows, numbers, typed
from dataflow.state.key_index import (
    hashes_of,
    weights_of,
)
from dataflow.state.keyed_table import KeyedTable

PRECISION_MIN: Final = 5
PRECISION_MAX: Final = 20


class Aggregate(ABC):
    """The base of all aggregates. They are immutable and travel with the graph."""

    order_independent: ClassVar[bool] = False
    """Whether the result is the same, to the last bit, for every order and division of the rows."""
    column: str | None

    @abstractmethod
    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """Return the type of the result for a column of that type. Raises SchemaError."""

    @abstractmethod
    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        """Return the accumulator; `name` is the name of the result."""

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.column or ''})"


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """The number of rows, or of rows in which the column is not null: bigint.

    Example:

        by_item.aggregate("counted", orders=Count(), priced=Count("price"))
    """

    order_independent: ClassVar[bool] = True
    column: str | None = None

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        del column
        return pa.int64()

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        del column
        return CountAccumulator(name)

    def __str__(self) -> str:
        return f"Count({self.column or ''})"


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of a column: bigint for integers, double for doubles, rounded once at the end. For decimal(p,
    s) it is exact, of type decimal(p + 10, s) with at most 38 digits. A sum that does not fit stops the
    region, except for doubles.

        by_item.aggregate("sold", income=Sum("price"))
    """

    order_independent: ClassVar[bool] = True
    column: str

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is not None and pa.types.is_decimal128(column):
            return pa.decimal128(min(DECIMAL_DIGITS, column.precision + 10), column.scale)
        return pa.int64() if pa.types.is_integer(_number(self, column)) else pa.float64()

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        if pa.types.is_decimal128(column):
            return DecimalSumAccumulator(name, self.result_type(column))
        return SumAccumulator(name, _number(self, column))


@dataclass(frozen=True, slots=True)
class Mean(Aggregate):
    """The mean of a column of numbers: double. For decimal(p, s) it is Spark's: decimal(p + 4, s + 4) with at
    most 38 digits, rounded half up; one that does not fit stops the region.

    Example:

        by_item.aggregate("hourly", Tumbling("at", timedelta(hours=1)), price=Mean("price"))
    """

    order_independent: ClassVar[bool] = True
    column: str

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        if column is not None and pa.types.is_decimal128(column):
            digits = (min(DECIMAL_DIGITS, size + 4) for size in (column.precision, column.scale))
            return pa.decimal128(*digits)
        _number(self, column)
        return pa.float64()

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        if column is not None and pa.types.is_decimal128(column):
            return DecimalMeanAccumulator(name, self.result_type(column), column.scale)
        return SumAccumulator(name, _number(self, column), mean=True)


class _Extreme(Aggregate):
    """The smallest or the largest value of a column."""

    order_independent: ClassVar[bool] = True
    largest: ClassVar[bool]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        return _ordered(self, column)

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        kind = _ordered(self, column)
        accumulator = ExtremeAccumulator if _is_like_number(kind) else ValueExtremeAccumulator
        return accumulator(name, kind, largest=self.largest)


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The smallest value of a column of numbers, decimals, dates, timestamps, booleans, bytes, text (by
    UTF-8 bytes), or structs of these.

        by_item.aggregate("first", since=Min("at"))
    """

    largest: ClassVar[bool] = False
    column: str


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The largest value of a column of numbers, decimals, dates, timestamps, booleans, bytes, text (by
    UTF-8 bytes), or structs of these.

        by_item.aggregate("last", until=Max("at"))
    """

    largest: ClassVar[bool] = True
    column: str


@dataclass(frozen=True, slots=True)
class ApproxDistinct(Aggregate):
    """The approximate number of distinct values of a column: bigint. Exact up to 2^precision values (4,096),
    using 8 bytes a value. Above that the standard error is 1 / sqrt(2^precision) (1.6 %), and the result
    depends only on the set of values (the theta sketch of Apache DataSketches).

        by_item.aggregate("different", prices=ApproxDistinct("price", precision=14))
    """

    order_independent: ClassVar[bool] = True
    column: str
    precision: int = 12

    def __post_init__(self) -> None:
        if not PRECISION_MIN <= self.precision <= PRECISION_MAX:
            raise SchemaError(f"precision is {PRECISION_MIN} to {PRECISION_MAX}, got {self.precision}")
        sketch_library()  # a graph is refused where it is made, not by its workers

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        try:
            kind_of(column)
        except UnsupportedKeyTypeError:
            raise _wrong_column(self, column, "a column whose values can be a key") from None
        return pa.int64()

    def open(self, name: str, column: pa.DataType | None) -> Accumulator:
        del column
        return DistinctAccumulator(name, self.precision)

    def __str__(self) -> str:
        return f"ApproxDistinct({self.column}, {self.precision})"


def _wrong_column(aggregate: Aggregate, column: pa.DataType | None, expected: str) -> SchemaError:
    found_type = "nothing" if column is None else type_text(column)
    return SchemaError(
        f"{type(aggregate).__name__} takes {expected}, and column {aggregate.column!r} is {found_type};"
        " convert it in a map before"
    )


def _number(aggregate: Aggregate, column: pa.DataType | None) -> pa.DataType:
    if pa.types.is_integer(column) or column in (pa.float32(), pa.float64()):
        return column
    raise _wrong_column(aggregate, column, "a column of integers, decimals or doubles")


def _ordered(aggregate: Aggregate, column: pa.DataType | None) -> pa.DataType:
    if column is not None and _is_ordered(column):
        return column
    raise _wrong_column(
        aggregate,
        column,
        "a column of numbers, decimals, dates, timestamps, booleans, bytes, text, or structs of these",
    )


def _is_like_number(kind: pa.DataType) -> bool:
    """Whether values are numbers, or have the order of the numbers that represent them."""
    types = pa.types
    if types.is_boolean(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return True
    return bool(types.is_integer(kind) or kind in (pa.float32(), pa.float64()))


def _is_ordered(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_ordered(field.type) for field in kind)
    if _is_like_number(kind) or types.is_decimal128(kind) or types.is_binary(kind):
        return True
    return bool(types.is_string(kind) or types.is_large_string(kind))


def check_emit(emit: object, allowed: Sequence[Emit], instead: str = "") -> None:
    """Raise SchemaError for an output mode that an operator does not have. instead: what else to do."""
    if emit in allowed:
        return
    known = " or ".join(repr(one) for one in allowed)
    if isinstance(emit, Aggregate):
        raise SchemaError(f"emit={known} is an option, and no result may have its name; rename {emit}")
    if emit == "changes":
        instead = "changes with their former rows are not made yet"
    raise SchemaError(f"emit must be {known} here, not {emit!r}{instead and '; '}{instead}")


def check_are_aggregates(given: Mapping[str, object]) -> None:
    """Raise SchemaError for anything that is no aggregate."""
    for name, one in given.items():
        if not isinstance(one, Aggregate):
            raise SchemaError(f"an aggregate is Count(), Sum('column') or the like, and {name!r} is {one!r}")


def check_aggregates(aggregates: Mapping[str, Aggregate], keys: Sequence[str], columns: pa.Schema) -> None:
    """Raise SchemaError for aggregates that do not fit the columns."""
    if not aggregates:
        raise SchemaError("aggregate needs at least one result; write for example orders=Count()")
    for name, aggregate in aggregates.items():
        if name in keys:
            raise SchemaError(f"the result {name!r} has the name of a key column; choose another name")
        if aggregate.column is not None and aggregate.column not in columns.names:
            raise SchemaError(
                f"{aggregate} of {name!r} uses an unknown column; the columns are {', '.join(columns.names)}"
            )


def result_fields(aggregates: Mapping[str, Aggregate], columns: pa.Schema) -> list[pa.Field]:
    """Return the result columns. Raises SchemaError."""
    return [pa.field(name, one.result_type(_type_of(one, columns))) for name, one in aggregates.items()]


def open_all(aggregates: Mapping[str, Aggregate], columns: pa.Schema) -> list[Accumulator]:
    return [one.open(name, _type_of(one, columns)) for name, one in aggregates.items()]


def column_uids(
    aggregates: Mapping[str, Aggregate], columns: pa.Schema, uids: Mapping[str, str]
) -> dict[str, str]:
    """Return stored column -> its uid, of the results whose uid is not their name."""
    found: dict[str, str] = {}
    for name, uid in uids.items():
        one, kind = aggregates[name], _type_of(aggregates[name], columns)
        fields, under = one.open(name, kind).fields(), one.open(uid, kind).fields()
        found |= {field.name: other.name for field, other in zip(fields, under, strict=True)}
    return found


def result_notes(aggregates: Mapping[str, Aggregate], columns: pa.Schema) -> tuple[ResultNote, ...]:
    """Return what a checkpoint stores of the results."""
    types = {name: _type_of(one, columns) for name, one in aggregates.items()}
    return tuple(
        ResultNote(name, f"{one}" if types[name] is None else f"{one} {type_text(types[name])}")
        for name, one in aggregates.items()
    )


def _type_of(aggregate: Aggregate, columns: pa.Schema) -> pa.DataType | None:
    return None if aggregate.column is None else columns.field(aggregate.column).type


@dataclass(frozen=True, slots=True)
class AggregateSpec(OperatorSpec):
    """Aggregates by the key of the keyed stream. `aggregates`: (result name, aggregate) pairs."""

    kind: ClassVar[OperatorKind] = OperatorKind.AGGREGATE
    not_edited: ClassVar[str] = ""
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    emit: Emit = "updates"

    def __post_init__(self) -> None:
        final = "a result without a window is never final: a later row of its key changes it"
        check_emit(self.emit, ("updates", "table"), final if self.emit == "final" else "")
        check_are_aggregates(dict(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        named = dict(self.aggregates)
        check_aggregates(named, self.keys, inputs[0])
        keys = [inputs[0].field(name) for name in self.keys]
        results = result_fields(named, inputs[0])
        try:
            KeyedTable(pa.schema(keys), open_all(named, inputs[0]))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return pa.schema([*keys, *results])

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], self.keys)]

    def results(self, inputs: Sequence[pa.Schema]) -> tuple[ResultNote, ...]:
        return result_notes(dict(self.aggregates), inputs[0])

    def detail(self) -> str:
        mode = " emit (table)" if self.emit == "table" else ""
        return f"key ({', '.join(self.keys)}){mode}"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "has no window, and emits a row for each key in each step",
            "give it a window, Tumbling or Sliding",
        )

    def open(self, context: OperatorContext) -> "AggregateOperator":
        assert context.output is not None
        return AggregateOperator(
            self,
            context.inputs[0],
            context.output,
            by_batches=context.by_batches,
            uids=context.result_uids,
        )

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        del watermark
        values: dict[str, pa.Array] = {}
        accumulators = open_all(dict(self.aggregates), context.inputs[0])
        for (result, aggregate), accumulator in zip(self.aggregates, accumulators, strict=True):
            names = [field.name for field in accumulator.fields()]
            if isinstance(accumulator, SumAccumulator | DistinctAccumulator):
                rows.in_other_form.add(result)
            if isinstance(aggregate, Sum | Mean) and _is_number(rows, result):
                column = _type_of(aggregate, context.inputs[0])
                made = _from_number(rows, result, aggregate, column, accumulator)
            else:
                made = {name: rows.declared(name) for name in names}
            count = result if isinstance(aggregate, Count) else f"{result}.rows"
            if count in made:
                rows.refuse_where(numbers(made[count], -1) < 0, f"{count!r} must be a count of 0 or more")
            of_decimals = isinstance(accumulator, DecimalSumAccumulator)
            if of_decimals or (count in made and count != result):
                is_sum = is_stored_decimal_sum if of_decimals else is_stored_sum
                wrong = np.array([not is_sum(one) for one in made[result].to_pylist()], np.bool_)
                rows.refuse_where(wrong, f"{result!r} is no stored sum", remedy="give it as a number")
            values |= made
        return values


def _is_number(rows: GivenRows, result: str) -> bool:
    """Return whether a sum is given as a number, not as it is stored."""
    given = rows.columns.get(result)
    if isinstance(given, list):
        return all(value is None or isinstance(value, (int, float, Decimal, np.number)) for value in given)
    if given is None or given.type == rows.schema.field(result).type:
        return False
    kind, types = given.type, pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    )


def _from_number(
    rows: GivenRows, result: str, aggregate: "Sum | Mean", column: pa.DataType, accumulator: Accumulator
) -> dict[str, pa.Array]:
    """Return the stored columns of a sum that is given as a number."""
    kind = pa.int64() if pa.types.is_integer(column) else Sum(result).result_type(column)
    slots = np.arange(len(rows))
    accumulator.reach(len(rows))
    accumulator.update(slots, typed(rows.operator, result, rows.columns[result], kind))
    names = [field.name for field in accumulator.fields()]
    made = dict(zip(names, accumulator.store(slots), strict=True))
    count = f"{result}.rows"
    if count in made and count in rows.columns:
        made[count] = rows.typed(count)
    elif isinstance(aggregate, Mean) and not rows.deleted.all():
        rows.refuse(
            f"the mean {result!r} is given as the sum {result!r} without the number of rows {count!r}",
            remedy=f"give both columns, {result!r} and {count!r}",
        )
    return made


def check_none_touched(table: KeyedTable) -> None:
    """Raise UserFault at a checkpoint between two micro-batches, if groups changed since the last batch."""
    # From the opening of a batch to its record no other checkpoint is taken, so which groups changed need not
    # be in a checkpoint. Only rows that an operator of the user returns from `drain` break that.
    if len(table.take_touched()):
        raise UserFault(
            "rows arrived at a checkpoint that records no micro-batch, so the groups that they change would"
            " not be emitted after a restart",
            remedy='return no rows from drain() in the operator above it, or use emit="table"',
        )


class AggregateOperator(Operator):
    """Runs the aggregates. All state per key is in the keyed table."""

    at_checkpoint = "whole"

    def __init__(
        self,
        spec: AggregateSpec,
        columns: pa.Schema,
        output: pa.Schema,
        *,
        by_batches: bool = False,
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._keys = spec.keys
        self._output = output
        self._emits_table = spec.emit == "table"
        self._sorts = by_batches or self._emits_table
        self._aggregated_columns = [aggregate.column for _, aggregate in spec.aggregates]
        self._accumulators: Sequence[Accumulator] = open_all(dict(spec.aggregates), columns)
        self._table = KeyedTable(
            pa.schema([columns.field(name) for name in spec.keys]),
            self._accumulators,
            uids=column_uids(dict(spec.aggregates), columns, uids),
        )

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._table.find_or_add([batch.column(name) for name in self._keys], hashes_of(batch))
        for column, accumulator in zip(self._aggregated_columns, self._accumulators, strict=True):
            accumulator.update(slots, None if column is None else batch.column(column))
        return ()

    def end_batch(self) -> Sequence[pa.RecordBatch]:
        slots = self._table.take_touched()
        if self._emits_table:
            slots = self._table.live()
        if not len(slots):
            return ()
        if self._sorts:  # which rows are in which step of a batch, and so their order, is a matter of chance
            slots = self._table.in_order(slots)
        results = [accumulator.results(slots) for accumulator in self._accumulators]
        return [pa.RecordBatch.from_arrays([*self._table.keys(slots), *results], schema=self._output)]

    def drain(self) -> Sequence[pa.RecordBatch]:
        if not self._emits_table:
            check_none_touched(self._table)
        return ()

    def tables(self) -> Mapping[str, StateTable]:
        return {"": self._table}

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {"keys": len(self._table), "state_bytes": self._table.bytes_held + held}


COUNT_COLUMN: Final = "count"


@dataclass(frozen=True, slots=True)
class CountSpec(OperatorSpec):
    """Counts rows by the key of the upstream keyed stream."""

    kind: ClassVar[OperatorKind] = OperatorKind.COUNT
    not_edited: ClassVar[str] = ""
    accepts_weights: ClassVar[bool] = True
    keys: tuple[str, ...]
    emit: ClassVar[Emit] = "updates"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if COUNT_COLUMN in self.keys:
            raise SchemaError(
                f"a key column is named {COUNT_COLUMN!r} like the result; rename it with a map before count"
            )
        fields = [inputs[0].field(name) for name in self.keys]
        return pa.schema([*fields, pa.field(COUNT_COLUMN, pa.int64())])

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], self.keys)]

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "has no window, and emits a row for each key in each step",
            "use aggregate with a window, Tumbling or Sliding, and Count()",
        )

    def open(self, context: OperatorContext) -> "CountOperator":
        assert context.output is not None
        return CountOperator(self.keys, context.output, by_batches=context.by_batches)

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        del context, watermark
        counts = rows.declared(COUNT_COLUMN)
        rows.refuse_where(
            numbers(counts, 0) <= 0,
            f"{COUNT_COLUMN!r} must be above 0",
            remedy="to remove a key, write it with _deleted",
        )
        return {COUNT_COLUMN: counts}


class CountOperator(AggregateOperator):
    """Counts rows by key. A row may stand for several equal ones (`_weight`)."""

    def __init__(self, keys: Sequence[str], output: pa.Schema, *, by_batches: bool = False) -> None:
        spec = AggregateSpec(tuple(keys), ((COUNT_COLUMN, Count()),))
        super().__init__(spec, output, output, by_batches=by_batches)

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._table.find_or_add([batch.column(name) for name in self._keys], hashes_of(batch))
        (counts,) = self._accumulators
        assert isinstance(counts, CountAccumulator)
        weights = weights_of(batch)
        counts.add(slots, 1 if weights is None else weights)
        return ()

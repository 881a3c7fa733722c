"""Rows that a person writes into the state of an operator: which tables, and what the rows must satisfy.

| operator | table | its rules |
|---|---|---|
| `count` | its counts | a count is above 0 |
| `aggregate` | its results | counts are not negative; a sum is a number or a stored sum |
| `dedup` | its keys | none |
| `map_state`, and the functions written for Spark | states and timers | a new timer is above the watermark |
| `broadcast_table` | the table, on every worker | a row has a value; not more rows than allowed |

In the end the operator itself reads the rows, and must have the same rows then. Errors name the operator, the
key, the rule and the remedy.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import Layout
from checkpoint.chains.state_blocks import DELETED_COLUMN, key_columns, make_block, newest_rows
from checkpoint.errors import EditRefusedError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dataflow import limits
from dataflow.core.event_time import Watermark, is_time
from dataflow.core.plan import OperatorKind
from dataflow.errors import UserFault, nearest
from dataflow.graph.plan import GraphPlan
from dataflow.operators.aggregates import Aggregate, AggregateSpec, Count, CountSpec, Mean, Sum
from dataflow.operators.apply import same_rows
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.operators.dedup import DedupSpec
from dataflow.operators.map_state import MapStateSpec
from dataflow.schema import type_text
from dataflow.state.accumulators import Accumulator, DistinctAccumulator, SumAccumulator
from dataflow.state.key_index import Hashes, Slots
from dataflow.state.key_states import CALLED, IS_SET, NONE, TIMER
from dataflow.state.processor_states import TIMERS
from dataflow.values.columns import column_of, fitted_column

_IGNORED: Final = (HASH_COLUMN, "_worker")
GivenColumn: TypeAlias = pa.Array | list[Any]
"""Values of Arrow, or of Python."""


class GivenTable(NamedTuple):
    """Rows for one operator as they were given."""

    columns: Sequence[tuple[str, GivenColumn]]
    num_rows: int


def refuse(operator: str, rule: str, *, key: str = "", remedy: str = "") -> NoReturn:
    """Raise EditRefusedError that names the operator, the key and the rule."""
    of_key = f", key ({key})" if key else ""
    raise EditRefusedError(f"operator {operator!r}{of_key}: {rule}", remedy=remedy or EditRefusedError.remedy)


@dataclass(slots=True)
class GivenRows:
    """Rows for one state table, with the stored rows of their keys."""

    operator: str
    schema: pa.Schema
    """Of the blocks of the table."""
    columns: dict[str, GivenColumn]
    """The value columns, as they were given."""
    keys: list[pa.Array]
    hashes: Hashes
    deleted: npt.NDArray[np.bool_]
    stored: pa.RecordBatch
    """Stored rows, among them those of the keys."""
    at: Slots
    """For each row, where it is in `stored`; -1 for a key without a state."""
    values: dict[str, pa.Array] = field(default_factory=dict)
    """The value columns of the block, once they are complete."""

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def kept(self) -> Slots:
        """The rows that are not deletions."""
        kept: Slots = np.flatnonzero(~self.deleted)
        return kept

    def stored_column(self, name: str) -> pa.Array:
        """Return the stored value of each row's key, null if it has none."""
        return self.stored.column(name).take(pa.array(self.at, mask=self.at < 0))

    def refuse(self, rule: str, *, row: int | None = None, remedy: str = "") -> NoReturn:
        """Raise EditRefusedError, about one row or about all of them."""
        key = "" if row is None else self.key_text(row)
        refuse(self.operator, rule, key=key, remedy=remedy)

    def refuse_where(self, wrong: npt.NDArray[np.bool_], rule: str, *, remedy: str = "") -> None:
        """Raise EditRefusedError for the first row that is not a deletion and for which `wrong` is set."""
        rows = np.flatnonzero(wrong & ~self.deleted)
        if len(rows):
            self.refuse(rule, row=int(rows[0]), remedy=remedy)

    def key_text(self, row: int) -> str:
        return _key_text(key_columns(self.schema), [key[row].as_py() for key in self.keys])

    def typed(self, name: str) -> pa.Array:
        """Return a given column in the type of the table. Raises EditRefusedError."""
        return typed(self.operator, name, self.columns[name], self.schema.field(name).type)


def _key_text(names: Sequence[str], values: Sequence[Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))


def typed(operator: str, name: str, column: GivenColumn, kind: pa.DataType) -> pa.Array:
    """Return a column in this type, if it holds all values exactly. Raises EditRefusedError."""
    field = pa.field(name, kind)
    try:
        return column_of(column, field) if isinstance(column, list) else fitted_column(column, field)
    except UserFault as fault:
        at = "" if fault.row is None else f"row {fault.row}: "
        refuse(operator, f"{at}{fault}", remedy=fault.remedy or f"cast it to {type_text(kind)}")


def given_rows(
    operator: str, schema: pa.Schema, hashed: Sequence[str], given: GivenTable, stored: pa.RecordBatch | None
) -> GivenRows:
    """Return the rows of a table. `hashed`: the key columns whose hash decides the worker. Raises
    EditRefusedError for columns that the state has not, a missing or null key, a key that occurs twice.
    """
    names = key_columns(schema)
    allowed = [name for name in schema.names if name not in _IGNORED]
    given_names = [name for name, _ in given.columns]
    for name in given_names:
        if given_names.count(name) > 1:
            refuse(operator, f"column {name!r} is given twice", remedy="rename or drop one of them")
        if name not in allowed and name not in _IGNORED:
            near = get_close_matches(name, allowed, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            refuse(
                operator, f"its state has no column {name!r}{hint}; it has {', '.join(allowed)}",
                remedy="drop the column or rename it",
            )  # fmt: skip
    columns = {name: column for name, column in given.columns if name in allowed}
    for name in names:
        if name not in columns:
            refuse(operator, f"the key column {name!r} is missing", remedy="give all columns of the key")
    keys = [typed(operator, name, columns.pop(name), schema.field(name).type) for name in names]
    deleted = _flags(operator, columns.pop(DELETED_COLUMN, None), given.num_rows)
    for name, key in zip(names, keys, strict=True):
        if key.null_count:
            row = int(np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False))[0])
            refuse(operator, f"the key column {name!r} is null in row {row}", remedy="leave such rows out")
    hashes = hash_keys([key for name, key in zip(names, keys, strict=True) if name in hashed])
    of_state = schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    rows = GivenRows(
        operator, schema, columns, keys, hashes, deleted, of_state[0], np.full(len(hashes), -1, np.int64)
    )
    _refuse_double(rows)
    if stored is not None and stored.num_rows:
        rows.stored = stored
        rows.at = _positions(rows, names)
    return rows


def _flags(operator: str, column: GivenColumn | None, rows: int) -> npt.NDArray[np.bool_]:
    if column is None:
        return np.zeros(rows, np.bool_)
    given = typed(operator, DELETED_COLUMN, column, pa.bool_())
    flags: npt.NDArray[np.bool_] = pc.fill_null(given, fill_value=False).to_numpy(zero_copy_only=False)
    return flags


def _refuse_double(rows: GivenRows) -> None:
    order = np.argsort(rows.hashes, kind="stable")
    in_order = rows.hashes[order]
    same = np.flatnonzero(in_order[1:] == in_order[:-1])
    suspects = sorted({*order[same].tolist(), *order[same + 1].tolist()})
    seen: dict[tuple[Any, ...], int] = {}
    for row, key in zip(suspects, _hashable_keys(rows.keys, np.array(suspects, np.int64)), strict=True):
        if key in seen:
            rows.refuse(
                f"the key occurs twice, in rows {seen[key]} and {row}", row=row,
                remedy="write each key once",
            )  # fmt: skip
        seen[key] = row


def _positions(rows: GivenRows, names: Sequence[str]) -> Slots:
    """Return for each row where its key is in the stored rows, -1 for nowhere."""
    stored_hashes = rows.stored.column(HASH_COLUMN).to_numpy()
    among: Slots = np.flatnonzero(np.isin(stored_hashes, rows.hashes))
    stored = _hashable_keys([rows.stored.column(name) for name in names], among)
    places = dict(zip(stored, among.tolist(), strict=True))
    given = _hashable_keys(rows.keys, np.arange(len(rows)))
    return np.array([places.get(key, -1) for key in given], np.int64)


def _hashable_keys(columns: Sequence[pa.Array], rows: Slots) -> list[tuple[Any, ...]]:
    """Return the keys of these rows as values that are equal if the keys are."""
    lists = [column.take(pa.array(rows, pa.int64())).to_pylist() for column in columns]
    return [tuple(map(_comparable, key)) for key in zip(*lists, strict=True)]


def _comparable(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, slots=True)
class EditedRows:
    """What an edit of one table changes. `rows`: the changed rows as a block, sorted by `_hash`."""

    rows: pa.RecordBatch
    added: int
    changed: int
    deleted: int
    unchanged: int
    """Rows that equal the stored ones, and deletions of keys that have no state."""


def edited_rows(rows: GivenRows) -> EditedRows:
    """Return what the rows, whose `values` are complete, change."""
    exists = rows.at >= 0
    names = list(rows.values)
    taken = pa.array(np.where(exists, rows.at, 0))
    same = exists & ~rows.deleted
    if names and exists.any():
        before = rows.stored.select(names).take(taken)
        after = pa.RecordBatch.from_arrays(
            [rows.values[name] for name in names], schema=pa.schema([rows.schema.field(one) for one in names])
        )
        same &= same_rows(before, after)
    changed = exists & ~rows.deleted & ~same
    added, deleted = ~exists & ~rows.deleted, exists & rows.deleted
    written = added | changed | deleted
    kept = pa.array(np.flatnonzero(written))
    mask = pa.array(rows.deleted[written])
    values = [
        pc.if_else(mask, pa.scalar(None, value.type), value.take(kept)) for value in rows.values.values()
    ]
    block = make_block(
        rows.schema,
        [key.take(kept) for key in rows.keys],
        rows.hashes[written],
        values,
        rows.deleted[written],
    )
    return EditedRows(
        block,
        added=int(np.count_nonzero(added)),
        changed=int(np.count_nonzero(changed)),
        deleted=int(np.count_nonzero(deleted)),
        unchanged=int(np.count_nonzero(~written)),
    )


def by_worker(block: pa.RecordBatch, layout: Layout, *, everywhere: bool) -> Mapping[int, pa.RecordBatch]:
    """Return the rows of each worker: those whose hash it owns, or all of them on every worker."""
    if not block.num_rows:
        return {}
    if everywhere:
        return dict.fromkeys(layout.workers, block)
    lasts, owners = layout.upper_bounds()
    at = np.searchsorted(np.array(lasts, np.uint64), block.column(HASH_COLUMN).to_numpy(), "left")
    owner = np.array(owners)[at]
    return {worker: block.filter(pa.array(owner == worker)) for worker in sorted(set(owner.tolist()))}


def same_table(one: pa.RecordBatch, other: pa.RecordBatch, ignored: frozenset[str]) -> bool:
    """Whether two blocks have the same rows that are not deleted, without regard to some value columns."""
    left, right = newest_rows([one]), newest_rows([other])
    if left.schema != right.schema or left.num_rows != right.num_rows:
        return False
    names = [name for name in left.schema.names if name not in ignored]
    return bool(same_rows(left.select(names), right.select(names)).all())


Editable: TypeAlias = CountSpec | AggregateSpec | DedupSpec | MapStateSpec | BroadcastStateSpec


class EditRules(ABC):
    """The rules of one operator. `schema`: of the blocks of its table. `columns`: of its input."""

    everywhere: ClassVar[bool] = False
    """Whether every worker has all rows."""
    ignored: frozenset[str] = frozenset()
    """Columns that the operator may store in another form that means the same."""

    def __init__(self, name: str, spec: Editable, context: OperatorContext) -> None:
        self.name = name
        self._spec = spec
        self._context = context
        operator = self.open()
        try:
            self.schema = operator.tables()[""].snapshot().schema
        finally:
            operator.close()

    def open(self) -> Operator:
        """Return a running instance of the operator without state."""
        return self._spec.open(self._context)

    @property
    def hashed(self) -> Sequence[str]:
        """The key columns whose hash decides the worker."""
        return self._spec.keys

    @abstractmethod
    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        """Check the rows, and set `rows.values`. watermark: the highest one on any worker. Raises
        EditRefusedError.
        """

    def _declared(self, rows: GivenRows, name: str) -> pa.Array:
        if name in rows.columns:
            return rows.typed(name)
        if len(rows.kept):
            rows.refuse(
                f"the column {name!r} is missing",
                remedy="give all columns of the state, or only rows with _deleted",
            )
        return pa.nulls(len(rows), rows.schema.field(name).type)

    def check_read(self, edited: EditedRows) -> None:
        """Raise EditRefusedError if a new instance of the operator cannot read the rows, or has others."""
        operator = self.open()
        try:
            table = operator.tables()[""]
            table.restore(edited.rows)
            read = table.snapshot()
        except (UserFault, pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
            refuse(self.name, f"it cannot read the rows: {error}", remedy="correct the values")
        finally:
            operator.close()
        if not same_table(read, edited.rows, self.ignored):
            refuse(
                self.name,
                "it reads other rows than were written",
                remedy="write values as `dos-state` has them",
            )


class CountRules(EditRules):
    """Counts by key."""

    _spec: CountSpec

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        name = self.schema.names[len(self._spec.keys) + 1]
        counts = self._declared(rows, name)
        wrong = numbers(counts, 0) <= 0
        rows.refuse_where(
            wrong, f"{name!r} must be above 0", remedy="to remove a key, write it with _deleted"
        )
        rows.values = {name: counts}


class DedupRules(EditRules):
    """Keys that were seen."""

    _spec: DedupSpec

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        rows.values = {}


class BroadcastRules(EditRules):
    """A table that every worker has."""

    everywhere = True
    _spec: BroadcastStateSpec

    def complete(self, rows: GivenRows, watermark: Watermark) -> None:
        del watermark
        keys = len(self._spec.keys)
        rows.values = {name: self._declared(rows, name) for name in self.schema.names[keys + 1 : -1]}
        if rows.values:
            columns = [one.is_null().to_numpy(zero_copy_only=False) for one in rows.values.values()]
            empty = np.logical_and.reduce(columns)
            rows.refuse_where(
                empty,
                "all of its values are null, which in a stream deletes the row",
                remedy="to remove a row, write its key with _deleted",
            )
        count = rows.stored.num_rows + int(np.count_nonzero((rows.at < 0) & ~rows.deleted))
        if count > limits.broadcast_rows_max:
            rows.refuse(
                f"a broadcast table has at most {limits.broadcast_rows_max} rows, these would be {count}",
                remedy="join larger tables by key instead",
            )


def flags_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a column of flags; null is False."""
    flags: npt.NDArray[np.bool_] = pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)
    return flags


def numbers(column: pa.Array, null: int) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers, with another number for null."""
    found: npt.NDArray[np.int64] = column.fill_null(null).to_numpy(zero_copy_only=False)
    return found


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
    """Whether a list has the form of a stored sum (`ExactSums`)."""
    if not value or None in value or len(value) > _limbs_max:
        return False
    first, *limbs = value
    return 0 <= (first or 0) < _limbs_max and all(abs(limb or 0) <= 1 << 32 for limb in limbs)


class MapStateRules(EditRules):
    """States and timers by key. The columns of the framework may be left out: they stay as they are."""

    _spec: MapStateSpec

    def open(self) -> Operator:
        return replace(self._spec, state_on="memory").open(self._context)

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
        # A reader that leaves `_is_set` out sees nulls for a key that has only a timer: written back, it has
        # no state.
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
    column = rows.columns[name]
    are_times = (
        any(isinstance(value, date) for value in column)
        if isinstance(column, list)
        else pa.types.is_timestamp(column.type)
    )
    if are_times:
        return typed(rows.operator, name, column, pa.timestamp("us", "UTC")).cast(pa.int64())
    return rows.typed(name)


_REFUSED: Final = {
    OperatorKind.WINDOW: "its windows belong together with its watermark",
    OperatorKind.WINDOW_DEDUP: "its windows belong together with its watermark",
    OperatorKind.COUNT_WINDOW: "its windows belong together with its counts and the rows that wait",
    OperatorKind.SORT: "its rows wait for event time",
    OperatorKind.TOP_K: "its rows wait for event time",
    OperatorKind.JOIN: "its rows wait for event time",
    OperatorKind.APPLY: "only its own code knows what the state of a user operator means",
    OperatorKind.EVENT_TIME: "a watermark follows from the input",
}
_TABLES: Final = {
    "~time": "its watermarks follow from the input",
    "~late": "it counts late rows",
    "~ahead": "it counts rows that were dropped",
    "~nulls": "it counts rows that were dropped",
}
_RULES: Final[Mapping[type[OperatorSpec], type[Any]]] = {
    CountSpec: CountRules,
    AggregateSpec: AggregateRules,
    DedupSpec: DedupRules,
    MapStateSpec: MapStateRules,
    BroadcastStateSpec: BroadcastRules,
}


def rules_of(plan: GraphPlan, name: str, region: str) -> EditRules:
    """Return the rules of an operator of a graph. Raises EditRefusedError if its state cannot be edited."""
    operator, tilde, table = name.partition("~")
    editable = [one for one, spec in plan.specs.items() if _class_of(spec) is not None]
    known = f"operators whose state can be edited: {', '.join(editable) or 'none'}"
    spec = plan.specs.get(operator)
    if spec is None:
        refuse(name, f"the region has no such operator{nearest(operator, plan.specs)}; {known}")
    if tilde:
        why = _TABLES.get(f"~{table}", "the rows of this table wait for event time, or belong to another one")
        refuse(name, f"this table cannot be edited: {why}", remedy=f"edit another table; {known}")
    rules = _class_of(spec)
    if rules is None:
        why = _REFUSED.get(spec.kind, "it keeps no state")
        rule = f"its state ({spec.kind.value}) cannot be edited: {why}"
        refuse(name, rule, remedy=f"edit another operator; {known}")
    context = OperatorContext(
        region, operator, 0, 1, bytes(16), plan.inputs_of(operator), plan.schemas[operator], broadcast={}
    )
    made: EditRules = rules(operator, spec, context)
    return made


def _class_of(spec: OperatorSpec) -> type[Any] | None:
    return next((rules for kind, rules in _RULES.items() if isinstance(spec, kind)), None)

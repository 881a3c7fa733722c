"""Rows that a person writes into the state of an operator: their columns, their keys, the stored rows of the
same keys, and the block that results. Arrow in, Arrow out: no store and no operator.

`tables.py` has the rules of each operator. All errors name the operator, the key, the
rule and the remedy, and nothing was changed.

1. A row with `_deleted` set deletes its key. Its other columns are ignored.
2. `_hash` and `_worker`, which a reader of the state gets, are ignored: the hash is computed from the key.
3. A row that equals the stored one is not written. So an edit can be repeated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import Layout
from checkpoint.chains.state_blocks import DELETED_COLUMN, key_columns, make_block, newest_rows
from checkpoint.errors import EditRefusedError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dataflow.errors import UserFault
from dataflow.operators.own_state import same_rows
from dataflow.schema import type_text
from dataflow.state.columns import Slots
from dataflow.state.key_index import Hashes
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
        """Return the key of a row for a message."""
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
    """Return the rows of a table. `hashed`: the key columns whose hash decides the worker.

    Raises EditRefusedError for columns that the state has not, a missing or null key, a key that occurs
    twice.
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


__all__ = [
    "EditedRows",
    "GivenRows",
    "by_worker",
    "edited_rows",
    "given_rows",
    "refuse",
    "same_table",
    "typed",
]

"""Rows that a person writes into the state of an operator, and the stored rows of their keys.

What the values must satisfy is a rule of the operator (`OperatorSpec.edited`). In the end the operator itself
reads the rows, and must have the same rows then (`dataflow/editing.py`). Errors name the operator, the key,
the rule and the remedy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.chains.state_blocks import DELETED_COLUMN, key_columns
from checkpoint.errors import EditRefusedError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dataflow.errors import UserFault
from dataflow.schema import type_text
from dataflow.state.key_index import Hashes, Slots, normalized_key
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
    in_other_form: set[str] = field(default_factory=set)
    """Columns that the operator may store in another form that means the same."""

    def __len__(self) -> int:
        return len(self.hashes)

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

    def declared(self, name: str) -> pa.Array:
        """Return a column that must be given, unless all rows are deletions. Raises EditRefusedError."""
        if name in self.columns:
            return self.typed(name)
        if not self.deleted.all():
            self.refuse(
                f"the column {name!r} is missing",
                remedy="give all columns of the state, or only rows with _deleted",
            )
        return pa.nulls(len(self), self.schema.field(name).type)

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
    operator: str, schema: pa.Schema, given: GivenTable, stored: pa.RecordBatch | None
) -> GivenRows:
    """Return the rows of a table. Raises EditRefusedError for columns that the state has not, a missing or
    null key, a key that occurs twice.
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
    keys = [
        normalized_key(typed(operator, name, columns.pop(name), schema.field(name).type)) for name in names
    ]
    deleted = _flags(operator, columns.pop(DELETED_COLUMN, None), given.num_rows)
    for name, key in zip(names, keys, strict=True):
        if key.null_count:
            row = int(np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False))[0])
            refuse(operator, f"the key column {name!r} is null in row {row}", remedy="leave such rows out")
    hashes = hash_keys(keys)
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
    return flags_of(typed(operator, DELETED_COLUMN, column, pa.bool_()))


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
    if isinstance(value, dict):
        return tuple(map(_comparable, value.values()))
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def flags_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a column of flags; null is False."""
    flags: npt.NDArray[np.bool_] = pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)
    return flags


def numbers(column: pa.Array, null: int) -> npt.NDArray[np.int64]:
    """Return a column of whole numbers, with another number for null."""
    found: npt.NDArray[np.int64] = column.fill_null(null).to_numpy(zero_copy_only=False)
    return found

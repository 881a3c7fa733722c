"""The one rule for values: what a column takes from Python and from Arrow (`docs/operators.md`).

A column takes a value if it holds exactly this value. Everything else is refused with the column, the value
and the remedy. A value that was taken is *normalised* to what is read back. `kinds.py` has each type.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataflow.errors import UserFault
from dataflow.schema import type_text
from dataflow.values.kinds import (
    NO_NULL,
    REFUSED,
    MisfitError,
    Take,
    Test,
    ends_of,
    is_bytes,
    is_text,
    rule_of,
    shown,
    values_of,
    zone_of,
)


def column_of(values: Sequence[Any], field: pa.Field, rows: Sequence[int] | None = None) -> pa.Array:
    """Return Python values as an Arrow column. rows: for each value, the row that a fault names. Raises
    UserFault for the first value that the column does not hold exactly.
    """
    kind = rule_of(field)
    if kind.quick(values):
        try:
            return pa.array(values, field.type)
        except REFUSED:
            pass  # told below, with the row
    taken = []
    for index, value in enumerate(values):
        try:
            taken.append(kind.take(value))
        except MisfitError as misfit:
            row = index if rows is None else rows[index]
            raise misfit.fault(f"column {field.name!r}", row) from None
    return pa.array(taken, field.type)


def fitted_column(column: "pa.Array | pa.ChunkedArray", field: pa.Field) -> pa.Array:
    """Return an Arrow column in the type of a field. Raises UserFault as `column_of`."""
    column = one_array(column)
    if not column.type.equals(field.type):
        column = _in_type(column, field)
    if column.null_count and not field.nullable:
        values = column.is_null().to_numpy(zero_copy_only=False)
        misfit = MisfitError(field.type, "no null", None, NO_NULL)
        raise misfit.fault(f"column {field.name!r}", int(np.flatnonzero(values)[0]))
    return column


def one_array(column: "pa.Array | pa.ChunkedArray") -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def taker(field: pa.Field, subject: str) -> Take:
    """Return a function that normalises one value, or raises UserFault that names the subject."""
    kind = rule_of(field)

    def take(value: Any) -> Any:
        try:
            return kind.take(value)
        except MisfitError as misfit:
            raise misfit.fault(subject) from None

    return take


def row_taker(columns: pa.Schema, subject: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that normalises a dict of these columns into a new one, or raises UserFault.
    `subject` begins the message about a value: "state".
    """
    # Generated code, like the methods of dataclasses: it runs for each call of a stateful function, and a
    # function call for each column takes three times as long. The quick terms let only normalised values
    # pass.
    names = columns.names
    takers = [taker(field, f"{subject} {field.name!r}") for field in columns]

    def each(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping) or set(value) != set(names):
            raise UserFault(f"a {subject} is a dict of {', '.join(names)}, or None, not {shown(value)}")
        return {name: take(value[name]) for name, take in zip(names, takers, strict=True)}

    known: dict[str, Any] = {"each": each, "datetime": datetime}
    terms, cells = [f"type(value) is dict and len(value) == {len(names)}"], []
    for index, (field, take) in enumerate(zip(columns, takers, strict=True)):
        cell = f"cell{index}"
        term = _quick_term(cell, f"value[{field.name!r}]", field, known)
        if term is None:
            known[f"take{index}"] = take
            cells.append(f"{field.name!r}: take{index}(value[{field.name!r}])")
        else:
            terms.append(f"({term})")
            cells.append(f"{field.name!r}: {cell}")
    code = f"lambda value: {{{', '.join(cells)}}} if {' and '.join(terms)} else each(value)"
    quick: Callable[[Any], dict[str, Any]] = eval(code, known)  # noqa: S307 - names are in it as their repr

    def normalised(value: Any) -> dict[str, Any]:
        try:
            return quick(value)
        except KeyError:
            return each(value)  # it tells the names

    return normalised


def _quick_term(cell: str, of: str, field: pa.Field, known: dict[str, Any]) -> str | None:
    kind, types = field.type, pa.types
    if types.is_integer(kind):
        low, high = ends_of(kind)
        term = f"type({cell} := {of}) is int and {low} <= {cell} <= {high}"
    elif types.is_float64(kind):
        term = f"type({cell} := {of}) is float"
    elif types.is_string(kind):
        term = f"type({cell} := {of}) is str and {cell}.isascii()"
    elif types.is_boolean(kind):
        term = f"type({cell} := {of}) is bool"
    elif types.is_timestamp(kind) and kind.unit == "us":
        known[f"zone_of_{cell}"] = zone_of(kind)
        term = f"type({cell} := {of}) is datetime and {cell}.tzinfo is zone_of_{cell} and not {cell}.fold"
    else:
        return None
    return f"{term} or {cell} is None" if field.nullable else term


# --- columns of Arrow ---------------------------------------------------------------------------------------


def _in_type(column: pa.Array, field: pa.Field) -> pa.Array:
    kind, types = field.type, pa.types
    if types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if types.is_dictionary(column.type):
        return fitted_column(column.dictionary_decode(), field)
    given = column.type
    times = types.is_timestamp(given) and types.is_timestamp(kind) and kind.tz in (given.tz, "UTC")
    if times or has_values_of(given, kind) or any(a(given) and b(kind) for a, b in _cast_is_exact):
        try:
            return column.cast(kind)
        except REFUSED:
            pass  # told below, with the row
    if types.is_floating(given) and types.is_floating(kind):
        cast = column.cast(kind)
        if _equal_floats(cast.cast(given), column):
            return cast
    try:
        values = values_of(column)
    except REFUSED as error:  # a time that Python does not have
        raise UserFault(f"column {field.name!r} is {type_text(kind)}: {error}") from error
    return column_of(values, field)


_cast_is_exact: Final[tuple[tuple[Test, Test], ...]] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, lambda kind: pa.types.is_floating(kind) and kind.bit_width > 16),
    (pa.types.is_decimal, pa.types.is_decimal),
    (is_text, is_text),
    (is_bytes, is_bytes),
    (pa.types.is_time, pa.types.is_time),
    (pa.types.is_duration, pa.types.is_duration),
)
"""From one type to another, Arrow's safe cast refuses what would change."""


def has_values_of(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether the values of a nested type are those of another: they differ in where null is allowed."""
    if not pa.types.is_nested(given) or given.id != kind.id or given.num_fields != kind.num_fields:
        return bool(given.equals(kind))
    if getattr(given, "list_size", 0) != getattr(kind, "list_size", 0):
        return False
    fields = [(given.field(at), kind.field(at)) for at in range(given.num_fields)]
    return all(
        (one.name == other.name or not pa.types.is_struct(kind))
        and (other.nullable or not one.nullable)
        and has_values_of(one.type, other.type)
        for one, other in fields
    )


def _equal_floats(one: pa.Array, other: pa.Array) -> bool:
    left, right = (column.fill_null(0).to_numpy(zero_copy_only=False) for column in (one, other))
    return bool(np.array_equal(left, right, equal_nan=True))


def concatenated(parts: Sequence[pa.RecordBatch], columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows of batches as one. Raises ArrowInvalid if a column of text or lists is above 2 GiB.

    Table.combine_chunks divides such a column, so that its table has several batches.
    """
    if not parts:
        return pa.RecordBatch.from_pylist([], columns)
    arrays = [pa.concat_arrays([part.column(name) for part in parts]) for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)

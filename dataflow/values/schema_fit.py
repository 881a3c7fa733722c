"""The one rule for rows whose columns are not exactly those that a reader declared (`docs/inputs.md`).

Rows are stored in pieces, each with the schema of its writer. Writers and readers are upgraded one by one, so
a reader meets pieces of older and of newer writers. Columns are matched by name. A piece may lack nullable
columns or have more than the reader knows, never both: that could be a renamed column, whose values would be
lost in silence. A type may only be wider at the reader. Pure: decides by the two schemas alone, so a replay
of a step decides the same, and digests of pieces are those of the stored bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import pyarrow as pa

from dataflow.schema import type_text
from dataflow.values.columns import fitted_column, has_values_of


class FitRule(StrEnum):
    """A rule that two schemas break."""

    UNIQUE = "a column name is unique in the rows"
    NOT_NULL = "only a column that allows null may be missing in some rows"
    RENAMED = "rows may lack columns or have more, never both: a column may have been renamed"
    TYPE = "a type may only become wider: int to bigint, float to double, decimal to one with more digits"
    NO_NULL = "a column that allows null cannot become one that does not"


class Misfit(NamedTuple):
    """Why rows are refused. values: the columns concerned, with their types."""

    rule: FitRule
    values: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.values} ({self.rule})"


@dataclass(frozen=True, slots=True)
class SchemaFit:
    """How rows of one schema become rows of another. places: for each declared column its place in the rows,
    None where it is missing.
    """

    declared: pa.Schema
    places: tuple[int | None, ...]

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the declared columns. Raises UserFault for a null in a column without null,
        which a writer that follows its own schema does not write.
        """
        columns = [
            pa.nulls(batch.num_rows, field.type) if at is None else fitted_column(batch.column(at), field)
            for at, field in zip(self.places, self.declared, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.declared)


def fit_of(declared: pa.Schema, found: pa.Schema) -> SchemaFit | Misfit:
    """Return how rows with the columns `found` fit the columns that a reader declared, or the rule that they
    break. Columns that the reader does not declare are ignored.
    """
    twice = sorted({name for name in found.names if found.names.count(name) > 1})
    if twice:
        return Misfit(FitRule.UNIQUE, f"{', '.join(map(repr, twice))} occurs twice", _RENAME)
    places: list[int | None] = []
    for field in declared:
        at = found.get_field_index(field.name)
        if at >= 0:
            given = found.field(at)
            if not widens(given.type, field.type):
                return Misfit(FitRule.TYPE, _difference(given, field), _WIDEN_READERS_FIRST)
            if given.nullable and not field.nullable:
                return Misfit(FitRule.NO_NULL, _difference(given, field), _ALLOW_NULL)
        places.append(at if at >= 0 else None)
    missing = [field for field, at in zip(declared, places, strict=True) if at is None]
    more = [field for field in found if field.name not in declared.names]
    return _misfit_of_names(missing, more, _NAME_ALL) or SchemaFit(declared, tuple(places))


def misfit_of_writer(existing: pa.Schema, written: pa.Schema) -> Misfit | None:
    """Return the rule that rows with the columns `written` would break next to rows with the columns
    `existing`: no reader could read both, or a reader of the existing ones would have to stop. None if they
    fit, as those of an older or a newer version of the writer.
    """
    for field in written:
        if field.name not in existing.names:
            continue
        there = existing.field(field.name)
        if not widens(field.type, there.type) and not widens(there.type, field.type):
            return Misfit(FitRule.TYPE, _difference(field, there), _OTHER_HANDLE)
        if field.nullable and not there.nullable:
            return Misfit(FitRule.NO_NULL, _difference(field, there), _OTHER_HANDLE)
    missing = [field for field in existing if field.name not in written.names]
    more = [field for field in written if field.name not in existing.names]
    for field in more:
        if not field.nullable:  # the existing rows have no value for it
            return Misfit(FitRule.NOT_NULL, f"{_text(field)} is new", _ALLOW_NULL)
    return _misfit_of_names(missing, more, _OTHER_HANDLE)


def _misfit_of_names(missing: Sequence[pa.Field], more: Sequence[pa.Field], remedy: str) -> Misfit | None:
    for field in missing:
        if not field.nullable:
            return Misfit(FitRule.NOT_NULL, f"{_text(field)} is missing", _ALLOW_NULL)
    if missing and more:
        lists = [", ".join(map(_text, fields)) for fields in (missing, more)]
        return Misfit(FitRule.RENAMED, f"{lists[0]} is missing, and {lists[1]} is not expected", remedy)
    return None


def widens(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column of type `kind` holds every value of type `given` exactly, as the same kind of value.
    An integer is no double: from 2**53 on a double cannot hold it, and its text differs.
    """
    types = pa.types
    if given.equals(kind) or has_values_of(given, kind):
        return True
    if types.is_integer(given) and types.is_integer(kind):
        signs = types.is_signed_integer(given), types.is_signed_integer(kind)
        return signs in ((True, True), (False, False), (False, True)) and kind.bit_width > given.bit_width
    if types.is_floating(given) and types.is_floating(kind):
        return bool(kind.bit_width > given.bit_width)
    if types.is_decimal(given) and types.is_decimal(kind):
        whole = kind.precision - kind.scale >= given.precision - given.scale
        return bool(whole and kind.scale >= given.scale)
    return False


def _difference(given: pa.Field, expected: pa.Field) -> str:
    texts = _type(given), _type(expected)
    if texts[0] == texts[1]:  # they differ inside, in where null is allowed
        texts = str(given.type), str(expected.type)
    return f"column {given.name!r} is {texts[0]}, expected {texts[1]}"


def _text(field: pa.Field) -> str:
    return f"column {field.name!r} ({_type(field)})"


def _type(field: pa.Field) -> str:
    return type_text(field.type) if field.nullable else f"{type_text(field.type)} NOT NULL"


_RENAME: Final = "give each column its own name"
_WIDEN_READERS_FIRST: Final = (
    "declare the type of the rows at the reader, before writers use it; for a type that is not wider, write"
    " to another handle"
)
_ALLOW_NULL: Final = "allow null in the column, or use another handle"
_NAME_ALL: Final = (
    "declare all columns of these rows at the reader besides the new ones; for a renamed column, use another"
    " handle"
)
_OTHER_HANDLE: Final = "write the columns that are there, and new ones that allow null; or to another handle"

"""Converts record batches with the columns of the data to those that Spark expects: filtered and checked.

A column whose type differs from the requested one is an error that names the column; nothing is converted
silently.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from spark_integration.core.row_filter import ColumnCondition, check_filter, passing
from spark_integration.core.wording import nearest, type_text
from spark_integration.errors import SchemaMismatchError
from spark_integration.limits import BATCH_BYTES, BATCH_ROWS, BATCH_ROWS_ALONE


def chosen(existing: pa.Schema, extra: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the columns of a DataFrame: those of the data, or those named, where `*` stands for all of the
    data.

    Raises SchemaMismatchError for a name that is neither in the data nor in `extra`.
    """
    if not columns:
        return existing
    names = [name for column in columns for name in (existing.names if column == "*" else [column])]
    every = pa.schema([*existing, *(field for field in extra if field.name not in existing.names)])
    for name in names:
        if name not in every.names:
            raise SchemaMismatchError(
                f"the option 'columns' names {name!r}{nearest(name, every.names)};"
                f" the columns are {', '.join(existing.names)}, and {', '.join(extra.names)}"
            )
    return pa.schema([every.field(name) for name in dict.fromkeys(names)])


def check_columns(wanted: pa.Schema, existing: pa.Schema, source: str) -> None:
    """Check that rows with the columns `existing` can be returned as `wanted`. Raises SchemaMismatchError."""
    for field in wanted:
        if field.name not in existing.names:
            raise SchemaMismatchError(
                f"column {field.name!r} ({type_text(field.type)}) was requested, but {source} has"
                f" no such column{nearest(field.name, existing.names)}; it has {_listed(existing)}"
            )
        existing_type = existing.field(field.name).type
        if not existing_type.equals(field.type) and type_text(existing_type) != type_text(field.type):
            raise SchemaMismatchError(
                f"column {field.name!r} was requested as {type_text(field.type)}, but in {source} it is"
                f" {type_text(existing_type)}",
                remedy="omit .schema(...), or give the type of the data and cast it in Spark",
            )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {type_text(field.type)}" for field in schema)


class BatchShaper:
    """Shapes the batches of one task. `wanted`: exactly the columns that Spark expects, in order."""

    def __init__(self, wanted: pa.Schema, comparisons: Sequence[ColumnCondition], source: str) -> None:
        self.wanted = wanted
        self._comparisons = tuple(comparisons)
        self._source = source
        self._checked: pa.Schema | None = None

    def shape(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter rows, select columns, and merge small batches. Raises SchemaMismatchError, FilterError."""
        buffered: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            one = self._shape_one(batch)
            if not one.num_rows:
                continue
            if one.num_rows >= BATCH_ROWS_ALONE:
                yield from self._merged(buffered)
                yield one
                buffered, rows, size = [], 0, 0
                continue
            buffered.append(one)
            rows, size = rows + one.num_rows, size + one.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._merged(buffered)
                buffered, rows, size = [], 0, 0
        yield from self._merged(buffered)

    def _shape_one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._checked is None or not self._checked.equals(batch.schema):
            check_columns(self.wanted, batch.schema, self._source)
            check_filter(self._comparisons, batch.schema)
            self._checked = batch.schema
        batch = passing(batch, self._comparisons)
        columns = [_as(batch.column(field.name), field.type) for field in self.wanted]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)

    def _merged(self, buffered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if len(buffered) == 1:
            yield buffered[0]
        elif buffered:
            yield from pa.Table.from_batches(buffered).combine_chunks().to_batches()


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)

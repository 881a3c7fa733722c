"""From the columns that the data has to those that Spark was told of: filtered, chosen, and checked.

Rules of this file: record batches in, record batches out. A column that has another type than was asked for
is refused by name; nothing is converted in silence.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from spark_integration.core.row_filter import ColumnCondition, check_filter, passing
from spark_integration.core.wording import nearest, type_text
from spark_integration.errors import SchemaMismatchError
from spark_integration.limits import BATCH_BYTES, BATCH_ROWS, BATCH_ROWS_ALONE


def chosen(there: pa.Schema, extra: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The columns of a DataFrame: those that the data has, or those named, `*` for all of them.

    Raises SchemaMismatchError for a name that is neither in the data nor extra.
    """
    if not columns:
        return there
    names = [name for column in columns for name in (there.names if column == "*" else [column])]
    every = pa.schema([*there, *(field for field in extra if field.name not in there.names)])
    for name in names:
        if name not in every.names:
            raise SchemaMismatchError(
                f"the option 'columns' names {name!r}{nearest(name, every.names)};"
                f" there are {', '.join(there.names)}, and {', '.join(extra.names)}"
            )
    return pa.schema([every.field(name) for name in dict.fromkeys(names)])


def check_columns(wanted: pa.Schema, there: pa.Schema, where: str) -> None:
    """Whether rows with the columns `there` can be given as `wanted`. Raises SchemaMismatchError."""
    for field in wanted:
        if field.name not in there.names:
            raise SchemaMismatchError(
                f"column {field.name!r} ({type_text(field.type)}) was asked for, and {where} has"
                f" no such column{nearest(field.name, there.names)}; it has {_listed(there)}"
            )
        found = there.field(field.name).type
        if not found.equals(field.type) and type_text(found) != type_text(field.type):
            raise SchemaMismatchError(
                f"column {field.name!r} was asked for as {type_text(field.type)}, and {where} has it as"
                f" {type_text(found)}",
                remedy="leave out .schema(...), or say the type that is there and cast it in Spark",
            )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {type_text(field.type)}" for field in schema)


class BatchShaper:
    """Makes the batches of one task. wanted: exactly what Spark expects, in its order."""

    def __init__(self, wanted: pa.Schema, comparisons: Sequence[ColumnCondition], where: str) -> None:
        self.wanted = wanted
        self._comparisons = tuple(comparisons)
        self._where = where
        self._checked: pa.Schema | None = None

    def shape(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter, choose, put together. Raises SchemaMismatchError, FilterError."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            one = self._one(batch)
            if not one.num_rows:
                continue
            if one.num_rows >= BATCH_ROWS_ALONE:
                yield from self._together(held)
                yield one
                held, rows, size = [], 0, 0
                continue
            held.append(one)
            rows, size = rows + one.num_rows, size + one.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._together(held)
                held, rows, size = [], 0, 0
        yield from self._together(held)

    def _one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._checked is None or not self._checked.equals(batch.schema):
            check_columns(self.wanted, batch.schema, self._where)
            check_filter(self._comparisons, batch.schema)
            self._checked = batch.schema
        batch = passing(batch, self._comparisons)
        columns = [_as(batch.column(field.name), field.type) for field in self.wanted]
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)

    def _together(self, held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if len(held) == 1:
            yield held[0]
        elif held:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)

"""Convert the input of a trial's step (`trial.py`) to batches."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dataflow.errors import SchemaError, UserFault
from dataflow.schema import schema_text
from dataflow.values.python_rows import batch_of_rows

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table"
"""Dicts, a batch or a table."""


def batches_of(given: Any) -> list[Rows]:
    """Return one batch of rows, or several, as a list of batches."""
    if isinstance(given, (pa.RecordBatch, pa.Table)):
        return [given]
    several = list(given)
    if several and not isinstance(several[0], Mapping):
        return several
    return [several]


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as a batch. Raises SchemaError for other columns."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
        found = rows.to_batches()
        rows = found[0] if found else []
    if not isinstance(rows, pa.RecordBatch):
        listed = list(rows)
        try:
            return batch_of_rows(listed, range(len(listed)), schema)
        except UserFault as fault:
            raise SchemaError(f"row {fault.row} of the step: {fault}") from fault
    if not rows.schema.equals(schema):
        raise SchemaError(
            f"the source has columns ({schema_text(schema)}), and the step got ({schema_text(rows.schema)})"
        )
    return rows

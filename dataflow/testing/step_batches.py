"""What a step of a trial is given (`testing.py`), as batches.

Rules of this file: values of users to batches; nothing runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dataflow.errors import SchemaError

Rows: TypeAlias = "Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table"
"""Dicts, a batch or a table."""


def batches_of(given: Any) -> list[Rows]:
    """Rows, or several batches of rows, as a list of batches."""
    if isinstance(given, (pa.RecordBatch, pa.Table)):
        return [given]
    several = list(given)
    if several and not isinstance(several[0], Mapping):
        return several
    return [several]


def batch_of(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as a batch. Raises SchemaError for other columns."""
    if isinstance(rows, pa.Table):
        rows = rows.combine_chunks()
        found = rows.to_batches()
        rows = found[0] if found else []
    if not isinstance(rows, pa.RecordBatch):
        rows = pa.RecordBatch.from_pylist(list(rows), schema)
    if not rows.schema.equals(schema):
        raise SchemaError(f"the source gives {schema.names}, and a step was given {rows.schema.names}")
    return rows

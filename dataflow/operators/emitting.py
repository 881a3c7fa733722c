"""Side outputs that user functions and operators write: rows by output name, until they are taken.

Each thread has its own rows. The circuit decides where the batches go.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dataflow.errors import SchemaError, UserFault, nearest
from dataflow.schema import parse_schema
from dataflow.values.python_rows import batch_of_result, batch_of_rows


def side_outputs_of(declared: "Mapping[str, str | pa.Schema] | None") -> dict[str, pa.Schema]:
    """Parse the declaration of side outputs. Raises SchemaError, which names the output."""
    schemas = {}
    for port, columns in (declared or {}).items():
        if not isinstance(port, str) or not port:
            raise SchemaError(f"a side output needs a non-empty name, not {port!r}; write {{'bad': ...}}")
        try:
            schemas[port] = parse_schema(columns)
        except SchemaError as error:
            raise SchemaError(f"side output {port!r}: {error}") from None
    return schemas


def declared_side_outputs(
    declared: "Mapping[str, str | pa.Schema] | None",
) -> tuple[tuple[str, pa.Schema], ...]:
    """Parse the declaration of side outputs into the form that specs hold. Raises SchemaError."""
    return tuple(side_outputs_of(declared).items())


class _ThreadRows(threading.local):
    """The side output rows of one thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.pending: dict[str, list[tuple[int, Any]]] = {}
        """Port -> (index of the call, rows)."""
        self.batches: dict[str, list[pa.RecordBatch]] = {}


class Emitter:
    """Callable that the user's function receives: `emitter(port, row)`, or a batch or table instead of a row.

    Raises SchemaError for an undeclared port. Rows of one thread keep their order. `by_row`: the user's
    function is called once per row.
    """

    def __init__(self, schemas: Mapping[str, pa.Schema], *, by_row: bool = False) -> None:
        self._schemas = schemas
        self._by_row = by_row
        self._waiting = _ThreadRows()

    def called(self) -> None:
        """Count one call of the user's function, which follows."""
        self._waiting.calls += 1

    def __call__(self, port: str, rows: Any) -> None:
        if port not in self._schemas:
            known = ", ".join(map(repr, self._schemas)) or "none"
            raise SchemaError(
                f"there is no side output {port!r}{nearest(port, self._schemas)}; declared are {known}"
            )
        self._waiting.pending.setdefault(port, []).append((self._waiting.calls - 1, rows))

    def settle(self) -> None:
        """Convert the rows of this thread to batches of the declared columns. Raises UserFault."""
        given, self._waiting.pending = self._waiting.pending, {}
        self._waiting.calls = 0
        for port, several in given.items():
            try:
                made = _batches(several, self._schemas[port])
            except UserFault as fault:
                row = fault.row if self._by_row else None
                raise UserFault(f"side output {port!r}: {fault}", row=row, remedy=fault.remedy) from fault
            self._waiting.batches.setdefault(port, []).extend(made)

    def take(self, port: str) -> list[pa.RecordBatch]:
        """Remove and return the settled batches of this thread."""
        return self._waiting.batches.pop(port, [])


def _batches(several: Sequence[tuple[int, Any]], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    alone: list[tuple[int, Any]] = []
    for call, given in several:
        if isinstance(given, (pa.RecordBatch, pa.Table)):
            batches += [*_of_rows(alone, schema), batch_of_result(given, schema)]
            alone = []
        else:
            alone.append((call, given))
    return [batch for batch in [*batches, *_of_rows(alone, schema)] if batch.num_rows]


def _of_rows(rows: Sequence[tuple[int, Any]], schema: pa.Schema) -> list[pa.RecordBatch]:
    return [batch_of_rows([row for _, row in rows], [call for call, _ in rows], schema)] if rows else []

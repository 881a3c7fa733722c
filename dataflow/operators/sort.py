"""sort: rows in the order of their event time (replication-transparency IV-C, algorithm 4, lines 1 to 6).

Rows wait for a punctuation and are then passed on in an order that depends only on their contents: by time,
rows of equal time by all columns. Downstream operators that depend on the order therefore see the same input,
whatever the order of arrival was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.operators.base import OperatorContext, StateTable
from dataflow.operators.event_time import check_time_column, times_of
from dataflow.operators.late import TimedOperator, TimedSpec
from dataflow.state.row_table import RowTable, check_order, check_stored, in_order


@dataclass(frozen=True, slots=True)
class SortSpec(TimedSpec):
    """Sorts by the timestamp column `time`."""

    kind: ClassVar[OperatorKind] = OperatorKind.SORT
    time: str

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.time, inputs[0])
        check_order(inputs[0])
        check_stored(inputs[0])
        return inputs[0]

    def detail(self) -> str:
        return f"time ({self.time})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # every row once

    def open(self, context: OperatorContext) -> "SortOperator":
        return SortOperator(self.time, context.inputs[0])


class SortOperator(TimedOperator):
    """Sorts. State: the waiting rows."""

    def __init__(self, time: str, columns: pa.Schema) -> None:
        super().__init__(columns)
        self._name = time
        self._rows = RowTable(columns, keyed=False)

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        batch, times = self.in_time(batch, times_of(batch.column(self._name), self._name))
        self._rows.add(batch, times)
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        rows = self._rows.take(self.watermark(index))
        return [rows.batch.take(pa.array(in_order(rows.batch, rows.times)))] if len(rows) else ()

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._rows}

    def counters(self) -> dict[str, int]:
        return {
            "rows": len(self._rows),
            "late_rows": self.late_rows,
            "state_bytes": self._rows.bytes_held,
        }

"""sort and top_k: rows wait until the watermark passes them, and leave in an order of their contents, so that
operators downstream see the same input (replication-transparency IV-C, algorithm 4, lines 1 to 6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import OperatorContext, ReplicaProblem, StateTable
from dataflow.operators.event_time import TimedOperator, TimedSpec, check_time_column, micros_of, times_of
from dataflow.operators.windows import Tumbling
from dataflow.schema import type_text
from dataflow.state.key_index import KeyIndex, Slots, hashes_of, position_in_run
from dataflow.state.row_table import (
    Rows,
    RowTable,
    check_order,
    check_stored,
    has_order,
    in_order,
    order_columns,
)

_prune_rows_min: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopKSpec(TimedSpec):
    """Selects by the key of the keyed stream; NaN is the largest number; nulls in `by` come last."""

    kind: ClassVar[OperatorKind] = OperatorKind.TOP_K
    not_edited: ClassVar[str] = "its rows wait for event time"
    keys: tuple[str, ...]
    window: Tumbling
    k: int
    by: str

    def __post_init__(self) -> None:
        if not isinstance(self.window, Tumbling):
            raise SchemaError(f"top_k needs a Tumbling(...) window, not {self.window!r}")
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise SchemaError(f"k of top_k must be an integer of 1 or more, not {self.k!r}")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.window.time, inputs[0])
        if self.by not in inputs[0].names:
            columns = ", ".join(inputs[0].names)
            raise SchemaError(f"column {self.by!r} of top_k does not exist; the columns are {columns}")
        kind = inputs[0].field(self.by).type
        if not has_order(kind):
            raise SchemaError(
                f"top_k selects the largest of {self.by!r}, and values of type {type_text(kind)} have no"
                " order; select by a column of numbers, decimals, text or times"
            )
        check_order(inputs[0])
        check_stored(inputs[0])
        return inputs[0]

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)}) window ({self.window}) {self.k} by ({self.by})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "emits rows of a window after it is over, when watermarks above their times are published",
            "use aggregate with a window, whose rows have the time window_end",
        )

    def open(self, context: OperatorContext) -> "TopKOperator":
        return TopKOperator(self, context.inputs[0])


class TopKOperator(TimedOperator):
    """Selects the rows by the column; equal ones by all columns. State: the rows that may be among the
    largest, each with the end of its window as its time. The others are deleted whenever twice as many rows
    are stored as after the previous deletion.
    """

    def __init__(self, spec: TopKSpec, columns: pa.Schema) -> None:
        super().__init__(columns)
        self._spec = spec
        self._size = micros_of(spec.window.size, "size")
        self._offset = micros_of(spec.window.offset, "offset")
        self._rows = RowTable(columns)
        self._rows_kept = 0
        """How many rows remained after the last deletion."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        times = times_of(batch.column(self._spec.window.time), self._spec.window.time)
        starts = (times - self._offset) // self._size * self._size + self._offset
        batch, ends = self.in_time(batch, starts + self._size - 1)
        self._rows.add(batch, ends, hashes_of(batch))
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        if len(self._rows) > max(_prune_rows_min, 2 * self._rows_kept):
            rows = self._rows.all()
            self._rows.keep_only(rows.numbers[self._largest(rows)])
            self._rows_kept = len(self._rows)
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        rows = self._rows.take(self.watermark(index))
        return [rows.batch.take(pa.array(self._largest(rows)))] if len(rows) else ()

    def _largest(self, rows: Rows) -> Slots:
        """Return the k largest rows of each window and key, ordered by window, key and size."""
        columns = [rows.batch.column(name) for name in self._spec.keys]
        groups = KeyIndex([column.type for column in columns]).find_or_add(columns, rows.hashes)
        order = self._order(rows)
        groups, times = groups[order], rows.times[order]
        new = np.r_[True, (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])]
        return np.asarray(order[position_in_run(new) < self._spec.k])

    def _order(self, rows: Rows) -> npt.NDArray[np.int64]:
        keys = [rows.batch.column(name) for name in self._spec.keys]
        largest = rows.batch.column(self._spec.by)
        columns = [(pa.array(rows.times), "ascending"), *((one, "ascending") for one in order_columns(keys))]
        if pa.types.is_floating(largest.type):  # Arrow puts NaN last in both directions
            columns.append((pc.is_nan(largest), "descending"))
        columns.append((largest, "descending"))
        columns += [(one, "ascending") for one in order_columns(rows.batch.columns)]
        names = [str(index) for index in range(len(columns))]
        table = pa.Table.from_arrays([column for column, _ in columns], names=names)
        order = pc.sort_indices(table, [(name, to) for name, (_, to) in zip(names, columns, strict=True)])
        return np.asarray(order.to_numpy().astype(np.int64))

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._rows}

    def counters(self) -> dict[str, int]:
        return {
            "rows": len(self._rows),
            "late_rows": self.late_rows,
            "state_bytes": self._rows.bytes_held,
        }


@dataclass(frozen=True, slots=True)
class SortSpec(TimedSpec):
    """Sorts by the timestamp column `time`."""

    kind: ClassVar[OperatorKind] = OperatorKind.SORT
    not_edited: ClassVar[str] = "its rows wait for event time"
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

"""join: pairs of rows of two keyed streams that share a key and are near each other in time.

Implements replication-transparency, algorithm 2. Each pair is found once, in the step in which the later of
its rows arrived, so the set of pairs does not depend on the order of arrival. A row is stored until a
punctuation of the *other* input excludes further partners. A row with a null in its key has no partner, as in
SQL, and is not stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.core.event_time import FIRST_TIME, LAST_TIME, Watermark, is_time
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import OperatorContext, OperatorSpec, StateTable
from dataflow.operators.event_time import (
    LATE,
    LATE_RIGHT,
    TimedOperator,
    check_time_column,
    micros_of,
    times_of,
)
from dataflow.operators.routing import check_keyed_alike
from dataflow.state.indexed_rows import IndexedRows, by_key_and_time
from dataflow.state.key_index import Slots, hashes_of
from dataflow.state.row_table import Rows, ascending, check_stored, joined

LEFT: Final = 0
RIGHT: Final = 1


@dataclass(frozen=True, slots=True)
class JoinSpec(OperatorSpec):
    """Join of two inputs, with `keys` and `times` for each. `within` is the exclusive maximum distance in
    time. The columns of the right input, without its keys, follow the left's; `suffix` distinguishes equal
    names. `one_watermark`: the inputs have one watermark, as in Spark: the smaller one, in milliseconds.
    """

    kind: ClassVar[OperatorKind] = OperatorKind.JOIN
    not_edited: ClassVar[str] = "its rows wait for event time"
    needs_time: ClassVar[bool] = True
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    times: tuple[str, str]
    within: timedelta
    suffix: str = "_right"
    one_watermark: bool = False

    def __post_init__(self) -> None:
        if not micros_of(self.within, "within"):
            raise SchemaError("within must be above 0: rows are joined if they are less than `within` apart")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        for columns, time in zip(inputs, self.times, strict=True):
            check_time_column(time, columns)
            check_stored(columns)
        both = zip(inputs, self.keys, strict=True)
        check_keyed_alike([[columns.field(name).type for name in keys] for columns, keys in both])
        left, right = inputs
        fields = list(left)
        for name in right.names:
            if name not in self.keys[RIGHT]:
                field = right.field(name)
                fields.append(field.with_name(name + self.suffix) if name in left.names else field)
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SchemaError(f"columns {', '.join(map(repr, twice))} appear twice; use another suffix=")
        return pa.schema(fields)

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[LEFT], LATE_RIGHT: inputs[RIGHT]}

    def detail(self) -> str:
        sides = zip(self.keys, self.times, strict=True)
        described = " with ".join(f"key ({', '.join(keys)}) time ({time})" for keys, time in sides)
        return f"{described} within ({self.within}){' one watermark' if self.one_watermark else ''}"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # each pair once, whichever row came first

    def open(self, context: OperatorContext) -> "JoinOperator":
        assert context.output is not None
        return JoinOperator(self, context.inputs, context.output)


class _Side:
    """The stored rows of one input."""

    def __init__(self, keys: Sequence[str], time: str, columns: pa.Schema) -> None:
        self.keys = tuple(keys)
        self.time = time
        self.columns = columns
        self.table = IndexedRows(columns, keys)
        self._new_rows: list[Rows] = []
        """Rows of the current step."""

    def add(self, batch: pa.RecordBatch, times: npt.NDArray[np.int64]) -> None:
        """Add rows to those of the current step."""
        self._new_rows.append(self.table.numbered(batch, times, hashes_of(batch)))

    def take_new_rows(self) -> Rows:
        """Remove and return the rows of the current step. The table does not have them yet."""
        new_rows, self._new_rows = self._new_rows, []
        return by_key_and_time(joined(new_rows, self.columns))

    def near(self, other: "_Side", rows: Rows, within: int) -> tuple[Rows, Rows]:
        """Return all pairs of these rows of the other side and of rows in the table, as rows of both."""
        found = [*self.table.near(rows, other.table.key_columns(rows.batch), within)]
        at = np.concatenate([np.empty(0, np.int64), *(at for at, _ in found)])
        return rows.take(at), joined([ours for _, ours in found], self.columns)

    def with_key(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the rows without a null in their key, and their times."""
        nulls = [column for name in self.keys if (column := batch.column(name)).null_count]
        if not nulls:
            return batch, times
        kept = ~np.logical_or.reduce([one.is_null().to_numpy(zero_copy_only=False) for one in nulls])
        return batch.filter(pa.array(kept)), times[kept]


class JoinOperator(TimedOperator):
    """Joins the inputs. State: the rows of both inputs that may still find a partner."""

    def __init__(self, spec: JoinSpec, inputs: Sequence[pa.Schema], output: pa.Schema) -> None:
        super().__init__(inputs[LEFT], inputs=2)
        # All times are less than this apart: a larger distance would overflow where it is added to a time.
        self._within = min(micros_of(spec.within, "within"), LAST_TIME - FIRST_TIME + 1)
        self._one_watermark = spec.one_watermark
        self._output = output
        self._sides = [_Side(*parts) for parts in zip(spec.keys, spec.times, inputs, strict=True)]
        right = self._sides[RIGHT]
        self._right_columns = [name for name in right.columns.names if name not in right.keys]
        self._late_right: list[pa.RecordBatch] = []

    def watermark(self, index: int = 0) -> Watermark:
        if not self._one_watermark:
            return super().watermark(index)
        # A row of the faster input may be older than its own watermark: the other one decides.
        least = min(self._time.watermarks)
        return least // 1000 * 1000 if is_time(least) else least

    def process_of(self, index: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        side = self._sides[index]
        times = times_of(batch.column(side.time), side.time)
        self.check_times(times, index)
        late = times <= self.watermark(index)
        if late.any():
            self._add_late_rows(index, batch, np.flatnonzero(late), times)
            batch, times = batch.take(pa.array(np.flatnonzero(~late))), times[~late]
        batch, times = side.with_key(batch, times)
        # Keep a row until the other input's watermark is `within` past it: then no partner is near enough.
        side.add(batch, times + self._within - 1)
        return ()

    def _add_late_rows(
        self, index: int, batch: pa.RecordBatch, rows: Slots, times: npt.NDArray[np.int64]
    ) -> None:
        if index == LEFT:
            self.put_late(batch, rows, times)
            return
        self.count_late(index, times[rows])
        names = self._sides[RIGHT].columns.names
        self._late_right.append(batch.select(names).take(pa.array(rows)))

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        if port == LATE:
            return super().take_side_output(port)
        late, self._late_right = self._late_right, []
        return late

    def end_step(self) -> Sequence[pa.RecordBatch]:
        left, right = self._sides
        lefts, rights = left.take_new_rows(), right.take_new_rows()
        if not len(lefts) and not len(rights):
            return ()
        right.table.insert(rights)
        new_lefts = right.near(left, lefts, self._within)
        new_rights = left.near(right, rights, self._within)
        left.table.insert(lefts)  # only now, or pairs of two new rows would be found twice
        pairs = [self._pairs(*new_lefts), self._pairs(*reversed(new_rights))]
        return [batch for batch in pairs if batch.num_rows]

    def _pairs(self, lefts: Rows, rights: Rows) -> pa.RecordBatch:
        """Return the output rows of these pairs, in the order of arrival."""
        order = pa.array(ascending([pa.array(lefts.numbers), pa.array(rights.numbers)]))
        columns = [*lefts.batch.columns, *rights.batch.select(self._right_columns).columns]
        return pa.RecordBatch.from_arrays([one.take(order) for one in columns], schema=self._output)

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        self._time.reach(watermark, index)
        # Also if the watermark did not advance: rows may have arrived that can have no partner any more.
        self._sides[RIGHT if index == LEFT else LEFT].table.leave(self.watermark(index))
        if self._one_watermark:
            self._sides[index].table.leave(self.watermark(index))
        return ()

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"~left": self._sides[LEFT].table, "~right": self._sides[RIGHT].table}

    def counters(self) -> dict[str, int]:
        return {
            "rows": sum(len(side.table) for side in self._sides),
            "late_rows": self.late_rows,
            "state_bytes": sum(side.table.bytes_held for side in self._sides),
        }

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

from dataflow.core.event_time import Watermark, is_time
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
from dataflow.state.key_index import KeyIndex, Slots, hashes_of
from dataflow.state.row_table import Rows, RowTable, check_stored, joined

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
        self.table = RowTable(columns)
        self.new_rows: list[Rows] = []
        """Rows of the current step."""

    def key_columns(self, rows: Rows) -> list[pa.Array]:
        return [rows.batch.column(name) for name in self.keys]

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
        self._within = micros_of(spec.within, "within")
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
        side.new_rows.append(side.table.add(batch, times + self._within - 1, hashes_of(batch)))
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
        new = [joined(side.new_rows, side.columns) for side in self._sides]
        left.new_rows, right.new_rows = [], []
        if not len(new[LEFT]) and not len(new[RIGHT]):
            return ()
        lefts, rights = left.table.all(), right.table.all()
        before = lefts.take(np.flatnonzero(~np.isin(lefts.numbers, new[LEFT].numbers)))
        pairs = [self._pairs(new[LEFT], rights), self._pairs(before, new[RIGHT])]
        return [batch for batch in pairs if batch.num_rows]

    def _pairs(self, left: Rows, right: Rows) -> pa.RecordBatch:
        """Return all pairs of these rows, in the order of arrival."""
        at_left, at_right = self._same_keys(left, right)
        near = np.abs(left.times[at_left] - right.times[at_right]) < self._within
        at_left, at_right = at_left[near], at_right[near]
        order = np.lexsort((right.numbers[at_right], left.numbers[at_left]))
        lefts = left.batch.take(pa.array(at_left[order]))
        rights = right.batch.select(self._right_columns).take(pa.array(at_right[order]))
        return pa.RecordBatch.from_arrays([*lefts.columns, *rights.columns], schema=self._output)

    def _same_keys(self, left: Rows, right: Rows) -> tuple[Slots, Slots]:
        """Return the positions of all pairs of rows with equal keys, in the left and in the right rows."""
        index = KeyIndex([self._sides[LEFT].columns.field(name).type for name in self._sides[LEFT].keys])
        of_left = index.find_or_add(self._sides[LEFT].key_columns(left), left.hashes)
        of_right = index.find_or_add(self._sides[RIGHT].key_columns(right), right.hashes)
        order = np.argsort(of_right, kind="stable")
        begins = np.searchsorted(of_right[order], of_left, "left")
        counts = np.searchsorted(of_right[order], of_left, "right") - begins
        at_left = np.repeat(np.arange(len(of_left)), counts)
        within_run = np.arange(len(at_left)) - np.repeat(np.cumsum(counts) - counts, counts)
        return at_left, order[np.repeat(begins, counts) + within_run]

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        self._time.reach(watermark, index)
        # Also if the watermark did not advance: rows may have arrived that can have no partner any more.
        self._sides[RIGHT if index == LEFT else LEFT].table.take(self.watermark(index))
        if self._one_watermark:
            self._sides[index].table.take(self.watermark(index))
        return ()

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"~left": self._sides[LEFT].table, "~right": self._sides[RIGHT].table}

    def counters(self) -> dict[str, int]:
        return {
            "rows": sum(len(side.table) for side in self._sides),
            "late_rows": self.late_rows,
            "state_bytes": sum(side.table.bytes_held for side in self._sides),
        }

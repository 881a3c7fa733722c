"""Event time: the watermark of a stream, and the rows that cannot take part: without a time or key, late.

How many rows were excluded is state: a row that was dropped before a checkpoint is not read again after a
crash, so the region must remember that it was dropped. Decision 0214 has the reasons for the rules about
nulls.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block
from checkpoint.key_hash import hash_keys
from dataflow.core.event_time import (
    FIRST_TIME,
    LAST_TIME,
    UNKNOWN,
    InputMarks,
    SplitWatermarks,
    Watermark,
    behind,
    further,
    is_time,
)
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import (
    AtCheckpoint,
    Operator,
    OperatorContext,
    OperatorSpec,
    ReplicaProblem,
    StateTable,
)
from dataflow.schema import columns_named, type_text
from dataflow.state.base import GatheredParts, Share
from dataflow.state.key_index import Slots


class StepValues:
    """The values of one number as of the end of each recent step."""

    # Stage 0 runs ahead: when the checkpoint of a step is collected, its operators may have processed later
    # steps.
    def __init__(self) -> None:
        self._values: dict[int, int] = {}
        self._selected = 0

    def remember(self, step: int, value: int) -> None:
        self._values[step] = value

    def forget(self, step: int) -> None:
        """Discard the values of steps before this one; no later checkpoint describes them."""
        for old in [one for one in self._values if one < step]:
            del self._values[old]

    def select(self, step: int) -> None:
        """Select the step that the next checkpoint describes."""
        self._selected = step

    def selected(self, default: int) -> int:
        """Return the value of the selected step, `default` if none was recorded."""
        return self._values.get(self._selected, default)


OnNullTime: TypeAlias = Literal["error", "drop", "side"]
OnNullKey: TypeAlias = Literal["group", "error", "drop", "side"]
NULL_PORT: Final = "null"
"""The side output of excluded rows."""
_LOST: Final = "null_rows_dropped"


def check_choice(choice: str, choices: Sequence[str], argument: str = "on_null") -> None:
    """Raise SchemaError if the value of an argument is not one of the choices."""
    if choice not in choices:
        raise SchemaError(f"{argument} must be one of {', '.join(map(repr, choices))}, not {choice!r}")


def null_side_outputs(on_null: str, columns: pa.Schema) -> dict[str, pa.Schema]:
    return {NULL_PORT: columns} if on_null == "side" else {}


class RememberedCount(StateTable):
    """A number that only grows, as state of an operator that may be ahead of the checkpoint."""

    _schema = block_schema(pa.schema([("input", pa.int64())]), pa.schema([("rows", pa.int64())]))

    def __init__(self) -> None:
        self.rows = 0
        self.by_step = StepValues()
        self._gathered = GatheredParts()

    def checkpoint(self) -> pa.RecordBatch:
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        rows = self.by_step.selected(self.rows)
        keys = pa.array([0] if rows else [], pa.int64())
        values = pa.array([rows] if rows else [], pa.int64())
        return make_block(self._schema, [keys], hash_keys([keys]), [values])

    def restore(self, block: pa.RecordBatch) -> None:
        for row in block.to_pylist():
            self.rows = row["rows"]

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        del share
        if part.stays:
            self._gathered.add(block, part)

    def parts_restored(self, share: Share) -> None:
        self.rows += sum(
            blocks[-1].column("rows")[0].as_py() for _, blocks in self._gathered.take(share.parts)
        )


class NullRule(Operator):
    """An operator that applies a rule to rows in which one of `columns` is null, and passes on the others."""

    passes_rows = True
    at_checkpoint = "tables"

    def __init__(self, role: str, on_null: str, columns: Sequence[str], instead: str) -> None:
        """role: what the columns are, for messages. instead: the remedy for on_null="error". "group" passes
        all on.
        """
        self._role = role
        self._on_null = on_null
        self.columns = tuple(columns)
        self._instead = instead
        self._excluded: list[pa.RecordBatch] = []
        self.nulls = RememberedCount()

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        return [self.without_nulls(batch)]

    def without_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to pass on. Raises UserFault if on_null="error" and a row has a null."""
        with_nulls = [name for name in self.columns if batch.column(name).null_count]
        if not with_nulls or self._on_null == "group":
            return batch
        null = np.zeros(batch.num_rows, np.bool_)
        for name in with_nulls:
            null |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        if self._on_null == "error":
            rows = batch.column(with_nulls[0]).null_count
            raise UserFault(
                f"{self._role} {with_nulls[0]!r} is null in {rows} of {batch.num_rows} rows",
                row=int(np.flatnonzero(null)[0]),
                remedy=self._instead,
            )
        self.nulls.rows += int(null.sum())
        if self._on_null == "side":
            self._excluded.append(batch.filter(pa.array(null)))
        return batch.filter(pc.invert(pa.array(null)))

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        assert port == NULL_PORT
        excluded, self._excluded = self._excluded, []
        return excluded

    def lost_on(self, port: str) -> dict[str, int]:
        return {_LOST: self.nulls.rows} if port == NULL_PORT and self.nulls.rows else {}

    def counters(self) -> dict[str, int]:
        return {_LOST: self.nulls.rows} if self._on_null == "drop" and self.nulls.rows else {}

    def tables(self) -> dict[str, StateTable]:
        return {"~nulls": self.nulls}

    # --- Ahead of the checkpoint ----------------------------------------------------------------------

    def remember(self, step: int) -> None:
        """Record the count at the end of this step."""
        self.nulls.by_step.remember(step, self.nulls.rows)

    def forget(self, step: int) -> None:
        """Discard the steps before this one; no later call refers to them."""
        self.nulls.by_step.forget(step)

    def select_step(self, step: int) -> None:
        """Select the step that the next checkpoint describes."""
        self.nulls.by_step.select(step)


OnAhead: TypeAlias = Literal["error", "drop", "side"]
AHEAD_PORT: Final = "ahead"
"""The side output of rows that are too far ahead of the clock."""
_LOST_AHEAD: Final = "ahead_rows_dropped"
_TICKS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Unit of a timestamp -> its microseconds."""
_ONE: Final = timedelta(microseconds=1)
_INSTEAD: Final = (
    "write event_time(..., on_null='drop') or 'side' to exclude such rows, or set their time before"
)


_INSTEAD_AHEAD: Final = (
    "correct the clock that gave the time, or exclude such rows with event_time(..., on_ahead='drop') or"
    " 'side'; if times may be that far ahead, write a larger max_ahead, or None"
)


def micros_of(duration: timedelta, what: str) -> int:
    """Return a duration in microseconds. Raises SchemaError if it is not a timedelta or is negative."""
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise SchemaError(
            f"{what} must be a timedelta of 0 or more, not {duration!r}; write timedelta(seconds=10)"
        )
    return duration // _ONE


def check_time_column(column: str, columns: pa.Schema) -> None:
    """Raise SchemaError if `column` is not a timestamp column of these columns."""
    if column not in columns.names:
        raise SchemaError(
            f"time column {column!r} does not exist; the columns are {', '.join(columns.names)}"
        )
    kind = columns.field(column).type
    if not pa.types.is_timestamp(kind) or kind.unit == "ns":
        raise SchemaError(
            f"time column {column!r} must be a timestamp in microseconds or coarser, not {type_text(kind)};"
            " convert it with a map before"
        )


def times_of(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """Return a timestamp column in microseconds. Raises UserFault for a time that no `datetime` holds, and
    for a null, which another column or a function downstream of `event_time` has made.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserFault(
            f"time column {name!r} is null in {column.null_count} of {len(column)} rows",
            row=row,
            remedy="filter such rows or set their time before; event_time(..., on_null=) checks only its own"
            " column",
        )
    times: npt.NDArray[np.int64] = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
    if len(times) and (times.min() < FIRST_TIME or times.max() > LAST_TIME):
        row = int(np.flatnonzero((times < FIRST_TIME) | (times > LAST_TIME))[0])
        raise UserFault(
            f"time column {name!r} has {int(times[row])} microseconds since 1970, and times are from the year"
            " 1 to 9999",
            row=row,
            remedy="filter such rows or correct their time before",
        )
    return times


def latest_times(batch: pa.RecordBatch, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the time of each row in microseconds: the latest of these columns. Raises as `times_of`."""
    times: npt.NDArray[np.int64] = np.maximum.reduce([times_of(batch.column(name), name) for name in names])
    return times


@dataclass(frozen=True, slots=True)
class EventTimeSpec(OperatorSpec):
    """The time column, and the source of watermarks: `lateness`, the column `punctuation`, or `marks`."""

    kind: ClassVar[OperatorKind] = OperatorKind.EVENT_TIME
    not_edited: ClassVar[str] = "a watermark follows from the input"
    column: str
    lateness: timedelta | None
    punctuation: str | None
    idle_after: timedelta | None = None
    on_null: OnNullTime = "error"
    marks: bool = False
    max_ahead: timedelta | None = timedelta(days=1)
    on_ahead: OnAhead = "error"

    def __post_init__(self) -> None:
        check_choice(self.on_null, get_args(OnNullTime))
        check_choice(self.on_ahead, get_args(OnAhead), "on_ahead")
        if self.max_ahead is not None:
            micros_of(self.max_ahead, "max_ahead")
        if (self.lateness is not None) + (self.punctuation is not None) + self.marks != 1:
            raise SchemaError(
                "event_time needs exactly one of lateness=timedelta(...), how far rows may be behind others,"
                " punctuation='column', a column with watermarks, and marks=True, the marks of entry points"
            )
        if self.marks and self.idle_after is not None:
            raise SchemaError("idle_after is not for marks: entry points mark silent producers too")
        if self.lateness is not None:
            micros_of(self.lateness, "lateness")
        if self.idle_after is not None and not micros_of(self.idle_after, "idle_after"):
            raise SchemaError("idle_after must be a timedelta above 0, not 0")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        for name in (self.column, self.punctuation):
            if name is not None:
                check_time_column(name, inputs[0])
        return inputs[0]

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], (self.column,))]

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        ahead = {AHEAD_PORT: inputs[0]} if self.on_ahead == "side" else {}
        return {**null_side_outputs(self.on_null, inputs[0]), **ahead}

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if self.lateness:
            return ReplicaProblem(
                f"has lateness={self.lateness}, and which rows are later than that depends on the steps",
                "let the entry point, which is the same for all replicas, decide which rows are late",
            )
        if self.idle_after is not None:
            return ReplicaProblem(
                f"has idle_after={self.idle_after}, so its watermark depends on a clock",
                "leave it out, and close producers that end",
            )
        if self.on_ahead != "error":
            return ReplicaProblem(
                f"has on_ahead={self.on_ahead!r}, so which rows it excludes depends on a clock",
                "write on_ahead='error', or let the entry point decide which rows are too far ahead",
            )
        return None

    def open(self, context: OperatorContext) -> "EventTimeOperator":
        del context
        return EventTimeOperator(self)


class WatermarkTable(StateTable):
    """One watermark per input of an operator, as state. A watermark never goes back."""

    _schema = block_schema(pa.schema([("input", pa.int64())]), pa.schema([("mark", pa.int64())]))

    def __init__(self, inputs: int) -> None:
        self.watermarks: list[Watermark] = [UNKNOWN] * inputs
        self._stored: list[Watermark] = list(self.watermarks)
        self._gathered = GatheredParts()

    def reach(self, watermark: Watermark, index: int) -> bool:
        """Advance the watermark of an input to `watermark`. Return whether it advanced."""
        before = self.watermarks[index]
        self.watermarks[index] = further(before, watermark)
        return self.watermarks[index] != before

    def checkpoint(self) -> pa.RecordBatch:
        changed = [i for i, watermark in enumerate(self.watermarks) if watermark != self._stored[i]]
        self._stored = list(self.watermarks)
        return self.block({index: self.watermarks[index] for index in changed})

    def snapshot(self) -> pa.RecordBatch:
        return self.block(dict(enumerate(self.watermarks)))

    @classmethod
    def block(cls, watermarks: dict[int, Watermark]) -> pa.RecordBatch:
        keys = pa.array(list(watermarks), pa.int64())
        return make_block(
            cls._schema, [keys], hash_keys([keys]), [pa.array(list(watermarks.values()), pa.int64())]
        )

    def restore(self, block: pa.RecordBatch) -> None:
        for row in block.to_pylist():
            self.watermarks[row["input"]] = row["mark"]
        self._stored = list(self.watermarks)

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        del share
        self._gathered.add(block, part)

    def parts_restored(self, share: Share) -> None:
        """Take the least of the parts, on a new worker. Behind an exchange they are equal."""
        found: list[list[Watermark]] = []
        for _, blocks in self._gathered.take(share.parts):
            watermarks = [UNKNOWN] * len(self.watermarks)
            for row in (row for block in blocks for row in block.to_pylist()):
                watermarks[row["input"]] = row["mark"]
            found.append(watermarks)
        if not share.stays and len(found) == len(share.parts):
            self.watermarks = [min(of_input) for of_input in zip(*found, strict=True)]

    def restart(self) -> None:
        """Forget how far the inputs are, because other splits are read here now."""
        self.watermarks = [UNKNOWN] * len(self.watermarks)


class EventTimeOperator(NullRule):
    """Computes the watermark of the stream, which is its state. It runs in stage 0, ahead of the checkpoint,
    so it remembers the watermark of each step. Watermarks of splits are stored with the positions of the
    splits.
    """

    def __init__(self, spec: EventTimeSpec) -> None:
        super().__init__("time column", spec.on_null, (spec.column,), _INSTEAD)
        self._column = spec.column
        self._punctuation = spec.punctuation
        self._lateness = 0 if spec.lateness is None else micros_of(spec.lateness, "lateness")
        self._max_ahead_us = (
            None if spec.max_ahead is None or spec.marks else micros_of(spec.max_ahead, "max_ahead")
        )
        self._on_ahead = spec.on_ahead
        self._ahead: list[pa.RecordBatch] = []
        self._ahead_rows = RememberedCount()
        self.now_us: int | None = None
        """The recorded time of the step, by the clock of the machine that first ran it; None: not known."""
        self._state = _RememberedWatermark()
        self.splits = InputMarks() if spec.marks else SplitWatermarks()
        self.idle_after_s = None if spec.idle_after is None else spec.idle_after.total_seconds()
        self.rows_of = ("", "")
        """Source and split of the rows of the next `process` call."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        batch = self._without_ahead(batch)
        timed = self.without_nulls(batch)
        times = times_of(timed.column(self._column), self._column)
        # also for a row without a time: the value is a promise about other rows
        if self._punctuation is not None:
            promised = batch.column(self._punctuation)
            newest = pc.max(promised.cast(pa.timestamp("us", promised.type.tz)).cast(pa.int64())).as_py()
            self.splits.saw(*self.rows_of, UNKNOWN if newest is None else newest)
        elif len(times):
            self.splits.saw(*self.rows_of, behind(int(times.max()), self._lateness))
        return [timed]

    def _without_ahead(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to pass on. Raises UserFault if on_ahead="error" and a row is too far ahead."""
        # The clock is the recorded time of the step, so a replay excludes the same rows.
        if self._max_ahead_us is None or self.now_us is None:
            return batch
        name = self._punctuation or self._column
        column = batch.column(name)
        unit = column.type.unit
        limit = (self.now_us + self._max_ahead_us) // _TICKS[unit]
        times = column.cast(pa.int64())
        if times.null_count == len(times) or pc.max(times).as_py() <= limit:
            return batch
        ahead = pc.fill_null(pc.greater(times, limit), fill_value=False)
        rows = ahead.true_count
        if self._on_ahead == "error":
            row = ahead.index(True).as_py()
            now = np.datetime64(self.now_us, "us")
            raise UserFault(
                f"{name!r} is {np.datetime64(times[row].as_py(), unit)}, which is more than"
                f" max_ahead={timedelta(microseconds=self._max_ahead_us)} ahead of the clock, {now} UTC, in"
                f" {rows} of {len(batch)} rows: every row before it would be late",
                row=row,
                remedy=_INSTEAD_AHEAD,
            )
        self._ahead_rows.rows += rows
        if self._on_ahead == "side":
            self._ahead.append(batch.filter(ahead))
        return batch.filter(pc.invert(ahead))

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        if port != AHEAD_PORT:
            return super().take_side_output(port)
        ahead, self._ahead = self._ahead, []
        return ahead

    def lost_on(self, port: str) -> dict[str, int]:
        return self._lost_ahead() if port == AHEAD_PORT else super().lost_on(port)

    def counters(self) -> dict[str, int]:
        return {**super().counters(), **(self._lost_ahead() if self._on_ahead == "drop" else {})}

    def _lost_ahead(self) -> dict[str, int]:
        return {_LOST_AHEAD: self._ahead_rows.rows} if self._ahead_rows.rows else {}

    def passes_on(self, watermark: Watermark) -> Watermark:
        """Return the output watermark for the minimum over the splits. It never goes back."""
        if is_time(watermark):
            self._state.reach(watermark, 0)
        return self._state.watermarks[0] if is_time(watermark) or watermark == UNKNOWN else watermark

    def forbid_late_rows(self) -> None:
        self.splits.empty_holds = True  # the first row of a split that held nothing back may be late

    def tables(self) -> dict[str, StateTable]:
        return {**super().tables(), "~ahead": self._ahead_rows, "~time": self._state}

    @property
    def watermark(self) -> Watermark:
        """The newest watermark of the output."""
        return self._state.watermarks[0]

    def remember(self, step: int) -> None:
        """Record the watermark at the end of this step."""
        super().remember(step)
        self._ahead_rows.by_step.remember(step, self._ahead_rows.rows)
        self._state.by_step.remember(step, self._state.watermarks[0])

    def forget(self, step: int) -> None:
        """Discard the steps before this one; no later call refers to them."""
        super().forget(step)
        self._ahead_rows.by_step.forget(step)
        self._state.by_step.forget(step)

    def select_step(self, step: int) -> None:
        """Select the step that the next checkpoint describes."""
        super().select_step(step)
        self._ahead_rows.by_step.select(step)
        self._state.by_step.select(step)


class _RememberedWatermark(WatermarkTable):
    def __init__(self) -> None:
        super().__init__(1)
        self.by_step = StepValues()

    def checkpoint(self) -> pa.RecordBatch:
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        return self.block({0: self.by_step.selected(self.watermarks[0])})


LATE: Final = "late"
LATE_RIGHT: Final = "late_right"
LATE_PORTS: Final = {LATE: 0, LATE_RIGHT: 1}
"""Side output of late rows -> the index of their input."""


class LateTable(StateTable):
    """For each input, the number of late rows since the region started and their maximum delay."""

    _schema = block_schema(
        pa.schema([("input", pa.int64())]), pa.schema([("rows", pa.int64()), ("behind_us", pa.int64())])
    )

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.behind_us: Counter[int] = Counter()
        self._changed: set[int] = set()
        self._gathered = GatheredParts()

    def add(self, index: int, rows: int, behind_us: int) -> None:
        """Count `rows` late rows of this input, at most `behind_us` microseconds behind the watermark."""
        self.rows[index] += rows
        self.behind_us[index] = max(self.behind_us[index], behind_us)
        self._changed.add(index)

    def checkpoint(self) -> pa.RecordBatch:
        changed, self._changed = sorted(self._changed), set()
        return self._block(changed)

    def snapshot(self) -> pa.RecordBatch:
        return self._block(sorted(self.rows))

    def _block(self, inputs: list[int]) -> pa.RecordBatch:
        keys = pa.array(inputs, pa.int64())
        values = [
            pa.array([counts[one] for one in inputs], pa.int64()) for counts in (self.rows, self.behind_us)
        ]
        return make_block(self._schema, [keys], hash_keys([keys]), values)

    def restore(self, block: pa.RecordBatch) -> None:
        for row in block.to_pylist():
            self.rows[row["input"]], self.behind_us[row["input"]] = row["rows"], row["behind_us"]

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        del share
        if part.stays:
            self._gathered.add(block, part)

    def parts_restored(self, share: Share) -> None:
        for _, blocks in self._gathered.take(share.parts):
            newest = {row["input"]: row for block in blocks for row in block.to_pylist()}
            for index, row in newest.items():
                self.rows[index] += row["rows"]
                self.behind_us[index] = max(self.behind_us[index], row["behind_us"])
                self._changed.add(index)


class TimedSpec(OperatorSpec):
    """An operator with one input that waits for event time. Late rows go to its side output `late`."""

    @property
    def needs_time(self) -> bool:
        return True

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[0]}


class TimedOperator(Operator, ABC):
    """An operator with state tables that waits for event time on each of its inputs. Late rows, whose time is
    not above the watermark of their input, go unchanged to the side output "late".
    """

    at_checkpoint: ClassVar[AtCheckpoint] = "tables"

    def __init__(self, columns: pa.Schema, *, inputs: int = 1) -> None:
        """`columns` are those of the late rows."""
        self._columns = columns
        self._time = WatermarkTable(inputs)
        self._late: list[pa.RecordBatch] = []
        self._lateness = LateTable()
        self._forbids_late_rows = False

    @property
    def late_rows(self) -> int:
        """The number of late rows of all inputs since the region started."""
        return self._lateness.rows.total()

    def watermark(self, index: int = 0) -> Watermark:
        """Return the watermark at the end of the previous step."""
        return self._time.watermarks[index]

    def forbid_late_rows(self) -> None:
        self._forbids_late_rows = True

    def check_times(self, times: npt.NDArray[np.int64], index: int = 0) -> None:
        """Raise UserFault for a time not above the watermark of its input, where that is forbidden."""
        # For all rows: one at or below the watermark may also belong to windows that are open.
        if self._forbids_late_rows and len(times) and times.min() <= self.watermark(index):
            raise UserFault(
                f"a row has time {int(times.min())}, and the watermark is {self.watermark(index)}, in"
                " microseconds since 1970: another replica, whose watermark was behind, may have counted it",
                row=int(times.argmin()),
                remedy="correct the function above it that sets the time, or the watermarks of its source",
            )

    def in_time(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64], index: int = 0
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the rows that are not late, and their times. The late rows go to the side output."""
        self.check_times(times, index)
        late = times <= self.watermark(index)
        if not late.any():
            return batch, times
        self.put_late(batch, np.flatnonzero(late), times)
        return batch.take(pa.array(np.flatnonzero(~late))), times[~late]

    def put_late(self, batch: pa.RecordBatch, rows: Slots, times: npt.NDArray[np.int64]) -> None:
        """Put these rows on the side output of late rows. `times` covers all rows of the batch."""
        self.count_late(0, times[rows])
        self._late.append(batch.select(self._columns.names).take(pa.array(rows)))

    def count_late(self, index: int, times: npt.NDArray[np.int64]) -> None:
        """Count late rows with these times on an input."""
        self._lateness.add(index, len(times), max(0, self.watermark(index) - int(times.min())))

    def lost_on(self, port: str) -> dict[str, int]:
        index = LATE_PORTS.get(port, -1)
        rows = self._lateness.rows[index]
        return {"late_rows_dropped": rows, "late_by_us_max": self._lateness.behind_us[index]} if rows else {}

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        assert port == LATE
        late, self._late = self._late, []
        return late

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        return self.time_moved(index) if self._time.reach(watermark, index) else ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        """Handle an advance of the watermark of an input. Not needed if `on_punctuation` is overridden."""
        raise NotImplementedError

    @abstractmethod
    def own_tables(self) -> Mapping[str, StateTable]:
        """Return the state tables except those of the watermarks and late rows."""

    def tables(self) -> Mapping[str, StateTable]:
        return {**self.own_tables(), "~time": self._time, "~late": self._lateness}

"""event_time: says what time the rows of a stream have, and how far it is: from here on windows can close.

Rules of this file: rows to watermarks of splits; rows go on as they are.

The watermark of a split (punctuation, replication-transparency IV-A) is either promised by the user, that no
row is more than `lateness` behind the largest time read before from its split, or comes in the rows
themselves, in a column that is null or says: all later rows of the split have larger times. That of the
output is the least over the splits that count (`core/event_time.py`), and moves at the end of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint.chains.state_blocks import block_schema, make_block
from checkpoint.key_hash import hash_keys
from dataflow.core.event_time import UNKNOWN, SplitWatermarks, Watermark, behind, further, is_time
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import OperatorContext, OperatorSpec, StateTable, UserFault
from dataflow.operators.nulls import NullRule, OnNullTime, check_choice, null_side_outputs
from dataflow.schema import type_text

_ONE: Final = timedelta(microseconds=1)
_INSTEAD: Final = (
    "write event_time(..., on_null='drop') or 'side' to leave such rows out, or give them a time before"
)


def micros_of(duration: timedelta, what: str) -> int:
    """A duration as microseconds. Raises SchemaError for something else, or one below 0."""
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise SchemaError(
            f"{what} is a timedelta of 0 or more, not {duration!r}; write timedelta(seconds=10)"
        )
    return duration // _ONE


def check_time_column(column: str, columns: pa.Schema) -> None:
    """Raises SchemaError if it is no timestamp of these columns."""
    if column not in columns.names:
        raise SchemaError(f"time column {column!r} is not there; the columns are {', '.join(columns.names)}")
    kind = columns.field(column).type
    if not pa.types.is_timestamp(kind) or kind.unit == "ns":
        raise SchemaError(
            f"time column {column!r} is a timestamp of microseconds or coarser, not {type_text(kind)};"
            " map it before"
        )


def times_of(column: pa.Array, name: str) -> npt.NDArray[np.int64]:
    """A timestamp column as microseconds. Raises UserFault for a null: `event_time` has let none through, so
    this is another column, or a function made it null after that.
    """
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UserFault(
            f"time column {name!r} is null in {column.null_count} of {len(column)} rows",
            row=row,
            remedy="filter such rows or give them a time before; event_time(..., on_null=) looks at its own"
            " column alone",
        )
    times: npt.NDArray[np.int64] = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
    return times


@dataclass(frozen=True, slots=True)
class EventTimeSpec(OperatorSpec):
    """Which column is the time, and where marks come from: `lateness`, or the column `punctuation`."""

    kind: ClassVar[OperatorKind] = OperatorKind.EVENT_TIME
    column: str
    lateness: timedelta | None
    punctuation: str | None
    idle_after: timedelta | None = None
    on_null: OnNullTime = "error"

    def __post_init__(self) -> None:
        check_choice(self.on_null, get_args(OnNullTime))
        if (self.lateness is None) == (self.punctuation is None):
            raise SchemaError(
                "event time moves by lateness=timedelta(...), how far rows may be behind others, or by"
                " punctuation='column', which says it; give one of them"
            )
        if self.lateness is not None:
            micros_of(self.lateness, "lateness")
        if self.idle_after is not None and not micros_of(self.idle_after, "idle_after"):
            raise SchemaError("idle_after is a timedelta above 0: shorter than that no split can be silent")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        for name in (self.column, self.punctuation):
            if name is not None:
                check_time_column(name, inputs[0])
        return inputs[0]

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return null_side_outputs(self.on_null, inputs[0])

    def open(self, context: OperatorContext) -> "EventTimeOperator":
        del context
        return EventTimeOperator(self)


class WatermarkTable(StateTable):
    """One mark for each input of an operator, as state. A mark that was reached stays."""

    _schema = block_schema(pa.schema([("input", pa.int64())]), pa.schema([("mark", pa.int64())]))

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self.reset()

    def reset(self) -> None:
        self.watermarks: list[Watermark] = [UNKNOWN] * self._inputs
        self._stored: list[Watermark] = list(self.watermarks)

    def reach(self, watermark: Watermark, index: int) -> bool:
        """Whether it is further than before."""
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
        """Input -> mark, as a block."""
        keys = pa.array(list(watermarks), pa.int64())
        return make_block(
            cls._schema, [keys], hash_keys([keys]), [pa.array(list(watermarks.values()), pa.int64())]
        )

    def restore(self, block: pa.RecordBatch) -> None:
        for row in block.to_pylist():
            self.watermarks[row["input"]] = row["mark"]
        self._stored = list(self.watermarks)


class EventTimeOperator(NullRule):
    """Its mark is state. It runs in stage 0, ahead of the checkpoint, so it remembers the mark of each step.
    The watermarks of splits are stored with the positions of the splits (`circuit_time.py`).
    """

    def __init__(self, spec: EventTimeSpec) -> None:
        super().__init__("time column", spec.on_null, (spec.column,), _INSTEAD)
        self._column = spec.column
        self._punctuation = spec.punctuation
        self._lateness = 0 if spec.lateness is None else micros_of(spec.lateness, "lateness")
        self._state = _RememberedWatermark()
        self.splits = SplitWatermarks()
        self.idle_after_s = None if spec.idle_after is None else spec.idle_after.total_seconds()
        self.rows_of = ("", "")
        """Source and split of the rows that `process` is given next."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        timed = self.without_nulls(batch)
        times = times_of(timed.column(self._column), self._column)
        if self._punctuation is not None:  # also of a row without a time: it is a promise about the others
            said = batch.column(self._punctuation)
            newest = pc.max(said.cast(pa.timestamp("us", said.type.tz)).cast(pa.int64())).as_py()
            if newest is not None:
                self.splits.saw(*self.rows_of, newest)
        elif len(times):
            self.splits.saw(*self.rows_of, behind(int(times.max()), self._lateness))
        return [timed]

    def passes_on(self, watermark: Watermark) -> Watermark:
        """`watermark`: the least over the splits. What was promised before stays promised."""
        if is_time(watermark):
            self._state.reach(watermark, 0)
        return self._state.watermarks[0] if is_time(watermark) or watermark == UNKNOWN else watermark

    def tables(self) -> dict[str, StateTable]:
        return {**super().tables(), "~time": self._state}

    def reset(self) -> None:
        super().reset()
        self._state.reset()
        self.splits = SplitWatermarks()

    @property
    def watermark(self) -> Watermark:
        """What was promised so far."""
        return self._state.watermarks[0]

    def remember(self, step: int) -> None:
        """The step is over here."""
        super().remember(step)
        self._state.of_step[step] = self._state.watermarks[0]

    def forget(self, step: int) -> None:
        """Nobody asks for steps before this one any more."""
        super().forget(step)
        for old in [one for one in self._state.of_step if one < step]:
            del self._state.of_step[old]

    def look_at(self, step: int) -> None:
        """The next checkpoint is that of this step."""
        super().look_at(step)
        self._state.looked_at = step


class _RememberedWatermark(WatermarkTable):
    def __init__(self) -> None:
        super().__init__(1)

    def reset(self) -> None:
        super().reset()
        self.of_step: dict[int, Watermark] = {}
        self.looked_at = 0

    def checkpoint(self) -> pa.RecordBatch:
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        return self.block({0: self.of_step.get(self.looked_at, self.watermarks[0])})


__all__ = [
    "EventTimeOperator",
    "EventTimeSpec",
    "WatermarkTable",
    "check_time_column",
    "micros_of",
    "times_of",
]

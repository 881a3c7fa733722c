"""The common part of operators that wait for event time: their watermarks, and the rows that arrive late.

The number of late rows is state: a row that was dropped before a checkpoint is not read again after a crash,
so the region must remember that it was dropped.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import block_schema, make_block
from checkpoint.key_hash import hash_keys
from dataflow.core.event_time import Watermark
from dataflow.errors import UserFault
from dataflow.operators.base import Operator, OperatorSpec, StateTable
from dataflow.operators.event_time import WatermarkTable
from dataflow.state.columns import Slots
from dataflow.state.moving import GatheredParts, Share

LATE: Final = "late"
LATE_RIGHT: Final = "late_right"
LATE_PORTS: Final = {LATE: 0, LATE_RIGHT: 1}
"""Side output of late rows -> the index of their input."""


class LateTable(StateTable):
    """For each input, the number of late rows since the region started and their maximum delay behind the
    watermark.
    """

    _schema = block_schema(
        pa.schema([("input", pa.int64())]), pa.schema([("rows", pa.int64()), ("behind_us", pa.int64())])
    )

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.behind_us: Counter[int] = Counter()
        self._changed: set[int] = set()
        self._gathered = GatheredParts()

    def add(self, index: int, rows: int, behind_us: int) -> None:
        """Count `rows` more late rows of this input, at most `behind_us` microseconds behind the
        watermark.
        """
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

    needs_time: ClassVar[bool] = True

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[0]}


class TimedOperator(Operator, ABC):
    """An operator with state tables that waits for event time on each of its inputs.

    A row is late if its time is not above the watermark of its input. Late rows go unchanged to the side
    output "late".
    """

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
        """Raise UserFault for a time that is not above the watermark of its input, where these are forbidden.

        Called for all rows, because a row at or below the watermark may also belong to windows that are open.
        """
        if self._forbids_late_rows and len(times) and times.min() <= self.watermark(index):
            raise UserFault(
                f"a row has time {int(times.min())}, and the watermark is {self.watermark(index)}, in"
                " microseconds: another replica, whose watermark was behind, may have counted this row",
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

"""What operators that wait for event time share: the mark they reached, and the rows that came behind it.

Rules of this file: marks and late rows; what waits is the operator's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.columns import Slots
from dataflow.core.event_time import Mark
from dataflow.operators.base import Operator, StateTable
from dataflow.operators.event_time import MarkTable

LATE: Final = "late"


class TimedOperator(Operator, ABC):
    """An operator with state tables that waits for event time on each of its inputs. A row is late if its
    time is not above the mark of its input; late rows go to the side output "late", as they came.
    """

    def __init__(self, columns: pa.Schema, *, inputs: int = 1) -> None:
        """`columns` of the late rows."""
        self._columns = columns
        self._time = MarkTable(inputs)
        self._late: list[pa.RecordBatch] = []
        self.late_rows = 0

    def mark(self, index: int = 0) -> Mark:
        """How far event time was at the end of the last step."""
        return self._time.marks[index]

    def in_time(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64], index: int = 0
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """The rows that are not late, and their times; the others are put aside."""
        late = times <= self.mark(index)
        if not late.any():
            return batch, times
        self.put_late(batch, np.flatnonzero(late))
        return batch.take(pa.array(np.flatnonzero(~late))), times[~late]

    def put_late(self, batch: pa.RecordBatch, rows: Slots) -> None:
        """These rows are late."""
        self.late_rows += len(rows)
        self._late.append(batch.select(self._columns.names).take(pa.array(rows)))

    def take_side(self, port: str) -> Sequence[pa.RecordBatch]:
        assert port == LATE
        late, self._late = self._late, []
        return late

    def on_punctuation(self, mark: Mark, index: int = 0) -> Sequence[pa.RecordBatch]:
        return self.time_moved(index) if self._time.reach(mark, index) else ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        """The mark of an input is further than before; not needed where `on_punctuation` is taken over."""
        raise NotImplementedError

    @abstractmethod
    def own_tables(self) -> Mapping[str, StateTable]:
        """The state, without the marks."""

    def tables(self) -> Mapping[str, StateTable]:
        return {**self.own_tables(), "~time": self._time}

    def reset(self) -> None:
        self._time.reset()
        self._late = []

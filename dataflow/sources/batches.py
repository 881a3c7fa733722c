"""The source that the micro-batches of a Spark query feed: this worker's share of one batch at a time.

The link thread holds the shares that tasks have sent, and hands over the one that the coordinator opens.
Nothing of a share is recorded: until the checkpoint of the batch is committed, its task keeps the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

import pyarrow as pa

from checkpoint import SplitPosition
from dataflow.core.event_time import SourceTime
from dataflow.core.regions import ReplicaProblem
from dataflow.operators.base import OperatorContext
from dataflow.sources import base

SPLIT: Final = "batch"
"""The one split of the source. It has no position: a batch is whole or not there."""


LOCAL_RECOVERY_OF_BATCHES: Final = (
    'recovery="local" replaces one worker, and its share of the batch that a query has sent is gone with it;'
    ' use recovery="global"'
)


class ShareRows(Protocol):
    """The rows of a share for one source. They may be more than the memory holds."""

    def __bool__(self) -> bool: ...

    def take(self, schema: pa.Schema) -> tuple[pa.RecordBatch, int]:
        """Remove and return the next rows, and their size when they were sent. Raises UserFault if the disk
        fails, ValueError for rows of another schema.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchSource(base.SourceSpec):
    """Rows of the micro-batches of one query (`spark_integration.through`). schema: their columns; channel:
    the number of this input in a share; settings: those of the session by which the query computes the rows,
    which must not change while the region has state that was made of them.
    """

    times_rise: ClassVar[bool] = False
    columns_stay: ClassVar[Literal["all", "old", "none"]] = "none"
    schema: pa.Schema
    channel: int = 0
    settings: str = ""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def open(self, context: OperatorContext) -> "BatchReader":
        del context
        return BatchReader(self.schema)

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        del positions, worker, workers
        return {}

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "reads the micro-batches of a query, which runs at one site",
            "write the rows into an input handle, and use InputSource",
        )

    def detail(self) -> str:
        return f"batches with {self.settings}" if self.settings else "batches"


class BatchReader(base.SourceReader):
    """The rows of the share that is open."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._number = -1
        self._rows: ShareRows | tuple[()] = ()
        self._read = 0

    def begin(self, number: int, rows: ShareRows) -> None:
        """Begin with the share of a batch."""
        assert not self.has_input, "a batch is opened when the one before is committed"
        self._number, self._read, self._rows = number, 0, rows

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        del positions
        self._rows, self._number = (), -1

    @property
    def has_input(self) -> bool:
        return bool(self._rows)

    @property
    def exhausted(self) -> bool:
        return False

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        found: list[pa.RecordBatch] = []
        size = 0
        # No more is decoded than a step takes.
        while self._rows and size < bytes_max:
            batch, sent_bytes = self._rows.take(self._schema)
            found.append(batch)
            size += sent_bytes
        if not found:
            return None
        (batch,) = pa.Table.from_batches(found, self._schema).combine_chunks().to_batches()
        begin, self._read = self._read, self._read + batch.num_rows
        return base.SourceBatch(batch, (base.BatchPiece(SPLIT, begin, self._read, 0),), max(size, 1))

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        raise AssertionError(f"no step with rows of a batch is recorded, and {division} was")

    def take_division(self) -> base.SourceDivision:
        return {}

    def positions(self) -> base.Positions:
        return {}

    def time_now(self) -> SourceTime:
        return SourceTime()

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        begin = source.pieces[0].begin
        which = f"rows {begin} to {source.pieces[0].end}" if row is None else f"row {begin + row}"
        return f"{which} of this worker's share of batch {self._number}"

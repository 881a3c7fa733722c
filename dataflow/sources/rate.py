"""Generates rows at a constant rate, to try or to measure a graph.

This file computes which rows are due by a clock. Each worker is a split that generates every N-th number, so
that together the workers generate all of them. A position is the number of generated rows. The digest stored
with it is not a digest of content, but the time of the first row in microseconds since 1970: number and time
of each row follow from it, so that a replay generates the same rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np
import pyarrow as pa

from checkpoint import SplitPosition
from dataflow.core.event_time import SourceTime
from dataflow.errors import InputChangedError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sources import base

RATE_SCHEMA: Final = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
_row_bytes: Final = 16
_us: Final = 1_000_000
_wait_s_min: Final = 0.02
"""Minimum wait in seconds; rows due within it are generated together, because a step per row would be mostly
overhead.
"""


@dataclass(frozen=True, slots=True, init=False)
class RateSource(base.SourceSpec):
    """Generates `rows_per_second` rows in total with columns `timestamp timestamp, value bigint`. Row n has
    the time of its worker's first row plus n / rows_per_second seconds. After an outage of the region, all
    rows that became due in the meantime are generated at once.

        RateSource(1000, rows=60_000)

    rows: the total number of rows; None: unlimited. Raises SchemaError.
    """

    rows_per_second: float
    rows: int | None

    def __init__(self, rows_per_second: float, *, rows: int | None = None) -> None:
        if not (isfinite(rows_per_second) and rows_per_second > 0):
            raise SchemaError(f"rows_per_second must be a number above 0, not {rows_per_second!r}")
        if rows is not None and rows < 0:
            raise SchemaError(f"rows must be a number of 0 or more, or None for no limit, not {rows!r}")
        object.__setattr__(self, "rows_per_second", float(rows_per_second))
        object.__setattr__(self, "rows", rows)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return RATE_SCHEMA

    def open(self, context: OperatorContext) -> "RateReader":
        return RateReader(self, context.worker, context.workers)

    def detail(self) -> str:
        return f"{self.rows_per_second:g} rows a second"


def wall_us() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000


class RateReader(base.SourceReader):
    """Generates a worker's share. Invariant: `_generated` rows were generated, the first at `_start` (0:
    not known yet).
    """

    def __init__(
        self, spec: RateSource, worker: int, workers: int, clock: Callable[[], int] = wall_us
    ) -> None:
        self._spec = spec
        self._worker, self._workers = worker, workers
        self._split = f"w{worker:04d}"
        self._clock = clock
        self._gap_us = workers * _us / spec.rows_per_second
        left = None if spec.rows is None else max(0, spec.rows - worker)
        self._rows = None if left is None else -(-left // workers)
        self._clear()

    def _clear(self) -> None:
        self._start = self._generated = self._begin = 0

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        if at := positions.get(self._split):
            self._generated = self._begin = at.position
            self._start = at.digest

    def positions(self) -> base.Positions:
        return {self._split: SplitPosition(self._generated, self._start)} if self._start else {}

    @property
    def exhausted(self) -> bool:
        return self._rows is not None and self._generated >= self._rows

    def time_now(self) -> SourceTime:
        return SourceTime(self.exhausted, behind=(self._split,))

    @property
    def has_input(self) -> bool:
        return self._due() > self._generated

    @property
    def wakes_in(self) -> float | None:
        if self.exhausted:
            return None
        due_us = self._start + self._generated * self._gap_us - self._clock()
        return max(due_us / _us, _wait_s_min)

    def _due(self) -> int:
        """Return the number of rows that are due by now."""
        since = self._clock() - self._start if self._start else 0
        due = max(0, int(since // self._gap_us) + 1)
        return due if self._rows is None else min(due, self._rows)

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        count = min(self._due() - self._generated, max(1, bytes_max // _row_bytes))
        if count <= 0:
            return None
        self._start = self._start or self._clock()
        return self._take(count)

    def _take(self, count: int) -> base.SourceBatch:
        begin, self._generated = self._generated, self._generated + count
        index = np.arange(begin, self._generated)
        value = index * self._workers + self._worker
        at = self._start + (index * self._gap_us).astype(np.int64)
        columns = [pa.array(at).cast(RATE_SCHEMA.field(0).type), pa.array(value)]
        batch = pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)
        return base.SourceBatch(
            batch, (base.BatchPiece(self._split, begin, self._generated, 0),), count * _row_bytes
        )

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        part = division.get(self._split)
        if part is None:
            return []
        if part.begin != self._generated or self._start not in (0, part.digest):
            found = f"row {self._generated} of a line that began at {self._start}"
            expected = f"row {part.begin} of one that began at {part.digest}"
            raise InputChangedError(self._split, part.begin, expected, found)
        self._start = part.digest
        return [self._take(part.end - part.begin)]

    def take_division(self) -> base.SourceDivision:
        begin, self._begin = self._begin, self._generated
        if begin == self._generated:
            return {}
        return {self._split: base.SplitDivision(begin, self._generated, self._start)}

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        (piece,) = source.pieces
        if row is None:
            return f"rows {piece.begin} to {piece.end} of worker {self._worker}"
        return f"row {piece.begin + row} of worker {self._worker}"

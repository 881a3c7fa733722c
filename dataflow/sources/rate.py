"""Generates rows at a constant rate, to try or to measure a graph.

Each of the N workers with which a region began is a split, a *lane*, that generates every N-th number. A
position is the number of generated rows; the digest with it is the time of the first row in microseconds
since 1970, from which number and time of each row follow.
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
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.sources import base

_NO_LANE: Final = "/"
"""The split of a worker that has no lane since the number of workers changed."""
RATE_SCHEMA: Final = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
_row_bytes: Final = 16
_us: Final = 1_000_000
_wait_s_min: Final = 0.02
"""Rows due within it are generated together: a step per row would be mostly overhead."""


@dataclass(frozen=True, slots=True, init=False)
class RateSource(base.SourceSpec):
    """Generates `rows_per_second` rows in total with columns `timestamp timestamp, value bigint`. Row n has
    the time of its worker's first row plus n / rows_per_second seconds. After an outage, all rows that became
    due are generated at once. rows: the total number of rows; None: unlimited. Raises SchemaError.

        RateSource(1000, rows=60_000)
    """

    rows_per_second: float
    rows: int | None

    def __init__(self, rows_per_second: float, *, rows: int | None = None) -> None:
        if not (isfinite(rows_per_second) and rows_per_second > 0):
            raise SchemaError(f"rows_per_second must be a number above 0, not {rows_per_second!r}")
        if rows is not None and rows < 0:
            raise SchemaError(f"rows must be a number of 0 or more, or None for no limit, not {rows!r}")
        set_fields(self, rows_per_second=float(rows_per_second), rows=rows)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return RATE_SCHEMA

    def open(self, context: OperatorContext) -> "RateReader":
        return RateReader(self, context.worker, context.workers)

    def redeal(self, positions: Sequence[base.Positions], worker: int, workers: int) -> base.Positions:
        stored = base.own_positions(positions, lambda split: split != _NO_LANE)
        places = {split: _place(split, len(positions)) for split in stored}
        lanes = {first: stored[split] for split, (first, _) in places.items()}
        every = next((every for _, every in places.values()), len(positions))
        own = {
            f"w{lane:04d}/{every}": lanes.get(lane, SplitPosition(0))
            for lane in range(worker, every, workers)
        }
        return own or {_NO_LANE: SplitPosition(0)}

    def detail(self) -> str:
        return f"RateSource {self.rows_per_second:g} rows a second"


def wall_us() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000


def _place(split: str, workers: int) -> tuple[int, int]:
    """Return the first number and the step of a lane: wNNNN of `workers`, or wNNNN/EVERY."""
    first, _, every = split[1:].partition("/")
    return int(first), int(every or workers)


@dataclass(slots=True)
class _Lane:
    """Every `every`-th number from `first` on, one in `gap_us` microseconds, `rows` in all (None: no limit).
    `generated` rows exist, the first at `start` (0: not known yet). `begin`: where the step began.
    """

    split: str
    first: int
    every: int
    gap_us: float
    rows: int | None
    start: int = 0
    generated: int = 0
    begin: int = 0

    @property
    def is_over(self) -> bool:
        return self.rows is not None and self.generated >= self.rows

    def due(self, now: int) -> int:
        """Return the number of rows that are due and not generated."""
        since = now - self.start if self.start else 0
        due = max(0, int(since // self.gap_us) + 1)
        return (due if self.rows is None else min(due, self.rows)) - self.generated


class RateReader(base.SourceReader):
    """Generates the lanes of a worker: one, or after a change of the number of workers any number."""

    def __init__(
        self, spec: RateSource, worker: int, workers: int, clock: Callable[[], int] = wall_us
    ) -> None:
        self._spec = spec
        self._worker, self._workers = worker, workers
        self._clock = clock
        self._clear()

    def _lane(self, split: str) -> _Lane:
        first, every = _place(split, self._workers)
        left = None if self._spec.rows is None else max(0, self._spec.rows - first)
        rows = None if left is None else -(-left // every)
        return _Lane(split, first, every, every * _us / self._spec.rows_per_second, rows)

    def _clear(self) -> None:
        own = self._lane(f"w{self._worker:04d}")
        self._lanes = {own.split: own}
        self._dealt = False
        """Whether the lanes were dealt to another number of workers, so that positions name all of them."""

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        self._clear()
        self._dealt = any("/" in split for split in positions)
        if self._dealt:
            self._lanes = {split: self._lane(split) for split in positions if split != _NO_LANE}
        for split, lane in self._lanes.items():
            at = positions.get(split, SplitPosition(0))
            lane.start, lane.generated, lane.begin = at.digest, at.position, at.position

    def positions(self) -> base.Positions:
        begun = {split: lane for split, lane in self._lanes.items() if lane.start or self._dealt}
        found = {split: SplitPosition(lane.generated, lane.start) for split, lane in begun.items()}
        return found or ({_NO_LANE: SplitPosition(0)} if self._dealt else {})

    def _left(self) -> list[_Lane]:
        return [lane for lane in self._lanes.values() if not lane.is_over]

    @property
    def exhausted(self) -> bool:
        return not self._left()

    def time_now(self) -> SourceTime:
        left, now = self._left(), self._clock()
        due = {lane.split for lane in left if lane.due(now) > 0}
        return SourceTime(
            not left, behind=due, caught_up=[lane.split for lane in left if lane.split not in due]
        )

    @property
    def has_input(self) -> bool:
        now = self._clock()
        return any(lane.due(now) > 0 for lane in self._left())

    @property
    def wakes_in(self) -> float | None:
        now = self._clock()
        due_us = [lane.start + lane.generated * lane.gap_us - now for lane in self._left()]
        return max(min(due_us) / _us, _wait_s_min) if due_us else None

    @property
    def backlog_bytes(self) -> int:
        now = self._clock()
        return _row_bytes * sum(max(0, lane.due(now)) for lane in self._left())

    def read(self, bytes_max: int) -> base.SourceBatch | None:
        now = self._clock()
        due, lane = max(
            ((lane.due(now), lane) for lane in self._left()), key=lambda one: one[0], default=(0, None)
        )
        if lane is None or due <= 0:
            return None
        lane.start = lane.start or now
        return self._take(lane, min(due, max(1, bytes_max // _row_bytes)))

    def _take(self, lane: _Lane, count: int) -> base.SourceBatch:
        begin, lane.generated = lane.generated, lane.generated + count
        index = np.arange(begin, lane.generated)
        value = index * lane.every + lane.first
        at = lane.start + (index * lane.gap_us).astype(np.int64)
        columns = [pa.array(at).cast(RATE_SCHEMA.field(0).type), pa.array(value)]
        batch = pa.RecordBatch.from_arrays(columns, schema=RATE_SCHEMA)
        return base.SourceBatch(
            batch, (base.BatchPiece(lane.split, begin, lane.generated, 0),), count * _row_bytes
        )

    def replay(self, division: base.SourceDivision) -> list[base.SourceBatch]:
        return [self._replay(self._lanes[split], part) for split, part in division.items()]

    def _replay(self, lane: _Lane, part: base.SplitDivision) -> base.SourceBatch:
        if part.begin != lane.generated or lane.start not in (0, part.digest):
            found = f"row {lane.generated} of a line that began at {lane.start}"
            expected = f"row {part.begin} of one that began at {part.digest}"
            raise InputChangedError(lane.split, part.begin, expected, found)
        lane.start = part.digest
        return self._take(lane, part.end - part.begin)

    def take_division(self) -> base.SourceDivision:
        division = {}
        for split, lane in self._lanes.items():
            if lane.begin != lane.generated:
                division[split] = base.SplitDivision(lane.begin, lane.generated, lane.start)
            lane.begin = lane.generated
        return division

    def describe(self, source: base.SourceBatch, row: int | None) -> str:
        (piece,) = source.pieces
        if row is None:
            return f"rows {piece.begin} to {piece.end} of worker {self._worker}"
        return f"row {piece.begin + row} of worker {self._worker}"

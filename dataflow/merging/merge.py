"""The rows of several streams merged into one. What the streams give is passed on once, in batches with the
mark up to which they are complete.

This file joins the filter of duplicate rows (`core/duplicate_filter.py`), the comparison of replicas
(`core/replica_compare.py`) and a bounded queue. `replica_stream.py` reads the streams; the caller of `next`
takes the rows. It runs on one trio loop.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import trio

from checkpoint import Output
from checkpoint.key_hash import hash_rows
from dataflow import limits
from dataflow.core.duplicate_filter import BEFORE_ALL, DuplicateFilter, FilterState, Missing
from dataflow.core.event_time import END
from dataflow.core.replica_compare import Difference, ReplicaComparison
from dataflow.errors import ReplicasDifferError
from dataflow.operators.event_time import latest_times
from dataflow.schema import schema_text

logger = logging.getLogger("dos.dataflow")

StreamState: TypeAlias = Literal["connecting", "joining", "reading", "detached", "over"]
"""What the reader of a stream does: it reaches for the store, looks where to begin, reads, has given up
because of an error, or has read all.
"""
BUCKET_US: Final = 500_000
"""The width of a bucket of the filter: half of the time between two marks of an entry point."""


class MergedRows(NamedTuple):
    """Rows that were passed, and the mark after them: every later row has a later time.

    rows: None without rows.
    """

    rows: pa.Table | None
    mark: int


@dataclass(slots=True)
class StreamStatus:
    """What is known of one stream. mark: up to which time it is complete; BEFORE_ALL: not known.

    first: how many rows it gave before all others. whole: whether it has all rows that were not passed yet.
    ranks: of the rows that were looked at, how many it gave first, second, and so on. moved_at: when its mark
    has risen last, on the clock of the loop.
    """

    site: str
    state: StreamState = "connecting"
    reason: str = ""
    mark: int = BEFORE_ALL
    first: int = 0
    whole: bool = False
    ranks: tuple[int, ...] = ()
    moved_at: float | None = None

    def counters(self, now: float) -> dict[str, int]:
        """Return the status as numbers, for the counters of a source. now: on the clock of the loop."""
        moved = {} if self.moved_at is None else {"moved_ms_ago": round(1000 * (now - self.moved_at))}
        mark = {} if self.mark == BEFORE_ALL else {"mark_us": self.mark}
        ranks = {f"rank_{number}": rows for number, rows in enumerate(self.ranks, 1)}
        states = {"reading": self.state == "reading", "whole": self.whole}
        found = {"first": self.first, **states, **mark, **moved, **ranks}
        return {f"{self.site}.{name}": int(value) for name, value in found.items()}


class Merge:
    """The merge of one input. schema, time: the columns of the rows, and those with their time; of several,
    the later one counts. compare: 1 compares the rows of each second of event time, n of each n-th, 0 none.

    A row of one stream is taken after the other (`take`). If the streams differ, `next` raises
    ReplicasDifferError.
    """

    def __init__(
        self,
        sites: Collection[str],
        schema: pa.Schema,
        time: Sequence[str],
        *,
        state: FilterState | None = None,
        compare: int = 0,
    ) -> None:
        self._schema, self._time = schema, tuple(time)
        self._filter = DuplicateFilter(BUCKET_US, state)
        self._comparison = ReplicaComparison(compare)
        self.status = {site: StreamStatus(site) for site in sites}
        self._queued: list[pa.RecordBatch] = []
        self._queued_bytes = 0
        self._passed_mark = self.safe_mark = self._filter.mark
        """safe_mark: nothing up to there will be asked for again; streams acknowledge it."""
        self._error: ReplicasDifferError | None = None
        self._changed = trio.Event()
        self._room = trio.Event()

    # --- the streams ----------------------------------------------------------------------------------------

    @property
    def mark(self) -> int:
        """All rows up to this time were passed."""
        return self._filter.mark

    def join(self, site: str, logs: Collection[str], base: int) -> None:
        """Begin to read a stream, or begin anew; see `DuplicateFilter.join`."""
        self._filter.join(site, logs, base)
        self._comparison.join(site, base)
        self._note(site, "reading")

    def leave(self, site: str, state: StreamState, reason: str = "") -> None:
        """Read a stream no more, at least for now."""
        self._filter.leave(site)
        self._comparison.leave(site)
        self._note(site, state, reason)

    def _note(self, site: str, state: StreamState, reason: str = "") -> None:
        one = self.status[site]
        if (state, reason) != (one.state, one.reason):
            level = logging.WARNING if state == "detached" else logging.INFO
            logger.log(level, "stream from %s: %s%s", site, state, f": {reason}" if reason else "")
        one.state, one.reason = state, reason
        self._wake()

    def skips(self, output: Output) -> bool:
        """Whether no row of an output is needed: only its mark counts."""
        assert output.head.time, "the stream has checked it"
        return not output.rows or (output.head.time.high <= self.mark and not self._comparison.is_on)

    async def take(self, site: str, log: str, output: Output) -> None:
        """Take the output of a step of one log of a stream, when there is room.

        Raises ReplicasDifferError if its columns are others.
        """
        while self._queued_bytes > limits.merged_bytes_max:
            await self._room.wait()
        assert output.head.time, "the stream has checked it"
        if not self.skips(output):
            self._take_rows(site, output.data)
        self.set_mark(site, log, output.head.time.mark)

    def _take_rows(self, site: str, data: bytes) -> None:
        with pa.ipc.open_stream(data) as reader:
            found, batches = reader.schema, [*reader]
        if not found.equals(self._schema):
            raise ReplicasDifferError(
                f"the output at {site} has columns {schema_text(found)}, expected are"
                f" {schema_text(self._schema)}"
            )
        for batch in batches:
            self._take_batch(site, batch)

    def _take_batch(self, site: str, batch: pa.RecordBatch) -> None:
        times = latest_times(batch, self._time)
        digests = hash_rows(batch.columns)
        passes = self._filter.take(site, digests, times)
        if self._comparison.is_on:
            self._comparison.give(site, digests, times, lambda row: str(batch.slice(row, 1).to_pylist()[0]))
        self.status[site].first += int(np.count_nonzero(passes))
        if passes.any():
            rows = batch if passes.all() else batch.filter(pa.array(passes))
            self._queued.append(rows)
            self._queued_bytes += rows.nbytes
            self._wake()

    def set_mark(self, site: str, log: str, mark: int) -> None:
        """Take the mark of a log, after its rows."""
        if self._filter.set_mark(site, log, mark):
            self._wake()
        one = self.status[site]
        if (of_stream := self._filter.mark_of(site)) is not None and of_stream > one.mark:
            one.mark, one.moved_at = of_stream, trio.current_time()
            if (difference := self._comparison.set_mark(site, of_stream)) is not None:
                self._error = _differ(difference)
                self._wake()

    def observe(self) -> list[StreamStatus]:
        """Return the status of each stream."""
        ranks = self._filter.take_ranks()
        for site, one in self.status.items():
            one.whole = one.state == "reading" and self._filter.is_whole(site)
            one.ranks = _sums(one.ranks, ranks.get(site, ()))
        return [*self.status.values()]

    def missing(self) -> Missing | None:
        """Return the range of time of which no stream has all rows (F4); None if there is none."""
        return self._filter.missing()

    def accept_loss(self) -> Missing | None:
        """Go on without the rows that are missing, and return their range."""
        missing = self._filter.accept_loss()
        self._wake()
        return missing

    # --- who takes the rows ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all rows were taken, and none will follow."""
        return self._passed_mark == END and not self._queued

    def recorded(self, mark: int) -> None:
        """Note that everything up to `mark`, which `next` returned, is recorded."""
        self.safe_mark = mark

    async def next(self) -> MergedRows:
        """Wait for rows, or for a higher mark, and take all that there is. Raises ReplicasDifferError."""
        while not self._queued and self._filter.mark <= self._passed_mark:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        batches, self._queued, self._queued_bytes = self._queued, [], 0
        self._passed_mark = self._filter.mark
        self._room.set()
        self._room = trio.Event()
        return MergedRows(pa.Table.from_batches(batches) if batches else None, self._passed_mark)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _sums(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(sum(pair) for pair in zip_longest(one, other, fillvalue=0))


def _differ(found: Difference) -> ReplicasDifferError:
    when = np.datetime64(found.second, "s")
    return ReplicasDifferError(
        f"in the second {when} of event time, {found.having} has a row that {found.lacking} lacks:"
        f" {found.row}"
    )

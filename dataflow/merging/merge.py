"""The rows of several streams merged into one. What the streams give is passed on once, in batches with the
mark up to which they are complete.

This file joins the filter of duplicate rows (`core/duplicate_filter.py`), the comparison of replicas
(`core/replica_compare.py`) and a bounded queue. `replica_stream.py` reads the streams; the caller of `next`
takes the rows. It runs on one trio loop.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
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
from dataflow.errors import ReplicasDifferError, UserFault
from dataflow.merging.order import MergeOrder
from dataflow.operators.event_time import latest_times
from dataflow.schema import schema_text
from dos_protocol.errors import DosError

logger = logging.getLogger("dos.dataflow")

StreamState: TypeAlias = Literal["connecting", "joining", "reading", "detached"]
"""What the reader of a stream does: it reaches for the store, looks where to begin, reads, or has given up
because of an error.
"""
BUCKET_US: Final = 500_000
"""The width of a bucket of the filter: half of the time between two marks of an entry point."""


class StreamExcludedError(Exception):
    """The stream was excluded from the merge; its status has the reason."""


class MergedRows(NamedTuple):
    """Rows that were passed, and the mark after them: every later row has a later time.

    rows: None without rows.
    """

    rows: pa.Table | None
    mark: int


@dataclass(slots=True)
class StreamStatus:
    """What is known of one stream. mark: up to which time it is complete; BEFORE_ALL: not known.

    first: how many rows it gave before all others. bytes: how many bytes it gave. whole: whether it has all
    rows that were not passed yet.
    ranks: of the rows that were looked at, how many it gave first, second, and so on. moved_at: when its mark
    has risen last, on the clock of the loop.
    """

    site: str
    state: StreamState = "connecting"
    reason: str = ""
    mark: int = BEFORE_ALL
    first: int = 0
    bytes: int = 0
    whole: bool = False
    ranks: tuple[int, ...] = ()
    moved_at: float | None = None

    def counters(self, now: float) -> dict[str, int]:
        """Return the status as numbers, for the counters of a source. now: on the clock of the loop."""
        moved = {} if self.moved_at is None else {"moved_ms_ago": round(1000 * (now - self.moved_at))}
        mark = {} if self.mark == BEFORE_ALL else {"mark_us": self.mark}
        ranks = {f"rank_{number}": rows for number, rows in enumerate(self.ranks, 1)}
        states = {"reading": self.state == "reading", "whole": self.whole}
        found = {"first": self.first, "bytes": self.bytes, **states, **mark, **moved, **ranks}
        return {f"{self.site}.{name}": int(value) for name, value in found.items()}


class Merge:
    """The merge of one input. order: what is merged, and how. state: what was passed before.

    A row of one stream is taken after the other (`take`). waits_for_all: none before each stream has joined,
    or has a reason why it is not read, so that all that two of them give is compared. If the streams differ,
    `next` raises ReplicasDifferError; with on_difference="detach", only if no majority of them agrees.
    """

    def __init__(
        self,
        order: MergeOrder,
        *,
        state: FilterState | None = None,
        waits_for_all: bool = False,
    ) -> None:
        self._schema, self._time = order.schema, order.time
        self._accept_loss = order.on_missing == "accept"
        self._by_majority = order.on_difference == "detach"
        self._filter = DuplicateFilter(BUCKET_US, state)
        self._comparison = ReplicaComparison(order.compare, by_majority=self._by_majority)
        self.status = {place.site: StreamStatus(place.site) for place in order.places}
        self._waits_for_all = waits_for_all
        self._excluded: dict[str, DosError | UserFault] = {}
        self._graphs: dict[str, Mapping[str, str]] = {}
        self._unread: dict[str, set[str]] = {}
        """Site of a stream that is read -> its logs that were not read to their end yet since it joined."""
        self._queued: list[pa.RecordBatch] = []
        self._queued_bytes = 0
        self._passed_mark = self.safe_mark = self._filter.mark
        """safe_mark: nothing up to there will be asked for again; streams acknowledge it."""
        self.difference: ReplicasDifferError | None = None
        """What the replicas were found to differ in last; None: nothing."""
        self._error: DosError | UserFault | None = None
        self._changed = trio.Event()
        self._room = trio.Event()

    # --- the streams ----------------------------------------------------------------------------------------

    @property
    def mark(self) -> int:
        """All rows up to this time were passed."""
        return self._filter.mark

    def join(self, site: str, logs: Collection[str], base: int) -> None:
        """Begin to read a stream, or begin anew; see `DuplicateFilter.join`. Raises StreamExcludedError."""
        self._check(site)
        self._filter.join(site, logs, base)
        self._comparison.join(site, base)
        self._unread[site] = set(logs)
        self._note(site, "reading")

    def leave(self, site: str, state: StreamState, reason: str = "") -> None:
        """Read a stream no more, at least for now. Does nothing if it is excluded."""
        if site in self._excluded:
            return
        self._graphs.pop(site, None)
        self._unread.pop(site, None)
        self._filter.leave(site)
        self._comparison.leave(site)
        self._note(site, state, reason)

    def reached_end(self, site: str, log: str) -> None:
        """Note that a log was read up to its end, as it was when it was looked for."""
        if log in self._unread.get(site, ()):
            self._unread[site].remove(log)
            self._wake()

    async def wait_read(self, site: str) -> None:
        """Wait until all logs of a stream were read up to their ends since it joined."""
        while self._unread.get(site) != set():
            await self._changed.wait()

    def exclude(self, site: str, error: DosError | UserFault) -> None:
        """Read a stream no more, because it is not one of what is merged. Without any other stream, `next`
        raises the error.
        """
        self.leave(site, "detached", str(error))
        self._excluded[site] = error
        if len(self._excluded) == len(self.status):
            self.fail(error)

    def _check(self, site: str) -> None:
        if site in self._excluded:
            raise StreamExcludedError(site)

    def set_graph(self, site: str, operators: Mapping[str, str]) -> None:
        """Take operator -> description of the graph of a replica, from its manifest.

        Raises StreamExcludedError if it is excluded, also because of this graph.
        """
        self._check(site)
        if self._graphs.get(site) != operators:
            self._compare_graphs(site, operators)
            self._check(site)

    def _compare_graphs(self, site: str, operators: Mapping[str, str]) -> None:
        self._graphs[site] = operators
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for one in sorted(self._graphs):
            groups.setdefault(tuple(sorted(self._graphs[one].items())), []).append(one)
        if len(groups) < 2:
            return
        largest = max(groups.values(), key=len)
        others = [one for one in sorted(self._graphs) if one not in largest]
        candidates = len(self.status) - len(self._excluded)
        if self._by_majority and candidates > 2:
            if 2 * len(largest) > candidates:
                for other, error in [(other, self._other_graph(largest[0], other)) for other in others]:
                    self.difference = error
                    self.exclude(other, error)
                return
            if 2 * (len(largest) + candidates - len(self._graphs)) > candidates:
                return  # those that are not known yet decide
        self.difference = self._other_graph(largest[0], others[0])
        self.fail(self.difference)

    def _other_graph(self, site: str, other: str) -> ReplicasDifferError:
        one, two = self._graphs[site], self._graphs[other]
        names = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        lines = "; ".join(
            f"operator {name!r} is {one.get(name, 'not in the graph')} at {site}, and"
            f" {two.get(name, 'not in the graph')} at {other}"
            for name in names
        )
        return ReplicasDifferError(f"the replicas at {site} and {other} run different graphs: {lines}")

    def fail(self, error: DosError | UserFault) -> None:
        """Let `next` raise the error instead of returning further rows."""
        self._error = self._error or error
        self._wake()

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

        Raises ReplicasDifferError if its columns are others, StreamExcludedError.
        """
        while self._waits_for_all:
            self._waits_for_all = any(
                one.state != "reading" and not one.reason for one in self.status.values()
            )
            if self._waits_for_all:
                await self._changed.wait()
        while self._queued_bytes > limits.merged_bytes_max:
            await self._room.wait()
        self._check(site)
        assert output.head.time, "the stream has checked it"
        self.status[site].bytes += len(output.data)
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
        """Take the mark of a log, after its rows. Raises StreamExcludedError."""
        self._check(site)
        if self._filter.set_mark(site, log, mark):
            self._wake()
        one = self.status[site]
        if (of_stream := self._filter.mark_of(site)) is not None and of_stream > one.mark:
            one.mark, one.moved_at = of_stream, trio.current_time()
            if (difference := self._comparison.set_mark(site, of_stream)) is not None:
                self._difference(difference)

    def _difference(self, found: Difference) -> None:
        error = self.difference = _differ(found)
        if not found.minority:
            self.fail(error)
        for site in found.minority:
            self.exclude(site, error)

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

    def _go_on(self) -> None:
        """Go on without the rows that are missing, once it is known of every stream that it lacks them, or
        why it cannot be read.
        """
        known = all(one.reason or one.state not in ("connecting", "joining") for one in self.status.values())
        if known and (missing := self._filter.accept_loss()) is not None:
            logger.warning("rows from %d to %d are on no stream: accepted as lost", *missing)

    # --- who takes the rows ---------------------------------------------------------------------------------

    async def wait_caught_up(self) -> int:
        """Wait until each stream was read to the end that it had, or has a reason why it is not read, and at
        least one was read. Return the mark then. Raises as `next`.
        """
        while not self._is_caught_up():
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self.mark

    def _is_caught_up(self) -> bool:
        if self.mark == END:
            return True
        known = all(one.reason or self._unread.get(site) == set() for site, one in self.status.items())
        return known and bool(self._unread) and self.missing() is None

    @property
    def is_over(self) -> bool:
        """Whether all rows were taken, and none will follow."""
        return self._passed_mark == END and not self._queued

    def recorded(self, mark: int) -> None:
        """Note that everything up to `mark`, which `next` returned, is recorded."""
        self.safe_mark = max(self.safe_mark, mark)

    def state(self) -> FilterState:
        """Return what was passed. Just after `next`, it is exactly what `next` has returned until then."""
        assert not self._queued, "rows that were not taken would be lost"
        return self._filter.state()

    async def next(self) -> MergedRows:
        """Wait for rows, or for a higher mark, and take all that there is.

        Raises ReplicasDifferError, and if no stream can be merged, the reason.
        """
        while True:
            if self._accept_loss:
                self._go_on()
            if self._queued or self._filter.mark > self._passed_mark or self._error is not None:
                break
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

"""The rows of several streams merged into one, in batches with the mark up to which they are complete.

It joins the filter of duplicates, the comparison of replicas and a bounded queue. `ReplicaStream` reads the
streams; the caller of `next` takes the rows. It runs on one trio loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, closing, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import trio

from checkpoint import (
    OperatorNote,
    Output,
    OutputTime,
    SplitPosition,
    check_input_name,
    output_chain,
    output_register,
)
from checkpoint import limits as checkpoint_limits
from checkpoint.chains.consumer_register import QueryRegistration
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.chains.output_reading import FollowedOutput, OutputFollower, PublishedOutput, split_of
from checkpoint.errors import ConsumerTakenError, InputTrimmedError, OutputRewoundError
from checkpoint.key_hash import hash_rows
from dataflow import limits
from dataflow.core.duplicate_filter import BEFORE_ALL, DuplicateFilter, FilterState, Missing
from dataflow.core.event_time import END, IDLE
from dataflow.core.replica_compare import Difference, ReplicaComparison
from dataflow.errors import NoMarksError, ReplicasDifferError, SchemaError, UserFault
from dataflow.limits import replica_retry_s
from dataflow.operators.event_time import check_time_column, latest_times
from dataflow.schema import parse_schema, schema_text
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError, parse_url, randomness
from dos_protocol.errors import BrokenConnectionError, DosError, errors_in
from dos_protocol.names import check_name

# --- what is merged -----------------------------------------------------------------------------------------


class ReplicaPlace(NamedTuple):
    """Where a replica is: the name of its site, the URL of the store there, and its region and sink."""

    site: str
    url: str
    region: str
    sink: str


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """What is merged; `merge_order` makes it from what a user gives, and describes the values."""

    places: tuple[ReplicaPlace, ...]
    schema: pa.Schema
    time: tuple[str, ...]
    compare: int = 0
    on_missing: str = "wait"
    on_difference: str = "stop"


def merge_order(
    sites: Mapping[str, str],
    region: str,
    sink: str,
    schema: "str | pa.Schema",
    *,
    time: "str | Sequence[str]" = "at",
    compare: "str | int" = 16,
    on_missing: str = "wait",
    on_difference: str = "stop",
) -> MergeOrder:
    """Return what is merged. sites: site -> URL of its store. compare: "all", "off", or one second in n (0
    for none). `MergedLogSource` describes the others. Raises BadNameError, SchemaError, and BadUrlError.
    """
    check_name(output_chain(sink))
    check_name(region)
    times = (time,) if isinstance(time, str) else tuple(time)
    every = {"all": 1, "off": 0}.get(compare, compare) if isinstance(compare, str) else compare
    if not isinstance(every, int) or every < 0:
        raise SchemaError(f"compare must be 'all', 'off' or a number above 0, not {compare!r}")
    if on_missing not in ("wait", "accept"):
        raise SchemaError(f"on_missing must be 'wait' or 'accept', not {on_missing!r}")
    if on_difference not in ("stop", "detach"):
        raise SchemaError(f"on_difference must be 'stop' or 'detach', not {on_difference!r}")
    if not sites:
        raise SchemaError("a merge needs at least one site: sites={'purdue': 'dos://...'}")
    for site, url in sites.items():
        check_input_name("a site", site)
        parse_url(url)
    columns = parse_schema(schema)
    for column in times:
        check_time_column(column, columns)
    places = tuple(ReplicaPlace(site, url, region, sink) for site, url in sorted(sites.items()))
    return MergeOrder(places, columns, times, every, on_missing, on_difference)


# --- the merge ----------------------------------------------------------------------------------------------

logger = logging.getLogger("dos.dataflow")

StreamState: TypeAlias = Literal["connecting", "joining", "reading", "detached"]
"""It reaches for the store, looks where to begin, reads, or has given up because of an error."""
BUCKET_US: Final = 500_000
"""The width of a bucket of the filter: half of the time between two marks of an entry point."""


class StreamExcludedError(Exception):
    """The stream was excluded from the merge; its status has the reason."""


class MergedRows(NamedTuple):
    """Rows that were passed (None without), and the mark after them: every later row has a later time."""

    rows: pa.Table | None
    mark: int


@dataclass(slots=True)
class StreamStatus:
    """The status of one stream. mark: up to which time it is complete (BEFORE_ALL: not known). first,
    bytes: the rows it gave before all others, and the bytes it gave. whole: whether it has all rows that were
    not passed yet. ranks: of the rows looked at, how many it gave first, second, and so on. moved_at: when
    its mark has risen last, on the clock of the loop.
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
    """The merge of one input. state: what was passed before. waits_for_all: no row is taken before each
    stream has joined, or has a reason, so that all that two of them give is compared. If the streams differ,
    `next` raises ReplicasDifferError; with on_difference="detach", only if no majority agrees.
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
        self._graphs: dict[str, Mapping[str, OperatorNote]] = {}
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
        """Read a stream no more. Without any other stream, `next` raises the error."""
        self.leave(site, "detached", str(error))
        self._excluded[site] = error
        if len(self._excluded) == len(self.status):
            self.fail(error)

    def _check(self, site: str) -> None:
        if site in self._excluded:
            raise StreamExcludedError(site)

    def set_graph(self, site: str, operators: Mapping[str, OperatorNote]) -> None:
        """Take operator -> description of a replica's graph. Raises StreamExcludedError, also because of this
        graph.
        """
        self._check(site)
        if self._graphs.get(site) != operators:
            self._compare_graphs(site, operators)
            self._check(site)

    def _compare_graphs(self, site: str, operators: Mapping[str, OperatorNote]) -> None:
        self._graphs[site] = operators
        groups: dict[tuple[tuple[str, OperatorNote], ...], list[str]] = {}
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
        """Take the output of a step of one log of a stream, when there is room. Raises ReplicasDifferError if
        its columns are others, StreamExcludedError.
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
        """Go on without missing rows once every stream is known to lack them, or why it cannot be read."""
        known = all(one.reason or one.state not in ("connecting", "joining") for one in self.status.values())
        if known and (missing := self._filter.accept_loss()) is not None:
            logger.warning("rows from %d to %d are on no stream: accepted as lost", *missing)

    # --- who takes the rows ---------------------------------------------------------------------------------

    async def wait_caught_up(self) -> int:
        """As `MergedOutput.wait_caught_up`."""
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
        """Wait for rows, or for a higher mark, and take all that there is. Raises ReplicasDifferError, and
        the reason if no stream can be merged.
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


# --- the stream of one replica ------------------------------------------------------------------------------
#
# Read the output of one replica for a merge: all logs of its sink, as far as they are visible.
#
# A reader *joins* a stream where it begins to read it, and again whenever the logs that it knows may not be
# all, or may not continue what was read: a new layout of workers, a restore of the replica to an older
# checkpoint, rows that were trimmed before they were read. It reads from the oldest record that is retained.
# What lies below had times up to the `high` of that record, at most: this is its base (F3 in
# `core/duplicate_filter.py`), unless the merge has passed all of these times already.
#
# Each stream is read by tasks of its own. An unavailable store delays only this stream. Any other error
# detaches it from the merge, and no other stream; after a while it joins again.

_UNAVAILABLE: Final = (QuorumUnavailableError, BrokenConnectionError)


Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]


class _JoinsAnewError(Exception):
    """What was read of a stream does not suffice to continue."""


_MISFIT: Final = (ReplicasDifferError, NoMarksError, UserFault)
"""Reading again would find the same."""
_ANEW: Final = (_JoinsAnewError, InputTrimmedError, OutputRewoundError)


@dataclass(slots=True)
class _Log:
    """One worker's log of a stream. above: (high, end) of each record that is needed, for a consumer."""

    follower: OutputFollower
    above: deque[tuple[int, int]] = field(default_factory=deque)
    passed: int = 0
    """The position just after the last record whose rows were all passed."""


class ReplicaStream:
    """The stream of one replica. Run `run` in a task, beside the other streams of the merge."""

    def __init__(
        self, place: ReplicaPlace, merge: Merge, connect: Connect, *, consumer: str = "", retain_s: float = 0
    ) -> None:
        """connect: opens the store of the site. consumer: the name under which the reader is registered
        there, "" for none. retain_s: so long what it has acknowledged is retained too.
        """
        self._consumer, self._retain_s = consumer, retain_s
        self._session, self._registered = randomness.fresh_id().hex() if consumer else "", False
        self._place = place
        self._merge = merge
        self._connect = connect
        self._logs: dict[str, _Log] = {}
        self._rested: dict[str, int] = {}
        """Log of a former worker that was read to its end -> the step of the checkpoint that has its end."""
        self._line = 0
        """The line of history of the replica when the stream joined."""
        self._workers = 0
        """Of the record because of which the stream joins anew."""

    async def _acknowledge(
        self, store: Store, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Register as a consumer, then publish at intervals what is not needed any more."""
        # What lies up to the first mark is known once the logs were read: until then it needs everything.
        place = output_register(self._place.region, self._place.sink)
        registration = QueryRegistration(
            StoreHost(store),
            place,
            self._consumer,
            session=self._session,
            retain_s=self._retain_s,
        )
        await registration.begin({}, again=self._registered)
        self._registered = True
        task_status.started()
        with trio.move_on_after(checkpoint_limits.query_publish_s):
            await self._merge.wait_read(self._place.site)
        published: tuple[dict[str, int], dict[str, int]] | None = None
        while True:
            if self._logs and (passed := self._passed_positions()) != published:
                with suppress(*_UNAVAILABLE):  # nothing more is deleted then; the next time publishes more
                    if published is None:
                        await registration.continues(*passed)
                    if await registration.committed(*passed):
                        published = passed
            await trio.sleep(checkpoint_limits.query_publish_s)

    def _passed_positions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return log -> the position up to which nothing is needed, and log -> its line of history."""
        for log in self._logs.values():
            while log.above and log.above[0][0] <= self._merge.safe_mark:
                log.passed = log.above.popleft()[1]
        return {split: log.passed for split, log in self._logs.items()}, dict.fromkeys(self._logs, self._line)

    async def run(self) -> None:
        """Read until it is cancelled, or the replica is found not to fit. Raises nothing that concerns only
        this stream. If another process registered under the name of the consumer, the merge fails.
        """
        site = self._place.site
        while True:
            try:
                async with self._connect() as store, trio.open_nursery() as nursery:
                    if self._consumer:
                        await nursery.start(self._acknowledge, store)
                    await self._read_all(store)
            except (DosError, UserFault, StreamExcludedError, ExceptionGroup) as error:
                first = errors_in(error)[0]
                if isinstance(first, StreamExcludedError):
                    return
                if not isinstance(first, (DosError, UserFault)):
                    raise
                if isinstance(first, ConsumerTakenError):
                    self._merge.fail(first)
                    return
                if isinstance(first, _MISFIT):
                    self._merge.exclude(site, first)
                    return
                unreachable = isinstance(first, (StoreNotReadyError, *_UNAVAILABLE))
                self._merge.leave(site, "connecting" if unreachable else "detached", str(first))
            await trio.sleep(replica_retry_s)

    async def _read_all(self, store: Store) -> None:
        while True:
            try:
                await self._join_and_read(store)
            except (DosError, _JoinsAnewError, ExceptionGroup) as error:
                first = errors_in(error)[0]
                if not isinstance(first, _ANEW):
                    raise  # a store that does not answer is opened again: it may have been founded again
                self._merge.leave(self._place.site, "joining", str(first))
                await trio.sleep(checkpoint_limits.input_poll_s)

    async def _join_and_read(self, store: Store) -> None:
        published = PublishedOutput(store, self._place.region, self._place.sink)
        splits = await self._wait_for_logs(published)
        checkpoint = await published.last_checkpoint(fresh=True)
        self._line = 0 if checkpoint is None else checkpoint.line
        self._logs, base = {}, self._merge.mark
        for split in splits:
            begin = await published.begin(split)
            follower = published.follower(split, SplitPosition(0))
            self._logs[split] = _Log(follower, passed=begin)
            if begin:
                follower.begin_at(begin)
                if (first := await follower.first(begin)) is None:
                    raise _JoinsAnewError("the first records are not there yet")
                base = max(base, _time_of(first, self._place).high)
        self._rested = {}
        self._merge.join(self._place.site, splits, base)
        if checkpoint is not None:
            self._merge.set_graph(self._place.site, checkpoint.operators)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_workers, published)
            for split, log in self._logs.items():
                nursery.start_soon(self._follow, split, log, published)

    async def _wait_for_logs(self, published: PublishedOutput) -> list[str]:
        """Return the logs of all workers that the region has or had, when there are any."""
        while True:
            found = {*await published.splits(), *map(split_of, range(self._workers))}
            if found:
                return sorted(found)
            why = f"region {self._place.region!r} has written nothing there yet"
            self._merge.leave(self._place.site, "joining", why)
            await trio.sleep(replica_retry_s)

    async def _watch_workers(self, published: PublishedOutput) -> None:
        """Join anew when there is another log: output under a checkpoint does not tell of a new worker."""
        while True:
            if not self._logs.keys() >= {*await published.splits()}:
                raise _JoinsAnewError("the replica has other workers")
            await trio.sleep(checkpoint_limits.inputs_poll_s)

    async def _follow(self, split: str, log: _Log, published: PublishedOutput) -> None:
        pause_s = checkpoint_limits.input_poll_s
        with closing(log.follower):
            while True:
                quiet = True
                async with aclosing(log.follower.outputs()) as outputs:
                    async for followed in outputs:
                        await self._take(split, log, followed)
                        quiet = False
                self._merge.reached_end(self._place.site, split)
                checkpoint = await published.last_checkpoint()
                if checkpoint is not None:
                    self._merge.set_graph(self._place.site, checkpoint.operators)
                if checkpoint is not None and split not in self._rested and await log.follower.rests():
                    self._rested[split] = checkpoint.step
                    self._merge.set_mark(self._place.site, split, IDLE)
                pause_s = (
                    min(2 * pause_s, checkpoint_limits.input_poll_max_s)
                    if quiet
                    else checkpoint_limits.input_poll_s
                )
                await log.follower.wait(pause_s)

    async def _take(self, split: str, log: _Log, followed: FollowedOutput) -> None:
        output, head = followed.output, followed.output.head
        time = _time_of(output, self._place)
        shared = {*map(split_of, range(head.workers))}
        back = any(output.step > self._rested.get(other, output.step) for other in shared)
        if head.line > self._line or back or not shared <= self._logs.keys():
            self._workers = head.workers
            raise _JoinsAnewError("the replica has other workers, or was restored")
        await self._merge.take(self._place.site, split, output)
        if self._consumer:  # only what is published removes them
            log.above.append((time.high, followed.end))


def _time_of(output: Output, place: ReplicaPlace) -> OutputTime:
    if output.head.time is None:
        raise NoMarksError(place.region, place.sink, place.site)
    return output.head.time


async def is_whole_above(store: Store, place: ReplicaPlace, mark: int) -> bool | None:
    """Return whether a replica retains all rows above a mark; None if it has given nothing yet. Raises what
    reading raises, NoMarksError.
    """
    published = PublishedOutput(store, place.region, place.sink)
    splits = await published.splits()
    for split in splits:
        if begin := await published.begin(split):
            with closing(published.follower(split, SplitPosition(0))) as follower:
                first = await follower.first(begin)
            if first is not None and _time_of(first, place).high > mark:
                return False
    return True if splits else None


def consumer_name(region: str, source: str, store_id: bytes) -> str:
    """Return the name under which a merged source is registered as a consumer in the stores of replicas."""
    return f"{region}.{source}.{store_id.hex()[:8]}"

"""Read the output of one replica for a merge: all logs of its sink, as far as they are visible.

A reader *joins* a stream where it begins to read it, and again whenever the logs that it knows may not be
all, or may not continue what was read: a new layout of workers, a restore of the replica to an older
checkpoint, rows that were trimmed before they were read. It reads from the oldest record that is retained.
What lies below had times up to the `high` of that record, at most: this is its base (F3 in
`core/duplicate_filter.py`), unless the merge has passed all of these times already.

Each stream is read by tasks of its own. An unavailable store delays only this stream. Any other error
detaches it from the merge, and no other stream; after a while it joins again.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing, closing, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
import trio

from checkpoint import Output, OutputTime, SplitPosition, limits, output_register
from checkpoint.chains.consumer_register import QueryRegistration
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.chains.output_reading import FollowedOutput, OutputFollower, PublishedOutput, split_of
from checkpoint.errors import ConsumerTakenError, InputTrimmedError, OutputRewoundError
from dataflow.core.event_time import IDLE
from dataflow.errors import NoMarksError, ReplicasDifferError, UserFault
from dataflow.limits import replica_retry_s
from dataflow.merging.merge import Merge, StreamExcludedError
from dataflow.merging.order import ReplicaPlace
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError, randomness
from dos_protocol.errors import BrokenConnectionError, DosError, errors_in

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
        """connect: opens the store of the site, as `open_store` does. consumer: the name under which the
        reader is registered there, so that nothing that it needs is trimmed; "": it is not. retain_s: so long
        what it has acknowledged is retained too.
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
        """Register as a consumer, then publish at intervals what is not needed any more. What lies up to the
        mark after which the reader began is known once the logs were read; until then it needs everything.
        """
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
        with trio.move_on_after(limits.query_publish_s):
            await self._merge.wait_read(self._place.site)
        published: tuple[dict[str, int], dict[str, int]] | None = None
        while True:
            if self._logs and (passed := self._passed_positions()) != published:
                with suppress(*_UNAVAILABLE):  # nothing more is deleted then; the next time publishes more
                    if published is None:
                        await registration.continues(*passed)
                    if await registration.committed(*passed):
                        published = passed
            await trio.sleep(limits.query_publish_s)

    def _passed_positions(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return log -> the position up to which nothing is needed, and log -> its line of history."""
        for log in self._logs.values():
            while log.above and log.above[0][0] <= self._merge.safe_mark:
                log.passed = log.above.popleft()[1]
        return {split: log.passed for split, log in self._logs.items()}, dict.fromkeys(self._logs, self._line)

    async def run(self) -> None:
        """Read until it is cancelled, or the replica is found not to fit. Raises nothing that concerns only
        this stream. If another process registered under the name of the consumer, the merge fails: two that
        registered again and again would read nothing.
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
                await trio.sleep(limits.input_poll_s)

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
        """Join anew when there is another log. If nothing is visible before a checkpoint covers it, no record
        tells of a new worker.
        """
        while True:
            if not self._logs.keys() >= {*await published.splits()}:
                raise _JoinsAnewError("the replica has other workers")
            await trio.sleep(limits.inputs_poll_s)

    async def _follow(self, split: str, log: _Log, published: PublishedOutput) -> None:
        pause_s = limits.input_poll_s
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
                pause_s = min(2 * pause_s, limits.input_poll_max_s) if quiet else limits.input_poll_s
                await log.follower.wait(pause_s)

    async def _take(self, split: str, log: _Log, followed: FollowedOutput) -> None:
        output, head = followed.output, followed.output.head
        time = _time_of(output, self._place)
        shared = {*map(split_of, range(head.workers))}
        back = any(output.step > self._rested.get(other, output.step) for other in shared)
        if head.of_line > self._line or back or not shared <= self._logs.keys():
            self._workers = head.workers
            raise _JoinsAnewError("the replica has other workers, or was restored")
        await self._merge.take(self._place.site, split, output)
        if self._consumer:  # only what is published removes them
            log.above.append((time.high, followed.end))


def _time_of(output: Output, place: ReplicaPlace) -> OutputTime:
    if output.head.time is msgspec.UNSET:
        raise NoMarksError(place.region, place.sink, place.site)
    return output.head.time


async def is_whole_above(store: Store, place: ReplicaPlace, mark: int) -> bool | None:
    """Return whether the stream of a replica retains all rows above a mark; None if it has given nothing yet.
    Raises what reading raises, NoMarksError.
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

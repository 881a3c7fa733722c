"""The writing end of an input handle: a producer's chain, opened, appended to, and closed.

This file handles claims, chains and bytes. `dataflow.producing` builds the batches; `core/inputs.py` decides
what counts.

Opening a producer, in this order:

1. Claim the producer's directory above the highest epoch seen. This fences a producer that holds it.
2. Take the chain over (rules R1-R8), find the last complete batch, and open a segment after it.
3. Only then check whether the handle is being closed. `close_input` first records that it is closing and then
   lists the producers. Therefore either the closer finds this producer, or this producer finds the closer.
"""

import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import trio

from checkpoint import limits
from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.chains.trimming import KeptSegments, RowsChain, Trimmer, TrimPlanner
from checkpoint.core.consumers import input_register
from checkpoint.core.inputs import (
    CLOSED_CHAIN,
    INPUT_CHAIN,
    BatchDecision,
    InputEnds,
    InputPart,
    InputRecord,
    InputSequence,
    OriginMark,
    decode_input,
    encode_ends,
    encode_mark,
    encode_part,
    input_directory,
    judge_batch,
    producer_directory,
    producers_among,
)
from checkpoint.errors import InputClosedError
from checkpoint.runtime import wall_time_ms
from dos_client import Claim, QuorumUnavailableError, Store, backoff_s, randomness
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, FencedError, LocalProtocolError
from journal import (
    ChainState,
    ChainWriter,
    Floor,
    Op,
    Position,
    Record,
    below,
    inspect_chain,
    inspect_whole,
    read_records,
)

logger = logging.getLogger("dos.checkpoint")
T = TypeVar("T")


class InputLog(ChainStore):
    """One producer of one input handle. Create it with `open`. Only the waits may be called from several
    tasks at once.
    """

    def __init__(
        self,
        claim: Claim,
        restored: TakenChain,
        writer: ChainWriter,
        line: InputSequence,
        planner: TrimPlanner,
        producer: str,
    ) -> None:
        super().__init__(restored, writer)
        self._claim = claim
        self._producer = producer
        self._segments = KeptSegments(restored.state, writer)
        self._appending = trio.Lock()
        self._trimmer = Trimmer(planner, writer, self._collect, self._appending)
        self._trimming = trio.CancelScope()
        self.keeps_from = 1 << 63  # nothing from there on is trimmed: its writer may read it again
        self._digest = line.digest
        self.last = line.batch
        """The last batch that was appended; it is recorded when `recorded` returns."""
        self.last_end = line.end
        """The position just after it."""
        self.last_mark = line.mark
        self.origin_mark = line.newest_mark
        """The newest mark of an entry point in the chain, None for none."""
        self.last_time = line.last_time
        """The largest time that an entry point gave to rows in the chain, in microseconds since 1970."""
        self._marked_segment = ""
        """The segment that has the newest mark."""
        self._recorded = self.last, self.last_end
        self._ends: dict[int, int] = {}
        """Batch -> its end position, for batches that are not recorded yet."""

    @classmethod
    async def open(cls, store: Store, application: str, handle: str, producer: str) -> "InputLog":
        """Open this producer. Fences its previous owner; what that one had recorded remains. Until it is
        closed, what no consumer needs is deleted in the background.

        Raises InputClosedError, BadNameError, NotEnoughAnswersError (a new producer needs every member of the
        store), and what `journal.take_over` raises; QuorumUnavailableError if fewer members than a quorum are
        available for `claim_patience_s`.
        """
        log = await cls.open_even_if_closed(store, application, handle, producer)
        # Only after the claim: a closer that this check misses finds this producer in its list.
        try:
            await _refuse_closed(store, application, handle)
        except BaseException:
            with trio.CancelScope(shield=True):
                await log.aclose()
            raise
        store.start(log.trim_until_closed)
        return log

    @classmethod
    async def open_even_if_closed(
        cls, store: Store, application: str, handle: str, producer: str
    ) -> "InputLog":
        """Do the same as `open`, without the check whether the handle is closed."""
        directory = producer_directory(application, handle, producer)
        planner = TrimPlanner(store, input_register(application, handle))
        return await _patiently(partial(cls._open_once, store, directory, producer, planner))

    @classmethod
    async def _open_once(
        cls, store: Store, directory: str, producer: str, planner: TrimPlanner
    ) -> "InputLog":
        view = await store.inspect(directory)
        claim = await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id())
        try:
            taken = await TakenChain.take(claim, INPUT_CHAIN, generation=store.record.generation)
            line = await _last_batch(claim, taken.state, producer)
            return cls(claim, taken, await taken.open(), line, planner, producer)
        except BaseException:
            with trio.CancelScope(shield=True):
                await claim.aclose()
            raise

    @property
    def last_digest(self) -> int:
        """The digest of all counting parts, up to the last batch that was appended."""
        return self._digest

    @property
    def lost(self) -> FencedError | None:
        """Why nothing can be recorded any more; None if it can."""
        return self._claim.lost

    async def append(
        self,
        parts: "list[tuple[int, bytes]]",
        *,
        number: int,
        mark: bytes = b"",
        time_us: int = 0,
        late: bytes = b"",
    ) -> BatchDecision:
        """Send a batch; `parts` are pairs (number of rows, data). time_us, late: of an entry point, the time
        of the rows, and the rows that are late. Returns when there is room for more;
        `recorded` waits until the batch counts.

        Raises LocalProtocolError if `number` leaves a gap, FencedError if a later producer of that name was
        opened or the handle was closed. If cancelled in the middle, the batch does not count and can be sent
        again.
        """

        async def one_by_one() -> AsyncGenerator[tuple[int, bytes]]:
            for part in parts:
                yield part

        async with aclosing(one_by_one()) as each, self._appending:
            return await self._append_from(each, number, mark, time_us, late)

    async def append_from(
        self, parts: AsyncIterator[tuple[int, bytes]], *, number: int, mark: bytes = b""
    ) -> BatchDecision:
        """Send a batch that does not fit into memory: parts are requested when there is room. Otherwise like
        `append`.

        Also raises what iterating over `parts` raises; the batch does not count then and can be sent again.
        """
        async with self._appending:
            return await self._append_from(parts, number, mark)

    async def append_mark(self, mark: OriginMark) -> None:
        """Append a mark of an entry point: all later rows are above it. `recorded` does not wait for marks;
        readers get it once a quorum has it. Raises FencedError.
        """
        async with self._appending:
            self._put_mark(mark)
            await self._writer.wait_room()

    def _put_mark(self, mark: OriginMark) -> None:
        self.origin_mark = mark._replace(
            batch=self.last, before=self._digest, time_ms=wall_time_ms(), note=self.last_mark
        )
        self.last_end = self._put(encode_mark(self.origin_mark), Op.INPUT_MARK).size
        self._marked_segment = self._writer.segment

    async def _append_from(
        self,
        parts: AsyncIterator[tuple[int, bytes]],
        number: int,
        mark: bytes,
        time_us: int = 0,
        late: bytes = b"",
    ) -> BatchDecision:
        if judge_batch(number, self.last) is BatchDecision.DISCARD:
            return BatchDecision.DISCARD
        self._segments.note()  # the trimmer may have begun one
        await self._roll_if_longer(limits.input_segment_bytes_max)
        self._segments.note()
        if self.origin_mark is not None and self._marked_segment != self._writer.segment:
            self._put_mark(self.origin_mark)  # so that a claimant finds it without the segments before
        made = _Parts(number, self._digest, time_us)
        held = await anext(parts)
        async for part in parts:
            self._put(encode_part(made.next(held, last=False)))
            held = part
            await self._writer.wait_room()
        end = self._put(encode_part(made.next(held, last=True, mark=mark, late=late)))
        self._digest = made.digest
        self.last, self.last_end, self.last_mark = number, end.size, mark
        self.last_time = max(self.last_time, time_us)
        self._ends[number] = end.size
        await self._writer.wait_room()
        return BatchDecision.APPEND

    def _put(self, record: InputRecord, op: Op = Op.INPUT) -> Position:
        return self._writer.append(Record(op, ints=record.ints, strings=record.strings))

    async def recorded(self, number: int) -> int:
        """Wait until a batch that was sent is recorded, which means synced on the quorum. Return a position
        up to which everything is recorded.

        Raises LocalProtocolError if the batch was not sent; FencedError if its outcome cannot be determined
        here any more. Opening the producer again determines it.
        """
        if number > self.last:
            raise LocalProtocolError(f"batch {number} was not sent; the last one sent is {self.last}")
        while self._recorded[0] < number:
            first = self._recorded[0] + 1
            end = Position(self._claim.epoch, self._ends[first], 0)
            await self._writer.wait_synced(end)
            if self._recorded[0] < first:  # no other waiting task has recorded it
                self._recorded = first, self._ends.pop(first)
        return self._recorded[1]

    async def all_synced(self) -> None:
        """Wait until all that was appended, marks too, is on the quorum. Raises FencedError."""
        await self._writer.wait_synced(self.end)

    # --- trimming -----------------------------------------------------------------------------------------

    @property
    def chain(self) -> RowsChain:
        """The chain now. Its segments begin with the lowest that was not released when it was opened."""
        synced = [end for end in (*self._ends.values(), self.last_end) if end <= self._writer.synced]
        last_end = min(max(synced, default=self._recorded[1]), self.keeps_from)
        return RowsChain(
            self._claim.directory,
            INPUT_CHAIN,
            self._producer,
            self._segments.now(),
            self._writer.end.size,
            last_end,
        )

    def _collect(self, floor: Floor) -> None:
        self._claim.collect(below({INPUT_CHAIN: floor}))

    async def trim(self) -> None:
        """Release what no consumer needs now, and begin to delete it. Raises as `Trimmer.step`."""
        while (await self._trimmer.step(self.chain, wall_time_ms()))[1]:
            pass

    async def trim_completely(self, wait_s: float) -> bool:
        """Delete what no consumer needs now. Return False if a connected member has not done so within
        `wait_s` seconds. Raises as `trim`.
        """
        await self.trim()
        return await self._claim.wait_collected(wait_s)

    async def trim_until_closed(self) -> None:
        """Trim at intervals, until this producer is closed or fenced."""
        with self._trimming:
            while True:
                await trio.sleep(limits.trim_poll_s)
                try:
                    await self.trim()
                except (FencedError, ClosedError):
                    return
                except DosError as error:  # what is needed is unknown now, so nothing more is deleted
                    logger.info("%s is not trimmed now: %s", self._claim.directory, error)

    async def aclose(self) -> None:
        """Release the directory. Batches that were sent but not recorded may be recorded or not."""
        self._trimming.cancel()
        await super().aclose()
        await self._claim.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Parts:
    """Numbers the parts of one batch. `digest` covers everything up to the last part."""

    def __init__(self, number: int, digest: int, time_us: int) -> None:
        self.digest = digest
        self._number, self._index, self._time_ms, self._time_us = number, 0, wall_time_ms(), time_us

    def next(self, data: tuple[int, bytes], *, last: bool, mark: bytes = b"", late: bytes = b"") -> InputPart:
        part = InputPart(self._number, self._index, last, data[0], self.digest, self._time_ms, data[1])
        part = part._replace(mark=mark, time_us=self._time_us, late=late)
        self.digest, self._index = part.digest, self._index + 1
        return part


async def close_input(store: Store, application: str, handle: str) -> InputEnds:
    """Close an input handle permanently: no producer can write to it afterwards, and readers know where it
    ends.

    Fences active producers; what they had recorded counts. Raises as `InputLog.open` does. If it is cancelled
    or fails, the handle accepts no new producers but is not closed yet: call it again.
    """
    return await _patiently(partial(_close_once, store, application, handle))


async def _close_once(store: Store, application: str, handle: str) -> InputEnds:
    directory = input_directory(application, handle)
    view = await store.inspect(directory)
    async with await store.claim(directory, view.epoch_seen + 1, randomness.fresh_id()) as claim:
        taken = await TakenChain.take(claim, CLOSED_CHAIN, generation=store.record.generation)
        # The open segment is on the quorum: from here on no new producer can start, so the list is complete.
        async with await taken.open() as writer:
            names = producers_among(await store.list_directories(directory), application, handle)
            ends = {}
            for name in names:
                log = await InputLog.open_even_if_closed(store, application, handle, name)
                ends[name] = log.last_end
                await log.aclose()
            found = InputEnds(producers=ends)
            record = Record(Op.INPUT_CLOSED, ints=(wall_time_ms(),), strings=(encode_ends(found),))
            await writer.wait_synced(writer.append(record))
            return found


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`, which claims: it is repeated if another process claims too, the later one
    wins; and for `claim_patience_s` if too few members are available to claim or to take over.
    """
    until, attempt = math.inf, 0
    while True:
        try:
            return await work()
        except FencedError:
            pass
        except (QuorumUnavailableError, BrokenConnectionError):
            until = min(until, trio.current_time() + limits.claim_patience_s)
            if trio.current_time() >= until:
                raise
        attempt += 1
        await trio.sleep(backoff_s(attempt, randomness.jitter()))


async def _refuse_closed(store: Store, application: str, handle: str) -> None:
    """Raise InputClosedError if closing has started: the handle's own directory contains anything."""
    view = await store.inspect(input_directory(application, handle))
    if any(view.answers.values()):
        raise InputClosedError(handle)


async def last_recorded(
    store: Store, application: str, handle: str, producer: str, *, whole: bool = False
) -> InputSequence:
    """Return the end of a producer's recorded input; `batch` is 0 if nothing is recorded. Claims nothing.

    whole: with everything that was acknowledged. Raises BadNameError, and as `inspect_chain` or `_whole`.
    """
    directory = producer_directory(application, handle, producer)
    chain = await (inspect_whole if whole else inspect_chain)(store, directory, INPUT_CHAIN)
    return await _last_batch(store, chain, producer, directory)


async def _last_batch(
    reader: Claim | Store, chain: ChainState, producer: str, directory: str | None = None
) -> InputSequence:
    """Return the end of a chain that was taken over: an InputSequence after the last complete batch. Segments
    start between batches, so the newest segment that contains the end of a batch, or a mark, is sufficient.
    """
    for index in range(len(chain.segments) - 1, -1, -1):
        one = ChainState(chain.chain, chain.segments[index : index + 1], chain.segments[index].end)
        line: InputSequence | None = None
        at = chain.segments[index].base
        async with aclosing(read_records(reader, one, directory=directory)) as records:
            async for end, record in records:
                if (part := decode_input(record, where=producer, at=end.size)) is not None:
                    if line is None:
                        line = InputSequence(producer, at=at, digest=part.before, bytes_max=0, where=producer)
                    line.add(part, at, end.size)
                at = end.size
        if line is not None and (line.batches or line.newest_mark):
            return line
    return InputSequence(producer)

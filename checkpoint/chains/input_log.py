"""An input handle: a producer's chain, which `InputLog` appends to, and `InputFollower` reads as it grows.

`core/records/inputs.py` decides what counts, and the caller of a follower who reads which producer. Followers
claim nothing, and return only committed bytes.
"""

import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import trio

from checkpoint import limits
from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.chains.consumer_register import (
    KeptSegments,
    RowsChain,
    Trimmer,
    TrimPlanner,
    register_consumer,
    settled_register,
    why_trimmed,
)
from checkpoint.core.records.consumers import input_register
from checkpoint.core.records.inputs import (
    CLOSED_CHAIN,
    INPUT_CHAIN,
    BatchDecision,
    BatchNotKept,
    InputEnds,
    InputPart,
    InputPiece,
    InputRecord,
    InputSequence,
    OriginMark,
    decode_ends,
    decode_input,
    decode_part,
    encode_ends,
    encode_mark,
    encode_part,
    input_directory,
    judge_batch,
    piece_of,
    producer_directory,
    producers_among,
)
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.errors import EntryRefusedError, InputClosedError, InputTrimmedError
from checkpoint.runtime import wall_time_ms
from dos_client import Claim, QuorumUnavailableError, Store, backoff_s, randomness
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, FencedError, LocalProtocolError
from journal import (
    ChainFollower,
    ChainState,
    ChainWatch,
    ChainWriter,
    Floor,
    Op,
    Position,
    Record,
    TrimmedBytesError,
    below,
    inspect_chain,
    inspect_whole,
    read_records,
    size_seen,
)

logger = logging.getLogger("dos.checkpoint")
T = TypeVar("T")


class InputLog(ChainStore):
    """One producer of one input handle, from `open`. Only the waits may be called from several tasks."""

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
        """Open this producer. Fences its previous owner; what that one had recorded remains.

        Until it is closed, what no consumer needs is deleted in the background. Raises InputClosedError,
        BadNameError, NotEnoughAnswersError (a new producer needs every member), what `journal.take_over`
        raises, and QuorumUnavailableError if no quorum is available for `claim_patience_s`.
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
            # Under the claim, which fences the previous owner: otherwise it could record a batch after the
            # last one that is found here, and its number would be given twice.
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
        """Send a batch; `parts` are pairs (number of rows, data). Returns when there is room; see `recorded`.

        time_us, late: of an entry point, the time of the rows, and the rows that are late. Raises
        LocalProtocolError if `number` leaves a gap, FencedError if the handle was closed or a later producer
        of that name opened. Cancelled in the middle, the batch does not count and can be sent again.
        """

        async def one_by_one() -> AsyncGenerator[tuple[int, bytes]]:
            for part in parts:
                yield part

        async with aclosing(one_by_one()) as each, self._appending:
            return await self._append_from(each, number, mark, time_us, late)

    async def append_from(
        self, parts: AsyncIterator[tuple[int, bytes]], *, number: int, mark: bytes = b""
    ) -> BatchDecision:
        """Send a batch larger than memory: parts are requested when there is room. Otherwise as `append`;
        also raises what iterating raises, and the batch does not count then.
        """
        async with self._appending:
            return await self._append_from(parts, number, mark)

    async def append_mark(self, mark: OriginMark) -> None:
        """Append a mark of an entry point: all later rows are above it. `recorded` does not wait for it.
        Raises FencedError.
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
        """Wait until a batch is synced on the quorum. Return a position up to which everything is recorded.

        Raises LocalProtocolError if it was not sent; FencedError if its outcome is not known here any more:
        opening the producer again determines it.
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
        """Delete what no consumer needs. Return False if a member has not in `wait_s` seconds. As `trim`."""
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
    """Close an input handle permanently: no producer can write to it, and readers know where it ends.

    Fences active producers; what they had recorded counts. Raises as `InputLog.open`. If it is cancelled or
    fails, the handle accepts no new producers but is not closed yet: call it again.
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
    """Repeat `work`, which claims, if another process claims too, and for `claim_patience_s` without a
    quorum.
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
    """Return the end of a producer's recorded input, `batch` 0 for none; whole: with all that was
    acknowledged. Claims nothing. Raises BadNameError, and as `inspect_chain` or `_whole`.
    """
    directory = producer_directory(application, handle, producer)
    chain = await (inspect_whole if whole else inspect_chain)(store, directory, INPUT_CHAIN)
    return await _last_batch(store, chain, producer, directory)


async def _last_batch(
    reader: Claim | Store, chain: ChainState, producer: str, directory: str | None = None
) -> InputSequence:
    """Return the end of a chain that was taken over: an InputSequence after the last complete batch."""
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


class InputFollower:
    """Reads one producer's input from a position on. Not for several tasks at once.

    at, digest: the position; (0, 0) is the beginning, digest None unknown: start with the next batch.
    from_retained: begin with the oldest retained row if the beginning was trimmed. pending_bytes_max: how
    many bytes of an incomplete batch are kept in memory.
    """

    def __init__(
        self,
        store: Store,
        application: str,
        handle: str,
        producer: str,
        *,
        at: int = 0,
        digest: int | None = 0,
        pending_bytes_max: int = limits.input_pending_bytes_max,
        from_retained: bool = False,
    ) -> None:
        self._store = store
        self._application, self._handle = application, handle
        self._producer = producer
        self._pending_bytes_max = pending_bytes_max
        self._may_move = from_retained and at == 0
        self._directory = producer_directory(application, handle, producer)
        self._chain = ChainFollower(store, self._directory, INPUT_CHAIN, at=at)
        self._watch = ChainWatch(store, self._chain)
        self._line = InputSequence(
            producer, at=at, digest=digest, where=self._directory, bytes_max=pending_bytes_max
        )
        self.seen = at
        """The position up to which parts were yielded."""
        self.skipped = 0
        """Parts up to here may have been yielded to other readers, and are not yielded here."""

    async def poll(self) -> AsyncGenerator[InputPiece]:
        """Yield the committed parts that were not yielded before, then end; iterate to the end.

        Raises CorruptDataError if this input differs from what was read up to the position,
        InputTrimmedError, and as `ChainFollower.poll`; after the latter errors it can be called again.
        """
        if self._may_move:
            await self._move_to_retained()
        try:
            async with aclosing(self._poll()) as pieces:
                async for piece in pieces:
                    yield piece
        except TrimmedBytesError as error:
            raise await self._trimmed(error) from error

    async def _move_to_retained(self) -> None:
        """Begin where the chain begins now, which its starts do not release."""
        chain = await inspect_chain(self._store, self._directory, INPUT_CHAIN, measured=False)
        if not chain.segments:
            return
        self._may_move = False
        if base := chain.segments[0].base:
            self._chain = ChainFollower(self._store, self._directory, INPUT_CHAIN, at=base)
            self._watch = ChainWatch(self._store, self._chain)
            self._line = InputSequence(
                self._producer,
                at=base,
                digest=None,
                where=self._directory,
                bytes_max=self._pending_bytes_max,
            )

    async def _trimmed(self, error: TrimmedBytesError) -> InputTrimmedError:
        because = await why_trimmed(self._store, input_register(self._application, self._handle))
        where = f"producer {self._producer!r} of input {self._handle!r} of {self._application!r}"
        return InputTrimmedError(where, error.begin, error.end, because)

    async def _poll(self) -> AsyncGenerator[InputPiece]:
        begin = self._chain.at
        async with aclosing(self._chain.poll()) as records:
            async for end, record in records:
                part = decode_input(record, where=self._directory, at=end)
                if part is not None:
                    pieces = self._line.add(part, begin, end)
                    if isinstance(pieces, BatchNotKept):
                        async with aclosing(self._read_again(pieces)) as again:
                            async for piece in again:
                                self.seen = piece.end
                                if piece.end > self.skipped:
                                    yield piece
                    else:
                        for piece in pieces:
                            self.seen = piece.end
                            if piece.end > self.skipped:
                                yield piece
                begin = end

    async def end(self) -> int:
        """Return up to where the producer has written, committed or not. Raises QuorumUnavailableError."""
        return await size_seen(self._store, self._directory, INPUT_CHAIN)

    async def rests(self) -> bool:
        """Return False: a producer may always write more."""
        return False

    async def wait(self, timeout_s: float) -> None:
        """Wait until more may have been recorded, at most `timeout_s` seconds."""
        await self._watch.wait(timeout_s)

    def close(self) -> None:
        """End all waits."""
        self._watch.close()

    async def _read_again(self, batch: BatchNotKept) -> AsyncGenerator[InputPiece]:
        """Yield a batch that did not fit into memory, part by part. All of it is committed."""
        chain = ChainFollower(self._store, self._directory, INPUT_CHAIN, at=batch.begin)
        begin = batch.begin
        while begin < batch.end:
            # the bytes are committed, so wait for members
            with suppress(QuorumUnavailableError, BrokenConnectionError):
                async with aclosing(chain.poll()) as records:
                    async for end, record in records:
                        if record.op is Op.INPUT:
                            part = decode_part(record.ints, record.strings, where=self._directory, at=end)
                            yield piece_of(self._producer, part, begin, end)
                        begin = end
                        if begin >= batch.end:
                            return
            await trio.sleep(limits.input_poll_max_s)


class InputHandle:
    """An input handle as a whole: its producers, and where it ends."""

    def __init__(
        self, store: Store, application: str, handle: str, *, from_retained: bool = False, time: str = ""
    ) -> None:
        """time: the column by which its entry points mark it; "": it is not checked."""
        self._store = store
        self._application = application
        self._handle = handle
        self._from_retained = from_retained
        self._time = time

    async def register(self, region: str, source: str) -> None:
        """Register a source of a region as a consumer, acknowledged when this returns; waits while too few
        members answer.

        Raises QuorumUnavailableError, CorruptDataError; EntryRefusedError if it is marked by another column.
        """
        place = input_register(self._application, self._handle)
        await register_consumer(self._store, place, region, source)
        entry = (await settled_register(self._store, place)).entry if self._time else None
        if entry is not None and entry.settings.time != self._time:
            raise EntryRefusedError(
                f"source {source!r} reads the times in column {self._time!r}, and the entry points of input"
                f" {self._handle!r} give them in column {entry.settings.time!r}",
                remedy=f"read it with InputSource(..., time={entry.settings.time!r})",
            )

    async def splits(self) -> list[str]:
        """Return all producers that ever opened it. Raises QuorumUnavailableError."""
        prefix = input_directory(self._application, self._handle) + "."
        directories = await self._store.list_directories(prefix)
        return producers_among(directories, self._application, self._handle)

    async def ends(self) -> dict[str, int] | None:
        """Return the end of every producer's input if the handle is closed, otherwise None. Raises as
        `inspect_chain`.
        """
        directory = input_directory(self._application, self._handle)
        chain = await inspect_chain(self._store, directory, CLOSED_CHAIN)
        found = None
        async with aclosing(read_records(self._store, chain, directory=directory)) as records:
            async for end, record in records:
                if record.op is Op.INPUT_CLOSED:
                    found = decode_ends(record.strings, where=directory, at=end.size).producers
        return found

    async def latest(self) -> dict[str, SplitPosition]:
        """Return for each producer with a complete batch the end of its last one."""
        found = {}
        for split in await self.splits():
            last = await last_recorded(self._store, self._application, self._handle, split)
            if last.batch:
                found[split] = SplitPosition(last.end, last.digest)
        return found

    async def present(self) -> dict[str, InputFollower]:
        """Return for each producer a follower at the end of what is committed now."""
        found = {}
        for split in await self.splits():
            directory = producer_directory(self._application, self._handle, split)
            end = (await inspect_chain(self._store, directory, INPUT_CHAIN)).end
            at = 0 if end is None else end.size
            follower = InputFollower(
                self._store, self._application, self._handle, split, at=at, digest=None if at else 0
            )
            follower.skipped = await size_seen(self._store, directory, INPUT_CHAIN)
            found[split] = follower
        return found

    def follower(self, split: str, at: SplitPosition) -> InputFollower:
        """Return a follower of one producer that starts at a position."""
        return InputFollower(
            self._store,
            self._application,
            self._handle,
            split,
            at=at.position,
            digest=at.digest,
            from_retained=self._from_retained,
        )

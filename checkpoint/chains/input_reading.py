"""The reading end of an input handle: the committed parts, producer by producer, as they arrive.

This file claims nothing and returns only committed bytes. `core/inputs.py` decides which parts count; the
caller decides who reads which producer, and how fast.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import register_consumer, settled_register, why_trimmed
from checkpoint.core.consumers import input_register
from checkpoint.core.inputs import (
    CLOSED_CHAIN,
    INPUT_CHAIN,
    BatchNotKept,
    InputPiece,
    InputSequence,
    decode_ends,
    decode_input,
    decode_part,
    input_directory,
    piece_of,
    producer_directory,
    producers_among,
)
from checkpoint.core.manifest import SplitPosition
from checkpoint.errors import EntryRefusedError, InputTrimmedError
from dos_client import QuorumUnavailableError, Store
from dos_protocol.errors import BrokenConnectionError
from journal import ChainFollower, ChainWatch, Op, TrimmedBytesError, inspect_chain, read_records, size_seen


class InputFollower:
    """Reads one producer's input from a position on. Not for several tasks at once.

    at, digest: the position; (0, 0) is the beginning. digest None: unknown, start with the next batch.
    from_retained: if the beginning was trimmed before this reader began, begin with the oldest row that is
        retained.
    pending_bytes_max: how many bytes of an incomplete batch are kept in memory.
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
        """Yield the committed parts that were not yielded before, then end. The caller must iterate to the
        end.

        Raises CorruptDataError if this input differs from what was read up to the position,
        InputTrimmedError if the next rows were trimmed, and as `ChainFollower.poll` does; after the latter
        errors it can be called again.
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
        """Return the position up to which the producer has written, committed or not.

        Raises QuorumUnavailableError.
        """
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
        """Register a source of a region as a consumer, if it is not: from then on, nothing that the region
        needs is trimmed. Acknowledged by the quorum when this returns.

        Waits while too few members answer. Raises QuorumUnavailableError, CorruptDataError; EntryRefusedError
        if its entry points mark it by another column.
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

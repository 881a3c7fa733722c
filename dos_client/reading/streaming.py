"""A stream of committed bytes of one object, in order, that reads ahead.

This module handles order and memory. Pieces are fetched early from whichever members are fast, at most
`pieces_ahead_max` at once. They are verified in order, and only verified pieces are returned. A piece that
cannot be fetched, or is wrong, is fetched again alone. What is committed is decided in `committed`.
"""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import trio

from dos_client.core.agreement import Reach
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import piece_bytes, pieces_ahead_max, read_bytes_max, read_timeout_s
from dos_client.reading.committed import CommittedPiece, CommittedReads
from dos_client.reading.sessions import ReadableStore
from dos_client.reading.store_reads import RETRY_PAUSE_S, with_retries
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import BrokenConnectionError, CorruptError, DosError, NotFoundError, PastEndError
from dos_protocol.limits import digest_block_bytes

Stream = AsyncGenerator[bytes]


class Extent(Protocol):
    """How far a stream may go."""

    async def beyond(self, size: int) -> int | None:
        """Return a size above `size` that Qa members have reached, or None if the stream ends there."""
        ...


class Bookmark:
    """The position of one reader in one append-only object, up to which it knows the object to be committed.

    A stream that begins there sends no request about the earlier bytes, and does not read them again.
    """

    def __init__(self) -> None:
        self.fold: PrefixDigest | None = None
        """The fold of all bytes returned so far. It is replaced, never changed in place."""


class Snapshot:
    """The extent of an object as it was acknowledged when this was created."""

    def __init__(self, store: ReadableStore, committed: CommittedReads) -> None:
        self._store = store
        self._committed = committed
        self._reach: Reach | None = None

    async def beyond(self, size: int) -> int | None:
        """Implement `Extent`. Raises QuorumUnavailableError if it stays unknown whether more is acknowledged,
        PastEndError, NotFoundError.
        """
        deadline = trio.current_time() + read_timeout_s
        while True:
            if self._reach is not None:
                if self._reach.held > size:
                    return self._reach.held
                if self._reach.sure:
                    break
                if trio.current_time() > deadline:
                    raise QuorumUnavailableError(
                        f"{size} bytes of {self._committed} are on a quorum; only unavailable members know"
                        f" whether those up to {self._reach.seen} were acknowledged"
                    )
                await self._store.wait_moved(RETRY_PAUSE_S)
            self._reach = await with_retries(self._store, self._committed.reach)
        if self._reach.held < size:
            raise PastEndError(
                f"offset {size} is past the end of {self._committed}: {self._reach.held} bytes are committed",
                actual=self._reach.held,
            )
        return None


async def committed_stream(
    store: ReadableStore,
    committed: CommittedReads,
    extent: Extent,
    offset: int,
    end: int | None = None,
    *,
    without_limit: bool = False,
    seen: Bookmark | None = None,
) -> AsyncGenerator[bytes]:
    """Read the bytes from `offset` to `end`, or as far as `extent` goes.

    `without_limit`: wait for members without limit. `seen`: is advanced with the bytes returned. With a
    bookmark and an `end`, the bytes up to `end` are assumed to be committed, as the caller knows, unless a
    quorum does not agree on them.
    """
    if end is not None and end <= offset:
        return
    fold = None if seen is None else seen.fold
    known = 0 if seen is None or end is None else end
    if fold is None or fold.size != offset:
        if offset < digest_block_bytes:  # otherwise the request for a digest shows whether the object exists
            known = 0
        if not known and await extent.beyond(offset) is None:
            return
        fold = await with_retries(store, lambda: committed.begin(offset), without_limit=without_limit)
    with _Ahead(store, committed, without_limit=without_limit) as ahead:
        while end is None or fold.size < end:
            limit = known or await extent.beyond(max(fold.size, offset))
            if limit is None:
                return
            piece, fold = await ahead.next(fold, limit if end is None else min(limit, end))
            if fold.size % piece_bytes and fold.size < limit:
                known = 0  # a quorum agrees on less
            if seen is not None:
                seen.fold = fold
            data = piece.data[offset - piece.start :] if piece.start < offset else piece.data
            if data:
                yield data


async def read_committed(
    store: ReadableStore, directory: str, name: str, offset: int, max_bytes: int
) -> bytes:
    """Return committed bytes. Implements `Store.read`."""
    committed = CommittedReads(store, directory, name)
    end = offset + min(max_bytes, read_bytes_max)
    stream = committed_stream(store, committed, Snapshot(store, committed), offset, end)
    return b"".join([data async for data in stream])


class _Slot:
    """One piece that is being fetched."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.scope = trio.CancelScope()
        self.piece: CommittedPiece | None = None
        self.ended = trio.Event()


class _Ahead:
    """The pieces fetched ahead. Invariant: the slots are contiguous."""

    def __init__(self, store: ReadableStore, committed: CommittedReads, *, without_limit: bool) -> None:
        self._store = store
        self._committed = committed
        self._without_limit = without_limit
        self._slots: deque[_Slot] = deque()

    async def next(self, fold: PrefixDigest, limit: int) -> tuple[CommittedPiece, PrefixDigest]:
        """Return the verified piece at the end of `fold`, and the fold after it."""
        self._prefetch(fold.size, limit)
        slot = self._slots[0]
        await slot.ended.wait()
        self._slots.popleft()
        self._prefetch(slot.end, limit)
        after = None if slot.piece is None else self._committed.check(fold, slot.piece)
        if slot.piece is None or after is None:
            piece, after = await self._fetch_alone(fold, slot.end)
        else:
            piece = slot.piece
        if after.size != slot.end:
            self._drop_all()
        return piece, after

    async def _fetch_alone(self, fold: PrefixDigest, end: int) -> tuple[CommittedPiece, PrefixDigest]:
        """Fetch the piece until it succeeds. Retries, because members that contradict each other may be
        repaired meanwhile. An object that was removed is not waited for, except by who follows its name.
        """
        deadline = trio.current_time() + read_timeout_s
        while True:
            try:
                return await self._committed.piece(fold, end)
            except (QuorumUnavailableError, BrokenConnectionError, CorruptError, NotFoundError) as error:
                waits = self._without_limit and not isinstance(error, CorruptError)
                removed = isinstance(error, NotFoundError)
                if not waits and (removed or trio.current_time() > deadline):
                    raise
            await self._store.wait_moved(RETRY_PAUSE_S)

    def _prefetch(self, start: int, limit: int) -> None:
        start = self._slots[-1].end if self._slots else start
        while start < limit and len(self._slots) < pieces_ahead_max:
            slot = _Slot(start, min(start - start % piece_bytes + piece_bytes, limit))
            self._slots.append(slot)
            self._store.start(partial(self._fetch, slot))
            start = slot.end

    async def _fetch(self, slot: _Slot) -> None:
        try:
            # the consumer of the slot fetches it again and gets the error
            with slot.scope, suppress(DosError):
                slot.piece = await self._committed.fetch(slot.start, slot.end)
        finally:
            slot.ended.set()

    def _drop_all(self) -> None:
        for slot in self._slots:
            slot.scope.cancel()
        self._slots.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_all()

"""Follow a chain: read its committed records as they are committed, each once. Takes no claim.

`core/read_walk.py` decides what is committed. A chain that only grew costs one request per member and poll,
and no byte is read twice. The offset must lie on one line of history: in a chain that is never rolled back,
or below a position in a committed checkpoint (`poll(upto)`).
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import trio

from dos_client import Bookmark, Quorums
from journal.chain import inspect_chain, inspect_chain_at
from journal.core.chain import (
    ChainState,
    Position,
    SegmentName,
    SegmentSpan,
    parse_segment_name,
    segments_seen,
)
from journal.core.errors import LostBytesError, RewrittenChainError, TrimmedBytesError
from journal.core.read_walk import held_by_quorum
from journal.core.record import Record, RecordDecoder
from journal.ports import GrowingPort, GrowthPort, StorePort


class ChainFollower:
    """A reader of one chain, for one task. `at` is the logical offset just past the last record it returned.

    epoch: that of the segment of the byte before `at`; 0: not known. tap: called with all bytes as they are
    read: the segment, their offset in it, the bytes. skip_lost: if the chain now begins above `at`, or was
    deleted and written again, continue at its beginning.
    """

    def __init__(
        self,
        store: StorePort,
        directory: str,
        chain: str,
        *,
        at: int = 0,
        epoch: int = 0,
        skip_lost: bool = False,
        tap: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        self.at = at
        self.epoch = epoch
        """The epoch of the segment that holds the byte before `at`; 0: not known."""
        self._tap = tap
        self._skip_lost = skip_lost
        self._store = store
        self._directory = directory
        self._chain = chain
        self._head: SegmentName | None = None
        self._reading = ""
        """The segment that `_decoder` decodes."""
        self._decoder: RecordDecoder | None = None
        self._bookmark = Bookmark()

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def segment(self) -> str | None:
        """The segment that holds the last returned record; None before the first."""
        return self._reading or None

    @property
    def frontier(self) -> tuple[str, int] | None:
        """The newest known segment and how many bytes of it were returned; None if there is none yet."""
        return None if self._head is None else (str(self._head), max(self.at - self._head.base, 0))

    async def poll(
        self, upto: Position | None = None, *, proved: Position | None = None
    ) -> AsyncGenerator[tuple[int, Record]]:
        """Yield the committed records above `at`, each with the logical offset just past it. Then end. No
        record is skipped after an error: call it again.

        upto: a position in a committed checkpoint; nothing beyond it is read. proved: as of `inspect_chain`.

        Raises TrimmedBytesError if the record at `at` was released, RewrittenChainError if the chain was
        deleted and written again, LostBytesError if it is gone for another reason, and as `inspect_chain` and
        `stream`.
        """
        spans = await (self._spans() if upto is None else self._spans_to(upto))
        if proved is not None and proved.size > max((s.base + s.length for s in spans), default=self.at):
            spans = await self._spans_to(proved)
        for span in spans:
            async with aclosing(self._records(span)) as records:
                async for given in records:
                    yield given

    async def _spans(self) -> list[SegmentSpan]:
        """Return the spans that may hold new records, the oldest first."""
        if self._head is not None and self.at >= self._head.base:  # not if the last poll ended before it
            view = await self._store.inspect(self._directory)
            seen = segments_seen(self._chain, view.answers)
            if seen and seen[0].name == self._head:
                claims = {member: epoch for member, (epoch, _) in view.epochs.items()}
                held = held_by_quorum(Quorums(self._store.record), seen[0], claims, view.filled)
                return [SegmentSpan(str(self._head), self._head.base, held, 0)] if held else []
        state = await inspect_chain(self._store, self._directory, self._chain, measured=False, floor=self.at)
        if self._begins_anew(state):
            return await self._spans()
        end = 0 if state.end is None else state.end.size
        if state.segments and end >= self.at:
            self._head = parse_segment_name(state.segments[-1].name)
        return [span for span in state.segments if span.base + span.length > self.at]

    async def _spans_to(self, upto: Position) -> list[SegmentSpan]:
        if upto.size <= self.at and not self._is_rewritten(upto.epoch):
            return []
        if (span := await self._continued_to(upto)) is not None:
            return [span]
        state = await inspect_chain_at(self._store, self._directory, self._chain, upto, floor=self.at)
        if self._begins_anew(state):
            return await self._spans_to(upto)
        return [span for span in state.segments if span.base + span.length > self.at]

    async def _continued_to(self, upto: Position) -> SegmentSpan | None:
        """Return the segment that is being read, up to a position in it; None for one in another."""
        name = parse_segment_name(self._reading)
        # One epoch has one line of history; after a rollback another one has other bytes at the same size.
        if name is None or not self.epoch == name.epoch == upto.epoch or self.at <= name.base:
            return None
        length, view = upto.size - name.base, await self._store.inspect(self._directory)
        # The next segment of the epoch begins where this one ends, so a position beyond it is not in it.
        if not any(
            one.name == name and one.longest >= length for one in segments_seen(self._chain, view.answers)
        ):
            return None
        return SegmentSpan(self._reading, name.base, length, upto.digest)

    def _is_rewritten(self, epoch: int) -> bool:
        """Return whether bytes of that epoch, below `at`, are others than those that were read."""
        return 0 < self.epoch < epoch  # a size alone would continue the old chain with bytes of the new one

    def _begins_anew(self, state: ChainState) -> bool:
        for span in state.segments:
            if span.base < self.at and self._is_rewritten(span.end.epoch):
                if self._skip_lost:
                    self.at, self.epoch, self._head = 0, 0, None
                    return True
                read_to = str(Position(self.epoch, self.at, 0))
                raise RewrittenChainError(self._directory, self._chain, read_to, span.end.epoch)
        if not state.segments or state.segments[0].base <= self.at:
            return False
        begin = state.segments[0].base
        if self._skip_lost:
            self.at, self.epoch = begin, 0
            return False
        if state.segments[0].segment.order <= state.released:
            raise TrimmedBytesError(self._directory, self._chain, self.at, begin)
        raise LostBytesError(
            f"chain {self._chain} in {self._directory} was read to {self.at} and now begins at {begin}"
        )

    async def _records(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, Record]]:
        decoder = self._decoder if self._reading == span.name else None
        if decoder is None:
            decoder = RecordDecoder(where=span.name, offset=max(self.at - span.base, 0))
        if self._reading != span.name:
            self._reading, self._bookmark = span.name, Bookmark()
        self._decoder = None  # kept only if all its records are returned: the caller may stop in between
        begin = decoder.offset + decoder.buffered
        name = parse_segment_name(span.name)
        epoch = 0 if name is None else name.epoch
        if begin < span.length:
            stream = self._store.stream(self._directory, span.name, begin, span.length, self._bookmark)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    if self._tap is not None:
                        self._tap(span.name, begin, chunk)
                        begin += len(chunk)
                    for end, record in decoder.feed(chunk):
                        self.at, self.epoch = span.base + end, epoch
                        yield self.at, record
        self._decoder = decoder


async def size_seen(store: StorePort, directory: str, chain: str) -> int:
    """Return a logical offset at or above every byte that any reader has ever received of the chain. Raises
    QuorumUnavailableError.
    """
    view = await store.inspect(directory)
    return max((seen.name.base + seen.longest for seen in segments_seen(chain, view.answers)), default=0)


class Following(Protocol):
    """A reader of objects that grow one after another."""

    @property
    def directory(self) -> str: ...

    @property
    def frontier(self) -> tuple[str, int] | None:
        """The newest known object and how many bytes of it were returned; None if there is none yet."""
        ...


class ChainWatch:
    """A wait for new bytes of what a follower reads. Create and `close` it in the same trio run."""

    def __init__(self, store: GrowingPort, follower: Following) -> None:
        self._store = store
        self._follower = follower
        self._segment = ""
        self._growth: GrowthPort | None = None
        self._reported = 0
        """The size of the segment that the members reported when the last wait ended."""

    async def wait(self, timeout_s: float) -> None:
        """Wait until a quorum holds more of the newest segment than the follower has returned and the
        previous wait reported, at most `timeout_s`, which bounds how late a new segment is noticed.
        """
        frontier = self._follower.frontier
        if frontier is None:
            await trio.sleep(timeout_s)
            return
        segment, given = frontier
        if segment != self._segment or self._growth is None:
            self.close()
            self._segment, self._reported = segment, given
            self._growth = self._store.growth(self._follower.directory, segment, given)
            self._growth.__enter__()
        with trio.move_on_after(timeout_s):
            self._reported = await self._growth.beyond(max(given, self._reported))

    def close(self) -> None:
        """Stop watching the members."""
        if self._growth is not None:
            self._growth.__exit__(None, None, None)
            self._growth = None

"""Following a chain: its committed records as they come, each read once. Claims nothing.

Rules of this file: where a reader stands, and what to read next. What is committed is decided in
`core/walk.py`: a whole walk when there is a segment that was not known, else the same rule (R10) for the head
alone, so that a look at a chain that only grew costs one question to the members and no byte twice.

The chain must be one that is never rolled back (inputs; outputs by step): a size lies on one line of history.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dos_client.core.quorum import Quorums
from journal.chain import look_chain
from journal.core.chain import SegmentSpan, segments_seen
from journal.core.decoder import RecordDecoder
from journal.core.errors import LostBytesError
from journal.core.record import Record
from journal.core.segment import SegmentName, parse_segment_name
from journal.core.walk import held_by_quorum
from journal.ports import StorePort


class ChainFollower:
    """Stands at `at`, the logical offset just past the last record given. Not for several tasks at once."""

    def __init__(self, store: StorePort, directory: str, chain: str, *, at: int = 0) -> None:
        self.at = at
        self._store = store
        self._directory = directory
        self._chain = chain
        self._head: SegmentName | None = None
        self._reading = ""
        """The segment whose decoder is `_decoder`."""
        self._decoder: RecordDecoder | None = None

    async def poll(self) -> AsyncGenerator[tuple[int, Record]]:
        """What is committed now and was not given yet: each record with the offset just past it. Ends.

        Raises LostBytesError when the chain does not reach to `at`, and what `look_chain` and the store's
        `stream` raise; nothing is passed over then: call it again.
        """
        for span in await self._spans():
            async with aclosing(self._records(span)) as records:
                async for given in records:
                    yield given

    async def _spans(self) -> list[SegmentSpan]:
        """The parts of segments in which there may be something new, the oldest first."""
        if self._head is not None:
            view = await self._store.look(self._directory)
            seen = segments_seen(self._chain, view.answers)
            if seen and seen[0].name == self._head:
                claims = {member: epoch for member, (epoch, _) in view.epochs.items()}
                held = held_by_quorum(Quorums(self._store.record), seen[0], claims, view.filled)
                return [SegmentSpan(str(self._head), self._head.base, held, 0)] if held else []
        state = await look_chain(self._store, self._directory, self._chain)
        end = 0 if state.end is None else state.end.size
        if state.segments and state.segments[0].base > self.at:
            raise LostBytesError(
                f"chain {self._chain} in {self._directory} was read to {self.at} and begins at"
                f" {state.segments[0].base} now"
            )
        if state.segments and end >= self.at:
            self._head = parse_segment_name(state.segments[-1].name)
        return [span for span in state.segments if span.base + span.length > self.at]

    async def _records(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, Record]]:
        decoder = self._decoder if self._reading == span.name else None
        if decoder is None:
            decoder = RecordDecoder(where=span.name, offset=max(self.at - span.base, 0))
        self._decoder = None  # until all that it took is given: a reader may leave in between
        begin = decoder.offset + decoder.buffered
        if begin < span.length:
            stream = self._store.stream(self._directory, span.name, begin, span.length)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    for end, record in decoder.feed(chunk):
                        self.at = span.base + end
                        yield self.at, record
        self._reading, self._decoder = span.name, decoder

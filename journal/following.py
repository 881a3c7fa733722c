"""Following a chain: its committed records as they come, each read once. Claims nothing.

Rules of this file: where a reader stands, and what to read next. What is committed is decided in
`core/read_walk.py`: a whole walk when there is a segment that was not known, else the same rule (R10) for the
head alone, so that a look at a chain that only grew costs one question to the members and no byte twice. What
a quorum holds of the head may end within a record: its decoder keeps that beginning until the rest comes.

A size must lie on one line of history. So it does in a chain that is never rolled back (inputs; outputs by
step), and below a position in a committed cut: `poll(upto)` reads to there.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from dos_client import Bookmark, Quorums
from journal.chain import look_chain, look_chain_at
from journal.core.chain import ChainState, SegmentSpan, segments_seen
from journal.core.decoder import RecordDecoder
from journal.core.errors import LostBytesError
from journal.core.position import Position
from journal.core.read_walk import held_by_quorum
from journal.core.record import Record
from journal.core.segment import SegmentName, parse_segment_name
from journal.ports import StorePort


class ChainFollower:
    """Stands at `at`, the logical offset just past the last record given. Not for several tasks at once.

    skip_lost: when the chain begins above `at` (anew, with a snapshot), go on there. tap: is told all bytes
    as they are read: the segment, where in it they begin, the bytes.
    """

    def __init__(
        self,
        store: StorePort,
        directory: str,
        chain: str,
        *,
        at: int = 0,
        skip_lost: bool = False,
        tap: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        self.at = at
        self._tap = tap
        self._skip_lost = skip_lost
        self._store = store
        self._directory = directory
        self._chain = chain
        self._head: SegmentName | None = None
        self._reading = ""
        """The segment whose decoder is `_decoder`."""
        self._decoder: RecordDecoder | None = None
        self._bookmark = Bookmark()

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def segment(self) -> str | None:
        """The segment in which the last record given lies; None before the first."""
        return self._reading or None

    @property
    def frontier(self) -> tuple[str, int] | None:
        """The newest segment known, and how much of it was given; None while there is none."""
        return None if self._head is None else (str(self._head), max(self.at - self._head.base, 0))

    async def poll(
        self, upto: Position | None = None, *, proved: Position | None = None
    ) -> AsyncGenerator[tuple[int, Record]]:
        """What is committed now and was not given yet: each record with the offset just past it. Ends.

        upto: a position in a committed cut; what lies past it is not looked at. proved: a position in a
        committed cut that is given at least, also while the members cannot prove it (see `look_chain`).
        Raises LostBytesError when
        the chain does not reach to `at`, and what `look_chain` and the store's `stream` raise; nothing is
        passed over then: call it again.
        """
        spans = await (self._spans() if upto is None else self._spans_to(upto))
        if proved is not None and proved.size > max((s.base + s.length for s in spans), default=self.at):
            spans = await self._spans_to(proved)
        for span in spans:
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
        state = await look_chain(self._store, self._directory, self._chain, measured=False)
        end = 0 if state.end is None else state.end.size
        self._check_begin(state)
        if state.segments and end >= self.at:
            self._head = parse_segment_name(state.segments[-1].name)
        return [span for span in state.segments if span.base + span.length > self.at]

    async def _spans_to(self, upto: Position) -> list[SegmentSpan]:
        if upto.size <= self.at:
            return []
        state = await look_chain_at(self._store, self._directory, self._chain, upto, floor=self.at)
        self._check_begin(state)
        return [span for span in state.segments if span.base + span.length > self.at]

    def _check_begin(self, state: ChainState) -> None:
        if not state.segments or state.segments[0].base <= self.at:
            return
        begin = state.segments[0].base
        if not self._skip_lost:
            raise LostBytesError(
                f"chain {self._chain} in {self._directory} was read to {self.at} and begins at {begin} now"
            )
        self.at = begin

    async def _records(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, Record]]:
        decoder = self._decoder if self._reading == span.name else None
        if decoder is None:
            decoder = RecordDecoder(where=span.name, offset=max(self.at - span.base, 0))
        if self._reading != span.name:
            self._reading, self._bookmark = span.name, Bookmark()
        self._decoder = None  # until all that it took is given: a reader may leave in between
        begin = decoder.offset + decoder.buffered
        if begin < span.length:
            stream = self._store.stream(self._directory, span.name, begin, span.length, self._bookmark)
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    if self._tap is not None:
                        self._tap(span.name, begin, chunk)
                        begin += len(chunk)
                    for end, record in decoder.feed(chunk):
                        self.at = span.base + end
                        yield self.at, record
        self._decoder = decoder


async def size_seen(store: StorePort, directory: str, chain: str) -> int:
    """A logical offset that no byte which any reader was ever shown lies above: committed or not, on the
    chain or not. Raises QuorumUnavailableError.
    """
    view = await store.look(directory)
    return max((seen.name.base + seen.longest for seen in segments_seen(chain, view.answers)), default=0)

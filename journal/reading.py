"""Read segments and chains: bytes from members or from the local cache, decoded by `core/scan.py`. If one
member cannot serve a read, the next one is tried; the error of the last one is raised.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress

import trio

from dos_client import Bookmark
from dos_client.errors import QuorumUnavailableError
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import BrokenConnectionError, BusyError, DosError, FencedError
from journal.core.chain import ChainState, Position, SegmentSpan, parse_start
from journal.core.errors import ChainError, LostBytesError
from journal.core.record import Decoded, Op, Record, RecordDecoder
from journal.core.scan import RecordBoundary, SegmentSurvey, SegmentSurveyor, SnapshotSearch, SpanReplay, Step
from journal.core.walk import StartRead
from journal.limits import read_bytes_max, removal_pause_s, removal_tries_max, start_read_bytes_max
from journal.ports import ClaimPort, StorePort
from journal.scratch import Scratch

ANY: tuple[bytes | None, ...] = (None,)
"""No particular member: the store chooses one."""


class ChainSource:
    """A reader of the segments of one directory, under a claim or, if `directory` is passed, without one.
    waits: a second for the end of the removal of an object, without a claim.
    """

    def __init__(
        self, reader: ClaimPort | StorePort, directory: str | None = None, *, waits: bool = True
    ) -> None:
        self._claim: ClaimPort | None = None
        self._store: StorePort | None = None
        if directory is None:
            self._claim = reader  # type: ignore[assignment]
        else:
            self._store = reader  # type: ignore[assignment]
        self._directory = directory or ""
        self._waits = waits

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        """Return up to `max_bytes` bytes of an object; empty only at its end. Raises NotFoundError once an
        object is removed, BusyError before.
        """
        if self._claim is not None:
            return await self._claim.read(name, offset, max_bytes, member=member)
        assert self._store is not None
        for _ in range(removal_tries_max if self._waits else 0):
            with suppress(BusyError):
                return await self._store.read(self._directory, name, offset, max_bytes)
            await trio.sleep(removal_pause_s)
        return await self._store.read(self._directory, name, offset, max_bytes)

    async def chunks(
        self, name: str, length: int, members: Sequence[bytes | None] = ANY, chunk_bytes: int = read_bytes_max
    ) -> AsyncGenerator[bytes]:
        """Yield the first `length` bytes of an object, in order. Raises LostBytesError if there are fewer.

        Without a claim, pieces are checked against the digest that a quorum reports. What fewer members hold
        is yielded unchecked: the rules and digests of the chain decide about it.
        """
        offset = 0
        if self._store is not None:
            with suppress(QuorumUnavailableError, BusyError):  # `read` decides what follows from it
                async with aclosing(self._store.stream(self._directory, name, 0, length)) as stream:
                    async for chunk in stream:
                        offset += len(chunk)
                        yield chunk
        while offset < length:
            chunk = await self.read_from_any(name, offset, min(length - offset, chunk_bytes), members)
            if not chunk:
                raise LostBytesError(f"{name} should have {length} bytes and ends at {offset}")
            offset += len(chunk)
            yield chunk

    async def read_from_any(
        self, name: str, offset: int, max_bytes: int, members: Sequence[bytes | None]
    ) -> bytes:
        """Read from the first of `members` that returns bytes; none only if every member was reachable."""
        absent: DosError | None = None
        last: DosError | None = None
        answered = False
        for member in members if self._claim is not None else ANY:
            try:
                data = await self.read(name, offset, max_bytes, member)
            except FencedError:
                raise
            except (BrokenConnectionError, QuorumUnavailableError) as error:
                absent = error
            except DosError as error:
                last = error
            else:
                if data:
                    return data
                answered = True
        if absent is not None:  # never "no bytes": the member that is away may hold them
            raise QuorumUnavailableError(
                f"{name} from byte {offset} on may be on a member that is unavailable", [str(absent.args[0])]
            ) from absent
        if answered:
            return b""
        raise last or LostBytesError(f"no member holds {name}")


async def read_start(
    source: ChainSource, name: str, length: int, members: Sequence[bytes | None]
) -> StartRead:
    """Read the start record of a segment, None if it is cut off, and whether a snapshot follows. Raises
    CorruptRecordError, UnknownRecordError, ChainError.
    """
    decoder, head = RecordDecoder(where=name), b""
    window = min(length, start_read_bytes_max)
    async with aclosing(source.chunks(name, window, members)) as chunks:
        async for chunk in chunks:
            head += chunk
    records = decoder.feed(head)
    if records:
        end, record = records[0]
        follows = len(records) > 1 and records[1][1].op is Op.SNAPSHOT_BEGIN
        return StartRead(
            name, parse_start(record, name), RecordBoundary(end, prefix_digest(head[:end])), follows
        )
    torn = decoder.finish()
    if length > window:
        raise ChainError(name, 0, f"a start record within {window} bytes", str(torn))
    return StartRead(name, None)


async def survey(
    source: ChainSource,
    name: str,
    length: int,
    members: Sequence[bytes],
    within: int,
    lengths: Sequence[int] = (),
) -> SegmentSurvey:
    """Survey the first `length` bytes of a segment. within, lengths: as of `SurveySegment`."""
    surveyor = SegmentSurveyor(name, within=within, lengths=lengths)
    async with aclosing(source.chunks(name, length, members)) as chunks:
        async for chunk in chunks:
            surveyor.feed(chunk)
    return surveyor.finish()


async def find_snapshot(source: ChainSource, name: str, length: int, members: Sequence[bytes]) -> int:
    """Return the end of the snapshot that begins the segment; 0 if not finished within `length` bytes."""
    search = SnapshotSearch(name, length)
    while (wanted := search.wanted) is not None:
        data = await source.read_from_any(name, wanted.offset, wanted.max_bytes, members)
        search.take(data)
        if search.wanted == wanted:
            raise LostBytesError(f"{name} should have {length} bytes and ends at {wanted.offset + len(data)}")
    return search.snapshot_end


async def span_chunks(
    source: ChainSource, span: SegmentSpan, scratch: Scratch | None
) -> AsyncGenerator[bytes]:
    """Yield the bytes of a span: from the cache if its digest matches, else from the store into the cache."""
    if scratch is not None and await trio.to_thread.run_sync(scratch.covers, span):
        for chunk in _cached(scratch, span):
            yield chunk
        return
    mirror = scratch.mirror(span.name) if scratch is not None else None
    try:
        async with aclosing(source.chunks(span.name, span.length)) as chunks:
            async for chunk in chunks:
                if mirror is not None:
                    mirror.write(chunk)
                yield chunk
    finally:
        if mirror is not None:
            mirror.close()


def _cached(scratch: Scratch, span: SegmentSpan) -> Iterator[bytes]:
    try:
        yield from scratch.read(span)
    except OSError as error:
        raise LostBytesError(
            f"the local cache of {span.name} failed while it was read: {error}", remedy="restore again"
        ) from error


async def read_batches(
    reader: ClaimPort | StorePort,
    state: ChainState,
    *,
    directory: str | None = None,
    scratch: Scratch | None = None,
    stop: Position | None = None,
) -> AsyncGenerator[list[Step]]:
    """Yield the records of `read_records` in batches, as they arrive from the disk or the network: faster."""
    chain = state if stop is None else state.up_to(stop)
    pieces = _pieces(ChainSource(reader, directory), chain, scratch, stopped=stop is not None)
    async with aclosing(pieces):
        async for replay, chunk in pieces:
            if batch := replay.feed(chunk):
                yield batch


async def read_plain_batches(
    reader: ClaimPort | StorePort,
    state: ChainState,
    *,
    directory: str | None = None,
    scratch: Scratch | None = None,
) -> AsyncGenerator[list[Decoded]]:
    """Yield batches of records, each with the logical offset just past it. Fastest: only the digest of each
    span is checked.
    """
    async with aclosing(_pieces(ChainSource(reader, directory), state, scratch)) as pieces:
        async for replay, chunk in pieces:
            if batch := replay.feed_plain(chunk):
                yield batch


async def read_batches_since(
    store: StorePort, chain: ChainState, since: Position, *, directory: str
) -> AsyncGenerator[list[Decoded]]:
    """Yield batches of the records after `since`, a position in the chain, also those of an unfinished
    snapshot, each with the logical offset just past it. The digests of spans are not checked, because they
    begin before `since`; those of records are. Raises CorruptRecordError, UnknownRecordError,
    TornRecordError, and the errors of the store.
    """
    for span in chain.segments:
        begin = max(since.size - span.base, 0)
        async with aclosing(read_span(store, directory, span, begin, span.length)) as batches:
            async for batch in batches:
                yield [(span.base + end, record) for end, record in batch]


async def read_span(
    store: StorePort, directory: str, span: SegmentSpan, begin: int, end: int, *, window_bytes: int = 0
) -> AsyncGenerator[list[Decoded]]:
    """Yield batches of the records between two offsets in a segment, at which records begin and end, each
    with the offset just past it. window_bytes: of the first read, if little may be needed; each later one is
    larger; 0: one read. Raises as `read_batches_since`, and LostBytesError if there are fewer bytes.
    """
    decoder = RecordDecoder(where=span.name, offset=begin)
    while begin < end:
        until = min(begin + window_bytes, end) if window_bytes else end
        async with aclosing(store.stream(directory, span.name, begin, until, Bookmark())) as chunks:
            async for chunk in chunks:
                begin += len(chunk)
                if batch := decoder.feed(chunk):
                    yield batch
        if begin < until:
            raise LostBytesError(f"{span.name} should have {end} bytes and ends at {begin}")
        window_bytes *= 4
    if (torn := decoder.finish()) is not None:
        raise torn


async def _pieces(
    source: ChainSource, chain: ChainState, scratch: Scratch | None, *, stopped: bool = False
) -> AsyncGenerator[tuple[SpanReplay, bytes]]:
    """Yield the bytes of a chain in order, each chunk with the SpanReplay to feed it to."""
    for span in chain.segments:
        replay = SpanReplay(span, stopped=stopped and span is chain.segments[-1])
        async with aclosing(span_chunks(source, span, scratch)) as chunks:
            async for chunk in chunks:
                yield replay, chunk
        replay.finish()


async def read_records(
    reader: ClaimPort | StorePort,
    state: ChainState,
    *,
    directory: str | None = None,
    scratch: Scratch | None = None,
    stop: Position | None = None,
) -> AsyncGenerator[tuple[Position, Record]]:
    """Yield the records of a chain in order, each with the position just past it: segment starts, the newest
    finished snapshot, what follows it; not those of an unfinished snapshot.

    reader: a Claim, or a Store together with `directory`. scratch: a local cache. stop: None for the end.

    Raises CorruptRecordError, UnknownRecordError, ChainError, LostBytesError, StopNotFoundError, and the
    errors of the store. The digest of a span is checked at its end: after an error, discard everything.
    """
    batches = read_batches(reader, state, directory=directory, scratch=scratch, stop=stop)
    async with aclosing(batches):
        async for batch in batches:
            for step in batch:
                yield step

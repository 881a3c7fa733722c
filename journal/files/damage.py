"""Find the newest state of a damaged chain that is whole: `on_damaged="previous"`.

A state is whole if all records of its stretch can be read and every digest on the way agrees. The search goes
down the present line of history. It decides nothing that the bytes do not show: a refusal raises the error of
the damage, and changes nothing.
"""

import logging
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from dos_client import Quorums
from dos_client.errors import DamagedMembersError, MissingDataError
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptDataError, CorruptError, DosError, PoisonedError
from journal.chain import inspect_chain_at, inspect_claimed, inspect_committed
from journal.core.chain import (
    Answers,
    ChainState,
    Position,
    SeenSegment,
    SegmentStart,
    parse_start,
    segments_seen,
)
from journal.core.errors import LostBytesError
from journal.core.read_walk import held_by_quorum
from journal.core.record import Op, RecordDecoder
from journal.core.scan import RecordBoundary
from journal.ports import ClaimPort, StorePort
from journal.reading import ANY, ChainSource, read_plain_batches

OnDamaged: TypeAlias = Literal["fail", "previous"]
"""What to do if a state cannot be read: raise the error, or use the newest whole one before it."""

logger: Final = logging.getLogger("dos.journal")

_DAMAGE: Final = (
    CorruptDataError,
    CorruptError,
    DamagedMembersError,
    LostBytesError,
    MissingDataError,
    PoisonedError,
)


@dataclass(frozen=True, slots=True)
class WholeState:
    """The newest whole state of a chain. position: its end; None for the end of the chain. damage: what is
    left out, and why; "" if nothing is.
    """

    position: Position | None
    damage: str = ""


async def newest_whole(
    reader: ClaimPort | StorePort, directory: str | None, chain: str, *, generation: int
) -> WholeState:
    """Return the newest whole state, completely read. reader: a claim, or a store together with `directory`.
    Raises the error of the damage if this cannot be decided, and the errors of reading a chain.
    """
    search = _Search(reader, directory, chain, generation)
    try:
        await search.read_all(await search.whole_chain())
    except _DAMAGE as fault:
        return await search.below_damage(fault)
    return WholeState(None)


def check_previous(at: object) -> None:
    """Raise ValueError if `on_damaged="previous"` is combined with a moment."""
    if at is not None:
        raise ValueError('on_damaged="previous" chooses the moment itself: leave `at` out')


class _Scan(NamedTuple):
    """What precedes damage in a segment: its start (None if it is cut off), and the end of its whole records.
    in_snapshot: whether that lies in a snapshot.
    """

    start: SegmentStart | None
    end: RecordBoundary
    in_snapshot: bool


class _Search:
    """One search. A claim is read as its take-over reads it, without settling anything."""

    def __init__(
        self, reader: ClaimPort | StorePort, directory: str | None, chain: str, generation: int
    ) -> None:
        self._reader = reader
        self._claim: ClaimPort | None = reader if directory is None else None  # type: ignore[assignment]
        self._store: StorePort = reader  # type: ignore[assignment]
        self._directory = directory
        self._chain = chain
        self._generation = generation
        self._source = ChainSource(reader, directory)

    async def whole_chain(self) -> ChainState:
        if self._claim is not None:
            return await inspect_claimed(self._claim, self._chain, generation=self._generation)
        return await inspect_committed(self._store, self._directory or "", self._chain)

    async def read_all(self, state: ChainState) -> None:
        batches = read_plain_batches(self._reader, state, directory=self._directory)
        async with aclosing(batches):
            async for _ in batches:
                pass  # the digest of each span is checked at its end

    async def below_damage(self, fault: DosError) -> WholeState:
        """Return the newest whole state before the damage. Raises `fault` if it cannot be decided."""
        answers, segment, limit = await self._head(fault)
        segments = {str(one.name): one for one in segments_seen(self._chain, answers)}
        end = max(one.name.base + one.longest for one in segments.values())
        while True:
            try:
                found = await self._scan(segment, limit)
            except _DAMAGE:
                segment, limit = await self._predecessor(segment, segments.values(), fault)
                continue
            if found.start is None:
                raise fault
            position = Position(segment.name.epoch, segment.name.base + found.end.bytes, found.end.digest)
            # A damaged snapshot: the end of the predecessor is the same state.
            if not found.in_snapshot and await self._is_whole(position):
                break
            below = found.start.predecessor
            if below is None or below.name not in segments:
                raise fault
            segment, limit = segments[below.name], below.length
        damage = (
            f"chain {self._chain}: {end - position.size} bytes from offset {position.size} on are left out"
            f" because of damage: {fault.args[0]}"
        )
        logger.error("%s", damage)
        return WholeState(position, damage)

    async def _is_whole(self, position: Position) -> bool:
        try:
            await self.read_all(await self._up_to(position))
        except _DAMAGE:
            return False
        return True

    async def _head(self, fault: DosError) -> tuple[Answers, SeenSegment, int]:
        """Return the answers, and the newest segment that begins, with the bytes of it that count."""
        if self._claim is not None:
            answers, claims = self._claim.answers, None
        else:
            view = await self._store.inspect(self._directory or "")
            answers, claims = view.answers, {member: epoch for member, (epoch, _) in view.epochs.items()}
        record = self._claim.store.record if self._claim is not None else self._store.record
        if len(answers) < len(record.voters):
            raise fault  # the missing copy may be good: to go back would lose acknowledged records
        segments = segments_seen(self._chain, answers)
        for one in segments:
            if not one.longest:
                continue
            held = one.longest
            if claims is not None:
                held = held_by_quorum(Quorums(record), one, claims, {})
            try:
                found = await self._scan(one, one.longest, starts_only=True)
            except _DAMAGE:
                return answers, *await self._predecessor(one, segments, fault)
            acknowledged = claims is None or max(held, one.longest - 1) >= found.end.bytes
            if found.start is not None and acknowledged:
                return answers, one, max(held, found.end.bytes)
            # otherwise its writer died before its start was acknowledged
        raise fault

    async def _predecessor(
        self, damaged: SeenSegment, segments: Iterable[SeenSegment], fault: DosError
    ) -> tuple[SeenSegment, int]:
        """Return the segment that precedes one whose start is damaged, with its bytes up to there."""
        # The start of a segment says what precedes it. If that is damaged, it is the only lower segment with
        # a record that ends at the base of the damaged one.
        found = []
        for one in segments:
            limit = damaged.name.base - one.name.base
            if one.name.order >= damaged.name.order or not 0 < limit <= one.longest:
                continue
            with suppress(*_DAMAGE):
                if (await self._scan(one, limit)).end.bytes == limit:
                    found.append((one, limit))
        if len(found) != 1:
            raise fault  # of two possible lines of history, one was taken back
        return found[0]

    async def _up_to(self, position: Position) -> ChainState:
        if self._claim is not None:
            return await inspect_claimed(self._claim, self._chain, at=position, generation=self._generation)
        return await inspect_chain_at(self._store, self._directory or "", self._chain, position)

    async def _scan(self, segment: SeenSegment, limit: int, *, starts_only: bool = False) -> "_Scan":
        """Read records until damage, or `limit` bytes. Raises CorruptDataError if the start is damaged."""
        name, start, digest, in_snapshot = str(segment.name), None, PrefixDigest(), False
        decoder, pending, end = RecordDecoder(where=name), b"", RecordBoundary()
        try:
            async with aclosing(self._source.chunks(name, limit, ANY)) as chunks:
                async for chunk in chunks:
                    pending += chunk
                    records = decoder.feed(chunk)
                    for _, record in records:
                        if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
                            in_snapshot = record.op is Op.SNAPSHOT_BEGIN
                    if records and start is None:
                        start = parse_start(records[0][1], name)
                    upto = records[0][0] if records and starts_only else decoder.offset
                    whole = upto - digest.size
                    digest.update(pending[:whole])
                    pending, end = pending[whole:], RecordBoundary(upto, digest.value)
                    if start is not None and starts_only:
                        break
        except _DAMAGE:
            if start is None:
                raise
        return _Scan(start, end, in_snapshot)

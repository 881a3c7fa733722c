"""Committed bytes of one object: read, streamed ahead, and followed as the object grows.

Bytes are returned only if Qa members have them with one prefix digest (`core.agreement`), and the prefix
digest that is computed here equals it. Any member may supply them, hedged. Pieces of different members cannot
combine to a history that was never written: each is verified as the continuation of the previous one. For
each piece, Qa members are queried for a digest, at the same time as the read. A stream fetches
`pieces_ahead_max` pieces at once.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

import trio

from dos_client.core.agreement import Agreement, Reach, agree, reach, reading_quorums
from dos_client.core.quorum import Quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import (
    follow_pause_s,
    follow_wait_ms,
    piece_bytes,
    pieces_ahead_max,
    read_bytes_max,
    read_timeout_s,
)
from dos_client.randomness import backoff_s
from dos_client.reading.damage import CopyFault
from dos_client.reading.member_queries import (
    RETRY_PAUSE_S,
    MemberAnswers,
    MemberQuery,
    ReadableStore,
    query_members,
    read_one,
    with_retries,
)
from dos_client.sessions.connection import Connection
from dos_client.tasks import Ahead, run_both
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import BrokenConnectionError, CorruptError, DosError, NotFoundError, PastEndError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.messages import StatResult
from dos_protocol.names import check_name
from dos_protocol.store_record import Member

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommittedPiece:
    start: int
    data: bytes
    digest: int
    server_id: bytes


class CommittedReads:
    """One object as a quorum holds it. Stateless. All methods raise QuorumUnavailableError if too few members
    answer now.
    """

    def __init__(self, store: ReadableStore, directory: str, name: str) -> None:
        self.directory = check_name(directory)
        self.name = check_name(name)
        self._store = store

    def __str__(self) -> str:
        return f"{self.directory}/{self.name}"

    async def reach(self) -> Reach:
        quorums = reading_quorums(self._store.record)

        def evaluate(answers: MemberAnswers[StatResult]) -> tuple[Reach, set[bytes]]:
            sizes = {server_id: one.info.synced for server_id, one in answers.given.items()}
            damaged = {one for one, reached in answers.given.items() if reached.info.corrupt}
            sound = {*answers.given, *answers.without} - damaged
            return reach(quorums, sizes, sound), sound

        def judge(answers: MemberAnswers[StatResult]) -> tuple[int, bool]:
            reached, sound = evaluate(answers)
            return 0 if reached.sure else 1, quorums.can_take_over(sound)

        async def request(connection: Connection) -> StatResult:
            return await connection.stat(self.name)

        answers = await self._query(0, request, judge, self._members(quorums), lacking=quorums.claims_needed)
        for server_id, result in answers.given.items():
            self._note_marks(server_id, result)
        reached, sound = evaluate(answers)
        if not quorums.can_take_over(sound):
            raise self._too_few(quorums, answers, "to say how far it goes", len(sound))
        if not answers.given:
            raise answers.error()
        return reached

    async def begin(self, offset: int) -> PrefixDigest:
        """Return the quorum's digest at the block boundary at or before `offset`. Raises PastEndError."""
        base = offset - offset % digest_block_bytes
        if base == 0:
            return PrefixDigest()
        agreement, answers = await self._agreement(base)
        if agreement.digest is not None:
            return PrefixDigest(base, agreement.digest)
        quorums = reading_quorums(self._store.record)
        if quorums.can_take_over(answers.without) and not answers.given:
            raise answers.error()
        raise self._no_agreement(quorums, agreement, answers, base)

    async def piece(self, fold: PrefixDigest, end: int) -> tuple[CommittedPiece, PrefixDigest]:
        """Return at least one byte from the end of `fold`, up to `end` or as far as a quorum agrees, and the
        fold after them. Raises CorruptError if no quorum decides or no member returns its bytes,
        NotFoundError.
        """
        while True:
            piece = await self.fetch(fold.size, end)
            after = self.check(fold, piece)
            if after is not None:
                return piece, after

    def check(self, fold: PrefixDigest, piece: CommittedPiece) -> PrefixDigest | None:
        after = fold.copy()
        after.update(piece.data)
        if after.value == piece.digest:
            return after
        self._note(piece.server_id, piece.start, CopyFault.DIFFERENT)
        return None

    async def fetch(self, start: int, end: int) -> CommittedPiece:
        (agreed, (data, server_id)) = await run_both(
            lambda: self._agreed(start, end), lambda: self._bytes(start, end)
        )
        agreed_end, digest = agreed
        return CommittedPiece(start, data[: agreed_end - start], digest, server_id)

    async def _bytes(self, start: int, end: int) -> tuple[bytes, bytes]:
        wanted = end - start

        async def request(connection: Connection) -> bytes:
            return await read_one(connection, self.name, start, wanted)

        def judge(answers: MemberAnswers[bytes]) -> tuple[int, bool]:
            return 0 if any(len(data) == wanted for data in answers.given.values()) else 1, False

        answers = await self._query(wanted, request, judge, self._store.record.voters)
        for server_id, data in answers.given.items():
            if len(data) == wanted:
                return data, server_id
        self._check_removed(answers)
        refusals = list(answers.failed.values())
        if refusals and all(isinstance(one, CorruptError) for one in refusals):
            raise CorruptError(
                f"no member returns the bytes {start} to {end} of {self} that a quorum has: "
                + "; ".join(str(one.args[0]) for one in refusals),
                actual=start,
            )
        raise QuorumUnavailableError(
            f"no connected member has the bytes {start} to {end} of {self}",
            [str(one.args[0]) for one in refusals],
        )

    async def _agreed(self, start: int, end: int) -> tuple[int, int]:
        """Return the largest size in (start, end] at which a quorum agrees, and the digest there."""
        agreement, answers = await self._agreement(end, start)
        if agreement.digest is not None:
            return end, agreement.digest
        found: tuple[int, int] | None = None
        low, high = start, end
        if agreement.disputed or answers.without or _damaged(answers):
            while high - low > 1:  # agreement at a size is agreement at every smaller one
                middle = (low + high) // 2
                smaller, _ = await self._agreement(middle, start)
                if smaller.digest is None:
                    high = middle
                else:
                    low, found = middle, (middle, smaller.digest)
        if found is None:
            self._check_removed(answers)
            raise self._no_agreement(reading_quorums(self._store.record), agreement, answers, end)
        return found

    async def _agreement(self, size: int, start: int = 0) -> tuple[Agreement, MemberAnswers[StatResult]]:
        """Ask for the digests at that size. Note members that contradict a quorum."""
        quorums = reading_quorums(self._store.record)

        async def request(connection: Connection) -> StatResult:
            return await connection.stat(self.name, size)

        def compare(answers: MemberAnswers[StatResult]) -> Agreement:
            return agree(quorums, {server_id: one.digest for server_id, one in answers.given.items()})

        def judge(answers: MemberAnswers[StatResult]) -> tuple[int, bool]:
            return compare(answers).lacking, False

        answers = await self._query(0, request, judge, self._members(quorums), lacking=quorums.lacking(()))
        agreement = compare(answers)
        for server_id in agreement.against:
            self._note(server_id, start, CopyFault.DIFFERENT)
        return agreement, answers

    def _check_removed(self, answers: MemberAnswers[T]) -> None:
        """Raise NotFoundError if F members report that there is no object, and none gives any of it."""
        gone = {one: error for one, error in answers.without.items() if isinstance(error, NotFoundError)}
        if not answers.given and reading_quorums(self._store.record).can_take_over(gone):
            raise next(iter(gone.values()))

    def _no_agreement(
        self, quorums: Quorums, agreement: Agreement, answers: MemberAnswers[StatResult], size: int
    ) -> DosError:
        if agreement.disputed:
            digests = [
                f"{self._address(one)} has digest {found.digest:016x}" for one, found in answers.given.items()
            ]
            return CorruptError(
                f"members hold different bytes of {self} below {size}, and no {quorums.ack_quorum} of them"
                f" agree: {', '.join(sorted(digests))}",
                remedy="start the unavailable members, or compare the copies with `dos store verify`",
                actual=size,
            )
        return self._too_few(quorums, answers, f"to agree on its first {size} bytes", len(answers.given))

    def _too_few(
        self, quorums: Quorums, answers: MemberAnswers[StatResult], purpose: str, count: int
    ) -> QuorumUnavailableError:
        needed = quorums.ack_quorum if answers.given else quorums.claims_needed
        return QuorumUnavailableError(
            f"{needed} members are needed {purpose}: {self}; {count} answered",
            [str(one.args[0]) for one in (*answers.failed.values(), *answers.without.values())],
        )

    async def _query(
        self,
        size: int,
        request: Callable[[Connection], Awaitable[T]],
        judge: Callable[[MemberAnswers[T]], tuple[int, bool]],
        members: Sequence[Member],
        lacking: int = 1,
    ) -> MemberAnswers[T]:
        question = MemberQuery(self.directory, self.name, size, request, judge, lacking)
        return await query_members(self._store, [members], question)

    def _members(self, quorums: Quorums) -> list[Member]:
        return [one for one in self._store.record.members if one.server_id in quorums.members]

    def _address(self, server_id: bytes) -> str:
        member = self._store.record.member(server_id)
        return member.address if member is not None else server_id.hex()

    def _note(self, server_id: bytes, offset: int, why: CopyFault) -> None:
        self._store.damage.note(server_id, self.directory, self.name, offset, why)

    def _note_marks(self, server_id: bytes, result: StatResult) -> None:
        if self._store.damage.avoid(server_id, self.directory, self.name):
            return
        if result.info.poisoned:
            self._note(server_id, result.info.synced, CopyFault.POISONED)
        elif result.info.corrupt:
            self._note(server_id, 0, CopyFault.DAMAGED)


def _damaged(answers: MemberAnswers[StatResult]) -> bool:
    return any(isinstance(error, CorruptError) for error in answers.failed.values())


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
    def __init__(self, store: ReadableStore, committed: CommittedReads) -> None:
        self._store = store
        self._committed = committed
        self._reach: Reach | None = None

    async def beyond(self, size: int) -> int | None:
        """Implement `Extent`. Raises QuorumUnavailableError if that stays unknown, PastEndError,
        NotFoundError.
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
    """Read the bytes from `offset` to `end`, or as far as `extent` goes. `seen`: is advanced; with an `end`,
    the bytes up to it are assumed to be committed, as the caller knows, unless a quorum does not agree on
    them.
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
    pieces = _Pieces(store, committed, without_limit=without_limit)
    try:
        while end is None or fold.size < end:
            limit = known or await extent.beyond(max(fold.size, offset))
            if limit is None:
                return
            piece, fold = await pieces.next(fold, limit if end is None else min(limit, end))
            if fold.size % piece_bytes and fold.size < limit:
                known = 0  # a quorum agrees on less
            if seen is not None:
                seen.fold = fold
            data = piece.data[offset - piece.start :] if piece.start < offset else piece.data
            if data:
                yield data
    finally:
        pieces.drop()


async def read_committed(
    store: ReadableStore, directory: str, name: str, offset: int, max_bytes: int
) -> bytes:
    """Return committed bytes. Implements `Store.read`."""
    committed = CommittedReads(store, directory, name)
    end = offset + min(max_bytes, read_bytes_max)
    stream = committed_stream(store, committed, Snapshot(store, committed), offset, end)
    return b"".join([data async for data in stream])


class _Pieces:
    """The pieces of a stream, fetched ahead. Invariant: they are contiguous; `_ends` are their ends."""

    def __init__(self, store: ReadableStore, committed: CommittedReads, *, without_limit: bool) -> None:
        self._store = store
        self._committed = committed
        self._without_limit = without_limit
        self._ahead = Ahead[CommittedPiece](store.start)
        self._ends: deque[int] = deque()

    async def next(self, fold: PrefixDigest, limit: int) -> tuple[CommittedPiece, PrefixDigest]:
        self._prefetch(fold.size, limit)
        end, after = self._ends.popleft(), None
        with suppress(DosError):
            piece = await self._ahead.next()
            after = self._committed.check(fold, piece)
        self._prefetch(end, limit)
        if after is None:
            # It failed, or does not continue `fold`: others may have it, or the error is raised.
            piece, after = await self._fetch_alone(fold, end)
        if after.size != end:
            self.drop()
        return piece, after

    def drop(self) -> None:
        self._ahead.drop()
        self._ends.clear()

    async def _fetch_alone(self, fold: PrefixDigest, end: int) -> tuple[CommittedPiece, PrefixDigest]:
        deadline = trio.current_time() + read_timeout_s
        while True:
            try:
                return await self._committed.piece(fold, end)
            except (QuorumUnavailableError, BrokenConnectionError, CorruptError, NotFoundError) as error:
                waits = self._without_limit and not isinstance(error, CorruptError)
                removed = isinstance(error, NotFoundError)  # waited for only by who follows its name
                if not waits and (removed or trio.current_time() > deadline):
                    raise
            await self._store.wait_moved(RETRY_PAUSE_S)

    def _prefetch(self, start: int, limit: int) -> None:
        start = self._ends[-1] if self._ends else start
        while start < limit and len(self._ends) < pieces_ahead_max:
            end = min(start - start % piece_bytes + piece_bytes, limit)
            self._ahead.begin(partial(self._committed.fetch, start, end))
            self._ends.append(end)
            start = end


async def follow(store: ReadableStore, directory: str, name: str, offset: int) -> AsyncGenerator[bytes]:
    """Read committed bytes as they are committed. Implements `Store.follow`."""
    committed = CommittedReads(store, directory, name)
    with Growth(store, committed) as sizes:
        stream = committed_stream(store, committed, sizes, offset, without_limit=True)
        async with aclosing(stream):
            async for data in stream:
                yield data


class Growth:
    """What each member has of the object beyond the requested position, watched while this is entered."""

    def __init__(self, store: ReadableStore, committed: CommittedReads, position: int = 0) -> None:
        self._store = store
        self._committed = committed
        self._record = store.record
        self._sizes: dict[bytes, int] = {}
        self._position = position
        self._session_hold = ExitStack()
        self._grown = trio.Event()
        self._wanted = trio.Event()
        self._scope = trio.CancelScope()

    async def beyond(self, size: int) -> int:
        if size > self._position:
            self._position = size
            self._wanted.set()
            self._wanted = trio.Event()
        while True:
            # Sizes reported under another record do not count in this one: a member may have left with them.
            if self._store.record != self._record:
                self._end()
                self._begin()  # sizes reported under another record do not count in this one
            gone_back = self._store.witnesses.rolled_back
            sizes = {one: size for one, size in self._sizes.items() if one not in gone_back}
            reached = reading_quorums(self._record).watermark(sizes)
            if reached > size:
                return reached
            with trio.move_on_after(1.0):  # a new record does not wake this task
                await self._grown.wait()

    def _begin(self) -> None:
        self._record = self._store.record
        self._sizes = {}
        self._scope = trio.CancelScope()
        self._store.start(partial(self._watch_all, self._scope, self._sizes))

    def _end(self) -> None:
        self._scope.cancel()

    async def _watch_all(self, scope: trio.CancelScope, sizes: dict[bytes, int]) -> None:
        members = reading_quorums(self._record).members
        with scope:
            async with trio.open_nursery() as nursery:
                for member in self._record.members:
                    if member.server_id in members:
                        nursery.start_soon(self._watch, member, sizes)

    async def _watch(self, member: Member, sizes: dict[bytes, int]) -> None:
        attempt = 0
        while True:
            while sizes.get(member.server_id, 0) > self._position:
                await self._wanted.wait()
            try:
                grew = await self._poll(member, sizes)
                attempt = 0
                if not grew:
                    await trio.sleep(follow_pause_s)
            except DosError:
                attempt += 1
                await trio.sleep(backoff_s(attempt, self._store.rng.random()))

    async def _poll(self, member: Member, sizes: dict[bytes, int]) -> bool:
        known = sizes.get(member.server_id, self._position)
        connection = await self._store.reader(member, self._committed.directory)
        try:
            data = await connection.get_data(self._committed.name, known, 1, follow_wait_ms)
        except PastEndError as error:
            size = error.actual
        except NotFoundError:
            size = 0
        except CorruptError as error:
            size = error.actual
            path = (self._committed.directory, self._committed.name)
            self._store.damage.note(member.server_id, *path, size, CopyFault.DAMAGED)
        else:
            size = data.synced
        before = sizes.get(member.server_id)
        sizes[member.server_id] = size
        if before is None or size > before:
            self._grown.set()
            self._grown = trio.Event()
            return True
        return False

    def __enter__(self) -> Self:
        self._session_hold.enter_context(self._store.readers.hold(self._committed.directory))
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._session_hold.close()

"""Bytes of one object that a quorum holds, verified against the quorum's digest.

Bytes are returned only if Qa members have them with one prefix digest (`core.agreement`), and the prefix
digest that is computed here equals it. Any member may supply the bytes, hedged. A member that supplies other
bytes is noted as different and is avoided. Pieces of different members cannot combine to a history that was
never written, because each piece is verified as the continuation of the previous one.

Cost: for each piece, usually 1 MiB, Qa members are queried for a digest, at the same time as the read. For a
digest a member reads one or two extents. To begin inside an object, the digest of the preceding block
boundary is requested first, and up to 64 KiB more are read.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import trio

from dos_client.core.agreement import Agreement, Reach, agree, reach, reading_quorums
from dos_client.core.quorum import Quorums
from dos_client.errors import QuorumUnavailableError
from dos_client.reading.damage import CopyFault
from dos_client.reading.member_queries import MemberAnswers, MemberQuery, query_members
from dos_client.reading.sessions import ReadableStore, read_one
from dos_client.sessions.connection import Connection
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptError, DosError, NotFoundError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.messages import StatResult
from dos_protocol.names import check_name
from dos_protocol.store_record import Member

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class CommittedPiece:
    """Bytes from `start`, as one member returned them, and the quorum's prefix digest at their end."""

    start: int
    data: bytes
    digest: int
    server_id: bytes


class CommittedReads:
    """One object as a quorum holds it. Stateless; any number of calls may run at once.

    All methods raise QuorumUnavailableError if too few members answer now. A retry may help.
    """

    def __init__(self, store: ReadableStore, directory: str, name: str) -> None:
        self.directory = check_name(directory)
        self.name = check_name(name)
        self._store = store

    def __str__(self) -> str:
        return f"{self.directory}/{self.name}"

    async def reach(self) -> Reach:
        """Return how far the object reaches now. Raises NotFoundError if F members report that it does not
        exist.
        """
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
        """Return the quorum's prefix digest at the block boundary at or before `offset`. Raises
        PastEndError.
        """
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
        """Return the bytes from the end of `fold` up to `end`, or as far as a quorum agrees, and the fold
        after them.

        Returns at least one byte. Raises CorruptError if members contradict each other and no quorum decides,
        or if no connected member returns the quorum's bytes; NotFoundError if F members report that it does
        not exist any more.
        """
        while True:
            piece = await self.fetch(fold.size, end)
            after = self.check(fold, piece)
            if after is not None:
                return piece, after

    def check(self, fold: PrefixDigest, piece: CommittedPiece) -> PrefixDigest | None:
        """Return the fold with the piece, or None if these are not the quorum's bytes. The member is then
        noted as different.
        """
        after = fold.copy()
        after.update(piece.data)
        if after.value == piece.digest:
            return after
        self._note(piece.server_id, piece.start, CopyFault.DIFFERENT)
        return None

    async def fetch(self, start: int, end: int) -> CommittedPiece:
        """Do the same as `piece`, without verification: return bytes, and the digest that they must have."""
        (agreed, (data, server_id)) = await _run_both(
            lambda: self._agreed(start, end), lambda: self._bytes(start, end)
        )
        agreed_end, digest = agreed
        return CommittedPiece(start, data[: agreed_end - start], digest, server_id)

    async def _bytes(self, start: int, end: int) -> tuple[bytes, bytes]:
        """Return bytes and the member that returned them."""
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
        """Ask for the digests at that size. Members that contradict a quorum are noted as different from
        `start` on.
        """
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
        """Return the members that count in any set."""
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


async def _run_both(first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[U]]) -> tuple[T, U]:
    """Run both at once. The first error cancels the other and is raised as it is, not in a group."""
    errors: list[DosError] = []
    results: list[U] = []

    async def run_second() -> None:
        try:
            results.append(await second())
        except DosError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_second)
        try:
            result = await first()
        except DosError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return result, results[0]

"""Query members with hedging: one member first, and another if that one is slow.

This module has the sessions, tasks and timers of one race. The caller decides what is requested and when the
answers are enough; `core.hedging` decides the order and the delays. Damage that members report is noted here,
for all reads.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio

from dos_client.arguments import check_run
from dos_client.core.hedging import Candidate, DropMember, Effect, QueryMember, Race
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import answers_owed_max
from dos_client.reading.damage import CopyFault
from dos_client.reading.sessions import ReadableStore
from dos_client.sessions.connection import Connection
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    NotFoundError,
    PastEndError,
    PoisonedError,
    RolledBackError,
)
from dos_protocol.store_record import Member

T = TypeVar("T")


@dataclass(slots=True)
class MemberAnswers(Generic[T]):
    """The answers of members. `without`: members that do not have the object, or not as much of it."""

    given: dict[bytes, T] = field(default_factory=dict)
    without: dict[bytes, NotFoundError | PastEndError] = field(default_factory=dict)
    failed: dict[bytes, DosError] = field(default_factory=dict)

    def error(self) -> DosError:
        """Return the most informative error: damage first, then missing data, then unavailable members."""
        errors: list[DosError] = [*self.failed.values(), *self.without.values()]
        for kind in (CorruptError, PoisonedError, PastEndError, NotFoundError):
            for error in errors:
                if isinstance(error, kind):
                    return error
        return next(
            (error for error in errors if not isinstance(error, BrokenConnectionError)),
            errors[0] if errors else QuorumUnavailableError("the store has no members to query"),
        )


@dataclass(frozen=True, slots=True)
class MemberQuery(Generic[T]):
    """A request that several members can answer.

    `size`: the approximate number of bytes in an answer, 0 for none; answer times are compared within a size
    class. `lacking`: how many answers are needed at least. `judge`: returns how many answers are still
    lacking, and whether the answers are enough if no other member has a better one.
    """

    directory: str
    name: str
    size: int
    request: Callable[[Connection], Awaitable[T]]
    judge: Callable[[MemberAnswers[T]], tuple[int, bool]]
    lacking: int = 1


class Sessions(Protocol):
    """The sessions on which members are queried: those of readers or those of a claim."""

    async def session(self, member: Member) -> Connection:
        """Return a live session in the directory. Raises BrokenConnectionError."""
        ...

    def owed(self, member: Member) -> int:
        """Return the member's `Connection.owed`."""
        ...

    def is_connected(self, member: Member) -> bool:
        """Return whether the member is connected, as far as is known."""
        ...


async def query_members(
    store: ReadableStore,
    tiers: Sequence[Sequence[Member]],
    query: MemberQuery[T],
    sessions: Sessions | None = None,
) -> MemberAnswers[T]:
    """Query members until the answers are enough or no member is left. Errors are in the answers; none is
    raised.

    Members of a later tier are queried only if those of the earlier tiers are not enough. `sessions`: those
    of readers by default.
    """
    check_run(store.run_token)
    return await _HedgedQuery(store, tiers, query, sessions or ReaderSessions(store, query.directory)).run()


class ReaderSessions:
    """The sessions of the store's readers in one directory."""

    def __init__(self, store: ReadableStore, directory: str) -> None:
        self._store = store
        self._directory = directory

    async def session(self, member: Member) -> Connection:
        return await self._store.reader(member, self._directory)

    def owed(self, member: Member) -> int:
        return self._store.owed(member, self._directory)

    def is_connected(self, member: Member) -> bool:
        return self._store.is_connected(member.server_id)


class _HedgedQuery(Generic[T]):
    def __init__(
        self,
        store: ReadableStore,
        tiers: Sequence[Sequence[Member]],
        query: MemberQuery[T],
        sessions: Sessions,
    ) -> None:
        self._store = store
        self._query = query
        self._sessions = sessions
        self._members = {member.server_id: member for members in tiers for member in members}
        self._answers: MemberAnswers[T] = MemberAnswers()
        self._scopes: dict[bytes, trio.CancelScope] = {}
        self._moved = trio.Event()
        now = trio.current_time()
        pace, size = store.pace, query.size
        rng = store.rng.random()
        order = [one for tier in tiers for one in pace.order(self._candidates(tier), size, now, rng)]
        delay_s = pace.delay_s(order[0], size, now) if order else 0.0
        self._race = Race(order, delay_s, pace.budget, lacking=query.lacking)

    async def run(self) -> MemberAnswers[T]:
        race = self._race
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._store.counts.questions += 1
            self._perform(race.begin(trio.current_time()))
            while not race.over:
                with trio.move_on_at(race.deadline):
                    await self._moved.wait()
                self._moved = trio.Event()
                if trio.current_time() >= race.deadline:
                    self._perform(race.time_is_up(trio.current_time()))
        return self._answers

    def _candidates(self, members: Sequence[Member]) -> list[Candidate]:
        """Return the members to query. Excludes members whose bytes look sound but differ, and those that owe
        too many answers.
        """
        damage, candidates = self._store.damage, []
        path = (self._query.directory, self._query.name)
        for member in members:
            server_id, owed = member.server_id, self._sessions.owed(member)
            if damage.refuse(server_id, *path):
                self._answers.failed[server_id] = CorruptError(
                    f"{member.address} has other bytes of {path[0]}/{path[1]} than a quorum"
                )
            elif owed >= answers_owed_max:
                self._answers.failed[server_id] = BrokenConnectionError(
                    f"{member.address} still owes {owed} answers"
                )
            else:
                connected, avoided = self._sessions.is_connected(member), damage.avoid(server_id, *path)
                candidates.append(Candidate(server_id, connected, avoided, owed))
        return candidates

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, QueryMember):
                self._store.counts.hedges += effect.hedge
                scope = self._scopes[effect.server_id] = trio.CancelScope()
                self._nursery.start_soon(self._query_member, self._members[effect.server_id], scope)
            elif isinstance(effect, DropMember):
                self._scopes[effect.server_id].cancel()
                self._note_time(effect.server_id, effect.seconds)
                address = self._members[effect.server_id].address
                self._answers.failed[effect.server_id] = BrokenConnectionError(
                    f"{address} did not answer within {effect.seconds:.3g} s"
                )
        self._moved.set()

    async def _query_member(self, member: Member, scope: trio.CancelScope) -> None:
        race, server_id = self._race, member.server_id
        with scope:
            try:
                connection = await self._sessions.session(member)
                begin = trio.current_time()
                self._answers.given[server_id] = await self._query.request(connection)
                self._note_time(server_id, trio.current_time() - begin)
            except (NotFoundError, PastEndError) as error:
                self._answers.without[server_id] = error
            except DosError as error:
                self._answers.failed[server_id] = error
                self._note_damage(server_id, error)
                self._perform(race.failed(server_id, trio.current_time()))
                return
            answers = self._answers
            for one in self._store.witnesses.rolled_back & {*answers.given, *answers.without}:
                answers.given.pop(one, None)  # found out after it had answered
                answers.without.pop(one, None)
                answers.failed[one] = RolledBackError("its disk went back in time", actual=0)
            lacking, settled = self._query.judge(self._answers)
            self._perform(race.answered(server_id, trio.current_time(), lacking=lacking, settled=settled))

    def _note_time(self, server_id: bytes, seconds: float) -> None:
        self._store.pace.note(server_id, self._query.size, seconds, trio.current_time())

    def _note_damage(self, server_id: bytes, error: DosError) -> None:
        if isinstance(error, CorruptError | PoisonedError):
            why = CopyFault.DAMAGED if isinstance(error, CorruptError) else CopyFault.POISONED
            self._store.damage.note(server_id, self._query.directory, self._query.name, error.actual, why)

"""Query members without a claim, with hedging: one member first, and another if that one is slow.

The caller decides what is requested and when the answers are enough; `core.hedging` decides the order and the
delays. Damage that members report is noted here, for all reads.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import trio

from dos_client.arguments import check_run
from dos_client.core.agreement import reading_quorums
from dos_client.core.hedging import Candidate, DropMember, Effect, QueryMember, Race
from dos_client.errors import QuorumUnavailableError
from dos_client.limits import (
    answers_owed_max,
    read_ahead_bytes_max,
    read_ahead_bytes_min,
    read_ahead_kept_s,
    read_ahead_pieces_max,
    read_ahead_streams_max,
    read_bytes_max,
    read_timeout_s,
    reader_sessions_max,
)
from dos_client.reading.damage import CopyFault
from dos_client.sessions.connection import Connection
from dos_client.sessions.members import WitnessedStore, open_member_session
from dos_client.tasks import Ahead
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    NotFoundError,
    PastEndError,
    PoisonedError,
    RefusedError,
    RolledBackError,
    StaleGenerationError,
)
from dos_protocol.limits import payload_bytes_max
from dos_protocol.messages import DirectoryOpened
from dos_protocol.names import check_name
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


async def read_one(connection: Connection, name: str, offset: int, max_bytes: int) -> bytes:
    """Read durable bytes from one member, short only at its synced end. Raises as `Connection.get`."""
    wanted = min(max_bytes, read_bytes_max)
    parts: list[bytes] = []
    while wanted > 0:
        part = await connection.get(name, offset, min(wanted, payload_bytes_max))
        parts.append(part)
        if not part:
            break
        offset += len(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ReaderSession:
    def __init__(self, store: WitnessedStore, member: Member, directory: str) -> None:
        self.member = member
        self.scope = trio.CancelScope()
        self._store = store
        self._directory = directory
        self._connection: Connection | None = None
        self._opened: DirectoryOpened | None = None
        self._error: DosError | None = None
        self._ready = trio.Event()
        self._waiting = 0

    @property
    def in_use(self) -> bool:
        """Return whether a task waits for the session or for an answer. Between two requests in sequence, a
        task does not give way to others, so it is in use until the last answer was taken.
        """
        return self._waiting > 0 or (self._connection is not None and self._connection.awaited)

    @property
    def over(self) -> bool:
        return self._error is not None

    @property
    def owed(self) -> int:
        return 0 if self._connection is None else self._connection.owed

    async def run(self) -> None:
        store = self._store
        try:
            with self.scope:
                async with open_member_session(store, self.member) as connection:
                    self._opened = await connection.open_directory(self._directory)
                    self._connection = connection
                    self._ready.set()
                    raise await connection.wait_broken()
        except StaleGenerationError as error:
            store.reread_membership()
            self._error = error
        except DosError as error:
            self._error = error
        finally:
            self._connection = None
            self._error = self._error or BrokenConnectionError(
                f"the session with {self.member.address} ended"
            )
            self._ready.set()

    async def connection(self) -> Connection:
        """Return the live session. Raises BrokenConnectionError with the reason if there is none."""
        self._waiting += 1
        try:
            await self._ready.wait()
        finally:
            self._waiting -= 1
        if self._connection is None:
            assert self._error is not None
            raise BrokenConnectionError(str(self._error.args[0])) from self._error
        return self._connection

    async def opened(self) -> DirectoryOpened:
        """Return the current content of the directory: the answer to a CWD that follows the call."""
        is_new = not self._ready.is_set()
        connection = await self.connection()
        opened, self._opened = self._opened, None
        if is_new and opened is not None:
            return opened  # of the CWD with which the session began, after the call
        return await connection.open_directory(self._directory)


class Readers:
    """The reader sessions of a store. Sessions in use and those of held directories stay; of the others, the
    least recently used end.
    """

    def __init__(self, store: WitnessedStore) -> None:
        self._store = store
        self._sessions: OrderedDict[tuple[bytes, str], ReaderSession] = OrderedDict()
        self._held_directories: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, member: Member, directory: str) -> ReaderSession:
        check_run(self._store.run_token)
        key = (member.server_id, check_name(directory))
        session = self._sessions.get(key)
        if session is None or session.over:
            session = self._sessions[key] = ReaderSession(self._store, member, directory)
            self._store.start(session.run)
        self._sessions.move_to_end(key)
        free = [
            key
            for key, one in self._sessions.items()
            if one is not session and not one.in_use and not self._held_directories[key[1]]
        ]
        for oldest in free[: max(len(free) - reader_sessions_max, 0)]:
            self._sessions.pop(oldest).scope.cancel()
        return session

    @contextmanager
    def hold(self, directory: str) -> Iterator[None]:
        """Keep the sessions in that directory open during the block, however many others there are."""
        self._held_directories[directory] += 1
        try:
            yield
        finally:
            self._held_directories -= Counter([directory])  # removes the entry when its count is 0

    def owed(self, member: Member, directory: str) -> int:
        session = self._sessions.get((member.server_id, directory))
        return 0 if session is None else session.owed

    def end_all(self) -> None:
        for session in self._sessions.values():
            session.scope.cancel()
        self._sessions.clear()


class ReadableStore(WitnessedStore, Protocol):
    readers: Readers

    def unavailable(self, error: DosError) -> DosError: ...

    async def reader(self, member: Member, directory: str) -> Connection: ...

    def is_connected(self, server_id: bytes) -> bool: ...


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
    """A request that several members can answer. `size`: of an answer; times are compared within a size
    class. `judge`: returns how many answers are lacking, and whether they are enough if no other member has a
    better one.
    """

    directory: str
    name: str
    size: int
    request: Callable[[Connection], Awaitable[T]]
    judge: Callable[[MemberAnswers[T]], tuple[int, bool]]
    lacking: int = 1


class Sessions(Protocol):
    async def session(self, member: Member) -> Connection:
        """Return a live session in the directory. Raises BrokenConnectionError."""
        ...

    def owed(self, member: Member) -> int: ...

    def is_connected(self, member: Member) -> bool: ...


async def query_members(
    store: ReadableStore,
    tiers: Sequence[Sequence[Member]],
    query: MemberQuery[T],
    sessions: Sessions | None = None,
) -> MemberAnswers[T]:
    """Query members until the answers are enough or no member is left; errors are in the answers. Members of
    a later tier are queried only if the earlier ones are not enough.
    """
    check_run(store.run_token)
    return await _HedgedQuery(store, tiers, query, sessions or ReaderSessions(store, query.directory)).run()


class ReaderSessions:
    def __init__(self, store: ReadableStore, directory: str) -> None:
        self._store = store
        self._directory = directory

    async def session(self, member: Member) -> Connection:
        return await self._store.reader(member, self._directory)

    def owed(self, member: Member) -> int:
        return self._store.readers.owed(member, self._directory)

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


RETRY_PAUSE_S: Final = 0.1


async def with_retries(
    store: ReadableStore, attempt: Callable[[], Awaitable[T]], *, without_limit: bool = False
) -> T:
    """Repeat the attempt for `read_timeout_s`, or without limit, while members cannot be reached."""
    deadline = trio.current_time() + read_timeout_s
    while True:
        try:
            return await attempt()
        except (QuorumUnavailableError, BrokenConnectionError) as error:
            found = store.unavailable(error)
            if isinstance(found, RefusedError) or (not without_limit and trio.current_time() > deadline):
                raise found from error
        await store.wait_moved(RETRY_PAUSE_S)


async def read_any(store: ReadableStore, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
    check_name(directory)
    check_name(name)
    wanted = min(max_bytes, read_bytes_max)
    if wanted <= 0:
        return b""

    async def attempt() -> bytes:
        return await _read_once(store, directory, name, offset, wanted)

    return await with_retries(store, attempt)


async def _read_once(store: ReadableStore, directory: str, name: str, offset: int, wanted: int) -> bytes:
    answers = await query_bytes(store, [store.record.voters], directory, name, offset, wanted)
    data = bytes_of(answers)
    if data is not None:
        return data
    error, quorums = answers.error(), reading_quorums(store.record)
    if isinstance(error, NotFoundError | PastEndError) and not quorums.can_take_over(answers.without):
        raise QuorumUnavailableError(
            f"{error.args[0]}; {quorums.claims_needed} members must report that",
            [str(one.args[0]) for one in answers.failed.values()],
        )
    raise error


async def query_bytes(
    store: ReadableStore,
    tiers: Sequence[Sequence[Member]],
    directory: str,
    name: str,
    offset: int,
    wanted: int,
    sessions: Sessions | None = None,
) -> MemberAnswers[bytes]:
    """Ask members until one returns bytes, or F have none."""
    record = store.record

    async def request(connection: Connection) -> bytes:
        return await read_one(connection, name, offset, wanted)

    def judge(answers: MemberAnswers[bytes]) -> tuple[int, bool]:
        if any(answers.given.values()):
            return 0, True
        return 1, reading_quorums(record).can_take_over({*answers.given, *answers.without})

    return await query_members(store, tiers, MemberQuery(directory, name, wanted, request, judge), sessions)


def bytes_of(answers: MemberAnswers[bytes]) -> bytes | None:
    return next((data for data in answers.given.values() if data), b"" if answers.given else None)


Read = Callable[[str, int, int, bytes | None], Awaitable[bytes]]
Key = tuple[str, bytes | None]


@dataclass(slots=True)
class _Sequence:
    """One object that is read in order. The pieces `ahead`, each with its offset, fill the range from `next`
    to `end`.
    """

    ahead: Ahead[tuple[int, bytes]]
    next: int = 0
    end: int = 0


class ReadAhead:
    """Wraps `read` so that the next pieces are read before they are requested. It changes when bytes are
    requested, never which bytes are returned. It begins with the second read that continues the previous one.
    """

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], None], read: Read) -> None:
        self._start = start
        self._read = read
        self._sequences: OrderedDict[Key, _Sequence] = OrderedDict()

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None) -> bytes:
        key = (name, member)
        sequence = self._sequences.get(key)
        continues = sequence is not None and sequence.next == offset and offset > 0
        if sequence is None or not continues:
            sequence = self._start_sequence(key)
        data = await self._take_piece(sequence, offset, max_bytes)
        if data is None:
            data = await self._read(name, offset, max_bytes, member)
        sequence.next = offset + len(data)
        full = len(data) == max_bytes and read_ahead_bytes_min <= max_bytes <= read_ahead_bytes_max
        if continues and full and self._sequences.get(key) is sequence:
            self._top_up(key, sequence, max_bytes)
        return data

    def drop(self) -> None:
        for sequence in self._sequences.values():
            sequence.ahead.drop()
        self._sequences.clear()

    def _start_sequence(self, key: Key) -> _Sequence:
        old = self._sequences.pop(key, None)
        if old is not None:
            old.ahead.drop()
        while len(self._sequences) >= read_ahead_streams_max:
            _, oldest = self._sequences.popitem(last=False)
            oldest.ahead.drop()
        sequence = self._sequences[key] = _Sequence(Ahead(self._start, read_ahead_kept_s))
        return sequence

    async def _take_piece(self, sequence: _Sequence, offset: int, max_bytes: int) -> bytes | None:
        """Return the piece that was read ahead, if it is what is requested."""
        if not len(sequence.ahead):
            return None
        with suppress(DosError):  # it is requested again, and raises then
            at, data = await sequence.ahead.next()
            # A shorter piece may have met an end that has moved since: it is requested again.
            if at == offset and len(data) >= max_bytes:
                if len(data) > max_bytes:
                    sequence.ahead.drop()
                return data[:max_bytes]
        sequence.ahead.drop()
        return None

    def _top_up(self, key: Key, sequence: _Sequence, size: int) -> None:
        while len(sequence.ahead) < read_ahead_pieces_max:
            begin = sequence.end if len(sequence.ahead) else sequence.next
            sequence.ahead.begin(partial(self._fetch, key, begin, size))
            sequence.end = begin + size

    async def _fetch(self, key: Key, offset: int, size: int) -> tuple[int, bytes]:
        name, member = key
        return offset, await self._read(name, offset, size, member)

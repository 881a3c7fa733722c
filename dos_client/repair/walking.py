"""A walk: one session with each member of a store, through the same directories, to verify or repair. A
member that cannot be reached, is another server, or stops answering is excluded, and `errors` has the reason.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.comparing import (
    Copies,
    Digests,
    MemberCopy,
    copy_of,
    epoch_granted_twice,
    needed_digests,
)
from dos_client.core.logs import DIRECTORY as RECORD_LOG
from dos_client.limits import (
    answer_timeout_s,
    inspect_timeout_s,
    read_bytes_max,
    scrub_poll_s,
    verify_pause_s,
)
from dos_client.live_store import Store
from dos_client.randomness import backoff_s
from dos_client.reading.member_queries import read_one
from dos_client.sessions.connection import Connection
from dos_client.sessions.members import open_member_session
from dos_client.tasks import background_tasks
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    ForbiddenError,
    NotFoundError,
    PastEndError,
    RolledBackError,
    StaleGenerationError,
)
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import id_text
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")

Infos = dict[bytes, ObjectInfo | None]
"""What each member reports of its copy of one object; None if it has none."""


class StoreWalk:
    """A walk, made by `open_walk`. `sessions`: by server id. `damaged`: the members that cannot open a
    directory, with the reasons; they stay in the walk.
    """

    def __init__(self, store: Store, answer_timeout_s: float) -> None:
        self.store = store
        self.record = store.record
        self._answer_timeout_s = answer_timeout_s
        self.sessions: dict[bytes, Connection] = {}
        self.errors: dict[str, str] = {}
        self.damaged: dict[str, dict[bytes, str]] = {}
        self._objects: dict[bytes, dict[str, ObjectInfo]] = {}
        self._claims: dict[bytes, tuple[int, bytes]] = {}

    def member(self, server_id: bytes) -> Member:
        member = self.record.member(server_id)
        assert member is not None, f"{id_text(server_id)} is not a member"
        return member

    async def directories(self, prefix: str = "") -> list[str]:
        names: set[str] = set()

        async def list_member(server_id: bytes, session: Connection) -> None:
            del server_id
            names.update(info.name for info in await session.list_all(prefix))

        await self._each(list_member)
        return sorted(names)

    async def sees_everything(self) -> bool:
        """Return whether the token shows all directories: then it may read the record log."""
        for server_id in list(self.sessions):
            try:
                await self.session(server_id).open_directory(RECORD_LOG)
            except ForbiddenError:
                return False
            except NotFoundError:
                return True
            except DosError as error:
                self.lose(server_id, error)
            else:
                return True
        return True

    async def enter(self, directory: str, members: Iterable[bytes] = ()) -> None:
        again = frozenset(members) or frozenset(self.sessions)
        known = self._objects if frozenset(self.sessions) - again else {}
        self._objects = {one: known[one] for one in known if one not in again}
        self._claims = {one: self._claims[one] for one in self._objects}

        async def open_on(server_id: bytes, session: Connection) -> None:
            if server_id in again:
                try:
                    opened = await session.open_directory(directory)
                except CorruptError as error:
                    self.damaged.setdefault(directory, {})[server_id] = str(error.args[0])
                    return
                self._objects[server_id] = {info.name: info for info in opened.entries}
                self._claims[server_id] = (opened.epoch, opened.writer_id)

        await self._each(open_on)
        for one in self.store.witnesses.rolled_back & self.sessions.keys():
            self.lose(one, RolledBackError("its disk went back in time", actual=0))

    @property
    def answering(self) -> frozenset[bytes]:
        return frozenset(self._objects)

    @property
    def claimed(self) -> bool:
        # Without a claim, no quorum has acknowledged anything: each member has files of its own, which only
        # happen to have the same names. To repair one by another would destroy it.
        return any(epoch for epoch, _ in self._claims.values())

    @property
    def epoch_granted_twice(self) -> int:
        return epoch_granted_twice({one: self._claims[one] for one in self._objects}, self._objects)

    def names(self) -> list[str]:
        return sorted({name for objects in self._objects.values() for name in objects})

    def infos(self, name: str) -> Infos:
        answered = [one.server_id for one in self.record.members if one.server_id in self._objects]
        return {server_id: self._objects[server_id].get(name) for server_id in answered}

    async def compared(self, name: str, infos: Infos) -> tuple[Copies, Digests]:
        copies: dict[bytes, MemberCopy] = {one: copy_of(info) for one, info in infos.items()}
        digests: dict[tuple[bytes, int], int] = {}
        for server_id, size in needed_digests(copies):
            if copies[server_id].damaged:
                continue
            try:
                digests[server_id, size] = (await self.session(server_id).stat(name, size)).digest
            except (CorruptError, NotFoundError, PastEndError):
                copies[server_id] = MemberCopy(copies[server_id].size, copies[server_id].digest, damaged=True)
            except DosError as error:
                self.lose(server_id, error)
                del copies[server_id]
                return await self.compared(name, {one: infos[one] for one in copies})
        return copies, digests

    async def read_through(
        self, name: str, server_id: bytes, copy: MemberCopy, on_progress: Callable[[int], Awaitable[None]]
    ) -> bool:
        fold = PrefixDigest()
        while fold.size < copy.size:
            try:
                data = await read_one(
                    self.session(server_id), name, fold.size, min(read_bytes_max // 16, copy.size - fold.size)
                )
            except CorruptError:
                return False
            if not data:
                return False
            fold.update(data)
            await on_progress(len(data))
        return fold.value == copy.digest

    def session(self, server_id: bytes) -> Connection:
        session = self.sessions.get(server_id)
        if session is None:
            raise BrokenConnectionError(f"{self.member(server_id).address} is no longer connected")
        return session

    def lose(self, server_id: bytes, error: DosError) -> None:
        session = self.sessions.pop(server_id, None)
        self._objects.pop(server_id, None)
        self.errors[self.member(server_id).address] = str(error.args[0])
        if session is not None:
            session.fail(BrokenConnectionError(str(error.args[0])))

    async def _each(self, call: Callable[[bytes, Connection], Awaitable[None]]) -> None:
        async def call_member(server_id: bytes, session: Connection) -> None:
            try:
                await call(server_id, session)
            except DosError as error:
                self.lose(server_id, error)

        async with trio.open_nursery() as nursery:
            for server_id, session in list(self.sessions.items()):
                nursery.start_soon(call_member, server_id, session)

    async def keep_session(self, member: Member, task_status: trio.TaskStatus[None]) -> None:
        """Keep the session with one member open. Reports as started once it is connected or cannot be."""
        started = False
        attempt, deadline = 0, trio.current_time() + inspect_timeout_s
        while not started:
            try:
                async with open_member_session(self.store, member, self.record) as connection:
                    connection.answer_timeout_s = self._answer_timeout_s
                    self.sessions[member.server_id] = connection
                    started = True
                    task_status.started()
                    error = await connection.wait_broken()
                    if member.server_id in self.sessions:  # what it has listed counts no more
                        self.lose(member.server_id, error)
            # the store's own session with the member sends or reads the record
            except StaleGenerationError as error:
                self.errors[member.address] = str(error.args[0])
                attempt += 1
                if trio.current_time() < deadline:
                    await trio.sleep(backoff_s(attempt, randomness.jitter()))
                    continue
            except DosError as error:
                self.errors[member.address] = str(error.args[0])
            if not started:
                started = True
                task_status.started()


@asynccontextmanager
async def open_walk(
    store: Store, *, without: Collection[bytes] = (), answer_timeout_s: float = answer_timeout_s
) -> AsyncIterator[StoreWalk]:
    """Open sessions with all members that can be reached now. A member that does not answer for
    `answer_timeout_s` is excluded.
    """
    async with background_tasks() as nursery:
        walk = StoreWalk(store, answer_timeout_s)
        async with trio.open_nursery() as dialling:
            for member in walk.record.members:
                if member.server_id not in without:
                    dialling.start_soon(nursery.start, walk.keep_session, member)
        yield walk


async def list_twice(walk: StoreWalk, directory: str) -> dict[str, Infos]:
    """Enter a directory; if copies have different sizes, again after a pause. Returns the first listing, for
    `moving`.
    """
    await walk.enter(directory)
    first = {name: walk.infos(name) for name in walk.names()}
    if any(uneven(infos) for infos in first.values()):
        await trio.sleep(verify_pause_s)
        await walk.enter(directory)
    return first


def moving(first: Infos | None, now: Infos) -> bool:
    """Return whether a writer is active: a member reports an append, or a copy grew since the first listing
    (None: new).
    """
    if any(info is not None and info.appending for info in now.values()):
        return True
    return first is not None and any(_size(first.get(one)) != _size(info) for one, info in now.items())


def uneven(infos: Infos) -> bool:
    return len({_size(info) for info in infos.values()}) > 1


def _size(info: ObjectInfo | None) -> int:
    return info.synced if info is not None else 0


@dataclass(slots=True)
class MemberScrub:
    """The round of one member. `damaged`: objects that it found damaged. `error`: why it did not complete."""

    objects: int = 0
    bytes: int = 0
    damaged: int = 0
    directories_left: int = 0
    done: bool = False
    error: str = ""


ScrubReport = dict[str, MemberScrub]
"""By address of the member, in the order of the record."""


async def scrub_store(
    store: Store,
    *,
    bytes_per_s: int = 0,
    wait: bool = True,
    on_progress: Callable[[ScrubReport], None] | None = None,
) -> ScrubReport:
    """Begin a round of the scrub on each member that answers. `wait`: until all rounds are complete.
    `bytes_per_s`: of each member; 0: its own. Errors are in the report. A cancellation ends the waiting, not
    the rounds.
    """
    report: ScrubReport = {one.address: MemberScrub() for one in store.record.members}

    async def scrub(walk: StoreWalk, member: Member) -> None:
        try:
            await _scrub_member(walk, member, report[member.address], bytes_per_s, wait=wait, show=show)
        except DosError as error:
            report[member.address].error = str(error)

    def show() -> None:
        if on_progress is not None:
            on_progress(report)

    async with open_walk(store) as walk, trio.open_nursery() as nursery:
        for member in walk.record.members:
            if member.server_id in walk.sessions:
                nursery.start_soon(scrub, walk, member)
            else:
                report[member.address].error = walk.errors[member.address]
    return report


async def _scrub_member(
    walk: StoreWalk,
    member: Member,
    result: MemberScrub,
    bytes_per_s: int,
    *,
    wait: bool,
    show: Callable[[], None],
) -> None:
    session = walk.session(member.server_id)
    before = now = await session.scrub(begin=True, bytes_per_s=bytes_per_s)
    while True:
        result.objects, result.bytes = now.objects - before.objects, now.bytes - before.bytes
        result.damaged, result.directories_left = now.damaged - before.damaged, now.directories_left
        result.done = now.rounds > before.rounds
        show()
        if result.done or not wait:
            return
        await trio.sleep(scrub_poll_s)
        now = await session.scrub()

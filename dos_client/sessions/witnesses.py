"""Sessions with members of a store whose disks are as new as the others were told.

Rules of this file: it opens sessions, and asks and tells what `core.witnessing` says. Nobody is given a
session before that is done between its member and all others that are there. A member that is there and does
not answer holds nobody up for longer than `witness_timeout_s`: it is as if it were away, and is told later.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from dos_client.core.witnessing import ProveStamp, Step, Witnessing
from dos_client.limits import stamp_renewal_s, witness_again_s, witness_timeout_s
from dos_client.sessions.connection import Connection, open_connection
from dos_client.sessions.dialling import again
from dos_protocol.errors import BrokenConnectionError, DosError, RemoteProtocolError, RolledBackError
from dos_protocol.names import NO_ID, id_text
from dos_protocol.stamps import NO_STAMP, DiskStamp, decode_witnessed
from dos_protocol.store_record import Member, StoreRecord
from dos_protocol.vocabulary import Stamp, Stamped, Welcome, Witness, Witnessed

if TYPE_CHECKING:
    from dos_client.live_store import Store

Answer = TypeVar("Answer", Stamped, Witnessed)
log: Final = logging.getLogger("dos.client")


@asynccontextmanager
async def open_member_session(
    store: "Store", member: Member, record: StoreRecord | None = None
) -> AsyncIterator[Connection]:
    """A session with a member, by `record` or the record in use, after its disk was compared.

    Raises what `open_connection` raises, RolledBackError if its disk went back in time, and
    RemoteProtocolError if another server stands at its address."""
    by = record or store.record
    async with open_connection(
        member.address, token=store.token, store_id=by.store_id, generation=by.generation, client=store.client
    ) as connection:
        if connection.server_id != member.server_id:
            raise RemoteProtocolError(
                f"{member.address} is server {id_text(connection.server_id)} now, another one or a wiped one:"
                f" the record names {id_text(member.server_id)}"
            )
        if by.store_id == NO_ID:
            yield connection
            return
        with store.witnesses.met(connection):
            await store.witnesses.wait_compared(connection)
            yield connection


class Witnesses:
    """What the members of a store know of each other's disks, and seeing to it. `rolled_back`: the members
    whose disks were found to have gone back in time; nothing that they said counts."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._core = Witnessing()
        self._sessions: dict[bytes, list[Connection]] = {}
        self._under_way: set[Step] = set()
        self._given_up: set[Step] = set()
        self._changed = trio.Event()
        self._due = trio.Event()
        self.rolled_back: set[bytes] = set()

    @contextmanager
    def met(self, connection: Connection) -> Iterator[None]:
        """The member can be asked on this session, as long as it lives. Raises RemoteProtocolError."""
        one, welcome = connection.server_id, connection.welcome
        self._core.met(one, *_of(welcome, connection.address))
        self.rolled_back.discard(one)
        self._sessions.setdefault(one, []).append(connection)
        self._move()
        try:
            yield
        finally:
            if isinstance(connection.failure, RolledBackError):
                self._went_back(one, connection.failure)
            self._sessions[one].remove(connection)
            if not self._sessions[one]:
                self._core.left(one)
            self._move()

    async def wait_compared(self, connection: Connection) -> None:
        """Wait until the member's disk is compared with what all others that are there were told, and theirs
        with what it was told. Raises why the session ended first."""
        while set(self._core.steps(connection.server_id)) - self._given_up:
            if connection.failure is not None:
                raise again(connection.failure)
            await self._changed.wait()

    async def run(self) -> None:
        """The task of a store that does what is due."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew)
            while True:
                await self._due.wait()
                self._due = trio.Event()
                for step in self._core.steps():
                    if step not in self._under_way:
                        self._under_way.add(step)
                        nursery.start_soon(self._take, step)

    def _move(self) -> None:
        self._due.set()
        self._changed.set()
        self._changed = trio.Event()

    async def _take(self, step: Step) -> None:
        """Take a step. One that fails is taken again in a while, and nobody waits for it until then."""
        try:
            if isinstance(step, ProveStamp):
                await self._prove(step.member, step.stamp)
            else:
                message = Witness(step.member, *step.stamp, *step.before)
                held = await self._ask(step.witness, message, Witnessed)
                self._core.told(step.witness, step.member, DiskStamp(held.number, held.stamp_id))
        except RolledBackError as error:
            self._went_back(step.member, error)
        except DosError as error:
            log.debug("members cannot be compared: %s", error)
            self._given_up.add(step)
            self._move()
            await trio.sleep(witness_again_s)
            self._given_up.discard(step)
        self._under_way.discard(step)
        self._move()

    async def _prove(self, member: bytes, stamp: DiskStamp) -> None:
        newest = await self._ask(member, Stamp(*stamp), Stamped)
        self._core.proved(member, stamp, DiskStamp(newest.number, newest.stamp_id))

    async def _ask(self, member: bytes, message: Stamp | Witness, expected: type[Answer]) -> Answer:
        live = [one for one in self._sessions.get(member, []) if one.failure is None]
        if not live:
            raise BrokenConnectionError(f"no session with {id_text(member)}")
        return await live[0].ask(message, expected, witness_timeout_s)

    def _went_back(self, member: bytes, error: RolledBackError) -> None:
        if member not in self.rolled_back:
            self.rolled_back.add(member)
            log.error("%s", error)

    async def _renew(self) -> None:
        """Have disks stamped anew now and then, so that a copy which is older than that looks older."""
        while True:
            await trio.sleep(stamp_renewal_s)
            for member in list(self._sessions):
                try:
                    await self._prove(member, NO_STAMP)
                except RolledBackError as error:
                    self._went_back(member, error)
                except DosError as error:
                    log.debug("no new stamp: %s", error)
            self._move()


def _of(welcome: Welcome, address: str) -> tuple[DiskStamp, dict[bytes, DiskStamp]]:
    try:
        return DiskStamp(welcome.stamp_number, welcome.stamp_id), decode_witnessed(welcome.witnessed)
    except ValueError as error:
        raise RemoteProtocolError(f"{address}: what it was told of other members: {error}") from error

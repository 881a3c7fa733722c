"""Sessions with the members of a store: their disks are compared first, and one idle session each is kept.

A session is usable only after the stamps of its member and of all other connected members were compared
(`core.witnessing`). A connected member that does not answer delays a session by at most `witness_timeout_s`.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from dos_client import randomness
from dos_client.core.hedging import Pace
from dos_client.core.membership import MemberAdmission, admit
from dos_client.core.status import StoreCounters
from dos_client.core.witnessing import ProveStamp, Step, Witnessing
from dos_client.limits import stamp_renewal_s, witness_again_s, witness_timeout_s
from dos_client.randomness import backoff_s
from dos_client.sessions.connection import Connection, ServerAccess, fresh_failure, open_connection
from dos_client.sessions.discovery import probe, send_record
from dos_protocol.errors import (
    BrokenConnectionError,
    ClosedError,
    DosError,
    NotAMemberError,
    RefusedError,
    RemoteProtocolError,
    RolledBackError,
    StaleGenerationError,
    UnauthorisedError,
    WrongStoreError,
)
from dos_protocol.messages import Stamp, Stamped, Welcome, Witness, Witnessed
from dos_protocol.names import NO_ID, id_text
from dos_protocol.store_record import NO_STAMP, DiskStamp, Member, StoreRecord, decode_witnessed
from dos_tls import TlsBusyError, TlsError, TlsTruncatedError

if TYPE_CHECKING:
    from dos_client.reading.damage import Damage

Answer = TypeVar("Answer", Stamped, Witnessed)

log: Final = logging.getLogger("dos.client")


@asynccontextmanager
async def open_member_session(
    store: "WitnessedStore", member: Member, record: StoreRecord | None = None
) -> AsyncIterator[Connection]:
    """Open a session with a member, by `record` or the record in use, after its disk was checked. Raises
    RolledBackError, RemoteProtocolError if another server answers there, and as `open_connection`.
    """
    by = record or store.record
    address = store.located.get(member.server_id, member.address)
    async with open_connection(
        address, store_id=by.store_id, generation=by.generation, **store.access._asdict()
    ) as connection:
        # By identity, not by address: a wiped server there would prove that what it lost never existed (R4).
        if connection.server_id != member.server_id:
            raise RemoteProtocolError(
                f"{address} is now server {id_text(connection.server_id)}, another or a wiped one;"
                f" the record names {id_text(member.server_id)}"
            )
        if by.store_id == NO_ID:
            yield connection
            return
        with store.witnesses.joined(connection):
            await store.witnesses.wait_compared(connection)
            yield connection


class SharedStore(Protocol):
    """What the parts of a client use of `live_store.Store`, which says what each name means."""

    record: StoreRecord
    located: Mapping[bytes, str]
    access: ServerAccess
    rng: Random
    run_token: trio.lowlevel.TrioToken
    counts: StoreCounters
    damage: "Damage"
    pace: Pace

    @property
    def of_one_server(self) -> bool: ...

    def start(self, task: Callable[[], Awaitable[None]]) -> None: ...

    def member_moved(self) -> None: ...

    async def wait_moved(self, timeout_s: float) -> None: ...

    def reread_membership(self) -> None: ...


class Witnesses:
    """The stamps that the members of a store know of each other. `rolled_back`: members whose disks went back
    in time.
    """

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._core = Witnessing()
        self._sessions: dict[bytes, list[Connection]] = {}
        self._running: set[Step] = set()
        self._failed_steps: set[Step] = set()
        self._changed = trio.Event()
        self._changed_steps = trio.Event()
        self.rolled_back: set[bytes] = set()

    @contextmanager
    def joined(self, connection: Connection) -> Iterator[None]:
        """Use this session for requests about stamps, as long as it is open. Raises RemoteProtocolError."""
        one, welcome = connection.server_id, connection.welcome
        self._core.joined(one, *_of(welcome, connection.address))
        self.rolled_back.discard(one)
        self._sessions.setdefault(one, []).append(connection)
        self._wake()
        try:
            yield
        finally:
            if isinstance(connection.failure, RolledBackError):
                self._went_back(one, connection.failure)
            self._sessions[one].remove(connection)
            if not self._sessions[one]:
                self._core.left(one)
            self._wake()

    async def wait_compared(self, connection: Connection) -> None:
        """Wait until the member's stamps are compared with those of all connected members, in both
        directions.
        """
        while steps := self._due(connection.server_id):
            if connection.failure is not None:
                raise fresh_failure(connection.failure)
            failed = [step for step in steps if step in self._failed_steps]
            # A disk that could not be asked is not trusted.
            if any(_proves(step, connection.server_id) for step in failed):
                raise BrokenConnectionError(
                    f"{connection.address} does not prove that its disk did not go back in time"
                )
            if len(failed) == len(steps):
                return
            await self._changed.wait()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew)
            while True:
                await self._changed_steps.wait()
                self._changed_steps = trio.Event()
                for step in self._due():
                    if step not in self._running:
                        self._running.add(step)
                        nursery.start_soon(self._run_step, step)

    def _due(self, member: bytes | None = None) -> list[Step]:
        """Return the steps to take now for which a session is open."""
        # if all sessions with a member have failed and only have not ended yet, a step would fail at once
        return [step for step in self._core.steps(member) if self._live(_asked(step))]

    def _wake(self) -> None:
        self._changed_steps.set()
        self._changed.set()
        self._changed = trio.Event()

    async def _run_step(self, step: Step) -> None:
        asked = _asked(step)
        try:
            if isinstance(step, ProveStamp):
                await self._prove(step.member, step.stamp)
            else:
                message = Witness(step.member, *step.stamp, *step.before)
                held = await self._request(step.witness, message, Witnessed)
                self._core.stored(step.witness, step.member, DiskStamp(held.number, held.stamp_id))
        except RolledBackError as error:
            self._went_back(asked, error)  # a server reports this of its own disk, whatever it was asked
        except DosError as error:
            log.debug("members cannot be compared: %s", error)
            if self._live(asked):
                self._failed_steps.add(step)
                self._wake()
                await trio.sleep(witness_again_s)
                self._failed_steps.discard(step)
            # Otherwise its sessions ended, as short ones do: the next one is compared anew, without a pause.
        self._running.discard(step)
        self._wake()

    async def _prove(self, member: bytes, stamp: DiskStamp) -> None:
        newest = await self._request(member, Stamp(*stamp), Stamped)
        self._core.proved(member, stamp, DiskStamp(newest.number, newest.stamp_id))

    async def _request(self, member: bytes, message: Stamp | Witness, expected: type[Answer]) -> Answer:
        """Send a request over the newest session; if it ends before the answer, over another one."""
        # An older session may be of a previous start of the server, whose power failed: nobody has noticed
        # yet that no reply will come.
        while live := self._live(member):
            try:
                return await live[-1].call(message, expected, witness_timeout_s)
            except (BrokenConnectionError, ClosedError):
                if live[-1].failure is None:  # it did not answer in time
                    raise
        raise BrokenConnectionError(f"no session with {id_text(member)}")

    def _live(self, member: bytes) -> list[Connection]:
        return [one for one in self._sessions.get(member, []) if one.failure is None]

    def _went_back(self, member: bytes, error: RolledBackError) -> None:
        self._core.went_back(member)
        if member not in self.rolled_back:
            self.rolled_back.add(member)
            log.error("%s", error)

    async def _renew(self) -> None:
        while True:
            await trio.sleep(stamp_renewal_s)
            for member in list(self._sessions):
                await self.renew(member)

    async def renew(self, member: bytes) -> None:
        """Ask a member for its newest stamp, which the other members are then told."""
        # After it has granted a claim, it makes a new one: a copy of its disk from before the claim lacks it.
        try:
            await self._prove(member, NO_STAMP)
        except RolledBackError as error:
            self._went_back(member, error)
        except DosError as error:
            log.debug("no new stamp: %s", error)
        self._wake()


def _asked(step: Step) -> bytes:
    return step.member if isinstance(step, ProveStamp) else step.witness


def _proves(step: Step, member: bytes) -> bool:
    return isinstance(step, ProveStamp) and step.member == member


def _of(welcome: Welcome, address: str) -> tuple[DiskStamp, dict[bytes, DiskStamp]]:
    try:
        return DiskStamp(welcome.stamp_number, welcome.stamp_id), decode_witnessed(welcome.witnessed)
    except ValueError as error:
        raise RemoteProtocolError(
            f"{address}: the stamps that it knows of other members are invalid: {error}"
        ) from error


class WitnessedStore(SharedStore, Protocol):
    witnesses: Witnesses


class Watch:
    def __init__(self, store: WitnessedStore, member: Member) -> None:
        self.member = member
        self.connection: Connection | None = None
        self.error = "not connected yet"
        self.failure: DosError | None = None
        self._was_connected = False
        self._warned = ""
        self.scope = trio.CancelScope()
        self._store = store

    @property
    def refusal(self) -> str:
        """Why there is no session, if a person must act: the token is refused, or TLS fails. Otherwise ""."""
        failure = None if self.connection is not None else self.failure
        if isinstance(failure, TlsBusyError | TlsTruncatedError):
            return ""
        return (
            f"{self.member.address}: {failure}" if isinstance(failure, UnauthorisedError | TlsError) else ""
        )

    async def run(self) -> None:
        attempt = 0
        with self.scope:
            while True:
                attempt += 1
                try:
                    await self._session()
                    attempt = 1
                except (StaleGenerationError, WrongStoreError, NotAMemberError) as refusal:
                    await self._refused(refusal)
                except DosError as error:
                    attempt = 1 if self._was_connected else attempt
                    self._note_failure(error)
                await trio.sleep(backoff_s(attempt, randomness.jitter()))

    def _note_failure(self, error: DosError) -> None:
        self.error, self.failure = str(error.args[0]), error
        if (refusal := self.refusal) and self._warned != refusal:
            log.warning("no session with %s", refusal)
            self._warned = refusal
        self._store.member_moved()

    async def _refused(self, refusal: RefusedError) -> None:
        try:
            await admit_or_act(self._store, self.member, refusal)
        except DosError as error:
            self._note_failure(error)

    async def _session(self) -> None:
        store = self._store
        self._was_connected = False
        async with open_member_session(store, self.member) as connection:
            self.connection, self.error, self._was_connected, self._warned = connection, "", True, ""
            store.member_moved()
            try:
                raise await connection.wait_broken()
            finally:
                self.connection = None
                store.member_moved()


async def admit_or_act(store: WitnessedStore, member: Member, error: RefusedError) -> None:
    """React to a server that rejected a session of this store. Returns if a retry makes sense; otherwise
    raises the reason.
    """
    address = store.located.get(member.server_id, member.address)
    answer = await probe(address, store.access)
    verdict = admit(store.record, member.server_id, answer.server_id, answer.record)
    if verdict is MemberAdmission.NEWER_RECORD:
        store.reread_membership()
    elif verdict is MemberAdmission.OLDER_RECORD:
        await send_record(answer.address, store.record, store.access)
        log.info("%s now stores generation %d", answer.address, store.record.generation)
    elif verdict is not MemberAdmission.ADMITTED:
        raise RemoteProtocolError(f"{member.address}: {verdict.value}") from error

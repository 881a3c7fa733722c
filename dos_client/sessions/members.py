"""Whether each member is connected: one idle session per member, reconnected without limit.

The state is for people and for listings. It does not decide what counts.
"""

import logging
from dataclasses import dataclass
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.admission import MemberAdmission, admit
from dos_client.core.backoff import backoff_s
from dos_client.sessions.connection import Connection
from dos_client.sessions.discovery import probe, send_record
from dos_client.sessions.witnesses import WitnessedStore, open_member_session
from dos_protocol.errors import (
    DosError,
    NotAMemberError,
    RefusedError,
    RemoteProtocolError,
    StaleGenerationError,
    UnauthorisedError,
    WrongStoreError,
)
from dos_protocol.store_record import Member
from dos_tls import TlsBusyError, TlsError, TlsTruncatedError

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as this client sees it.

    - `state`, in plain words: in sync, catching up, comparing (its copies), entering (a claim was sent to
      it), unavailable, broken (a copy differs or its disk failed), joining.
    - `lag_bytes`: bytes of this client's claims that the member lacks. `lag_s`: an upper bound, in seconds,
      for the age of the oldest of them.
    - `error`: why it is unavailable or broken, otherwise empty.
    """

    address: str
    server_id: bytes
    state: str
    lag_bytes: int
    connected: bool
    error: str
    lag_s: float = 0.0


class Watch:
    """The idle session with one member."""

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
        """Why there is no session, if a person must act although the member may be well: the token is
        refused, or TLS fails. Empty otherwise.
        """
        failure = None if self.connection is not None else self.failure
        if isinstance(failure, TlsBusyError | TlsTruncatedError):
            return ""
        return (
            f"{self.member.address}: {failure}" if isinstance(failure, UnauthorisedError | TlsError) else ""
        )

    async def run(self) -> None:
        """Run one session after the other."""
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
        """Run one session until it breaks. Raises the reason."""
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
    """React to a server that rejected a session of this store.

    Reads the membership again, or sends the record to the server. Returns if a retry makes sense; otherwise
    raises the reason why the server never counts.
    """
    address = store.located.get(member.server_id, member.address)
    answer = await probe(address, token=store.token, client=store.client)
    verdict = admit(store.record, member.server_id, answer.server_id, answer.record)
    if verdict is MemberAdmission.NEWER_RECORD:
        store.reread_membership()
    elif verdict is MemberAdmission.OLDER_RECORD:
        await send_record(answer.address, store.record, token=store.token, client=store.client)
        log.info("%s now stores generation %d", answer.address, store.record.generation)
    elif verdict is not MemberAdmission.ADMITTED:
        raise RemoteProtocolError(f"{member.address}: {verdict.value}") from error

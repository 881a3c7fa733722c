"""What connects one claim with one member: session after session, for ever.

Rules of this file: the life of a session, from the dial to the wait before the next. What a member's
answers mean is decided in `core`: `admission` (is it the member?), `claim` (what does FENCED mean?). What a
session does for the objects of the claim is in `copies`.

Theory. A link is one task. It dials, is admitted, claims, compares every object that the claim knows, and
then its session's writer task asks `copies` for bytes whenever the socket takes more; watermarks come back
into `target`. Nothing waits for a link: a member that stands still holds its own bytes in the window and
nobody up. When the session ends, whatever the reason, the link waits with back-off and jitter and begins
again; only being fenced ends the claim. It is quiet about it: the log hears when a member goes and when it
is back, not of each attempt.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from dos_client import randomness
from dos_client.core.backoff import backoff_s
from dos_client.core.claim import FenceReason, climb, judge_fenced
from dos_client.limits import session_worked_s, superseded_joining_s
from dos_client.sessions.connection import Connection
from dos_client.sessions.members import admit_or_act
from dos_client.sessions.witnesses import open_member_session
from dos_client.writing.copies import MemberCopies
from dos_protocol.errors import (
    BrokenConnectionError,
    DosError,
    FencedError,
    NoSpaceError,
    NotAMemberError,
    RolledBackError,
    StaleGenerationError,
    WrongStoreError,
)
from dos_protocol.store_record import Member
from dos_protocol.vocabulary import DirectoryOpened

if TYPE_CHECKING:
    from dos_client.writing.claim import Claim

log: Final = logging.getLogger("dos.client")


class Outage:
    """A member is away from a claim: since when, how many attempts failed, and what of it was logged."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.since = trio.current_time()
        self.attempts = 0
        self._was_there = False
        self._logged: set[type[DosError]] = set()

    def failed(self, error: DosError, *, worked: bool) -> None:
        """One more attempt failed, or the session ended; `worked`: the member took something in it. The log
        hears it once for each kind of trouble."""
        if worked:
            self._logged.clear()
        if not self.attempts and not self._logged:
            self.since = trio.current_time()
        self.attempts += 1
        known = type(error) in self._logged
        self._logged.add(type(error))
        log.log(logging.DEBUG if known else logging.INFO, "%s: %s; trying on", self._what, error.args[0])

    def over(self) -> bool:
        """It is there. Whether it was there before."""
        again = self._was_there
        self._was_there = True
        if NoSpaceError in self._logged:
            return again  # it takes every claim, and no bytes: it is there when it has taken some
        if self._logged:
            seconds = trio.current_time() - self.since
            log.info("%s: is back after %.1f s and %d attempts", self._what, seconds, self.attempts)
        self.attempts = 0
        self._logged.clear()
        return again


class MemberLink:
    """See the module. `error`: why there is no session, '' while there is one."""

    def __init__(self, claim: "Claim", member: Member) -> None:
        self.claim = claim
        self.member = member
        self.server_id = member.server_id
        self.error = "not connected yet"
        self.scope = trio.CancelScope()
        self.copies = MemberCopies(self)
        self.outage = Outage(f"{member.address} for {claim.directory}")

    @property
    def connection(self) -> Connection | None:
        """The session on which the member holds the claim, None without one."""
        return self.copies.connection

    async def run(self) -> None:
        """Sessions, one after the other, until the claim ends."""
        attempt = 0
        with self.scope:
            while True:
                self.copies.attempt()
                try:
                    await self._session()
                except FencedError as error:
                    if judge_fenced(self.claim.epoch, error.epoch_held, at_claim=False) is FenceReason.LOST:
                        self.claim.member_fenced(self.server_id, error)
                        return
                    self._failed(error)
                    if self.member.state != "in":
                        await trio.sleep(superseded_joining_s)
                except RolledBackError as error:
                    self._distrust()
                    self._failed(error)
                except DosError as error:
                    self._failed(error)
                attempt = 1 if self.copies.worked else attempt + 1
                await trio.sleep(backoff_s(attempt, randomness.jitter()))

    def _distrust(self) -> None:
        """Its disk went back in time: what it said it has, it may not have any more, and what it lacks says
        nothing (R4)."""
        self.claim.answers.pop(self.server_id, None)
        for target in self.claim.targets.values():
            target.distrust(self.server_id)

    def _failed(self, error: DosError) -> None:
        self.error = str(error.args[0])
        self.copies.left(self.error)
        self.outage.failed(error, worked=self.copies.worked)

    async def _session(self) -> None:
        """Dial, claim, serve, until it breaks. Raises why."""
        store = self.claim.store
        try:
            async with open_member_session(store, self.member) as connection:
                opened = await self._enter(connection)
                if opened is not None:
                    await self._serve(connection, opened)
        except (StaleGenerationError, WrongStoreError, NotAMemberError) as error:
            await admit_or_act(store, self.member, error)
            self.copies.worked = True

    async def _enter(self, connection: Connection) -> DirectoryOpened | None:
        """Open or claim the directory; None when the claim is lost by it."""
        claim = self.claim
        if not claim.claiming:
            opened = await connection.open_directory(claim.directory)
            if opened.epoch:  # its appends would be refused for ever
                claim.member_fenced(self.server_id, FencedError("it has a writer", actual=opened.epoch))
                return None
            return opened
        try:
            return await connection.claim(claim.directory, claim.epoch, claim.writer_id)
        except FencedError as error:
            match judge_fenced(claim.epoch, error.epoch_held, at_claim=True):
                case FenceReason.CLIMB:
                    return await self._climb(connection, error.epoch_held)
                case FenceReason.ASK:
                    held = await connection.open_directory(claim.directory)
                    if (held.epoch, held.writer_id) == (claim.epoch, claim.writer_id):
                        raise BrokenConnectionError(
                            f"{self.member.address} has a newer session of ours"
                        ) from error
            claim.member_fenced(self.server_id, error)
            return None

    async def _climb(self, connection: Connection, epoch_held: int) -> DirectoryOpened | None:
        """Claim in steps that the server does not take for a wild number (R17)."""
        for epoch in climb(epoch_held, self.claim.epoch):
            opened = await connection.claim(self.claim.directory, epoch, self.claim.writer_id)
        return opened

    async def _serve(self, connection: Connection, opened: DirectoryOpened) -> None:
        """Keep the member up to the claim's objects until the session breaks."""
        self.error = ""
        if self.outage.over():
            self.claim.store.counts.reconnects[self.member.address] += 1
        begun = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self.claim.member_claimed(self, opened)
                self.copies.begin(connection, opened, nursery)
                try:
                    await connection.wait_broken()
                finally:
                    self.copies.end()
                nursery.cancel_scope.cancel()
        finally:
            self.copies.worked |= trio.current_time() - begun > session_worked_s
            self.copies.left(
                "the session ended" if connection.failure is None else str(connection.failure.args[0])
            )
            self.claim.member_left(self)
        assert connection.failure is not None
        raise connection.failure

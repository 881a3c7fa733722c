"""Read through a claim's own sessions what its members hold durably.

This module selects the members to query and supplies the sessions. Hedging and the evaluation of answers are
in `reading/member_queries` and `reading/store_reads`.
"""

import trio

from dos_client.errors import QuorumUnavailableError
from dos_client.limits import read_bytes_max, read_timeout_s
from dos_client.reading.reading_ahead import ReadAhead
from dos_client.reading.store_reads import bytes_of, query_bytes
from dos_client.sessions.connection import Connection
from dos_client.writing.views import ClaimView, LinkView
from dos_protocol.errors import BrokenConnectionError, StaleGenerationError
from dos_protocol.store_record import Member


class ClaimReads:
    """The reads of one claim."""

    def __init__(self, claim: ClaimView) -> None:
        self._claim = claim
        self._ahead = ReadAhead(claim.store.start, self._read)

    async def read(self, name: str, offset: int, max_bytes: int, only: bytes | None) -> bytes:
        """Implement `Claim.read`."""
        self._claim.check()
        return await self._ahead.read(name, offset, max_bytes, only)

    def drop_ahead(self) -> None:
        """Discard what was read ahead."""
        self._ahead.drop()

    async def _read(self, name: str, offset: int, max_bytes: int, only: bytes | None) -> bytes:
        claim = self._claim
        deadline = trio.current_time() + read_timeout_s
        wanted = min(max_bytes, read_bytes_max)
        while wanted > 0:
            claim.check()
            tiers = self._readers(name, offset + wanted, only)
            answers = await query_bytes(claim.store, tiers, claim.directory, name, offset, wanted, self)
            data, error = bytes_of(answers), answers.error()
            if data:
                return data
            disconnected = [] if only is not None else self._disconnected_with_more(name, offset)
            if disconnected:
                error = QuorumUnavailableError(
                    f"byte {offset} of {claim.directory}/{name} is on members that are unavailable",
                    disconnected,
                )
            elif data is not None:
                return data
            # A session of an older generation was ended by its server; its link connects again.
            reconnects = isinstance(error, BrokenConnectionError | StaleGenerationError)
            unavailable = reconnects or isinstance(error, QuorumUnavailableError)
            if not unavailable or trio.current_time() > deadline:
                raise error
            await claim.wait_changed(0.5)
        return b""

    def _disconnected_with_more(self, name: str, offset: int) -> list[str]:
        """Return members without a session that had more of the object: the end of the others is not its
        end.
        """
        return [
            f"{link.member.address}: {link.error or 'no session'}"
            for link in self._claim.links()
            if link.connection is None and self._known_size(link, name) > offset
        ]

    def _known_size(self, link: LinkView, name: str) -> int:
        """Return how much of the object a member is known to have, or had when it was last connected."""
        claim = self._claim
        target, info = claim.targets.get(name), claim.answers.get(link.server_id, {}).get(name)
        known = target.sizes.get(link.server_id, 0) if target is not None else 0
        return max(known, info.synced if info is not None else 0)

    def _readers(self, name: str, end: int, only: bytes | None) -> list[list[Member]]:
        """Return connected members in the order to query them: first those that have the object up to `end`,
        of these those whose digest agreed with this claim's, then the others, longest first.
        """
        claim = self._claim

        def has(link: LinkView) -> int:
            return self._known_size(link, name)

        joined = [link for link in claim.links() if link.connection is not None]
        if only is not None:
            return [[link.member] for link in joined if link.server_id == only]
        voters = sorted((link for link in joined if link.member.state == "in"), key=has, reverse=True)
        longest = min(end, max(map(has, voters), default=0))
        full = [link for link in voters if has(link) >= longest]
        agreed = [link.member for link in full if link.copies.agrees(name)]
        unproved = [link.member for link in full if not link.copies.agrees(name)]
        return [agreed, unproved, *([link.member] for link in voters if has(link) < longest)]

    async def session(self, member: Member) -> Connection:
        link = self._claim.link(member.server_id)
        if link is None or link.connection is None:
            raise BrokenConnectionError(f"the session with {member.address} ended")
        return link.connection

    def owed(self, member: Member) -> int:
        link = self._claim.link(member.server_id)
        return 0 if link is None or link.connection is None else link.connection.owed

    def is_connected(self, member: Member) -> bool:
        link = self._claim.link(member.server_id)
        return link is not None and link.connection is not None

"""Create a store from servers that are in none, that all answer and are all empty. If it was interrupted, any
later run completes it: the servers that have the record name the others.
"""

from collections.abc import Sequence

import trio

from dos_client import randomness
from dos_client.errors import (
    BadUrlError,
    NotEmptyError,
    StoreNotReadyError,
    StoreRefusedError,
    TokenRefusedError,
)
from dos_client.sessions.connection import ServerAccess, open_connection
from dos_client.sessions.discovery import find_membership, send_record, survey
from dos_client.tasks import try_each
from dos_client.urls import REACHABLE, DosUrl, loopback_among, parse_url
from dos_protocol.errors import DosError, LocalProtocolError, UnauthorisedError
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum


async def init_store(
    url: str | DosUrl, *, ack_quorum: int | None = None, token: bytes = b"", client: str = ""
) -> StoreRecord:
    """Make the servers of the URL a store. Returns its record. If they already are exactly this store,
    nothing is changed.

    Raises StoreNotReadyError (NotEmptyError) with a line for each server that prevents it. Nothing was
    written then, unless the message says that some servers took the record; running it again completes that.
    Raises BadUrlError.
    """
    parsed, access = parse_url(url), ServerAccess(token, client)
    if alone := loopback_among(parsed.servers):
        raise BadUrlError(
            f"only its own machine can reach {alone}, and the other servers are on other machines",
            remedy=REACHABLE,
        )
    membership, seen = await find_membership(parsed.servers, access)
    if refusal := seen.all_refuse:
        raise all_refuse(parsed, refusal, seen.problems(membership))
    if seen.errors:
        raise StoreNotReadyError("all servers must answer to create a store", seen.problems(membership))
    ids = [answer.server_id for answer in seen.answers if answer.address in parsed.servers]
    if len(set(ids)) != len(parsed.servers):
        repeated = [one.address for one in seen.answers if ids.count(one.server_id) > 1]
        raise NotEmptyError(f"several addresses belong to the same server: {', '.join(repeated)}")
    record = membership.record
    if record is not None:
        return _check_same_store(record, set(ids), ack_quorum, parsed)
    in_stores = [
        f"{answer.address} is in store {id_text(answer.record.store_id)}"
        for answer in seen.answers
        if answer.record
    ]
    if in_stores:
        raise NotEmptyError("servers already belong to stores", in_stores)
    members = tuple(
        Member(next(a.server_id for a in seen.answers if a.address == address), address)
        for address in parsed.servers
    )
    await _all_empty(members, access)
    record = StoreRecord(randomness.fresh_id(), 1, _quorum(ack_quorum, len(members)), members)
    return await _send_to_all(record, access)


def all_refuse(url: DosUrl, refusal: DosError, problems: Sequence[str]) -> StoreRefusedError:
    if not isinstance(refusal, UnauthorisedError):
        return StoreRefusedError(f"no server of {url} can be used with TLS as it is set", problems)
    return TokenRefusedError(
        f"the servers of {url} reject the token",
        problems,
        remedy="use the token that the servers were started with",
    )


def _quorum(requested: int | None, members: int) -> int:
    quorum = default_ack_quorum(members) if requested is None else requested
    if not 1 <= quorum <= members:
        raise LocalProtocolError(
            f"the ack quorum must be from 1 to the number of servers, {members}, got {quorum}"
        )
    return quorum


def _check_same_store(
    record: StoreRecord, ids: set[bytes], ack_quorum: int | None, url: DosUrl
) -> StoreRecord:
    if {member.server_id for member in record.members} != ids:
        raise NotEmptyError(
            f"the servers are in store {id_text(record.store_id)} with other members than {url}",
            [f"{member.address} is {member.state}" for member in record.members],
            remedy="name all its members, or replace one with `dos store replace`",
        )
    if ack_quorum is not None and ack_quorum != record.ack_quorum:
        raise NotEmptyError(
            f"the servers are already a store, with an ack quorum of {record.ack_quorum}, not {ack_quorum}"
        )
    return record


async def _all_empty(members: tuple[Member, ...], access: ServerAccess) -> None:
    problems: list[str] = []

    async def inspect(member: Member) -> None:
        try:
            async with open_connection(member.address, **access._asdict()) as connection:
                listing = await connection.list_names()
        except DosError as error:
            problems.append(f"{member.address}: {error}")
        else:
            if listing.entries:
                problems.append(f"{member.address} holds the directory {listing.entries[0].name}")

    async with trio.open_nursery() as nursery:
        for member in members:
            nursery.start_soon(inspect, member)
    if problems:
        raise NotEmptyError(
            "a store can only be created from empty servers",
            sorted(problems),
            remedy="start them on empty data directories",
        )


async def _send_to_all(record: StoreRecord, access: ServerAccess) -> StoreRecord:
    async def send(member: Member) -> None:
        await send_record(member.address, record, access)

    failed = [f"{member.address}: {error}" for member, error in await try_each(record.members, send)]
    if failed:
        raise StoreNotReadyError(
            f"{len(record.members) - len(failed)} of {len(record.members)} servers took the record",
            sorted(failed),
            remedy="run the same command again to continue",
        )
    seen = await survey((member.address for member in record.members), access)
    changed = [answer.address for answer in seen.answers if answer.record != record]
    if changed or seen.errors:
        raise StoreNotReadyError("servers changed while the store was created", [*changed, *seen.errors])
    return record

"""Verify what a change of a store requires of single servers, before it is decided."""

from collections.abc import Iterator
from contextlib import contextmanager

from dos_client.core.quorum import tie_breaker
from dos_client.core.record_log import DIRECTORY
from dos_client.errors import ReplacementError
from dos_client.live_store import Store
from dos_client.sessions.connection import open_connection
from dos_client.sessions.discovery import probe
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member, StoreRecord


@contextmanager
def refusals() -> Iterator[None]:
    """Raise ReplacementError for the ValueError with which the rules of records refuse a change."""
    try:
        yield
    except ValueError as error:
        raise ReplacementError(str(error)) from error


async def require_empty(address: str, token: bytes, client: str, record: StoreRecord | None = None) -> None:
    """Raise ReplacementError unless the server is empty and in no store, or a spare of this record.

    A spare may hold the directory of the record log, if it was a tie-breaker.
    """
    async with open_connection(address, token=token, client=client) as connection:
        held = connection.record
        spare = record is not None and any(one.server_id == connection.server_id for one in record.spares)
        if held is not None and not (spare and record is not None and held.store_id == record.store_id):
            raise ReplacementError(f"{address} already belongs to store {held.store_id.hex()}")
        if [one for one in (await connection.list_names()).entries if not spare or one.name != DIRECTORY]:
            raise ReplacementError(
                f"{address} is not empty",
                remedy="start it on an empty data directory; if it fills again, a client writes to that"
                " address directly: stop that client, or use another address until the server is in",
            )


async def is_there(store: Store, member: Member) -> bool:
    """Return whether the member answers as itself at its address."""
    try:
        answer = await probe(member.address, token=store.token, client=store.client)
    except DosError:
        return False
    return answer.server_id == member.server_id and not answer.rolled_back


async def require_both(store: Store) -> None:
    """Raise ReplacementError if a member is away whom a change needs that a tie-breaker could decide."""
    for member in store.record.members if tie_breaker(store.record) is not None else ():
        if not await is_there(store, member):
            raise ReplacementError(f"{member.address} is unavailable", remedy="start it, or replace it first")

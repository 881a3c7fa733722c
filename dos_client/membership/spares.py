"""Change the list of spare servers, and the addresses of members: the changes of a store record that move no
data. docs/decisions/0223 explains why they are safe.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import trio

from dos_client.core.change_log import Change
from dos_client.core.quorum import filled_member
from dos_client.core.replacement import move, with_spare, without_spare
from dos_client.errors import ReplacementError
from dos_client.limits import inspect_timeout_s, open_timeout_s
from dos_client.live_store import Store
from dos_client.membership.checking import refusals, require_empty
from dos_client.membership.history import change_now, named, recorded
from dos_client.membership.record_log import RecordLog, open_record_log
from dos_client.membership.replacing import decide_and_install, install_decided
from dos_client.sessions.discovery import find_membership, probe, send_record
from dos_client.store import open_store
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import DosError
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord

log: Final = logging.getLogger("dos.client")


async def add_spare(
    url: str | DosUrl, *, new: str, token: bytes = b"", client: str = "dos store spare add"
) -> StoreRecord:
    """Add the empty server at the address `new` to the store's spares. Returns the record in use then.

    Raises ReplacementError, if the server is not empty, is used otherwise, or a change is in progress;
    StoreNotReadyError, QuorumUnavailableError.
    """
    address = parse_address(new)
    async with open_store(parse_url(url), token=token, client=client) as store:
        answer = await probe(address, token=token, client=client)
        if any(one.server_id == answer.server_id for one in store.record.spares):
            return store.record
        spare = Member(answer.server_id, address, "spare")
        async with _changing(store, change_now(store, "spare-add", new=named(spare))) as records:
            await require_empty(address, token, client)
            with refusals():
                record = with_spare(store.record, spare.server_id, address)
            await decide_and_install(store, records, record)
        return store.record


async def remove_spare(
    url: str | DosUrl, *, spare: str, token: bytes = b"", client: str = "dos store spare remove"
) -> StoreRecord:
    """Remove a spare, given by its address or its server id in hex. Raises as `add_spare`."""
    async with open_store(parse_url(url), token=token, client=client) as store:
        known = [one for one in store.record.spares if spare in (one.address, id_text(one.server_id))]
        change = change_now(store, "spare-remove", old=named(*known) or spare)
        async with _changing(store, change) as records:
            with refusals():
                record = without_spare(store.record, spare)
            await decide_and_install(store, records, record)
        for one in known:
            try:
                await send_record(one.address, store.record, token=token, client=client)
            except DosError as error:
                log.info("the removed spare %s did not accept the record: %s", one.address, error.args[0])
        return store.record


async def move_member(
    url: str | DosUrl, *, new: str, token: bytes = b"", client: str = "dos store move"
) -> StoreRecord:
    """Record that a member of the store is now at the address `new`. Its identity tells which one it is.

    Raises ReplacementError if the server at `new` is no member, also answers at its old address, or has a
    disk that went back in time; StoreNotReadyError, QuorumUnavailableError.
    """
    parsed, address = parse_url(url), parse_address(new)
    answer = await probe(address, token=token, client=client)
    servers = list(dict.fromkeys([*parsed.servers, address]))
    membership, _ = await find_membership(servers, token=token, client=client, hurry=True)
    known = membership.record.member(answer.server_id) if membership.record is not None else None
    if known is None:
        raise ReplacementError(
            f"the server at {address} (server id {id_text(answer.server_id)}) is not a member of this store",
            remedy="start it with the data directory of the member that moved",
        )
    if known.address == address and membership.record is not None:
        return membership.record
    at = DosUrl(tuple(servers))
    async with open_store(at, token=token, client=client, located={known.server_id: address}) as store:
        change = change_now(store, "move", old=named(known), new=address)
        async with _changing(store, change) as records:
            await move_in(store, records, {known.server_id: address})
        return store.record


async def move_in(store: Store, records: RecordLog, addresses: Mapping[bytes, str]) -> None:
    """Record new addresses of members, by server id, under a claim of the record log.

    The store was opened with `located=addresses`, so the disks at these addresses are compared with what the
    other members know of them. Raises ReplacementError.
    """
    for server_id, address in addresses.items():
        await _is_that_member(store, server_id, address)
    with refusals():
        record = move(store.record, addresses)
    await decide_and_install(store, records, record)


async def _is_that_member(store: Store, server_id: bytes, address: str) -> None:
    """Raise ReplacementError unless the member works at the address, its disk did not go back, and it does
    not also answer at its old address. A disk there that went back does not matter: its server serves no
    session of the store.
    """
    answer = await probe(address, token=store.token, client=store.client)
    with trio.move_on_after(open_timeout_s):
        while not (
            answer.rolled_back or store.is_connected(server_id) or server_id in store.witnesses.rolled_back
        ):
            await store.wait_moved(inspect_timeout_s)
    member = store.record.member(server_id)
    if answer.rolled_back or server_id in store.witnesses.rolled_back:
        raise ReplacementError(
            f"the disk of the server at {address} went back in time: it is an older copy",
            remedy="start the newest disk of this member; if it is lost, replace the member",
        )
    if member is None or not store.is_connected(server_id):
        raise ReplacementError(f"{address} does not answer as server {id_text(server_id)}")
    try:
        old = await probe(member.address, token=store.token, client=store.client)
    except DosError:
        return
    if member.address != address and old.server_id == server_id and not old.rolled_back:
        raise ReplacementError(
            f"server {id_text(server_id)} answers at {member.address} and at {address}",
            remedy="stop the copy of its disk",
        )


@asynccontextmanager
async def _changing(store: Store, change: Change) -> AsyncIterator[RecordLog]:
    """Take the record log over for one change, unless another change is in progress."""
    _no_change_in_progress(store.record)
    async with open_record_log(store) as records:
        await install_decided(store, records)
        _no_change_in_progress(store.record)
        async with recorded(store, records, replace(change, generation=store.record.generation)):
            yield records


def _no_change_in_progress(record: StoreRecord) -> None:
    filled = filled_member(record)
    if filled is not None:
        raise ReplacementError(
            f"{filled.address} is {filled.state}: only one change at a time",
            remedy="wait until it is in; see `dos store status`",
        )

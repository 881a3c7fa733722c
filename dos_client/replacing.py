"""Replacing a member: from one store record to the next, and to the one after that.

Rules of this file: the order of the steps. Which records, `core.replacement`; how one is decided,
`record_log`; how the new member is filled, `filling`; why all that is safe, docs/decisions/0010.
"""

import logging
from typing import Final

import trio

from dos_client.connection import open_connection
from dos_client.core.backoff import backoff_s
from dos_client.core.membership import ServerAnswer
from dos_client.core.quorum import joining_member, replaced_member
from dos_client.core.replacement import Plan, Step, finish, plan
from dos_client.discovery import hand_over, probe
from dos_client.errors import ReplacementError
from dos_client.filling import Filling, Progress, ReplaceProgress
from dos_client.limits import install_timeout_s, look_timeout_s
from dos_client.live_store import Store
from dos_client.record_log import RecordLog, open_record_log
from dos_client.store import open_store
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import DosError, FencedError
from dos_protocol.store_record import StoreRecord

log: Final = logging.getLogger("dos.client")


async def replace_member(
    url: str | DosUrl,
    *,
    old: str,
    new: str,
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store replace",
) -> StoreRecord:
    """Put the server at the address `new` in the place of the member `old` (an address, or an identity in
    hex).

    `new` must answer, be in no store, and be empty; it may stand at the address of `old`. Writers and
    readers go on meanwhile. Interrupted, it is begun again with the same arguments and goes on where it
    was. Returns the record in which the new member is in. Raises ReplacementError, StoreNotReadyError,
    QuorumUnavailableError; FencedError when another replacement was begun after this one."""
    tell = _Teller(progress)
    tell.phase("joining")
    old_name = old if len(old) == 32 and ":" not in old else parse_address(old)
    new_address = parse_address(new)
    async with open_store(parse_url(url), token=token, client=client) as store:
        answer = await probe(new_address, token=token, client=client)
        try:
            await _replace(store, old_name, answer, tell)
        except FencedError:
            # another run took over: it may have finished what this one had decided
            if not await _is_in(store, answer.server_id):
                raise
        tell.phase("done")
        return store.record


async def _replace(store: Store, old: str, new: ServerAnswer, tell: "_Teller") -> None:
    if _plan(store.record, old, new)[0] is Step.DONE:
        return
    async with open_record_log(store) as records:
        if records.last.generation > store.record.generation:
            await _install(store, records.last)
        step, record = _plan(store.record, old, new)
        if step is Step.BEGIN:
            await _must_be_new(store, new.address)
            await _decide_and_install(store, records, record)
        if step is not Step.DONE:
            await _fill(store, records, tell)
            leaving = replaced_member(store.record)
            tell.phase("finishing")
            await _decide_and_install(store, records, finish(store.record))
            if leaving is not None:
                await _tell_leaving(store, leaving.address)


async def _is_in(store: Store, server_id: bytes) -> bool:
    """Whether the server is, or within moments becomes, a member that counts."""
    store.reread_membership()
    with trio.move_on_after(look_timeout_s):
        while True:
            member = store.record.member(server_id)
            if member is not None and member.state == "in":
                return True
            await store.wait_generation(store.record.generation + 1)
    return False


class _Teller:
    """Keeps the progress and tells it."""

    def __init__(self, callback: Progress | None) -> None:
        self._callback = callback
        self._now = ReplaceProgress()

    def phase(self, phase: str) -> None:
        self._now.phase = phase
        self._tell()

    def counts(self, directories: int, done: int, bytes_total: int, bytes_done: int) -> None:
        self._now = ReplaceProgress(self._now.phase, directories, done, bytes_total, bytes_done)
        self._tell()

    def _tell(self) -> None:
        if self._callback is not None:
            self._callback(self._now)


def _plan(record: StoreRecord, old: str, new: ServerAnswer) -> Plan:
    try:
        return plan(record, old, new.server_id, new.address)
    except ValueError as error:
        raise ReplacementError(str(error)) from error


async def _must_be_new(store: Store, address: str) -> None:
    async with open_connection(address, token=store.token, client=store.client) as connection:
        if connection.record is not None:
            raise ReplacementError(f"{address} belongs to store {connection.record.store_id.hex()} already")
        if (await connection.list_names()).entries:
            raise ReplacementError(f"{address} is not empty", remedy="start it on an empty data directory")


async def _decide_and_install(store: Store, records: RecordLog, record: StoreRecord) -> None:
    await records.decide(record)
    await _install(store, record)


async def _install(store: Store, record: StoreRecord) -> None:
    """Give a decided record to its members, until so many keep it that it counts: from then on the sessions
    of the one before cannot acknowledge anything. The others are handed it by whoever meets them."""
    errors: dict[str, str] = {}
    attempt = 0
    with trio.move_on_after(install_timeout_s):
        while store.record.generation < record.generation:
            for member in record.members:
                try:
                    await hand_over(member.address, record, token=store.token, client=store.client)
                    errors.pop(member.address, None)
                except DosError as error:
                    errors[member.address] = str(error.args[0])
            attempt += 1
            with trio.move_on_after(backoff_s(attempt, 1.0)):
                await store.wait_generation(record.generation)
    if store.record.generation < record.generation:
        raise ReplacementError(
            f"generation {record.generation} is decided, but too few members took it:"
            f" {'; '.join(errors.values()) or 'it is not confirmed yet'}",
            remedy="start the missing members and run the same command again",
        )


async def _fill(store: Store, records: RecordLog, tell: _Teller) -> None:
    joining = joining_member(store.record)
    if joining is None:
        raise ReplacementError(f"no member joins in generation {store.record.generation}")
    tell.phase("filling")
    await Filling(store, joining, tell.counts, records.check).run()


async def _tell_leaving(store: Store, address: str) -> None:
    """The server that left is told, if it is there: its own record then says that it is no member."""
    try:
        await hand_over(address, store.record, token=store.token, client=store.client)
    except DosError as error:
        log.info("the server that left, %s, was not told: %s", address, error)

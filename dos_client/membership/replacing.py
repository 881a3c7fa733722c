"""Replacing a member: from one store record to the next, and to the one after that.

Rules of this file: the order of the steps. Which records, `core.replacement`; how one is decided,
`record_log`; how the new member is filled, `filling`; why all that is safe, docs/decisions/0010.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from dos_client.core.backoff import backoff_s
from dos_client.core.membership import ServerAnswer
from dos_client.core.override_log import OTHER_IS_GONE, Override
from dos_client.core.quorum import filled_member, replaced_member
from dos_client.core.recovery import StoreSurvivors, era, forced
from dos_client.core.replacement import ReplacementPlan, ReplacementStep, add, finish, plan
from dos_client.errors import LossError, QuorumUnavailableError, ReplacementError
from dos_client.limits import install_timeout_s, look_timeout_s
from dos_client.live_store import Store
from dos_client.membership.filling import Filling, Progress, ReplaceProgress
from dos_client.membership.record_log import RecordLog, open_record_log
from dos_client.membership.surviving import (
    entry,
    force,
    look_around,
    need_store,
    unfinished,
    what_is_left,
)
from dos_client.sessions.connection import open_connection
from dos_client.sessions.discovery import ServerSurvey, hand_over, probe
from dos_client.store import open_store
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import DosError, FencedError
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord

log: Final = logging.getLogger("dos.client")


async def replace_member(
    url: str | DosUrl,
    *,
    old: str,
    new: str,
    other_is_gone: bool = False,
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store replace",
) -> StoreRecord:
    """Put the server at the address `new` in the place of the member `old` (an address, or an identity in
    hex).

    `new` must answer, be in no store, and be empty; it may stand at the address of `old`. Writers and
    readers go on meanwhile. Interrupted, it is begun again with the same arguments and goes on where it
    was. Returns the record in which the new member is in. Raises ReplacementError, also when another
    replacement was begun after this one, LossError, StoreNotReadyError, QuorumUnavailableError.

    `other_is_gone`: a person's word, needed and taken only when too few members are there to agree on a
    replacement (of two members, one is dead), and yet each acknowledged byte is on one that is: that `old` is
    gone for good, and that nobody goes on with it elsewhere."""
    tell = ProgressReporter(progress)
    tell.phase("joining")
    old_name = old if len(old) == 32 and ":" not in old else parse_address(old)
    new_address, parsed = parse_address(new), parse_url(url)
    now, seen = await look_around(parsed.servers, token=token, client=client)
    override = None
    if now is None or not now.complete:
        now = need_store(now, seen)
        override, old_name = await _go_on_without(
            now, seen, old_name, new_address, token=token, client=client, other_is_gone=other_is_gone
        )
    async with open_store(parsed, token=token, client=client) as store:
        if other_is_gone and era(store.record.generation) == 0:
            raise ReplacementError(
                "enough members are there, so nobody's word is needed",
                remedy="say the same without --other-is-gone",
            )
        answer = await probe(new_address, token=token, client=client)
        try:
            await _replace(store, old_name, answer, tell, override)
        except FencedError as error:
            # another run took over: it may have finished what this one had decided
            if not await _is_in(store, answer.server_id):
                raise ReplacementError(
                    f"another run took over: {_under_way(store.record)}",
                    remedy="one at a time: let it finish",
                ) from error
        tell.phase("done")
        return store.record


async def _go_on_without(
    now: StoreSurvivors,
    seen: ServerSurvey,
    old: str,
    new: str,
    *,
    token: bytes,
    client: str,
    other_is_gone: bool,
) -> tuple[Override, str]:
    """Too few members are there: force the record of those, and of the new one; or refuse, with words.

    Where all are there but the one that joins in the place of another, the record of those alone, and the
    replacement begins anew. Returns who is to be replaced then."""
    filled, replaced = filled_member(now.record), replaced_member(now.record)
    anew = replaced if now.lost == (filled,) else None
    if anew is not None and filled is not None and old in (anew.address, id_text(anew.server_id)):
        old = id_text(filled.server_id)
    missing = ", ".join(one.address for one in now.lost)
    there = ", ".join(one.address for one in now.present)
    if not now.covered:
        loss = await what_is_left(now, seen, token=token, client=client)
        raise LossError(
            f"more members are gone than the store is made for: {missing}",
            loss.lines(),
            remedy="start one of them; or, giving up what only they had: dos store recover URL --accept-loss",
        )
    if old not in [name for one in now.lost for name in (one.address, id_text(one.server_id))]:
        raise ReplacementError(f"{old} is not the one that is missing: {missing}")
    if not other_is_gone:
        raise ReplacementError(
            f"of {len(now.record.voters)} members only {there} is there, and replacing one needs them both"
            if len(now.record.voters) == 2 and len(now.present) == 1
            else f"too few members are there to agree on a replacement; missing: {missing}",
            remedy=f"start {missing}; or if it is gone for good, and nobody goes on with it elsewhere,"
            " say the same with --other-is-gone",
        )
    answer = await probe(new, token=token, client=client)
    await must_be_new(new, token, client)
    try:
        record = forced(now, Member(answer.server_id, new) if anew is None else None)
    except ValueError as error:
        raise ReplacementError(str(error)) from error
    await force(record, seen, token=token, client=client)
    return entry(OTHER_IS_GONE, record, now), old if anew is None else id_text(anew.server_id)


async def _replace(
    store: Store, old: str, new: ServerAnswer, tell: "ProgressReporter", override: Override | None
) -> None:
    if _plan(store.record, old, new)[0] is ReplacementStep.DONE and await unfinished(store) is None:
        return
    async with open_record_log(store) as records:
        if override is not None:
            await records.note(override)
        await install_decided(store, records)
        step, record = _plan(store.record, old, new)
        if step is ReplacementStep.BEGIN:
            await must_be_new(new.address, store.token, store.client)
            await decide_and_install(store, records, record)
        if step is not ReplacementStep.DONE:
            await fill_and_finish(store, records, tell)
        forced_before = await unfinished(store)
        if forced_before is not None and forced_before.what == OTHER_IS_GONE:
            await records.note(replace(forced_before, finished=True))


async def add_member(
    url: str | DosUrl,
    *,
    new: str,
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store add",
) -> StoreRecord:
    """Make the store one larger by the empty server at the address `new`, which is filled first. While that
    lasts, every member is needed to go on.

    Interrupted, it is begun again with the same arguments. Raises as `replace_member`."""
    tell = ProgressReporter(progress)
    async with open_store(parse_url(url), token=token, client=client) as store:
        try:
            async with open_record_log(store) as records:
                await install_decided(store, records)
                await add_to(store, records, parse_address(new), tell)
        except QuorumUnavailableError as error:
            raise _all_are_needed(store.record, error) from error
        tell.phase("done")
        return store.record


def _all_are_needed(record: StoreRecord, error: QuorumUnavailableError) -> QuorumUnavailableError:
    """The same, with the way out when a member is lost while another is being added."""
    filled = filled_member(record)
    if filled is None or filled.state != "adding":
        return error
    return QuorumUnavailableError(
        f"while {filled.address} is being added every member is needed: {error.args[0]}",
        remedy="start the missing one, or mend what is damaged (dos store repair), and say the same again; or"
        " if it is gone for good, give the addition up: dos store replace OLD NEW --other-is-gone",
    )


async def add_to(store: Store, records: RecordLog, new: str, tell: "ProgressReporter") -> None:
    """Add one member, or go on with adding it."""
    tell.phase("joining")
    answer = await probe(new, token=store.token, client=store.client)
    known = store.record.member(answer.server_id)
    if known is not None and known.state == "in":
        return
    if known is None:
        await must_be_new(new, store.token, store.client)
        try:
            record = add(store.record, answer.server_id, new)
        except ValueError as error:
            raise ReplacementError(str(error)) from error
        await decide_and_install(store, records, record)
    await fill_and_finish(store, records, tell)


async def fill_and_finish(store: Store, records: RecordLog, tell: "ProgressReporter") -> None:
    """Fill the member that joins, then let it count."""
    await _fill(store, records, tell)
    leaving = replaced_member(store.record)
    tell.phase("finishing")
    await decide_and_install(store, records, finish(store.record))
    if leaving is not None:
        await _tell_leaving(store, leaving.address)


def _under_way(record: StoreRecord) -> str:
    """Who replaces whom."""
    filled, replaced = filled_member(record), replaced_member(record)
    if filled is None:
        return f"generation {record.generation} has {', '.join(one.address for one in record.members)}"
    place = f"in the place of {replaced.address}" if replaced is not None else "beside the others"
    return f"{filled.address} comes in, {place} (generation {record.generation})"


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


class ProgressReporter:
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


def _plan(record: StoreRecord, old: str, new: ServerAnswer) -> ReplacementPlan:
    try:
        return plan(record, old, new.server_id, new.address)
    except ValueError as error:
        raise ReplacementError(str(error)) from error


async def must_be_new(address: str, token: bytes, client: str) -> None:
    """Raise ReplacementError unless the server is empty and in no store."""
    async with open_connection(address, token=token, client=client) as connection:
        if connection.record is not None:
            raise ReplacementError(f"{address} belongs to store {connection.record.store_id.hex()} already")
        if (await connection.list_names()).entries:
            raise ReplacementError(
                f"{address} is not empty",
                remedy="start it on an empty data directory; if it fills again, some client writes to that"
                " address by itself: keep it away, or start the server at another one, until it is in",
            )


async def decide_and_install(store: Store, records: RecordLog, record: StoreRecord) -> None:
    """Decide a record, and give it to its members until it counts."""
    await records.decide(record)
    await _install(store, record)


async def install_decided(store: Store, records: RecordLog) -> None:
    """What another run had decided, and given to too few: it counts before anything else is decided."""
    if records.last.generation > store.record.generation:
        await _install(store, records.last)


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


async def _fill(store: Store, records: RecordLog, tell: ProgressReporter) -> None:
    joining = filled_member(store.record)
    if joining is None:
        raise ReplacementError(f"no member joins in generation {store.record.generation}")
    tell.phase("filling")
    await Filling(store, joining, tell.counts, records.check).run()


async def _tell_leaving(store: Store, address: str) -> None:
    """The server that left is told, if it is there: its own record then says that it is no member."""
    try:
        await hand_over(address, store.record, token=store.token, client=store.client)
    except DosError as error:
        log.info("the server that left, %s, was not told: %s", address, error.args[0])

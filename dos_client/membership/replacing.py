"""Replace or add a member: the order of the steps, from one store record to the next.

`core.replacement` decides the records, `record_log` makes them decided, `filling` fills the new member.
docs/decisions/0010 explains why this is safe.
"""

import logging
from dataclasses import replace
from typing import Final

import trio

from dos_client.core.backoff import backoff_s
from dos_client.core.membership import ServerAnswer
from dos_client.core.override_log import OTHER_IS_GONE, Override
from dos_client.core.quorum import filled_member, replaced_member, tie_breaker
from dos_client.core.recovery import StoreSurvivors, era, forced
from dos_client.core.replacement import ReplacementPlan, ReplacementStep, add, finish, plan
from dos_client.errors import LossError, QuorumUnavailableError, ReplacementError
from dos_client.limits import inspect_timeout_s, install_timeout_s
from dos_client.live_store import Store
from dos_client.membership.checking import is_there, refusals, require_both, require_empty
from dos_client.membership.filling import Filling, Progress, ReplaceProgress
from dos_client.membership.history import change_now, named, recorded
from dos_client.membership.record_log import RecordLog, open_record_log
from dos_client.membership.surviving import (
    describe_loss,
    entry,
    find_survivors,
    force,
    need_store,
    unfinished,
)
from dos_client.sessions.discovery import ServerSurvey, probe, send_record
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
    """Replace the member `old` (an address, or a server id in hex) by the server at the address `new`.

    `new` must answer, be in no store, and be empty. It may have the address of `old`. Writers and readers
    continue meanwhile. If interrupted, run it again with the same arguments; it continues. Returns the record
    in which the new member is in. Raises ReplacementError, also if another replacement was started after this
    one, LossError, StoreNotReadyError, QuorumUnavailableError.

    `other_is_gone`: a person confirms that `old` is gone for good and that nobody continues to work with it
    elsewhere. It is needed, and accepted, only if too few members answer to agree on a replacement (one of
    two members is dead), but every acknowledged byte is on a member that answers.
    """
    reporter = ProgressReporter(progress)
    reporter.phase("joining")
    old_name = old if len(old) == 32 and ":" not in old else parse_address(old)
    new_address, parsed = parse_address(new), parse_url(url)
    now, seen = await find_survivors(parsed.servers, token=token, client=client)
    override = None
    if now is None or not now.complete:
        now = need_store(now, seen)
        override, old_name = await _force_without(
            now, seen, old_name, new_address, token=token, client=client, other_is_gone=other_is_gone
        )
    async with open_store(parsed, token=token, client=client) as store:
        if other_is_gone and era(store.record.generation) == 0:
            raise ReplacementError(
                "enough members answer, so --other-is-gone is not needed",
                remedy="run the command again without --other-is-gone",
            )
        answer = await probe(new_address, token=token, client=client)
        try:
            await _replace(store, old_name, answer, reporter, override)
        except FencedError as error:
            # another run took over: it may have completed the replacement that this run decided
            if not await _is_in(store, answer.server_id):
                raise ReplacementError(
                    f"another run took over: {_change_in_progress(store.record)}",
                    remedy="only one replacement at a time is possible; wait for it",
                ) from error
        reporter.phase("done")
        return store.record


async def _force_without(
    now: StoreSurvivors,
    seen: ServerSurvey,
    old: str,
    new: str,
    *,
    token: bytes,
    client: str,
    other_is_gone: bool,
) -> tuple[Override, str]:
    """Force a record of the members that answer and of the new one, or raise the reason against it.

    If only the joining member of a replacement is missing, the record has the members alone, and the
    replacement starts again. Returns the override entry and the member to be replaced then.
    """
    filled, replaced = filled_member(now.record), replaced_member(now.record)
    restarted = replaced if now.lost == (filled,) else None
    if (
        restarted is not None
        and filled is not None
        and old in (restarted.address, id_text(restarted.server_id))
    ):
        old = id_text(filled.server_id)
    missing = ", ".join(one.address for one in now.lost)
    present = ", ".join(one.address for one in now.present)
    if not now.covered:
        loss = await describe_loss(now, seen, token=token, client=client)
        raise LossError(
            f"more members are lost than the store tolerates: {missing}",
            loss.lines(),
            remedy="start one of them, or give up the data that only they had:"
            " dos store recover URL --accept-loss",
        )
    if old not in [name for one in now.lost for name in (one.address, id_text(one.server_id))]:
        raise ReplacementError(f"{old} is not the missing member; missing: {missing}")
    if not other_is_gone:
        raise ReplacementError(
            f"of {len(now.record.voters)} members only {present} answers, and a replacement needs both"
            if len(now.record.voters) == 2 and len(now.present) == 1
            else f"too few members answer to agree on a replacement; missing: {missing}",
            remedy=f"start {missing}; or, if it is gone for good and nobody works with it elsewhere,"
            " run the command again with --other-is-gone",
        )
    answer = await probe(new, token=token, client=client)
    await require_empty(new, token, client)
    with refusals():
        record = forced(now, Member(answer.server_id, new) if restarted is None else None)
    await force(record, seen, token=token, client=client)
    return entry(OTHER_IS_GONE, record, now), old if restarted is None else id_text(restarted.server_id)


async def _replace(
    store: Store, old: str, new: ServerAnswer, reporter: "ProgressReporter", override: Override | None
) -> None:
    if _plan(store.record, old, new)[0] is ReplacementStep.DONE and await unfinished(store) is None:
        return
    async with open_record_log(store) as records:
        if override is not None:
            await records.note(override)
        await install_decided(store, records)
        leaving = store.record.find(old)
        change = change_now(
            store,
            "replace",
            old=named(leaving) or old,
            new=named(Member(new.server_id, new.address)),
            why="--other-is-gone" if override is not None else "",
        )
        async with recorded(store, records, change):
            await replace_in(store, records, old, new, reporter)
        forced_before = await unfinished(store)
        if forced_before is not None and forced_before.what == OTHER_IS_GONE:
            await records.note(replace(forced_before, finished=True))


async def replace_in(
    store: Store, records: RecordLog, old: str, new: ServerAnswer, reporter: "ProgressReporter"
) -> None:
    """Replace a member, or continue to replace it, under a claim of the record log. Raises as
    `replace_member`.
    """
    leaving, absent = store.record.find(old), False
    if leaving is not None and tie_breaker(store.record) is not None:
        absent = not await is_there(store, leaving)
    step, record = _plan(store.record, old, new, absent=absent)
    if step is ReplacementStep.BEGIN:
        await require_empty(new.address, store.token, store.client, store.record)
        if not absent:
            await require_both(store)
        await decide_and_install(store, records, record)
    if step is not ReplacementStep.DONE:
        await fill_and_finish(store, records, reporter)


async def add_member(
    url: str | DosUrl,
    *,
    new: str,
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store add",
) -> StoreRecord:
    """Add the empty server at the address `new` to the store. It is filled first.

    Until it is filled, every member is needed to continue. If interrupted, run it again with the same
    arguments. Raises as `replace_member`.
    """
    reporter = ProgressReporter(progress)
    async with open_store(parse_url(url), token=token, client=client) as store:
        try:
            async with open_record_log(store) as records:
                await install_decided(store, records)
                change = change_now(store, "add", new=parse_address(new))
                async with recorded(store, records, change):
                    await add_to(store, records, parse_address(new), reporter)
        except QuorumUnavailableError as error:
            raise _all_are_needed(store.record, error) from error
        reporter.phase("done")
        return store.record


def _all_are_needed(record: StoreRecord, error: QuorumUnavailableError) -> QuorumUnavailableError:
    """Return the error with the remedy for a member that is lost while another is being added."""
    filled = filled_member(record)
    if filled is None or filled.state != "adding":
        return error
    return QuorumUnavailableError(
        f"while {filled.address} is being added every member is needed: {error.args[0]}",
        remedy="start the missing one, or repair damage (dos store repair), and run the command again; or, if"
        " it is gone for good, abandon the addition: dos store replace OLD NEW --other-is-gone",
    )


async def add_to(store: Store, records: RecordLog, new: str, reporter: "ProgressReporter") -> None:
    """Add one member, or continue to add it."""
    reporter.phase("joining")
    answer = await probe(new, token=store.token, client=store.client)
    known = store.record.member(answer.server_id)
    if known is not None and known.state == "in":
        return
    if known is None:
        await require_empty(new, store.token, store.client, store.record)
        await require_both(store)
        with refusals():
            record = add(store.record, answer.server_id, new)
        await decide_and_install(store, records, record)
    await fill_and_finish(store, records, reporter)


async def fill_and_finish(store: Store, records: RecordLog, reporter: "ProgressReporter") -> None:
    """Fill the joining member, then let it count."""
    await _fill(store, records, reporter)
    leaving = replaced_member(store.record)
    reporter.phase("finishing")
    await decide_and_install(store, records, finish(store.record))
    if leaving is not None:
        await _send_record_to_leaving(store, leaving.address)


def _change_in_progress(record: StoreRecord) -> str:
    """Describe the replacement or addition in the record."""
    filled, replaced = filled_member(record), replaced_member(record)
    if filled is None:
        return f"generation {record.generation} has {', '.join(one.address for one in record.members)}"
    change = f"replaces {replaced.address}" if replaced is not None else "is being added"
    return f"{filled.address} {change} (generation {record.generation})"


async def _is_in(store: Store, server_id: bytes) -> bool:
    """Return whether the server is, or soon becomes, a member that counts."""
    store.reread_membership()
    with trio.move_on_after(inspect_timeout_s):
        while True:
            member = store.record.member(server_id)
            if member is not None and member.state == "in":
                return True
            await store.wait_generation(store.record.generation + 1)
    return False


class ProgressReporter:
    """Keeps the progress, `now`, and reports it to the callback."""

    def __init__(self, callback: Progress | None) -> None:
        self._callback = callback
        self.now = ReplaceProgress()

    def phase(self, phase: str) -> None:
        self.now = replace(self.now, phase=phase)
        self._report()

    def counts(self, directories: int, done: int, bytes_total: int, bytes_done: int) -> None:
        self.now = ReplaceProgress(self.now.phase, directories, done, bytes_total, bytes_done)
        self._report()

    def _report(self) -> None:
        if self._callback is not None:
            self._callback(self.now)


def _plan(record: StoreRecord, old: str, new: ServerAnswer, *, absent: bool = False) -> ReplacementPlan:
    with refusals():
        return plan(record, old, new.server_id, new.address, absent=absent)


async def decide_and_install(store: Store, records: RecordLog, record: StoreRecord) -> None:
    """Decide a record, and send it to its members until it counts."""
    await records.decide(record)
    await _install(store, record)


async def install_decided(store: Store, records: RecordLog) -> None:
    """Install a record that another run decided and sent to too few members, before anything else is
    decided.
    """
    if records.last.generation > store.record.generation:
        await _install(store, records.last)


async def _install(store: Store, record: StoreRecord) -> None:
    """Send a decided record to its members until enough of them have it, so that it counts.

    From then on the sessions of the previous record cannot acknowledge anything. The other members get it
    from any client that connects to them.
    """
    errors: dict[str, str] = {}
    attempt = 0

    async def send(member: Member) -> None:
        address = store.located.get(member.server_id, member.address)
        try:
            await send_record(address, record, token=store.token, client=store.client)
            errors.pop(member.address, None)
            log.info("%s now stores generation %d of its store record", address, record.generation)
        except DosError as error:
            errors[member.address] = str(error.args[0])

    with trio.move_on_after(install_timeout_s):
        while store.record.generation < record.generation:
            async with trio.open_nursery() as nursery:
                for member in (*record.members, *record.spares):
                    nursery.start_soon(send, member)
            attempt += 1
            with trio.move_on_after(backoff_s(attempt, 1.0)):
                await store.wait_generation(record.generation)
    if store.record.generation < record.generation:
        raise ReplacementError(
            f"generation {record.generation} is decided, but too few members accepted it:"
            f" {'; '.join(errors.values()) or 'it is not confirmed yet'}",
            remedy="start the missing members and run the same command again",
        )


async def _fill(store: Store, records: RecordLog, reporter: ProgressReporter) -> None:
    joining = filled_member(store.record)
    if joining is None:
        raise ReplacementError(f"no member is joining in generation {store.record.generation}")
    reporter.phase("filling")
    await Filling(store, joining, reporter.counts, records.check).run()


async def _send_record_to_leaving(store: Store, address: str) -> None:
    """Send the new record to the server that left, if it answers, so that its own record shows that it is not
    a member.
    """
    try:
        await send_record(address, store.record, token=store.token, client=store.client)
    except DosError as error:
        log.info("the replaced server %s did not accept the record: %s", address, error.args[0])

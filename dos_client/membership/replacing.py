"""Change the members of a store: the order of the steps, from one store record to the next.

`core.replacement` decides the records, `record_log` makes them decided, `filling` fills the new member.
docs/decisions/0010 explains why this is safe; 0223, the changes that move no data; 0013, forced records.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from dos_client.core.logs import (
    ACCEPT_LOSS,
    DIRECTORY,
    OTHER_IS_GONE,
    OVERRIDES,
    Change,
    Override,
    is_finished,
)
from dos_client.core.membership import ROLLED_BACK, ServerAnswer
from dos_client.core.quorum import Quorums, filled_member, replaced_member, tie_breaker
from dos_client.core.replacement import (
    ReplacementPlan,
    ReplacementStep,
    StoreSurvivors,
    add,
    era,
    finish,
    forced,
    move,
    plan,
    survivors,
    with_spare,
    without_spare,
)
from dos_client.errors import LossError, QuorumUnavailableError, ReplacementError, StoreNotReadyError
from dos_client.limits import inspect_timeout_s, install_timeout_s, open_timeout_s
from dos_client.live_store import Store
from dos_client.membership.filling import Filling, Progress, ReplaceProgress
from dos_client.membership.record_log import (
    RecordLog,
    change_now,
    named,
    names_of,
    now_text,
    open_record_log,
    read_log,
    recorded,
    this_user,
)
from dos_client.randomness import backoff_s
from dos_client.sessions.connection import ServerAccess, open_connection
from dos_client.sessions.discovery import ServerSurvey, find_membership, probe, send_record
from dos_client.store import open_store
from dos_client.tasks import try_each
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import CorruptDataError, CorruptError, DosError, FencedError
from dos_protocol.messages import ObjectInfo
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
    """Replace the member `old` (an address, or a server id in hex) by the empty server at the address `new`.

    Writers and readers continue meanwhile. If interrupted, run it again with the same arguments. Returns the
    record in which the new member is in. Raises ReplacementError, LossError, StoreNotReadyError,
    QuorumUnavailableError.

    `other_is_gone`: a person confirms that `old` is gone for good and that nobody continues to work with it.
    It is accepted only if too few members answer to agree on a replacement, but every acknowledged byte is on
    one that does.
    """
    access, reporter = ServerAccess(token, client), ProgressReporter(progress)
    reporter.phase("joining")
    old_name = old if len(old) == 32 and ":" not in old else parse_address(old)
    new_address, parsed = parse_address(new), parse_url(url)
    now, seen = await find_survivors(parsed.servers, access)
    override = None
    if now is None or not now.complete:
        now = need_store(now, seen)
        override, old_name = await _force_without(
            now, seen, access, old_name, new_address, other_is_gone=other_is_gone
        )
    async with open_store(parsed, **access._asdict()) as store:
        if other_is_gone and era(store.record.generation) == 0:
            raise ReplacementError(
                "enough members answer, so --other-is-gone is not needed",
                remedy="run the command again without --other-is-gone",
            )
        answer = await probe(new_address, access)
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
    access: ServerAccess,
    old: str,
    new: str,
    *,
    other_is_gone: bool,
) -> tuple[Override, str]:
    """Force a record of the members that answer and of the new one, or raise the reason against it."""
    filled, replaced = filled_member(now.record), replaced_member(now.record)
    # Only the joining member is missing: the record has the members alone, and the replacement starts again.
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
        loss = await describe_loss(now, seen, access)
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
    answer = await probe(new, access)
    await require_empty(new, access)
    with refusals():
        record = forced(now, Member(answer.server_id, new) if restarted is None else None)
    await force(record, seen, access)
    return entry(OTHER_IS_GONE, record, now), old if restarted is None else id_text(restarted.server_id)


async def _replace(
    store: Store, old: str, new: ServerAnswer, reporter: "ProgressReporter", override: Override | None
) -> None:
    if _plan(store.record, old, new)[0] is ReplacementStep.DONE and await unfinished(store) is None:
        return
    async with open_record_log(store) as records:
        if override is not None:
            await records.write(OVERRIDES, override)
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
            await records.write(OVERRIDES, replace(forced_before, finished=True))


async def replace_in(
    store: Store, records: RecordLog, old: str, new: ServerAnswer, reporter: "ProgressReporter"
) -> None:
    """Replace a member, or continue to, under a claim of the record log. Raises as `replace_member`."""
    leaving, absent = store.record.find(old), False
    if leaving is not None and tie_breaker(store.record) is not None:
        absent = not await is_there(store, leaving)
    step, record = _plan(store.record, old, new, absent=absent)
    if step is ReplacementStep.BEGIN:
        await require_empty(new.address, store.access, store.record)
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
    """Add the empty server at `new` to the store. Until it is filled, every member is needed. If interrupted,
    run it again. Raises as `replace_member`.
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
    filled = filled_member(record)
    if filled is None or filled.state != "adding":
        return error
    return QuorumUnavailableError(
        f"while {filled.address} is being added every member is needed: {error.args[0]}",
        remedy="start the missing one, or repair damage (dos store repair), and run the command again; or, if"
        " it is gone for good, abandon the addition: dos store replace OLD NEW --other-is-gone",
    )


async def add_to(store: Store, records: RecordLog, new: str, reporter: "ProgressReporter") -> None:
    reporter.phase("joining")
    answer = await probe(new, store.access)
    known = store.record.member(answer.server_id)
    if known is not None and known.state == "in":
        return
    if known is None:
        await require_empty(new, store.access, store.record)
        await require_both(store)
        with refusals():
            record = add(store.record, answer.server_id, new)
        await decide_and_install(store, records, record)
    await fill_and_finish(store, records, reporter)


async def fill_and_finish(store: Store, records: RecordLog, reporter: "ProgressReporter") -> None:
    # Filled before it counts: otherwise it answers a take-over without bytes that were acknowledged.
    await _fill(store, records, reporter)
    leaving = replaced_member(store.record)
    reporter.phase("finishing")
    await decide_and_install(store, records, finish(store.record))
    if leaving is not None:
        await _tell_excluded(leaving.address, store.record, store.access)


def _change_in_progress(record: StoreRecord) -> str:
    filled, replaced = filled_member(record), replaced_member(record)
    if filled is None:
        return f"generation {record.generation} has {', '.join(one.address for one in record.members)}"
    change = f"replaces {replaced.address}" if replaced is not None else "is being added"
    return f"{filled.address} {change} (generation {record.generation})"


async def _is_in(store: Store, server_id: bytes) -> bool:
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
    await records.decide(record)
    await _install(store, record)


async def install_decided(store: Store, records: RecordLog) -> None:
    """Install a record that another run decided and sent to too few members, before all else."""
    if records.last.generation > store.record.generation:
        await _install(store, records.last)


async def _install(store: Store, record: StoreRecord) -> None:
    failed: list[tuple[Member, DosError]] = []
    attempt = 0

    async def send(member: Member) -> None:
        address = store.located.get(member.server_id, member.address)
        await send_record(address, record, store.access)
        log.info("%s now stores generation %d of its store record", address, record.generation)

    # Once enough members have it, the sessions of the previous record cannot acknowledge anything. The other
    # members get it from any client that connects to them.
    with trio.move_on_after(install_timeout_s):
        while store.record.generation < record.generation:
            failed = await try_each((*record.members, *record.spares), send)
            attempt += 1
            with trio.move_on_after(backoff_s(attempt, 1.0)):
                await store.wait_generation(record.generation)
    if store.record.generation < record.generation:
        raise ReplacementError(
            f"generation {record.generation} is decided, but too few members accepted it:"
            f" {'; '.join(str(error.args[0]) for _, error in failed) or 'it is not confirmed yet'}",
            remedy="start the missing members and run the same command again",
        )


async def _fill(store: Store, records: RecordLog, reporter: ProgressReporter) -> None:
    joining = filled_member(store.record)
    if joining is None:
        raise ReplacementError(f"no member is joining in generation {store.record.generation}")
    reporter.phase("filling")
    await Filling(store, joining, reporter.counts, records.check).run()


async def _tell_excluded(address: str, record: StoreRecord, access: ServerAccess) -> None:
    """Send the record to a server that it leaves out, if it answers: its own record then shows that."""
    try:
        await send_record(address, record, access)
    except DosError as error:
        log.info("%s did not accept the record that leaves it out: %s", address, error.args[0])


@contextmanager
def refusals() -> Iterator[None]:
    """Raise ReplacementError for the ValueError with which the rules of records refuse a change."""
    try:
        yield
    except ValueError as error:
        raise ReplacementError(str(error)) from error


async def require_empty(address: str, access: ServerAccess, record: StoreRecord | None = None) -> None:
    """Raise ReplacementError unless the server is empty and in no store, or a spare of this record."""
    async with open_connection(address, **access._asdict()) as connection:
        held = connection.record
        spare = record is not None and any(one.server_id == connection.server_id for one in record.spares)
        if held is not None and not (spare and record is not None and held.store_id == record.store_id):
            raise ReplacementError(f"{address} already belongs to store {held.store_id.hex()}")
        # A spare that was a tie-breaker may hold the directory of the record log.
        if [one for one in (await connection.list_names()).entries if not spare or one.name != DIRECTORY]:
            raise ReplacementError(
                f"{address} is not empty",
                remedy="start it on an empty data directory; if it fills again, a client writes to that"
                " address directly: stop that client, or use another address until the server is in",
            )


async def is_there(store: Store, member: Member) -> bool:
    try:
        answer = await probe(member.address, store.access)
    except DosError:
        return False
    return answer.server_id == member.server_id and not answer.rolled_back


async def require_both(store: Store) -> None:
    """Raise ReplacementError if a member is away whom a change needs that a tie-breaker could decide."""
    for member in store.record.members if tie_breaker(store.record) is not None else ():
        if not await is_there(store, member):
            raise ReplacementError(f"{member.address} is unavailable", remedy="start it, or replace it first")


async def add_spare(
    url: str | DosUrl, *, new: str, token: bytes = b"", client: str = "dos store spare add"
) -> StoreRecord:
    """Add the empty server at the address `new` to the store's spares. Raises ReplacementError,
    StoreNotReadyError, QuorumUnavailableError.
    """
    address, access = parse_address(new), ServerAccess(token, client)
    async with open_store(parse_url(url), token=token, client=client) as store:
        answer = await probe(address, access)
        if any(one.server_id == answer.server_id for one in store.record.spares):
            return store.record
        spare = Member(answer.server_id, address, "spare")
        async with _changing(store, change_now(store, "spare-add", new=named(spare))) as records:
            await require_empty(address, access)
            with refusals():
                record = with_spare(store.record, spare.server_id, address)
            await decide_and_install(store, records, record)
        return store.record


async def remove_spare(
    url: str | DosUrl, *, spare: str, token: bytes = b"", client: str = "dos store spare remove"
) -> StoreRecord:
    async with open_store(parse_url(url), token=token, client=client) as store:
        known = [one for one in store.record.spares if spare in (one.address, id_text(one.server_id))]
        change = change_now(store, "spare-remove", old=named(*known) or spare)
        async with _changing(store, change) as records:
            with refusals():
                record = without_spare(store.record, spare)
            await decide_and_install(store, records, record)
        for one in known:
            await _tell_excluded(one.address, store.record, store.access)
        return store.record


async def move_member(
    url: str | DosUrl, *, new: str, token: bytes = b"", client: str = "dos store move"
) -> StoreRecord:
    """Record that a member of the store is now at the address `new`. Raises ReplacementError if the server
    there is no member, also answers at its old address, or went back in time; StoreNotReadyError,
    QuorumUnavailableError.
    """
    parsed, address, access = parse_url(url), parse_address(new), ServerAccess(token, client)
    answer = await probe(address, access)
    servers = list(dict.fromkeys([*parsed.servers, address]))
    membership, _ = await find_membership(servers, access, hurry=True)
    known = membership.record.member(answer.server_id) if membership.record is not None else None
    if known is None:
        raise ReplacementError(
            f"the server at {address} (server id {id_text(answer.server_id)}) is not a member of this store",
            remedy="start it with the data directory of the member that moved",
        )
    if known.address == address and membership.record is not None:
        return membership.record
    at = DosUrl(tuple(servers))
    async with open_store(at, located={known.server_id: address}, **access._asdict()) as store:
        change = change_now(store, "move", old=named(known), new=address)
        async with _changing(store, change) as records:
            await move_in(store, records, {known.server_id: address})
        return store.record


async def move_in(store: Store, records: RecordLog, addresses: Mapping[bytes, str]) -> None:
    """Record new addresses of members, by server id. The store was opened with `located=addresses`, so the
    disks there are compared with what the others know. Raises ReplacementError.
    """
    for server_id, address in addresses.items():
        await _is_that_member(store, server_id, address)
    with refusals():
        record = move(store.record, addresses)
    await decide_and_install(store, records, record)


async def _is_that_member(store: Store, server_id: bytes, address: str) -> None:
    answer = await probe(address, store.access)
    with trio.move_on_after(open_timeout_s):
        while not (
            answer.rolled_back or store.is_connected(server_id) or server_id in store.witnesses.rolled_back
        ):
            await store.wait_moved(inspect_timeout_s)
    member = store.record.member(server_id)
    # a disk that went back at the *old* address does not matter: its server serves no session of the store
    if answer.rolled_back or server_id in store.witnesses.rolled_back:
        raise ReplacementError(
            f"the disk of the server at {address} went back in time: it is an older copy",
            remedy="start the newest disk of this member; if it is lost, replace the member",
        )
    if member is None or not store.is_connected(server_id):
        raise ReplacementError(f"{address} does not answer as server {id_text(server_id)}")
    try:
        old = await probe(member.address, store.access)
    except DosError:
        return
    if member.address != address and old.server_id == server_id and not old.rolled_back:
        raise ReplacementError(
            f"server {id_text(server_id)} answers at {member.address} and at {address}",
            remedy="stop the copy of its disk",
        )


@asynccontextmanager
async def _changing(store: Store, change: Change) -> AsyncIterator[RecordLog]:
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


@dataclass(frozen=True, slots=True)
class SurvivingDirectory:
    directory: str
    epoch: int
    objects: int
    bytes: int
    damaged: tuple[str, ...] = ()


@dataclass(slots=True)
class StoreLoss:
    """The objects that are missing, and those that may be lost. `why`: by address. `known`: what is left, by
    directory.
    """

    record: StoreRecord
    present: list[str]
    lost: list[str]
    why: dict[str, str]
    known: list[SurvivingDirectory] = field(default_factory=list)

    def lines(self) -> list[str]:
        record = self.record
        f = Quorums(record).claims_needed
        return [
            (
                f"store {id_text(record.store_id)}, generation {record.generation}: {f} of"
                f" {len(record.voters)} members are needed, {len(self.present)} answer"
            ),
            *(f"  there:   {one}" for one in self.present),
            *(f"  missing: {one}: {self.why.get(one.split(' ')[0], 'not seen')}" for one in self.lost),
            "bytes that only the missing members acknowledged may be lost; what is left:",
            *(
                f"  {one.directory}: {one.objects} objects, {one.bytes} bytes, epoch {one.epoch}"
                + (f"; damaged: {', '.join(one.damaged)}" if one.damaged else "")
                for one in self.known
            ),
            *([] if self.known else ["  no directory"]),
        ]


async def find_survivors(
    servers: Iterable[str], access: ServerAccess
) -> tuple[StoreSurvivors | None, ServerSurvey]:
    membership, seen = await find_membership(servers, access)
    return survivors(membership, seen.answers), seen


def need_store(now: StoreSurvivors | None, seen: ServerSurvey) -> StoreSurvivors:
    """Return what is left. Raises StoreNotReadyError without a record, or if the store is ambiguous."""
    stores: dict[bytes, list[str]] = {}
    for answer in seen.answers:
        if answer.record is not None:
            stores.setdefault(answer.record.store_id, []).append(answer.address)
    if now is None and len(stores) > 1:
        raise StoreNotReadyError(
            f"the servers belong to {len(stores)} stores",
            [f"{', '.join(addresses)}: {id_text(one)}" for one, addresses in stores.items()],
            remedy="name servers of one store only",
        )
    if now is None or not now.present:
        raise StoreNotReadyError(
            "no member of a store answers, so the store cannot continue",
            [f"{address}: {error}" for address, error in seen.errors.items()],
            remedy="start one of its servers, with the data directory it had",
        )
    return now


async def describe_loss(now: StoreSurvivors, seen: ServerSurvey, access: ServerAccess) -> StoreLoss:
    """Return what the survivors have. Each is queried alone, because they are too few for a quorum."""
    copies_of: dict[str, list[tuple[int, tuple[ObjectInfo, ...]]]] = {}
    for member in now.present:
        try:
            async with open_connection(member.address, **access._asdict()) as connection:
                for entry in await connection.list_all():
                    opened = await connection.open_directory(entry.name)
                    copies_of.setdefault(entry.name, []).append((opened.epoch, opened.entries))
        except DosError as error:
            log.warning("%s: %s", member.address, error)
    known = [
        SurvivingDirectory(
            name,
            max(epoch for epoch, _ in copies),
            len({info.name for _, entries in copies for info in entries}),
            max(sum(info.synced for info in entries) for _, entries in copies),
            tuple(sorted({info.name for _, entries in copies for info in entries if info.corrupt})),
        )
        for name, copies in sorted(copies_of.items())
        if name != DIRECTORY
    ]
    why = {member.address: _why(member, seen) for member in now.lost}
    return StoreLoss(now.record, names_of(now.present), names_of(now.lost), why, known)


def _why(member: Member, seen: ServerSurvey) -> str:
    if member.address in seen.errors:
        return seen.errors[member.address]
    for answer in seen.answers:
        if answer.address == member.address:
            if answer.server_id == member.server_id and answer.rolled_back:
                return ROLLED_BACK
            state = "belongs to another store" if answer.record is not None else "is empty (wiped or new)"
            return f"another server answers there (server id {id_text(answer.server_id)}), which {state}"
    return "did not answer"


async def force(record: StoreRecord, seen: ServerSurvey, access: ServerAccess) -> None:
    """Send a forced record to its members until it counts, then to servers that it leaves out. Raises
    ReplacementError.
    """
    log.warning(
        "forcing generation %d of store %s on %s",
        record.generation, id_text(record.store_id), ", ".join(one.address for one in record.members),
    )  # fmt: skip
    addresses = [member.address for member in record.members]
    errors: dict[str, str] = {}
    with trio.move_on_after(install_timeout_s):
        for attempt in range(1, 1 << 20):
            for address in addresses:
                try:
                    await send_record(address, record, access)
                    errors.pop(address, None)
                except DosError as error:
                    errors[address] = str(error.args[0])
            membership, _ = await find_membership(addresses, access)
            if membership.record == record:
                for answer in seen.answers:
                    ours = answer.record is not None and answer.record.store_id == record.store_id
                    if ours and record.member(answer.server_id) is None:
                        await _tell_excluded(answer.address, record, access)
                return
            await trio.sleep(backoff_s(attempt, 1.0))
    raise ReplacementError(
        f"generation {record.generation} is not confirmed:"
        f" {'; '.join(errors.values()) or 'too few members accepted it'}",
        remedy="run the same command again",
    )


def entry(what: str, record: StoreRecord, now: StoreSurvivors) -> Override:
    return Override(
        what,
        now_text(),
        this_user(),
        record.generation,
        now.record.generation,
        names_of(now.present),
        names_of(now.lost),
        finished=False,
        details=[],
    )


async def unfinished(store: Store, *, accept_loss: bool = False) -> Override | None:
    """Return the forced change of this store that is not complete, if any. Without `accept_loss`, raises
    LossError if the log that would show it is damaged.
    """
    if era(store.record.generation) == 0:
        return None
    try:
        entries = await read_log(store, OVERRIDES)
    except (CorruptError, CorruptDataError, QuorumUnavailableError) as error:
        if not accept_loss:
            raise LossError(
                "the log of forced changes of this store cannot be read",
                [str(error.args[0])],
                remedy="start the missing members and run `dos store repair`, or give up the damaged data: "
                "dos store recover URL --accept-loss",
            ) from error
        return Override(ACCEPT_LOSS, "", "", store.record.generation, 0)
    last = max(entries, key=lambda one: one.generation, default=None)
    if last is None or era(last.generation) < era(store.record.generation):
        being_added = filled_member(store.record) is not None
        # it was interrupted before it wrote which of them
        what = OTHER_IS_GONE if being_added else ACCEPT_LOSS
        return Override(what, "", "", store.record.generation, 0)
    return None if is_finished(entries, last.generation) else last

"""What the survivors of a store have, the record forced on them, and making what is left usable.

This module queries the survivors and changes them. The order of the steps is in `recovering` and `replacing`,
the choice of the forced record in `core.recovery`. docs/decisions/0013 explains the risks.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.backoff import backoff_s
from dos_client.core.comparing import CopyState, MemberCopy, copy_of, judge
from dos_client.core.membership import ROLLED_BACK
from dos_client.core.override_log import ACCEPT_LOSS, OTHER_IS_GONE, Override, is_finished
from dos_client.core.quorum import Quorums, filled_member
from dos_client.core.record_log import DIRECTORY
from dos_client.core.recovery import StoreSurvivors, era, survivors
from dos_client.core.repair import RepairPlan, plan
from dos_client.errors import LossError, QuorumUnavailableError, ReplacementError, StoreNotReadyError
from dos_client.limits import fill_directories_max, install_timeout_s
from dos_client.live_store import Store
from dos_client.membership.history import names_of, now_text, this_user
from dos_client.membership.record_log import read_overrides
from dos_client.repair.repairing import send_copy
from dos_client.repair.walking import StoreWalk, open_walk
from dos_client.sessions.connection import open_connection
from dos_client.sessions.discovery import ServerSurvey, find_membership, send_record
from dos_protocol.errors import CorruptDataError, CorruptError, DosError, NotFoundError, PastEndError
from dos_protocol.limits import epoch_jump_max, u64_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class SurvivingDirectory:
    """What the survivors have of one directory."""

    directory: str
    epoch: int
    objects: int
    bytes: int
    damaged: tuple[str, ...] = ()


@dataclass(slots=True)
class StoreLoss:
    """What is missing, and what may be lost.

    `present`, `lost`: members as "address (server id)". `why`: by address, the error or the other server
    found there. `known`: what is left, by directory.
    """

    record: StoreRecord
    present: list[str]
    lost: list[str]
    why: dict[str, str]
    known: list[SurvivingDirectory] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report for people, as lines."""
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
    servers: Iterable[str], *, token: bytes, client: str
) -> tuple[StoreSurvivors | None, ServerSurvey]:
    """Find out which members are left of the store that the servers belong to."""
    membership, seen = await find_membership(servers, token=token, client=client)
    return survivors(membership, seen.answers), seen


def need_store(now: StoreSurvivors | None, seen: ServerSurvey) -> StoreSurvivors:
    """Return what is left. Raises StoreNotReadyError if no server shows a record, or the store is
    ambiguous.
    """
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


async def describe_loss(now: StoreSurvivors, seen: ServerSurvey, *, token: bytes, client: str) -> StoreLoss:
    """Return what the survivors have. Each is queried alone, because they are too few for a quorum."""
    copies_of: dict[str, list[tuple[int, tuple[ObjectInfo, ...]]]] = {}
    for member in now.present:
        try:
            async with open_connection(member.address, token=token, client=client) as connection:
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


async def force(record: StoreRecord, seen: ServerSurvey, *, token: bytes, client: str) -> None:
    """Send a forced record to its members until it counts, then to the store's servers that it leaves out.

    Raises ReplacementError if the members do not accept it in time. The same command may be run again.
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
                    await send_record(address, record, token=token, client=client)
                    errors.pop(address, None)
                except DosError as error:
                    errors[address] = str(error.args[0])
            membership, _ = await find_membership(addresses, token=token, client=client)
            if membership.record == record:
                await _send_to_excluded(record, seen, token=token, client=client)
                return
            await trio.sleep(backoff_s(attempt, 1.0))
    raise ReplacementError(
        f"generation {record.generation} is not confirmed:"
        f" {'; '.join(errors.values()) or 'too few members accepted it'}",
        remedy="run the same command again",
    )


async def _send_to_excluded(record: StoreRecord, seen: ServerSurvey, *, token: bytes, client: str) -> None:
    for answer in seen.answers:
        if answer.record is None or answer.record.store_id != record.store_id:
            continue
        if record.member(answer.server_id) is None:
            try:
                await send_record(answer.address, record, token=token, client=client)
            except DosError as error:
                log.info("%s did not accept the record that excludes it: %s", answer.address, error.args[0])


def entry(
    what: str,
    record: StoreRecord,
    now: StoreSurvivors,
    *,
    finished: bool = False,
    details: Sequence[str] = (),
) -> Override:
    """Return the log entry for a forced change made now."""
    return Override(
        what,
        now_text(),
        this_user(),
        record.generation,
        now.record.generation,
        names_of(now.present),
        names_of(now.lost),
        finished,
        list(details),
    )


async def truncate_damage(store: Store) -> list[str]:
    """Truncate damaged copies that cannot be repaired any more to their good part. Returns one line each."""
    done: list[str] = []
    async with open_walk(store) as walk:
        for directory in await walk.directories():
            await walk.enter(directory)
            for name in walk.names():
                done += await _settle_object(walk, directory, name)
    return done


async def claim_above(store: Store, directories: Collection[str] | None = None) -> list[str]:
    """Claim the given directories, or all, far above every epoch seen. Returns one line each.

    Raises the first error after the others are done. If `directories` is given, F members answer. A directory
    of those that was never claimed is not claimed here either: a claim would lock out clients of version 0.
    """
    done: list[str] = []
    failed: list[DosError] = []
    limiter = trio.CapacityLimiter(fill_directories_max)

    async def jump(name: str) -> None:
        try:
            async with limiter:
                seen = (await store.inspect(name)).epoch_seen
                if directories is not None and not seen:
                    return
                async with await store.claim(name, seen + epoch_jump_max, randomness.fresh_id()) as claim:
                    done.append(f"{name}: claimed at epoch {claim.epoch}, above {seen}")
        except DosError as error:  # raised below: the nursery would wrap it in an exception group
            failed.append(error)

    names = await store.list_directories()
    async with trio.open_nursery() as nursery:
        for name in names:
            if name != DIRECTORY and (directories is None or name in directories):
                nursery.start_soon(jump, name)
    if failed:
        raise failed[0]
    return sorted(done)


async def _settle_object(walk: StoreWalk, directory: str, name: str) -> list[str]:
    done: list[str] = []
    for server_id in [one for one, info in walk.infos(name).items() if info is not None and info.corrupt]:
        copies, digests = await walk.compared(name, walk.infos(name))
        # without a claim, files of one name need not be copies of each other
        only = None if walk.claimed else server_id
        todo = plan(server_id, copies, digests, Quorums(walk.record)) if only is None else None
        if not isinstance(todo, RepairPlan):
            todo = await _best_remaining(walk, name, copies[server_id], only)
        elif judge(copies, digests).verdicts[server_id] is CopyState.DAMAGED:
            todo = RepairPlan(todo.old, todo.goal, todo.sources, overwrite=True)
        try:
            await send_copy(walk, name, server_id, todo)
        # its server knows now where the damage is: the bytes before it are the best there is
        except CorruptError:
            await walk.enter(directory)
            todo = await _best_remaining(walk, name, copy_of(walk.infos(name)[server_id]), only)
            await send_copy(walk, name, server_id, todo)
        await walk.enter(directory)
        address = walk.member(server_id).address
        done.append(f"{directory}/{name} on {address}: was damaged, now {todo.goal.size} bytes")
    return done


async def _best_remaining(walk: StoreWalk, name: str, old: MemberCopy, only: bytes | None) -> RepairPlan:
    """Return a repair with the longest good bytes that any survivor, or `alone` only, has of the object.

    Of undamaged copies that is everything, of damaged ones the part before the damage.
    """
    best = RepairPlan(old, MemberCopy(0, 0), (), overwrite=True)
    for one, info in walk.infos(name).items():
        if info is None or only not in (None, one):
            continue
        goal = (
            MemberCopy(info.synced, info.digest)
            if not info.corrupt
            else await _undamaged_part(walk, one, name)
        )
        if goal.size > best.goal.size:
            best = RepairPlan(old, goal, (one,), overwrite=True)
    return best


async def _undamaged_part(walk: StoreWalk, server_id: bytes, name: str) -> MemberCopy:
    session = walk.session(server_id)
    try:
        await session.get(name, u64_max, 1)
    except (CorruptError, PastEndError) as error:
        size = error.actual
    except NotFoundError:
        size = 0
    while size:
        try:
            return MemberCopy(size, (await session.stat(name, size)).digest)
        except CorruptError as error:
            size = error.actual if error.actual < size else 0
    return MemberCopy(0, 0)


async def unfinished(store: Store, *, accept_loss: bool = False) -> Override | None:
    """Return the forced change of this store that is not complete, if any.

    Without `accept_loss`, raises LossError if the log that would show it is damaged and no member can repair
    it. With it, the forced change is completed as a recovery.
    """
    if era(store.record.generation) == 0:
        return None
    try:
        entries = await read_overrides(store)
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

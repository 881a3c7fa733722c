"""Continue after more members were lost than the store tolerates, when a person accepts the loss.

1. The forced record is sent to the survivors until it counts. From then on they reject every session of an
   older one.
2. It is sent to every other reachable server of the store, which learns that it is out.
3. Damaged copies that cannot be repaired any more are truncated to their good part.
4. An entry is written to the log of overrides.
5. Each directory is claimed far above every epoch seen, so that no earlier writer continues unaware.
6. New members are filled, one at a time.
7. A second entry records the completion. Without it, the same command continues from step 3.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import trio

from dos_client import randomness
from dos_client.core.comparing import CopyState, MemberCopy, RepairPlan, copy_of, judge, plan
from dos_client.core.logs import ACCEPT_LOSS, DIRECTORY, OVERRIDES, Override
from dos_client.core.quorum import Quorums
from dos_client.core.replacement import StoreSurvivors, forced
from dos_client.errors import LossError, ReplacementError
from dos_client.membership.filling import Progress
from dos_client.membership.record_log import open_record_log
from dos_client.membership.replacing import (
    ProgressReporter,
    add_to,
    describe_loss,
    entry,
    find_survivors,
    force,
    install_decided,
    need_store,
    require_empty,
    unfinished,
)
from dos_client.repair.repairing import repair_store, send_copy
from dos_client.repair.walking import StoreWalk, open_walk
from dos_client.sessions.connection import ServerAccess
from dos_client.sessions.discovery import ServerSurvey
from dos_client.store import Store, open_store
from dos_client.tasks import AT_ONCE, try_each
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import CorruptError, NotFoundError, PastEndError
from dos_protocol.limits import epoch_jump_max, u64_max
from dos_protocol.store_record import StoreRecord


@dataclass(frozen=True, slots=True)
class Recovered:
    record: StoreRecord
    details: tuple[str, ...]


async def recover_store(
    url: str | DosUrl,
    *,
    accept_loss: bool = False,
    new: Sequence[str] = (),
    progress: Progress | None = None,
    token: bytes = b"",
    client: str = "dos store recover",
) -> Recovered:
    """Continue with the members that are left, and with the empty servers at the addresses `new`. If
    interrupted, run it again with the same arguments.

    If enough members answer, copies are repaired, and damaged copies that cannot be are truncated. Without
    `accept_loss`, raises LossError, which names what is missing and what is left; also if nothing
    acknowledged can be lost. Raises ReplacementError if nothing has to be given up.
    """
    parsed, access, reporter = parse_url(url), ServerAccess(token, client), ProgressReporter(progress)
    added = [parse_address(one) for one in new]
    reporter.phase("looking")
    now, seen = await find_survivors(parsed.servers, access)
    now = need_store(now, seen)
    override = None
    if not now.complete:
        await _require_acceptance(now, seen, access, accept_loss=accept_loss)
        for address in added:
            await require_empty(address, access)
        reporter.phase("forcing")
        record = forced(now)
        await force(record, seen, access)
        override = entry(ACCEPT_LOSS, record, now)
    async with open_store(parsed, **access._asdict()) as store:
        begun = override or await unfinished(store, accept_loss=accept_loss)
        if begun is None:
            return await _accept_damage(store, now, reporter, accept_loss=accept_loss)
        if begun.what != ACCEPT_LOSS:
            raise ReplacementError("a replacement is not complete", remedy="run `dos store replace` again")
        return await _finish(store, begun, reporter, added)


async def _require_acceptance(
    now: StoreSurvivors, seen: ServerSurvey, access: ServerAccess, *, accept_loss: bool
) -> None:
    loss = await describe_loss(now, seen, access)
    if now.covered:
        raise LossError(
            "no acknowledged data is lost: all of it is on the members that answer",
            loss.lines(),
            remedy="replace the missing member: dos store replace URL MISSING NEW --other-is-gone",
        )
    if not accept_loss:
        raise LossError(
            f"{len(now.lost)} members are missing, more than the store tolerates",
            loss.lines(),
            remedy="start one of them, or give up the data that only they had:"
            " run the command again with --accept-loss",
        )


async def _accept_damage(
    store: Store, now: StoreSurvivors, reporter: ProgressReporter, *, accept_loss: bool
) -> Recovered:
    reporter.phase("repairing")
    # Copies may be damaged that the others cannot repair, because one of those is unavailable. A member with
    # such a copy does not answer for that directory, which may block the directory for good.
    # A damage that a server would report on a write shows only when the repair is tried
    report = await repair_store(store)
    left = [one for one in report.repairs if one.verdict is CopyState.DAMAGED and not one.repairable]
    if not left:
        raise ReplacementError(
            "nothing to recover: enough members answer, and no damage is beyond repair",
            remedy="to repair, run `dos store repair`;"
            " to change members, `dos store replace` or `dos store add`",
        )
    if not accept_loss:
        raise LossError(
            f"{len(left)} damaged copies cannot be repaired from the members that answer",
            [f"  {one.directory}/{one.name} on {one.address}: {one.reason}" for one in left],
            remedy="start the missing members and run `dos store repair`, or give up the damaged data:"
            " run the command again with --accept-loss",
        )
    override = entry(ACCEPT_LOSS, store.record, now)
    return await _finish(store, override, reporter, directories={one.directory for one in left})


async def _finish(
    store: Store,
    override: Override,
    reporter: ProgressReporter,
    new: Sequence[str] = (),
    directories: Collection[str] | None = None,
) -> Recovered:
    reporter.phase("cutting")
    details = await truncate_damage(store)
    async with open_record_log(store) as records:
        await records.write(OVERRIDES, override)
        await install_decided(store, records)
        reporter.phase("fencing")
        # Otherwise an earlier writer continues unaware, after bytes that were given up.
        details += await claim_above(store, directories)
        for address in new:
            await add_to(store, records, address, reporter)
        await records.write(OVERRIDES, replace(override, finished=True, details=details))
    reporter.phase("done")
    return Recovered(store.record, tuple(details))


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
    """Claim the given directories, or all, far above every epoch seen. Returns one line each."""
    done: list[str] = []
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def jump(name: str) -> None:
        async with limiter:
            seen = (await store.inspect(name)).epoch_seen
            if directories is not None and not seen:
                return  # never claimed: a claim would lock out clients of version 0
            async with await store.claim(name, seen + epoch_jump_max, randomness.fresh_id()) as claim:
                done.append(f"{name}: claimed at epoch {claim.epoch}, above {seen}")

    names = [name for name in await store.list_directories() if name != DIRECTORY]
    failed = await try_each([one for one in names if directories is None or one in directories], jump)
    if failed:
        raise failed[0][1]
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
    """Return a repair with the longest good bytes of any survivor, or of `only`: all, or up to its damage."""
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

"""Repair damaged, missing, short and different copies from members that agree. A copy that changes during the
repair is left to its writer.

The server keeps the old copy unchanged until the new one is complete, verified and durable, and rejects it if
the old one changed meanwhile. So an outdated decision has no effect.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

import trio

from dos_client.core.comparing import (
    EPOCH_GRANTED_TWICE,
    Copies,
    CopyState,
    Digests,
    RepairPlan,
    RepairRefused,
    judge,
    plan,
)
from dos_client.core.quorum import Quorums
from dos_client.core.window import Chunk
from dos_client.limits import (
    auto_repair_attempts_max,
    auto_repair_bytes_per_s,
    auto_repair_pause_max_s,
    auto_repair_pause_s,
    damage_watch_s,
    repair_attempts_max,
    repair_chunk_bytes,
    repair_pause_s,
)
from dos_client.live_store import Store
from dos_client.reading.copying import MemberSource, copy_bytes
from dos_client.reading.damage import CopyFault, DamageReport
from dos_client.repair.verifying import DirectoryDamage, directory_damage, need_quorum
from dos_client.repair.walking import StoreWalk, list_twice, moving, open_walk
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import (
    BeingAppendedError,
    BrokenConnectionError,
    BusyError,
    CorruptDataError,
    CorruptError,
    DigestMismatchError,
    DosError,
    NotFoundError,
    SizeMismatchError,
    WouldLoseError,
)
from dos_protocol.messages import RepairChunk as RepairChunk
from dos_protocol.names import check_name, has_one_writer
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")

_CHANGED: Final = (BeingAppendedError, BusyError, SizeMismatchError, DigestMismatchError, WouldLoseError)
"""Errors of a member whose copy changed since it was read."""


class RepairOutcome(Enum):
    REPAIRED = "repaired"
    WOULD_REPAIR = "would be repaired"
    LEFT = "left to its writer, which is at work"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Repair:
    directory: str
    name: str
    address: str
    server_id: bytes
    verdict: CopyState
    outcome: RepairOutcome
    reason: str = ""
    size: int = 0

    @property
    def repairable(self) -> bool:
        return self.outcome not in (RepairOutcome.REFUSED, RepairOutcome.FAILED)

    @property
    def done(self) -> bool:
        return self.outcome in (RepairOutcome.REPAIRED, RepairOutcome.LEFT)


@dataclass(slots=True)
class RepairProgress:
    directories: int = 0
    directories_done: int = 0
    repaired: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


@dataclass(slots=True)
class RepairReport:
    directories: int = 0
    objects: int = 0
    members: int = 0
    repairs: list[Repair] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    damaged_directories: list[DirectoryDamage] = field(default_factory=list)


OnProgress = Callable[[RepairProgress], None]


async def repair_store(
    store: Store,
    directories: Iterable[str] = (),
    *,
    read: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> RepairReport:
    """Repair every copy of the directories, or of all, that can be repaired. `read`: read all copies first,
    to find damage that no read has found yet. `dry_run`: only report. Raises QuorumUnavailableError if fewer
    than F members answer.
    """
    wanted = [check_name(one) for one in directories]
    report = RepairReport(members=len(store.record.members))
    async with open_walk(store) as walk:
        names = wanted or await walk.directories()
        repairer = _Repairer(walk, RepairProgress(len(names)), on_progress, dry_run=dry_run)
        for name in names:
            need_quorum(walk, f"repair {name}")
            report.repairs += await repairer.directory(name, read=read)
            report.objects += repairer.objects
        need_quorum(walk, "repair the store")
        report.directories = len(names)
        report.unavailable = dict(walk.errors)
        report.damaged_directories = directory_damage(walk)
    return report


async def repair_object(
    store: Store, server_id: bytes, directory: str, name: str, *, suspect_at: int | None = None
) -> Repair | None:
    """Repair one member's copy of one object; None if it needs no repair. `suspect_at`: read there first, so
    that a restarted server notices earlier damage again. Raises BrokenConnectionError and other read errors.
    """
    async with open_walk(store) as walk:
        if server_id not in walk.sessions:
            raise BrokenConnectionError("; ".join(walk.errors.values()) or "no longer a member")
        await walk.enter(directory)
        if suspect_at is not None:
            try:
                await walk.session(server_id).get(name, suspect_at, 1)
            except (CorruptError, NotFoundError) as error:
                log.debug("%s/%s: %s", directory, name, error)
            await walk.enter(directory, [server_id])
        repairer = _Repairer(walk, RepairProgress(1), None, dry_run=False)
        return await repairer.copy(directory, name, server_id, None)


class _Repairer:
    def __init__(
        self, walk: StoreWalk, progress: RepairProgress, on_progress: OnProgress | None, *, dry_run: bool
    ) -> None:
        self._walk = walk
        self._progress = progress
        self._on_progress = on_progress
        self._dry_run = dry_run
        self._quorums = Quorums(walk.record)
        self.objects = 0

    async def directory(self, directory: str, *, read: bool) -> list[Repair]:
        walk, done = self._walk, []
        if read:
            await self._read_all(directory)
        first = await list_twice(walk, directory)
        self.objects = len(walk.names())
        for name in walk.names():
            infos = walk.infos(name)
            live = moving(first.get(name), infos)
            copies, digests = await walk.compared(name, infos)
            if not walk.claimed:
                done += self._report_unclaimed(directory, name, copies)
                continue
            for server_id, verdict in judge(copies, digests).verdicts.items():
                late = verdict in (CopyState.BEHIND, CopyState.MISSING)
                if verdict is CopyState.EQUAL or walk.member(server_id).state != "in":
                    continue
                if late and live:
                    done.append(self._repair(directory, name, server_id, verdict, RepairOutcome.LEFT))
                elif server_id in walk.sessions:
                    repair = await self.copy(directory, name, server_id, verdict)
                    done += [repair] if repair is not None else []
        self._progress.directories_done += 1
        self._report()
        return done

    def _report_unclaimed(self, directory: str, name: str, copies: Copies) -> list[Repair]:
        return [
            self._repair(
                directory, name, one, CopyState.DAMAGED, RepairOutcome.REFUSED, _without_copies(directory)
            )
            for one, copy in copies.items()
            if copy.damaged and one in self._walk.sessions
        ]

    async def _read_all(self, directory: str) -> None:
        walk = self._walk
        await walk.enter(directory)
        for name in walk.names():
            copies, _ = await walk.compared(name, walk.infos(name))
            for server_id, copy in copies.items():
                if not copy.damaged and server_id in walk.sessions:
                    try:
                        await walk.read_through(name, server_id, copy, self._was_read)
                    except DosError as error:
                        walk.lose(server_id, error)

    async def copy(
        self, directory: str, name: str, server_id: bytes, verdict: CopyState | None
    ) -> Repair | None:
        reason, ended = "", partial(self._repair, directory, name, server_id)
        for attempt in range(repair_attempts_max):
            if attempt:
                await trio.sleep(repair_pause_s)
                await self._walk.enter(directory)
            infos = self._walk.infos(name)
            if server_id not in infos:
                reason = self._walk.errors.get(self._walk.member(server_id).address, "gone")
                break
            copies, digests = await self._walk.compared(name, infos)
            verdict = self._verdict(server_id, copies, digests, verdict)
            todo = self._plan(directory, name, server_id, copies, digests)
            if todo is None:
                return None if attempt == 0 else ended(verdict, RepairOutcome.LEFT)
            if isinstance(todo, RepairRefused):
                return ended(verdict, RepairOutcome.REFUSED, todo.reason)
            if self._dry_run:
                return ended(verdict, RepairOutcome.WOULD_REPAIR, size=todo.goal.size)
            try:
                self._progress.bytes_total = self._progress.bytes_done + todo.goal.size
                await send_copy(self._walk, name, server_id, todo, self._copied)
            except _CHANGED as error:
                reason = str(error.args[0])
            except DosError as error:
                return ended(verdict, RepairOutcome.FAILED, str(error.args[0]))
            else:
                return await self._repaired(directory, name, server_id, verdict, todo)
        if verdict is None:  # the member disconnected before anything was known of its copy
            raise BrokenConnectionError(reason)
        return ended(verdict, RepairOutcome.REFUSED, reason)

    def _plan(
        self, directory: str, name: str, server_id: bytes, copies: Copies, digests: Digests
    ) -> RepairPlan | RepairRefused | None:
        """Return what to do with a copy: nothing in a directory of which not one writer is known."""
        todo = plan(server_id, copies, digests, self._quorums, one_writer=has_one_writer(name))
        if todo is not None and not self._walk.claimed:
            return RepairRefused(_without_copies(directory))
        if todo is not None and (epoch := self._walk.epoch_granted_twice):
            text = f"epoch {epoch} of {directory} was granted to two writers, {EPOCH_GRANTED_TWICE}"
            return RepairRefused(text)
        return todo

    def _verdict(
        self, server_id: bytes, copies: Copies, digests: Digests, before: CopyState | None
    ) -> CopyState:
        now = judge(copies, digests).verdicts.get(server_id, CopyState.EQUAL)
        return before if before is not None and now is CopyState.EQUAL else now

    async def _repaired(
        self, directory: str, name: str, server_id: bytes, verdict: CopyState, todo: RepairPlan
    ) -> Repair:
        """Ask the server again: the copy is repaired only if the server's own entry shows it."""
        await self._walk.enter(directory, [server_id])
        info, ended = self._walk.infos(name).get(server_id), partial(self._repair, directory, name, server_id)
        if info is None or info.corrupt or info.synced < todo.goal.size:
            why = "the server does not have the copy as it was sent"
            return ended(verdict, RepairOutcome.FAILED, why)
        self._progress.repaired += 1
        repair = ended(verdict, RepairOutcome.REPAIRED, size=todo.goal.size)
        log.warning("%s/%s on %s was %s and is repaired", directory, name, repair.address, verdict.value)
        self._walk.store.damage.repaired(server_id, directory, name)
        return repair

    def _repair(
        self,
        directory: str,
        name: str,
        server_id: bytes,
        verdict: CopyState,
        outcome: RepairOutcome,
        reason: str = "",
        size: int = 0,
    ) -> Repair:
        address = self._walk.member(server_id).address
        return Repair(directory, name, address, server_id, verdict, outcome, reason, size)

    def _copied(self, count: int) -> None:
        self._progress.bytes_done += count
        self._report()

    async def _was_read(self, _: int) -> None:
        self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress)


async def send_copy(
    walk: StoreWalk,
    name: str,
    server_id: bytes,
    todo: RepairPlan,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Send a new copy to a member, from the first source that has all of it. Raises the last error."""
    copy = _NewCopy(walk, name, server_id, todo, on_progress)
    if not todo.goal.size:
        await copy.put(Chunk(0, 0, b""))
        return
    for number, one in enumerate(todo.sources, 1):
        try:
            source = MemberSource(walk.session(one), name)
            size = await copy_bytes(source, copy, PrefixDigest(), {todo.goal.size: todo.goal.digest}.get)
            if size < todo.goal.size:
                raise CorruptDataError(name, size, f"{todo.goal.size} durable bytes", "fewer")
        except (CorruptError, CorruptDataError, BrokenConnectionError, NotFoundError) as error:
            if number == len(todo.sources) or server_id not in walk.sessions:
                raise
            log.warning("%s from %s: %s", name, walk.member(one).address, error)
        else:
            return


@dataclass(frozen=True, slots=True)
class _NewCopy:
    """A `CopyTarget`: the new copy of an object on one member, which replaces the old when it is complete."""

    walk: StoreWalk
    name: str
    server_id: bytes
    todo: RepairPlan
    on_progress: Callable[[int], None]

    async def wanted(self, offset: int) -> int:
        return min(repair_chunk_bytes, self.todo.goal.size - offset)

    async def put(self, chunk: Chunk) -> None:
        goal, old = self.todo.goal, self.todo.old
        # With the old copy's size and digest: the server refuses to replace one that has changed since, which
        # may be longer by acknowledged bytes.
        await self.walk.session(self.server_id).repair(
            RepairChunk(
                self.name,
                chunk.start,
                goal.size,
                goal.digest,
                old.size,
                old.digest,
                self.todo.overwrite,
                chunk.payload,
            )
        )
        self.on_progress(len(chunk.payload))


def _without_copies(directory: str) -> str:
    return f"{directory} was never claimed, so no other server has a copy of what this one acknowledged there"


async def auto_repair(store: Store) -> None:
    """Repair noted copies. A task from the first claim for writing to the end of the store."""
    await store.wrote.wait()
    seen = 0
    waiting: dict[DamageReport, int] = {}
    while True:
        pause = auto_repair_pause_s * 2.0 ** min(waiting.values(), default=0)
        with trio.move_on_after(min(pause, auto_repair_pause_max_s) if waiting else float("inf")):
            for report in await store.damage.wait_new(seen):
                seen = max(seen, report.number)
                waiting[report] = 0
        for report, attempts in list(waiting.items()):
            if await _repair_reported(store, report):
                del waiting[report]
            elif attempts + 1 >= auto_repair_attempts_max:
                del waiting[report]
                log.warning(
                    "%s: not repaired after %d attempts; run `dos store repair`", report, attempts + 1
                )
            else:
                waiting[report] = attempts + 1


async def _repair_reported(store: Store, report: DamageReport) -> bool:
    if store.record.member(report.server_id) is None:
        return True
    try:
        repair = await repair_object(
            store, report.server_id, report.directory, report.name, suspect_at=report.offset
        )
    except DosError as error:
        log.info("%s: %s", report, error)
        return False
    if repair is None:
        if report.why is not CopyFault.DIFFERENT:
            store.damage.repaired(report.server_id, report.directory, report.name)
        return True
    return await _pause_after(report, repair)


async def _pause_after(report: DamageReport, repair: Repair) -> bool:
    if repair.outcome is not RepairOutcome.REPAIRED:
        log.info("%s: %s %s", report, repair.outcome.value, repair.reason)
        return False
    await trio.sleep(auto_repair_pause_s + repair.size / auto_repair_bytes_per_s)
    return True


async def watch_for_damage(store: Store) -> None:
    """Query members for damage. A task from the first claim for writing to the end of the store."""
    await store.wrote.wait()
    while True:
        for member in store.record.members:
            try:
                await _check_member(store, member)
            except DosError as error:
                log.debug("%s was not queried for damage: %s", member.address, error)
        # Random, so that many clients of one store do not repair the same copy at the same time.
        await trio.sleep(damage_watch_s * (0.5 + store.rng.random()))


async def _check_member(store: Store, member: Member) -> None:
    known = store.record.member(member.server_id)
    connection = store.idle(member.server_id)
    if known is None or known.state != "in" or connection is None:
        return
    for directory in await connection.list_all():
        if directory.corrupt:
            await _check_directory(store, member, directory.name)


async def _check_directory(store: Store, member: Member, directory: str) -> None:
    try:
        opened = await store.reopened(member, directory)
    except DosError as error:
        log.info("%s on %s has damage, but cannot be opened: %s", directory, member.address, error)
        return
    for entry in opened.entries:
        if entry.corrupt or entry.poisoned:
            why = CopyFault.POISONED if entry.poisoned else CopyFault.DAMAGED
            store.damage.note(member.server_id, directory, entry.name, 0, why)

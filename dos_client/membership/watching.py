"""`dos store watch`: look at a store again and again, and keep it whole.

`core.watching` decides what is done. Each action runs under a claim of the record log, so that of several
watchers and commands one acts; after the claim everything that the decision was based on is verified again. A
watcher that dies leaves a record that any other one, or any command, continues.
"""

import logging
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import trio
from prometheus_client import Counter, Enum, Gauge

from dos_client import randomness
from dos_client.core import watching as core
from dos_client.core.logs import DIRECTORY, Change
from dos_client.core.membership import ROLLED_BACK, ServerAnswer
from dos_client.core.quorum import filled_member
from dos_client.core.watching import (
    Action,
    MemberSight,
    Problem,
    Silences,
    SpareSight,
    StoreSight,
    WatchPolicy,
)
from dos_client.errors import ReplacementError
from dos_client.limits import (
    looks_per_damage,
    watch_compare_s,
    watch_interval_s,
    watch_look_max_s,
    watch_replace_after_s,
    watch_retry_first_s,
    watch_retry_max_s,
    watch_stall_s,
    watch_stand_by_s,
)
from dos_client.live_store import Store
from dos_client.membership.filling import Progress
from dos_client.membership.record_log import RecordLog, change_now, named, open_record_log, recorded
from dos_client.membership.replacing import (
    ProgressReporter,
    fill_and_finish,
    install_decided,
    is_there,
    move_in,
    replace_in,
    require_empty,
)
from dos_client.metrics import registry
from dos_client.repair.repairing import repair_store
from dos_client.repair.verifying import damage_text, verify_store
from dos_client.sessions.connection import ServerAccess, open_connection
from dos_client.sessions.discovery import ServerSurvey, find_membership, probe
from dos_client.store import open_store
from dos_client.tasks import background_tasks
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import DosError, FencedError
from dos_protocol.store_record import DiskStamp, Member, StoreRecord, decode_witnessed

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    look_at: Sequence[str] = ()
    replace_after_s: float = watch_replace_after_s
    interval_s: float = watch_interval_s
    stand_by_s: float = watch_stand_by_s
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: what was seen and decided, whether an action was completed, and why not."""

    sight: StoreSight
    action: Action
    done: bool = False
    failure: str = ""


class StoreWatcher:
    """One watcher of one store. It remembers for how long members are silent, and which actions failed."""

    def __init__(
        self,
        url: str | DosUrl,
        options: WatchOptions,
        *,
        progress: Progress | None = None,
        token: bytes = b"",
        client: str = "dos store watch",
    ) -> None:
        self._options, self._access = options, ServerAccess(token, client)
        servers = [*parse_url(url).servers, *(parse_address(one) for one in options.look_at)]
        self._observer = StoreObserver(
            list(dict.fromkeys(servers)),
            self._access,
            step_max_s=3 * options.interval_s + watch_look_max_s,
        )
        self._policy = WatchPolicy(options.replace_after_s, options.stand_by_s)
        self._reporter = ProgressReporter(progress)
        self._on_seen: Callable[[Seen], None] = lambda _: None
        self._failed: dict[tuple[str, ...], tuple[int, float]] = {}

    async def run(self, on_seen: Callable[[Seen], None]) -> None:
        self._on_seen = on_seen
        while True:
            on_seen(await self.step())
            # Random, so that watchers that see the same do not all act at the same moment.
            await trio.sleep(self._options.interval_s * (0.5 + randomness.jitter()))

    async def step(self) -> Seen:
        try:
            sight = await self._observer.look()
        except DosError as error:
            sight = StoreSight(None, problems=(str(error.args[0]),))
        action = core.decide(sight, self._policy)
        _publish_look(sight, action, time.time())
        if isinstance(action, core.WaitAction | core.ReportAction) or self._options.dry_run:
            return Seen(sight, action)
        key = core.subject(action)
        attempts, not_before = self._failed.get(key, (0, -inf))
        if trio.current_time() < not_before:
            return Seen(sight, action, failure="it failed before, and is tried again later")
        assert sight.record is not None
        _count_begun(action)
        try:
            await self._perform(sight.record, action)
        except (DosError, ValueError) as error:
            _count_ended(action, error)
            pause_s = min(watch_retry_first_s * 2**attempts, watch_retry_max_s)
            self._failed[key] = attempts + 1, trio.current_time() + pause_s
            return Seen(sight, action, failure=str(error))
        self._failed.pop(key, None)
        _count_ended(action, None)
        return Seen(sight, action, done=True)

    # Acting

    async def _perform(self, record: StoreRecord, action: Action) -> None:
        lost: list[str] = []

        async def look() -> None:
            assert isinstance(action, core.CompleteAction | core.ReplaceAction)
            lost.append(await self._silent(action))
            nursery.cancel_scope.cancel()

        async with background_tasks() as nursery:
            if isinstance(action, core.CompleteAction | core.ReplaceAction):
                nursery.start_soon(look)
            await self._perform_claimed(record, action)
        if lost:
            raise ReplacementError(f"{lost[0]} is silent while it is filled", remedy="another spare is used")

    async def _silent(self, action: core.CompleteAction | core.ReplaceAction) -> str:
        """Report what keeps the action from continuing. Return the address of the filled member when it is
        lost.
        """
        progress, moved_at, reported = self._reporter.now, trio.current_time(), False
        while True:
            await trio.sleep(self._options.interval_s)
            try:
                sight = await self._observer.look()
            except DosError as error:
                sight = StoreSight(None, problems=(str(error.args[0]),))
            stuck = core.why_stuck(sight)
            _publish_look(sight, stuck or action, time.time())
            if progress != self._reporter.now:
                progress, moved_at = self._reporter.now, trio.current_time()
            still_s = trio.current_time() - moved_at
            if stuck is not None:
                self._on_seen(Seen(sight, stuck))
            elif still_s >= watch_stall_s:
                self._on_seen(Seen(sight, action, failure=f"no progress for {still_s:.0f} s"))
            elif reported:
                self._on_seen(Seen(sight, core.WaitAction(f"{core.name_of(action)} continues")))
            reported = stuck is not None or still_s >= watch_stall_s
            for one in sight.members:
                same = one.member.server_id == action.new.server_id
                if same and one.silent_s >= self._options.replace_after_s:
                    return one.member.address

    async def _perform_claimed(self, record: StoreRecord, action: Action) -> None:
        """Perform an action that was decided at this record. Raises ReplacementError if the store changed."""
        located = action.addresses if isinstance(action, core.FollowAction) else {}
        async with self._observer.open(located) as store:
            try:
                # A run that has begun since the look is not interrupted.
                async with open_record_log(store, seen_epoch=self._observer.seen_epoch) as records:
                    self._observer.own_epoch = records.claim.epoch
                    _holds_claim.set(1)
                    await install_decided(store, records)
                    if store.record != record:
                        raise ReplacementError("the store has changed since the look", remedy="look again")
                    async with recorded(store, records, _change_for(store, action)):
                        await self._act(store, records, action)
            except FencedError as error:
                self._observer.other_run_works()
                raise ReplacementError("another run took over", remedy="nothing: it continues") from error
            finally:
                _holds_claim.set(0)

    async def _act(self, store: Store, records: RecordLog, action: Action) -> None:
        match action:
            case core.CompleteAction():
                await fill_and_finish(store, records, self._reporter)
            case core.ReplaceAction(old, new):
                silent = filled_member(store.record) or old
                if await is_there(store, silent):
                    raise ReplacementError(f"{silent.address} answers again: it is not replaced")
                answer = await probe(new.address, self._access)
                if answer.server_id != new.server_id:
                    raise ReplacementError(f"another server answers at the address of spare {new.address}")
                await replace_in(store, records, old.server_id.hex(), answer, self._reporter)
            case core.FollowAction(addresses):
                await move_in(store, records, addresses)
            case core.RepairAction(directories):
                report = await repair_store(store, directories)
                self._observer.copies_compared()
                if report.damaged_directories:
                    texts = [damage_text(one) for one in report.damaged_directories[:5]]
                    raise ReplacementError("; ".join(texts))
                left = [f"{one.directory}/{one.name}" for one in report.repairs if not one.done]
                if left:
                    raise ReplacementError(f"{len(left)} copies are not repaired: {', '.join(left[:5])}")


def _change_for(store: Store, action: Action) -> Change:
    match action:
        case core.CompleteAction(old, new, why) | core.ReplaceAction(old, new, why):
            what = "replace" if old is not None else "add"
            return change_now(store, what, old=named(old), new=named(new), why=why, automatic=True)
        case core.FollowAction(addresses, why):
            moved = [store.record.member(one) for one in addresses]
            places = ", ".join(addresses.values())
            return change_now(store, "move", old=named(*moved), new=places, why=why, automatic=True)
        case core.RepairAction(directories, why):
            return change_now(store, "repair", new=", ".join(directories), why=why, automatic=True)
    raise AssertionError(f"{action} is not performed")


class StoreObserver:
    """Looks at one store again and again. `own_epoch`: of the record log, so that its owner's work is not
    taken for another run's. `seen_epoch`: at the last look that decided anything.
    """

    def __init__(self, servers: Sequence[str], access: ServerAccess, *, step_max_s: float) -> None:
        self.own_epoch = self.seen_epoch = 0
        self._servers, self._access = list(servers), access
        self._silences = Silences(step_max_s)
        self._store_id: bytes | None = None
        self._record: StoreRecord | None = None
        self._activity: tuple[int, int, int] | None = None
        self._active_at = -inf
        self._returned: dict[bytes, str] = {}
        self._absent: set[bytes] = set()
        self._looks = 0
        self._compare_at = -inf

    def other_run_works(self) -> None:
        self._active_at = trio.current_time()

    def copies_compared(self) -> None:
        self._returned.clear()

    @asynccontextmanager
    async def open(self, located: Mapping[bytes, str]) -> AsyncIterator[Store]:
        url = DosUrl(tuple(self._addresses()))
        async with open_store(url, located=located, **self._access._asdict()) as store:
            yield store

    async def look(self) -> StoreSight:
        membership, seen = await find_membership(self._addresses(), self._access, store_id=self._store_id)
        record = membership.record
        if record is None:
            return StoreSight(None, problems=tuple(seen.problems(membership)))
        self._store_id, self._record = record.store_id, record
        ours = [
            one
            for one in seen.answers
            if one.record is not None and one.record.store_id == record.store_id and not one.rolled_back
        ]
        present = {one.server_id for one in ours if _is_at(record, one)}
        absent = {one.server_id for one in record.members} - present
        stamps = await self._stamps_of(record, absent, present) if absent else {}
        self._silences.look(trio.current_time(), absent, stamps)
        for member in record.members:
            if member.server_id in self._absent and member.server_id in present:
                self._returned[member.server_id] = member.address
        self._returned = {
            one: address for one, address in self._returned.items() if record.member(one) is not None
        }
        self._absent = absent
        sight = StoreSight(
            record,
            tuple(self._sight_of(one, ours, seen, one.server_id in present) for one in record.members),
            await self._sights_of_spares(record, seen, needed=bool(absent)),
            inf,
            returned=tuple(self._returned.values()),
        )
        self._looks += 1
        due = bool(absent or self._returned or filled_member(record)) or self._looks % looks_per_damage == 1
        if not due or not core.sees_quorum(sight):
            return sight
        damaged, behind = await self._look_inside(
            record, _located(record, ours, present), compare=not absent and filled_member(record) is None
        )
        return replace(sight, still_s=trio.current_time() - self._active_at, damaged=damaged, behind=behind)

    async def _sights_of_spares(
        self, record: StoreRecord, seen: ServerSurvey, *, needed: bool
    ) -> tuple[SpareSight, ...]:
        """Return what is seen of the spares. Whether they are empty is only read if one is `needed`."""
        sights: dict[bytes, SpareSight] = {}

        async def look_at(spare: Member) -> None:
            problem = seen.why_absent(spare)
            if not problem and needed:
                problem = await self._why_not_empty(record, spare)
            sights[spare.server_id] = SpareSight(spare, problem)

        async with trio.open_nursery() as nursery:
            for spare in record.spares:
                nursery.start_soon(look_at, spare)
        return tuple(sights[one.server_id] for one in record.spares)

    def _addresses(self) -> list[str]:
        record = self._record
        # The servers that were named may all have been replaced since.
        known = [] if record is None else [one.address for one in (*record.members, *record.spares)]
        return list(dict.fromkeys([*self._servers, *known]))

    def _sight_of(
        self, member: Member, ours: Sequence[ServerAnswer], seen: ServerSurvey, present: bool
    ) -> MemberSight:
        elsewhere = tuple(
            one.address for one in ours if one.server_id == member.server_id and one.address != member.address
        )
        why = "" if present else _why_absent(member, seen)
        return MemberSight(
            member,
            present,
            self._silences.silent_s(member.server_id),
            elsewhere,
            why,
            self._silences.reached_by_others(member.server_id),
            any(one.refuses_appends and one.server_id == member.server_id for one in ours),
        )

    async def _why_not_empty(self, record: StoreRecord, spare: Member) -> str:
        try:
            await require_empty(spare.address, self._access, record)
        except DosError as error:
            return str(error.args[0])
        return ""

    async def _stamps_of(
        self, record: StoreRecord, absent: set[bytes], present: set[bytes]
    ) -> dict[bytes, DiskStamp]:
        newest: dict[bytes, DiskStamp] = {}
        for member in record.members:
            if member.server_id not in present:
                continue
            try:
                async with open_connection(
                    member.address,
                    store_id=record.store_id,
                    generation=record.generation,
                    **self._access._asdict(),
                ) as connection:
                    witnessed = decode_witnessed(connection.welcome.witnessed)
            except (DosError, ValueError) as error:
                log.info("%s does not tell what it knows of others: %s", member.address, error)
                continue
            for one, stamp in witnessed.items():
                if one in absent and stamp.number >= newest.get(one, stamp).number:
                    newest[one] = stamp
        return newest

    async def _look_inside(
        self, record: StoreRecord, located: Mapping[bytes, str], *, compare: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Note whether another run changes the store. Return the directories with damaged copies, and those
        behind.
        """
        async with self.open(located) as store:
            view = await store.inspect(DIRECTORY)
            sizes = [info.synced for objects in view.answers.values() for info in objects.values()]
            activity = view.epoch_seen, sum(sizes), record.generation
            if self._activity is None:
                if filled_member(record) is not None:
                    self._active_at = trio.current_time()
            elif activity != self._activity and view.epoch_seen != self.own_epoch:
                self._active_at = trio.current_time()
            self._activity, self.seen_epoch = activity, view.epoch_seen
            damaged: set[str] = set()
            for member in record.voters:
                connection = store.idle(member.server_id)
                if connection is not None:
                    damaged.update(one.name for one in await connection.list_all() if one.corrupt)
            # comparing takes long in a large store; a writer that is gone may have left copies behind
            if not compare or trio.current_time() < self._compare_at:
                return tuple(sorted(damaged)), ()
            self._compare_at = trio.current_time() + watch_compare_s
            compared = await verify_store(store)
            damaged.update(one.directory for one in compared.damaged_directories)
            found = {one.directory for one in compared.differences}
            return tuple(sorted(damaged)), tuple(sorted(found - damaged - {DIRECTORY}))


def _is_at(record: StoreRecord, answer: ServerAnswer) -> bool:
    member = record.member(answer.server_id)
    return member is not None and member.address == answer.address


def _located(
    record: StoreRecord, ours: Sequence[ServerAnswer], present: Collection[bytes]
) -> dict[bytes, str]:
    return {
        one.server_id: one.address
        for one in ours
        if one.server_id not in present and record.member(one.server_id) is not None
    }


def _why_absent(member: Member, seen: ServerSurvey) -> str:
    if any(one.server_id == member.server_id and one.rolled_back for one in seen.answers):
        return ROLLED_BACK
    at_address = next((one for one in seen.answers if one.address == member.address), None)
    if at_address is None:
        return seen.errors.get(member.address, "it does not answer")
    if at_address.server_id != member.server_id:
        return f"server {at_address.server_id.hex()} answers at its address: its disk was wiped or exchanged"
    return "it belongs to another store"


_NONE: Final = "none"

_looks: Final = Counter("dos_watch_looks", "Looks at the store", registry=registry)
_last_look: Final = Gauge(
    "dos_watch_last_look_timestamp_seconds",
    "When the last look ended, in Unix time",
    registry=registry,
)
_generation: Final = Gauge("dos_watch_generation", "Generation of the store record", registry=registry)
_members: Final = Gauge(
    "dos_watch_members",
    "Members by state: present; filling (replaces a member, or is added); moved (answers only at another"
    " address); unavailable",
    ["state"],
    registry=registry,
)
_silent_seconds: Final = Gauge(
    "dos_watch_member_silent_seconds",
    "How long a member has been unavailable, counted by this watcher; 0 if it is present",
    ["member"],
    registry=registry,
)
_spares: Final = Gauge(
    "dos_watch_spares",
    "Spares by state: usable or unusable; whether one is empty is verified while a member is unavailable",
    ["state"],
    registry=registry,
)
_actions: Final = Counter(
    "dos_watch_actions",
    "Actions: replace, complete (what another run began), follow (to another address), repair; begun, done or"
    " failed",
    ["action", "outcome"],
    registry=registry,
)
_failures: Final = Counter(
    "dos_watch_failures",
    "Failed actions by the class of the error; the log has the message",
    ["action", "error"],
    registry=registry,
)
_problem: Final = Enum(
    "dos_watch_problem",
    "Why a person has to act",
    states=[_NONE, *(one.value for one in Problem)],
    registry=registry,
)
_holds_claim: Final = Gauge(
    "dos_watch_holds_claim",
    "1 while this watcher changes the store: it holds the claim of the record log",
    registry=registry,
)

_STATES: Final = ("present", "filling", "moved", "unavailable")
_shown: Final[set[str]] = set()
"""The members with a value of `_silent_seconds`."""


def _publish_look(sight: StoreSight, action: Action, now_s: float) -> None:
    _looks.inc()
    _last_look.set(now_s)
    report = core.report_of(sight, action)
    _problem.state(_NONE if report is None else report.problem.value)
    if sight.record is None:
        return
    _generation.set(sight.record.generation)
    states = Counts(_state_of(one) for one in sight.members)
    for state in _STATES:
        _members.labels(state).set(states[state])
    silent_s = {one.member.address: one.silent_s for one in sight.members}
    for address in _shown - silent_s.keys():
        _silent_seconds.remove(address)
    for address, seconds in silent_s.items():
        _silent_seconds.labels(address).set(seconds)
    _shown.clear()
    _shown.update(silent_s)
    unusable = sum(bool(one.problem) for one in sight.spares)
    _spares.labels("usable").set(len(sight.spares) - unusable)
    _spares.labels("unusable").set(unusable)


def _count_begun(action: Action) -> None:
    _actions.labels(core.name_of(action), "begun").inc()


def _count_ended(action: Action, error: Exception | None) -> None:
    _actions.labels(core.name_of(action), "done" if error is None else "failed").inc()
    if error is not None:
        _failures.labels(core.name_of(action), type(error).__name__).inc()


def _state_of(one: MemberSight) -> str:
    if one.present:
        return "present" if one.member.state == "in" else "filling"
    return "moved" if one.elsewhere else "unavailable"

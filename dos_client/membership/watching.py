"""`dos store watch`: look at a store again and again, and keep it whole.

`core.watching` decides what is done. This module looks, and performs: each action under a claim of the record
log, so that of several watchers and commands one acts, and after the claim everything that the decision was
based on is verified again. A watcher that dies leaves a record that any other one, or any command, continues.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import trio

from dos_client import randomness
from dos_client.core import watching as core
from dos_client.core.change_log import Change
from dos_client.core.quorum import filled_member
from dos_client.core.watching import Action, StoreSight, WatchPolicy
from dos_client.errors import ReplacementError
from dos_client.limits import (
    watch_interval_s,
    watch_look_max_s,
    watch_replace_after_s,
    watch_retry_first_s,
    watch_retry_max_s,
    watch_stall_s,
    watch_stand_by_s,
)
from dos_client.live_store import Store
from dos_client.membership import watch_metrics
from dos_client.membership.checking import is_there
from dos_client.membership.filling import Progress
from dos_client.membership.history import change_now, named, recorded
from dos_client.membership.observing import StoreObserver
from dos_client.membership.record_log import RecordLog, open_record_log
from dos_client.membership.replacing import (
    ProgressReporter,
    fill_and_finish,
    install_decided,
    replace_in,
)
from dos_client.membership.spares import move_in
from dos_client.repair.repairing import repair_store
from dos_client.repair.verifying import damage_text
from dos_client.sessions.discovery import probe
from dos_client.tasks import background_tasks
from dos_client.urls import DosUrl, parse_address, parse_url
from dos_protocol.errors import DosError, FencedError
from dos_protocol.store_record import StoreRecord

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a watcher works. Times in seconds. `look_at`: more addresses where a member may be found.
    `dry_run`: decide, and do nothing.
    """

    look_at: Sequence[str] = ()
    replace_after_s: float = watch_replace_after_s
    interval_s: float = watch_interval_s
    stand_by_s: float = watch_stand_by_s
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one look: what was seen, and what was decided and done.

    `done`: whether an action was completed. `failure`: why an action was not.
    """

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
        servers = [*parse_url(url).servers, *(parse_address(one) for one in options.look_at)]
        self._observer = StoreObserver(
            list(dict.fromkeys(servers)),
            step_max_s=3 * options.interval_s + watch_look_max_s,
            token=token,
            client=client,
        )
        self._options, self._token, self._client = options, token, client
        self._policy = WatchPolicy(options.replace_after_s, options.stand_by_s)
        self._reporter = ProgressReporter(progress)
        self._on_seen: Callable[[Seen], None] = lambda _: None
        self._failed: dict[tuple[str, ...], tuple[int, float]] = {}

    async def run(self, on_seen: Callable[[Seen], None]) -> None:
        """Look and act until cancelled. Errors of a look or an action are reported, and never end it.

        The pauses are random, so that watchers that see the same do not all act at the same moment. While an
        action is performed, `on_seen` is called only if the action cannot continue.
        """
        self._on_seen = on_seen
        while True:
            on_seen(await self.step())
            await trio.sleep(self._options.interval_s * (0.5 + randomness.jitter()))

    async def step(self) -> Seen:
        """Look once, and perform the action that is due. Errors of servers are in the result."""
        try:
            sight = await self._observer.look()
        except DosError as error:
            sight = StoreSight(None, problems=(str(error.args[0]),))
        action = core.decide(sight, self._policy)
        watch_metrics.saw(sight, action, time.time())
        if isinstance(action, core.WaitAction | core.ReportAction) or self._options.dry_run:
            return Seen(sight, action)
        key = core.subject(action)
        attempts, not_before = self._failed.get(key, (0, -inf))
        if trio.current_time() < not_before:
            return Seen(sight, action, failure="it failed before, and is tried again later")
        assert sight.record is not None
        watch_metrics.begins(action)
        try:
            await self._perform(sight.record, action)
        except (DosError, ValueError) as error:
            watch_metrics.ended(action, error)
            pause_s = min(watch_retry_first_s * 2**attempts, watch_retry_max_s)
            self._failed[key] = attempts + 1, trio.current_time() + pause_s
            return Seen(sight, action, failure=str(error))
        self._failed.pop(key, None)
        watch_metrics.ended(action, None)
        return Seen(sight, action, done=True)

    # Acting

    async def _perform(self, record: StoreRecord, action: Action) -> None:
        """Perform an action. While a member is filled, look: it may be lost, and filling waits for it. Raises
        ReplacementError then, and as `_perform_claimed`.
        """
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
        """Report what keeps the action from continuing. Return the address of the member that it fills, after
        it was silent for `replace_after_s`.
        """
        progress, moved_at, reported = self._reporter.now, trio.current_time(), False
        while True:
            await trio.sleep(self._options.interval_s)
            try:
                sight = await self._observer.look()
            except DosError as error:
                sight = StoreSight(None, problems=(str(error.args[0]),))
            stuck = core.why_stuck(sight)
            watch_metrics.saw(sight, stuck or action, time.time())
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
                    self._observer.own_epoch = records.epoch
                    watch_metrics.holds_claim.set(1)
                    await install_decided(store, records)
                    if store.record != record:
                        raise ReplacementError("the store has changed since the look", remedy="look again")
                    async with recorded(store, records, _change_for(store, action)):
                        await self._act(store, records, action)
            except FencedError as error:
                self._observer.other_run_works()
                raise ReplacementError("another run took over", remedy="nothing: it continues") from error
            finally:
                watch_metrics.holds_claim.set(0)

    async def _act(self, store: Store, records: RecordLog, action: Action) -> None:
        match action:
            case core.CompleteAction():
                await fill_and_finish(store, records, self._reporter)
            case core.ReplaceAction(old, new):
                silent = filled_member(store.record) or old
                if await is_there(store, silent):
                    raise ReplacementError(f"{silent.address} answers again: it is not replaced")
                answer = await probe(new.address, token=self._token, client=self._client)
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
    """Return the first entry of the history for an action."""
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

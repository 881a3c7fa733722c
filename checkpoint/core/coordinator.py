"""The coordinator of a region: when a cut is asked for, when it commits, and what follows a failure. Pure.

Rules of this file: `handle(event, now) -> effects`; the order of everything that must be in order is
decided here and in the two parts below it (`cutting.py`, `recovery.py`). `now` is a monotonic clock in
seconds. It does not know sockets, threads, the journal or the launcher.

The order that keeps cuts safe (decision 0003, R8-R13):

1. OpenManifest; nothing is ordered until ManifestOpened says that the new segment's start is on the quorum.
Its epoch
   is the incarnation, its last cut the one to restore, also if nobody saw that cut's commit.
2. Restore to all once all have joined; each worker claims its directory with the incarnation as epoch.
3. Start to all once all stand there.
4. RequestCut; votes of this incarnation only; when all are in and agree, AppendCut; nothing else is
appended before
   CutAppended. That acknowledgement is the commit: only then Committed goes out.
5. Any loss leads back to 1 with a higher epoch; a cut in doubt is found in the manifest, or can never be
there.

A *round* is what lies between RUNNING and RUNNING again. Several workers lost at one time are one round and
spend one reset attempt; a worker lost in the round that launched it begins another. A committed cut
forgives all attempts. Launching workers needs no incarnation (they only join), so it is not held back by 1;
cancelling a suspect is.
"""

from typing import Any

from checkpoint import limits
from checkpoint.core.coordinator_base import PATIENCE
from checkpoint.core.coordinator_vocabulary import (
    Begin,
    CancelWorker,
    ControlReceived,
    CoordinatorTick,
    CutAppended,
    CutWanted,
    Effect,
    Event,
    LinkDown,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    ManifestUnreadable,
    MessageRefused,
    PauseWanted,
    ResetWanted,
    SavepointWanted,
    StopWanted,
    StoreWaiting,
    WorkerEnded,
)
from checkpoint.core.messages import (
    Failed,
    Finished,
    Heartbeat,
    Join,
    Paused,
    Prepared,
    Progress,
    Refusal,
    Restored,
    WantsCut,
    check_address,
)
from checkpoint.core.recovery import Recovery
from checkpoint.core.region import RegionState
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent, WorkerState
from checkpoint.errors import RegionFailedError


class Coordinator(Recovery):
    """`handle` every event, perform the effects in order, call again with Tick at `deadline`. One region,
    one use.
    """

    _last_tick = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about this event. After End nothing follows any more."""
        if self.phase is CoordinatorPhase.ENDED:
            return []
        handler: Any = getattr(self, _HANDLERS[type(event)])
        handler(event, now)
        self.note_waiting(now)
        if not self.over:
            self.launch_due(now)
        return self.taken()

    def deadline(self) -> float | None:
        """When the next Tick is due; None when nothing will happen by time."""
        launches = [worker.launch_at for worker in self.roster if worker.launch_at is not None]
        due = self.timers.next()
        return min([*launches, *([] if due is None else [due])], default=None)

    # --- begin, users ---------------------------------------------------------------------------------

    def on_begin(self, event: Begin, now: float) -> None:
        """Manifest and workers at the same time: launching takes seconds."""
        del event
        self.move(PhaseEvent.BEGUN)
        self.round = 1
        self.round_began = self._last_tick = now
        self.timers.set("beat", now + limits.heartbeat_s)
        self.timers.set("gather", now + self.spec.start_timeout_s)
        for worker in self.roster:
            self.roster.schedule(worker, now)
        self.open_manifest()

    def on_cut_wanted(self, event: CutWanted, now: float) -> None:
        del event
        self.request_cut(now)

    def on_reset_wanted(self, event: ResetWanted, now: float) -> None:
        """By hand. In other phases than these the region is on its way to its last cut anyway."""
        del event
        if self.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            self.reset("a reset was asked for", now, spend=False)

    def on_stop_wanted(self, event: StopWanted, now: float) -> None:
        """With a last cut if the region runs and has done anything since the one before."""
        del event
        if self.over or self.phase is CoordinatorPhase.STOPPING:
            return
        if self.phase is CoordinatorPhase.RUNNING and (self.moved_on or self.pending is not None):
            self.request_cut(now)
            if self.pending is not None:
                self.move(PhaseEvent.STOP)
                self.timers.set("stop", now + min(limits.stop_cut_timeout_s, self.spec.drain_timeout_s))
                return
        self.decide(RegionState.STOPPED, "stopped", now, kind="stopped")

    def on_store_waiting(self, event: StoreWaiting, now: float) -> None:
        del now
        self.store_waiting = event.waiting

    def on_manifest_unreadable(self, event: ManifestUnreadable, now: float) -> None:
        """What cannot be cured by waiting needs a person."""
        self.decide(RegionState.FAILED, str(event.error), now, kind="failed", error=event.error)

    # --- messages -------------------------------------------------------------------------------------

    def on_received(self, event: ControlReceived, now: float) -> None:
        """Check who sends, from which life, then take it. Whatever comes on a worker's link proves that it
        lives.
        """
        refusal = self._take_message(event, now)
        if refusal is not None:
            self.emit(MessageRefused(event.link, refusal))

    def _take_message(self, event: ControlReceived, now: float) -> Refusal | None:
        message, link = event.message, event.link
        if message.job != self.spec.name:
            return check_address(message, job=self.spec.name, incarnation=self.incarnation)
        if isinstance(message, Join):
            return self.on_join(link, message, now)
        worker = self.roster.by_link(link)
        if worker is None or worker.index != message.worker:
            return Refusal(
                "UNKNOWN_WORKER", f"{type(message).__name__} of worker {message.worker} on a link not its own"
            )
        worker.heard = now
        if self.over:
            return None
        if isinstance(message, Progress):
            return self.on_progress(worker, message, now)
        stale = check_address(message, job=self.spec.name, incarnation=self.incarnation)
        if isinstance(message, Failed) and (stale is None or message.kind == "internal"):
            return self.on_failed(worker, message, now)
        if stale is not None:
            return stale
        if isinstance(message, Restored):
            return self.on_restored(worker, message, now)
        if isinstance(message, Prepared):
            return self.on_prepared(worker, message, now)
        if isinstance(message, WantsCut):
            return self.on_wants_cut(worker, message, now)
        if isinstance(message, Paused):
            return self.on_paused(worker, message, now)
        assert isinstance(message, Finished)
        return self.on_finished(worker, message, now)

    # --- time -----------------------------------------------------------------------------------------

    def on_tick(self, event: CoordinatorTick, now: float) -> None:
        """Heartbeats, suspects, time-outs. Time in which our own loop was late counts against nobody."""
        late = max(now - event.due, 0.0)
        if late > limits.tick_late_s:
            self.roster.shift(late)
        elapsed, self._last_tick = now - self._last_tick, now
        if self.waiting_for:
            self.timers.shift(elapsed, PATIENCE)
        elif late > limits.tick_late_s:
            self.timers.shift(late, PATIENCE)
        for name in self.timers.expired(now):
            if self.phase is not CoordinatorPhase.ENDED:
                getattr(self, _TIMERS[name])(now)

    def _beat(self, now: float) -> None:
        self.timers.set("beat", now + limits.heartbeat_s)
        self.send_all(Heartbeat(job=self.spec.name, incarnation=self.incarnation, epoch=self.incarnation))
        while (worker := self.roster.silent(now, self.spec.suspect_after_s)) is not None:
            text = f"nothing was heard from it for {now - worker.heard:.1f} s"
            self.lose(worker, text, now, ended=False)

    def _open_again(self, now: float) -> None:
        del now
        if self.phase is CoordinatorPhase.OPENING:
            self.open_manifest()

    def _gather_timed_out(self, now: float) -> None:
        missing = self.roster.indices_not_in(WorkerState.JOINED)
        if self.phase is CoordinatorPhase.OPENING and not missing:
            self.timers.set("gather", now + self.spec.start_timeout_s)  # it is the manifest that takes long
            return
        errors = "; ".join(f"worker {i}: {self.roster[i].error}" for i in missing if self.roster[i].error)
        text = f"worker {_listed(missing)} did not join within {self.spec.start_timeout_s:g} s"
        error = RegionFailedError(
            f"{text} ({errors})" if errors else text,
            remedy="give the region its slots: each worker holds one for as long as it runs",
        )
        self.decide(RegionState.FAILED, text, now, kind="failed", error=error)

    def _restore_timed_out(self, now: float) -> None:
        slow = self.roster.indices_not_in(WorkerState.RESTORED)
        self._lose_all(slow, f"it did not restore within reset_timeout {self.spec.reset_timeout_s:g} s", now)

    def _drain_timed_out(self, now: float) -> None:
        if self.pending is None:
            return
        slow = self.pending.missing()
        if not slow:  # the votes are in: it is the manifest that takes long
            self.timers.set("drain", now + self.spec.drain_timeout_s)
            return
        self._lose_all(
            slow,
            f"no vote for cut {self.pending.number} in drain_timeout {self.spec.drain_timeout_s:g} s",
            now,
        )

    def _lose_all(self, workers: list[int], reason: str, now: float) -> None:
        """Several workers at one time are one round."""
        for index in workers:
            if self.roster[index].link is not None:
                self.lose(self.roster[index], reason, now, ended=False)

    def _stop_timed_out(self, now: float) -> None:
        self.decide(RegionState.STOPPED, "stopped without a last cut: it took too long", now, kind="stopped")

    def _grace_over(self, now: float) -> None:
        """First cancel those that do not end by themselves; a second time, end without them."""
        late = [worker for worker in self.roster if not worker.ended]
        if not self._cancelled:
            self._cancelled = True
            self.timers.set("grace", now + limits.stop_grace_s)
            for worker in late:
                self.emit(CancelWorker(worker.index))
            return
        self.end_if_gone(even_if_not=True)

    _cancelled = False


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)


_HANDLERS: dict[type, str] = {
    Begin: "on_begin",
    ManifestOpened: "on_manifest_opened",
    ManifestSuperseded: "on_manifest_superseded",
    ManifestTaken: "on_manifest_taken",
    ManifestLost: "on_manifest_lost",
    ManifestUnreadable: "on_manifest_unreadable",
    CutAppended: "on_cut_appended",
    StoreWaiting: "on_store_waiting",
    ControlReceived: "on_received",
    LinkDown: "on_link_down",
    WorkerEnded: "on_worker_ended",
    CoordinatorTick: "on_tick",
    CutWanted: "on_cut_wanted",
    ResetWanted: "on_reset_wanted",
    PauseWanted: "on_pause_wanted",
    SavepointWanted: "on_pin_wanted",
    StopWanted: "on_stop_wanted",
}
_TIMERS: dict[str, str] = {
    "beat": "_beat",
    "open": "_open_again",
    "gather": "_gather_timed_out",
    "restore": "_restore_timed_out",
    "drain": "_drain_timed_out",
    "cut": "cut_time_came",
    "stop": "_stop_timed_out",
    "grace": "_grace_over",
}

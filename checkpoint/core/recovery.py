"""Manifest, workers and rounds: how a region comes to run, and comes back to run. A part of the coordinator.

Invariants kept here: no order goes out before ManifestOpened of its incarnation; every worker gets at most
one Restore in an incarnation; a suspect is cancelled only when the manifest is held in a newer incarnation
than it may vote in.
"""

from math import inf

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import (
    CancelWorker,
    CloseLink,
    LaunchWorker,
    LinkDown,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    OpenManifest,
    WorkerEnded,
)
from checkpoint.core.fingerprint import check_fingerprint
from checkpoint.core.layout import even_layout
from checkpoint.core.manifest import Cut, check_cut
from checkpoint.core.messages import Failed, Join, Refusal, Restore, Restored, Start, StopKind
from checkpoint.core.region import RegionState, ResetReport, WorkerJoined, WorkerLost
from checkpoint.core.region_states import CoordinatorPhase, PhaseEvent, WorkerEvent, WorkerState
from checkpoint.core.retention import floors_of, steps_kept_after
from checkpoint.core.roster import Worker, launch_delay_s
from checkpoint.core.savepoints import Savepoints
from checkpoint.errors import FingerprintMismatchError, ManifestError, RegionFailedError, RegionFencedError


class Recovery(Savepoints):
    """See the top of this file."""

    running_since = inf
    """When all workers began to run, in the present round."""
    opened_at = 0.0
    """When the manifest was held, in the present round."""
    ordered_at = 0.0

    # --- manifest -------------------------------------------------------------------------------------

    def open_manifest(self) -> None:
        self.timers.clear("open")
        self.emit(OpenManifest(above=self.epoch_floor, held=self.incarnation))

    def on_manifest_opened(self, event: ManifestOpened, now: float) -> None:
        """From here on, and not before, this incarnation may give orders."""
        if self.phase is not CoordinatorPhase.OPENING:
            return  # decided meanwhile: the shell closes what it opened
        assert event.incarnation > max(self.incarnation, self.epoch_floor), "epochs only rise"
        try:
            self._check_restorable(event.last_cut)
        except (ManifestError, FingerprintMismatchError) as error:
            self.decide(RegionState.FAILED, str(error), now, kind="failed", error=error)
            return
        self.move(PhaseEvent.OPENED)
        self.opened_at = now
        self.timers.clear("open")
        self.incarnation, self.last_cut, self.superseded = event.incarnation, event.last_cut, 0
        self.kept = event.kept
        self.layout = event.last_cut.layout if event.last_cut else even_layout(len(self.roster))
        self._settle_doubt(now)
        self.settle_after_opening()
        for worker in self.roster:
            if worker.state is WorkerState.LOST:
                self._replace(worker, now)
        self.order_if_gathered(now)

    def _check_restorable(self, cut: Cut | None) -> None:
        if cut is None:
            return
        if self.last_cut is not None and cut.cut < self.last_cut.cut:
            raise ManifestError(
                f"it is the last of the manifest, {self.last_cut.cut} was committed", cut=cut.cut
            )
        check_cut(cut, workers=len(self.roster))
        present, older = self.spec.operators, self.spec.older_operators
        check_fingerprint(cut.operators, present, region=self.spec.name, cut=cut.cut, older=older)

    def _settle_doubt(self, now: float) -> None:
        """Our own last append is either the last cut of the chain, or can never be in it."""
        doubt, self.in_doubt = self.in_doubt, None
        if (
            doubt
            and self.last_cut
            and (doubt.number, doubt.incarnation)
            == (
                self.last_cut.cut,
                self.last_cut.incarnation,
            )
        ):
            self.note_commit(doubt, now)

    def on_manifest_superseded(self, event: ManifestSuperseded, now: float) -> None:
        """Two coordinators start at one time (R17): again after a random time that doubles, and is long
        beside what an attempt takes on these paths, or on far ones no attempt would have its time alone.
        """
        if self.phase is not CoordinatorPhase.OPENING:
            return
        self.move(PhaseEvent.SUPERSEDED)
        self.superseded += 1
        attempt_s = min(event.attempt_s, limits.claim_patience_s)
        longest = min(
            (limits.manifest_backoff_s + attempt_s) * 2.0**self.superseded,
            limits.manifest_backoff_max_s + limits.manifest_backoff_attempts_max * attempt_s,
        )
        self.timers.set("open", now + event.rng * longest)

    def on_manifest_taken(self, event: ManifestTaken, now: float) -> None:
        """A newer driver runs this region; it may have committed cuts that we do not know."""
        reason = f"a newer driver took over region {self.spec.name!r} with epoch {event.epoch_held}"
        error = RegionFencedError(reason, epoch_held=event.epoch_held)
        self.decide(RegionState.FENCED, reason, now, kind="fenced", error=error)

    def on_manifest_lost(self, event: ManifestLost, now: float) -> None:
        """The claim is gone. The next OpenManifest finds out whether a driver holds it or one died over it
        (R18).
        """
        if event.incarnation != self.incarnation:
            return
        if self.phase is CoordinatorPhase.STOPPING:
            self.decide(
                RegionState.STOPPED, "stopped without a last cut: the manifest was lost", now, kind="stopped"
            )
        elif self.phase in (CoordinatorPhase.GATHERING, CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            self.reset(f"the manifest was claimed with epoch {event.epoch_held}", now)

    # --- workers come ---------------------------------------------------------------------------------

    def launch_due(self, now: float) -> None:
        """Launch every worker whose time has come."""
        for worker in self.roster:
            if worker.launch_at is not None and worker.launch_at <= now:
                self.emit(LaunchWorker(worker.index, self.roster.launch(worker, self.round)))

    def on_join(self, link: int, join: Join, now: float) -> Refusal | None:
        """The first message of a link. Only the present attempt of a worker is taken."""
        if not 0 <= join.worker < len(self.roster):
            return self._turn_away(link, "refused", f"there is no worker {join.worker}")
        worker = self.roster[join.worker]
        if self.over:
            return self._turn_away(link, "stopped", self.reason)
        if worker.state is not WorkerState.LAUNCHED or join.attempt != worker.attempt:
            text = f"attempt {join.attempt} of worker {join.worker}; {worker.attempt} is {worker.state.name}"
            return self._turn_away(link, "superseded", text)
        self.roster.joined(worker, link, join, now)
        self.tell(WorkerJoined(worker.index, worker.attempt, join.host, join.pid))
        self.order_if_gathered(now)
        return None

    def _turn_away(self, link: int, kind: StopKind, text: str) -> Refusal:
        self.send(link, self.stop_message(kind, text))
        self.emit(CloseLink(link))
        return Refusal("STALE_ATTEMPT" if kind == "superseded" else "UNKNOWN_WORKER", text)

    def order_if_gathered(self, now: float) -> None:
        """The manifest is held and all are there: every worker to the last cut."""
        if self.phase is not CoordinatorPhase.GATHERING or not self.roster.all_in(WorkerState.JOINED):
            return
        self.move(PhaseEvent.GATHERED)
        self.ordered_at = now
        self.timers.clear("gather")
        self.timers.set("restore", now + self.spec.reset_timeout_s)
        for worker, link in self.roster.linked():
            worker.move(WorkerEvent.ORDER)
            self.send(
                link,
                Restore(
                    job=self.spec.name,
                    incarnation=self.incarnation,
                    epoch=self.incarnation,
                    cut=self.last_cut.cut if self.last_cut else 0,
                    worker=worker.index,
                    restore=self.last_cut,
                    peers=self.roster.peers(),
                    layout=self.layout,
                    floors=floors_of(self.kept, worker.index),
                    steps_kept_after=steps_kept_after(self.kept),
                ),
            )

    def on_restored(self, worker: Worker, message: Restored, now: float) -> Refusal | None:
        """A worker stands at the cut; with the last one all start."""
        if worker.state is not WorkerState.ORDERED:
            return Refusal("UNEXPECTED", f"worker {worker.index} restored without being asked")
        worker.move(WorkerEvent.RESTORED)
        worker.last_step = message.last_step
        worker.replayed_bytes, worker.restore_seconds = message.replayed_bytes, message.seconds
        worker.restore_phases_s = message.phases_s
        if self.roster.all_in(WorkerState.RESTORED):
            self._start_all(now)
        return None

    def _start_all(self, now: float) -> None:
        """Steps that all workers have on record are replayed exactly; the first that one lacks is divided
        anew.
        """
        self.move(PhaseEvent.RESTORED)
        self.running_since = now
        step = self.last_cut.step if self.last_cut else 0
        replay_until = max(step, min(worker.last_step for worker in self.roster))
        for worker in self.roster:
            worker.move(WorkerEvent.START)
            worker.step, worker.wants_cut = step, 0
        self.timers.clear("restore")
        self.set_cut_time(now)
        self.send_all(
            Start(
                job=self.spec.name,
                incarnation=self.incarnation,
                epoch=self.incarnation,
                replay_until_step=replay_until,
            )
        )
        if self.pause:
            self.order_pause()
        self._report_round(now)

    def _report_round(self, now: float) -> None:
        self.round_open, self.reason = False, ""
        if not self.round_reason:
            return
        report = ResetReport(
            time=self.round_began,
            worker=self.round_worker,
            reason=self.round_reason,
            seconds=now - self.round_began,
            bytes=sum(worker.replayed_bytes for worker in self.roster),
            incarnation=self.incarnation,
            cut=self.last_cut.cut if self.last_cut else 0,
            phases_s=self._round_phases(now),
        )
        self.resets.append(report)
        self.tell(report)

    def _round_phases(self, now: float) -> dict[str, float]:
        """One after the other: their sum is the time of the reset."""
        slowest = max(self.roster, key=lambda worker: worker.restore_seconds)
        phases = {"manifest": self.opened_at - self.round_began, "gather": self.ordered_at - self.opened_at}
        phases |= slowest.restore_phases_s
        return {**phases, "start": now - self.ordered_at - sum(slowest.restore_phases_s.values())}

    # --- workers go -----------------------------------------------------------------------------------

    def on_link_down(self, event: LinkDown, now: float) -> None:
        worker = self.roster.by_link(event.link)
        if worker is not None:
            self.lose(worker, f"its control link is gone: {event.reason}", now, ended=False)

    def on_worker_ended(self, event: WorkerEnded, now: float) -> None:
        """The launcher's word. An attempt before the present one does not matter any more."""
        worker = self.roster[event.worker]
        if event.attempt != worker.attempt:
            return
        worker.ended = True
        if worker.state in (WorkerState.LOST, WorkerState.DONE):
            if event.error:
                worker.error = event.error
            if worker.state is WorkerState.LOST and not self.over:
                self.roster.schedule(worker, now)
        elif worker.state is not WorkerState.ABSENT:
            self.lose(worker, event.error or "its process ended", now, ended=True)
        self.end_if_gone()

    def on_failed(self, worker: Worker, message: Failed, now: float) -> Refusal | None:
        """What a worker says went wrong. See FailureKind."""
        kind = message.kind
        if kind in ("operator", "manifest"):
            self._fail_for_good(worker, message, now)
        elif kind == "internal":
            self.lose(worker, message.message or "it failed", now, ended=False, text=message.traceback)
        elif self.phase is CoordinatorPhase.STOPPING:
            reason = f"stopped without a last cut: {message.message}"
            self.decide(RegionState.STOPPED, reason, now, kind="stopped")
        elif self.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            if kind == "fenced":
                self.epoch_floor = max(self.epoch_floor, message.epoch_held)
            reason = f"worker {worker.index}: {message.message}"
            if kind == "reset":
                reason = self._say_failure(worker, message)
                worker.error = message.traceback or reason
            if kind == "store":
                self.reset(reason, now, worker=worker.index, spend=False, delay_s=limits.launch_backoff_s)
            else:
                self.reset(reason, now, worker=worker.index)
            self.round_by_peer = kind == "peer"
        return None

    @staticmethod
    def _say_failure(worker: Worker, message: Failed) -> str:
        where = f" at {message.position}" if message.position else ""
        what = f"operator {message.operator!r}" if message.operator else "a check"
        return f"{what} failed in worker {worker.index}{where}: {message.message}"

    def _fail_for_good(self, worker: Worker, message: Failed, now: float) -> None:
        reason = self._say_failure(worker, message)
        worker.error = reason
        error = RegionFailedError(reason, traceback_text=message.traceback)
        self.decide(RegionState.FAILED, reason, now, kind="failed", error=error)

    def lose(self, worker: Worker, reason: str, now: float, *, ended: bool, text: str = "") -> None:
        """This attempt counts as over. What follows depends on the phase."""
        if worker.state is WorkerState.FINISHED:
            self._close(self.roster.leave(worker, ended=ended))
            self.finish_if_all_have(now)
            return
        self._close(self.roster.lose(worker, f"{reason}\n{text}" if text else reason, ended=ended))
        if self.over:
            if not ended:
                self.emit(CancelWorker(worker.index))
            self.end_if_gone()
            return
        self.tell(WorkerLost(worker.index, worker.attempt, reason))
        reason = f"worker {worker.index} was lost: {reason}"
        if self.phase is CoordinatorPhase.STOPPING:
            self.decide(RegionState.STOPPED, f"stopped without a last cut: {reason}", now, kind="stopped")
        elif self.phase in (CoordinatorPhase.RESTORING, CoordinatorPhase.RUNNING):
            self.reset(reason, now, worker=worker.index)
        elif worker.launch_round == self.round:
            self._begin_round(reason, now, worker=worker.index, spend=True)
        elif self.round_by_peer:
            self.round_reason, self.round_worker, self.reason = reason, worker.index, reason
            self.round_by_peer = False
        if not self.over and (ended or self.phase is CoordinatorPhase.GATHERING):
            self._replace(worker, now)

    def _close(self, link: int | None) -> None:
        if link is not None:
            self.emit(CloseLink(link))

    def _replace(self, worker: Worker, now: float) -> None:
        """Called when the old attempt is over, or can commit nothing any more: the manifest is held above
        it.
        """
        if not worker.ended:
            self.emit(CancelWorker(worker.index))
        self.roster.schedule(worker, now)

    # --- rounds ---------------------------------------------------------------------------------------

    def reset(
        self, reason: str, now: float, *, worker: int = -1, spend: bool = True, delay_s: float = 0.0
    ) -> None:
        """Back to the last committed cut, in a new incarnation. The manifest comes first; after several
        attempts in a row a pause comes before it, so that they outlast a short trouble.
        """
        if not self._begin_round(reason, now, worker=worker, spend=spend):
            return
        if self.pending is not None and self.pending.appended:
            self.in_doubt = self.pending
        self.pending, self.cut_overdue, self.final_committed = None, False, False
        self.is_paused = False
        self.timers.clear("restore", "drain", "cut")
        self.roster.release()
        for finished in self.roster:
            if finished.state is WorkerState.DONE:
                self.roster.schedule(finished, now)
        self.move(PhaseEvent.RESET)
        delay_s = max(delay_s, launch_delay_s(self.attempts))
        if delay_s:
            self.timers.set("open", now + delay_s)
        else:
            self.open_manifest()

    def _begin_round(self, reason: str, now: float, *, worker: int, spend: bool) -> bool:
        """Count an attempt; False when there are no more and the region has failed."""
        if self.spec.without_cuts and now > self.running_since + limits.reset_forgiven_s:
            self.attempts = 0
        self.running_since = inf
        if spend:
            self.attempts += 1
        if self.attempts > self.spec.max_consecutive_reset_attempts:
            text = f"{self.attempts - 1} resets in a row did not lead to a cut; the last reason: {reason}"
            error = RegionFailedError(
                text,
                traceback_text=self.roster[worker].error if worker >= 0 else "",
                remedy="look at the reason, then run the region again: it goes on from its last cut",
            )
            self.decide(RegionState.FAILED, text, now, kind="failed", error=error)
            return False
        if not self.round_open:
            self.round_open, self.round_began = True, now
            self.round_reason, self.round_worker = reason, worker
        self.round_by_peer = False
        self.round += 1
        self.reason = reason
        self.timers.set("gather", now + self.spec.start_timeout_s)
        return True

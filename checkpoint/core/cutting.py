"""Cuts: asked for, voted, appended, committed; and the end of input. A part of the coordinator.

Invariant kept here: AppendCut goes out only when every worker's vote of this incarnation is in, at most one
is out, and Committed goes out only upon CutAppended.
"""

from checkpoint.core.coordinator_base import CoordinatorBase
from checkpoint.core.coordinator_vocabulary import AppendCut, CutAppended
from checkpoint.core.dropped import end_text
from checkpoint.core.manifest import Cut, check_cut
from checkpoint.core.messages import (
    Committed,
    Finished,
    Prepared,
    Progress,
    Refusal,
    RequestCut,
    WantsCut,
)
from checkpoint.core.region import CutCommitted, RegionState
from checkpoint.core.region_states import CoordinatorPhase, WorkerEvent, WorkerState
from checkpoint.core.retention import floors_of, keep, retained_with, steps_kept_after
from checkpoint.core.roster import Worker
from checkpoint.core.voting import PendingCut
from checkpoint.errors import ManifestError, RegionFailedError


class Cutting(CoordinatorBase):
    """See the top of this file."""

    cut_overdue = False
    """The periodic time has come, and no cut could be asked for yet."""
    appending: Cut | None = None
    """On its way to the manifest: what it does not retain is being released."""

    @property
    def savepoints(self) -> dict[str, int]:
        """Name -> the cut that the next one retains by it."""
        return dict(self.last_cut.savepoints) if self.last_cut else {}

    @property
    def can_cut(self) -> bool:
        may = not self.spec.without_cuts and not self.final_committed
        return may and self.phase is CoordinatorPhase.RUNNING and self.pending is None

    @property
    def moved_on(self) -> bool:
        """Whether any step was ended since the last cut: an idle region makes no cuts."""
        at = self.last_cut.step if self.last_cut else 0
        return any(worker.step > at for worker in self.roster)

    def request_cut(self, now: float, *, final: bool = False) -> None:
        """Ask all workers for the next cut. Numbers rise from the last committed one."""
        if not self.can_cut:
            return
        number = (self.last_cut.cut if self.last_cut else 0) + 1
        self.pending = PendingCut(number, self.incarnation, len(self.roster), final, now)
        self.cut_overdue = False
        self.timers.set("drain", now + self.spec.drain_timeout_s)
        self.set_cut_time(now)
        self.send_all(
            RequestCut(
                job=self.spec.name,
                incarnation=self.incarnation,
                epoch=self.incarnation,
                cut=number,
                final=final,
            )
        )

    def set_cut_time(self, now: float) -> None:
        """When the next cut is due by time, if time triggers cuts."""
        if self.spec.trigger == "periodic" and not self.spec.without_cuts:
            self.timers.set("cut", now + self.spec.checkpoint_interval_s)

    def on_wants_cut(self, worker: Worker, message: WantsCut, now: float) -> Refusal | None:
        """A start operator waits for a cut. One under way may not cover its step: then the next does."""
        if worker.state is not WorkerState.RUNNING:
            return Refusal("UNEXPECTED", f"worker {message.worker} wants a cut before it runs")
        worker.wants_cut = message.step
        worker.step = max(worker.step, message.step)
        self.cut_if_overdue(now)
        return None

    @property
    def operator_waits(self) -> bool:
        """Whether a start operator waits for a cut that is not committed yet."""
        at = self.last_cut.step if self.last_cut else 0
        return self.spec.trigger == "operator" and any(worker.wants_cut > at for worker in self.roster)

    def cut_time_came(self, now: float) -> None:
        """The periodic trigger. With a cut under way, or nothing to cut, the next one follows when that
        ends.
        """
        self.cut_overdue = True
        self.cut_if_overdue(now)

    def cut_if_overdue(self, now: float) -> None:
        if self.cut_is_due and self.can_cut and self.moved_on:
            self.request_cut(now)

    @property
    def cut_is_due(self) -> bool:
        """Whether a cut is to follow as soon as there can be one and there is something to cut."""
        return self.cut_overdue or self.operator_waits

    def final_cut_if_exhausted(self, now: float) -> None:
        """All sources of all workers are at their end: one last cut, and the region is finished."""
        if not all(worker.state is WorkerState.RUNNING and worker.exhausted for worker in self.roster):
            return
        if self.spec.without_cuts:
            self.decide(RegionState.FINISHED, end_text(self.dropped), now, kind="finished")
        elif self.can_cut:
            self.request_cut(now, final=True)

    def on_progress(self, worker: Worker, message: Progress, now: float) -> Refusal | None:
        """A heartbeat with counters. One of an older incarnation still proves life, and nothing else."""
        worker.counters = message.counters
        if message.incarnation == self.incarnation and worker.state is WorkerState.RUNNING:
            worker.step = max(worker.step, message.counters.step)
            worker.exhausted = message.counters.exhausted
            self.final_cut_if_exhausted(now)
            self.cut_if_overdue(now)
        return None

    def on_prepared(self, worker: Worker, vote: Prepared, now: float) -> Refusal | None:
        """A vote. With the last one the cut goes to the manifest."""
        pending = self.pending
        if pending is None or pending.appended or worker.state is not WorkerState.RUNNING:
            return Refusal("STALE_CUT", f"a vote for cut {vote.cut} while none is asked for")
        worker.step = max(worker.step, vote.produced)
        worker.note_operators(vote.operators)
        refusal = pending.vote(vote)
        if refusal is not None or pending.missing():
            return refusal
        disagreement = pending.disagreement()
        if disagreement:
            self.cut_is_impossible(RegionFailedError(disagreement, remedy="please report this"), now)
            return None
        savepoints = self.savepoints
        retained = retained_with(self.kept, pending.number, self.spec.retain, set(savepoints.values()))
        cut = pending.build(
            self.last_cut, self.layout, self.spec.graph_fingerprint, self.spec.operators, retained, savepoints
        )
        try:
            check_cut(cut, workers=len(self.roster), before=self.last_cut)
        except ManifestError as error:
            self.cut_is_impossible(error, now)
            return None
        pending.appended = True
        self.appending = cut
        self.emit(AppendCut(cut))
        return None

    def cut_is_impossible(self, error: RegionFailedError | ManifestError, now: float) -> None:
        """Votes that make no cut are a bug of a worker: going on would repeat it."""
        self.decide(RegionState.FAILED, str(error), now, kind="failed", error=error)

    def on_cut_appended(self, event: CutAppended, now: float) -> None:
        """The commit. An acknowledgement of another incarnation's append says nothing about this one's."""
        pending = self.pending
        if pending is None or not pending.appended or event.cut.incarnation != self.incarnation:
            return
        assert event.cut.cut == pending.number, "one append at a time"
        self.timers.clear("drain")
        self.pending, self.appending, self.last_cut = None, None, event.cut
        for worker in self.roster:
            worker.step = max(worker.step, event.cut.step)
        self.kept = keep(self.kept, event.cut)
        self.note_commit(pending, now)
        for worker, link in self.roster.linked():
            self.send(
                link,
                Committed(
                    job=self.spec.name,
                    incarnation=self.incarnation,
                    epoch=self.incarnation,
                    cut=event.cut.cut,
                    step=event.cut.step,
                    final=pending.final,
                    floors=floors_of(self.kept, worker.index),
                    steps_kept_after=steps_kept_after(self.kept),
                ),
            )
        self.final_committed = pending.final
        if self.phase is CoordinatorPhase.STOPPING:
            self.decide(RegionState.STOPPED, "stopped", now, kind="stopped")
            return
        self.final_cut_if_exhausted(now)
        self.cut_if_overdue(now)

    def note_commit(self, pending: PendingCut, now: float) -> None:
        """Count it, forgive what failed before it, tell observers."""
        self.cuts_committed += 1
        self.attempts = 0
        self.roster.forgive()
        cut = self.last_cut
        assert cut is not None
        seconds = now - pending.requested_at
        prepared = max(pending.phases_s().values(), default=0.0)
        phases = {**pending.phases_s(), "commit": max(seconds - prepared, 0.0)}
        by_worker = {worker: vote.phases_s for worker, vote in sorted(pending.votes.items())}
        self.tell(CutCommitted(cut.cut, cut.step, pending.final, seconds, phases, by_worker))

    def on_finished(self, worker: Worker, message: Finished, now: float) -> Refusal | None:
        """A worker has published the final cut. When all have, the region is finished."""
        if not self.final_committed or worker.state is not WorkerState.RUNNING:
            return Refusal(
                "UNEXPECTED", f"worker {message.worker} finished before its final cut was committed"
            )
        worker.note_operators(message.operators)
        worker.move(WorkerEvent.FINISH)
        self.finish_if_all_have(now)
        return None

    def finish_if_all_have(self, now: float) -> None:
        if self.final_committed and self.roster.all_in(WorkerState.FINISHED, WorkerState.DONE):
            self.decide(RegionState.FINISHED, end_text(self.dropped), now, kind="finished")

"""The checkpoints of one region: requested, voted, appended, committed; what delays or precedes them. Pure.

**Pause** (distributed-dbsp, "Coordinator/worker synchronization details"). Every worker begins no step on its
own and replies with its step. A worker that receives a peer's STEP_END makes that step too, so all reach the
highest one. The checkpoint that is then requested belongs to the next step, which takes no input anywhere.
The region is PAUSED when nothing has moved on since the last checkpoint, also across resets.

**Savepoints** are in the record of a checkpoint (`Checkpoint.savepoints`) and nowhere else: a request for one
is a request for a checkpoint. A request that no checkpoint has carried is known to this driver only.
**Restore**: once its record is acknowledged, all workers are reset to that checkpoint (`records/lines.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from checkpoint import limits
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    CheckpointWanted,
    PauseWanted,
    RestoreWanted,
    SavepointWanted,
)
from checkpoint.core.coordination.workers import STARTED, Worker, WorkerEvent, WorkerState
from checkpoint.core.graph_change import (
    UPGRADE_PREFIX,
    OperatorNote,
    fingerprint,
    stored_under,
    upgrade_savepoint,
)
from checkpoint.core.links.messages import (
    Committed,
    Finished,
    Pause,
    Paused,
    Progress,
    Refusal,
    RequestCheckpoint,
    Vote,
    WantsCheckpoint,
)
from checkpoint.core.progress import end_text
from checkpoint.core.records.layout import Layout
from checkpoint.core.records.lines import (
    ended_after,
    find_target,
    former_sinks,
    log_sizes,
    refuse_republishing,
    replaced_graphs,
    restored,
    savepoint_problem,
)
from checkpoint.core.records.manifest import (
    BatchNote,
    Checkpoint,
    ReplacedGraph,
    RetiredWorker,
    SavepointNote,
    WorkerCheckpoint,
    check_checkpoint,
    floors_of,
    gaps_of,
    retained_with,
    savepoint_why_problem,
    slowest,
    steps_kept_after,
)
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from checkpoint.core.region import (
    CheckpointCommitted,
    FellBack,
    RegionState,
    RestoreSettled,
    SavepointSettled,
    check_goes_back,
)
from checkpoint.errors import (
    GraphChangeRefusedError,
    ManifestError,
    RegionFailedError,
    RestoreRefusedError,
)


@dataclass(slots=True)
class PendingCheckpoint:
    """A checkpoint that is requested and not committed, with the votes of its incarnation and terms."""

    number: int
    incarnation: int
    workers: int
    final: bool
    requested_at: float
    terms: dict[int, int] = field(default_factory=dict)
    """Worker -> its term, if it was taken over in this incarnation."""
    votes: dict[int, Vote] = field(default_factory=dict)
    voted_at: dict[int, float] = field(default_factory=dict)
    """Worker -> when its vote arrived."""
    batch: BatchNote | None = None
    """The batch that it commits. Its steps are not known before the votes."""
    quiet: bool = False
    """No step follows the one that it has: the region is paused, and stops."""
    appended: bool = False
    """The record was passed to the manifest and is not acknowledged yet."""

    def vote(self, vote: Vote, now: float = 0.0) -> Refusal | None:
        """Count a vote that arrived `now`, or return why it is refused. Each worker votes once."""
        term = self.terms.get(vote.worker, self.incarnation)
        epochs = (vote.epoch, *sorted(vote.positions.epochs()))
        if vote.incarnation != self.incarnation or set(epochs) != {term}:  # R12: every voted position
            return Refusal(
                "STALE_INCARNATION",
                f"vote of incarnation {vote.incarnation} with epochs {epochs}, current incarnation is"
                f" {self.incarnation}, in which the epoch of the worker is {term}",
            )
        if vote.checkpoint != self.number:
            return Refusal(
                "STALE_CHECKPOINT", f"vote for checkpoint {vote.checkpoint} while {self.number} is under way"
            )
        first = self.votes.get(vote.worker)
        if first is not None:
            return Refusal("UNEXPECTED", f"worker {vote.worker} voted twice for checkpoint {vote.checkpoint}")
        self.votes[vote.worker] = vote
        self.voted_at[vote.worker] = now
        return None

    def taken_over(self, worker: int, term: int) -> None:
        """Note that a worker was lost: what it voted does not count, the vote of the next term does."""
        self.terms[worker] = term
        self.votes.pop(worker, None)

    def missing(self) -> list[int]:
        """Return the workers that have not voted."""
        return [worker for worker in range(self.workers) if worker not in self.votes]

    def disagreement(self) -> str:
        """Return in words how the votes differ about the step, empty if they agree."""
        steps = {worker: vote.step for worker, vote in sorted(self.votes.items())}
        if len(set(steps.values())) <= 1:
            return ""
        return f"workers voted for checkpoint {self.number} at different steps: {steps}"

    def build(
        self,
        parent: Checkpoint | None,
        layout: Layout,
        operators: dict[str, OperatorNote],
        uids: dict[str, str],
        retained: tuple[int, ...],
        savepoints: dict[str, int],
        declared: int,
        notes: dict[str, SavepointNote],
        irrevocable: Mapping[str, str],
        *,
        shows_steps: bool,
        application: str = "",
        replaced: Mapping[str, ReplacedGraph] = MappingProxyType({}),
    ) -> Checkpoint:
        """Return the checkpoint of all votes. The wall time comes with the record."""
        assert not self.missing()
        assert not self.disagreement()
        workers = {worker: self.votes[worker].positions for worker in range(self.workers)}
        stored = stored_under(operators, uids).values()
        ended = {} if parent is None else ended_after(parent, stored, self.number)
        record = Checkpoint(
            number=self.number,
            step=self.votes[0].step,
            incarnation=self.incarnation,
            final=self.final,
            wall_time_ms=0,
            workers=workers,
            layout=layout,
            operators=operators,
            uids=uids,
            replaced=dict(replaced),
            parent=parent.number if parent else 0,
            retained=retained,
            savepoints=savepoints,
            phases_s={worker: vote.phases_s for worker, vote in sorted(self.votes.items())},
            retired={} if parent is None else _retired(parent, workers, ended),
            ended=ended,
            declared=declared if declared != len(workers) else 0,
            notes=notes,
            irrevocable=dict(irrevocable),
            former_sinks=(
                {} if parent is None else former_sinks(parent, self.number, retained, irrevocable, uids)
            ),
            shows_on=shows_steps and not self.quiet,
            line=0 if parent is None else parent.line,
            rewinds=() if parent is None else parent.rewinds,
            origin=None if parent is None else parent.origin,
            identity=None if parent is None else parent.identity,
            application=application,
            batch=None if parent is None else parent.batch,
        )
        return record if self.batch is None else with_batch(record, parent, self.batch)

    def phases_s(self) -> Mapping[str, float]:
        """Return phase -> seconds of the slowest worker."""
        return slowest(vote.phases_s for vote in self.votes.values())


def with_batch(record: Checkpoint, parent: Checkpoint | None, batch: BatchNote) -> Checkpoint:
    """Return the record of a checkpoint that commits a batch: its output follows that of the batch before."""
    before = None if parent is None else parent.batch
    if before is not None:
        after, begins = before.step, before.ends
    else:
        after, begins = (0, {}) if parent is None else (parent.step, log_sizes(parent))
    note = msgspec.structs.replace(
        batch, after_step=after, step=record.step, begins=begins, ends=log_sizes(record)
    )
    return msgspec.structs.replace(record, batch=note)


def _retired(
    parent: Checkpoint, workers: Collection[int], ended: Collection[str]
) -> dict[int, RetiredWorker]:
    """Return the former workers with output, of a checkpoint of these workers. ended: the logs that it has in
    `Checkpoint.ended`.
    """
    parts: dict[int, WorkerCheckpoint | RetiredWorker] = dict(parent.retired)
    parts |= {worker: part for worker, part in parent.workers.items() if part.sinks}
    return {
        worker: RetiredWorker(
            sinks={uid: at for uid, at in part.sinks.items() if uid not in ended},
            floors={
                chain: at
                for chain, at in part.floors.items()
                if chain.startswith(OUTPUT_CHAIN_PREFIX)
                and chain.removeprefix(OUTPUT_CHAIN_PREFIX) not in ended
            },
        )
        for worker, part in parts.items()
        if worker not in workers
    }


class Checkpoints:
    """The checkpoints of one region, its pause, its savepoints, and the restore that is under way."""

    def __init__(self, run: RegionRun) -> None:
        self._run = run
        self._pending: PendingCheckpoint | None = None
        """The checkpoint that is requested and not committed. It belongs to the current incarnation."""
        self._appending: Checkpoint | None = None
        """The record on its way to the manifest: it releases the checkpoints that it does not retain."""
        self._in_doubt: PendingCheckpoint | None = None
        """A checkpoint that was appended in an earlier incarnation and not acknowledged there."""
        self._overdue = False
        """The timer of the periodic checkpoint has expired, and no checkpoint could be requested yet."""
        self._number_wanted = 0
        """A checkpoint of at least this number was requested from outside, 0 for none. A reset keeps it."""
        self._final_committed = False
        self._count = 0
        self._pause = 0
        self._pause_orders = 0
        """The number of the newest pause order."""
        self._is_paused = False
        self._hands_over = False
        """The region pauses for another driver."""
        self._resumes = False
        """It is to continue after a checkpoint that states that steps are shown again."""
        self._savepoint_changes: dict[str, int] = {}
        """Savepoint changes that no checkpoint has carried yet: name -> checkpoint, 0 to drop it."""
        self._savepoint_notes: dict[str, SavepointNote] = {}
        """Savepoint -> the note of its request."""
        self._restoring: Checkpoint | None = None
        self._restore_wanted = ""
        """The checkpoint that `_restoring` is, as it was requested."""
        self._falls_back: FellBack | None = None
        """Because of what it is restored, if nobody requested it."""
        self._fell_back = ""

    # --- what others may know -------------------------------------------------------------------------

    @property
    def pending(self) -> PendingCheckpoint | None:
        """The checkpoint that is requested and not committed. After the end there is none."""
        return None if self._run.over else self._pending

    @property
    def appending(self) -> Checkpoint | None:
        """The record on its way to the manifest."""
        return self._appending

    @property
    def settled(self) -> bool:
        """Whether the last committed checkpoint is known: no append to the manifest is under way."""
        return self._appending is None

    @property
    def restoring(self) -> bool:
        """Whether the record of a restore is to be appended: no checkpoint is requested."""
        return self._restoring is not None

    @property
    def count(self) -> int:
        """The checkpoints committed by this driver."""
        return self._count

    @property
    def final_committed(self) -> bool:
        """Whether all input is processed and committed."""
        return self._final_committed

    @property
    def fell_back(self) -> str:
        """See `RegionStatus.fell_back`."""
        return self._fell_back

    @property
    def next_number(self) -> int:
        """The lowest number of a checkpoint that contains all that is read before now."""
        under_way = self.pending is not None or self._appending is not None
        return self._run.last_number + (2 if under_way else 1)

    # --- when a checkpoint is requested ---------------------------------------------------------------

    @property
    def can_checkpoint(self) -> bool:
        """Whether a checkpoint can be requested now."""
        run = self._run
        may = not run.spec.without_checkpoints and not self._final_committed and self._restoring is None
        stops = run.phase is CoordinatorPhase.STOPPING and self._pause > 0
        # A checkpoint in the middle of a batch would have a part of it, and the query repeats all of it.
        free = self._pending is None and not run.batch_open
        return may and free and (run.phase is CoordinatorPhase.RUNNING or stops)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether a checkpoint follows as soon as one can be requested and there is something to commit."""
        return self.all_paused or self._overdue or self.operator_waits

    @property
    def operator_waits(self) -> bool:
        """Whether an operator waits for a checkpoint that is not committed yet."""
        return any(worker.wants_checkpoint > self._run.last_step for worker in self._run.roster)

    @property
    def may_open_batch(self) -> bool:
        """Whether workers may take rows of a batch now."""
        run = self._run
        # Not while a checkpoint is under way or wanted: workers attach it to their next step, which would
        # have rows of the batch.
        wanted = self._number_wanted > run.last_number or self._appending is not None
        free = self.can_checkpoint and not (self._pause or wanted or run.changing)
        return free and run.phase is CoordinatorPhase.RUNNING

    def request_checkpoint(self, now: float, *, final: bool = False) -> None:
        """Request the next checkpoint from all workers, if one can be requested now."""
        if self.can_checkpoint:
            self._request(now, final=final)

    def request_for_batch(self, batch: BatchNote, after_step: int, now: float) -> None:
        """Request the checkpoint that commits the open batch: all workers have fed their shares, in steps up
        to this one.
        """
        assert self._pending is None, "no checkpoint is requested while a batch is open"
        # A worker without rows may be steps behind: with its next STEP_END, the checkpoint would lack rows
        # that others have fed after that, and the query never sends them again.
        self._request(now, batch=batch, step=after_step + 1)

    def _request(
        self, now: float, *, final: bool = False, batch: BatchNote | None = None, step: int = 0
    ) -> None:
        run = self._run
        number = run.last_number + 1
        self._pending = PendingCheckpoint(
            number,
            run.incarnation,
            len(run.roster),
            final,
            now,
            terms=dict(run.terms),
            batch=batch,
            # Only if it is requested after all have paused: before, steps may follow the one that it has.
            quiet=self._ends_quiet,
        )
        self._overdue = False
        if run.roster.all_in(*STARTED):  # otherwise one is being taken over: its start sets the timer
            run.timers.set("drain", now + run.spec.drain_timeout_s)
        self.set_checkpoint_time(now)
        which, marks = (-1, {}) if batch is None else (batch.number, batch.marks)
        run.send_all(
            RequestCheckpoint(
                **run.address, checkpoint=number, final=final, step=step, batch=which, marks=marks
            )
        )

    def set_checkpoint_time(self, now: float) -> None:
        """Set the timer of the next periodic checkpoint, if the region has periodic ones."""
        spec = self._run.spec
        if spec.trigger == "periodic" and not spec.without_checkpoints:
            self._run.timers.set("checkpoint", now + spec.checkpoint_interval_s)

    def checkpoint_if_overdue(self, now: float) -> None:
        """Request a checkpoint if one is wanted, or is due and there is something to commit."""
        wanted = self._number_wanted > self._run.last_number or self._owes_quiet or self._resumes
        if wanted or (self.checkpoint_is_due and self._run.has_new_steps):
            self.request_checkpoint(now)

    @property
    def _ends_quiet(self) -> bool:
        """Whether the region stops, or is handed over, and no worker begins a step any more."""
        return (self._run.phase is CoordinatorPhase.STOPPING or self._hands_over) and self.all_paused

    @property
    def _owes_quiet(self) -> bool:
        """Whether its last checkpoint is to state that nothing is shown after it, and does not."""
        last = self._run.last_checkpoint
        return self._ends_quiet and last is not None and last.shows_on

    @property
    def _is_or_becomes_quiet(self) -> bool:
        """Whether the last checkpoint states that nothing is shown after it, or the one under way does."""
        last, pending = self._run.last_checkpoint, self._pending
        quiet = (last is not None and last.is_quiet) or (pending is not None and pending.quiet)
        return self._run.spec.shows_steps and quiet

    @property
    def hands_over(self) -> bool:
        """Whether the region is paused for another driver, by a checkpoint after which nothing is shown."""
        settled = self._is_paused and self._pending is None and self.settled
        return self._hands_over and settled and not self._owes_quiet

    def hand_over(self, now: float, *, on: bool) -> None:
        """Let the pause be the end of what is shown here, or not any more."""
        self._hands_over = on
        if on:  # all may have paused before
            self.checkpoint_if_overdue(now)

    def checkpoint_timer_expired(self, now: float) -> None:
        """Handle the periodic timer. If no checkpoint can be requested now, one follows when it can."""
        self._overdue = True
        self.checkpoint_if_overdue(now)

    def want(self, number: int, now: float) -> None:
        """Request a checkpoint of at least this number. If that is impossible now, it follows when it can."""
        self._number_wanted = max(self._number_wanted, number)
        self.checkpoint_if_overdue(now)

    def on_checkpoint_wanted(self, event: CheckpointWanted, now: float) -> None:
        """Request a checkpoint after the one that is under way."""
        del event
        self.want(self.next_number, now)

    def on_wants_checkpoint(self, worker: Worker, message: WantsCheckpoint, now: float) -> Refusal | None:
        """Note that an operator waits for a checkpoint that contains a step."""
        if worker.state is not WorkerState.RUNNING:
            return Refusal("UNEXPECTED", f"worker {message.worker} requested a checkpoint before it runs")
        worker.wants_checkpoint = max(worker.wants_checkpoint, message.step)
        worker.step = max(worker.step, message.step)
        self.checkpoint_if_overdue(now)
        return None

    def on_progress(self, worker: Worker, message: Progress, now: float) -> Refusal | None:
        """Take a heartbeat with counters. One of an older incarnation proves only that the worker lives."""
        worker.counters = message.counters
        if message.incarnation == self._run.incarnation and worker.state is WorkerState.RUNNING:
            worker.step = max(worker.step, message.counters.step)
            worker.meter.note(message.counters.step, message.counters.busy_s)
            worker.exhausted = message.counters.exhausted
            self.final_checkpoint_if_exhausted(now)
            self.checkpoint_if_overdue(now)
        return None

    # --- votes ----------------------------------------------------------------------------------------

    def expect_first_votes(self, now: float) -> None:
        """Expect the votes that follow a restore at once, for a layout, line or fork to count."""
        run = self._run
        self._pending = PendingCheckpoint(
            run.last_number + 1, run.incarnation, len(run.roster), final=False, requested_at=now
        )

    def on_vote(self, worker: Worker, vote: Vote, now: float) -> Refusal | None:
        """Count a vote. With the last one, append the checkpoint to the manifest."""
        run, pending = self._run, self._pending
        votes = WorkerState.RESTORED if run.phase is CoordinatorPhase.RESTORING else WorkerState.RUNNING
        if pending is None or pending.appended or worker.state is not votes:
            return Refusal(
                "STALE_CHECKPOINT", f"vote for checkpoint {vote.checkpoint}, but none is requested"
            )
        if votes is WorkerState.RESTORED:
            worker.last_step = vote.step  # steps that are recorded above it had another layout
        worker.step = max(worker.step, vote.produced)
        worker.note_operators(vote.operators)
        refusal = pending.vote(vote, now)
        if refusal is not None or pending.missing():
            return refusal
        disagreement = pending.disagreement()
        if disagreement:
            # A bug of a worker: a reset would repeat it.
            run.fail(RegionFailedError(disagreement, remedy="please report this"), now)
            return None
        checkpoint = self._built(pending)
        try:
            check_checkpoint(checkpoint, before=run.last_checkpoint)
        except ManifestError as error:
            run.fail(error, now)
            return None
        pending.appended = True  # no vote counts after this, so at most one append is outstanding
        self._append(checkpoint)
        return None

    def _built(self, pending: PendingCheckpoint) -> Checkpoint:
        run, last = self._run, self._run.last_checkpoint
        savepoints, notes = self._with_upgrade(last)
        return pending.build(
            last,
            run.layout,
            run.spec.operators,
            run.uids,
            retained_with(run.kept, pending.number, run.spec.retain, set(savepoints.values())),
            savepoints,
            run.declared,
            notes,
            run.spec.irrevocable,
            shows_steps=run.spec.shows_steps,
            application=run.spec.application,
            replaced={} if last is None else replaced_graphs(last, run.spec.operators),
        )

    def _with_upgrade(self, last: Checkpoint | None) -> tuple[dict[str, int], dict[str, SavepointNote]]:
        """Return the savepoints of the next vote, with their notes. If a graph begins with it, the checkpoint
        before becomes one, and those of the last such changes stay.
        """
        savepoints, notes, spec = self.savepoints, self._notes, self._run.spec
        if last is not None:  # the time of a record is only known when it is written
            notes |= {
                name: msgspec.structs.replace(note, wall_time_ms=last.wall_time_ms)
                for name, note in notes.items()
                if name.startswith(UPGRADE_PREFIX) and not note.wall_time_ms
            }
        if last is None or last.in_origin or last.operators == spec.operators:
            return savepoints, notes
        before = sorted((held, name) for name, held in savepoints.items() if name.startswith(UPGRADE_PREFIX))
        for _, name in before[: len(before) + 1 - limits.upgrade_savepoints_max]:
            del savepoints[name]
        if len(savepoints) < limits.savepoints_max:  # otherwise a person wants others
            name = upgrade_savepoint(spec.name, last.number)
            savepoints[name] = last.number
            was, now = fingerprint(last.operators), fingerprint(spec.operators)
            notes[name] = SavepointNote(why=f"before graph {was} was replaced by {now}")
        return savepoints, {name: note for name, note in notes.items() if name in savepoints}

    def _append(self, record: Checkpoint) -> None:
        self._appending = record
        self._run.emit(AppendCheckpoint(record))

    # --- the commit -----------------------------------------------------------------------------------

    def on_appended(self, event: CheckpointAppended, now: float) -> bool:
        """Commit the checkpoint and send Committed to all workers. Return whether that was done."""
        run, pending = self._run, self.pending
        if pending is None or not pending.appended or event.checkpoint.incarnation != run.incarnation:
            return False
        assert event.checkpoint.number == pending.number, "one append at a time"
        run.timers.clear("drain")
        self._pending, self._appending = None, None
        if pending.batch is not None:
            run.batch_open = False
            self._send_held_pause()
        for worker in run.roster:
            worker.step = max(worker.step, event.checkpoint.step)
        run.committed(event.checkpoint)
        self._note_commit(pending, now)
        # Only now: sinks publish on Committed, and the quorum keeps the record if this driver is lost.
        for worker, link in run.roster.linked():
            if worker.state is WorkerState.JOINED:
                continue  # it is being taken over, and begins at this checkpoint
            run.send(
                link,
                Committed(
                    **run.address,
                    checkpoint=event.checkpoint.number,
                    step=event.checkpoint.step,
                    final=pending.final,
                    floors=floors_of(run.kept, worker.index),
                    gaps=gaps_of(run.kept, worker.index),
                    steps_kept_after=steps_kept_after(run.kept),
                ),
            )
        self._final_committed = pending.final
        if self._resumes and not event.checkpoint.is_quiet:
            self.send_pause()
        self.final_checkpoint_if_exhausted(now)
        self.checkpoint_if_overdue(now)
        return True

    def _note_commit(self, pending: PendingCheckpoint, now: float) -> None:
        """Count the commit, and report it to observers."""
        self._count += 1
        checkpoint = self._run.last_checkpoint
        assert checkpoint is not None
        seconds = now - pending.requested_at
        prepared = pending.phases_s()
        phases = {**prepared, "commit": max(seconds - sum(prepared.values()), 0.0)}
        by_worker = {worker: vote.phases_s for worker, vote in sorted(pending.votes.items())}
        votes_s = {worker: pending.voted_at[worker] - pending.requested_at for worker in by_worker}
        number, step = checkpoint.number, checkpoint.step
        # Later records repeat the batch, and commit none.
        batch = None if pending.batch is None else pending.batch.number
        self._run.report(
            CheckpointCommitted(number, step, pending.final, seconds, phases, by_worker, votes_s, batch)
        )

    # --- the end of input -----------------------------------------------------------------------------

    def final_checkpoint_if_exhausted(self, now: float) -> None:
        """Request the final checkpoint if all sources of all workers are at their end."""
        run = self._run
        if not all(worker.state is WorkerState.RUNNING and worker.exhausted for worker in run.roster):
            return
        if run.spec.without_checkpoints:
            run.decide(RegionState.FINISHED, end_text(run.dropped), now, kind="finished")
        elif self.can_checkpoint and run.phase is CoordinatorPhase.RUNNING:
            self.request_checkpoint(now, final=True)

    def on_finished(self, worker: Worker, message: Finished, now: float) -> Refusal | None:
        """Note that a worker has published the final checkpoint. When all have, the region is finished."""
        if not self._final_committed or worker.state is not WorkerState.RUNNING:
            return Refusal(
                "UNEXPECTED", f"worker {message.worker} finished before the final checkpoint was committed"
            )
        worker.note_operators(message.operators)
        worker.move(WorkerEvent.FINISH)
        self.finish_if_all_have(now)
        return None

    def finish_if_all_have(self, now: float) -> None:
        run = self._run
        if self._final_committed and run.roster.all_in(WorkerState.FINISHED, WorkerState.DONE):
            run.decide(RegionState.FINISHED, end_text(run.dropped), now, kind="finished")

    # --- resets and take-overs ------------------------------------------------------------------------

    def forget_incarnation(self) -> None:
        """Give up the checkpoint under way: all workers are reset."""
        if self._pending is not None and self._pending.appended:
            # Its append may still reach the quorum: only the reopened manifest decides (`settle_doubt`).
            self._in_doubt = self._pending
        # A final checkpoint counts only in its incarnation: restored workers end with another final one.
        self._pending, self._overdue, self._final_committed = None, False, False
        self._is_paused = self._run.batch_open = self._resumes = False

    def settle_doubt(self, now: float) -> bool:
        """Count the checkpoint in doubt if it is the last of the chain, and return whether it is."""
        doubt, self._in_doubt = self._in_doubt, None
        last = self._run.last_checkpoint
        if doubt and last and (doubt.number, doubt.incarnation) == (last.number, last.incarnation):
            self._note_commit(doubt, now)
            return True
        return False

    def settle_after_opening(self) -> None:
        """Answer the requests that a checkpoint in doubt may have carried, by the reopened manifest."""
        self._appending = None
        self._settle_savepoints()
        last, target = self._run.last_checkpoint, self._restoring
        if target is not None:
            done = last is not None and last.rewound and last.rolled_back_to == target.voted_as
            self._settle_restore("" if done else "the region was reset meanwhile, and is not restored")

    def taken_over(self, worker: Worker, term: int) -> None:
        """Let the vote of a lost worker not count: another process takes it over in this term."""
        if self._pending is not None and not self._pending.appended:
            self._pending.taken_over(worker.index, term)
        self._is_paused, worker.paused, worker.wants_checkpoint = False, 0, 0

    def repeat_orders(self, link: int, now: float) -> None:
        """Send a worker that was taken over the orders in force, which its former process has received."""
        run = self._run
        if self._pause:
            run.send(link, Pause(**run.address, pause=self._pause))
        if self._pending is not None:
            number, final = self._pending.number, self._pending.final
            run.send(link, RequestCheckpoint(**run.address, checkpoint=number, final=final))
            run.timers.set("drain", now + run.spec.drain_timeout_s)

    # --- pause ----------------------------------------------------------------------------------------

    @property
    def pause(self) -> int:
        """The number of the pause order in force, 0 for none."""
        return self._pause

    @property
    def is_paused(self) -> bool:
        """Whether no worker takes input, and everything that was taken is committed."""
        return self._is_paused

    @property
    def all_paused(self) -> bool:
        """Whether all workers have carried out the pause order: none takes input."""
        return self._pause > 0 and all(worker.paused == self._pause for worker in self._run.roster)

    def on_pause_wanted(self, event: PauseWanted) -> None:
        """Pause or continue. A request for what is already in force changes nothing."""
        run = self._run
        stops = run.over or run.phase is CoordinatorPhase.STOPPING
        if not stops and event.on != bool(self._pause) and not run.spec.without_checkpoints:
            self.order_pause(on=event.on)

    def order_pause(self, *, on: bool) -> None:
        """Pause or continue; if the region does not run now, from the start of its workers on."""
        self._pause_orders += on
        self._pause = self._pause_orders if on else 0
        if self._run.phase is CoordinatorPhase.RUNNING:
            self.send_pause()

    def _send_held_pause(self) -> None:
        """Send the order that was given while a batch was open."""
        if self._pause and self._run.phase in (CoordinatorPhase.RUNNING, CoordinatorPhase.STOPPING):
            self.send_pause()

    def send_pause(self) -> None:
        """Send the order in force to all workers, once no batch is open: a paused worker takes no rows."""
        if self._run.batch_open:
            return
        # Killed after it has shown a step, and before its next checkpoint, the region would look as if it had
        # shown none, and another graph would make that step again.
        self._resumes = not self._pause and self._is_or_becomes_quiet
        if self._resumes:
            return
        self._is_paused = False
        for worker in self._run.roster:
            worker.paused = 0
        self._run.send_all(Pause(**self._run.address, pause=self._pause))

    def on_paused(self, worker: Worker, message: Paused, now: float) -> Refusal | None:
        """Note that a worker takes no more input."""
        pause = self._pause
        if worker.state is not WorkerState.RUNNING or not pause or message.pause != pause:
            return Refusal(
                "UNEXPECTED",
                f"worker {worker.index} paused by order {message.pause}, current order is {pause}",
            )
        worker.paused = message.pause
        worker.step = max(worker.step, message.step)
        worker.counters = message.counters
        self.checkpoint_if_overdue(now)
        self.note_paused()
        return None

    def note_paused(self) -> None:
        """Note whether the region is paused. Once reached, that lasts until the next order."""
        run = self._run
        runs = run.phase is CoordinatorPhase.RUNNING
        if runs and self.all_paused and self._pending is None and not run.has_new_steps:
            self._is_paused = True

    # --- savepoints -----------------------------------------------------------------------------------

    @property
    def held_savepoints(self) -> dict[str, int]:
        """The savepoints that the last committed checkpoint holds: name -> checkpoint."""
        last = self._run.last_checkpoint
        return dict(last.savepoints) if last else {}

    @property
    def savepoints(self) -> dict[str, int]:
        """The savepoints in force: those of the last checkpoint, as changed by the next one."""
        changed = {**self.held_savepoints, **self._savepoint_changes}
        return {name: checkpoint for name, checkpoint in changed.items() if checkpoint}

    @property
    def _notes(self) -> dict[str, SavepointNote]:
        """The notes of the savepoints in force."""
        last = self._run.last_checkpoint
        known, names = {**(last.notes if last else {}), **self._savepoint_notes}, self.savepoints
        return {name: note for name, note in known.items() if name in names}

    def on_savepoint_wanted(self, event: SavepointWanted, now: float) -> None:
        """Make or drop a savepoint. An invalid request is answered at once and changes nothing."""
        number = self._number_of(event)
        problem = self._savepoint_problem(event, number)
        if problem:
            self._run.report(SavepointSettled(event.name, 0, problem))
            return
        if event.on and event.name not in self.savepoints:
            self._savepoint_notes[event.name] = event.note
        self._savepoint_changes[event.name] = number
        self.settle_or_request(now)

    def _number_of(self, event: SavepointWanted) -> int:
        if not event.on:
            return 0
        return event.checkpoint or self._run.last_number

    def settle_or_request(self, now: float) -> None:
        """Answer the requests that are carried out. If any remain, request a checkpoint that carries them."""
        self._settle_savepoints()
        if self._savepoint_changes:
            self.want(self._run.last_number + 1, now)

    def _savepoint_problem(self, event: SavepointWanted, number: int) -> str:
        """Return why the request cannot be carried out, empty if it can."""
        if self._run.spec.without_checkpoints or self._run.over:
            return "the region commits no more checkpoints"
        if event.on and (problem := savepoint_why_problem(event.note.why)) != "":
            return problem
        return savepoint_problem(event.name, number if event.on else None, self.savepoints, self._retained())

    def _retained(self) -> list[int]:
        """Return the retained checkpoints, without those that an append under way releases."""
        kept, appending = [checkpoint.number for checkpoint in self._run.kept], self._appending
        return kept if appending is None else [number for number in kept if number in appending.retained]

    def _settle_savepoints(self) -> None:
        """Answer each request that is carried out, or that can no longer be."""
        run, appending = self._run, self._appending
        held = self.held_savepoints
        kept = {checkpoint.number for checkpoint in run.kept}
        for name, number in list(self._savepoint_changes.items()):
            undone = appending is not None and appending.savepoints.get(name, 0) != number
            if held.get(name, 0) == number and not undone:
                run.report(SavepointSettled(name, number or _held_before(run.kept, name)))
            elif number and number not in kept:
                run.report(SavepointSettled(name, 0, f"checkpoint {number} was released meanwhile"))
            else:
                continue
            del self._savepoint_changes[name]
            self._savepoint_notes.pop(name, None)

    # --- restore --------------------------------------------------------------------------------------

    def on_restore_wanted(self, event: RestoreWanted, now: float) -> None:
        """Restore a checkpoint, or answer at once why not."""
        del now
        run = self._run
        try:
            self._check_restore_possible()
            target = find_target(run.kept, event.to, region=run.spec.name)
            check_goes_back(run.spec, run.kept, target)
            if not event.allow_republish:
                refuse_republishing(run.kept[-1], target)
        except (RestoreRefusedError, ManifestError, GraphChangeRefusedError) as error:
            run.report(RestoreSettled(event.to, error=f"{error}"))
            return
        self._begin_restore(target, event.to, None)

    def fall_back(self, target: Checkpoint, because: FellBack) -> None:
        """Restore a checkpoint because the last one is damaged, while no worker is ordered."""
        self._begin_restore(target, "", because)

    def _begin_restore(self, target: Checkpoint, requested: str, because: FellBack | None) -> None:
        self._restoring, self._restore_wanted, self._falls_back = target, requested, because
        if self._pending is not None and not self._pending.appended and not self._run.batch_open:
            self._pending = None
            self._run.timers.clear("drain")
        self.append_restore_if_free()

    def _check_restore_possible(self) -> None:
        run = self._run
        if run.spec.without_checkpoints or run.over:
            raise RestoreRefusedError("the region commits no more checkpoints")
        if run.phase is not CoordinatorPhase.RUNNING:
            raise RestoreRefusedError("the region starts, stops or is being reset: try again when it runs")
        if run.changing:
            raise RestoreRefusedError("its workers are being changed: wait, or cancel that first")
        if self._restoring is not None:
            raise RestoreRefusedError("it is being restored already")

    def append_restore_if_free(self) -> None:
        """Append the record of the restore once no other append is under way."""
        run, target = self._run, self._restoring
        if target is None or self._appending is not None or self.pending is not None or run.batch_open:
            return
        if target.number not in [checkpoint.number for checkpoint in run.kept]:
            self._settle_restore(f"checkpoint {target.number} was released meanwhile")
            return
        # After a fall back, the request of a program that was carried out before stays so (`Rewind.by`).
        rewinds = run.kept[-1].rewinds if self._falls_back is not None else ()
        by = rewinds[-1].by if rewinds else ""
        record = restored(run.kept, target, run.incarnation, by=by, graph=run.spec.operators)
        self._append(record)

    def is_restore(self, record: Checkpoint) -> bool:
        """Return whether an acknowledged record is that of the restore under way."""
        return record.rewound and record.incarnation == self._run.incarnation and self.restoring

    def on_restore_appended(self, record: Checkpoint) -> bool:
        """Commit the restore. Return False if a reset came first, whose manifest has this record."""
        # A reset reads the manifest again and finds the record there: committed here too, it would be counted
        # twice.
        if self._run.phase not in (CoordinatorPhase.RUNNING, CoordinatorPhase.GATHERING):
            return False
        self._appending = None
        self._run.committed(record)
        self._settle_restore("")
        return True

    def _settle_restore(self, error: str) -> None:
        run, target, because = self._run, self._restoring, self._falls_back
        assert target is not None
        self._restoring, self._falls_back = None, None
        if because is None:
            number = 0 if error else target.voted_as
            run.report(RestoreSettled(self._restore_wanted, number, target.step, error))
        elif not error:  # otherwise the damage is found again
            self._fell_back = str(because)
            run.report(because)


def _held_before(kept: tuple[Checkpoint, ...], name: str) -> int:
    """Return the checkpoint that a dropped savepoint held, 0 if no retained checkpoint states it."""
    return next(
        (checkpoint.savepoints[name] for checkpoint in reversed(kept) if name in checkpoint.savepoints), 0
    )

"""The driver that takes a running region over (`RegionSpec.hand_over`), until it claims the manifest. Pure.

Before the claim, the other driver runs the region, and everything that may take long is done: all workers
join, open their operators, and load the state of the last checkpoint from the store. If that took long,
they load what was committed meanwhile. Then the other driver is asked to pause and to lend the region
(`Changes._lend`), and the manifest is claimed at once. Whatever fails before leaves the region alone.
"""

from enum import Enum, auto
from typing import Final

from checkpoint import limits
from checkpoint.core.coordination.changes import Changes
from checkpoint.core.coordination.rounds import Recovery
from checkpoint.core.coordination.run import CoordinatorPhase, RegionRun
from checkpoint.core.coordination.vocabulary import (
    AskForRegion,
    HandOverAnswered,
    LastCheckpointRead,
    ReadLastCheckpoint,
)
from checkpoint.core.coordination.workers import Worker, WorkerState
from checkpoint.core.links.messages import CopiedAhead, Refusal
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import when_handed_over
from checkpoint.errors import GraphChangeRefusedError, ManifestError, RegionFailedError

LOADS_MAX: Final = 5
"""So often what was committed meanwhile is loaded. After that, the rest is loaded while the region pauses."""


class HeirStep(Enum):
    """What the new driver waits for."""

    JOINING = auto()
    READING = auto()
    """The last checkpoint is read from the store."""
    PREPARING = auto()
    """Workers open their operators and load state."""
    ASKING = auto()
    CLAIMING = auto()
    """The claim is ordered: from then on, it is a start as any other."""


class Heir:
    """The hand-over of one region to this driver."""

    def __init__(self, run: RegionRun, rounds: Recovery, changes: Changes) -> None:
        self._run = run
        self._rounds = rounds
        self._changes = changes
        self._step = HeirStep.JOINING
        self._prepared: Checkpoint | None = None
        """The checkpoint whose state all workers load, or have loaded."""
        self._reports: dict[int, CopiedAhead] = {}
        self._loads = 0
        self._began = 0.0
        """When the last load was ordered."""

    @property
    def takes_over(self) -> bool:
        """Whether another driver runs the region, and this one has not tried to claim it."""
        run = self._run
        waits = run.phase is CoordinatorPhase.OPENING and not run.incarnation
        return run.spec.hand_over and waits and self._step is not HeirStep.CLAIMING

    def advance(self, now: float) -> None:
        """Take the next step, if it is due. Call after each event."""
        del now
        if not self.takes_over:
            return
        joined = self._run.roster.all_in(WorkerState.JOINED)
        if not joined:  # the next process of a worker begins anew; the others have what they have
            lost = self._run.roster.indices_not_in(WorkerState.JOINED)
            self._reports = {index: one for index, one in self._reports.items() if index not in lost}
            if self._step is HeirStep.PREPARING:
                self._step = HeirStep.JOINING
        if self._step is HeirStep.JOINING and joined:
            self._step = HeirStep.READING
            self._run.emit(ReadLastCheckpoint())

    def on_last_read(self, event: LastCheckpointRead, now: float) -> None:
        """Let the workers prepare with this checkpoint, or ask for the region if they have."""
        run, seen = self._run, event.seen
        if not self.takes_over or self._step is not HeirStep.READING:
            return
        try:
            run.compare_with(seen, unread=False)
        except (ManifestError, GraphChangeRefusedError) as error:
            run.fail(error, now)
            return
        if not run.roster.all_in(WorkerState.JOINED):
            self._step = HeirStep.JOINING
        elif seen is None or run.spec.without_checkpoints or self._is_prepared(seen, now):
            self._ask()
        else:
            self._prepare(seen, now)

    @property
    def _all_done(self) -> bool:
        """Whether all workers have loaded what they were ordered to."""
        done = [index for index, one in self._reports.items() if one.done]
        return len(done) == len(self._run.roster)

    def _is_prepared(self, seen: Checkpoint, now: float) -> bool:
        """Return whether what the workers have not loaded takes no longer than a pause may take."""
        if self._prepared is None or not self._all_done:
            return False
        took_s = now - self._began
        same = self._prepared.number == seen.number
        return same or took_s < limits.load_again_s or self._loads >= LOADS_MAX

    def _prepare(self, seen: Checkpoint, now: float) -> None:
        run = self._run
        self._step, self._prepared, self._began = HeirStep.PREPARING, seen, now
        self._reports, self._loads = {}, self._loads + 1
        run.timers.set("gather", now + run.spec.start_timeout_s)
        run.prepared = run.prepared or seen.number
        layout = self._changes.layout_after(when_handed_over(run.spec, seen))
        for worker, link in run.roster.linked():
            run.send_load_ahead(worker, link, seen, layout)
        self._explain()

    def on_copied(self, worker: Worker, message: CopiedAhead, now: float) -> Refusal | None:
        """Note how much a worker has loaded. It may take longer than any limit, as long as it gets on."""
        run, prepared = self._run, self._prepared
        if self._step is not HeirStep.PREPARING or prepared is None:
            return Refusal("UNEXPECTED", f"worker {worker.index} loads state, but nothing was ordered")
        if message.checkpoint != prepared.number:
            return Refusal("STALE_CHECKPOINT", f"worker {worker.index} loads checkpoint {message.checkpoint}")
        self._reports[worker.index] = message
        run.timers.set("gather", now + run.spec.start_timeout_s)
        if message.error:
            error = RegionFailedError(
                f"worker {worker.index} cannot prepare the hand-over: {message.error}",
                remedy="the region runs on under its driver; fix the cause, then start this program again",
            )
            run.fail(error, now)
            return None
        self._explain()
        if self._all_done:
            self._step = HeirStep.READING
            run.emit(ReadLastCheckpoint())
        return None

    def _explain(self) -> None:
        """State how much is loaded."""
        assert self._prepared is not None
        copied = sum(one.copied_bytes for one in self._reports.values())
        total = max(sum(one.total_bytes for one in self._reports.values()), copied)
        share = f": {copied / 1e6:,.1f} of {total / 1e6:,.1f} MB" if total else ""
        self._run.reason = (
            f"its workers open their operators and load the state of checkpoint {self._prepared.number}"
            f"{share}, while the other driver runs the region"
        )

    def _ask(self) -> None:
        self._step = HeirStep.ASKING
        self._run.reason = "the driver that runs the region pauses it"
        self._run.emit(AskForRegion())

    def on_hand_over_answered(self, event: HandOverAnswered, now: float) -> None:
        """Claim the region at once, or fail: the other driver continues then. If a worker was lost meanwhile,
        the lease ends, and the region is asked for again when all have joined.
        """
        run = self._run
        if run.over or self._step is not HeirStep.ASKING:
            return
        self._step = HeirStep.JOINING
        if event.refused is not None:
            run.fail(event.refused, now)
        elif run.roster.all_in(WorkerState.JOINED) and (self._prepared is None or self._all_done):
            self._step = HeirStep.CLAIMING
            run.reason = ""
            self._rounds.open_manifest()

    def problem(self) -> RegionFailedError | None:
        """Return the error of workers that do not get on; None if this is not why the driver waits."""
        if not self.takes_over or self._step is not HeirStep.PREPARING:
            return None
        done = {index for index, one in self._reports.items() if one.done}
        slow = ", ".join(str(one.index) for one in self._run.roster if one.index not in done)
        return RegionFailedError(
            f"worker {slow} did not open its operators and load its state: nothing was reported for"
            f" {self._run.spec.start_timeout_s:g} s",
            remedy="the region runs on under its driver; if `open` of an operator needs longer, raise"
            " start_timeout",
        )

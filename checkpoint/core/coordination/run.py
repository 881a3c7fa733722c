"""The state that the parts of the coordinator share, and its outbox. Pure: no I/O, no decisions.

`coordinator.py` lists the parts. A field that only one part needs belongs to that part, not here.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Final

from checkpoint.core.coordination.recovery_estimate import RecoveryHistory
from checkpoint.core.coordination.vocabulary import Effect, End, NotifyObservers, SendControl
from checkpoint.core.coordination.workers import Roster, Worker
from checkpoint.core.dropped import dropped_rows
from checkpoint.core.links.messages import CopiedAhead, Restore, ToWorker
from checkpoint.core.placement import Placement
from checkpoint.core.records.even_layout import Layout, even_layout
from checkpoint.core.records.manifest import Checkpoint, SavepointNote
from checkpoint.core.region import AutoScaleStatus, RegionSpec, ResetReport
from checkpoint.core.region_events import RegionEvent
from checkpoint.core.region_states import PHASES, STARTED, CoordinatorPhase, PhaseEvent, follow
from checkpoint.core.retention import floors_of, gaps_of, steps_kept_after
from checkpoint.core.timers import Timers
from checkpoint.core.voting import PendingCheckpoint

RESETS_KEPT_MAX: Final = 100


@dataclass(slots=True)
class Round:
    """The way from one RUNNING phase to the next: what began it, and when each part of it was reached.

    Times are monotonic seconds.
    """

    number: int = 0
    """Also rises when a worker is lost that this round launched: its next attempt counts separately."""
    open: bool = True
    """False while the region runs."""
    began: float = 0.0
    reason: str = ""
    """Empty for the first round: a start is not reported as a reset."""
    worker: int = -1
    """The worker whose loss began the round, -1 for none."""
    by_peer: bool = False
    """A worker's report about a peer began the round. If a worker is then lost in it, that loss is the better
    reason."""
    opened_at: float = 0.0
    """When the manifest was held."""
    ordered_at: float = 0.0
    """When all workers were ordered to restore."""


@dataclass(slots=True)
class Scaling:
    """A change of the workers while the region runs: of their number, or of one process (`rescaling.py`)."""

    workers: int
    """The number of workers to come."""
    began: float
    incarnation: int
    """The incarnation in which it was requested. In another one it is given up, unless it switches."""
    user_paused: bool
    """The region was paused by a user, and stays so."""
    replaces: int | None = None
    """The worker that gets another process; None if the number of workers changes."""
    copied: dict[int, CopiedAhead] = field(default_factory=dict)
    """Worker -> its last report. Complete once all of them are done."""
    holds: bool = False
    """The region is ordered to pause for the switch."""
    switches: bool = False
    """The incarnation with the new layout is under way, or begun."""
    opened: bool = False
    """That incarnation has begun."""
    checkpoint: int = 0
    """The checkpoint from which it begins."""


class CoordinatorState:
    """The fields and the outbox of one coordinator.

    Invariants:

    - `incarnation` only rises, and only ManifestOpened sets it.
    - `pending` belongs to the current incarnation.
    - `last_checkpoint` is acknowledged on the quorum, and `kept` are the checkpoints that it retains.
    """

    def __init__(self, spec: RegionSpec) -> None:
        self.spec = spec
        self.phase = CoordinatorPhase.NEW
        self.roster = Roster(spec.first_workers)
        self.timers = Timers()
        self.layout: Layout = even_layout(len(self.roster))
        """The layout of the incarnation. If `last_checkpoint` has another one, the layout changes: the next
        checkpoint is voted before any worker starts."""

        self.incarnation = 0
        self.terms: dict[int, int] = {}
        """Worker -> its term, if it was taken over in this incarnation (`take_overs.py`)."""
        self.epoch_floor = 0
        """The next incarnation must be higher: a worker's directory was found claimed with this epoch."""
        self.store_waiting = ""
        """What the manifest waits for at the store, empty if it does not wait."""

        self.last_checkpoint: Checkpoint | None = None
        self.kept: tuple[Checkpoint, ...] = ()
        """The checkpoints that `last_checkpoint` retains, oldest first."""
        self.pending: PendingCheckpoint | None = None
        """The checkpoint that is requested and not committed."""
        self.appending: Checkpoint | None = None
        """The checkpoint on its way to the manifest: it releases the checkpoints that it does not retain."""
        self.in_doubt: PendingCheckpoint | None = None
        """A checkpoint that was appended in an earlier incarnation and not acknowledged there."""
        self.checkpoint_overdue = False
        """The timer of the periodic checkpoint has expired, and no checkpoint could be requested yet."""
        self.number_wanted = 0
        """A checkpoint of at least this number was requested from outside, 0 for none. A reset keeps it."""
        self.declared = len(self.roster)
        """The number of workers that a program asked for last (`Checkpoint.declared`)."""
        self.checkpoints_committed = 0
        self.final_committed = False

        self.savepoint_changes: dict[str, int] = {}
        """Savepoint changes that no checkpoint has carried yet: name -> checkpoint, 0 to drop it."""
        self.savepoint_notes: dict[str, SavepointNote] = {}
        """Savepoint -> the note of its request."""
        self.restoring: Checkpoint | None = None
        """The checkpoint whose restore is to be recorded: no other is requested (`rewinding.py`)."""
        self.suspected = ""
        """The report of a worker that the last checkpoint seems damaged, empty if there is none."""
        self.disproved = False
        """Such a report was wrong before, so further ones spend reset attempts."""
        self.examining = False
        """The retained checkpoints are being read, before any worker is ordered (`falling_back.py`)."""
        self.fell_back = ""  # `RegionStatus.fell_back`
        self.pause = 0
        """The number of the pause order in force, 0 for none."""
        self.is_paused = False
        """No worker takes input, and everything that was taken is committed."""

        self.scaling: Scaling | None = None
        """The change of the number of workers that is under way."""
        self.autoscale: AutoScaleStatus | None = None
        """What the policy does, None without one."""

        self.placement = Placement()
        self.round = Round()
        self.running_since = inf
        """When all workers began to run in the current round."""
        self.attempts = 0
        """Reset attempts spent since the last committed checkpoint."""
        self.resets: deque[ResetReport] = deque(maxlen=RESETS_KEPT_MAX)
        self.history = RecoveryHistory()

        self.outcome: End | None = None
        self.reason = ""
        self._out: list[Effect] = []

    # --- outbox ---------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        self._out.extend(effects)

    def report(self, event: RegionEvent) -> None:
        """Report an event to observers."""
        self.emit(NotifyObservers(event))

    def send(self, link: int, message: ToWorker) -> None:
        self.emit(SendControl(link, message))

    def send_all(self, message: ToWorker) -> None:
        """Send to every worker that has started, or that is to start now."""
        for worker, link in self.roster.linked():
            if worker.state in STARTED:
                self.send(link, message)

    def send_restore(self, worker: Worker, link: int, *, takes_over: bool = False) -> None:
        """Order a worker to the last checkpoint."""
        terms = [self.terms.get(one.index, self.incarnation) for one in self.roster]
        order = Restore(
            job=self.spec.name,
            incarnation=self.incarnation,
            epoch=terms[worker.index],
            checkpoint=self.last_number,
            worker=worker.index,
            restore=self.last_checkpoint,
            peers=self.roster.peers(),
            layout=self.layout,
            floors=floors_of(self.kept, worker.index),
            gaps=gaps_of(self.kept, worker.index),
            steps_kept_after=steps_kept_after(self.kept),
            terms=tuple(terms) if self.spec.recovery == "local" else (),
            takes_over=takes_over,
        )
        self.send(link, order)

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._out = self._out, []
        return effects

    def move(self, event: PhaseEvent) -> None:
        self.phase = follow(PHASES, self.phase, event)

    # --- derived --------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the outcome is fixed."""
        return self.outcome is not None

    @property
    def next_number(self) -> int:
        """The lowest number of a checkpoint that is requested from now on: one that is under way may lack
        input that was read before now.
        """
        under_way = self.pending is not None or self.appending is not None
        return self.last_number + (2 if under_way else 1)

    @property
    def last_number(self) -> int:
        """The number of the last committed checkpoint, 0 for none."""
        return self.last_checkpoint.number if self.last_checkpoint else 0

    @property
    def last_step(self) -> int:
        """The step of the last committed checkpoint, 0 for none."""
        return self.last_checkpoint.step if self.last_checkpoint else 0

    @property
    def layout_changes(self) -> bool:
        """Whether the next checkpoint is the one that makes `layout` the layout of the region, or the first
        one of a line of history or of a fork.
        """
        return self.last_checkpoint is not None and self.last_checkpoint.begins(self.layout)

    @property
    def held_savepoints(self) -> dict[str, int]:
        """The savepoints that the last committed checkpoint holds: name -> checkpoint."""
        return dict(self.last_checkpoint.savepoints) if self.last_checkpoint else {}

    @property
    def savepoints(self) -> dict[str, int]:
        """The savepoints in force: those of the last checkpoint, as changed by the next one."""
        changed = {**self.held_savepoints, **self.savepoint_changes}
        return {name: checkpoint for name, checkpoint in changed.items() if checkpoint}

    @property
    def notes(self) -> dict[str, SavepointNote]:
        """The notes of the savepoints in force."""
        held = self.last_checkpoint.notes if self.last_checkpoint else {}
        known, names = {**held, **self.savepoint_notes}, self.savepoints
        return {name: note for name, note in known.items() if name in names}

    @property
    def has_new_steps(self) -> bool:
        """Whether any step ended since the last checkpoint. An idle region has no steps."""
        return any(worker.step > self.last_step for worker in self.roster)

    @property
    def all_paused(self) -> bool:
        """Whether all workers have carried out the pause order: none takes input."""
        return self.pause > 0 and all(worker.paused == self.pause for worker in self.roster)

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """Rule -> operator -> rows dropped since the region began, by the newest counters of the workers."""
        return dropped_rows(worker.counters.operators for worker in self.roster)

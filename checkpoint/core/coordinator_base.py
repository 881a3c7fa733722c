"""What all parts of the coordinator share: its fields, its outbox, and what it shows. No decisions.

The parts: `recovery.py` (manifest, workers, rounds), `cutting.py` (cuts, votes, commit, the end of input),
`coordinator.py` (dispatch, timers, stop).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import (
    CancelWorker,
    CloseLink,
    Effect,
    End,
    NotifyObservers,
    SendControl,
)
from checkpoint.core.dropped import dropped_rows
from checkpoint.core.layout import Layout, even_layout
from checkpoint.core.manifest import Cut
from checkpoint.core.messages import Stop, StopKind, ToWorker
from checkpoint.core.region import (
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    ResetReport,
    StateChanged,
)
from checkpoint.core.region_states import (
    LINKED,
    PHASES,
    SHOWN,
    CoordinatorPhase,
    PhaseEvent,
    WorkerState,
    follow,
)
from checkpoint.core.roster import Roster, Worker
from checkpoint.core.timers import Timers
from checkpoint.core.voting import PendingCut
from dos_protocol.errors import DosError

PATIENCE: Final = ("gather", "restore", "drain")
"""Timers that wait for others: while the store has no quorum they stand still."""
_resets_kept: Final = 100


class CoordinatorBase:
    """Fields and outbox.

    Invariants: `incarnation` only rises, and is set by ManifestOpened alone; `pending` is of the present
    incarnation; `last_cut` is acknowledged on the quorum, and `kept` are the cuts that it retains.
    """

    def __init__(self, spec: RegionSpec) -> None:
        self.spec = spec
        self.phase = CoordinatorPhase.NEW
        self.roster = Roster(spec.workers)
        self.timers = Timers()
        self.incarnation = 0
        self.epoch_floor = 0
        """The next incarnation must be above this: a worker's directory was found claimed that high."""
        self.last_cut: Cut | None = None
        self.kept: tuple[Cut, ...] = ()
        self.pending: PendingCut | None = None
        self.in_doubt: PendingCut | None = None
        """A cut that was handed to the manifest of an earlier incarnation and not acknowledged there."""
        self.layout: Layout = even_layout(spec.workers)
        self.cuts_committed = 0
        self.final_committed = False
        self.attempts = 0
        """Reset attempts spent since the last committed cut."""
        self.is_paused = False
        """No worker takes input, and all that was taken is committed."""
        self.superseded = 0
        self.round = 0
        self.round_open = True
        self.round_began = 0.0
        self.round_reason = ""
        """'' for the first round: starting is no reset."""
        self.round_worker = -1
        self.round_by_peer = False
        """The round began with a worker's word about another: who is lost in it is the better reason."""
        self.resets: deque[ResetReport] = deque(maxlen=_resets_kept)
        self.store_waiting = ""
        self.now = 0.0
        """Of the last event."""
        self._waiting_since: float | None = None
        self.outcome: End | None = None
        self.reason = ""
        self._shown = RegionState.STARTING
        self._shown_reason = ""
        self._out: list[Effect] = []

    # --- outbox ---------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        self._out.extend(effects)

    def tell(self, event: RegionEvent) -> None:
        self.emit(NotifyObservers(event))

    def send(self, link: int, message: ToWorker) -> None:
        self.emit(SendControl(link, message))

    def send_all(self, message: ToWorker) -> None:
        """To every linked worker."""
        for _, link in self.roster.linked():
            self.send(link, message)

    def taken(self) -> list[Effect]:
        """The effects so far, once."""
        self._tell_state()
        effects, self._out = self._out, []
        return effects

    def move(self, event: PhaseEvent) -> None:
        self.phase = follow(PHASES, self.phase, event)

    # --- the end --------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the outcome is fixed."""
        return self.outcome is not None

    def decide(
        self, state: RegionState, reason: str, now: float, *, kind: StopKind, error: DosError | None = None
    ) -> None:
        """Fix the outcome and let the workers end. Nothing is ordered or committed after that."""
        if self.over:
            return
        self.move(PhaseEvent.DECIDED)
        self.outcome = End(state, reason, error)
        self.reason = reason
        self.pending = None
        self.timers.clear()
        self.timers.set("grace", now + limits.stop_grace_s)
        self.timers.set("beat", now + limits.heartbeat_s)
        self.send_all(self.stop_message(kind, reason))
        for worker in self.roster:
            worker.launch_at = None
            if worker.state in (WorkerState.LAUNCHED, WorkerState.LOST) and not worker.ended:
                self.emit(CancelWorker(worker.index))
        self.end_if_gone()

    def stop_message(self, kind: StopKind, reason: str) -> Stop:
        return Stop(job=self.spec.name, incarnation=self.incarnation, kind=kind, reason=reason)

    def end_if_gone(self, *, even_if_not: bool = False) -> None:
        """ENDED once every worker's process is over."""
        if self.phase is not CoordinatorPhase.ENDING or self.outcome is None:
            return
        if even_if_not or all(worker.ended for worker in self.roster):
            self.move(PhaseEvent.GONE)
            self.timers.clear()
            for _, link in list(self.roster.linked()):
                self.emit(CloseLink(link))
            self._tell_state()
            self.emit(self.outcome)

    # --- what is shown --------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """What the region waits for at the store, '' when nothing."""
        if self.phase in (
            CoordinatorPhase.NEW,
            CoordinatorPhase.STOPPING,
            CoordinatorPhase.ENDING,
            CoordinatorPhase.ENDED,
        ):
            return ""
        waiting = list(self._waiting_workers())
        if self.store_waiting or not waiting:
            return self.store_waiting
        reason = next((one.counters.waiting_reason for one in waiting if one.counters.waiting_reason), "")
        who = ", ".join(str(worker.index) for worker in waiting)
        return f"worker {who} waits for a quorum of the store" + (f": {reason}" if reason else "")

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """Rule -> operator -> rows that it dropped since the region began, as the workers said last."""
        return dropped_rows(worker.counters.operators for worker in self.roster)

    def note_waiting(self, now: float) -> None:
        """Keep the time since which the region waits for the store."""
        self.now = now
        if not self.waiting_for:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now

    def _waiting_workers(self) -> Iterator[Worker]:
        return (one for one in self.roster if one.state in LINKED and one.counters.waiting_for_store)

    @property
    def shown(self) -> RegionState:
        """The state users see."""
        if self.phase is CoordinatorPhase.ENDED and self.outcome is not None:
            return self.outcome.state
        if self.waiting_for:
            return RegionState.WAITING_FOR_STORE
        if self.phase is CoordinatorPhase.OPENING and self.incarnation:
            return RegionState.RESTORING
        return (
            RegionState.PAUSED
            if self.is_paused and self.phase is CoordinatorPhase.RUNNING
            else SHOWN[self.phase]
        )

    def status(self) -> RegionStatus:
        """A snapshot."""
        return RegionStatus(
            state=self.shown,
            reason=self.waiting_for or self.reason,
            incarnation=self.incarnation,
            last_cut=self.last_cut.cut if self.last_cut else 0,
            last_cut_step=self.last_cut.step if self.last_cut else 0,
            cuts_committed=self.cuts_committed,
            reset_attempts=self.attempts,
            workers=tuple(worker.status() for worker in self.roster),
            resets=tuple(self.resets),
            store_waiting=self.waiting_for,
            waiting_s=0.0 if self._waiting_since is None else self.now - self._waiting_since,
            waiting_bytes=sum(worker.counters.lag_bytes for worker in self._waiting_workers()),
            savepoints=dict(self.last_cut.savepoints) if self.last_cut else {},
            dropped=self.dropped,
        )

    def _tell_state(self) -> None:
        reason = self.waiting_for or self.reason
        if (self.shown, reason) != (self._shown, self._shown_reason):
            self._shown, self._shown_reason = self.shown, reason
            self.tell(StateChanged(self.shown, reason))

"""What the parts of one coordinator stand on: its phase, what is committed, its workers, its outbox, its end.

Pure. Every field has one owner, which alone writes it: `move` the phase, `opened` and `committed` what is
acknowledged, `raise_term` and `forget_terms` the terms, `set_layout` the layout, `decide` the outcome, once.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CancelWorker,
    CloseLink,
    Effect,
    End,
    NotifyObservers,
    SendControl,
)
from checkpoint.core.coordination.workers import STARTED, Roster, Worker, WorkerState
from checkpoint.core.graph_change import Operators
from checkpoint.core.links.messages import CopyAhead, Restore, Stop, StopKind, ToTask, ToWorker
from checkpoint.core.progress import dropped_rows
from checkpoint.core.records.layout import Layout, even_layout
from checkpoint.core.records.manifest import Checkpoint, floors_of, gaps_of, keep, steps_kept_after
from checkpoint.core.region import (
    RegionEvent,
    RegionSpec,
    RegionState,
    change_of,
    check_continues,
    check_has_begun,
    meanwhile_another_graph,
    removed_sinks,
    when_handed_over,
)
from checkpoint.core.state_machines import Timers, follow
from checkpoint.errors import ManifestError, RegionFencedError
from dos_protocol.errors import DosError


class CoordinatorPhase(Enum):
    """The phases of the coordinator. Workers receive orders in RESTORING and later phases, never before."""

    NEW = auto()
    OPENING = auto()
    """The manifest is taken over. Nothing is ordered or published before its start is acknowledged (R8, R11).
    """
    GATHERING = auto()
    """The manifest is held, no order was sent in this incarnation; waiting until all workers have joined."""
    RESTORING = auto()
    """Every worker is ordered to the last checkpoint; waiting until all have restored it."""
    RUNNING = auto()
    STOPPING = auto()
    """A last checkpoint is under way."""
    ENDING = auto()
    """The outcome is fixed; the workers are ending."""
    ENDED = auto()


class PhaseEvent(Enum):
    """The events that change a Phase."""

    BEGUN = auto()
    OPENED = auto()
    """The start of the manifest's segment is acknowledged on the quorum."""
    SUPERSEDED = auto()
    """Another coordinator claimed the manifest before that; another attempt follows after a delay."""
    GATHERED = auto()
    RESTORED = auto()
    RESET = auto()
    STOP = auto()
    DECIDED = auto()
    """The outcome is known: finished, stopped, failed or fenced."""
    GONE = auto()
    """All workers ended, or their time to do so is over."""


PHASES: Final[dict[CoordinatorPhase, dict[PhaseEvent, CoordinatorPhase]]] = {
    CoordinatorPhase.NEW: {
        PhaseEvent.BEGUN: CoordinatorPhase.OPENING,
        PhaseEvent.DECIDED: CoordinatorPhase.ENDING,
    },
    CoordinatorPhase.OPENING: {
        PhaseEvent.OPENED: CoordinatorPhase.GATHERING,
        PhaseEvent.SUPERSEDED: CoordinatorPhase.OPENING,
        PhaseEvent.DECIDED: CoordinatorPhase.ENDING,
    },
    CoordinatorPhase.GATHERING: {
        PhaseEvent.GATHERED: CoordinatorPhase.RESTORING,
        PhaseEvent.RESET: CoordinatorPhase.OPENING,
        PhaseEvent.DECIDED: CoordinatorPhase.ENDING,
    },
    CoordinatorPhase.RESTORING: {
        PhaseEvent.RESTORED: CoordinatorPhase.RUNNING,
        PhaseEvent.RESET: CoordinatorPhase.OPENING,
        PhaseEvent.DECIDED: CoordinatorPhase.ENDING,
    },
    CoordinatorPhase.RUNNING: {
        PhaseEvent.RESET: CoordinatorPhase.OPENING,
        PhaseEvent.STOP: CoordinatorPhase.STOPPING,
        PhaseEvent.DECIDED: CoordinatorPhase.ENDING,
    },
    CoordinatorPhase.STOPPING: {PhaseEvent.DECIDED: CoordinatorPhase.ENDING},
    CoordinatorPhase.ENDING: {PhaseEvent.GONE: CoordinatorPhase.ENDED},
    CoordinatorPhase.ENDED: {},
}
"""An event that a row does not have is a bug."""


class RegionRun:
    """One run of a region. `last_checkpoint` is acknowledged, and `kept` are the checkpoints that it retains,
    oldest first; `incarnation` only rises; after `decide` nothing is ordered.
    """

    def __init__(self, spec: RegionSpec) -> None:
        self.spec = spec
        self.roster = Roster(spec.first_workers)
        self.timers = Timers()
        self.reason = ""
        """Why the region is in its state, in words, for the status; each part that has a reason sets it."""
        self.changing = False
        """Whether a change of the workers is under way; `Changes` sets it. Then none is taken over."""
        self.lent = False
        """Whether the region is paused for another driver, which may have claimed it. `Changes` sets it."""
        self.prepared = 0
        """The checkpoint with which workers opened operators ahead of a hand-over; `Heir` sets it."""
        self.batch_open = False
        """Whether workers feed a batch that is in no record yet; `Batches` sets it, and its record or a reset
        clears it. Then no other checkpoint is requested, and no worker is paused.
        """
        self._phase = CoordinatorPhase.NEW
        self._layout = even_layout(len(self.roster))
        self._declared = len(self.roster)
        self._incarnation = 0
        self._first_incarnation = 0
        self._terms: dict[int, int] = {}
        self._last: Checkpoint | None = None
        self._kept: tuple[Checkpoint, ...] = ()
        self._compared: Operators | None = None
        """The graph with which the program was compared before the claim; None: the store was not read."""
        self._outcome: End | None = None
        self._cancelled = False
        self._out: list[Effect] = []

    # --- outbox ---------------------------------------------------------------------------------------

    def emit(self, *effects: Effect) -> None:
        self._out.extend(effects)

    def report(self, event: RegionEvent) -> None:
        """Report an event to observers."""
        self.emit(NotifyObservers(event))

    def send(self, link: int, message: ToWorker | ToTask) -> None:
        self.emit(SendControl(link, message))

    def send_all(self, message: ToWorker) -> None:
        """Send to every worker that has started, or that is to start now."""
        for worker, link in self.roster.linked():
            if worker.state in STARTED:
                self.send(link, message)

    def send_restore(self, worker: Worker, link: int, *, takes_over: bool = False) -> None:
        """Order a worker to the last checkpoint."""
        terms = [self.term_of(one.index) for one in self.roster]
        order = Restore(
            job=self.spec.name,
            incarnation=self._incarnation,
            epoch=terms[worker.index],
            checkpoint=self.last_number,
            worker=worker.index,
            restore=self._last,
            peers=self.roster.peers(),
            layout=self._layout,
            floors=floors_of(self._kept, worker.index),
            gaps=gaps_of(self._kept, worker.index),
            steps_kept_after=steps_kept_after(self._kept),
            terms=tuple(terms) if self.spec.recovery == "local" else (),
            takes_over=takes_over,
            begins=self._last is not None and self._graph_begins(self._last),
            uids=self.uids,
            # Not once its checkpoint is committed: what was read since would be skipped.
            latest=() if self._last is None else change_of(self.spec, self._last).latest,
            removed={} if self._last is None else removed_sinks(self.spec, self._last),
        )
        self.send(link, order)

    def send_load_ahead(self, worker: Worker, link: int, checkpoint: Checkpoint, layout: Layout) -> None:
        """Order a process that takes no part yet to open its operators and load the state of a checkpoint."""
        order = CopyAhead(
            **self.address,
            checkpoint=checkpoint.number,
            worker=worker.index,
            restore=checkpoint,
            layout=layout,
            creates=False,  # it claims nothing before it is ordered to restore
            opens=True,
            uids=self.uids_after(checkpoint),
        )
        self.send(link, order)

    @property
    def uids(self) -> dict[str, str]:
        """`Checkpoint.uids` of the next record that is voted."""
        return {} if self._last is None else self.uids_after(self._last)

    def uids_after(self, last: Checkpoint) -> dict[str, str]:
        """Return `Checkpoint.uids` of a record that follows this one."""
        # Not of a later number: operators were opened with these uids, and write under them.
        prepared = self.prepared if last.operators != self.spec.operators else 0
        born = msgspec.structs.replace(last, number=prepared or last.number)
        return dict(change_of(self.spec, born).uids)

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._out = self._out, []
        return effects

    # --- phase and incarnation ------------------------------------------------------------------------

    @property
    def phase(self) -> CoordinatorPhase:
        return self._phase

    def move(self, event: PhaseEvent) -> None:
        self._phase = follow(PHASES, self._phase, event)

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def opened(self, incarnation: int, last: Checkpoint | None, kept: tuple[Checkpoint, ...]) -> None:
        """Begin an incarnation: the manifest is held in it, and `last` is what it has to restore."""
        assert incarnation > self._incarnation, "epochs only rise"
        self._first_incarnation = self._first_incarnation or incarnation
        self._incarnation, self._last, self._kept = incarnation, last, kept
        self.lent = False

    @property
    def address(self) -> dict[str, Any]:
        """The address of a message to a worker in this incarnation."""
        return {"job": self.spec.name, "incarnation": self._incarnation, "epoch": self._incarnation}

    @property
    def terms(self) -> Mapping[int, int]:
        """Worker -> its term, if it was taken over in this incarnation."""
        return self._terms

    def term_of(self, worker: int) -> int:
        """Return the epoch of a worker's claim: the incarnation, unless it was taken over."""
        return self._terms.get(worker, self._incarnation)

    def raise_term(self, worker: int, term: int) -> None:
        """Let nothing count that a worker's process of an earlier term votes, claims or sends."""
        self._terms[worker] = term

    def forget_terms(self) -> None:
        """All workers are reset: the next incarnation is above all terms."""
        self._terms.clear()

    @property
    def layout(self) -> Layout:
        """The layout of the incarnation."""
        return self._layout

    @property
    def declared(self) -> int:
        """The number of workers that a program asked for last (`Checkpoint.declared`)."""
        return self._declared

    def set_layout(self, layout: Layout, declared: int) -> None:
        self._layout, self._declared = layout, declared

    # --- whether it can continue ----------------------------------------------------------------------

    def compare_with(self, seen: Checkpoint | None, *, unread: bool) -> None:
        """Raise ManifestError or GraphChangeRefusedError if the program cannot continue from the checkpoint
        that was read before the claim; `unread`: it was not read.
        """
        # Before the claim: a program that does not fit must not fence off the driver that runs the region.
        if seen is not None:
            check_continues(self.spec, when_handed_over(self.spec, seen))
            if self._compared is not None and seen.operators not in (self._compared, self.spec.operators):
                raise meanwhile_another_graph(self.spec, seen)
        if not unread:
            self._compared = {} if seen is None else seen.operators

    def decide_claimed(self, last: Checkpoint | None) -> None:
        """Decide again, under the claim, with the last checkpoint of the chain. Raises as `compare_with`."""
        if last is None:
            check_has_begun(self.spec)
            return
        if self._incarnation and last.incarnation > self._incarnation:
            # Not continued here, even if it fits: two drivers would take the region from each other.
            raise RegionFencedError(
                f"a newer driver has committed checkpoint {last.number} of region {self.spec.name!r}",
                epoch_held=last.incarnation,
            )
        # A manifest that lacks an acknowledged checkpoint has lost it: to continue would silently undo its
        # output.
        if self._last is not None and last.number < self._last.number:
            raise ManifestError(
                f"it is the last in the manifest, but checkpoint {self._last.number} was committed",
                checkpoint=last.number,
            )
        check_continues(self.spec, last)
        # Also if it fits: another program has changed the graph meanwhile, and its change would be undone
        # without a word. Also if it was changed back: what came and went may have the uids of what comes now.
        changed = self._compared is not None and last.operators not in (self._compared, self.spec.operators)
        came = max((note.checkpoint for note in last.replaced.values()), default=0)
        if changed or (came > self.prepared > 0 and last.operators != self.spec.operators):
            raise meanwhile_another_graph(self.spec, last)

    # --- what is committed ----------------------------------------------------------------------------

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        return self._last

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that `last_checkpoint` retains, oldest first."""
        return self._kept

    def committed(self, checkpoint: Checkpoint) -> None:
        """Take an acknowledged record: it is the last checkpoint, and releases what it does not retain."""
        self._last, self._kept = checkpoint, keep(self._kept, checkpoint)

    @property
    def last_number(self) -> int:
        """The number of the last committed checkpoint, 0 for none."""
        return self._last.number if self._last else 0

    @property
    def last_step(self) -> int:
        """The step of the last committed checkpoint, 0 for none."""
        return self._last.step if self._last else 0

    @property
    def layout_changes(self) -> bool:
        """Whether the next checkpoint begins a layout, line, fork or graph: it is voted before Start."""
        last = self._last
        return last is not None and (last.begins(self._layout) or self._graph_begins(last))

    def _graph_begins(self, last: Checkpoint) -> bool:
        # After a hand-over too: by this checkpoint, the former driver knows that it is over. Not if steps may
        # be shown that follow the last one: these are made again first.
        handed = self.spec.hand_over and last.is_quiet and last.incarnation < self._first_incarnation
        return handed or last.begins_graph(self.spec.operators, shows_steps=self.spec.shows_steps)

    @property
    def has_new_steps(self) -> bool:
        """Whether any step ended since the last checkpoint. An idle region has no steps."""
        return any(worker.step > self.last_step for worker in self.roster)

    @property
    def dropped(self) -> dict[str, dict[str, int]]:
        """Rule -> operator -> rows dropped since the region began, by the newest counters of the workers."""
        return dropped_rows(worker.counters.operators for worker in self.roster)

    # --- the end --------------------------------------------------------------------------------------

    @property
    def outcome(self) -> End | None:
        return self._outcome

    @property
    def ended(self) -> bool:
        return self._phase is CoordinatorPhase.ENDED

    @property
    def over(self) -> bool:
        """Whether the outcome is fixed."""
        return self._outcome is not None

    def decide(
        self, state: RegionState, reason: str, now: float, *, kind: StopKind, error: DosError | None = None
    ) -> None:
        """Fix the outcome and order the workers to end. A second outcome is ignored."""
        if self.over:
            return
        self.move(PhaseEvent.DECIDED)
        self._outcome = End(state, reason, error)
        self.reason = reason
        self.timers.clear()
        self.timers.set("grace", now + limits.stop_grace_s)
        self.timers.set("beat", now + limits.heartbeat_s)
        for _, link in self.roster.every_link():
            self.send(link, self.stop_message(kind, reason))
        for worker in self.roster.ever():
            worker.launch_at = None
            # No Stop reaches a worker that has no link: cancel its attempt.
            if worker.state in (WorkerState.LAUNCHED, WorkerState.LOST) and not worker.ended:
                self.emit(CancelWorker(worker.index, worker.attempt))
        self.end_if_all_ended()

    def fail(self, error: DosError, now: float, text: str = "") -> None:
        """End FAILED, with this error; text: the reason, if it is not the whole error."""
        self.decide(RegionState.FAILED, text or str(error), now, kind="failed", error=error)

    def stop_message(self, kind: StopKind, reason: str) -> Stop:
        return Stop(job=self.spec.name, incarnation=self._incarnation, kind=kind, reason=reason)

    def end_if_all_ended(self, *, force: bool = False) -> None:
        """Close the links if every worker's process is over or `force` is set: the region has ENDED."""
        if self._phase is not CoordinatorPhase.ENDING:
            return
        if force or all(worker.ended for worker in self.roster.ever()):
            self.move(PhaseEvent.GONE)
            self.timers.clear()
            for _, link in self.roster.every_link():
                self.emit(CloseLink(link))

    def grace_expired(self, now: float) -> None:
        """Cancel the workers that did not end on their own; at the second call, end without them."""
        if self._cancelled:
            self.end_if_all_ended(force=True)
            return
        self._cancelled = True
        self.timers.set("grace", now + limits.stop_grace_s)
        for worker in self.roster.ever():
            if not worker.ended:
                self.emit(CancelWorker(worker.index, worker.attempt))

    def retire(self, leaving: list[Worker], text: str, now: float) -> None:
        """End processes that the region does not have any more."""
        for worker in leaving:
            link = self.roster.retire(worker)
            if link is not None:
                self.send(link, self.stop_message("stopped", text))
                self.emit(CloseLink(link))
                self.timers.set("leave", now + limits.stop_grace_s)
            elif not worker.ended:
                self.emit(CancelWorker(worker.index, worker.attempt))

    def leave_expired(self, now: float) -> None:
        """Cancel the workers that left and did not end on their own."""
        del now
        for worker in self.roster.ever():
            if not self.roster.has(worker) and not worker.ended:
                self.emit(CancelWorker(worker.index, worker.attempt))

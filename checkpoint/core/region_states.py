"""The state tables of the coordinator: its phases, its workers, and what users are shown. Data, no code
that decides.

protocol.md's diagrams are drawn from these tables; a test compares. `{state: {event: state}}`; an event
that a row does not have is a bug of ours and raises.
"""

from enum import Enum, auto
from typing import Final, TypeVar

from checkpoint.core.region import RegionState


class CoordinatorPhase(Enum):
    """What the coordinator is doing. Orders to workers are given in RESTORING and after, never before."""

    NEW = auto()
    OPENING = auto()
    """Taking over the manifest: until its start is acknowledged nothing is ordered, told or published (R8,
    R11).
    """
    GATHERING = auto()
    """The manifest is held, no order was given in this incarnation: waiting for all workers to join."""
    RESTORING = auto()
    """Every worker is ordered to the last cut; waiting until all stand there."""
    RUNNING = auto()
    STOPPING = auto()
    """A last cut is under way."""
    ENDING = auto()
    """The outcome is fixed; workers are ending."""
    ENDED = auto()


class PhaseEvent(Enum):
    """What moves the coordinator."""

    BEGUN = auto()
    OPENED = auto()
    """The manifest segment's start is acknowledged on the quorum."""
    SUPERSEDED = auto()
    """Another coordinator claimed before that: again, later."""
    GATHERED = auto()
    RESTORED = auto()
    RESET = auto()
    STOP = auto()
    DECIDED = auto()
    """The outcome is known: finished, stopped, failed or fenced."""
    GONE = auto()
    """All workers have ended, or their time to do so is over."""


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


class WorkerState(Enum):
    """One worker, as the coordinator knows it."""

    ABSENT = auto()
    LAUNCHED = auto()
    """The launcher was told to start an attempt; its link is not there yet."""
    JOINED = auto()
    """Linked, and bound to no incarnation."""
    ORDERED = auto()
    """Told to restore, in this incarnation."""
    RESTORED = auto()
    RUNNING = auto()
    FINISHED = auto()
    """The final cut is published; waiting for the others."""
    DONE = auto()
    """It finished and its link is gone: nothing is missing."""
    LOST = auto()
    """Its attempt is over or counts as over; the next one is not launched yet."""


class WorkerEvent(Enum):
    """What moves a worker."""

    LAUNCH = auto()
    JOIN = auto()
    ORDER = auto()
    RESTORED = auto()
    START = auto()
    FINISH = auto()
    LEAVE = auto()
    RELEASE = auto()
    """A reset: what it was told in the incarnation before does not hold any more."""
    LOSE = auto()


_LOSABLE: Final = {WorkerEvent.LOSE: WorkerState.LOST}
_RELEASABLE: Final = {WorkerEvent.RELEASE: WorkerState.JOINED, **_LOSABLE}
WORKERS: Final[dict[WorkerState, dict[WorkerEvent, WorkerState]]] = {
    WorkerState.ABSENT: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
    WorkerState.LAUNCHED: {WorkerEvent.JOIN: WorkerState.JOINED, **_LOSABLE},
    WorkerState.JOINED: {WorkerEvent.ORDER: WorkerState.ORDERED, **_RELEASABLE},
    WorkerState.ORDERED: {WorkerEvent.RESTORED: WorkerState.RESTORED, **_RELEASABLE},
    WorkerState.RESTORED: {WorkerEvent.START: WorkerState.RUNNING, **_RELEASABLE},
    WorkerState.RUNNING: {WorkerEvent.FINISH: WorkerState.FINISHED, **_RELEASABLE},
    WorkerState.FINISHED: {WorkerEvent.LEAVE: WorkerState.DONE, **_RELEASABLE},
    WorkerState.DONE: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
    WorkerState.LOST: {WorkerEvent.LAUNCH: WorkerState.LAUNCHED},
}

LINKED: Final = frozenset(
    {
        WorkerState.JOINED,
        WorkerState.ORDERED,
        WorkerState.RESTORED,
        WorkerState.RUNNING,
        WorkerState.FINISHED,
    }
)
"""States in which a worker has a control link, and must be heard from."""

SHOWN: Final[dict[CoordinatorPhase, RegionState]] = {
    CoordinatorPhase.NEW: RegionState.STARTING,
    CoordinatorPhase.OPENING: RegionState.STARTING,
    CoordinatorPhase.GATHERING: RegionState.WAITING_FOR_WORKERS,
    CoordinatorPhase.RESTORING: RegionState.RESTORING,
    CoordinatorPhase.RUNNING: RegionState.RUNNING,
    CoordinatorPhase.STOPPING: RegionState.STOPPING,
    CoordinatorPhase.ENDING: RegionState.STOPPING,
}
"""What users see in each phase. OPENING after the first time shows RESTORING; WAITING_FOR_STORE covers any
phase from OPENING to RUNNING while the store has no quorum; ENDED shows the outcome.
"""

S = TypeVar("S")
E = TypeVar("E")


def follow(table: dict[S, dict[E, S]], state: S, event: E) -> S:
    """The next state. Raises AssertionError for an event that the row does not have: a bug of ours."""
    row = table[state]
    if event not in row:
        raise AssertionError(f"{event} cannot happen in {state}")
    return row[event]

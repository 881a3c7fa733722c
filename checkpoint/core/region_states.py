"""The state tables of the coordinator: its phases, its workers, and what users are shown. Data, no code
that decides.

protocol.md's diagrams are drawn from these tables; a test compares. `{state: {event: state}}`; an event
that a row does not have is a bug of ours and raises.
"""

from enum import Enum, auto
from typing import Final, TypeVar

from checkpoint.core.region import RegionState


class Phase(Enum):
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


PHASES: Final[dict[Phase, dict[PhaseEvent, Phase]]] = {
    Phase.NEW: {PhaseEvent.BEGUN: Phase.OPENING, PhaseEvent.DECIDED: Phase.ENDING},
    Phase.OPENING: {
        PhaseEvent.OPENED: Phase.GATHERING,
        PhaseEvent.SUPERSEDED: Phase.OPENING,
        PhaseEvent.DECIDED: Phase.ENDING,
    },
    Phase.GATHERING: {
        PhaseEvent.GATHERED: Phase.RESTORING,
        PhaseEvent.RESET: Phase.OPENING,
        PhaseEvent.DECIDED: Phase.ENDING,
    },
    Phase.RESTORING: {
        PhaseEvent.RESTORED: Phase.RUNNING,
        PhaseEvent.RESET: Phase.OPENING,
        PhaseEvent.DECIDED: Phase.ENDING,
    },
    Phase.RUNNING: {
        PhaseEvent.RESET: Phase.OPENING,
        PhaseEvent.STOP: Phase.STOPPING,
        PhaseEvent.DECIDED: Phase.ENDING,
    },
    Phase.STOPPING: {PhaseEvent.DECIDED: Phase.ENDING},
    Phase.ENDING: {PhaseEvent.GONE: Phase.ENDED},
    Phase.ENDED: {},
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

SHOWN: Final[dict[Phase, RegionState]] = {
    Phase.NEW: RegionState.STARTING,
    Phase.OPENING: RegionState.STARTING,
    Phase.GATHERING: RegionState.WAITING_FOR_WORKERS,
    Phase.RESTORING: RegionState.RESTORING,
    Phase.RUNNING: RegionState.RUNNING,
    Phase.STOPPING: RegionState.STOPPING,
    Phase.ENDING: RegionState.STOPPING,
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

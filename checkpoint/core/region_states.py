"""The state tables of the coordinator: its phases, its workers, and the states that users see. Data only.

Each table is `{state: {event: state}}`. An event that a row does not have is a bug and raises. The diagrams
of protocol.md are drawn from these tables; a test compares.
"""

from enum import Enum, auto
from typing import Final, TypeVar

from checkpoint.core.region import RegionState


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


class WorkerState(Enum):
    """The states of one worker, as the coordinator knows it."""

    ABSENT = auto()
    LAUNCHED = auto()
    """The launcher was ordered to start an attempt, which has no link yet."""
    JOINED = auto()
    """It has a link and belongs to no incarnation."""
    ORDERED = auto()
    """Ordered to restore, in this incarnation."""
    RESTORED = auto()
    RUNNING = auto()
    FINISHED = auto()
    """It published the final checkpoint and waits for the others."""
    DONE = auto()
    """It finished and its link is gone: nothing of it is missing."""
    LOST = auto()
    """Its attempt is over, or counts as over; the next one is not launched yet."""


class WorkerEvent(Enum):
    """The events that change a WorkerState."""

    LAUNCH = auto()
    JOIN = auto()
    ORDER = auto()
    RESTORED = auto()
    START = auto()
    FINISH = auto()
    LEAVE = auto()
    RELEASE = auto()
    """A reset: the orders of the incarnation before no longer count."""
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
"""The states in which a worker has a control link and must send heartbeats."""

STARTED: Final = frozenset({WorkerState.RUNNING, WorkerState.FINISHED})
"""The states in which a worker takes orders about checkpoints and pauses."""

VISIBLE_STATES: Final[dict[CoordinatorPhase, RegionState]] = {
    CoordinatorPhase.NEW: RegionState.STARTING,
    CoordinatorPhase.OPENING: RegionState.STARTING,
    CoordinatorPhase.GATHERING: RegionState.WAITING_FOR_WORKERS,
    CoordinatorPhase.RESTORING: RegionState.RESTORING,
    CoordinatorPhase.RUNNING: RegionState.RUNNING,
    CoordinatorPhase.STOPPING: RegionState.STOPPING,
    CoordinatorPhase.ENDING: RegionState.STOPPING,
}
"""The state that users see in each phase, with these exceptions (`status_reports.py`):

- OPENING after the first incarnation: RESTORING.
- Any phase from OPENING to RUNNING while the store has no quorum: WAITING_FOR_STORE.
- RUNNING while no worker takes input: PAUSED.
- ENDED: the outcome.
"""

S = TypeVar("S")
E = TypeVar("E")


def follow(table: dict[S, dict[E, S]], state: S, event: E) -> S:
    """Return the next state. Raises AssertionError for an event that the row does not have: a bug."""
    row = table[state]
    if event not in row:
        raise AssertionError(f"event {event} is not valid in state {state}")
    return row[event]

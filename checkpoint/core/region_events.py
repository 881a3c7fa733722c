"""The events of a region that its observers receive. Plain values."""

from dataclasses import dataclass, field
from typing import TypeAlias

from checkpoint.core.damaged import Examination
from checkpoint.core.region import RegionState, ResetReport, ScaleDecided


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The visible state of the region, or its reason, changed."""

    state: RegionState
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint is in the manifest on the quorum. `seconds`: from the request to the acknowledgement."""

    checkpoint: int
    step: int
    final: bool
    seconds: float
    phases_s: dict[str, float]
    """Seconds of the slowest worker by phase (align, drain, write, sync), and `commit`."""
    worker_phases_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Worker -> seconds by phase."""
    votes_s: dict[int, float] = field(default_factory=dict)
    """Worker -> seconds from the request until its vote arrived."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker was lost. A reset follows unless the region ends."""

    worker: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker's process joined on an authenticated link."""

    worker: int
    attempt: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class SavepointSettled:
    """A request to make or drop a savepoint is settled: a committed checkpoint carries it, or it failed."""

    name: str
    checkpoint: int
    """The checkpoint that the savepoint holds, or held; 0 after an error."""
    error: str = ""
    """Why it failed, empty on success. After an error nothing has changed."""


@dataclass(frozen=True, slots=True)
class RestoreSettled:
    """A request to restore an older checkpoint is settled: its record is committed, or it failed."""

    to: str
    """As it was requested."""
    checkpoint: int = 0
    """The checkpoint that was restored; 0 after an error."""
    step: int = 0
    error: str = ""
    """Why it failed, empty on success. After an error nothing has changed."""


@dataclass(frozen=True, slots=True)
class FellBack:
    """The last checkpoint was damaged, and the region goes back to the newest older one that reads whole."""

    last: int
    checkpoint: int
    last_step: int
    step: int
    """The step of `checkpoint`: everything after it, up to `last_step`, no longer counts."""
    found: Examination
    """What is damaged: chain, worker and position."""
    lost: tuple[str, ...] = ()
    """What was taken back, what stays visible, and the input that is read again, in words."""

    def __str__(self) -> str:
        back = f"fell back from checkpoint {self.last} to checkpoint {self.checkpoint}"
        steps = f"{self.last_step - self.step} steps no longer count (up to step {self.last_step})"
        return f"{back}: {self.found.text}; {steps}; {'; '.join(self.lost)}"


@dataclass(frozen=True, slots=True)
class ScaleSettled:
    """A request for another number of workers is settled: the checkpoint with the new layout is committed, or
    it failed.
    """

    wanted: int | None
    """The number that was requested, None for a request to give a change up."""
    workers: int
    """The number of workers that the region has now."""
    error: str = ""
    """Why it failed, empty on success. After an error the region has the workers that it had before."""
    given_up: bool = False
    """The change was begun and given up."""
    seconds: float = 0.0
    """From the request until it was settled."""
    pause_s: float = 0.0
    """For how long of that no input was taken."""


@dataclass(frozen=True, slots=True)
class ReplaceSettled:
    """A request to replace workers by other processes is settled: all of them are replaced, or it failed."""

    workers: tuple[int, ...]
    """Those to replace, in this order."""
    replaced: tuple[int, ...] = ()
    """Those that are replaced."""
    error: str = ""
    """Why it failed, empty on success. The workers that are not replaced have the process that they had."""
    seconds: float = 0.0
    """From the request until it was settled."""
    pause_s: float = 0.0
    """The longest time in which no input was taken, for one of them."""
    by: str = ""
    """Who asked (`ReplaceWanted`)."""


def replaced_text(event: ReplaceSettled) -> str:
    """Return in words which workers are replaced, and why the others are not."""
    left = [str(worker) for worker in event.workers if worker not in event.replaced]
    done = f"replaced: {', '.join(map(str, event.replaced))}" if event.replaced else "no worker was replaced"
    return f"{done}; kept: {', '.join(left)}: {event.error}" if event.error else done


RegionEvent: TypeAlias = (
    StateChanged
    | CheckpointCommitted
    | WorkerLost
    | WorkerJoined
    | ResetReport
    | SavepointSettled
    | RestoreSettled
    | FellBack
    | ScaleDecided
    | ScaleSettled
    | ReplaceSettled
)

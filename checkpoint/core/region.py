"""What a region is asked to be (`RegionSpec`) and what it says about itself (`RegionStatus` and the events).

Rules of this file: plain values, shared by the core, the shell and those who show them. Nothing here
decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol, TypeAlias

from checkpoint import limits
from checkpoint.core.fingerprint import fingerprint
from checkpoint.core.messages import Counters
from dos_protocol.names import check_name


class RegionState(Enum):
    """The states users see. Transitions: `core/region_states.py`."""

    STARTING = "STARTING"
    """Taking over the manifest for the first time; workers are being launched."""
    WAITING_FOR_WORKERS = "WAITING_FOR_WORKERS"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """No worker takes input, and all that was taken is in the last cut."""
    WAITING_FOR_STORE = "WAITING_FOR_STORE"
    """No quorum: everything waits, nothing is killed, and it goes on by itself."""
    STOPPING = "STOPPING"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    FENCED = "FENCED"

    @property
    def is_end(self) -> bool:
        """Whether nothing follows."""
        return self in _ENDS


_ENDS = {RegionState.FINISHED, RegionState.STOPPED, RegionState.FAILED, RegionState.FENCED}


class Launcher(Protocol):
    """Starts worker processes. Called from the coordinator's trio thread: must not block, must not raise.

    The launcher reports each end with `RegionControl.worker_ended(worker, attempt, error)` exactly once per
    start. A start may come before the end of the cancelled attempt before it is reported; the launcher puts
    them in order.
    """

    def start(self, worker: int, attempt: int) -> None:
        """Start attempt `attempt` of a worker. Attempts of one worker rise and are never reused."""

    def cancel(self, worker: int) -> None:
        """End the worker's present attempt, however it is stuck; no-op when none runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """What to run. `name` gives the directories NAME.coord and NAME.w0000...; times are in seconds."""

    name: str
    workers: int
    store_url: str
    job_key: bytes = field(repr=False)
    """At least 16 random bytes, made by the driver for this run; in no log, URL or conf."""
    token: bytes = field(default=b"", repr=False)
    operators: dict[str, str] = field(default_factory=dict)
    """Operator name -> canonical description: see `core/fingerprint.py`."""
    graph_fingerprint: str = ""
    """'' computes it from `operators`."""
    older_operators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Operator name -> earlier descriptions whose state it takes over, by its migrations."""
    trigger: Literal["periodic", "operator"] = "periodic"
    """What starts a cut: time, or start operators that come to a place where they want one."""
    without_cuts: bool = False
    """Operators outside of any consistent region: no cut is ever asked for, nothing is kept over a reset,
    and its attempts are forgiven after `reset_forgiven_s` of running.
    """
    checkpoint_interval_s: float = limits.checkpoint_interval_s
    drain_timeout_s: float = limits.drain_timeout_s
    reset_timeout_s: float = limits.reset_timeout_s
    start_timeout_s: float = limits.start_timeout_s
    max_consecutive_reset_attempts: int = limits.reset_attempts_max
    suspect_after_s: float = limits.suspect_after_s
    orphan_timeout_s: float = limits.orphan_timeout_s
    listen_host: str = "127.0.0.1"
    port_range: tuple[int, int] | None = None
    """First and last port to try; None: any free one."""
    retain: int = limits.cuts_retained
    """How many cuts stay restorable, at least 2. What only older ones need is deleted."""
    answer_requests: bool = True
    """Whether this driver looks for requests in the store (`dos region`) and answers them."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(worker_directory(self.name, limits.workers_max))
        check_name(requests_directory(self.name))
        if not 0 < self.workers <= limits.workers_max:
            raise ValueError(f"a region has 1 to {limits.workers_max} workers, not {self.workers}")
        for name in ("checkpoint_interval_s", "drain_timeout_s", "reset_timeout_s", "start_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a time above 0, not {getattr(self, name)}")
        if not limits.cuts_retained_min <= self.retain <= limits.cuts_retained_max:
            raise ValueError(
                f"retain is {limits.cuts_retained_min} to {limits.cuts_retained_max} cuts, not {self.retain}"
            )
        if self.trigger not in ("periodic", "operator"):
            raise ValueError(f"trigger is 'periodic' or 'operator', not {self.trigger!r}")
        if self.max_consecutive_reset_attempts < 0:
            raise ValueError(f"{self.max_consecutive_reset_attempts} reset attempts; 0 or more are possible")
        if not self.graph_fingerprint:
            object.__setattr__(self, "graph_fingerprint", fingerprint(self.operators))


def coordinator_directory(region: str) -> str:
    """The directory of the manifest chain."""
    return f"{region}.coord"


def worker_directory(region: str, worker: int) -> str:
    """The directory of a worker's chains `state` and `steps`."""
    return f"{region}.w{worker:04d}"


def region_of_worker(directory: str) -> tuple[str, int] | None:
    """(region, worker) of a worker's directory; None if it is none."""
    region, dot_w, number = directory.rpartition(".w")
    if not region or not dot_w or len(number) < 4 or not (number.isascii() and number.isdigit()):
        return None
    return region, int(number)


def requests_directory(region: str) -> str:
    """Where people and programs put requests to the region (`dos region`)."""
    return f"{region}.requests"


def answers_directory(region: str) -> str:
    """Where its drivers answer them."""
    return f"{region}.answers"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as the coordinator sees it. `state` is a name of `core/region_states.py` WorkerState."""

    index: int
    state: str
    attempt: int = 0
    pid: int = 0
    host: str = ""
    scratch: str = ""
    counters: Counters = field(default_factory=Counters)
    replayed_bytes: int = 0
    restore_seconds: float = 0.0
    error: str = ""
    """Why its last attempt ended, '' if none did."""

    @property
    def step(self) -> int:
        return self.counters.step

    @property
    def rows_in(self) -> int:
        return self.counters.rows_in

    @property
    def lag_bytes(self) -> int:
        return self.counters.lag_bytes


@dataclass(frozen=True, slots=True)
class ResetReport:
    """One reset, complete: from the loss noticed to all workers started again."""

    time: float
    """When it was noticed, on the coordinator's clock (`now` of the events), seconds."""
    worker: int
    """The worker that was lost first, -1 for a reset by hand."""
    reason: str
    seconds: float
    bytes: int
    """Replayed by all workers."""
    incarnation: int
    cut: int
    """The cut restored, 0 for the beginning."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Where the time went, one after the other: `manifest` (until it is held again), `gather` (until all
    workers are there), what the slowest worker did then (`claim`, `open`, `load`), `start` (the rest).
    """


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A snapshot of the region. Consistent in itself."""

    state: RegionState
    reason: str
    incarnation: int
    last_cut: int
    last_cut_step: int
    cuts_committed: int
    """By this driver."""
    reset_attempts: int
    """Consecutive ones, forgiven by a committed cut."""
    workers: tuple[WorkerStatus, ...]
    resets: tuple[ResetReport, ...]
    store_waiting: str = ""
    """What the region waits for at the store, '' when nothing: which members are away, and why."""
    waiting_s: float = 0.0
    """For how long it has been waiting for the store, as of the last event."""
    waiting_bytes: int = 0
    """Appended by workers that wait, and not yet synced on a quorum."""
    savepoints: Mapping[str, int] = field(default_factory=dict)
    """Name -> the cut that stays restorable by it, as the last cut has them."""
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Rule ("late") -> operator -> rows that it dropped since the region began."""

    @property
    def step(self) -> int:
        """The highest step any worker has ended."""
        return max((worker.step for worker in self.workers), default=0)

    @property
    def rows_in(self) -> int:
        return sum(worker.rows_in for worker in self.workers)


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The region's state, for observers."""

    state: RegionState
    reason: str


@dataclass(frozen=True, slots=True)
class CutCommitted:
    """A cut is in the manifest on the quorum. `seconds`: from the request to the acknowledgement."""

    cut: int
    step: int
    final: bool
    seconds: float
    phases_s: dict[str, float]
    """Of the slowest worker, by phase (align, drain, write, sync), and `commit`."""
    worker_phases_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Of each worker, by phase."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker was lost; a reset follows unless the region ends."""

    worker: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker's process is there and proved itself."""

    worker: int
    attempt: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class SavepointSettled:
    """A wish to pin a cut, or to let a pin go, came to its end: a committed cut carries it. `cut`: the cut
    that the pin holds, or held; `error`: '' or why it could not be, and then nothing has changed.
    """

    name: str
    cut: int
    error: str = ""


RegionEvent: TypeAlias = (
    StateChanged | CutCommitted | WorkerLost | WorkerJoined | ResetReport | SavepointSettled
)

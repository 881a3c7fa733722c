"""A region's specification (`RegionSpec`), its status (`RegionStatus`) and its directories.

Plain values, shared by the core, the shell and the user interfaces. Nothing here decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol, TypeAlias

from checkpoint import limits
from checkpoint.core.coordination.autoscaling import AutoScale
from checkpoint.core.coordination.recovery_estimate import RecoveryEstimate
from checkpoint.core.damaged import OnDamaged
from checkpoint.core.links.messages import Counters
from checkpoint.core.records.even_layout import workers_text
from checkpoint.core.records.graphs import fingerprint
from dos_protocol.names import check_name

Recovery: TypeAlias = Literal["global", "local"]


class RegionState(Enum):
    """The states that users see. Transitions: `core/region_states.py`."""

    STARTING = "STARTING"
    """The manifest is taken over for the first time; workers are launched."""
    WAITING_FOR_WORKERS = "WAITING_FOR_WORKERS"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    """No worker takes input, and everything that was taken is in the last checkpoint."""
    WAITING_FOR_STORE = "WAITING_FOR_STORE"
    """The store has no quorum: everything waits and continues automatically; nothing is killed."""
    STOPPING = "STOPPING"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    FENCED = "FENCED"

    @property
    def is_end(self) -> bool:
        """Whether no other state follows."""
        return self in _ENDS


_ENDS = {RegionState.FINISHED, RegionState.STOPPED, RegionState.FAILED, RegionState.FENCED}


class Launcher(Protocol):
    """Starts worker processes. Called on the coordinator's trio thread: it must not block and must not raise.

    The launcher reports each end with `RegionControl.worker_ended(worker, attempt, error)`, exactly once per
    start. A start may be requested before the end of the cancelled attempt is reported; the launcher keeps
    their order.
    """

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Start attempt `attempt` of a worker. The numbers of one worker rise and are never reused.

        beside: the attempt that runs continues to run; one of the two will be cancelled, or ends.
        """

    def cancel(self, worker: int, attempt: int) -> None:
        """End an attempt of a worker, even if it hangs. Does nothing if it does not run."""

    @property
    def standbys(self) -> int:
        """How many processes wait to become a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """The specification of a region. Times are in seconds."""

    name: str
    workers: int | None
    """None: as many as its last checkpoint has, `first_workers` without one."""
    autoscale: AutoScale | None = None
    """How the number of workers follows the load; None: it changes only on request."""
    application: str = ""
    """The application of which this is a region, and the names of all its regions, if it has several."""
    parts: tuple[str, ...] = ()
    store_url: str
    job_key: bytes = field(repr=False)
    """At least 16 random bytes, made by the driver for this run; never in a log, URL or configuration."""
    token: bytes = field(default=b"", repr=False)
    operators: dict[str, str] = field(default_factory=dict)
    """Operator name -> canonical description (`core/records/graphs.py`)."""
    graph_fingerprint: str = ""
    """Empty: computed from `operators`."""
    older_operators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Operator name -> earlier descriptions whose state it takes over through its migrations."""
    trigger: Literal["periodic", "operator"] = "periodic"
    """What triggers a checkpoint: time, or start operators that request one."""
    without_checkpoints: bool = False
    """Operators outside of any consistent region: no checkpoints, no state is kept over a reset, and reset
    attempts are forgiven after `reset_forgiven_s` of running.
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
    """The first and last port to try; None: any free port."""
    retain: int = limits.checkpoints_retained
    """How many checkpoints stay restorable, at least 2. Data that only older ones need is deleted."""
    keeps_workers: str = ""
    """Why the number of workers cannot change, with the operator and the remedy; empty if it can."""
    recovery: Recovery = "global"
    """What follows the loss of a worker: "global" resets all workers, "local" only replaces the lost one."""
    resets_because: str = ""
    """Why the loss of a worker resets all workers even with local recovery; empty if it need not."""
    shows_steps: bool = False
    """Whether output of a step may be visible for good before a checkpoint covers it."""
    irrevocable: Mapping[str, str] = field(default_factory=dict)
    """Sink -> why rows that it has shown stay when the region is restored to an older checkpoint."""
    unchecked_places: Mapping[str, str] = field(default_factory=dict)
    """Sink -> why it is not noticed that another region writes to the same place."""
    restore: str = ""
    """An older checkpoint to begin with, as `lines.find_target` names it; "": the last one."""
    allow_republish: bool = False
    """Restore it although rows come again that were shown."""
    on_damaged: OnDamaged = "fail"
    """What follows if the last checkpoint is damaged (`falling_back.py`)."""
    hand_over: bool = False
    """Whether the driver that runs the region continues until all workers of this one have joined."""
    metrics: str = ""
    """The address at which the driver serves the figures of the region, empty if it does not."""
    answer_requests: bool = True
    """Whether this driver reads requests (`dos region`) from the store and answers them."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(worker_directory(self.name, limits.workers_max))
        check_name(requests_directory(self.name))
        if self.workers is not None and not 0 < self.workers <= limits.workers_max:
            raise ValueError(f"a region has 1 to {limits.workers_max} workers, got {self.workers}")
        for name in ("checkpoint_interval_s", "drain_timeout_s", "reset_timeout_s", "start_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and above 0 s, got {getattr(self, name)}")
        if not limits.checkpoints_retained_min <= self.retain <= limits.checkpoints_retained_max:
            raise ValueError(
                f"retain must be {limits.checkpoints_retained_min} to {limits.checkpoints_retained_max}"
                f" checkpoints,"
                f" got {self.retain}"
            )
        if self.restore and self.hand_over:
            raise ValueError("restore and hand_over exclude each other: a restored region does not continue")
        _check_choice("on_damaged", self.on_damaged, ("fail", "previous"))
        _check_choice("recovery", self.recovery, ("global", "local"))
        if self.recovery == "local" and self.without_checkpoints:
            raise ValueError(
                f"{self.name}: local recovery needs checkpoints, and these operators are outside of any"
                " consistent region: annotate them as consistent(...), or run them with recovery='global'"
            )
        _check_choice("trigger", self.trigger, ("periodic", "operator"))
        if self.max_consecutive_reset_attempts < 0:
            attempts = self.max_consecutive_reset_attempts
            raise ValueError(f"max_consecutive_reset_attempts must be 0 or more, got {attempts}")
        if self.autoscale is not None:
            self.autoscale.check(
                self.workers, self.keeps_workers, without_checkpoints=self.without_checkpoints
            )
        if not self.graph_fingerprint:
            object.__setattr__(self, "graph_fingerprint", fingerprint(self.operators))

    @property
    def first_workers(self) -> int:
        """The number of workers without a checkpoint."""
        if self.workers is not None or self.autoscale is None:
            return self.workers or limits.workers_default
        return self.autoscale.limited(limits.workers_default)


def _check_choice(name: str, value: str, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}, got {value!r}")


def coordinator_directory(region: str) -> str:
    """Return the directory of the manifest chain."""
    return f"{region}.coord"


def worker_directory(region: str, worker: int) -> str:
    """Return the directory of a worker's chains `state` and `steps`."""
    return f"{region}.w{worker:04d}"


def region_of_worker(directory: str) -> tuple[str, int] | None:
    """Return (region, worker) of a worker's directory, None for any other name."""
    region, dot_w, number = directory.rpartition(".w")
    if not region or not dot_w or len(number) < 4 or not (number.isascii() and number.isdigit()):
        return None
    return region, int(number)


def requests_directory(region: str) -> str:
    """Return the directory into which users write requests to the region (`dos region`)."""
    return f"{region}.requests"


def answers_directory(region: str) -> str:
    """Return the directory into which the region's drivers write the answers."""
    return f"{region}.answers"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of one worker. `state` is the name of a WorkerState (`core/region_states.py`)."""

    index: int
    state: str
    attempt: int = 0
    pid: int = 0
    host: str = ""
    scratch: str = ""
    version: str = ""
    """Of the package that it runs."""
    hosted_by: int | None = None
    """Local recovery: the worker in whose process it runs for a while; None: it has its own process."""
    metrics: str = ""
    """The address at which it serves its figures; empty if it does not."""
    counters: Counters = field(default_factory=Counters)
    replayed_bytes: int = 0
    restore_seconds: float = 0.0
    error: str = ""
    """Why its last attempt ended, empty if none did."""
    operator: str = ""
    """The operator that runs, empty if none is known to."""
    operator_s: float = 0.0
    """For how many seconds it has run, as the companion of the worker reported it last."""
    waits: str = ""
    """What that operator waits for outside of the region, such as the lock of a file; empty for nothing."""

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
    """A completed reset: from the detection of a loss to the start of all workers."""

    time: float
    """When the loss was detected, in seconds of the coordinator's clock (`now` of the events)."""
    worker: int
    """The worker that was lost first, -1 for a reset by hand."""
    reason: str
    seconds: float
    bytes: int
    """Bytes replayed by all workers."""
    incarnation: int
    checkpoint: int
    """The restored checkpoint, 0 for the beginning."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase, in order: `manifest` (until it is held again), `gather` (until all workers have
    joined), the phases of the slowest worker (`claim`, `open`, `load`), `start` (the rest).
    """
    term: int = 0
    """Local recovery: the term in which `worker` was taken over while the others continued. 0: all were
    reset.
    """


ScalingPhase: TypeAlias = Literal["launching workers", "copying state", "pausing", "moving state"]


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """A change of the workers that is under way: of their number, or of the process of one."""

    workers: int
    """The number of workers to come."""
    phase: ScalingPhase
    seconds: float
    """Since it was requested, as of the last event."""
    copied_bytes: int = 0
    total_bytes: int = 0
    """Of the state that is copied while the region runs."""
    pause_s: float | None = None
    """For how long about no input will be taken; None if that is not known."""
    replaces: int | None = None
    """The worker that gets another process; None if the number of workers changes."""


@dataclass(frozen=True, slots=True)
class ScaleDecided:
    """The policy of `RegionSpec.autoscale` requests another number of workers; a ScaleSettled follows.

    If `wanted` is `present`, it does not, although the load calls for it.
    """

    present: int
    wanted: int
    reason: str

    def __str__(self) -> str:
        if self.wanted == self.present:
            return f"autoscale keeps {workers_text(self.present)}: {self.reason}"
        return f"autoscale from {self.present} to {workers_text(self.wanted)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class UnderWayStatus:
    """A checkpoint that is requested and not committed."""

    checkpoint: int
    seconds: float
    """Since it was requested, as of the last event."""
    waits_for: Mapping[int, str] = field(default_factory=dict)
    """Worker that has not voted -> why, as far as the driver knows. Empty: the manifest is being written."""


@dataclass(frozen=True, slots=True)
class AutoScaleStatus:
    """What the policy of `RegionSpec.autoscale` does."""

    minimum: int
    maximum: int
    wanted: int | None = None
    """The number of workers for the load that was measured last, None before."""
    reason: str = "the region has not run yet"
    """What it does now, and why."""
    next_s: float = 0.0
    """The seconds until it may act next, as of its last sample."""
    decided: ScaleDecided | None = None
    """Its last decision, None before the first one."""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A consistent snapshot of the region's status. `str` is one short line of it, `repr` has all."""

    state: RegionState
    reason: str
    incarnation: int
    last_checkpoint: int
    last_checkpoint_step: int
    checkpoints_committed: int
    """Checkpoints committed by this driver."""
    reset_attempts: int
    """Consecutive attempts since the last committed checkpoint."""
    workers: tuple[WorkerStatus, ...]
    resets: tuple[ResetReport, ...]
    store_waiting: str = ""
    """What the region waits for at the store (which members are unavailable, and why), empty if nothing."""
    waiting_s: float = 0.0
    """How long the region has waited for the store, as of the last event."""
    waiting_bytes: int = 0
    """Bytes appended by waiting workers and not yet synced on a quorum."""
    savepoints: Mapping[str, int] = field(default_factory=dict)
    """The savepoints of the last checkpoint: name -> the checkpoint that stays restorable."""
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Rule ("late", "null", "ahead") -> operator -> rows that it dropped since the region began."""
    scaling: ScalingStatus | None = None
    """The change of the number of workers that is under way, None if there is none."""
    autoscale: AutoScaleStatus | None = None
    """What the policy does, None if the number of workers changes only on request."""
    recovery: RecoveryEstimate | None = None
    """How long a recovery would take now; None before the workers have started, and at the end."""
    standbys: int = 0
    """Processes that wait to become a worker."""
    under_way: UnderWayStatus | None = None
    """The checkpoint that is under way, None if there is none."""
    metrics: str = ""
    """The address at which the driver serves the figures of the region; empty if it does not."""
    fell_back: str = ""
    """Why this driver went back to an older checkpoint, and what was lost; empty if it did not."""
    access_problem: str = ""
    """Members that the driver cannot use because of its token or of a certificate, and why; empty if none."""

    def __str__(self) -> str:
        text = f"{self.state.value}, {workers_text(len(self.workers))}, checkpoint {self.last_checkpoint}"
        waits = {} if self.under_way is None else self.under_way.waits_for
        votes = [f"the next checkpoint waits for worker {worker}: {why}" for worker, why in waits.items()]
        found = (text, self.reason, self.store_waiting, self.access_problem, *votes)
        return "; ".join(dict.fromkeys(filter(None, found)))

    @property
    def step(self) -> int:
        """The highest step that any worker ended."""
        return max((worker.step for worker in self.workers), default=0)

    @property
    def rows_in(self) -> int:
        return sum(worker.rows_in for worker in self.workers)

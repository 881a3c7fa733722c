"""A region's specification (`RegionSpec`), its status (`RegionStatus`), the events that its observers
receive, and its directories. Plain values; nothing here decides anything but whether a region can continue.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from html import escape
from math import isfinite
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec.structs import replace

from checkpoint import limits
from checkpoint.core.graph_change import (
    NO_OPTIONS,
    GraphChange,
    GraphOptions,
    OperatorNote,
    compare,
    fingerprint,
)
from checkpoint.core.links.messages import Counters
from checkpoint.core.records.layout import workers_text
from checkpoint.core.records.lines import check_places, graph_change, refuse_replaced
from checkpoint.core.records.manifest import Checkpoint, Examination, OnDamaged, check_checkpoint
from checkpoint.errors import GraphChangeRefusedError, ManifestError
from dos_protocol.names import check_name

Recovery: TypeAlias = Literal["global", "local"]


class RegionState(Enum):
    """The states that users see. Transitions: PHASES in `coordination/run.py`."""

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

    It reports each end with `RegionControl.worker_ended(worker, attempt, error)`, once per start. A start may
    be requested before the end of the cancelled attempt is reported.
    """

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Start an attempt; a worker's numbers rise. beside: the attempt that runs continues to run."""

    def cancel(self, worker: int, attempt: int) -> None:
        """End an attempt of a worker, even if it hangs. Does nothing if it does not run."""

    @property
    def standbys(self) -> int:
        """How many processes wait to become a worker."""


_SAMPLES: Final = 30
"""Samples of a window, unless it is shorter than as many seconds."""
_WINDOW_S_MIN: Final = 3.0
_WINDOW_S_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class AutoScale:
    """The number of workers follows the load, between `minimum` and `maximum`. All times are seconds.

        dos.run(spark, graph, store="dos://h1,h2,h3", autoscale=dos.AutoScale(2, 8))

    busy: the share of time, above 0 and below 1, in which the busiest worker should be busy. catch_up: in
    which time a backlog should be read. window: over which the load is measured. cool_down: the shortest time
    between two changes, and for how long the load must be lower before workers leave.

    Raises ValueError for a setting out of range.
    """

    minimum: int
    maximum: int
    busy: float = 0.7
    catch_up: float = 120.0
    window: float = 30.0
    cool_down: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.minimum <= self.maximum <= limits.workers_max:
            raise ValueError(
                f"autoscale needs 1 <= minimum <= maximum <= {limits.workers_max} workers, got"
                f" {self.minimum} and {self.maximum}"
            )
        if not 0 < self.busy < 1:
            raise ValueError(f"busy must be a share above 0 and below 1, got {self.busy}")
        if not _WINDOW_S_MIN <= self.window <= _WINDOW_S_MAX:
            raise ValueError(
                f"window must be {_WINDOW_S_MIN:g} to {_WINDOW_S_MAX:g} seconds, got {self.window}"
            )
        for name in ("catch_up", "cool_down"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a time above 0 in seconds, got {getattr(self, name)}")

    def limited(self, workers: int) -> int:
        """Return the number of workers within the limits that is nearest to this one."""
        return max(self.minimum, min(self.maximum, workers))

    def check(self, workers: int | None, keeps_workers: str, *, without_checkpoints: bool) -> None:
        """Raise ValueError if a region cannot be scaled. The arguments: those fields of its `RegionSpec`."""
        if workers is not None and workers != self.limited(workers):
            raise ValueError(
                f"workers={workers} is outside of autoscale, {self.minimum} to {self.maximum} workers; pass a"
                " number between them, or leave it out"
            )
        if without_checkpoints:
            raise ValueError(
                "autoscale needs checkpoints, and operators outside of any consistent region have none;"
                " annotate them as consistent(...), or leave autoscale out"
            )
        if keeps_workers:
            raise ValueError(f"autoscale needs a graph whose number of workers can change: {keeps_workers}")

    @property
    def sample_s(self) -> float:
        """The time between two samples; at least one second, because heartbeats are not more frequent."""
        return max(limits.heartbeat_s, self.window / _SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """The specification of a region. Times are in seconds."""

    name: str
    workers: int | None
    """None: as many as its last checkpoint has, `first_workers` without one."""
    autoscale: AutoScale | None = None
    """How the number of workers follows the load; None: it changes only on request."""
    application: str = ""
    """The application of which this is a region."""
    beside: "tuple[RegionSpec, ...]" = ()
    """The other regions of the application. All are compared before any is claimed."""
    store_url: str
    job_key: bytes = field(repr=False)
    """At least 16 random bytes, made by the driver for this run; never in a log, URL or configuration."""
    token: bytes = field(default=b"", repr=False)
    operators: dict[str, OperatorNote] = field(default_factory=dict)
    """The graph."""
    endless: Mapping[str, str] = field(default_factory=dict)
    """Source -> why it cannot begin at its end."""
    graph_options: GraphOptions = NO_OPTIONS
    """What is permitted if the graph differs from that of the last checkpoint."""
    keeps_graph: str = ""
    """Why its graph cannot change, empty if it can."""
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
    keep_before_s: float = limits.upgrade_kept_s
    """How long the checkpoint before a change of the graph stays restorable."""
    retain: int = limits.checkpoints_retained
    """How many checkpoints stay restorable, at least 2. Data that only older ones need is deleted."""
    keeps_workers: str = ""
    """Why the number of workers cannot change, with the operator and the remedy; empty if it can."""
    recovery: Recovery = "global"
    """What follows the loss of a worker: "global" resets all workers, "local" only replaces the lost one."""
    resets_because: str = ""
    """Why the loss of a worker resets all workers even with local recovery; empty if it need not."""
    warm_standby: bool = False
    """Whether another process of each worker loads its state, and takes its place when it is lost."""
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
    """What follows if the last checkpoint is damaged (`FallingBack`)."""
    hand_over: bool = False
    """Whether the driver that runs the region continues until all workers of this one have joined, and lends
    it then.
    """
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
        if not self.keep_before_s > 0:
            raise ValueError(f"keep_before must be above 0 s, got {self.keep_before_s}")
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
        if self.warm_standby and self.without_checkpoints:
            raise ValueError(
                f"{self.name}: warm_standby needs checkpoints, and these operators are outside of any"
                " consistent region: annotate them as consistent(...), or leave warm_standby out"
            )
        if self.max_consecutive_reset_attempts < 0:
            attempts = self.max_consecutive_reset_attempts
            raise ValueError(f"max_consecutive_reset_attempts must be 0 or more, got {attempts}")
        if self.autoscale is not None:
            self.autoscale.check(
                self.workers, self.keeps_workers, without_checkpoints=self.without_checkpoints
            )

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
    """The status of one worker. `state` is the name of a WorkerState (`coordination/workers.py`)."""

    index: int = field(metadata={"json": "worker"})
    state: str
    attempt: int = 0
    pid: int = 0
    host: str = ""
    scratch: str = field(metadata={"json": None}, default="")
    version: str = ""
    """Of the package that it runs."""
    hosted_by: int | None = None
    """Local recovery: the worker in whose process it runs for a while; None: it has its own process."""
    warm_standby: int | None = field(metadata={"json": "warmStandby"}, default=None)
    """The checkpoint whose state its warm stand-by has loaded; None: none has state."""
    metrics: str = ""
    """The address at which it serves its figures; empty if it does not."""
    counters: Counters = field(metadata={"json": None}, default_factory=Counters)
    replayed_bytes: int = 0
    restore_seconds: float = 0.0
    error: str = ""
    """Why its last attempt ended, empty if none did."""
    operator: str = ""
    """The operator that runs, empty if none is known to."""
    operator_s: float = 0.0
    """For how many seconds it has run, as the companion of the worker reported it last."""
    waits: str = field(metadata={"json": "operatorWaits"}, default="")
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

    def shown(self, *, region_is_done: bool) -> tuple[int | str, ...]:
        """Return the cells of its row in a notebook. region_is_done: all workers were ended on purpose."""
        error = "" if region_is_done else self.error.strip().rpartition("\n")[2]
        state = "ended" if region_is_done else self.state
        rows = self.rows_in, self.counters.rows_out
        return (self.index, state, self.host, str(self.pid or ""), self.step, *rows, error)


@dataclass(frozen=True, slots=True)
class ResetReport:
    """A completed reset: from the detection of a loss to the start of all workers."""

    time: float = field(metadata={"json": None})
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
    phases_s: Mapping[str, float] = field(metadata={"json": "phases"}, default_factory=dict)
    """Seconds of each phase, in order: `manifest` (until it is held again), `gather` (until all workers have
    joined), the phases of the slowest worker (`claim`, `open`, `load`), `start` (the rest).
    """
    term: int = 0
    """Local recovery: the term in which `worker` was taken over while the others continued. 0: all were
    reset.
    """


ScalingPhase: TypeAlias = Literal[
    "launching workers", "copying state", "pausing", "moving state", "handing over"
]


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
    hands_to: str | None = None
    """Whose driver takes the region over; None if no worker changes driver."""


@dataclass(frozen=True, slots=True)
class ScaleDecided:
    """The policy of `RegionSpec.autoscale` requests `wanted` workers, unless that is `present`."""

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
    waits_for: Mapping[int, str] = field(metadata={"json": None}, default_factory=dict)
    """Worker that has not voted -> why, as far as the driver knows. Empty: the manifest is being written."""


@dataclass(frozen=True, slots=True)
class DrivingQuery:
    """The Spark query that drives the region, and its last batch."""

    query: str
    last_batch: int | None = None
    """None: no batch is in a checkpoint."""
    planned_us: int = field(metadata={"json": "plannedMicroseconds"}, default=0)
    """When Spark planned that batch, in microseconds since 1970."""
    rows: int = 0
    waits: str = ""
    """What the batch that is under way waits for; empty if none is."""


@dataclass(frozen=True, slots=True)
class AutoScaleStatus:
    """The state of the policy of `RegionSpec.autoscale`."""

    minimum: int
    maximum: int
    wanted: int | None = None
    """The number of workers for the load that was measured last, None before."""
    reason: str = "the region has not run yet"
    """What it does now, and why."""
    next_s: float = 0.0
    """The seconds until it may act next, as of its last sample."""
    decided: ScaleDecided | None = field(metadata={"json": "lastDecision"}, default=None)
    """Its last decision, None before the first one."""


@dataclass(frozen=True, slots=True)
class RecoveryEstimate:
    """The estimate of a recovery. Times are in seconds; `seconds` is their sum."""

    launch_s: float
    claim_s: float
    state_s: float
    replay_s: float
    state_bytes: int
    """Bytes that the worker with the largest state has to read."""
    steps: int = field(metadata={"json": "replaySteps"})
    """Steps that are replayed."""
    rounds: int
    """How many measured rounds, of the last five, the estimate is based on."""

    @property
    def seconds(self) -> float:
        return self.launch_s + self.claim_s + self.state_s + self.replay_s


_WORKERS_SHOWN_MAX: Final = 20
_BADGES: Final = {
    RegionState.RUNNING: "#176b34",
    RegionState.FINISHED: "#176b34",
    RegionState.STOPPED: "#5a6372",
    RegionState.FAILED: "#b3261e",
    RegionState.FENCED: "#b3261e",
}
"""The color of a state in a notebook; of all others that of a warning."""


def _cell(value: int | str) -> str:
    """Return a cell of a table in a notebook, whose style would align all to the right."""
    if isinstance(value, int):
        return f"<td>{value:,}</td>"
    return f'<td style="text-align: left">{escape(value)}</td>'


@dataclass(frozen=True, slots=True, repr=False)
class RegionStatus:
    """A consistent snapshot of the region's status. `str` and `repr` are one short line of it; a notebook
    shows a table of the workers; `RegionHandle.report` has all.
    """

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
    dropped: Mapping[str, Mapping[str, int]] = field(metadata={"json": "rowsDropped"}, default_factory=dict)
    """Rule ("late", "null", "ahead") -> operator -> rows that it dropped since the region began."""
    scaling: ScalingStatus | None = None
    """The change of the number of workers that is under way, None if there is none."""
    autoscale: AutoScaleStatus | None = None
    """What the policy does, None if the number of workers changes only on request."""
    recovery: RecoveryEstimate | None = None
    """How long a recovery would take now; None before the workers have started, and at the end."""
    standbys: int = 0
    under_way: UnderWayStatus | None = None
    """The checkpoint that is under way, None if there is none."""
    query: DrivingQuery | None = None
    """The query that drives the region, None if none does."""
    metrics: str = ""
    """The address at which the driver serves the figures of the region; empty if it does not."""
    fell_back: str = ""
    """Why this driver went back to an older checkpoint, and what was lost; empty if it did not."""
    access_problem: str = ""
    """Members that the driver cannot use because of its token or of a certificate, and why; empty if none."""

    def __str__(self) -> str:
        last = f"checkpoint {self.last_checkpoint}" if self.last_checkpoint else "no checkpoint yet"
        text = f"{self.state.value}, {workers_text(len(self.workers))}, {last}"
        reason = "" if self.reason == self.state.value.lower() else self.reason
        votes = ""
        if self.under_way is not None and (waits := self.under_way.waits_for):
            first, more = min(waits), f", and for {len(waits) - 1} more" if len(waits) > 1 else ""
            votes = f"the next checkpoint waits for worker {first}: {waits[first]}{more}"
        found = (text, reason, self.store_waiting, self.access_problem, votes)
        return "; ".join(dict.fromkeys(filter(None, found)))

    def __repr__(self) -> str:
        return f"<RegionStatus {self}>"

    def _repr_html_(self) -> str:
        state, _, rest = str(self).partition(", ")
        badge = f"background: {_BADGES.get(self.state, '#8a5300')}; color: white; padding: 1px 8px"
        head = f'<span style="{badge}; border-radius: 8px">{state}</span> {escape(rest)}'
        done = self.state in (RegionState.STOPPED, RegionState.FINISHED)
        names = ("worker", "state", "host", "pid", "step", "rows in", "rows out", "last error")
        rows = "".join(
            f"<tr>{''.join(map(_cell, one.shown(region_is_done=done)))}</tr>"
            for one in self.workers[:_WORKERS_SHOWN_MAX]
        )
        more = len(self.workers) - _WORKERS_SHOWN_MAX
        note = f"<div>and {workers_text(more)} more</div>" if more > 0 else ""
        header = "".join(f'<th style="text-align: left">{name}</th>' for name in names)
        return f'{head}<table style="margin: 6px 0"><tr>{header}</tr>{rows}</table>{note}'

    @property
    def step(self) -> int:
        """The highest step that any worker ended."""
        return max((worker.step for worker in self.workers), default=0)

    @property
    def rows_in(self) -> int:
        return sum(worker.rows_in for worker in self.workers)


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
    batch: int | None = None
    """The number of the micro-batch that it commits, in a region that a Spark query drives."""


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


Key: TypeAlias = tuple[str, str | int | None]
"""What an outcome is about: the verb, and the name, number or requester that distinguishes requests."""


@dataclass(frozen=True, slots=True)
class SavepointSettled:
    """A request to make or drop a savepoint is settled: a committed checkpoint carries it, or it failed."""

    name: str
    checkpoint: int
    """The checkpoint that the savepoint holds, or held; 0 after an error."""
    error: str = ""
    """Why it failed, empty on success. After an error nothing has changed."""

    def outcomes(self) -> dict[Key, str]:
        return {("savepoint", self.name): self.error}

    def result(self) -> dict[str, Any]:
        return {} if self.error else {"name": self.name, "checkpoint": self.checkpoint}


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

    def outcomes(self) -> dict[Key, str]:
        return {("restore", self.to): self.error}

    def result(self) -> dict[str, Any]:
        return {} if self.error else {"checkpoint": self.checkpoint, "step": self.step}


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
    """A request for another number of workers is settled: the new layout is committed, or it failed."""

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

    def outcomes(self) -> dict[Key, str]:
        error = f"it keeps {workers_text(self.workers)}: {self.error}" if self.error else ""
        given_up: dict[Key, str] = {("scale", None): ""} if self.given_up else {}
        return {("scale", self.wanted): error, **given_up}

    def result(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "seconds": round(self.seconds, 6),
            "pauseSeconds": round(self.pause_s, 6),
        }


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

    def __str__(self) -> str:
        left = [str(worker) for worker in self.workers if worker not in self.replaced]
        done = (
            f"replaced: {', '.join(map(str, self.replaced))}" if self.replaced else "no worker was replaced"
        )
        return f"{done}; kept: {', '.join(left)}: {self.error}" if self.error else done

    def outcomes(self) -> dict[Key, str]:
        return {("replace", self.by): str(self) if self.error else ""}

    def result(self) -> dict[str, Any]:
        return {
            "replaced": list(self.replaced),
            "seconds": round(self.seconds, 6),
            "pauseSeconds": round(self.pause_s, 6),
        }


@dataclass(frozen=True, slots=True)
class HandOverSettled:
    """A request to lend the region to another driver is settled: it is paused for it, or that failed."""

    by: str
    """Who asked (`HandOverWanted`)."""
    checkpoint: int = 0
    """The checkpoint from which the other driver continues; 0 after an error."""
    error: str = ""
    """Why it failed, empty on success. After an error the region continues here."""

    def outcomes(self) -> dict[Key, str]:
        return {("hand over", self.by): self.error}

    def result(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint}


Settled: TypeAlias = SavepointSettled | RestoreSettled | ScaleSettled | ReplaceSettled | HandOverSettled
"""The outcome of a request. `outcomes`: key -> why it failed, empty on success. `result`: for JSON."""


RegionEvent: TypeAlias = (
    StateChanged
    | CheckpointCommitted
    | WorkerLost
    | WorkerJoined
    | ResetReport
    | FellBack
    | ScaleDecided
    | Settled
)


# --- whether a region can continue ----------------------------------------------------------------------
#
# It is decided before anything is claimed, so that a program that does not fit fences no driver, and again
# under the claim, by the checkpoint that is the last one then. A restore decides it for its target before its
# record.


def workers_wanted(spec: RegionSpec, checkpoint: Checkpoint) -> int:
    """Return the number of workers after a checkpoint: its own, unless the program asks for another."""
    asked = spec.workers
    return len(checkpoint.workers) if asked is None or asked == checkpoint.workers_declared else asked


def when_handed_over(spec: RegionSpec, checkpoint: Checkpoint) -> Checkpoint:
    """Return the last checkpoint of a region as the one will be that its driver takes before it lends it."""
    return replace(checkpoint, shows_on=checkpoint.shows_on and not spec.hand_over)


def change_of(spec: RegionSpec, checkpoint: Checkpoint) -> GraphChange:
    """Return what the graph of a region changes after a checkpoint. Raises GraphChangeRefusedError."""
    return graph_change(checkpoint, spec.operators, region=spec.name, options=spec.graph_options)


def removed_sinks(spec: RegionSpec, checkpoint: Checkpoint) -> dict[str, str]:
    """Return sink outside of the store that the graph of a region gives up -> its uid in the checkpoint from
    which the region continues. Raises GraphChangeRefusedError.
    """
    return {
        name: checkpoint.uid_of(name)
        for name in change_of(spec, checkpoint).removed
        if checkpoint.operators[name].removed_with
    }


def rows_made_of(spec: RegionSpec, last: Checkpoint) -> int:
    """Return the number of the checkpoint of which the rows of `bootstrap` are made, 0 if its state is not
    that of the last one.
    """
    kind, _, text = spec.graph_options.bootstrap_of.partition(":")
    known = {"savepoint": last.savepoints.get(text, 0), "checkpoint": int(text) if text.isdecimal() else 0}
    same = {last.number, last.voted_as}
    if last.edit is not None and last.edit.bootstraps:  # of an attempt that was cut short: for the next graph
        same |= {last.edit.made_of, last.rolled_back_to}
    return number if (number := known.get(kind, 0)) in same else 0


def rows_to_add(spec: RegionSpec, last: Checkpoint) -> dict[str, str]:
    """Return new operator -> its uid, of those whose first rows the program adds to the last checkpoint.
    Raises GraphChangeRefusedError if it cannot.
    """
    change, of = change_of(spec, last), spec.graph_options.bootstrap_of
    if not change.bootstrapped:
        return {}
    why = ""
    if not rows_made_of(spec, last):
        why, remedy = (
            f"its rows are made of {of}, and not of checkpoint {last.number}, the last one",
            f"stop the region, and make them of its last checkpoint: checkpoint:{last.number}, if it is that",
        )
    elif spec.hand_over:
        why, remedy = (
            "a hand-over takes another checkpoint, of which its rows are not made",
            "stop the region, make a savepoint of it and the rows of that, and start without hand_over",
        )
    elif last.in_origin:
        why, remedy = (
            "its state is still in the region of which it is a fork",
            "run it with the former graph until its first checkpoint, and stop it",
        )
    if why:
        raise GraphChangeRefusedError(
            f"region {spec.name!r}: bootstrap of {', '.join(map(repr, change.bootstrapped))}: {why}",
            operators=tuple(change.bootstrapped),
            remedy=remedy,
        )
    return dict(change.bootstrapped)


def _check_rows(spec: RegionSpec, checkpoint: Checkpoint, added: Collection[str]) -> None:
    """Raise GraphChangeRefusedError unless a checkpoint has the rows with which operators begin, and of no
    others.
    """
    change = change_of(spec, checkpoint)
    given = {*added, *(checkpoint.edit.bootstraps if checkpoint.edit is not None else ())}
    for name in change.new:
        if (wanted := name in change.bootstrapped) == (change.uids.get(name, name) in given):
            continue
        has = "has no rows of bootstrap for" if wanted else "has rows of a bootstrap for"
        raise GraphChangeRefusedError(
            f"checkpoint {checkpoint.number} of region {spec.name!r} {has} the new operator {name!r}",
            operators=(name,),
            remedy="start this program again without restore, with rows that are made of the last checkpoint"
            if wanted
            else "start it with the bootstrap that added them, or run the former program first",
        )


def check_continues(spec: RegionSpec, checkpoint: Checkpoint, added: Collection[str] = ()) -> None:
    """Raise ManifestError or GraphChangeRefusedError unless a region can continue from a checkpoint.

    added: uids of operators whose first rows are added to it before.
    """
    check_checkpoint(checkpoint)
    if spec.keeps_workers and (wanted := workers_wanted(spec, checkpoint)) != len(checkpoint.workers):
        raise ManifestError(
            f"it was made by {workers_text(len(checkpoint.workers))}, the region has {workers_text(wanted)}:"
            f" {spec.keeps_workers}",
            checkpoint=checkpoint.number,
            remedy="run the region with as many workers as made the checkpoint",
        )
    check_places(checkpoint, spec.unchecked_places)
    _check_rows(spec, checkpoint, added)
    if spec.operators == checkpoint.operators or checkpoint.in_origin:
        return
    # Not where only declared states differ: each replica restores its own, through its migrations.
    if spec.keeps_graph and _without_states(spec.operators) != _without_states(checkpoint.operators):
        raise _another_graph(spec, checkpoint, spec.keeps_graph, remedy="")
    if not checkpoint.is_quiet:
        # The steps of the old graph after it are void. Made again by another graph, they have other rows, and
        # readers would see both. A region that has ended its input ends again, without another checkpoint.
        stop = "start the program that ran last, and stop it (a region that stops shows nothing after its"
        raise _another_graph(
            spec,
            checkpoint,
            "it may have shown steps after this checkpoint, which the new graph would make again with other"
            " rows",
            remedy=("" if checkpoint.final else f"{stop} last checkpoint); or ") + "take back what it showed:"
            f' restore="checkpoint:{checkpoint.number}" in this program, or dos region'
            f" restore URL {spec.name} --to checkpoint:{checkpoint.number} --stopped"
            " (its readers get OutputRewoundError, or follow)",
        )


def check_goes_back(spec: RegionSpec, kept: Sequence[Checkpoint], target: Checkpoint) -> None:
    """Raise as `check_continues` unless a region that continues from the last of `kept` can go back to one of
    them.
    """
    # The record that goes back has the number of another uid: no rows of a bootstrap are found after it.
    check_continues(spec, replace(target, edit=None))
    last = kept[-1]
    graphs = [(last.operators, last.uids)]
    if spec.operators == last.operators:
        # Also below the change with which this graph came. Not below another one: this program was never
        # compared with that graph, and a name may have gone to another operator in between.
        came = max((note.checkpoint for note in last.replaced.values()), default=0)
        graphs += [(one.operators, one.uids) for one in kept if one.number == came - 1]
        graphs += [(one.operators, one.uids) for one in kept if one.in_origin and not came]
    if (target.operators, target.uids) not in graphs:
        raise _another_graph(
            spec,
            target,
            "more than one change of the graph is between it and the last checkpoint",
            remedy=f"stop the region, go back with dos region restore URL {spec.name} --to"
            f" checkpoint:{target.number} --stopped, and start the program that made it",
        )


def when_restored(spec: RegionSpec, kept: Sequence[Checkpoint], target: Checkpoint) -> Checkpoint:
    """Return the checkpoint with which a program begins that asks for an older one (`RegionSpec.restore`).
    Raises GraphChangeRefusedError; whether the program continues from it is not decided.
    """
    # An old program that is started again asks as it did the first time: that does not undo a later change.
    if not spec.graph_options.graph_back:
        refuse_replaced(kept[-1], spec.operators, spec.name)
    # The record of the restore takes back what was shown since.
    begins = replace(target, shows_on=False)
    if spec.operators != target.operators:
        check_goes_back(spec, kept, begins)
    return begins


def meanwhile_another_graph(spec: RegionSpec, checkpoint: Checkpoint) -> GraphChangeRefusedError:
    """Return the refusal of a program that was compared with another graph before it claimed the region."""
    return _another_graph(
        spec,
        checkpoint,
        f"another program, of {checkpoint.driver or 'another driver'}, began this graph while this program"
        " started",
        remedy="start this program again: it is then compared with the graph that the region has now",
    )


def _without_states(operators: Mapping[str, OperatorNote]) -> dict[str, OperatorNote]:
    return {name: replace(note, state=None, takes=()) for name, note in operators.items()}


def _another_graph(
    spec: RegionSpec, checkpoint: Checkpoint, why: str, *, remedy: str
) -> GraphChangeRefusedError:
    was, now = checkpoint.operators, spec.operators
    names = tuple(sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name)))
    return GraphChangeRefusedError(
        f"region {spec.name!r} ran graph {fingerprint(was)} at checkpoint {checkpoint.number}, and this"
        f" program has graph {fingerprint(now)} with other operators {', '.join(map(repr, names))}: {why}",
        operators=names,
        remedy=remedy,
    )


def begins_latest(spec: RegionSpec) -> tuple[str, ...]:
    """Return the sources of a region without a checkpoint that begin at their end."""
    return compare({}, spec.operators, options=spec.graph_options).latest


def check_may_begin(spec: RegionSpec) -> None:
    """Raise GraphChangeRefusedError if a region without a checkpoint was to have rows made of one."""
    if named := sorted(spec.graph_options.bootstrap.keys() & spec.operators.keys()):
        raise GraphChangeRefusedError(
            f"region {spec.name!r} has no checkpoint, and bootstrap has rows of {', '.join(map(repr, named))}"
            f" that are made of {spec.graph_options.bootstrap_of}",
            operators=tuple(named),
            remedy="begin it with the rows by dos.bootstrap_state, or leave bootstrap out",
        )


def check_has_begun(spec: RegionSpec) -> None:
    """Raise GraphChangeRefusedError if a source of a region without a checkpoint begins at its end: after a
    crash before the first one, that would be another place, and rows in between would be skipped.
    """
    check_may_begin(spec)
    if latest := begins_latest(spec):
        raise GraphChangeRefusedError(
            f"no checkpoint of region {spec.name!r} states where the end of source {latest[0]!r} was",
            operators=latest,
            remedy="start this program again when the store can be read: it then records that first",
        )


def check_names(specs: Sequence[RegionSpec]) -> None:
    """Raise ValueError unless the regions of an application have what the options `begins` and `bootstrap`
    name, and it can begin so.
    """
    operators = {name: note for one in specs for name, note in one.operators.items()}
    endless = {name: why for one in specs for name, why in one.endless.items()}
    for one in specs:
        if one.without_checkpoints:
            endless |= dict.fromkeys(one.operators, "no checkpoint of its region states where it began")
    specs[0].graph_options.check_names(operators, endless)

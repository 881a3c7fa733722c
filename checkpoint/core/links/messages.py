"""The control messages between a region's coordinator and its workers. Each is one CONTROL frame of JSON.

Every message carries its address: `job`, the region's name; `incarnation`, the manifest epoch in which the
sender acts; `epoch`, that of its directory's claim; `checkpoint`, 0 where none is meant.

*Versions.* For a rolling upgrade, messages, frames, blocks and routing have a version, `VERSIONS`. A field
that a reader may ignore is added with a default and changes no version. Any other change raises the newest
version. Two ends whose versions do not overlap refuse the link (`handshake.py`).
"""

from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec

from checkpoint.core.records.layout import Layout
from checkpoint.core.records.manifest import BatchNote, Checkpoint, WorkerCheckpoint
from journal import Floor, Gap

Versions: TypeAlias = tuple[int, int]
"""The oldest and the newest version that a process speaks."""

VERSIONS: Final[Versions] = (1, 1)


def versions_text(speaks: Versions) -> str:
    """Return the versions in words."""
    oldest, newest = speaks
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def overlap(one: Versions, other: Versions) -> bool:
    """Return whether there is a version that both speak."""
    return max(one[0], other[0]) <= min(one[1], other[1])


FailureKind: TypeAlias = Literal[
    "operator", "reset", "peer", "unreachable", "fenced", "store", "manifest", "internal"
]
"""What failed, and what follows:

| kind | meaning | what follows |
|---|---|---|
| operator | code of an operator, a source or a sink raised | the region fails; a person has to act |
| reset | user code reported an inconsistency (OperatorFailure), or a step made again differs | a reset |
| peer | a link to another worker broke | a reset |
| unreachable | no link to another worker could be opened | a reset, and another placement |
| fenced | this worker's directory is claimed by a higher epoch | a reset |
| store | the store does not provide what the order named | a reset, not counted as an attempt |
| manifest | the ordered checkpoint does not fit (a shrunken input, an unknown operator) | the region fails |
| internal | anything else | the attempt is over: a reset, with a new attempt |

After reset, peer, unreachable, fenced and store the process stays alive and waits for RESTORE.
"""

StopKind: TypeAlias = Literal["finished", "stopped", "failed", "fenced", "superseded", "refused"]


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """A control message: the address that all of them carry. Without a job, it is not addressed yet."""

    job: str = ""
    incarnation: int = 0
    epoch: int = 0
    checkpoint: int = 0


# --- worker to coordinator ------------------------------------------------------------------------


class FromWorker(ControlMessage, frozen=True, kw_only=True):
    """A control message of a worker, which it names."""

    worker: int = -1


class Join(FromWorker, frozen=True, kw_only=True):
    """The first message of a link. `attempt` is the launcher's number; only the current one is accepted."""

    attempt: int
    pid: int
    host: str
    exchange_host: str
    exchange_port: int
    speaks: Versions
    scratch: str = ""
    python: str = ""
    package: str = ""
    """The version of this package that it runs."""
    metrics: str = ""
    """The address at which it serves its figures, empty if it does not."""


class Restored(FromWorker, frozen=True, kw_only=True):
    """The worker is at the ordered checkpoint: the starts of its chains are acknowledged."""

    last_step: int
    """The highest step whose input division is recorded, at least the step of the checkpoint."""
    replayed_bytes: int = 0
    seconds: float = 0.0
    scratch_bytes: int = 0
    """The part of `replayed_bytes` that was read from the local cache."""
    phases_s: dict[str, float] = {}
    """Seconds of each phase: claim, open, load."""


class EventTime(msgspec.Struct, frozen=True):
    """How far the event time of an `event_time` operator is on one worker."""

    watermark_us: int | None
    """Microseconds since 1970; None before the first watermark."""
    held_by: str
    """What holds it there, in words."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's counters, since its process began unless stated otherwise."""

    step: int = 0
    """The last step that this worker ended (its sources' STEP_END is sent), numbered in this incarnation."""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    exhausted: bool = False
    """All its sources are at their end, and everything read belongs to an ended step."""
    waiting_for_store: bool = False
    waiting_reason: str = ""
    """What it waits for at the store: which members are unavailable, and why."""
    lag_bytes: int = 0
    """Bytes appended to its chains and not yet synced on the quorum."""
    busy_s: float = 0.0
    """Seconds in which the circuit worked rather than waited."""
    load_s: float = 0.0
    """Of these, without the fixed cost of steps: what the rows needed."""
    backlog_bytes: int = -1
    """Input that its sources know and have not read, in the unit of `bytes_in`; -1: one does not know it."""
    operators: dict[str, dict[str, int]] = {}
    """Operator -> counter -> value, such as rows_in, rows_out, keys."""
    event_times: dict[str, EventTime] = {}
    """`event_time` operator -> its event time here; absent if it holds no other worker back."""
    operator: str = ""
    """The operator that ran when this was sampled, "" if none did: the circuit waited."""


class Progress(FromWorker, frozen=True, kw_only=True):
    """The worker's heartbeat: every second, from a thread that runs no user code."""

    counters: Counters


class Vote(FromWorker, frozen=True, kw_only=True):
    """The vote: everything of `checkpoint` is synced at these positions. Never sent earlier."""

    step: int
    positions: WorkerCheckpoint
    phases_s: dict[str, float] = {}
    """Seconds of each phase: align, drain, write, sync."""
    produced: int = 0
    """The last step that this worker began. It is above `step` if a peer's request arrived late."""
    operators: dict[str, dict[str, int]] = {}
    """The operators' counters (`Counters.operators`) at this vote; those of heartbeats are older."""


class Failed(FromWorker, frozen=True, kw_only=True):
    """A failure of this worker. FailureKind states what follows."""

    kind: FailureKind
    operator: str = ""
    position: str = ""
    """The position in the input, in words."""
    message: str = ""
    traceback: str = ""
    peer: int = -1
    """For kinds peer and unreachable: the worker at the other end."""
    epoch_held: int = 0
    """For kind fenced: the epoch that the next incarnation must exceed."""
    damaged: bool = False
    """For kind store: stored bytes seem to be damaged or lost. The driver finds out (`FallingBack`)."""


class WantsCheckpoint(FromWorker, frozen=True, kw_only=True):
    """A start operator emits nothing more until a checkpoint is taken at the end of `step` or later. `batch`:
    because it has fed its share of this batch, -1 for any other reason.
    """

    step: int
    batch: int = -1
    marks: dict[str, int] = {}
    """`event_time` operator -> its watermark after this worker's rows up to here; absent without any row."""


class Paused(FromWorker, frozen=True, kw_only=True):
    """Pause order `pause` is carried out: this worker ended `step` and takes no input in later steps."""

    pause: int
    step: int
    counters: Counters


class Suspects(FromWorker, frozen=True, kw_only=True):
    """With local recovery: a peer does not answer, or cannot be reached any more. This worker continues."""

    peer: int
    term: int
    """The term of the peer's process that it suspects."""
    reason: str


class Finished(FromWorker, frozen=True, kw_only=True):
    """The final checkpoint is committed and this worker has published all of it. It ends upon STOP."""

    operators: dict[str, dict[str, int]] = {}
    """The operators' counters, as in `Vote`."""


class CopiedAhead(FromWorker, frozen=True, kw_only=True):
    """How much of the state that this worker takes over is copied ahead (`CopyAhead`)."""

    copied_bytes: int
    total_bytes: int
    done: bool = False
    error: str = ""
    """Why it cannot prepare, empty if it can."""


class CompanionReport(FromWorker, frozen=True, kw_only=True):
    """The report of a worker's companion about its process, twice a second, also while user code
    holds the interpreter lock. On a link of the role "companion"; of any incarnation.
    """

    attempt: int
    operator: str = ""
    """The operator that runs, "" if none does."""
    waits: str = ""
    """What that operator waits for outside of the region, such as the lock of a file; "" if for nothing."""
    seconds: float = 0.0
    """For how long it has run."""
    sinks: str = ""
    """The sinks whose code makes a checkpoint durable on other threads, separated by ", "."""
    stopped: bool = False
    """The process is stopped (SIGSTOP), so that it will not continue on its own."""
    ended: bool = False
    """The process has ended while `operator` and `sinks` ran. The last report; without both also of a
    companion whose link has ended.
    """


# --- a task of a micro-batch, and the coordinator -------------------------------------------------


class RegionAt(ControlMessage, frozen=True, kw_only=True):
    """The answer: the port of the coordinator, on the same host. Or `BatchRefused`: it cannot be started."""

    port: int


class BatchAsked(ControlMessage, frozen=True, kw_only=True):
    """What is to be done with this batch? Sent once, first; a task waits for `BatchNeeded` or an end."""

    query: str
    number: int
    time_us: int


class RegionAsked(BatchAsked, frozen=True, kw_only=True):
    """To the driver, by a task: where is the region for this batch? It is started if it does not run."""

    query_run: str
    """The run of the query, which is another one after each start."""


class ReadAlone(ControlMessage, frozen=True, kw_only=True):
    """To the driver, by a task: its batch took long to read, and all rows came through this one task. The
    driver warns of it once.
    """

    partitions: int
    """Of the input, that had rows."""
    seconds: float


class BatchOffered(ControlMessage, frozen=True, kw_only=True):
    """Every worker has acknowledged its whole share, in `incarnation`."""

    attempt: str
    """Chosen by the task for each time that it sends the rows; shares have it, too."""
    rows: int


class BatchNeeded(ControlMessage, frozen=True, kw_only=True):
    """Send each worker a share, in this incarnation, then `BatchOffered`. A reset sends it again."""

    peers: tuple["Peer", ...]


class BatchProcessed(ControlMessage, frozen=True, kw_only=True):
    """The batch is in the last checkpoint or an earlier one: read its output from the logs."""

    batch: BatchNote
    line: int
    logs: dict[int, dict[str, Any]] = {}
    """Worker -> uid of a sink -> the position of its log in the last checkpoint."""
    uids: dict[str, str] = {}
    """As `Checkpoint.uids`, of that."""


BatchProblem: TypeAlias = Literal["gap", "planned again", "other query", "no slot", "ended"]


class BatchRefused(ControlMessage, frozen=True, kw_only=True):
    """The batch must not be processed."""

    problem: BatchProblem
    text: str
    remedy: str


class BatchShare(ControlMessage, frozen=True, kw_only=True):
    """To a worker: its share of a batch follows, in DATA frames whose channel is the number of the input. A
    STEP_END ends it, whose seq is their number. The worker answers with the same message once it holds all.
    """

    number: int
    time_us: int
    attempt: str


# --- coordinator to worker ------------------------------------------------------------------------


class Releasing(ControlMessage, frozen=True, kw_only=True):
    """A message that states what the worker's chains no longer need, by an acknowledged release (R14)."""

    floors: dict[str, Floor] = {}
    """Chain -> the lowest segment that a retained checkpoint needs; everything below may be deleted."""
    gaps: dict[str, tuple[Gap, ...]] = {}
    """Chain -> the gaps above its floor, which may be deleted too. A worker of an older version ignores them.
    """
    steps_kept_after: int = 0
    """No restore needs the input divisions of steps up to this one."""


class Peer(msgspec.Struct, frozen=True):
    """Where a worker listens for exchange links."""

    host: str
    port: int


class Restore(Releasing, frozen=True, kw_only=True):
    """Go to this checkpoint; with `restore` None and `checkpoint` 0, to the beginning.

    The worker claims its directory with epoch = incarnation and opens its state chain at the position in the
    checkpoint, even if longer or newer segments exist (R13).
    """

    worker: int
    restore: Checkpoint | None
    peers: tuple[Peer, ...]
    layout: Layout
    terms: tuple[int, ...] = ()
    """With local recovery: the term of each worker, by index. `epoch` is the worker's own, with which it
    claims its directory. Empty with global recovery: the term of every worker is the incarnation.
    """
    takes_over: bool = False
    """The other workers continue to run. This one makes the steps of its chain again, with their marks."""
    begins: bool = False
    """A graph begins with it, or output of steps that are in no checkpoint (`Checkpoint.begins_graph`)."""
    uids: dict[str, str] = {}
    """As `Checkpoint.uids`, of the graph of the worker."""
    latest: tuple[str, ...] = ()
    """Sources of the graph that begin at their end now: the checkpoint does not have them yet."""
    removed: dict[str, str] = {}
    """Sink outside of the store that the graph gives up -> its uid in the checkpoint. Its output is completed
    before the next vote."""

    @property
    def is_local(self) -> bool:
        """Whether the region has local recovery."""
        return bool(self.terms)

    @property
    def forks(self) -> bool:
        """Whether the region begins with it, as a fork of another one."""
        return self.restore is not None and self.restore.in_origin

    @property
    def moves(self) -> bool:
        """Whether a line, fork, layout or graph begins: the next vote follows Restored at once, and Start its
        commit.
        """
        return self.restore is not None and (self.begins or self.restore.begins(self.layout))


class Host(ControlMessage, frozen=True, kw_only=True):
    """Run attempt `attempt` of another worker in this process, beside this worker, until it is replaced."""

    hosted: int
    attempt: int


class View(ControlMessage, frozen=True, kw_only=True):
    """Another process has taken a peer over, in this term. It needs all steps after `step` again."""

    peer: int
    term: int
    address: Peer
    step: int


class CopyAhead(ControlMessage, frozen=True, kw_only=True):
    """Prepare for another layout, or to take the region over from another driver that runs it: create
    journals, open operators, copy or load state of `checkpoint`. Answers: CopiedAhead.
    """

    worker: int
    restore: Checkpoint
    layout: Layout
    creates: bool = True
    """Whether a worker that joins claims its directory and creates its journals. Once in an incarnation: one
    epoch has one writer, and an attempt that was given up may still hold the claim. After that the restore
    creates what is missing.
    """
    opens: bool = False
    """Whether the worker opens its operators, except sources and sinks, and loads its own state into them. It
    is not ordered to restore yet.
    """
    uids: dict[str, str] = {}
    """As `Restore.uids`."""
    moves: ClassVar[bool] = True


class Start(ControlMessage, frozen=True, kw_only=True):
    """Steps up to `replay_until_step` are replayed as recorded; later steps get new input ranges."""

    replay_until_step: int


class RequestCheckpoint(ControlMessage, frozen=True, kw_only=True):
    """Request it with the next STEP_END. A worker that already took that checkpoint ignores it. `batch`: it
    commits this batch, -1 for none. `step`: only with that of this step or a later one.
    """

    final: bool = False
    step: int = 0
    batch: int = -1
    marks: dict[str, int] = {}
    """`event_time` operator -> its watermark at the end of the batch, on all workers."""


class Committed(Releasing, frozen=True, kw_only=True):
    """The checkpoint is in the manifest on the quorum: sinks publish. A final one is answered by FINISHED."""

    step: int
    final: bool = False


class Pause(ControlMessage, frozen=True, kw_only=True):
    """Pause order number `pause`: take no more input, and make only steps that peers make. 0: continue."""

    pause: int


class OpenBatch(ControlMessage, frozen=True, kw_only=True):
    """Feed the share of this attempt of a batch, which this worker holds, and drop those of other attempts.
    The answer is `WantsCheckpoint`, also if the share has no row.
    """

    number: int
    time_us: int
    attempt: str
    marks: dict[str, int] = {}
    """`event_time` operator -> its watermark after the batch before."""


class Heartbeat(ControlMessage, frozen=True, kw_only=True):
    """The coordinator is alive. Sent every second."""


class Stop(ControlMessage, frozen=True, kw_only=True):
    """End this worker now, in any incarnation. Unless fenced, it first publishes what Committed names."""

    kind: StopKind
    reason: str


ToCoordinator: TypeAlias = (
    Join
    | Restored
    | Progress
    | WantsCheckpoint
    | Vote
    | Failed
    | Paused
    | Suspects
    | CopiedAhead
    | Finished
    | CompanionReport
)
FromTask: TypeAlias = BatchAsked | BatchOffered
ToDesk: TypeAlias = RegionAsked | ReadAlone
ToTask: TypeAlias = RegionAt | BatchNeeded | BatchProcessed | BatchRefused
ToWorker: TypeAlias = (
    Restore
    | View
    | Host
    | CopyAhead
    | Start
    | RequestCheckpoint
    | Committed
    | Pause
    | OpenBatch
    | Heartbeat
    | Stop
)


class Refusal(NamedTuple):
    """The name and text of the reason why a message was refused. The message had no effect."""

    name: Literal[
        "WRONG_JOB",
        "UNKNOWN_WORKER",
        "STALE_INCARNATION",
        "FUTURE_INCARNATION",
        "STALE_ATTEMPT",
        "STALE_CHECKPOINT",
        "UNEXPECTED",
    ]
    text: str


def check_address(message: ControlMessage, *, job: str, incarnation: int) -> Refusal | None:
    """Return None if the message belongs to this region in this incarnation, otherwise the refusal."""
    kind = type(message).__name__
    if message.job != job:
        return Refusal("WRONG_JOB", f"received {kind} of region {message.job!r}, this is region {job!r}")
    if message.incarnation < incarnation:
        return Refusal(
            "STALE_INCARNATION", f"{kind} of incarnation {message.incarnation}, current is {incarnation}"
        )
    if message.incarnation > incarnation:
        return Refusal(
            "FUTURE_INCARNATION", f"{kind} of incarnation {message.incarnation}, current is {incarnation}"
        )
    return None

"""The control vocabulary between a region's coordinator and its workers. Every message is one CONTROL frame
of JSON.

Rules of this file: nouns with fields, encode, decode, and the address check. Who may send what, when, is
decided by `core/coordinator.py` and `core/participant.py`.

Every message carries `job` (the region's name), `incarnation` (the manifest epoch the sender acts in; 0
before it has one), `epoch` (the sender's own directory epoch: a worker's claim, 0 before it holds one, the
manifest's for the coordinator) and `cut` (0 where no cut is meant). A message whose job is not ours, or
whose incarnation is not the present one, is refused by name: without that, a vote of a former life would
complete a cut of this one (V11).
"""

from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from checkpoint import limits
from checkpoint.core.channel_frames import COORDINATOR, ChannelFrame, FrameType
from checkpoint.core.layout import Layout
from checkpoint.core.manifest import Cut, WorkerCut
from checkpoint.errors import ControlMessageError
from dos_protocol.digests import digest64
from journal.core.trimming import Floor

FailureKind: TypeAlias = Literal["operator", "reset", "peer", "fenced", "store", "manifest", "internal"]
"""operator: user code raised, the region stops for a person.
reset: user code found that something is not right, and going back may help (OperatorFailure).
peer: a link to another worker broke or could not be made.
fenced: this worker's directory is claimed by a higher epoch.
store: what the order named cannot be had from the store.
manifest: the ordered cut does not fit what this worker finds (a shrunken input, an unknown operator): for a
person.
internal: anything else; the attempt is over. After reset, peer, fenced and store the process lives on and
waits for RESTORE."""

StopKind: TypeAlias = Literal["finished", "stopped", "failed", "fenced", "superseded", "refused"]


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """What every control message carries. See the top of this file."""

    job: str
    incarnation: int = 0
    epoch: int = 0
    cut: int = 0


# --- worker to coordinator ------------------------------------------------------------------------


class FromWorker(ControlMessage, frozen=True, kw_only=True):
    """Messages of a worker name it."""

    worker: int


class Join(FromWorker, frozen=True, kw_only=True):
    """The first message of a link. `attempt` is the launcher's; another than the present one is told to
    STOP.
    """

    attempt: int
    pid: int
    host: str
    exchange_host: str
    exchange_port: int
    scratch: str = ""
    python: str = ""
    packages: dict[str, str] = {}


class Restored(FromWorker, frozen=True, kw_only=True):
    """The worker stands at the ordered cut: its chains opened in this incarnation, their starts
    acknowledged.
    """

    last_step: int
    """The highest step whose division is in the steps chain, at least the step of the cut."""
    replayed_bytes: int = 0
    seconds: float = 0.0
    scratch_bytes: int = 0
    """Of those, read from the local cache."""
    phases_s: dict[str, float] = {}
    """Where the time went: claim, open, load."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker counts about itself, since the process began unless said otherwise."""

    step: int = 0
    """The last step this worker has ended (its sources' STEP_END is sent), in this incarnation's numbering.
    """
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    exhausted: bool = False
    """All its sources are at their end, and all that was read belongs to an ended step."""
    waiting_for_store: bool = False
    waiting_reason: str = ""
    """What it waits for at the store: which members are away, and why."""
    lag_bytes: int = 0
    """Appended to its chains and not yet synced on the quorum."""
    busy_s: float = 0.0
    """Seconds in which the circuit worked rather than waited."""
    operators: dict[str, dict[str, int]] = {}
    """Operator -> counter -> value, such as rows_in, rows_out, keys."""


class Progress(FromWorker, frozen=True, kw_only=True):
    """The worker's heartbeat, each second, from a thread that runs no user code."""

    counters: Counters


class Prepared(FromWorker, frozen=True, kw_only=True):
    """The vote: everything of `cut` is synced on the quorum at the positions given. Never sent earlier."""

    step: int
    positions: WorkerCut
    phases_s: dict[str, float] = {}
    """Where the time went: align, drain, write, sync."""
    produced: int = 0
    """The last step that this worker has begun, perhaps above `step`: it heard a peer's flag too late."""
    operators: dict[str, dict[str, int]] = {}
    """What its operators count (`Counters.operators`), as of this vote: heartbeats are older."""


class Failed(FromWorker, frozen=True, kw_only=True):
    """Something went wrong. See FailureKind for what follows."""

    kind: FailureKind
    operator: str = ""
    position: str = ""
    """Where in the input, in words."""
    message: str = ""
    traceback: str = ""
    peer: int = -1
    """For kind peer: the worker that could not be reached."""
    epoch_held: int = 0
    """For kind fenced: the epoch to go above."""


class WantsCut(FromWorker, frozen=True, kw_only=True):
    """A start operator has come to a place where it wants a cut, at the end of `step`, and gives nothing more
    until one was taken there or later. Counts where operators trigger cuts.
    """

    step: int


class Paused(FromWorker, frozen=True, kw_only=True):
    """Order `pause` is carried out: this worker has ended `step` and takes no input in later ones. Its
    counters come with it, so that nobody who sees the region paused sees older ones.
    """

    pause: int
    step: int
    counters: Counters


class Finished(FromWorker, frozen=True, kw_only=True):
    """The final cut is committed and this worker has published all of it; it ends when told to STOP."""

    operators: dict[str, dict[str, int]] = {}
    """As in `Prepared`: after a restart at the final cut there is no vote."""


# --- coordinator to worker ------------------------------------------------------------------------


class Releasing(ControlMessage, frozen=True, kw_only=True):
    """Messages that say what the worker's chains need no more, by a release that is acknowledged (R14)."""

    floors: dict[str, Floor] = {}
    """Chain -> the lowest segment that any retained cut needs; what lies below may be deleted."""
    steps_kept_after: int = 0
    """Divisions of steps up to this one are needed by no retained cut."""


class Peer(msgspec.Struct, frozen=True):
    """Where a worker listens for exchange links."""

    host: str
    port: int


class Restore(Releasing, frozen=True, kw_only=True):
    """Stand at this cut (`restore` None and `cut` 0: at the beginning). Sent only upon an acknowledged
    start (R8, R11).

    The worker claims its directory with epoch = incarnation and opens its state chain at the position in
    the cut, whatever longer or newer segments lie about (R13).
    """

    worker: int
    restore: Cut | None
    peers: tuple[Peer, ...]
    layout: Layout


class Start(ControlMessage, frozen=True, kw_only=True):
    """All workers stand: go. Steps up to `replay_until_step` are replayed as recorded, later ones divided
    anew.
    """

    replay_until_step: int


class RequestCut(ControlMessage, frozen=True, kw_only=True):
    """Ask for cut `cut` with the next STEP_END. A worker past a cut of that number ignores it."""

    final: bool = False


class Committed(Releasing, frozen=True, kw_only=True):
    """Cut `cut` is in the manifest on the quorum. Sinks publish; after a final one the worker answers
    FINISHED.
    """

    step: int
    final: bool = False


class Pause(ControlMessage, frozen=True, kw_only=True):
    """Take no input any more, and make only steps that peers make; with `pause` 0: go on. Orders to pause are
    numbered.
    """

    pause: int


class Heartbeat(ControlMessage, frozen=True, kw_only=True):
    """The coordinator lives. Each second."""


class Stop(ControlMessage, frozen=True, kw_only=True):
    """End this worker now, in an orderly way. Accepted whatever its incarnation."""

    kind: StopKind
    reason: str


ToCoordinator: TypeAlias = Join | Restored | Progress | WantsCut | Prepared | Failed | Paused | Finished
ToWorker: TypeAlias = Restore | Start | RequestCut | Committed | Pause | Heartbeat | Stop

_to_coordinator: Final[msgspec.json.Decoder[ToCoordinator]] = msgspec.json.Decoder(ToCoordinator)
_to_worker: Final[msgspec.json.Decoder[ToWorker]] = msgspec.json.Decoder(ToWorker)
_encoder: Final = msgspec.json.Encoder()


def job_digest(job: str) -> int:
    """The `job` field of a frame header: xxh3-64 of the region's name in UTF-8."""
    return digest64(job.encode())


def control_frame(message: ToCoordinator | ToWorker) -> ChannelFrame:
    """The CONTROL frame of a message; its header repeats the address so that strays show without JSON."""
    payload = _encoder.encode(message)
    if len(payload) > limits.control_bytes_max:
        raise ValueError(
            f"a {type(message).__name__} of {len(payload)} bytes, at most {limits.control_bytes_max}"
        )
    sender = message.worker if isinstance(message, FromWorker) else COORDINATOR
    return ChannelFrame(
        FrameType.CONTROL,
        sender=sender,
        job=job_digest(message.job),
        sender_epoch=message.incarnation,
        cut=message.cut,
        payload=payload,
    )


def decode_from_worker(frame: ChannelFrame) -> ToCoordinator:
    """The message in a worker's CONTROL frame. Raises ControlMessageError; the link is of no further use
    then.
    """
    message: ToCoordinator = _decode(_to_coordinator, frame)
    if frame.sender != message.worker:
        raise ControlMessageError(
            f"a frame of worker {frame.sender} carries a message of worker {message.worker}"
        )
    return message


def decode_from_coordinator(frame: ChannelFrame) -> ToWorker:
    """The message in the coordinator's CONTROL frame. Raises ControlMessageError."""
    message: ToWorker = _decode(_to_worker, frame)
    if frame.sender != COORDINATOR:
        raise ControlMessageError(f"a frame of sender {frame.sender} carries a {type(message).__name__}")
    return message


def _decode(decoder: "msgspec.json.Decoder[Any]", frame: ChannelFrame) -> Any:
    if frame.type is not FrameType.CONTROL:
        raise ControlMessageError(f"a {frame.type.name} frame on a control link")
    try:
        message = decoder.decode(frame.payload)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ControlMessageError(f"a control message does not decode: {error}") from error
    stated = (frame.job, frame.sender_epoch, frame.cut)
    if stated != (job_digest(message.job), message.incarnation, message.cut):
        raise ControlMessageError(
            f"header and text of a {type(message).__name__} disagree on job, incarnation or cut"
        )
    return message


class Refusal(NamedTuple):
    """Why a message was not taken, by name. It left no effect."""

    name: Literal[
        "WRONG_JOB",
        "UNKNOWN_WORKER",
        "STALE_INCARNATION",
        "FUTURE_INCARNATION",
        "STALE_ATTEMPT",
        "STALE_CUT",
        "UNEXPECTED",
    ]
    text: str


def check_address(message: ToCoordinator | ToWorker, *, job: str, incarnation: int) -> Refusal | None:
    """Whether the message belongs to this region in this incarnation; else why not."""
    kind = type(message).__name__
    if message.job != job:
        return Refusal("WRONG_JOB", f"{kind} of region {message.job!r} came to region {job!r}")
    if message.incarnation < incarnation:
        return Refusal(
            "STALE_INCARNATION", f"{kind} of incarnation {message.incarnation}; {incarnation} is running"
        )
    if message.incarnation > incarnation:
        return Refusal(
            "FUTURE_INCARNATION", f"{kind} of incarnation {message.incarnation}; {incarnation} is running"
        )
    return None

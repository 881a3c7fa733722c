"""The verbs of a region: what a person may request of it while it runs. One row each, in `VERBS`.

The row serves all who pass a request on or report its outcome: `RequestHandler`, `RegionControl`, `dos
region` (`cli/arguments.py`), the forms of the page (`dos_ui/page/region.js`). To add a verb: its row, its
event (`vocabulary.py`) with the outcome that settles it (`region.py`), and its handler in the table of
`Coordinator`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CheckpointWanted,
    HandOverWanted,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
    ScaleWanted,
    StopWanted,
    UserRequest,
)
from checkpoint.core.progress import as_json
from checkpoint.core.records.manifest import SavepointNote
from checkpoint.core.region import (
    CheckpointCommitted,
    Key,
    RegionEvent,
    RegionState,
    RegionStatus,
    ResetReport,
    Settled,
)
from checkpoint.core.requests import Request, Verdict
from checkpoint.errors import NotHandedOverError, NotReplacedError, NotScaledError, RestoreRefusedError
from dos_protocol.errors import DosError, LocalProtocolError

_FIELD_TYPES: Final = get_type_hints(Request)
_STOPPING: Final = {RegionState.STOPPING: "the region is being stopped"}
_STARTS: Final = "the region is already starting from its last checkpoint"


class FormField(NamedTuple):
    """A field of a request that the page of a region asks for.

    kind: "name", "note" (may be empty), "workers" (a number), "target" (a checkpoint to restore), "yes".
    """

    name: str
    text: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One verb. It is refused after the end of the region, and while too many requests are open."""

    name: str
    """`Request.what`, and the command of `dos region` unless that has options of its own."""
    wanted: Callable[[Request], UserRequest] | None
    """Returns the event for the coordinator; None: the request handler answers without it."""
    fields: tuple[str, ...] = ()
    """The fields of `Request` that a person gives."""
    refused: Mapping[RegionState, str] = field(default_factory=lambda: _STOPPING)
    """State -> why the verb is refused in it."""
    needs_checkpoints: bool = True
    """Whether a region without checkpoints refuses it."""
    wait_s: float = limits.request_patience_s
    """For how long a person waits from the first answer to the final one, unless told otherwise."""
    done: str = ""
    """The outcome in words, with fields of the result."""
    help: str = ""
    """The help of a command that only sends the request; empty: the command has options of its own."""
    exit_0: str = ""
    """The meaning of exit code 0 of that command."""
    refusal: type[DosError] = DosError
    """The error that the handle of a region raises if the outcome is a failure."""
    unsettled: str = ""
    """What the handle reports if no outcome is known in time, with fields of the event."""
    in_manifest: bool = False
    """Whether the manifest must also show the checkpoint of the result: an answer alone is not enough."""
    shown_by: str = ""
    """The command that shows whether it was done by a person who acts as the driver of a stopped region;
    empty: only a driver does it.
    """
    button: str = ""
    """What the page of a region calls it; empty: the page does not offer it."""
    asks: tuple[FormField, ...] = ()
    """What the page asks for."""
    confirm: str = ""
    """What the page has confirmed first, with `region` and fields of the request."""

    def form(self) -> dict[str, Any]:
        """Return what the page needs to offer the verb, as JSON."""
        asks = [one._asdict() for one in self.asks]
        return {"name": self.name, "button": self.button, "asks": asks, "confirm": self.confirm}

    def problem_of(self, given: Mapping[str, Any]) -> str:
        """Return why a person cannot give these fields of the request, empty if all fit."""
        for name, value in given.items():
            if name not in self.fields or type(value) is not _FIELD_TYPES[name]:
                return f"{self.name} has no field {name!r} of that type, got {value!r}"
        return ""


_CHANGE_S: Final = limits.start_timeout_s + limits.reset_timeout_s
_ROWS: Final = (
    Verb(name="status", wanted=None, refused={}, needs_checkpoints=False),
    Verb(
        name="checkpoint",
        wanted=lambda _: CheckpointWanted(),
        refused={RegionState.STOPPING: "the region is being stopped, which commits a last checkpoint"},
        wait_s=limits.drain_timeout_s,
        done="checkpoint {checkpoint} at step {step} is committed",
        help="Commit a checkpoint now, and wait for it. It contains everything read before the request.",
        exit_0="committed, and the manifest shows it",
        in_manifest=True,
        button="Checkpoint now",
    ),
    Verb(
        name="reset",
        wanted=lambda _: ResetWanted(),
        refused={
            RegionState.STARTING: _STARTS,
            RegionState.WAITING_FOR_WORKERS: _STARTS,
            RegionState.WAITING_FOR_STORE: (
                "the region waits for its store; send the request again when it runs"
            ),
            **_STOPPING,
        },
        needs_checkpoints=False,
        wait_s=limits.reset_timeout_s,
        done="back at checkpoint {checkpoint} in {seconds:.1f} s, {bytes} replayed;"
        " incarnation {incarnation}",
        help="Reset the region to its last committed checkpoint, as after the loss of a worker, and wait"
        " until it runs.\n\nThe reset does not count as one of the region's reset attempts. Input read since"
        " that checkpoint is read again.",
        exit_0="done",
    ),
    Verb(
        name="pause",
        wanted=lambda _: PauseWanted(on=True),
        wait_s=limits.drain_timeout_s,
        done="PAUSED at checkpoint {checkpoint}, step {step}",
        help="Pause the region: it reads no more input. Wait until everything it has read is in a checkpoint."
        "\n\nThe workers keep running and keep their state; `dos region resume` continues. A region that is"
        " started again is not paused.",
        exit_0="paused",
        button="Pause",
    ),
    Verb(
        name="resume",
        wanted=lambda _: PauseWanted(on=False),
        done="resumed from checkpoint {checkpoint}: {state}",
        help="Resume a paused region.",
        exit_0="resumed",
        button="Resume",
    ),
    Verb(
        name="savepoint",
        wanted=lambda request: SavepointWanted(request.name, request.checkpoint, note=_note_of(request)),
        fields=("name", "checkpoint", "why"),
        wait_s=limits.drain_timeout_s,
        done="savepoint {name} of checkpoint {checkpoint} is created",
        shown_by="`dos region savepoints` lists the savepoints",
        button="Create a savepoint",
        asks=(FormField("name", "Name", "name"), FormField("why", "Note", "note")),
        refusal=LocalProtocolError,
        unsettled="committed no checkpoint that records savepoint {wanted.name!r}",
    ),
    Verb(
        name="drop_savepoint",
        wanted=lambda request: SavepointWanted(request.name, on=False),
        fields=("name",),
        wait_s=limits.drain_timeout_s,
        done="savepoint {name} of checkpoint {checkpoint} is dropped",
        shown_by="`dos region savepoints` lists the savepoints",
        refusal=LocalProtocolError,
        unsettled="committed no checkpoint without savepoint {wanted.name!r}",
    ),
    Verb(
        name="restore",
        wanted=lambda request: RestoreWanted(request.name, request.allow_republish),
        fields=("name", "allow_republish"),
        wait_s=_CHANGE_S,
        done="restored to checkpoint {checkpoint}, step {step}",
        shown_by="`dos checkpoint ls` shows it",
        button="Restore",
        asks=(
            FormField("name", "Restore to", "target"),
            FormField("allow_republish", "rows that were shown may come again", "yes"),
        ),
        confirm="All workers of {region} go back to {name}. Output after it is taken back, and input is read"
        " again from there.",
        refusal=RestoreRefusedError,
        unsettled="may be restored to {wanted.to} or not",
    ),
    Verb(
        name="scale",
        wanted=lambda request: ScaleWanted(request.workers),
        fields=("workers",),
        wait_s=_CHANGE_S,
        done="the region has {workers} workers, after {seconds:.1f} s; no input was taken for"
        " {pauseSeconds:.1f} s of them",
        button="Scale",
        asks=(FormField("workers", "Workers", "workers"),),
        refusal=NotScaledError,
        unsettled="has the workers that it had",
    ),
    Verb(
        name="unscale",
        wanted=lambda _: ScaleWanted(None),
        refused={},
        wait_s=_CHANGE_S,
        done="given up: the region keeps {workers} workers",
        refusal=NotScaledError,
        unsettled="has the workers that it had",
    ),
    Verb(
        name="replace",
        wanted=lambda request: ReplaceWanted(request.replaces, request.id),
        fields=("replaces",),
        wait_s=_CHANGE_S,
        done="replaced: {replaced}, in {seconds:.1f} s; no input was taken for"
        " {pauseSeconds:.1f} s at a time",
        refusal=NotReplacedError,
        unsettled="has not replaced all workers",
    ),
    Verb(
        name="hand_over",
        wanted=lambda request: HandOverWanted(request.id, request.asked_by),
        wait_s=_CHANGE_S,
        done="paused after checkpoint {checkpoint}",
        refusal=NotHandedOverError,
    ),
    Verb(
        name="stop",
        wanted=lambda _: StopWanted(),
        refused={},
        needs_checkpoints=False,
        wait_s=limits.stop_checkpoint_timeout_s + 2 * limits.stop_grace_s + limits.last_answers_s,
        done="{state}: {reason}; the last checkpoint is {lastCheckpoint}",
        help="Stop the region: it commits a last checkpoint, then its workers end. The next `run` of that"
        " name continues from the checkpoint.",
        exit_0="stopped",
    ),
)
VERBS: Final[Mapping[str, Verb]] = {verb.name: verb for verb in _ROWS}
"""| verb | its final answer |
|---|---|
| status | a snapshot, at most one each `status_answers_s`, for all requesters |
| checkpoint | the first checkpoint that was requested after the request arrived |
| reset | the first reset that completes after the request arrived |
| pause, resume | once the region is PAUSED, or is not |
| stop | the state in which the region ended |
| the others | the outcome of their key (`Settled`) |
"""


def _note_of(request: Request) -> SavepointNote:
    return SavepointNote(
        by=request.asked_by, wall_time_ms=request.wall_time_ms, why=request.why, fork=request.fork
    )


# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request was read. `wall_ms`: this machine's wall clock."""

    request: Request
    wall_ms: int


@dataclass(frozen=True, slots=True)
class RegionNotified:
    """The region reported an event to its observers."""

    event: RegionEvent


@dataclass(frozen=True, slots=True)
class QueueRead:
    """All requests in the store were passed on. Sent at regular intervals."""


@dataclass(frozen=True, slots=True)
class RegionEnded:
    """The region has ended."""


RequestEvent: TypeAlias = RequestArrived | RegionNotified | QueueRead | RegionEnded

# --- effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandRegion:
    """Pass an event to the coordinator, as if the driver's own user had requested it."""

    event: UserRequest


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """Write this answer. If `with_status` is set, the shell adds a fresh status."""

    requests: tuple[str, ...]
    verdict: Verdict
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    with_status: bool = False


RequestEffect: TypeAlias = CommandRegion | WriteAnswer

_ENDED_TEXT: Final = "the region has ended"
_CLOCK_STEP_S: Final = 1e-6
"""Differences of clock readings are rounded."""
NO_CHECKPOINTS: Final = "{} is outside of any consistent region and has no checkpoints"


@dataclass(slots=True)
class _OpenRequest:
    """An accepted request that has no final answer yet."""

    id: str
    what: str
    requested_at: float
    key: Key | None


class RequestHandler:
    """The requests that one driver handles. Pure: `handle(event, status, now) -> effects`, `now` in monotonic
    seconds. A request receives at most one `accepted` and one final answer.
    """

    def __init__(self, region: str, *, without_checkpoints: bool = False) -> None:
        self._region = region
        self._without_checkpoints = without_checkpoints
        self._seen: deque[str] = deque(maxlen=limits.request_ids_kept_max)
        self._known: set[str] = set()
        self._open: list[_OpenRequest] = []
        self._status_requests: list[str] = []
        self._status_answered_at: float | None = None
        self._out: list[RequestEffect] = []

    def handle(self, event: RequestEvent, status: RegionStatus, now: float) -> list[RequestEffect]:
        """Take one event and return what to do about it, in order."""
        if isinstance(event, RequestArrived):
            self._request_arrived(event, status, now)
        elif isinstance(event, RegionNotified):
            self._region_notified(event.event, now)
        elif isinstance(event, QueueRead):
            self._queue_read(status, now)
        else:
            self._region_ended(status)
        effects, self._out = self._out, []
        return effects

    # --- requests -----------------------------------------------------------------------------------------

    def _request_arrived(self, event: RequestArrived, status: RegionStatus, now: float) -> None:
        request = event.request
        # A record may be written twice (`requests/queue.py`): carried out twice, a restore would go back
        # again, and a scale after another one would undo it.
        if request.id in self._known:
            return
        self._remember(request.id)
        refusal = self._refusal(request, status, event.wall_ms)
        if refusal:
            self._out.append(WriteAnswer((request.id,), "refused", refusal))
        elif request.what == "status":
            self._status_requests.append(request.id)
        else:
            wanted = _wanted_by(request)
            self._open.append(_OpenRequest(request.id, request.what, now, wanted.key))
            self._out.append(WriteAnswer((request.id,), "accepted", f"the region is {status.state.value}"))
            self._out.append(CommandRegion(wanted))

    def _remember(self, request: str) -> None:
        if len(self._seen) == self._seen.maxlen:
            self._known.discard(self._seen[0])
        self._seen.append(request)
        self._known.add(request)

    def _refusal(self, request: Request, status: RegionStatus, wall_ms: int) -> str:
        """Return why the request is refused, empty if it is accepted."""
        if request.region != self._region:
            return f"the request is for region {request.region}, this is region {self._region}"
        verb = VERBS.get(request.what)
        if verb is None:
            return f"unknown request {request.what!r}; this driver supports {', '.join(VERBS)}"
        # It was written about what the status showed then: a reset meanwhile may have made it wrong.
        if request.incarnation and request.incarnation != status.incarnation:
            return (
                f"the request is for incarnation {request.incarnation}, and {status.incarnation} is running:"
                " check the status, then send the request again if it still applies"
            )
        # A request that waited while no driver ran must not surprise the one that starts hours later.
        old_ms, slack_ms = wall_ms - request.wall_time_ms, int(1000 * limits.request_clock_slack_s)
        if old_ms > request.patience_ms + slack_ms:
            return (
                f"the request is {old_ms / 1000:.0f} s old by this driver's clock and expired after"
                f" {request.patience_ms / 1000:.0f} s: send it again"
            )
        if -old_ms > slack_ms:
            return (
                f"the request is dated {-old_ms / 1000:.0f} s in the future: set the clocks of both machines"
            )
        if self._without_checkpoints and verb.needs_checkpoints:
            return NO_CHECKPOINTS.format(self._region)
        if status.state.is_end:
            return f"{_ENDED_TEXT}: {status.state.value}"
        if len(self._open) + len(self._status_requests) >= limits.requests_open_max:
            return f"there are already {limits.requests_open_max} open requests: try again later"
        return verb.refused.get(status.state, "")

    # --- completion ---------------------------------------------------------------------------------------

    def _region_notified(self, event: RegionEvent, now: float) -> None:
        if isinstance(event, CheckpointCommitted):
            result = {"checkpoint": event.checkpoint, "step": event.step, "seconds": round(event.seconds, 6)}
            # A checkpoint that was under way when the request arrived may lack rows written before it.
            self._done("checkpoint", now - event.seconds + _CLOCK_STEP_S, result)
        elif isinstance(event, ResetReport) and not event.term:  # a take-over resets nobody else
            self._done("reset", now, as_json(event))
        elif isinstance(event, Settled):
            for key, error in event.outcomes().items():
                # All requests with that key: of two opposite ones about a savepoint, both get the outcome.
                self._answer([one for one in self._open if one.key == key], error, event.result())

    def _answer(self, done: list[_OpenRequest], error: str, result: dict[str, Any]) -> None:
        """Send the final answer to these requests."""
        if done:
            self._open = [one for one in self._open if one not in done]
            ids = tuple(one.id for one in done)
            self._out.append(WriteAnswer(ids, "failed" if error else "done", error, result))

    def _done(self, what: str, requested_until: float, result: dict[str, Any]) -> None:
        done = [one for one in self._open if one.what == what and one.requested_at <= requested_until]
        self._answer(done, "", result)

    def _queue_read(self, status: RegionStatus, now: float) -> None:
        """Answer pause, resume and status requests."""
        paused = status.state is RegionState.PAUSED
        result = {
            "state": status.state.value,
            "checkpoint": status.last_checkpoint,
            "step": status.last_checkpoint_step,
        }
        self._done("pause" if paused else "resume", now, result)
        answered_at = self._status_answered_at
        if self._status_requests and (answered_at is None or now - answered_at >= limits.status_answers_s):
            self._status_answered_at = now
            self._answer_status()

    def _answer_status(self) -> None:
        self._out.append(WriteAnswer(tuple(self._status_requests), "done", with_status=True))
        self._status_requests = []

    def _region_ended(self, status: RegionStatus) -> None:
        """Send the final answers, and the status in which the region ended: who asks later reads it."""
        open_requests, self._open = self._open, []
        # A newer driver determines the outcome: an answer of this one could contradict it.
        if status.state is RegionState.FENCED:
            self._status_requests = []
            return
        self._answer_status()
        reason = f"{_ENDED_TEXT}: {status.state.value}" + (f" ({status.reason})" if status.reason else "")
        for one in open_requests:
            if one.what == "stop":
                result = {
                    "state": status.state.value,
                    "reason": status.reason,
                    "lastCheckpoint": status.last_checkpoint,
                }
                self._out.append(WriteAnswer((one.id,), "done", "", result))
            else:
                self._out.append(WriteAnswer((one.id,), "failed", reason))


def _wanted_by(request: Request) -> UserRequest:
    make = VERBS[request.what].wanted
    assert make is not None, "a status request is not passed on"
    return make(request)

"""Requests that reach a region's driver through the store: refused, ordered, answered.

Pure: `handle(event, status, now) -> effects`. `now` is the coordinator's monotonic clock in seconds. The wall
clock comes with `RequestArrived` and serves one rule, the patience of a request. This module knows neither
the store nor whether this driver holds the manifest: the shell does not call it while the manifest is not
held.

A driver carries out a request at most once, because it keeps the ids. A request is handled by the driver that
ran when it was written; `checkpoint/requests/server.py` does not read older ones.

| request | first answer | final answer |
|---|---|---|
| status | | a snapshot, at most one each `status_answers_s`, for all requesters |
| checkpoint | accepted | done, with the first checkpoint that was requested after the request arrived |
| reset | accepted | done, with the report of the first reset that completes after the request arrived |
| pause | accepted | done, once the region is PAUSED |
| resume | accepted | done, once the region is not PAUSED |
| savepoint | accepted | done, with the checkpoint that the savepoint holds; failed, with the reason |
| drop_savepoint | accepted | as for savepoint |
| restore | accepted | done, with the checkpoint, once its record is committed; failed, with the reason |
| scale | accepted | done, with the number of workers and the time it took; failed, with the reason |
| unscale | accepted | done, once the change is given up; failed, with the reason |
| replace | accepted | done, once all of these workers are replaced; failed, with the reason |
| stop | accepted | done, with the state in which the region ended |
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import (
    CheckpointWanted,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
    ScaleWanted,
    StopWanted,
    Wanted,
)
from checkpoint.core.progress import reset_json
from checkpoint.core.records.manifest import SavepointNote
from checkpoint.core.region import RegionState, RegionStatus, ResetReport
from checkpoint.core.region_events import (
    CheckpointCommitted,
    RegionEvent,
    ReplaceSettled,
    RestoreSettled,
    SavepointSettled,
    ScaleSettled,
    replaced_text,
)
from checkpoint.core.request_records import Request, Verdict

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

    event: Wanted


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
_REFUSED: Final[dict[str, dict[RegionState, str]]] = {
    "status": {},
    "checkpoint": {RegionState.STOPPING: "the region is being stopped, which commits a last checkpoint"},
    "reset": {
        RegionState.STARTING: "the region is already starting from its last checkpoint",
        RegionState.WAITING_FOR_WORKERS: "the region is already starting from its last checkpoint",
        RegionState.WAITING_FOR_STORE: "the region waits for its store; send the request again when it runs",
        RegionState.STOPPING: "the region is being stopped",
    },
    "pause": {RegionState.STOPPING: "the region is being stopped"},
    "resume": {RegionState.STOPPING: "the region is being stopped"},
    "savepoint": {RegionState.STOPPING: "the region is being stopped"},
    "drop_savepoint": {RegionState.STOPPING: "the region is being stopped"},
    "restore": {RegionState.STOPPING: "the region is being stopped"},
    "scale": {RegionState.STOPPING: "the region is being stopped"},
    "unscale": {},
    "replace": {RegionState.STOPPING: "the region is being stopped"},
    "stop": {},
}
"""Request -> state -> why it is refused. It is accepted in all other states but the final ones."""
_CLOCK_STEP_S: Final = 1e-6
"""Differences of clock readings are rounded."""
_CHECKPOINT_REQUESTS: Final = ("checkpoint", "savepoint", "drop_savepoint")
_REFUSED_WITHOUT_CHECKPOINTS: Final = (
    *_CHECKPOINT_REQUESTS,
    "pause",
    "resume",
    "restore",
    "scale",
    "unscale",
    "replace",
)


@dataclass(slots=True)
class _OpenRequest:
    """An accepted request that has no final answer yet."""

    id: str
    what: str
    requested_at: float
    name: str = ""
    workers: int = 0


NO_CHECKPOINTS: Final = "{} is outside of any consistent region and has no checkpoints"


class RequestHandler:
    """The requests that one driver handles.

    Invariants: an id in `_open` or `_status_requests` is in `_seen`; a request receives at most one
    `accepted` and one final answer.
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
        if request.id in self._known:
            return
        self._remember(request.id)
        refusal = self._refusal(request, status, event.wall_ms)
        if refusal:
            self._out.append(WriteAnswer((request.id,), "refused", refusal))
        elif request.what == "status":
            self._status_requests.append(request.id)
        else:
            self._open.append(_OpenRequest(request.id, request.what, now, request.name, request.workers))
            self._out.append(WriteAnswer((request.id,), "accepted", f"the region is {status.state.value}"))
            self._command_region(request)

    def _remember(self, request: str) -> None:
        if len(self._seen) == self._seen.maxlen:
            self._known.discard(self._seen[0])
        self._seen.append(request)
        self._known.add(request)

    def _refusal(self, request: Request, status: RegionStatus, wall_ms: int) -> str:
        """Return why the request is refused, empty if it is accepted."""
        if request.region != self._region:
            return f"the request is for region {request.region}, this is region {self._region}"
        if request.what not in _REFUSED:
            return f"unknown request {request.what!r}; this driver supports {', '.join(_REFUSED)}"
        if request.incarnation and request.incarnation != status.incarnation:
            return (
                f"the request is for incarnation {request.incarnation}, and {status.incarnation} is running:"
                " check the status, then send the request again if it still applies"
            )
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
        if self._without_checkpoints and request.what in _REFUSED_WITHOUT_CHECKPOINTS:
            return NO_CHECKPOINTS.format(self._region)
        if status.state.is_end:
            return f"{_ENDED_TEXT}: {status.state.value}"
        if len(self._open) + len(self._status_requests) >= limits.requests_open_max:
            return f"there are already {limits.requests_open_max} open requests: try again later"
        return _REFUSED[request.what].get(status.state, "")

    def _command_region(self, request: Request) -> None:
        what = request.what
        if what == "reset":
            self._out.append(CommandRegion(ResetWanted()))
        elif what == "stop":
            self._out.append(CommandRegion(StopWanted()))
        elif what in ("pause", "resume"):
            self._out.append(CommandRegion(PauseWanted(on=what == "pause")))
        elif what == "restore":
            self._out.append(CommandRegion(RestoreWanted(request.name, request.allow_republish)))
        elif what in ("scale", "unscale"):
            self._out.append(CommandRegion(ScaleWanted(request.workers if what == "scale" else None)))
        elif what == "replace":
            self._out.append(CommandRegion(ReplaceWanted(request.replaces, request.id)))
        elif what in ("savepoint", "drop_savepoint"):
            note = SavepointNote(
                by=request.asked_by, wall_time_ms=request.wall_time_ms, why=request.why, fork=request.fork
            )
            self._out.append(
                CommandRegion(SavepointWanted(request.name, request.checkpoint, what == "savepoint", note))
            )
        else:
            self._out.append(CommandRegion(CheckpointWanted()))

    # --- completion ---------------------------------------------------------------------------------------

    def _region_notified(self, event: RegionEvent, now: float) -> None:
        if isinstance(event, CheckpointCommitted):
            result = {"checkpoint": event.checkpoint, "step": event.step, "seconds": round(event.seconds, 6)}
            # A checkpoint that was under way when the request arrived may lack rows written before it.
            self._done("checkpoint", now - event.seconds + _CLOCK_STEP_S, result)
        elif isinstance(event, ResetReport) and not event.term:  # a take-over resets nobody else
            self._done("reset", now, reset_json(event))
        elif isinstance(event, SavepointSettled):
            self._savepoint_settled(event)
        elif isinstance(event, RestoreSettled):
            self._restore_settled(event)
        elif isinstance(event, ScaleSettled):
            self._scale_settled(event)
        elif isinstance(event, ReplaceSettled):
            self._replace_settled(event)

    def _replace_settled(self, event: ReplaceSettled) -> None:
        """Answer the request that this settles."""
        result = {
            "replaced": list(event.replaced),
            "seconds": round(event.seconds, 6),
            "pauseSeconds": round(event.pause_s, 6),
        }
        error = replaced_text(event) if event.error else ""
        self._answer([one for one in self._open if one.id == event.by], error, result)

    def _answer(self, done: list[_OpenRequest], error: str, result: dict[str, Any]) -> None:
        """Send the final answer to these requests."""
        if done:
            self._open = [one for one in self._open if one not in done]
            ids = tuple(one.id for one in done)
            self._out.append(WriteAnswer(ids, "failed" if error else "done", error, result))

    def _scale_settled(self, event: ScaleSettled) -> None:
        """Answer the requests for this number; after a change that was given up, also those for that."""
        result = {
            "workers": event.workers,
            "seconds": round(event.seconds, 6),
            "pauseSeconds": round(event.pause_s, 6),
        }
        scale = [one for one in self._open if one.what == "scale" and one.workers == event.wanted]
        of_all = event.wanted is None or event.given_up
        unscale = [one for one in self._open if one.what == "unscale" and of_all]
        for done, error in ((scale, event.error), (unscale, "" if event.given_up else event.error)):
            self._answer(done, error, result)

    def _savepoint_settled(self, event: SavepointSettled) -> None:
        """Answer all requests about this savepoint. Of two opposite ones, both receive the outcome."""
        done = [
            one
            for one in self._open
            if one.what in ("savepoint", "drop_savepoint") and one.name == event.name
        ]
        result = {} if event.error else {"name": event.name, "checkpoint": event.checkpoint}
        self._answer(done, event.error, result)

    def _restore_settled(self, event: RestoreSettled) -> None:
        done = [one for one in self._open if one.what == "restore" and one.name == event.to]
        result = {} if event.error else {"checkpoint": event.checkpoint, "step": event.step}
        self._answer(done, event.error, result)

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
        """Send the final answers, and the status in which the region ended: who asks later reads it. A fenced
        driver sends none: a newer driver now determines the outcome.
        """
        open_requests, self._open = self._open, []
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

"""What a region's driver does with requests that came through the store: who is refused, what is ordered,
what is answered. Pure.

Rules of this file: `handle(event, status, now) -> effects`. `now` is the coordinator's monotonic clock in
seconds; the clock on the wall comes in with `RequestArrived` and serves one rule, the patience of a request. It
does not know the store, nor whether this driver holds the manifest: the shell asks nothing of it while it
does not.

A request is carried out at most once by a driver: its id is kept. It is taken by the driver that was
there when it was written; `checkpoint/requests/server.py` does not even read older ones.

    status      answered with a snapshot, at most one each `status_answers_s`, which serves all who asked
    checkpoint  accepted; done with the first cut that was asked for after the request came
    reset       accepted; done with the report of the first reset that is complete after that
    pause       accepted; done as soon as the region is seen to be PAUSED
    resume      accepted; done as soon as it is seen not to be
    pin         accepted; done with the cut that carries the pin, failed with the reason why none does
    unpin       the same
    stop        accepted; done with the state in which the region ended
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from checkpoint import limits
from checkpoint.core.coordinator_vocabulary import (
    CutWanted,
    PauseWanted,
    ResetWanted,
    SavepointWanted,
    StopWanted,
)
from checkpoint.core.progress import reset_json
from checkpoint.core.region import (
    CutCommitted,
    RegionEvent,
    RegionState,
    RegionStatus,
    ResetReport,
    SavepointSettled,
)
from checkpoint.core.request_records import Request, Verdict

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request was read. `wall_ms`: the time on the wall here."""

    request: Request
    wall_ms: int


@dataclass(frozen=True, slots=True)
class RegionNotified:
    """The region told its observers something."""

    event: RegionEvent


@dataclass(frozen=True, slots=True)
class QueueRead:
    """All requests that are there were handed over; some time has passed."""


@dataclass(frozen=True, slots=True)
class RegionEnded:
    """The region has ended."""


DeskEvent: TypeAlias = RequestArrived | RegionNotified | QueueRead | RegionEnded

# --- effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandRegion:
    """An event for the coordinator, as if the driver's own user had asked."""

    event: CutWanted | ResetWanted | PauseWanted | SavepointWanted | StopWanted


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """Write this answer. A status is put in by the shell, fresh, where `with_status` says so."""

    requests: tuple[str, ...]
    verdict: Verdict
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    with_status: bool = False


DeskEffect: TypeAlias = CommandRegion | WriteAnswer

_OVER: Final = "the region has ended"
_REFUSED: Final[dict[str, dict[RegionState, str]]] = {
    "status": {},
    "checkpoint": {RegionState.STOPPING: "the region is being stopped, which takes a last cut by itself"},
    "reset": {
        RegionState.STARTING: "the region is starting from its last cut anyway",
        RegionState.WAITING_FOR_WORKERS: "the region is starting from its last cut anyway",
        RegionState.WAITING_FOR_STORE: "the region waits for its store; ask again when it goes on",
        RegionState.STOPPING: "the region is being stopped",
    },
    "pause": {RegionState.STOPPING: "the region is being stopped"},
    "resume": {RegionState.STOPPING: "the region is being stopped"},
    "savepoint": {RegionState.STOPPING: "the region is being stopped"},
    "unpin": {RegionState.STOPPING: "the region is being stopped"},
    "stop": {},
}
"""what -> state -> why not. In all other states that are no end it is taken."""
_CAN_CUT: Final = (RegionState.RUNNING, RegionState.PAUSED)
_NEED_A_CUT: Final = ("checkpoint", "pin", "unpin")
_NEED_CUTS: Final = (*_NEED_A_CUT, "pause", "resume")


@dataclass(slots=True)
class _Open:
    """An accepted request that is not done."""

    id: str
    what: str
    asked_at: float
    name: str = ""


NO_CUTS: Final = "{} is outside of any consistent region, and has no cuts"


class RequestHandler:
    """One driver's. See the top of this file.

    Invariants: an id in `_open` or `_status_asked` is in `_seen`; nothing is answered twice but by
    `accepted` and then one last word.
    """

    def __init__(self, region: str, *, without_cuts: bool = False) -> None:
        self._region = region
        self._without_cuts = without_cuts
        self._seen: deque[str] = deque(maxlen=limits.request_ids_kept_max)
        self._known: set[str] = set()
        self._open: list[_Open] = []
        self._status_asked: list[str] = []
        self._status_said_at: float | None = None
        self._out: list[DeskEffect] = []

    def handle(self, event: DeskEvent, status: RegionStatus, now: float) -> list[DeskEffect]:
        """What follows from the event."""
        if isinstance(event, RequestArrived):
            self._asked(event, status, now)
        elif isinstance(event, RegionNotified):
            self._happened(event.event, now)
        elif isinstance(event, QueueRead):
            self._looked(status, now)
        else:
            self._ended(status)
        effects, self._out = self._out, []
        return effects

    # --- asked --------------------------------------------------------------------------------------------

    def _asked(self, event: RequestArrived, status: RegionStatus, now: float) -> None:
        request = event.request
        if request.id in self._known:
            return
        self._remember(request.id)
        refusal = self._refusal(request, status, event.wall_ms)
        if refusal:
            self._out.append(WriteAnswer((request.id,), "refused", refusal))
        elif request.what == "status":
            self._status_asked.append(request.id)
        else:
            self._open.append(_Open(request.id, request.what, now, request.name))
            self._out.append(WriteAnswer((request.id,), "accepted", f"the region is {status.state.value}"))
            self._order(request, status)

    def _remember(self, request: str) -> None:
        if len(self._seen) == self._seen.maxlen:
            self._known.discard(self._seen[0])
        self._seen.append(request)
        self._known.add(request)

    def _refusal(self, request: Request, status: RegionStatus, wall_ms: int) -> str:
        """'' or why the request is not carried out."""
        if request.region != self._region:
            return f"this is region {self._region}, not {request.region}"
        if request.what not in _REFUSED:
            return f"{request.what!r} is not known to this driver; it knows {', '.join(_REFUSED)}"
        if request.incarnation and request.incarnation != status.incarnation:
            return (
                f"it is for incarnation {request.incarnation}, and {status.incarnation} is running:"
                " look at the status, and ask again if you still mean it"
            )
        old_ms, slack_ms = wall_ms - request.wall_time_ms, int(1000 * limits.request_clock_slack_s)
        if old_ms > request.patience_ms + slack_ms:
            return (
                f"it is {old_ms / 1000:.0f} s old by this driver's clock, and was to be begun within"
                f" {request.patience_ms / 1000:.0f} s: ask again"
            )
        if -old_ms > slack_ms:
            return f"it comes from {-old_ms / 1000:.0f} s in the future: set the clocks of both machines"
        if self._without_cuts and request.what in _NEED_CUTS:
            return NO_CUTS.format(self._region)
        if status.state.is_end:
            return f"{_OVER}: {status.state.value}"
        if len(self._open) + len(self._status_asked) >= limits.requests_open_max:
            return f"{limits.requests_open_max} requests are open already: ask again later"
        return _REFUSED[request.what].get(status.state, "")

    def _order(self, request: Request, status: RegionStatus) -> None:
        what = request.what
        if what == "reset":
            self._out.append(CommandRegion(ResetWanted()))
        elif what == "stop":
            self._out.append(CommandRegion(StopWanted()))
        elif what in ("pause", "resume"):
            self._out.append(CommandRegion(PauseWanted(on=what == "pause")))
        elif what in ("pin", "unpin"):
            self._out.append(CommandRegion(SavepointWanted(request.name, request.cut, on=what == "pin")))
        elif status.state in _CAN_CUT:
            self._out.append(CommandRegion(CutWanted()))

    # --- what becomes of them -----------------------------------------------------------------------------

    def _happened(self, event: RegionEvent, now: float) -> None:
        if isinstance(event, CutCommitted):
            result = {"checkpoint": event.cut, "step": event.step, "seconds": round(event.seconds, 6)}
            # A cut that was under way when the request came may lack what the asker wants in it.
            self._done("checkpoint", now - event.seconds, result)
        elif isinstance(event, ResetReport):
            self._done("reset", now, reset_json(event))
        elif isinstance(event, SavepointSettled):
            self._savepoint_settled(event)

    def _savepoint_settled(self, event: SavepointSettled) -> None:
        """All who wanted something of the pin of that name; one of two opposite wishes is told what is."""
        done = [one for one in self._open if one.what in ("pin", "unpin") and one.name == event.name]
        if done:
            self._open = [one for one in self._open if one not in done]
            verdict: Verdict = "failed" if event.error else "done"
            result = {} if event.error else {"name": event.name, "checkpoint": event.cut}
            self._out.append(WriteAnswer(tuple(one.id for one in done), verdict, event.error, result))

    def _done(self, what: str, asked_until: float, result: dict[str, Any]) -> None:
        done = [one for one in self._open if one.what == what and one.asked_at <= asked_until]
        if done:
            self._open = [one for one in self._open if one not in done]
            self._out.append(WriteAnswer(tuple(one.id for one in done), "done", "", result))

    def _looked(self, status: RegionStatus, now: float) -> None:
        """Whoever waits for a cut gets one as soon as there can be one; the coordinator ignores it
        otherwise.
        """
        paused = status.state is RegionState.PAUSED
        result = {"state": status.state.value, "checkpoint": status.last_cut, "step": status.last_cut_step}
        self._done("pause" if paused else "resume", now, result)
        if status.state in _CAN_CUT and any(one.what in _NEED_A_CUT for one in self._open):
            self._out.append(CommandRegion(CutWanted()))
        said_at = self._status_said_at
        if self._status_asked and (said_at is None or now - said_at >= limits.status_answers_s):
            self._status_said_at = now
            self._say_status()

    def _say_status(self) -> None:
        self._out.append(WriteAnswer(tuple(self._status_asked), "done", with_status=True))
        self._status_asked = []

    def _ended(self, status: RegionStatus) -> None:
        """The last words. A driver that was fenced has none: it does not know what became of the region."""
        open_requests, self._open = self._open, []
        if status.state is RegionState.FENCED:
            self._status_asked = []
            return
        if self._status_asked:
            self._say_status()
        how = f"{_OVER}: {status.state.value}" + (f" ({status.reason})" if status.reason else "")
        for one in open_requests:
            if one.what == "stop":
                result = {
                    "state": status.state.value,
                    "reason": status.reason,
                    "lastCheckpoint": status.last_cut,
                }
                self._out.append(WriteAnswer((one.id,), "done", "", result))
            else:
                self._out.append(WriteAnswer((one.id,), "failed", how))

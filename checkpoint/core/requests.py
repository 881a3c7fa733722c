"""Requests that reach a region's driver through the store: their records, and how they are refused, ordered,
answered.

Pure: `handle(event, status, now) -> effects`. `now` is the coordinator's monotonic clock in seconds. The
wall clock comes with `RequestArrived` and serves one rule, the patience of a request. This module knows
neither the store nor whether this driver holds the manifest: the shell does not call it while the manifest
is not held.

A driver carries out a request at most once, because it keeps the ids. A request is handled by the driver
that ran when it was written; `checkpoint/requests/server.py` does not read older ones.

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

*Records.* Requests and answers are in objects of the store, which `checkpoint/requests/queue.py` reads and
writes. A record, integers big-endian:

    offset  0  magic           ff 44 52 51
            4  version         u8, 1
            5  kind            u8, RecordKind
            6  reserved        u16, 0
            8  payload bytes   u32
           12  digest          u64, xxh3-64 of the 12 bytes before it and the payload
           20  payload         JSON

A record is valid if and only if

1. the magic is this,
2. the version and the kind are known,
3. reserved is 0,
4. the payload is within the limit of its kind,
5. the digest matches,
6. the payload is JSON of its kind.

UTF-8 has no byte ff, so a payload contains no magic. If a magic follows within an incomplete record, that
record was torn, possibly within its header, and reading continues at the magic. Bytes that are no valid
record are skipped and counted.
"""

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

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
from checkpoint.core.region import (
    CheckpointCommitted,
    RegionEvent,
    RegionState,
    RegionStatus,
    ReplaceSettled,
    ResetReport,
    RestoreSettled,
    SavepointSettled,
    ScaleSettled,
    replaced_text,
)
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON

MAGIC: Final = b"\xffDRQ"
VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBBHI")
_DIGEST: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEAD.size + _DIGEST.size
assert HEADER_BYTES == 20

Verdict: TypeAlias = Literal["accepted", "refused", "done", "failed"]
"""| verdict | meaning |
|---|---|
| accepted | the request is carried out; another answer follows |
| refused | nothing was done; final |
| done | carried out, with the result; final |
| failed | begun and not completed; final |
"""


class RecordKind(IntEnum):
    """The kind of a record. Numbers are never reused."""

    REQUEST = 1
    ANSWER = 2


PAYLOAD_BYTES_MAX: Final = {
    RecordKind.REQUEST: limits.request_bytes_max,
    RecordKind.ANSWER: limits.answer_bytes_max,
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a region."""

    id: str
    """32 random hexadecimal digits. Two records with one id are one request."""
    region: str
    what: str
    """status, checkpoint, reset, pause, resume, savepoint, drop_savepoint, restore, scale, unscale, replace
    or stop.
    """
    wall_time_ms: int
    patience_ms: int
    """How long after `wall_time_ms` the request may still be begun."""
    incarnation: int = 0
    """The incarnation whose driver is addressed, 0 for any."""
    name: str = ""
    """The name of a savepoint, or the checkpoint to restore as `lines.find_target` names it."""
    allow_republish: bool = False
    """Restore although rows come again that were shown."""
    why: str = ""
    """What a person says of a savepoint."""
    fork: str = ""
    """The region that begins as a fork of the checkpoint of a savepoint."""
    checkpoint: int = 0
    """The checkpoint of a savepoint, 0 for the last one."""
    workers: int = 0
    """The number of workers to go to."""
    replaces: tuple[int, ...] = ()
    """The workers that get other processes, in this order; none: all."""
    asked_by: str = ""
    """user@host, for the log."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one or more requests."""

    requests: tuple[str, ...]
    region: str
    incarnation: int
    """The manifest epoch that the driver held when it wrote the answer."""
    verdict: Verdict
    wall_time_ms: int
    driver: str = ""
    """host:pid of the driver."""
    reason: str = ""
    result: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes that are no valid record."""

    count: int
    why: str


QueueItem: TypeAlias = Request | Answer | Skipped

_TYPES: Final[dict[RecordKind, type[Request] | type[Answer]]] = {
    RecordKind.REQUEST: Request,
    RecordKind.ANSWER: Answer,
}


def encode_record(record: Request | Answer) -> bytes:
    """Return the bytes of a record. Raises ValueError above the limit of its kind."""
    kind = RecordKind.REQUEST if isinstance(record, Request) else RecordKind.ANSWER
    payload = msgspec.json.encode(record)
    if len(payload) > PAYLOAD_BYTES_MAX[kind]:
        raise ValueError(f"{kind.name} of {len(payload)} bytes exceeds the limit {PAYLOAD_BYTES_MAX[kind]}")
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, len(payload))
    return head + _DIGEST.pack(digest64(head + payload)) + payload


class RecordReader:
    """An incremental reader: takes the bytes of one object in any pieces, returns the records in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[QueueItem]:
        """Return the records that are now complete, and the skipped bytes, in order. Never raises."""
        self._buffer += data
        return list(self._items())

    def _items(self) -> Iterator[QueueItem]:
        while self._buffer:
            if (junk_bytes := self._before_magic()) > 0:
                yield self._skip(junk_bytes, "no record begins here")
                continue
            if len(self._buffer) < HEADER_BYTES:
                return
            kind, size, problem = _check_header(bytes(self._buffer[:HEADER_BYTES]))
            if problem:
                yield self._skip(1, problem)
                continue
            end = HEADER_BYTES + size
            assert kind is not None
            if self._is_complete(end):
                yield self._take(kind, end)
            elif (torn_at := self._buffer.find(MAGIC, 1, end)) > 0:
                yield self._skip(torn_at, "torn record, followed by another one")
            elif len(self._buffer) < end:
                return
            else:
                yield self._skip(1, "record with a wrong digest")

    def _is_complete(self, end: int) -> bool:
        """Return whether the record is complete and its digest matches."""
        if len(self._buffer) < end:
            return False
        stated = _DIGEST.unpack_from(self._buffer, _HEAD.size)[0]
        signed = bytes(self._buffer[: _HEAD.size] + self._buffer[HEADER_BYTES:end])
        return bool(digest64(signed) == stated)

    def _before_magic(self) -> int:
        """Return how many bytes precede a magic, or the beginning of one at the end of the buffer."""
        at = self._buffer.find(MAGIC)
        if at >= 0:
            return at
        for length in range(min(len(MAGIC) - 1, len(self._buffer)), 0, -1):
            if self._buffer.endswith(MAGIC[:length]):
                return len(self._buffer) - length
        return len(self._buffer)

    def _take(self, kind: RecordKind, end: int) -> QueueItem:
        payload = bytes(self._buffer[HEADER_BYTES:end])
        del self._buffer[:end]
        try:
            record: Request | Answer = msgspec.json.decode(payload, type=_TYPES[kind])
        except MALFORMED_JSON as error:
            return Skipped(end, f"{kind.name} does not decode: {error}")
        return record

    def _skip(self, count: int, why: str) -> Skipped:
        del self._buffer[:count]
        return Skipped(count, why)


def _check_header(header: bytes) -> tuple[RecordKind | None, int, str]:
    """Return (kind, payload bytes, why the header is invalid or empty)."""
    _, version, number, reserved, size = _HEAD.unpack_from(header)
    if version != VERSION:
        return None, 0, f"record of version {version}, this program reads version {VERSION}"
    try:
        kind = RecordKind(number)
    except ValueError:
        return None, 0, f"record of unknown kind {number}"
    if reserved:
        return None, 0, f"record with reserved bytes {reserved}"
    if size > PAYLOAD_BYTES_MAX[kind]:
        return None, 0, f"{kind.name} of {size} bytes exceeds the limit {PAYLOAD_BYTES_MAX[kind]}"
    return kind, size, ""


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

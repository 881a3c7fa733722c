"""What a page or a screen shows of a reading. Pure: no I/O.

A state is good only if a driver answers now, and no checkpoint is stuck. A region whose driver is silent has
no state of its own: how long ago it gave the last sign tells a region that has died from one that is slow.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from checkpoint import Checkpoint, OperatorNote, checkpoint_row, under_way_text

STUCK_S: Final = 2.0
"""A checkpoint that waits for longer may be stuck."""
_TIMES_LAST: Final = 3.0
"""It is, if it also takes so many times as long as the last one: a large state takes long each time."""
_RECENT_MS: Final = 30_000
"""A driver that gave a sign so recently may only be slow, or accepts no requests."""
_KINDS: Final = {"RUNNING": "good", "FINISHED": "good", "STOPPED": "", "FAILED": "bad", "FENCED": "bad"}


def is_stuck(status: Mapping[str, Any]) -> bool:
    under_way = status["underWay"]
    if under_way is None or not under_way["waitsFor"]:
        return False
    usual = (status.get("lastProgress") or {}).get("checkpointSeconds", 0.0)
    return bool(under_way["seconds"] > max(STUCK_S, _TIMES_LAST * usual))


def shown_state(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a reading. kind: "good", "warn", "bad" or "". text: the reason, or what it waits
    for. sinceMs: None while a driver answers, otherwise a wall time, and `since` what it is of: "ended",
    "last sign" of a driver, "as of" for a reading that is stale.
    """
    if (stale := reading["stale"]) is None:
        return _of_now(reading)
    found = _of_now(reading)
    kind = "warn" if found["kind"] == "good" else found["kind"]
    return found | {"kind": kind, "text": stale["problem"], "since": "as of", "sinceMs": stale["timeMs"]}


def _of_now(reading: Mapping[str, Any]) -> dict[str, Any]:
    status, last, checkpoint = reading["status"], reading["lastReport"], reading["manifest"]["lastCheckpoint"]
    if reading["answered"]:
        name = status["state"]
        if name == "RUNNING" and is_stuck(status):
            return _state("RUNNING, checkpoint stuck", "warn", under_way_text(status["underWay"]))
        return _state(name, _KINDS.get(name, "warn"), status["reason"])
    if reading["ended"]:
        name = last["status"]["state"]
        return _state(name, _KINDS.get(name, "warn"), last["status"]["reason"], "ended", last["timeMs"])
    if checkpoint is not None and checkpoint["final"]:
        return _state("FINISHED", "good", "all input is processed", "ended", checkpoint["timeMs"])
    sign_ms = max((one["timeMs"] for one in (last, checkpoint) if one is not None), default=None)
    recent = sign_ms is not None and reading["timeMs"] - sign_ms < _RECENT_MS
    since = "" if sign_ms is None else "last sign"
    return _state("no driver", "warn" if recent else "bad", reading["problem"], since, sign_ms)


def unreadable_state(problem: str) -> dict[str, Any]:
    return _state("not readable", "bad", problem)


def slow(status: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what holds a region up: `workers`, for whose votes a stuck checkpoint waits, and `operators`
    that run for long, or in a worker that is waited for, with their workers.
    """
    found: dict[str, Any] = {"workers": [], "operators": {}}
    if status is None:
        return found
    if is_stuck(status):
        found["workers"] = [one["worker"] for one in status["underWay"]["waitsFor"]]
    for one in status["workers"]:
        if one["operator"] and (one["operatorSeconds"] > STUCK_S or one["worker"] in found["workers"]):
            found["operators"].setdefault(one["operator"], []).append(one["worker"])
    return found


def _state(name: str, kind: str, text: str, since: str = "", since_ms: int | None = None) -> dict[str, Any]:
    return {"name": name, "kind": kind, "text": text, "since": since, "sinceMs": since_ms}


BUSY: Final = 0.9
"""A worker whose circuit works for this share of the time takes all that it can."""
LAG_BYTES: Final = 1 << 20
"""Less is always on its way to the disks of the store."""


def pressure(status: Mapping[str, Any] | None, rates: Mapping[str, Any]) -> dict[str, str]:
    """Return what holds the sources back. kind: "store", "workers" or "none"; "unknown" without a status."""
    # A source reads no faster than the workers process and the store syncs: the first of these that is at its
    # limit explains why input waits.
    if status is None:
        return {"kind": "unknown", "text": ""}
    workers = status["workers"]
    unread = sum(one["backlogBytes"] or 0 for one in workers)
    waits = f"{unread} bytes of input are not yet read" if unread else ""
    if status["storeWaiting"]:
        return {"kind": "store", "text": status["storeWaiting"]}
    if not unread:
        return {"kind": "none", "text": ""}
    busy = [
        str(one["worker"])
        for one in workers
        if (rates["workers"].get(str(one["worker"]), {}).get("busySeconds") or 0.0) >= BUSY
    ]
    if busy:
        return {"kind": "workers", "text": f"busy all the time: {workers_named(busy)}; {waits}"}
    if is_stuck(status):  # it holds the steps back, and so the input
        late = [str(one["worker"]) for one in status["underWay"]["waitsFor"]]
        return {"kind": "workers", "text": f"a checkpoint waits for {workers_named(late)}; {waits}"}
    lag = sum(one["lagBytes"] for one in workers)
    if lag > LAG_BYTES:
        return {"kind": "store", "text": f"{lag} bytes are not yet synced; {waits}"}
    return {"kind": "none", "text": waits}


def workers_named(numbers: Sequence[object]) -> str:
    if not numbers:
        return ""
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def graph_of(operators: Mapping[str, OperatorNote]) -> list[dict[str, Any]]:
    """Return the operators of a checkpoint."""
    return [
        {"name": name, "kind": note.kind, "inputs": list(note.inputs), "detail": note.text_of_state}
        for name, note in operators.items()
    ]


_DIRECTORY_KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("manifest", r"(?P<owner>.+)\.coord"),
        ("tree", r"(?P<owner>.+)\.fs"),
        ("requests", r"(?P<owner>.+)\.(requests|answers)"),
        ("staged rows", r"(?P<owner>.+?)\.sink\..+\.p\d{4,}"),
        ("input", r"(?P<owner>.+?)\.in\.[^.]+(\.[^.]+)?"),
        ("readers", r"(?P<owner>.+?)\.(rd\..+|ro)"),
        ("sites", r"(?P<owner>.+?)\.sites(-.*)?"),
        ("worker", r"(?P<owner>.+?)\.w\d{4,}(\..+)?"),
    )
)


def directory_row(name: str) -> dict[str, Any]:
    """Return the name, the kind of directory ("": a user's own), and the region or application of it."""
    for kind, pattern in _DIRECTORY_KINDS:
        if (found := pattern.fullmatch(name)) is not None:
            return {"name": name, "kind": kind, "owner": found["owner"]}
    return {"name": name, "kind": "", "owner": ""}


TIMELINE_MAX: Final = 60


def timeline(checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
    """Return the newest checkpoints, oldest first, with the seconds of each phase of each worker."""
    return [
        checkpoint_row(checkpoint)
        | {
            "workers": {
                str(worker): {phase: round(seconds, 6) for phase, seconds in phases.items()}
                for worker, phases in sorted(checkpoint.phases_s.items())
            },
        }
        for checkpoint in list(checkpoints)[-TIMELINE_MAX:]
    ]


HISTORY_MAX: Final = 300
"""Points that are kept: at a reading every two seconds, ten minutes."""


class RegionRates:
    """The rates of one region. Give it each status in turn, in the form of `dos region status --json`."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, Any]] | None = None
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)

    def update(self, status: Mapping[str, Any] | None, now_s: float, wall_ms: int) -> dict[str, Any]:
        """Return the rates since the last status, and add a point to the history. now_s: monotonic seconds.
        A rate is None if it is not known, as that of a worker or an operator whose counters began again.
        """
        before, self._before = self._before, None if status is None else (now_s, status)
        if status is None:
            return {"rowsIn": None, "rowsOut": None, "workers": {}, "operators": {}}
        seconds, old = (0.0, {}) if before is None else (now_s - before[0], before[1])
        workers = _rates_of(status, old, "workers", "worker", ("rowsIn", "rowsOut", "busySeconds"), seconds)
        for one in status.get("workers", ()):
            rates = workers[str(one["worker"])]
            rates["busySeconds"] = _busy(rates["busySeconds"], one.get("operatorSeconds") or 0.0, seconds)
        if old.get("incarnation") != status.get("incarnation"):
            old = {}  # operators count since the incarnation began
        operators = _rates_of(status, old, "operators", "name", ("rowsIn", "rowsOut", "busySeconds"), seconds)
        for name, rates in operators.items():
            running = [one.get("operatorSeconds") for one in status["workers"] if one.get("operator") == name]
            rates["busySeconds"] = _share(rates["busySeconds"], running, len(status["workers"]), seconds)
        found = {
            "rowsIn": _sum(one["rowsIn"] for one in workers.values()),
            "rowsOut": _sum(one["rowsOut"] for one in workers.values()),
            "workers": workers,
            "operators": operators,
        }
        listed = status.get("workers", ())
        self.history.append(
            {
                "timeMs": wall_ms,
                "rowsIn": found["rowsIn"],
                "rowsOut": found["rowsOut"],
                "lagBytes": sum(one["lagBytes"] for one in listed),
                "backlogBytes": _sum(one.get("backlogBytes") for one in listed),
            }
        )
        return found


def _rates_of(
    status: Mapping[str, Any],
    old: Mapping[str, Any],
    items: str,
    key: str,
    counters: tuple[str, ...],
    seconds: float,
) -> dict[str, dict[str, float | None]]:
    known = {one[key]: one for one in old.get(items, ())}
    rates = {}
    for one in status.get(items, ()):
        earlier = known.get(one[key], {})
        same = earlier.get("attempt") == one.get("attempt")
        rates[str(one[key])] = {
            name: _rate(one.get(name), earlier.get(name) if same else None, seconds) for name in counters
        }
    return rates


def _busy(rate: float | None, in_operator_s: float, seconds: float) -> float | None:
    # A worker counts a call when that has returned, so one that has not counts by its own time.
    if seconds <= 0 or in_operator_s <= 0:
        return rate
    return max(rate or 0.0, round(min(in_operator_s / seconds, 1.0), 3))


def _share(rate: float | None, running_s: list[float | None], workers: int, seconds: float) -> float | None:
    """Return the share of the time of all workers that an operator took."""
    if rate is None:
        return None
    running = sum(min((one or 0.0) / seconds, 1.0) for one in running_s)
    return round(min((rate + running) / workers, 1.0), 3)


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0 or now < before:
        return None
    return round((now - before) / seconds, 3)


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

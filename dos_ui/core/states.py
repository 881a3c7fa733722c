"""The state of a region as one badge: what a list or a headline shows of a reading. Pure: no I/O.

A state is good only if a driver answers now, and no checkpoint is stuck. A region whose driver is silent has
no state of its own: how long ago it gave the last sign is what tells a region that has died from one that
is slow.
"""

from collections.abc import Mapping
from typing import Any, Final

from checkpoint import under_way_text

STUCK_S: Final = 2.0
"""A checkpoint that waits for longer may be stuck."""
_TIMES_LAST: Final = 3.0
"""It is, if it also takes so many times as long as the last one: a large state takes long each time."""
_RECENT_MS: Final = 30_000
"""A driver that gave a sign so recently may only be slow, or accepts no requests."""
_KINDS: Final = {"RUNNING": "good", "FINISHED": "good", "STOPPED": "", "FAILED": "bad", "FENCED": "bad"}


def is_stuck(status: Mapping[str, Any]) -> bool:
    """Return whether the checkpoint that is under way waits for longer than is usual in this region."""
    under_way = status["underWay"]
    if under_way is None or not under_way["waitsFor"]:
        return False
    usual = (status.get("lastProgress") or {}).get("checkpointSeconds", 0.0)
    return bool(under_way["seconds"] > max(STUCK_S, _TIMES_LAST * usual))


def shown_state(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a reading, in the form of `dos region status --json` with `stale` of
    `readings.py`.

    name: of the state. kind: "good", "warn", "bad" or "". text: the reason, or what it waits for; "" if there
    is nothing to say. sinceMs: None while a driver answers, otherwise a wall time, and `since` what it is of:
    "ended", "last sign" of a driver, "as of" for a reading that is stale.
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
    """Return the state of a region that cannot be read."""
    return _state("not readable", "bad", problem)


def slow(status: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what holds a region up: `workers`, for whose votes a stuck checkpoint waits, and `operators`,
    operator -> the workers that have run it for long, or are waited for while they run it.
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

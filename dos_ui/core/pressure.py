"""What holds the sources of a region back. Pure: no I/O.

A source reads no faster than the workers process and the store syncs. So input that waits is explained by the
first of these that is at its limit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dos_ui.core.states import is_stuck

BUSY: Final = 0.9
"""A worker whose circuit works for this share of the time takes all that it can."""
LAG_BYTES: Final = 1 << 20
"""Less is always on its way to the disks of the store."""


def pressure(status: Mapping[str, Any] | None, rates: Mapping[str, Any]) -> dict[str, str]:
    """Return what holds the sources back, of a status and the rates that belong to it.

    kind: "store", "workers" or "none"; "unknown" without a status. text: in words, "" if there is nothing to
    say.
    """
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
    """Return "worker 1" or "workers 1, 2"; "" for none."""
    if not numbers:
        return ""
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"

"""Rates between two statuses of a region, and a short history of them. Pure: no I/O."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

HISTORY_MAX: Final = 300
"""Points that are kept: at a reading every two seconds, ten minutes."""


class RegionRates:
    """The rates of one region. Give it each status in turn, in the form of `dos region status --json`."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, Any]] | None = None
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)

    def update(self, status: Mapping[str, Any] | None, now_s: float, wall_ms: int) -> dict[str, Any]:
        """Return the rates since the last status, and add a point to the history.

        now_s: monotonic seconds. A rate is None if it is not known: of a first status, of a worker or an
        operator whose counters began again, and without a status.
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
    """Return, for each item of a list, the rate of each of its counters."""
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
    """Return the share of the time in which a worker worked. It counts a call when that has returned, so one
    that has not counts by its own time.
    """
    if seconds <= 0 or in_operator_s <= 0:
        return rate
    return max(rate or 0.0, round(min(in_operator_s / seconds, 1.0), 3))


def _share(rate: float | None, running_s: list[float | None], workers: int, seconds: float) -> float | None:
    """Return the share of the time of all workers that an operator took: its calls that have returned, and
    those that have not.
    """
    if rate is None:
        return None
    running = sum(min((one or 0.0) / seconds, 1.0) for one in running_s)
    return round(min((rate + running) / workers, 1.0), 3)


def _rate(now: float | None, before: float | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0 or now < before:
        return None
    return round((now - before) / seconds, 3)


def _sum(values: Any) -> float | None:
    """Return the sum of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None

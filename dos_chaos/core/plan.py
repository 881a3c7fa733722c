"""The plan of a run: which fault, on which servers, when and for how long. Pure: a seed determines it.

Faults follow one another, so that each gap in the acknowledgements belongs to one fault. Every kind occurs
once before any occurs twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

KILL: Final = "kill"
STOP: Final = "stop"
DISK_FULL: Final = "disk-full"
SLOW_DISK: Final = "slow-disk"
WIPE: Final = "wipe"

KINDS: Final = {
    KILL: "SIGKILL, started again after a while",
    STOP: "SIGSTOP, later SIGCONT",
    DISK_FULL: "no space above the reserve of the server: appends are refused",
    SLOW_DISK: "stopped in pulses, while a file next to its data is written and synced without pause",
    WIPE: "killed, its data deleted, replaced by an empty server at its address",
}
"""Kind -> what happens to a server."""

DEFAULT_KINDS: Final = (KILL, STOP, DISK_FULL, SLOW_DISK)
ON_SEVERAL: Final = (KILL, STOP, DISK_FULL)
WIPE_SERVERS_MIN: Final = 3
"""A store of two continues without its lost member only after a person has confirmed the loss."""

CALM_FRACTION: Final = 0.1
CALM_S_MIN: Final = 2.0
SLOT_S: Final = 8.0
SLOT_S_MIN: Final = 2.0
ON_ONE: Final = 0.7
ON_ALL: Final = 0.15


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. `servers`: numbers from 0 on. Times in seconds; it starts later if the one before lasts."""

    kind: str
    servers: tuple[int, ...]
    start_s: float
    duration_s: float


def problem_of(kinds: Sequence[str], servers: int, seconds: float) -> str:
    """Return why these faults cannot be injected into so many servers in this time, or an empty text."""
    if unknown := sorted(set(kinds) - set(KINDS)):
        return f"unknown fault {', '.join(unknown)}; faults are {', '.join(KINDS)}"
    if not kinds:
        return f"no fault is named; faults are {', '.join(KINDS)}"
    if WIPE in kinds and servers < WIPE_SERVERS_MIN:
        return f"{WIPE} needs {WIPE_SERVERS_MIN} servers, so that the others still have what one loses"
    needed_s = seconds_min(len(set(kinds)))
    if seconds < needed_s:
        return f"{len(set(kinds))} kinds of faults need at least {ceil(needed_s / 0.6) / 100:g} minutes"
    return ""


def seconds_min(kinds: int) -> float:
    """Return the seconds in which so many kinds of faults can each occur once."""
    return CALM_S_MIN + kinds * SLOT_S_MIN


def make_plan(
    kinds: Sequence[str], servers: int, seconds: float, draw: Callable[[], float]
) -> list[PlannedFault]:
    """Return the faults of a run, in order. `draw`: random numbers from 0 up to, not including, 1.

    The first tenth has no fault: its figures are what the others are compared with. After that each fault has
    a slot of the same length. It lasts 30 % to 55 % of it; the rest shows how the store recovers.
    """
    calm_s = max(CALM_S_MIN, CALM_FRACTION * seconds)
    count = max(len(kinds), int((seconds - calm_s) / SLOT_S))
    slot_s = (seconds - calm_s) / count
    order: list[str] = []
    while len(order) < count:
        order += _shuffled(kinds, draw)
    return [
        PlannedFault(
            kind, _targets(kind, servers, draw), calm_s + index * slot_s, slot_s * (0.3 + 0.25 * draw())
        )
        for index, kind in enumerate(order[:count])
    ]


def _shuffled(kinds: Sequence[str], draw: Callable[[], float]) -> list[str]:
    return [kind for _, kind in sorted((draw(), kind) for kind in kinds)]


def _targets(kind: str, servers: int, draw: Callable[[], float]) -> tuple[int, ...]:
    """One server mostly, seldom two or all."""
    order = [number for _, number in sorted((draw(), number) for number in range(servers))]
    several = draw()
    if kind not in ON_SEVERAL or several < ON_ONE:
        return (order[0],)
    return tuple(sorted(order if several >= 1 - ON_ALL else order[:2]))

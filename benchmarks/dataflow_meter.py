"""The meter of `./run bench dataflow`: the rows processed so far, and the processor seconds and memory of a
process and its descendants.

It uses only the standard library, because programs of other environments import it, and it is the same for
all systems. Each system's program counts its own rows.

A rate is computed between two measurements: the first one after the warm-up, and the last one. This excludes
the start of processes and the first seconds of a JVM. Processor seconds are measured over the same interval;
on a machine with other work they are more reliable than the rate.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOK_S = 0.1
MEMORY_EACH_S = 1.0
START_S_MAX = 120.0
"""How long the first rows may take: a JVM, and Python workers below it."""
WARM_S = 5.0
WARM_PART = 0.2
"""The warm-up is over when so long has passed since the first rows, or so much of the input."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at a time."""

    time: float
    rows: int
    cpu_s: float


def tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """What these processes have used, and those below them that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def memory_mb(pids: list[int]) -> float:
    """What they hold now, pages that several share counted once, in MB (10^6 bytes)."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Meter:
    """`watch` until all rows are through, or the time is up."""

    def __init__(self, rows: int, cap_s: float) -> None:
        """rows: how many there are in all. cap_s: seconds from the first rows on."""
        self._rows = rows
        self._cap_s = cap_s
        self._looks: list[Look] = []
        self._peak_mb = 0.0
        self._memory_at = 0.0

    def watch(
        self, rows_so_far: Callable[[], int], is_over: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Measure until the end and return the figures. `is_over`: whether the system has ended."""
        begun = time.perf_counter()
        while True:
            over = is_over()
            self._look(rows_so_far())
            now = time.perf_counter()
            until = self._looks[0].time + self._cap_s if self._looks else begun + START_S_MAX
            if over or (self._looks and self._looks[-1].rows >= self._rows):
                return self.figures(finished=True)
            if now > until:
                return self.figures(finished=False)
            time.sleep(LOOK_S)

    def _look(self, rows: int) -> None:
        now = time.perf_counter()
        came = rows and (not self._looks or rows > self._looks[-1].rows)
        weigh = now > self._memory_at + MEMORY_EACH_S
        pids = tree(os.getpid()) if came or weigh else []
        if came:
            self._looks.append(Look(now, rows, cpu_seconds(pids)))
        if weigh:
            self._memory_at = now
            self._peak_mb = max(self._peak_mb, memory_mb(pids))

    def figures(self, *, finished: bool) -> dict[str, Any]:
        """As JSON: rows_per_s None if too little came to tell."""
        looks = self._looks
        found: dict[str, Any] = {
            "rows": looks[-1].rows if looks else 0,
            "of": self._rows,
            "finished": finished,
            "peak_mb": round(self._peak_mb),
            "rows_per_s": None,
            "cpu_s_per_million": None,
        }
        if len(looks) < 2:
            return found
        last = looks[-1]
        warm = next(
            (one for one in looks if one.time > looks[0].time + WARM_S or one.rows > self._rows * WARM_PART),
            looks[0],
        )
        if warm is last:
            warm = looks[-2]
        rows = last.rows - warm.rows
        found["seconds"] = round(last.time - warm.time, 2)
        found["rows_per_s"] = round(rows / (last.time - warm.time))
        found["cpu_s_per_million"] = round((last.cpu_s - warm.cpu_s) / rows * 1e6, 3)
        return found

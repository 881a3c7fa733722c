"""The meter of `./run bench dataflow`: the rows processed so far, and the processor seconds and memory of a
process and its descendants.

It uses only the standard library, because programs of other environments import it, and it is the same for
all systems. Each system's program counts its own rows.

A rate is computed between two measurements: the first one after the warm-up, and the last one. This
excludes the start of processes and the first seconds of a JVM. Processor seconds are measured over the
same interval; on a machine with other work they are more reliable than the rate.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_S = 0.1
MEMORY_EACH_S = 1.0
START_S_MAX = 120.0
"""The time limit for the first rows: a JVM has to start, and Python workers below it."""
WARM_S = 5.0
WARM_PART = 0.2
"""The warm-up ends this long after the first rows, or after this part of the input."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows and processor seconds at one time."""

    time: float
    rows: int
    cpu_s: float


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
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
    """Return the processor seconds of these processes and of their descendants that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICKS


def memory_mb(pids: list[int]) -> float:
    """Return the current memory in MB (10^6 bytes). Shared pages are counted once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Meter:
    """Measures a system: `watch` samples until all rows are processed or the time limit is reached."""

    def __init__(self, rows: int, cap_s: float) -> None:
        """rows: the number of rows of the input. cap_s: the time limit, in seconds from the first rows on."""
        self._rows = rows
        self._cap_s = cap_s
        self._samples: list[Sample] = []
        self._peak_mb = 0.0
        self._memory_at = 0.0

    def watch(
        self, rows_so_far: Callable[[], int], is_over: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Measure until the end and return the figures. `is_over`: whether the system has ended."""
        begun = time.perf_counter()
        while True:
            over = is_over()
            self._sample(rows_so_far())
            now = time.perf_counter()
            until = self._samples[0].time + self._cap_s if self._samples else begun + START_S_MAX
            if over or (self._samples and self._samples[-1].rows >= self._rows):
                return self.figures(finished=True)
            if now > until:
                return self.figures(finished=False)
            time.sleep(POLL_S)

    def _sample(self, rows: int) -> None:
        now = time.perf_counter()
        came = rows and (not self._samples or rows > self._samples[-1].rows)
        weigh = now > self._memory_at + MEMORY_EACH_S
        pids = tree(os.getpid()) if came or weigh else []
        if came:
            self._samples.append(Sample(now, rows, cpu_seconds(pids)))
        if weigh:
            self._memory_at = now
            self._peak_mb = max(self._peak_mb, memory_mb(pids))

    def figures(self, *, finished: bool) -> dict[str, Any]:
        """Return the figures as JSON. `rows_per_s` is None if there were too few samples."""
        samples = self._samples
        found: dict[str, Any] = {
            "rows": samples[-1].rows if samples else 0,
            "of": self._rows,
            "finished": finished,
            "peak_mb": round(self._peak_mb),
            "rows_per_s": None,
            "cpu_s_per_million": None,
        }
        if len(samples) < 2:
            return found
        last = samples[-1]
        warm = next(
            (
                one
                for one in samples
                if one.time > samples[0].time + WARM_S or one.rows > self._rows * WARM_PART
            ),
            samples[0],
        )
        if warm is last:
            warm = samples[-2]
        rows = last.rows - warm.rows
        found["seconds"] = round(last.time - warm.time, 2)
        found["rows_per_s"] = round(rows / (last.time - warm.time))
        found["cpu_s_per_million"] = round((last.cpu_s - warm.cpu_s) / rows * 1e6, 3)
        return found

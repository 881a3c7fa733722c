"""A region as a model, for the policy of `autoscale`: input arrives, workers read it, a change pauses them.

The loads are in `tests/checkpoint/loads`. The model runs a policy over one of them, second by second. It is
pure, and the same for the same load and seed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from checkpoint.core.coordination.autoscaling import AutoscalePolicy, WorkerLoad

LOADS = Path(__file__).parent.parent / "checkpoint" / "loads"
MB = 1_000_000


def recorded(name: str) -> list[tuple[int, float]]:
    """Return (second, bytes per second) of a load."""
    lines = (LOADS / f"{name}.csv").read_text(encoding="utf-8").splitlines()[1:]
    return [(int(second), float(rate) * MB) for second, rate in (line.split(",") for line in lines)]


@dataclass(frozen=True)
class Plant:
    """What a region can do. Times are seconds."""

    one_worker: float = 2.0 * MB
    """Bytes per second that one worker reads."""
    speed_up: float = 0.9
    """N workers read as much as N to the power of this."""
    noise: float = 0.2
    """Each second, the input differs by at most this share."""
    skew: float = 0.6
    """The other workers are busy for this share of the time of the busiest one."""
    launch_s: int = 4
    pause_s: int = 2
    knows_backlog: bool = True

    def capacity(self, workers: int) -> float:
        return self.one_worker * workers**self.speed_up


@dataclass
class Second:
    """The state at the end of a second."""

    at: int
    arrived: float
    backlog: float
    workers: int


@dataclass
class Run:
    """What a policy did with a load."""

    seconds: list[Second] = field(default_factory=list)
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    """(second, workers to go to, reason) of each change."""

    @property
    def turns(self) -> int:
        """How often a change was in another direction than the one before."""
        numbers = [self.seconds[0].workers, *(workers for _, workers, _ in self.changes)]
        up = [after > before for before, after in pairwise(numbers)]
        return sum(one != other for one, other in pairwise(up))

    @property
    def worker_seconds(self) -> int:
        return sum(one.workers for one in self.seconds)


def simulate(
    policy: AutoscalePolicy,
    load: Sequence[tuple[int, float]],
    *,
    plant: Plant | None = None,
    workers: int = 2,
    seed: int = 1,
) -> Run:
    """Run a region under the policy to the end of the load."""
    plant, rng, run = plant or Plant(), Random(seed), Run()
    starts = [second for second, _ in load]
    backlog = 0.0
    counters = [(0.0, 0.0)] * workers
    coming, settles_at = workers, -1
    for now in range(starts[-1] + 1):
        arrived = load[bisect_right(starts, now) - 1][1] * rng.uniform(1 - plant.noise, 1 + plant.noise)
        backlog += arrived
        if now == settles_at:
            workers, counters = coming, [(0.0, 0.0)] * coming
            policy.settled(workers, "", float(now))
        paused = coming != workers and settles_at - plant.pause_s <= now
        read = 0.0 if paused else min(backlog, plant.capacity(workers))
        backlog -= read
        busy = read / plant.capacity(workers)
        counters = [
            (bytes_in + read / workers, busy_s + busy * (plant.skew if index else 1.0))
            for index, (bytes_in, busy_s) in enumerate(counters)
        ]
        run.seconds.append(Second(now, arrived, backlog, workers))
        if coming != workers:
            policy.interrupted("a change is under way")
        elif now % max(1, round(policy.spec.sample_s)) == 0:
            known = int(backlog / workers) if plant.knows_backlog else -1
            wanted = policy.take([WorkerLoad(int(read), busy, known) for read, busy in counters], float(now))
            if wanted is not None and wanted != workers:
                run.changes.append((now, wanted, policy.reason))
                coming, settles_at = wanted, now + plant.launch_s + plant.pause_s
    return run

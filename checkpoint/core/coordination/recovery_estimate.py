"""How long a recovery would take now: from what earlier rounds took, and what there is to restore. Pure.

Its parts follow each other: *launch* (a process starts and joins; the manifest is claimed), *claim* (the
workers claim their directories), *state* (the slowest worker loads its chains), *replay* (the steps after the
last checkpoint). Outages of a store or host, and the time until a loss is detected, are not part of it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from checkpoint.core.region import RecoveryEstimate

ROUNDS_KEPT: Final = 5
"""Older rounds say little: the state has changed since, and perhaps the machine."""
restore_bytes_per_s: Final = 50_000_000
"""Assumed until two rounds have restored clearly different amounts: keyed state, decoded and inserted."""
restore_bytes_apart: Final = 4_000_000
"""Two rounds whose bytes differ by less show differences of the machine, not of the bytes."""


class RestoreSample(NamedTuple):
    """A measured restore of the slowest worker of a round: the bytes of its chains, and the seconds."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RecoveryInputs:
    """Everything that an estimate depends on. Times are in seconds."""

    launch_s: float = 0.0
    """From the launch of a worker until it joins."""
    manifests_s: tuple[float, ...] = ()
    """For each round: until the manifest was claimed."""
    claims_s: tuple[float, ...] = ()
    """For each round: until the slowest worker had its claim, and from its restore to the start of all."""
    restores: tuple[RestoreSample, ...] = ()
    state_bytes: int = 0
    """Bytes that the worker with the largest state has to read."""
    steps: int = 0
    """Steps after the last checkpoint."""
    step_s: float = 0.0
    """Time of a step of the slowest worker."""


def estimate(given: RecoveryInputs) -> RecoveryEstimate | None:
    """Return the estimate, None before a round was measured."""
    if not given.restores:
        return None
    return RecoveryEstimate(
        launch_s=max(given.launch_s, median(given.manifests_s or [0.0])),
        claim_s=median(given.claims_s or [0.0]),
        state_s=restore_seconds(given.restores, given.state_bytes),
        replay_s=given.steps * given.step_s,
        state_bytes=given.state_bytes,
        steps=given.steps,
        rounds=len(given.restores),
    )


def restore_seconds(measured: Sequence[RestoreSample], size: int) -> float:
    """Return the seconds that a restore of `size` bytes takes: a constant part, and one for each byte."""
    least, most = min(measured), max(measured)
    s_per_byte = 1 / restore_bytes_per_s
    if most.bytes - least.bytes >= restore_bytes_apart and most.seconds > least.seconds:
        s_per_byte = (most.seconds - least.seconds) / (most.bytes - least.bytes)
    constant_s = median(one.seconds - one.bytes * s_per_byte for one in measured)
    return max(0.0, constant_s + size * s_per_byte)


def bytes_to_restore(checkpoint: Checkpoint | None) -> int:
    """Return how many bytes the worker with the largest state reads to restore a checkpoint."""
    return 0 if checkpoint is None else max(map(_bytes_of, checkpoint.workers.values()), default=0)


def _bytes_of(part: WorkerCheckpoint) -> int:
    """Return the bytes of a worker's chains from the lowest segment that a restore reads."""
    sizes = {"state": part.state.size, "steps": part.steps.size}
    sizes |= {f"files-{name}": at.size for name, at in part.directories.items()}
    floors = {chain: base for chain, (_, base) in part.floors.items()}
    return sum(max(0, size - floors.get(chain, 0)) for chain, size in sizes.items())


@dataclass(slots=True)
class StepMeter:
    """The time that one worker works for a step, from its heartbeats. Recent steps count more."""

    steps: float = 0.0
    busy_s: float = 0.0
    _last: tuple[int, float] = (0, 0.0)

    def note(self, step: int, busy_s: float) -> None:
        """Take the counters of a heartbeat."""
        (step_before, busy_before), self._last = self._last, (step, busy_s)
        if step <= step_before or busy_s < busy_before:
            return
        if self.steps >= _STEPS_KEPT:
            self.steps, self.busy_s = self.steps / 2, self.busy_s / 2
        self.steps += step - step_before
        self.busy_s += busy_s - busy_before

    @property
    def step_s(self) -> float:
        return self.busy_s / self.steps if self.steps else 0.0


_STEPS_KEPT: Final = 100


@dataclass(slots=True)
class RecoveryHistory:
    """The durations of the last rounds of one region, including its start."""

    launch_s: float = 0.0
    manifests_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    claims_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    restores: deque[RestoreSample] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))

    def note_launch(self, seconds: float) -> None:
        """Note how long a worker took from its launch until it joined."""
        self.launch_s = seconds

    def note_round(self, phases_s: Mapping[str, float], restored: int) -> None:
        """Note a completed round: the phases of `ResetReport`, and `restored` bytes of the slowest worker."""
        state_s = phases_s.get("open", 0.0) + phases_s.get("load", 0.0)
        self.restores.append(RestoreSample(restored, state_s))
        self.manifests_s.append(phases_s.get("manifest", 0.0))
        # `start` is what the round took beyond its other phases, so clocks that differ can make it negative.
        self.claims_s.append(max(0.0, phases_s.get("claim", 0.0) + phases_s.get("start", 0.0)))

    def inputs(
        self, checkpoint: Checkpoint | None, step: int, meters: Iterable[StepMeter], *, loaded: bool = False
    ) -> RecoveryInputs:
        """Return the inputs of an estimate. step: the last step of the region. loaded: all workers have warm
        stand-bys, which have joined and loaded all but the last changes.
        """
        return RecoveryInputs(
            launch_s=0.0 if loaded else self.launch_s,
            manifests_s=tuple(self.manifests_s),
            claims_s=tuple(self.claims_s),
            restores=tuple(self.restores),
            state_bytes=0 if loaded else bytes_to_restore(checkpoint),
            steps=max(0, step - (checkpoint.step if checkpoint else 0)),
            step_s=max((meter.step_s for meter in meters), default=0.0),
        )

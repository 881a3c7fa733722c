"""The specification of a worker at its start, and its summary at its end.

Both are pickled into the closure of a Spark task or over the launcher's pipe, which has the user's functions.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from checkpoint import RegionSpec
from checkpoint import limits as checkpoint_limits
from checkpoint.participant import ParticipantSpec
from dataflow.graph.builder import Graph
from dataflow.limits import WorkerLimits
from dataflow.sinks.base import SinkSpec

ADVERTISE_HOST: Final = "DOS_ADVERTISE_HOST"
"""Environment variable of an executor: the address at which other hosts reach it, by default that of its link
to the coordinator.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One attempt of one worker of a region. How many workers there are is part of each order to restore."""

    region: str
    worker: int
    attempt: int
    coordinator: tuple[str, int]
    job_key: bytes = field(repr=False)
    graph: Graph
    store_url: str
    token: bytes = field(default=b"", repr=False)
    scratch_dir: str = ""
    """A directory for a local cache of the chains, which may be deleted at any time ('': no cache), state on
    disk, and the files of operators ('': in that for temporary files).
    """
    without_checkpoints: bool = False
    """It runs operators outside of any consistent region: nothing is recorded or restored."""
    application: str = ""
    """The application whose input handles it reads; '': the region's own name."""
    listen_host: str = "127.0.0.1"
    """The address to listen on for peers. `advertise_host` is the one they dial; '': that of the control
    link.
    """
    advertise_host: str = ""
    port_range: tuple[int, int] | None = None
    metrics: str = ""
    """Where to serve the worker's figures, as `parse_metrics_listen` reads it; '': nowhere."""
    log: str = ""
    """How to log, as `parse_log_choice` reads it; '': as the process does anyway."""
    removed: Mapping[str, SinkSpec] = field(default_factory=dict)
    """The specifications of sinks that the graph gives up, by their names in the checkpoint."""
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    heartbeat_s: float = checkpoint_limits.heartbeat_s
    orphan_timeout_s: float = checkpoint_limits.orphan_timeout_s

    def participant(self) -> ParticipantSpec:
        """Return the part that the control link needs."""
        return ParticipantSpec(
            job=self.region,
            worker=self.worker,
            attempt=self.attempt,
            coordinator=self.coordinator,
            job_key=self.job_key,
            heartbeat_s=self.heartbeat_s,
            orphan_timeout_s=self.orphan_timeout_s,
        )


def removed_specs(spec: RegionSpec) -> dict[str, SinkSpec]:
    """Return `WorkerSpec.removed` of the workers of a region."""
    given = spec.graph_options.removed
    return {name: sink for name, sink in given.items() if isinstance(sink, SinkSpec)}


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """The result of a worker that ended in an orderly way."""

    worker: int
    attempt: int
    reason: str
    incarnations: int
    steps: int
    """The last step that it ended."""
    rows_in: int
    rows_out: int
    bytes_in: int
    checkpoints: int
    """Checkpoints that it took part in."""


class Clock:
    """The clock that a circuit uses. The simulator replaces it."""

    @staticmethod
    def seconds() -> float:
        """Return seconds of a monotonic clock, to measure durations."""
        return time.perf_counter()

    @staticmethod
    def wall_ms() -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class Identity(NamedTuple):
    """Region and worker of a process."""

    region: str
    worker: int
    scratch: str = ""
    """A directory for data that need not survive; '': the directory for temporary files."""

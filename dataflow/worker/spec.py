"""What a worker is told when it starts, and what it says when it ends. Both travel by pickle inside the
task's closure or the launcher's pipe, never on a wire of ours; the closure must unpickle the user's
functions anyway.
"""

from dataclasses import dataclass, field
from typing import Final

from checkpoint import limits as checkpoint_limits
from checkpoint.participant import ParticipantSpec
from dataflow.errors import SpecError
from dataflow.graph.builder import Graph
from dataflow.limits import WorkerLimits

ADVERTISE_HOST: Final = "DOS_ADVERTISE_HOST"
"""In this variable of its environment an executor may say at which address other hosts reach it. Without it,
a worker advertises the local address of its link to the coordinator.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One attempt of one worker of a region."""

    region: str
    worker: int
    workers: int
    attempt: int
    coordinator: tuple[str, int]
    job_key: bytes = field(repr=False)
    graph: Graph
    store_url: str
    token: bytes = field(default=b"", repr=False)
    scratch_dir: str = ""
    """A local cache of the chains; '' for none. It may be wiped at any time. Also where states on disk lie,
    and the files of operators while they run; for '' in the directory for temporary files.
    """
    without_cuts: bool = False
    """It runs operators outside of any consistent region: nothing is recorded, nothing is restored."""
    application: str = ""
    """Whose input handles these are; '': the region's own name."""
    listen_host: str = "127.0.0.1"
    """Where peers may reach us; `advertise_host` is what they are told ('': the address of the control link).
    """
    advertise_host: str = ""
    port_range: tuple[int, int] | None = None
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    heartbeat_s: float = checkpoint_limits.heartbeat_s
    orphan_timeout_s: float = checkpoint_limits.orphan_timeout_s

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise SpecError(f"worker {self.worker} of {self.workers}; indices begin at 0")

    def participant(self) -> ParticipantSpec:
        """The part that the control link needs."""
        return ParticipantSpec(
            job=self.region,
            worker=self.worker,
            attempt=self.attempt,
            coordinator=self.coordinator,
            job_key=self.job_key,
            heartbeat_s=self.heartbeat_s,
            orphan_timeout_s=self.orphan_timeout_s,
        )

    def ports(self) -> tuple[int, ...]:
        """Ports to try for the exchange listener."""
        return (0,) if self.port_range is None else tuple(range(self.port_range[0], self.port_range[1] + 1))


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """How a worker ended in an orderly way."""

    worker: int
    attempt: int
    reason: str
    incarnations: int
    steps: int
    """The last step that it ended."""
    rows_in: int
    rows_out: int
    bytes_in: int
    cuts: int
    """Cuts that it took part in."""

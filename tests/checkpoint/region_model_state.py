"""The state of the region model: its manifest, its drivers and its worker processes."""

from collections import deque
from dataclasses import dataclass, field

from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    End,
)
from checkpoint.core.links.participation import (
    ParticipantCore,
)
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionSpec

KEY = b"k" * 32


def spec(workers: int = 2, **fields) -> RegionSpec:
    return RegionSpec(name="region", workers=workers, store_url="dos://nowhere", job_key=KEY, **fields)


@dataclass
class Manifest:
    """The log all coordinators share."""

    claimed: int = 0
    opened: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None


@dataclass
class Driver:
    """One coordinator with what the shell would hold."""

    number: int
    core: Coordinator
    jobs: deque = field(default_factory=deque)
    """Manifest operations under way, in order."""
    claim: int = 0
    """Claimed for the opening under way; its start is not acknowledged yet."""
    restored: dict[int, Checkpoint | None] = field(default_factory=dict)
    """incarnation -> the last checkpoint when it was opened."""
    attempts: dict[int, int] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    end: End | None = None
    alive: bool = True
    reports: list = field(default_factory=list)
    refused: list = field(default_factory=list)


@dataclass
class Process:
    """One worker process: a real participant core and a toy runtime."""

    driver: Driver
    worker: int
    attempt: int
    link: int
    core: ParticipantCore
    to_worker: deque = field(default_factory=deque)
    to_driver: deque = field(default_factory=deque)
    joined: bool = False
    alive: bool = True
    step: int = 0
    cutting: int = 0
    incarnation: int = 0
    term: int = 0
    """The epoch of its claim: the incarnation, unless it has taken a worker over."""
    ended: bool = False
    """The launcher has reported its end."""

"""Messages from the circuit thread of a worker to its link thread, and what both share. No logic.

The *circuit thread* (the main thread) runs operators and user code, the *link thread* runs trio. The link
thread calls methods of `CircuitIncarnation` through its `Inbox`; the answers are messages, because the link
thread queues them further. Both drop what belongs to another incarnation. So a slow user function delays no
heartbeat, and a reset never waits for it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from checkpoint import (
    ChannelFrame,
    EventTime,
    Failed,
    OutputTime,
    Sources,
    SplitPosition,
)
from checkpoint.chains.state_blocks import EncodedBlock
from dataflow.core.peer_links import Held, Records
from dataflow.core.schedule import NO_CHECKPOINT, Barrier
from dataflow.sinks.base import SinkWriter
from dataflow.state.scratch import SnapshotSpool
from dataflow.worker.companion import RunningOperator
from dataflow.worker.failures import naming
from journal import Record


@dataclass(frozen=True, slots=True)
class CircuitPositioned:
    """The circuit takes state. `reads`: whether it needs the worker's own stored blocks; otherwise it still
    has the state of the checkpoint.
    """

    incarnation: int
    reads: bool


@dataclass(frozen=True, slots=True)
class BlockLoaded:
    """One state block is restored; the next may be sent. This bounds the blocks in memory."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """Sources, sinks and operators are at the checkpoint."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StageEnded:
    """A stage of a step has run. `frames`: per peer, in order. Stage 0 adds the input division."""

    incarnation: int
    step: int
    frames: Mapping[int, tuple[ChannelFrame, ...]]
    time_ms: int = 0
    sources: Sources | None = None
    """The input division, to record before the frames are sent. None for a later stage or a replayed step."""
    stage: int = 0
    barrier: Barrier = NO_CHECKPOINT
    """The checkpoint that its STEP_ENDs request."""
    records: Records = field(default_factory=dict)
    """Local recovery: (peer, channel) -> the rows that it sends."""


@dataclass(frozen=True, slots=True)
class PeerHeld:
    """Local recovery: what was used of a peer's steps. Everything else that it had sent is forgotten. `link`:
    as in the call of `peer_restarts`.
    """

    incarnation: int
    peer: int
    link: int
    held: Held


@dataclass(frozen=True, slots=True)
class PausedAt:
    """No input is taken after this step."""

    incarnation: int
    pause: int
    step: int


@dataclass(frozen=True, slots=True)
class SourceWaits:
    """A source wants a checkpoint at the end of this step and yields no rows until it was taken. `batch`,
    `marks`: as in `WantsCheckpoint`.
    """

    incarnation: int
    step: int
    batch: int = -1
    marks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutputMade:
    """The output of one step for one sink that writes to the store: in order, even without rows, and before
    the `CheckpointTaken` of the step. inputs: the positions of the sources at its end. time: None without
    times.
    """

    incarnation: int
    step: int
    sink: str
    inputs: dict[str, dict[str, SplitPosition]]
    rows: int
    digest: int
    data: bytes
    time: OutputTime | None = None


@dataclass(frozen=True, slots=True)
class FilesChanged:
    """Changes of an operator's files, in order. `size`: of the records, in the budget of its `Handover`."""

    incarnation: int
    operator: str
    records: tuple[Record, ...]
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryBegun:
    """The layout changes: an operator's directory begins with the files in `copy`, which have these sizes."""

    incarnation: int
    operator: str
    sizes: Mapping[str, int]
    copy: Path


@dataclass(frozen=True, slots=True)
class DirectoryCheckpoint:
    """A checkpoint, at the end of `step`, follows the changes sent so far. sizes: of all files. copy: where
    they are copied to, if a snapshot of them is due.
    """

    incarnation: int
    operator: str
    checkpoint: int
    step: int
    sizes: Mapping[str, int]
    copy: Path | None


OfDirectories: TypeAlias = FilesChanged | DirectoryBegun | DirectoryCheckpoint


@dataclass(frozen=True, slots=True)
class CheckpointTaken:
    """A step with a checkpoint has ended: make its data durable, then vote."""

    incarnation: int
    step: int
    barrier: Barrier
    blocks: tuple[EncodedBlock, ...]
    snapshot: SnapshotSpool | None
    sources: dict[str, dict[str, SplitPosition]]
    sinks: dict[str, Any]
    writers: Mapping[str, SinkWriter]
    """Sink -> its writer, which must be synced before the vote."""
    phases_s: dict[str, float]

    def voted(self, running: RunningOperator) -> dict[str, Any]:
        """Return what the checkpoint stores of each sink, after all were synced. Raises as `naming`."""
        voted = {}
        for name, writer in self.writers.items():
            with naming(name, "a checkpoint"), running.making_durable(name):
                voted[name] = writer.voted(self.sinks[name])
        return voted


@dataclass(frozen=True, slots=True)
class Published:
    """The sinks have published a checkpoint."""

    incarnation: int
    checkpoint: int
    final: bool


@dataclass(frozen=True, slots=True)
class CircuitFailed:
    """The circuit failed and cannot continue in this incarnation."""

    incarnation: int
    report: Failed


@dataclass(frozen=True, slots=True)
class AheadDone:
    """The order with this number, to open operators or load state ahead, is carried out."""

    number: int
    error: str = ""
    """Why it failed, empty if it did not. Then nothing is opened any more."""


ToLinks: TypeAlias = (
    BlockLoaded
    | CircuitPositioned
    | AheadDone
    | StateLoaded
    | StageEnded
    | PeerHeld
    | SourceWaits
    | PausedAt
    | OutputMade
    | OfDirectories
    | CheckpointTaken
    | Published
    | CircuitFailed
)
Post: TypeAlias = Callable[[ToLinks], None]


@dataclass(slots=True)
class Shared:
    """Numbers that one thread writes and the other reads. Each write is one assignment and needs no lock."""

    # written by the link thread
    incarnation: int = 0
    room: bool = True
    """Whether the store accepts more data. Sources stop reading otherwise."""
    peers_at: int = 0  # the highest step that any peer has ended; stage 0 ends that step here too
    pausing: bool = False
    """A pause is requested: reading returns soon."""
    snapshot_due: bool = False
    # written by the circuit thread
    step: int = 0
    exhausted: bool = False
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    batch_bytes: int = 0  # the size of a batch that takes the time aimed at; 0: nothing was measured
    busy_s: float = 0.0
    load_s: float = 0.0
    backlog_bytes: int = -1
    checkpoints: int = 0
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    event_times: dict[str, EventTime] = field(default_factory=dict)
    running: RunningOperator = field(default_factory=RunningOperator)
    over: threading.Event = field(default_factory=threading.Event)  # set after that thread has ended

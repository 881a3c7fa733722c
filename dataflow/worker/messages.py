"""What the two threads of a worker say to each other, and the few numbers they share.

Rules of this file: frozen values, one thread-safe inbox, one bag of plain attributes. No logic.

The *circuit thread* (the process's main thread) runs operators and user code and nothing else. The *link
thread* runs trio: control, heartbeats, exchange, store. Each message carries the incarnation it belongs to;
both sides drop what belongs to another. So a slow user function delays no heartbeat, and a reset never waits
for one.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from checkpoint import ChannelFrame, Division, FailureKind, Layout, Sources, SplitPosition, WorkerCut
from dataflow.core.schedule import Barrier
from dataflow.sinks.base import SinkWriter
from dataflow.sources.prefetch_buffer import PrefetchBuffer
from dataflow.state.directory_handover import Handover
from dataflow.state.snapshot_spool import SnapshotSpool
from journal import Record

# --- to the circuit thread ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreCircuit:
    """A new incarnation: forget everything; sources and sinks go where `part` says (None: the beginning)."""

    incarnation: int
    step: int
    """The step of the cut, 0 for the beginning; the next one follows it."""
    cut: int
    part: WorkerCut | None
    layout: Layout
    store_id: bytes
    feeds: Mapping[str, PrefetchBuffer] = field(default_factory=dict)
    """What is read ahead for each source that lies in the store."""


@dataclass(frozen=True, slots=True)
class LoadStateBlock:
    """One stored block of an operator's state, oldest first."""

    incarnation: int
    cut: int
    operator: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StateComplete:
    """All blocks are sent; answer with `StateLoaded`. `directories`: operator -> its files."""

    incarnation: int
    directories: Mapping[str, Handover] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """All workers stand: run. `divisions` are those of the steps to be replayed exactly."""

    incarnation: int
    divisions: tuple[Division, ...]


@dataclass(frozen=True, slots=True)
class CutRequested:
    """Ask for this cut with the next STEP_END."""

    incarnation: int
    cut: int
    final: bool


@dataclass(frozen=True, slots=True)
class PublishCut:
    """Sinks publish."""

    incarnation: int
    cut: int
    final: bool


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Take no input any more, and answer with `PausedAt`; with `pause` 0 go on."""

    incarnation: int
    pause: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame of a peer."""

    incarnation: int
    frame: ChannelFrame


@dataclass(frozen=True, slots=True)
class DivisionsDurable:
    """Up to this step the divisions of all workers are: what it gives may be shown."""

    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class Woken:
    """One of the shared numbers changed."""


@dataclass(frozen=True, slots=True)
class LinksEnded:
    """The link thread is over: the process ends. `error` is None after an orderly STOP."""

    reason: str
    error: BaseException | None = None


ToCircuit: TypeAlias = (
    RestoreCircuit
    | LoadStateBlock
    | StateComplete
    | Started
    | CutRequested
    | PublishCut
    | PauseRequested
    | Arrived
    | DivisionsDurable
    | Woken
    | LinksEnded
)

# --- to the link thread -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockLoaded:
    """One state block is taken: the next may come (so that few are in memory)."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """Sources, sinks and operators stand at the cut."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StageEnded:
    """A stage of a step is run: what to send, per peer and in order. For stage 0 also the division."""

    incarnation: int
    step: int
    frames: Mapping[int, tuple[ChannelFrame, ...]]
    time_ms: int = 0
    sources: Sources | None = None
    """To be recorded before the frames are sent; None for a later stage, and for a step replayed as recorded.
    """


@dataclass(frozen=True, slots=True)
class PausedAt:
    """No input is taken after this step."""

    incarnation: int
    pause: int
    step: int


@dataclass(frozen=True, slots=True)
class SourceWaits:
    """A source wants a cut at the end of this step, and gives nothing more until one was taken."""

    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class OutputMade:
    """A step is through, and a sink that keeps its output in the store was given this in it. One comes for
    each such sink and step, in order, also without rows; those of a cut's step come before its `CutTaken`.
    """

    incarnation: int
    step: int
    sink: str
    rows: int
    digest: int
    data: bytes
    inputs: dict[str, dict[str, SplitPosition]]
    """How far the sources were read at the end of the step."""


@dataclass(frozen=True, slots=True)
class FilesChanged:
    """Changes of an operator's files, in order. `size`: what they take of the room of its `Handover`."""

    incarnation: int
    operator: str
    records: tuple[Record, ...]
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryCut:
    """A cut, at the end of that step, lies behind the changes sent so far. sizes: of all files; copy: where
    they are, if a snapshot of them is due.
    """

    incarnation: int
    operator: str
    cut: int
    step: int
    sizes: Mapping[str, int]
    copy: Path | None


@dataclass(frozen=True, slots=True)
class CutTaken:
    """A step with a cut is through: make it durable, then vote."""

    incarnation: int
    step: int
    barrier: Barrier
    blocks: tuple[tuple[str, bytes], ...]
    snapshot: SnapshotSpool | None
    sources: dict[str, dict[str, SplitPosition]]
    sinks: dict[str, Any]
    writers: tuple[SinkWriter, ...]
    phases_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Published:
    """The sinks have published a cut."""

    incarnation: int
    cut: int
    final: bool


@dataclass(frozen=True, slots=True)
class CircuitFailed:
    """The circuit cannot go on in this incarnation."""

    incarnation: int
    kind: FailureKind
    message: str
    operator: str = ""
    position: str = ""
    traceback: str = ""


ToLinks: TypeAlias = (
    BlockLoaded
    | StateLoaded
    | StageEnded
    | SourceWaits
    | PausedAt
    | OutputMade
    | FilesChanged
    | DirectoryCut
    | CutTaken
    | Published
    | CircuitFailed
)
Post: TypeAlias = Callable[[ToLinks], None]


class Inbox:
    """Messages to the circuit thread, in order. `put` from any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ToCircuit] = queue.SimpleQueue()

    def put(self, message: ToCircuit) -> None:
        self._queue.put(message)

    def take(self, timeout_s: float | None = None) -> ToCircuit | None:
        """The next message; waits for one, at most so long."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def take_nowait(self) -> ToCircuit | None:
        """The next message if there is one."""
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return None


@dataclass(slots=True)
class Shared:
    """Numbers that one thread writes and the other reads; each is one assignment, none needs a lock."""

    # written by the link thread
    incarnation: int = 0
    room: bool = True
    """Whether the store takes more: sources stop otherwise."""
    peers_at: int = 0
    """The highest step that any peer has ended: our sources end that step too."""
    pausing: bool = False
    """No input is wanted: a source that is reading comes back soon."""
    snapshot_due: bool = False
    # written by the circuit thread
    step: int = 0
    exhausted: bool = False
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    busy_s: float = 0.0
    cuts: int = 0
    operators: dict[str, dict[str, int]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    """The circuit thread is done with everything."""

"""The events that the coordinator's core takes, and the effects that it returns. Values only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from checkpoint.core.links.messages import FromTask, Refusal, ToCoordinator, ToTask, ToWorker
from checkpoint.core.records.manifest import NO_NOTE, Checkpoint, Examination, SavepointNote
from checkpoint.core.region import Key, RegionEvent, RegionState
from dos_protocol.errors import DosError

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the region. Once, first."""

    seen: Checkpoint | None = None
    """The last checkpoint that another driver has committed, as read without a claim; None if there is none,
    or it could not be read."""
    unread: bool = False
    """It could not be read."""


@dataclass(frozen=True, slots=True)
class ManifestOpened:
    """The start of a new manifest segment of epoch `incarnation` is acknowledged on the quorum."""

    incarnation: int
    last_checkpoint: Checkpoint | None
    """The last checkpoint of the chain: the one to restore."""
    kept: tuple[Checkpoint, ...] = ()
    """The retained checkpoints, oldest first; `last_checkpoint` is the last one."""


@dataclass(frozen=True, slots=True)
class ManifestSuperseded:
    """Another coordinator claimed the manifest before our start was acknowledged: we never held it (R17)."""

    epoch_held: int
    rng: float
    """A random number from 0 to 1, for the backoff."""
    attempt_s: float = 0.0
    """How long the attempt took until then, which is how long it could be superseded."""


@dataclass(frozen=True, slots=True)
class ManifestTaken:
    """A newer driver holds the manifest."""

    epoch_held: int


@dataclass(frozen=True, slots=True)
class ManifestLost:
    """The claim of incarnation `incarnation` was superseded after its start, by an unknown claimer (R18)."""

    incarnation: int
    epoch_held: int


@dataclass(frozen=True, slots=True)
class ManifestUnreadable:
    """The manifest cannot be taken over, and waiting does not cure the reason."""

    error: DosError


@dataclass(frozen=True, slots=True)
class CheckpointAppended:
    """The record of this checkpoint is synced on the quorum: the checkpoint is committed."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class StoreWaiting:
    """What the manifest waits for at the store; empty when it no longer waits."""

    waiting: str


@dataclass(frozen=True, slots=True)
class ExaminationWaits:
    """The retained checkpoints cannot be read now, for example because a member is unavailable."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointsExamined:
    """The retained checkpoints were read in this incarnation, as far as necessary."""

    incarnation: int
    found: Examination


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control message on an authenticated link. The shell numbers links and never reuses a number."""

    link: int
    message: ToCoordinator | FromTask


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link ended or broke."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerHosted:
    """No process waited to become this worker, so the host that LaunchWorker names was ordered to run it."""

    worker: int
    attempt: int
    host: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The launcher reports that an attempt is over."""

    worker: int
    attempt: int
    error: str | None


@dataclass(frozen=True, slots=True)
class CoordinatorTick:
    """The timer that was due at `due` fires now. `now - due` is how late this process's own loop is."""

    due: float


@dataclass(frozen=True, slots=True)
class HandOverAnswered:
    """The driver that runs the region has paused it and lends it, or none answers, or it refuses."""

    refused: DosError | None = None


@dataclass(frozen=True, slots=True)
class LastCheckpointRead:
    """The last checkpoint of the region, which another driver runs; None if it has none."""

    seen: Checkpoint | None = None


class UserRequest:
    """A request of a user, in the driver's process or through the store."""

    __slots__ = ()

    @property
    def key(self) -> Key | None:
        """The key under which its outcome is reported (`Settled`); None: the status shows it."""
        return None


@dataclass(frozen=True, slots=True)
class CheckpointWanted(UserRequest):
    """A user requests a checkpoint now."""


@dataclass(frozen=True, slots=True)
class ResetWanted(UserRequest):
    """A user requests a reset to the last checkpoint."""


@dataclass(frozen=True, slots=True)
class PauseWanted(UserRequest):
    """A user requests that the region takes no input; with `on` False, that it continues."""

    on: bool


@dataclass(frozen=True, slots=True)
class SavepointWanted(UserRequest):
    """A user requests a savepoint: a checkpoint retained by name. With `on` False, that it is dropped."""

    name: str
    checkpoint: int = 0
    """The checkpoint; 0 for the last one."""
    on: bool = True
    note: SavepointNote = NO_NOTE
    """Who requests it, when, and why."""

    @property
    def key(self) -> Key:
        return "savepoint", self.name


@dataclass(frozen=True, slots=True)
class RestoreWanted(UserRequest):
    """A user requests that the region goes back to an older checkpoint, as `lines.find_target` names it."""

    to: str
    allow_republish: bool = False
    """Also if rows come again that were shown."""

    @property
    def key(self) -> Key:
        return "restore", self.to


@dataclass(frozen=True, slots=True)
class ScaleWanted(UserRequest):
    """A user requests another number of workers; None: that the change under way is given up."""

    workers: int | None

    @property
    def key(self) -> Key:
        return "scale", self.workers


@dataclass(frozen=True, slots=True)
class ReplaceWanted(UserRequest):
    """A user requests new processes for these workers, one after the other; empty: for all of them."""

    workers: tuple[int, ...] = ()
    by: str = ""
    # A refusal has it too: without it, the refusal of a second request would answer the one under way.

    @property
    def key(self) -> Key:
        return "replace", self.by


@dataclass(frozen=True, slots=True)
class HandOverWanted(UserRequest):
    """Another driver, whose workers have joined, requests that this one lends it the region: it pauses until
    the other has claimed it.
    """

    by: str
    """The request, so that each driver gets the answer to its own."""
    asked_by: str = ""
    """Whose driver it is, for people."""

    @property
    def key(self) -> Key:
        return "hand over", self.by


@dataclass(frozen=True, slots=True)
class StopWanted(UserRequest):
    """A user requests that the region stops."""


@dataclass(frozen=True, slots=True)
class BatchesWaitInVain:
    """The driver has found that the workers cannot start before tasks of batches end, which wait for them."""

    text: str
    remedy: str


Event: TypeAlias = (
    Begin
    | ManifestOpened
    | ManifestSuperseded
    | ManifestTaken
    | ManifestLost
    | ManifestUnreadable
    | CheckpointAppended
    | StoreWaiting
    | ExaminationWaits
    | CheckpointsExamined
    | ControlReceived
    | LinkDown
    | WorkerHosted
    | WorkerEnded
    | BatchesWaitInVain
    | HandOverAnswered
    | LastCheckpointRead
    | CoordinatorTick
    | UserRequest
)

# --- effects ------------------------------------------------------------------------------------------


def _any(last: Checkpoint | None) -> None:
    """Begin with any checkpoint."""


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """Take the manifest over with an epoch above `above` and all seen.

    Answer: ManifestOpened, ManifestSuperseded, ManifestTaken or ManifestUnreadable. held: the last
    incarnation that this driver held, 0 for none; a segment of a higher epoch means that a newer driver took
    the manifest.
    """

    above: int
    held: int
    step: int = 1
    """The epoch is a multiple of this: with local recovery, terms lie between two incarnations."""
    heir_s: float = 0.0
    """The region is lent: for so long, a newer driver may have opened a segment without a checkpoint in it.
    Then it has died, and the manifest is claimed above it, once.
    """
    decide: Callable[[Checkpoint | None], None] = field(default=_any, repr=False, compare=False)
    """Called under the claim with the last checkpoint, before the segment is opened. Raises a DosError if
    this driver may not begin with it: then no segment is opened, and the answer is ManifestUnreadable."""


@dataclass(frozen=True, slots=True)
class AskForRegion:
    """Ask the driver that runs the region to lend it. Answer: HandOverAnswered."""


@dataclass(frozen=True, slots=True)
class ReadLastCheckpoint:
    """Read the last checkpoint of the region, which another driver runs. Answer: LastCheckpointRead."""


@dataclass(frozen=True, slots=True)
class AppendCheckpoint:
    """Append to the manifest of its incarnation. Answer: CheckpointAppended or ManifestLost."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ExamineCheckpoints:
    """Read these, oldest first, from the newest on until one reads whole. Answer: CheckpointsExamined."""

    incarnation: int
    kept: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Start an attempt of a worker, through the launcher."""

    worker: int
    attempt: int
    beside: bool = False
    """The present attempt continues to run: this one will replace it."""
    host: int | None = None
    """The worker whose process runs it if no stand-by waits (WorkerHosted); None: start a process."""
    host_link: int = 0


@dataclass(frozen=True, slots=True)
class CancelWorker:
    """End an attempt of a worker, through the launcher."""

    worker: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message on a link, after all earlier ones."""

    link: int
    message: ToWorker | ToTask


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close a link after everything sent on it is out. The core does not wait for a LinkDown."""

    link: int


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A message was refused. For the log."""

    link: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NotifyObservers:
    """Report an event to observers."""

    event: RegionEvent


@dataclass(frozen=True, slots=True)
class End:
    """The region is over: close the manifest and the listener. Always the last effect."""

    state: RegionState
    reason: str
    error: DosError | None


Effect: TypeAlias = (
    OpenManifest
    | AppendCheckpoint
    | AskForRegion
    | ReadLastCheckpoint
    | ExamineCheckpoints
    | LaunchWorker
    | CancelWorker
    | SendControl
    | CloseLink
    | MessageRefused
    | NotifyObservers
    | End
)

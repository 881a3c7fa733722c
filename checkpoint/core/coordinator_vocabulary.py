"""Events that the coordinator's core takes, and effects that it asks for. Nouns only."""

from dataclasses import dataclass
from typing import TypeAlias

from checkpoint.core.manifest import Cut
from checkpoint.core.messages import Refusal, ToCoordinator, ToWorker
from checkpoint.core.region import RegionEvent, RegionState
from dos_protocol.errors import DosError

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Start the region. Once, first."""


@dataclass(frozen=True, slots=True)
class ManifestOpened:
    """The start of a new manifest segment of epoch `incarnation` is acknowledged on the quorum."""

    incarnation: int
    last_cut: Cut | None
    """The last cut of the chain: the one to restore."""
    kept: tuple[Cut, ...] = ()
    """The cuts that are retained, oldest first, `last_cut` the last of them."""


@dataclass(frozen=True, slots=True)
class ManifestSuperseded:
    """Another coordinator claimed before our start was acknowledged, and we never held the manifest (R17)."""

    epoch_held: int
    rng: float
    """A random number from 0 to 1, for the back-off."""
    attempt_s: float = 0.0
    """How long the attempt took until then: for so long one is open to being superseded here."""


@dataclass(frozen=True, slots=True)
class ManifestTaken:
    """A newer driver holds the manifest."""

    epoch_held: int


@dataclass(frozen=True, slots=True)
class ManifestLost:
    """The claim of incarnation `incarnation` was superseded after its start; by whom is not known yet
    (R18).
    """

    incarnation: int
    epoch_held: int


@dataclass(frozen=True, slots=True)
class ManifestUnreadable:
    """The manifest cannot be taken over, for a reason that waiting does not cure."""

    error: DosError


@dataclass(frozen=True, slots=True)
class CutAppended:
    """The record of this cut is synced on the quorum: it is committed."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class StoreWaiting:
    """What the manifest waits for at the store; '' when it does not wait any more."""

    waiting: str


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control message on a proved link. Links are numbered by the shell, never reused."""

    link: int
    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A link is gone, for whatever reason."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The launcher says that an attempt is over."""

    worker: int
    attempt: int
    error: str | None


@dataclass(frozen=True, slots=True)
class CoordinatorTick:
    """The timer that was due at `due` fires now. `now - due` is how late our own loop is."""

    due: float


@dataclass(frozen=True, slots=True)
class CutWanted:
    """A user wants a cut now."""


@dataclass(frozen=True, slots=True)
class ResetWanted:
    """A user wants the region back at its last cut."""


@dataclass(frozen=True, slots=True)
class PauseWanted:
    """A user wants the region to take no input for a while; or, with `on` False, to go on."""

    on: bool


@dataclass(frozen=True, slots=True)
class SavepointWanted:
    """A user wants a cut to stay restorable, under a name; or, with `on` False, the pin of that name let
    go.
    """

    name: str
    cut: int = 0
    """Which cut; 0: the last one."""
    on: bool = True


@dataclass(frozen=True, slots=True)
class StopWanted:
    """A user wants the region stopped."""


Event: TypeAlias = (
    Begin
    | ManifestOpened
    | ManifestSuperseded
    | ManifestTaken
    | ManifestLost
    | ManifestUnreadable
    | CutAppended
    | StoreWaiting
    | ControlReceived
    | LinkDown
    | WorkerEnded
    | CoordinatorTick
    | CutWanted
    | ResetWanted
    | PauseWanted
    | SavepointWanted
    | StopWanted
)

# --- effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """Drop the manifest claim held, if any, and take the manifest over with an epoch above `above` and all
    seen.

    Answered by ManifestOpened, ManifestSuperseded, ManifestTaken or ManifestUnreadable. `held`: the last
    incarnation that this driver held, 0 none; a segment of a higher epoch means that a newer driver has
    taken it.
    """

    above: int
    held: int


@dataclass(frozen=True, slots=True)
class AppendCut:
    """Append this cut to the manifest of its incarnation; answered by CutAppended, or ManifestLost."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Tell the launcher to start an attempt."""

    worker: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelWorker:
    """Tell the launcher to end the present attempt of a worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message on a link, after those sent before."""

    link: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close a link once what was sent on it is out. A LinkDown follows or not; it is not waited for."""

    link: int


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A message was not taken. For the log."""

    link: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NotifyObservers:
    """For observers."""

    event: RegionEvent


@dataclass(frozen=True, slots=True)
class End:
    """The region is over: close the manifest and the listener. Always the last effect."""

    state: RegionState
    reason: str
    error: DosError | None


Effect: TypeAlias = (
    OpenManifest
    | AppendCut
    | LaunchWorker
    | CancelWorker
    | SendControl
    | CloseLink
    | MessageRefused
    | NotifyObservers
    | End
)

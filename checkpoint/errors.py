"""What can go wrong here, named by who must act. Words: lower case, the rule broken, the values seen, the
remedy.

Base classes come from `dos_protocol.errors`; this file adds what only regions know.
"""

from dos_protocol.errors import DosError, ErrorCode, RemoteProtocolError


class ChannelFrameError(RemoteProtocolError):
    """A frame between workers, or between a worker and its coordinator, breaks the layout. The link is
    closed.

    `code`: BAD_FRAME, BAD_VERSION, UNKNOWN_OPCODE (frame type), TOO_LARGE or BAD_DIGEST.
    """


class ControlMessageError(RemoteProtocolError):
    """A control message that does not decode, or that its sender may not send. The link is closed."""


class StepOrderError(RemoteProtocolError):
    """A peer broke the order of steps: a frame after its STEP_END, a gap in `seq`, a step too far ahead."""


class HandshakeError(DosError):
    """The other end of a link did not prove that it has the job's key, or speaks of another job."""

    remedy = "let workers join only the region that started them; a restarted driver makes a new key"


class LinkClosedError(DosError):
    """The other end closed the link in an orderly way, between two frames."""


class ManifestError(DosError):
    """A cut that cannot be restored: what is missing or wrong is in the message. Nothing was started from
    it.
    """

    remedy = "restore an earlier cut"

    def __init__(self, message: str, *, cut: int = 0, remedy: str = "") -> None:
        super().__init__(message if not cut else f"cut {cut}: {message}", remedy=remedy)
        self.cut = cut


class ManifestSupersededError(DosError):
    """Another coordinator claimed the manifest before our segment's start was acknowledged (R17): try
    again.
    """

    def __init__(self, message: str, *, epoch_held: int) -> None:
        super().__init__(message)
        self.epoch_held = epoch_held


class RegionFencedError(DosError):
    """A newer driver runs this region. This one gave no order and committed nothing after that (P-4)."""

    remedy = "use the newer driver's handle"

    def __init__(self, message: str, *, epoch_held: int = 0) -> None:
        super().__init__(message)
        self.epoch_held = epoch_held


class RegionFailedError(DosError):
    """The region stopped and needs a person: the reason is in the message, a user's traceback in
    `traceback_text`.
    """

    def __init__(self, message: str, *, traceback_text: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.traceback_text = traceback_text


class NoRegionError(DosError):
    """No region of that name was ever run on this store. `regions`: those that were."""

    def __init__(self, region: str, regions: list[str]) -> None:
        known = f"it has {', '.join(regions)}" if regions else "it has none"
        remedy = "check the name, and that the URL is the store that `run` was given"
        super().__init__(f"this store has no region {region!r}: {known}", remedy=remedy)
        self.regions = tuple(regions)


class NoInputError(DosError):
    """Nobody has written to an input handle of that name. `handles`: those of the application."""

    def __init__(self, application: str, handle: str, handles: list[str]) -> None:
        known = f"it has {', '.join(handles)}" if handles else "it has none"
        remedy = "check both names; a handle is there when its first rows have come"
        super().__init__(f"application {application!r} has no input {handle!r}: {known}", remedy=remedy)
        self.handles = tuple(handles)


class CheckpointReleasedError(DosError):
    """The cut cannot be restored any more: the manifest has released it, and what it needed may be deleted.
    `retained`: the cuts that can be.
    """

    remedy = "take one that is retained, or run the region with a larger `retain` from now on"

    def __init__(self, region: str, cut: int, retained: tuple[int, ...]) -> None:
        known = ", ".join(map(str, retained)) or "none"
        super().__init__(f"cut {cut} of region {region} was released; retained are {known}")
        self.cut = cut
        self.retained = retained


class SavepointRefusedError(DosError):
    """A pin that cannot be made, or let go: why is in the message. Nothing was changed."""

    remedy = "see `dos checkpoint ls` for what is retained, and what is pinned"


class StateNotRecordedError(DosError):
    """The blocks of a worker's state do not tell what changed between two cuts: why is in `reason`."""

    remedy = "read the state at each of the two cuts, and compare them"

    def __init__(self, worker: int, reason: str) -> None:
        super().__init__(f"worker {worker}: {reason}")
        self.worker = worker
        self.reason = reason


class NoAnswerError(DosError):
    """No driver of the region answered in time. What the manifest tells is in the message."""


class FingerprintMismatchError(DosError):
    """The graph is not the one that wrote the state: `operators` names those that differ. Nothing was
    started.
    """

    remedy = "run the graph that made this state, or give the region a new name"

    def __init__(self, message: str, *, operators: tuple[str, ...]) -> None:
        super().__init__(message)
        self.operators = operators


class OrphanedError(DosError):
    """This worker heard nothing from its coordinator for `orphan_timeout` and must end itself."""


class StaleIncarnationError(DosError):
    """A newer RESTORE has come: the report was not sent. Drop what belongs to the older incarnation."""


class StoppedError(DosError):
    """The coordinator told this worker to end; the reason is in the message."""


class UnsupportedKeyTypeError(DosError):
    """No canonical bytes are defined for a column of this type, so it cannot be a key."""

    remedy = "use string, binary, bool, integers, floats, decimal128, date32 or timestamps as keys"


class InputClosedError(DosError):
    """The input handle is closed, or being closed: nobody may write to it any more. What was acknowledged
    before is part of it.
    """

    remedy = "write to another handle; a closed one stays closed"

    def __init__(self, handle: str) -> None:
        super().__init__(f"input {handle!r} is closed, or being closed")


class OutputDiffersError(DosError):
    """A replay made other output of a step than was shown before: something below the sink is not
    deterministic. Nothing of it was written. The region stops and needs a person.
    """

    remedy = 'use publish="checkpoint", or have what is before the sink give the same for the same input'

    def __init__(self, sink: str, step: int, before: int, now: int) -> None:
        super().__init__(
            f"sink {sink!r}: step {step} was shown with digest {before:016x}, made again it has {now:016x}"
        )
        self.sink = sink
        self.step = step


__all__ = [
    "ChannelFrameError",
    "ControlMessageError",
    "ErrorCode",
    "FingerprintMismatchError",
    "HandshakeError",
    "InputClosedError",
    "LinkClosedError",
    "ManifestError",
    "ManifestSupersededError",
    "NoAnswerError",
    "NoRegionError",
    "OrphanedError",
    "OutputDiffersError",
    "RegionFailedError",
    "RegionFencedError",
    "StaleIncarnationError",
    "StateNotRecordedError",
    "StepOrderError",
    "StoppedError",
    "UnsupportedKeyTypeError",
]

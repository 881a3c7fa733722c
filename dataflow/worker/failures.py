"""Map an error that ended an incarnation to the report for the coordinator, by `FailureKind`."""

from typing import Final, NamedTuple

from checkpoint import FailureKind
from checkpoint.errors import InputTrimmedError, ManifestError
from dataflow.errors import InputChangedError, PeerLostError
from dos_protocol.errors import DosError, FencedError, errors_in
from journal import EpochUsedTwiceError

_FOR_A_PERSON: Final = (ManifestError, InputChangedError, InputTrimmedError, EpochUsedTwiceError)
"""A retry would find the same, so the region ends."""


class Failure(NamedTuple):
    """The fields of a FAILED message. After kind "internal" the process ends; otherwise it awaits RESTORE."""

    kind: FailureKind
    message: str
    peer: int = -1
    epoch_held: int = 0


def failure_of(error: Exception) -> Failure:
    """Return the report for an error that ended an incarnation on the link side."""
    if isinstance(error, FencedError):
        return Failure("fenced", str(error), epoch_held=error.epoch_held)
    if isinstance(error, PeerLostError):
        return Failure("unreachable" if error.unreachable else "peer", str(error), peer=error.peer)
    if isinstance(error, DosError):
        return Failure("manifest" if isinstance(error, _FOR_A_PERSON) else "store", str(error))
    return Failure("internal", f"{type(error).__name__}: {error}")


def first_error(error: BaseException) -> Exception:
    """Return the first error of a group that is no PeerLostError; which explains less."""
    errors = errors_in(error)
    return next((one for one in errors if not isinstance(one, PeerLostError)), errors[0])

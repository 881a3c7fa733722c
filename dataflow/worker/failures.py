"""What a failure becomes: an error that ended an incarnation, a report for the coordinator (by
`FailureKind`); a fault of user code, an error that names the operator.
"""

import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from checkpoint import FailureKind
from checkpoint.chains.whole_checkpoints import is_damage
from checkpoint.errors import (
    EntryRefusedError,
    InputTrimmedError,
    ManifestError,
    OutputRewoundError,
    StaleIncarnationError,
)
from checkpoint.participant import Participant
from dataflow.errors import (
    InputChangedError,
    InputListChangedError,
    OperatorError,
    OperatorFailure,
    PeerLostError,
    ReplicasDifferError,
    StepDiffersError,
    StepsMissingError,
    UserFault,
)
from dos_protocol.errors import DosError, FencedError, errors_in
from journal import EpochUsedTwiceError

_FOR_A_PERSON: Final = (
    ManifestError,
    InputChangedError,
    InputListChangedError,
    InputTrimmedError,
    EntryRefusedError,
    OutputRewoundError,
    EpochUsedTwiceError,
    ReplicasDifferError,
)
"""A retry would find the same, so the region ends."""


class Failure(NamedTuple):
    """The fields of a FAILED message. After kind "internal" the process ends; otherwise it awaits RESTORE."""

    kind: FailureKind
    message: str
    peer: int = -1
    epoch_held: int = 0
    damaged: bool = False
    """Stored bytes seem to be damaged or lost."""


def failure_of(error: Exception) -> Failure:
    """Return the report for an error that ended an incarnation on the link side."""
    if isinstance(error, FencedError):
        return Failure("fenced", str(error), epoch_held=error.epoch_held)
    if isinstance(error, PeerLostError):
        return Failure("unreachable" if error.unreachable else "peer", str(error), peer=error.peer)
    if isinstance(error, (StepDiffersError, StepsMissingError)):
        return Failure("reset", str(error))
    if isinstance(error, DosError):
        if isinstance(error, _FOR_A_PERSON):
            return Failure("manifest", str(error))
        return Failure("store", str(error), damaged=is_damage(error))
    return Failure("internal", f"{type(error).__name__}: {error}")


async def reported_first(run: Callable[[], Awaitable[None]], control: Participant) -> None:
    """Run a task; report an error that ends the region before raising it. The links to other workers close
    when it is raised, and their reports about this worker must not come first: each would reset the region.
    """
    try:
        await run()
    except Exception as error:
        failure = failure_of(first_error(error))
        if failure.kind == "manifest":
            with suppress(StaleIncarnationError):
                await control.failed(failure.kind, message=failure.message)
        raise


def first_error(error: BaseException) -> Exception:
    """Return the first error of a group that is no PeerLostError; which explains less."""
    errors = errors_in(error)
    return next((one for one in errors if not isinstance(one, PeerLostError)), errors[0])


@contextmanager
def naming(operator: str, position: str) -> Iterator[None]:
    """Turn a user's fault into an error that names the operator and the position in its input."""
    try:
        yield
    except UserFault as fault:
        raise operator_error(operator, position, fault) from fault


def operator_error(name: str, position: str, fault: UserFault) -> OperatorError:
    cause = fault.__cause__
    lines = traceback.format_exception(cause) if cause is not None else [str(fault)]
    return OperatorError(
        name,
        position,
        str(fault),
        traceback_text="".join(lines),
        remedy=fault.remedy,
        wants_reset=isinstance(cause, OperatorFailure),
    )

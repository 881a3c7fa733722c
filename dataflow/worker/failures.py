"""What a failure becomes: an error that ended an incarnation, a report for the coordinator (`FailureKind`);
an exception of an operator, an error that names it.

An exception that no lost process caused (`LOSSES`) stops the region, because the same rows would raise it
again.
"""

import os
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

import pyarrow as pa
import trio

from checkpoint import Failed
from checkpoint.chains.whole_checkpoints import is_damage
from checkpoint.errors import (
    EntryRefusedError,
    InputTrimmedError,
    ManifestError,
    OutputRewoundError,
    RecordTooLargeError,
    StaleIncarnationError,
)
from checkpoint.participant import Participant
from dataflow.errors import (
    InputChangedError,
    InputListChangedError,
    InputUnavailableError,
    OperatorError,
    OperatorFailure,
    PeerLostError,
    ReplicasDifferError,
    SinkFencedError,
    SinkOwnedError,
    SinkWriteError,
    StepDiffersError,
    StepsMissingError,
    UserFault,
)
from dataflow.values.python_rows import end_forked_child
from dos_protocol.errors import (
    ClosedError,
    CorruptDataError,
    DosError,
    FencedError,
    RemoteProtocolError,
    encodable,
    errors_in,
    text_of,
)
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

LOSSES: Final = (OSError, InputUnavailableError, SinkWriteError, SinkFencedError)
"""A disk, a service or another process failed an operator, not its rows: another attempt may succeed."""

_PASSED_ON: Final = (
    *(OperatorError, *LOSSES, InputChangedError, InputListChangedError, SinkOwnedError, CorruptDataError),
    *(ReplicasDifferError, ClosedError, RemoteProtocolError),
)
"""What an operator raises with a rule of its own; `circuit_thread` has it."""

CONVERSIONS: Final = (UnicodeError, OverflowError, MemoryError, RecursionError, pa.ArrowException)
"""What the values of rows, names and positions cause, whenever they are encoded."""


ROW_FAULTS: Final = (UserFault, *(one for one in CONVERSIONS if one is not MemoryError))
"""What one row of a batch may cause."""


def failure_of(error: Exception) -> Failed:
    """Return the report for an error that ended an incarnation on the link side. After kind "internal" the
    process ends; otherwise it awaits RESTORE.
    """
    if isinstance(error, FencedError):
        return Failed(kind="fenced", message=str(error), epoch_held=error.epoch_held)
    if isinstance(error, PeerLostError):
        return Failed(
            kind="unreachable" if error.unreachable else "peer", message=str(error), peer=error.peer
        )
    if isinstance(error, (StepDiffersError, StepsMissingError)):
        return Failed(kind="reset", message=str(error))
    if isinstance(error, UserFault) and isinstance(error.__cause__, OperatorFailure):  # of the scratch disk
        return Failed(kind="reset", message=f"{error}; {error.remedy}")
    if isinstance(error, OperatorError):
        return Failed(
            kind="operator", message=error.cause_text, operator=error.operator, position=error.position
        )
    if isinstance(error, RecordTooLargeError):
        return Failed(kind="operator", message=str(error))
    if isinstance(error, DosError):
        if isinstance(error, _FOR_A_PERSON):
            return Failed(kind="manifest", message=str(error))
        return Failed(kind="store", message=str(error), damaged=is_damage(error))
    return Failed(kind="operator" if isinstance(error, CONVERSIONS) else "internal", message=text_of(error))


async def reported_first(run: Callable[[], Awaitable[None]], control: Participant) -> None:
    """Run a task; report an error that ends the region before raising it."""
    # The links close when it is raised; peers' reports about this worker must not come first: each would
    # reset the region.
    try:
        await run()
    except Exception as error:
        failure = failure_of(first_error(error))
        if failure.kind in ("manifest", "operator"):
            with suppress(StaleIncarnationError):
                await control.report(failure)
        raise


def first_error(error: BaseException) -> Exception:
    """Return the first error of a group that is no PeerLostError; which explains less."""
    errors = errors_in(error)
    return next((one for one in errors if not isinstance(one, PeerLostError)), errors[0])


class naming:  # noqa: N801  (reads as a word at its uses)
    """Turns what an operator raises into an OperatorError, which names it and the position in its input,
    given in words, or as a function of the row that caused the fault (None if not known). Exceptions with a
    rule of their own pass, with a note that names the operator.
    """

    def __init__(self, operator: str, position: str | Callable[[int | None], str]) -> None:
        self._operator = operator
        self._position = position
        self._process = os.getpid()

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:
            end_forked_child(self._operator)
        if error is None:
            return
        if isinstance(error, (*_PASSED_ON, trio.Cancelled)):
            if not isinstance(error, OperatorError) and not hasattr(error, "__notes__"):
                error.add_note(f"operator {self._operator!r}")
            return
        row = error.row if isinstance(error, UserFault) else None
        raise operator_error(self._operator, self._described(row), error) from error

    def _described(self, row: int | None) -> str:
        if isinstance(self._position, str):
            return self._position
        try:
            return self._position(row)
        except BaseException as error:  # of a source's own class
            return f"a position that its source cannot describe: {text_of(error)}"


def raise_with_row(
    error: Exception, process: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch
) -> None:
    """Raise the error as a UserFault that names the first row that causes it on its own. Returns if it names
    a row, or if no row does. process: has failed for the batch, and is called with parts of it.
    """
    named = isinstance(error, UserFault) and error.row is not None
    begin, end = 0, batch.num_rows
    if named or isinstance(error, MemoryError):
        return
    text = text_of(error)

    def fails(first: int, last: int) -> bool:
        try:
            process(batch.slice(first, last - first))
        except Exception as again:
            return type(again) is type(error) and text_of(again) == text
        return False

    while end - begin > 1:
        middle = (begin + end) // 2
        if fails(begin, middle):
            end = middle
        elif fails(middle, end):
            begin = middle
        else:
            return
    if batch.num_rows == 1 or fails(begin, end):
        if isinstance(error, UserFault):
            error.row = begin
            raise error
        raise UserFault(text, row=begin) from error


def operator_error(name: str, position: str, error: BaseException) -> OperatorError:
    is_fault = isinstance(error, UserFault)
    cause = error.__cause__ if is_fault else error
    return OperatorError(
        name,
        position,
        encodable(str(error.args[0])) if isinstance(error, UserFault | DosError) else text_of(error),
        traceback_text="".join(traceback.format_exception(error if cause is None else cause)),
        remedy=getattr(error, "remedy", ""),
        wants_reset=isinstance(cause, OperatorFailure),
    )

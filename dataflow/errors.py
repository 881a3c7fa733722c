"""Errors of a dataflow. Messages: lower case, the violated rule, the values, the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar

from dos_protocol.errors import CorruptDataError, DosError


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" if a known name is similar to `name`, otherwise ""."""
    matches = get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


class GraphError(DosError):
    """The graph violates rules; nothing was started. `problems` lists all of them."""

    verdict: ClassVar[str] = "cannot run"

    def __init__(self, graph: str, problems: tuple[str, ...]) -> None:
        listed = "; ".join(problems)
        super().__init__(f"graph {graph!r} {self.verdict}: {listed}")
        self.problems = problems


class ReplicaError(GraphError):
    """The graph is that of a replica, and replicas at several sites may emit different rows. Nothing was
    started.
    """

    verdict = "cannot run as replicas at several sites"


class SchemaError(DosError):
    """A schema cannot be parsed, or an operator cannot work on it. Nothing was started."""


class DeliveryError(DosError):
    """A sink cannot do the delivery of its region (`consistent(delivery=...)`). Nothing was started."""


class OperatorFailure(DosError):  # noqa: N818 - the paper's word for what an operator reports
    """Raised by a user function for a problem that a reset of the region may solve: a service is unavailable,
    a cache is corrupt. The reset counts as one of `max_consecutive_reset_attempts`. Any other exception stops
    the region. (Consistent regions, "Resetting to a consistent state".)
    """


class UserFault(Exception):  # noqa: N818 - not a failure of the engine: it carries the user's exception
    """A user function raised an exception (`__cause__`) or returned an invalid result. `row`: its index in
    the batch if one row caused the fault. The circuit adds the operator's name and the position.
    """

    def __init__(self, message: str, *, row: int | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.row = row
        self.remedy = remedy


class OperatorError(DosError):
    """A user function raised, or returned what its schema does not allow; or an operator, a source or a sink
    cannot handle its rows. The region stops; if `wants_reset` (OperatorFailure), it resets.

    operator: its name. position: in the input, or which step. traceback_text: the original one, as text,
    because the driver may not have the user's classes.
    """

    def __init__(
        self,
        operator: str,
        position: str,
        cause: str,
        *,
        traceback_text: str = "",
        remedy: str = "",
        wants_reset: bool = False,
    ) -> None:
        super().__init__(f"operator {operator!r} failed at {position}: {cause}", remedy=remedy)
        self.operator = operator
        self.position = position
        self.cause = cause
        self.cause_text = f"{cause} ({remedy})" if remedy else cause
        self.traceback_text = traceback_text
        self.wants_reset = wants_reset

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _operator_error,
            (self.operator, self.position, self.cause, self.traceback_text, self.remedy, self.wants_reset),
        )


def _operator_error(
    operator: str, position: str, cause: str, traceback_text: str, remedy: str, wants_reset: bool
) -> OperatorError:
    return OperatorError(
        operator, position, cause, traceback_text=traceback_text, remedy=remedy, wants_reset=wants_reset
    )


class InputChangedError(DosError):
    """An input was truncated or changed since it was read. Nothing was read after the position."""

    remedy = "put the file back as it was, or start the region under a new name"

    def __init__(self, path: str, position: int, expected: str, found: str, *, remedy: str = "") -> None:
        text = f"input {path!r} changed below byte {position}: expected {expected}, found {found}"
        super().__init__(text, remedy=remedy)
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found


class InputGoneError(InputChangedError):
    """A watched file, or an object that is being read, is missing, perhaps before all of it was read."""

    remedy = (
        "restore it under its name; if files are removed after a checkpoint covers them, write"
        ' FileSource(..., watch=True, gone="forget")'
    )

    def __init__(self, path: str, position: int) -> None:
        DosError.__init__(self, f"input {path!r}, read up to byte {position}, does not exist any more")
        self.path, self.position = path, position
        self.expected, self.found = "the file", "none"


class InputListChangedError(DosError):
    """The list of input files, or of splits, no longer begins with those that were read."""

    remedy = "give the same files in the same order (more may follow), or start the region under a new name"


class InputEncodingError(DosError):
    """Input bytes are not UTF-8, and the source has `errors="strict"`."""

    remedy = 'repair the file, or read it with FileSource(..., errors="replace")'

    def __init__(self, path: str, position: int, found: str) -> None:
        super().__init__(f"input {path!r} is not UTF-8 at byte {position}: found {found}")
        self.path = path
        self.position = position


class InputRowError(DosError):
    """A record of an input is no row of the schema, and the source has `on_bad="error"`."""

    remedy = (
        'repair the record or the schema; on_bad="drop" counts such records, on_bad="side" puts them on'
        ' the side output "bad"'
    )

    def __init__(self, path: str, line: int, position: int, reason: str, data: bytes) -> None:
        shown = data[:200].decode(errors="backslashreplace").rstrip("\r\n")
        super().__init__(f"input {path!r}, line {line}, byte {position}: {reason}: {shown!r}")
        self.path, self.line, self.position, self.reason, self.data = path, line, position, reason, data


class InputReadError(DosError):
    """An input cannot be read. If the operating system refused it, `__cause__` has its error."""

    remedy = "every worker must be able to read every input file under this path"


class InputUnavailableError(DosError):
    """The service of a bucket did not answer, or refused a request. The worker is started again, up to
    `max_consecutive_reset_attempts` times; the region resumes from its last checkpoint.
    """


class ReplicasDifferError(DosError):
    """Two replicas of a stream do not give the same rows. What was passed before stays; nothing follows."""

    remedy = (
        "compare the graphs of both replicas and the versions of their programs; an operator whose result"
        " depends on the order of rows, on the clock or on chance cannot be replicated"
    )


class SinkOwnedError(DosError):
    """The target of a sink holds data of another run, region or program. It was not changed."""

    remedy = "choose another directory, or remove that one if its content is not needed"


class SinkFencedError(DosError):
    """A worker of a later incarnation has written this output. This one changed nothing."""

    remedy = "none is needed: this worker ends, the later one continues"


class SinkWriteError(DosError):
    """The operating system failed to write, sync or truncate an output file; `__cause__` has its error."""

    remedy = "check space and permissions of the output directory, then run the region again: it resumes"


class SinkRefusedError(SinkWriteError):
    """The destination of a sink refuses to be written, and would again: permissions, a path that cannot be a
    directory, credentials, a bucket or a table that does not exist. A region without a checkpoint stops at
    once; otherwise the destination was written before, and the region resets.
    """

    remedy = (
        "correct the place or its permissions, or pass another one to the sink; then run the region again"
    )


class OutputLostError(CorruptDataError):
    """Output that a checkpoint covers is not in the directory of a sink, on the host of this worker."""


class NoOutputError(DosError):
    """The store has no output log of that region and sink, or has none yet. why: what is known of it."""

    remedy = "see `dos ls` for what is in the store; only a LogSink keeps its output there"

    def __init__(self, region: str, sink: str, why: str = "") -> None:
        text = f"region {region!r} has no output of a sink {sink!r} in this store"
        super().__init__(f"{text}: {why}" if why else text)


class NoMarksError(DosError):
    """An output without marks in its records cannot be merged with the outputs of other replicas."""

    remedy = 'name the time of the rows where they are written: LogSink(publish="step", time="at")'

    def __init__(self, region: str, sink: str, site: str) -> None:
        super().__init__(f"sink {sink!r} of region {region!r} at {site} does not say how far its output is")


class TokenMismatchError(DosError):
    """A token of a merged output is not of the output that is read. Nothing was read."""

    remedy = (
        "continue with the token that the last batch of this output had, or from the beginning without one"
    )


class PeerLostError(DosError):
    """The link to another worker broke. The region resets; if `unreachable`, on another placement."""

    def __init__(self, peer: int, why: str, *, remedy: str = "", unreachable: bool = False) -> None:
        super().__init__(f"worker {peer} is lost: {why}", remedy=remedy)
        self.peer = peer
        self.unreachable = unreachable


class StepsMissingError(DosError):
    """Local recovery: a peer needs a step that is not retained any more. The region resets."""


class StepDiffersError(DosError):
    """Local recovery: a step that was made again has other rows than were used of it. The region resets."""


__all__ = [
    "DeliveryError",
    "GraphError",
    "InputChangedError",
    "InputEncodingError",
    "InputGoneError",
    "InputListChangedError",
    "InputReadError",
    "InputRowError",
    "InputUnavailableError",
    "NoMarksError",
    "NoOutputError",
    "OperatorError",
    "OperatorFailure",
    "PeerLostError",
    "ReplicaError",
    "ReplicasDifferError",
    "SchemaError",
    "SinkFencedError",
    "SinkOwnedError",
    "SinkRefusedError",
    "SinkWriteError",
    "StepDiffersError",
    "StepsMissingError",
    "TokenMismatchError",
    "nearest",
]

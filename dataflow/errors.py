"""What can go wrong in a dataflow, named by who must act. Words: lower case, rule broken, values seen,
remedy.

Base classes come from `dos_protocol.errors`. A user's own exception never travels as itself: it is wrapped
in `OperatorError`, which keeps the original traceback as text, because the driver may not have the user's
classes.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from dos_protocol.errors import DosError


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", if one of these is near to what was written; else nothing."""
    found = get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


class GraphError(DosError):
    """The graph breaks rules; nothing was started. `problems` lists all of them, not only the first."""

    def __init__(self, graph: str, problems: tuple[str, ...]) -> None:
        listed = "; ".join(problems)
        super().__init__(f"graph {graph!r} cannot run: {listed}")
        self.problems = problems


class SchemaError(DosError):
    """A schema that cannot be read, or that an operator cannot work on. Nothing was started."""


class DeliveryError(DosError):
    """A sink cannot give what its region promises (`consistent(delivery=...)`). Nothing was started."""


class OperatorFailure(DosError):  # noqa: N818 - the paper's word for what an operator reports
    """For user functions to raise: what they find is not right now, and may be if the region goes back.

    Say, a service that they ask is away, or a cache of theirs has gone bad. The region resets to its last
    committed cut, which spends one of `max_consecutive_reset_attempts`; any other exception stops it for a
    person. (Consistent regions, "Resetting to a consistent state": an operator detects and reports an error.)
    """


class DirectoryError(DosError):
    """An operator used its directory where or when it may not. Nothing was changed; the operator is to be
    mended.
    """


class OperatorError(DosError):
    """A user function raised, or returned what its schema does not allow. The region stops and needs a
    person; if `wants_reset` (it raised OperatorFailure), the region resets.

    operator: the name the user gave; position: where in the input (source, split, byte) or which step;
    traceback_text: the original traceback.
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
    """An input is not what was read from it before: it was cut short, or its first bytes are others. Nothing
    was read past the position. A file that only grew is accepted.
    """

    remedy = "put the file back as it was, or start the region under a new name"

    def __init__(self, path: str, position: int, expected: str, found: str) -> None:
        super().__init__(f"input {path!r} changed below byte {position}: expected {expected}, found {found}")
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found


class InputGoneError(InputChangedError):
    """A file in a watched directory is not there any more, and it is not known that all of it was read."""

    remedy = (
        "put it back under its name; where files are taken away once a cut holds them, write"
        ' DirectorySource(..., gone="forget")'
    )

    def __init__(self, path: str, position: int) -> None:
        DosError.__init__(self, f"input {path!r}, read up to byte {position}, is not there any more")
        self.path, self.position = path, position
        self.expected, self.found = "the file", "none"


class InputListChangedError(DosError):
    """The list of input files no longer begins with those that were read to their end."""

    remedy = "give the same files in the same order (more may follow), or start the region under a new name"


class InputEncodingError(DosError):
    """Input bytes that are not UTF-8, while the source was told `errors="strict"`."""

    remedy = 'repair the file, or read it with FileSource(..., errors="replace")'

    def __init__(self, path: str, position: int, found: str) -> None:
        super().__init__(f"input {path!r} is not UTF-8 at byte {position}: found {found}")
        self.path = path
        self.position = position


class LineTooLongError(DosError):
    """A line longer than `line_bytes_max`: it would have to fit in memory whole."""


class InputReadError(DosError):
    """The operating system refused to read an input; `__cause__` has its error."""

    remedy = "every worker must be able to read every input file under this path"


class SinkOwnedError(DosError):
    """The place where a sink's rows go holds what another run, region or program wrote. Nothing in it was
    touched.
    """

    remedy = "choose another directory, or remove that one if its content is not needed"


class SinkFencedError(DosError):
    """A worker of a later incarnation has written this output. This one is left over, and touched nothing."""

    remedy = "none is needed: this worker ends, the later one goes on"


class SinkWriteError(DosError):
    """The operating system refused to write, sync or cut an output file; `__cause__` has its error."""

    remedy = "check space and permissions of the output directory, then run the region again: it resumes"


class NoOutputError(DosError):
    """Nobody has written an output log of that region and sink."""

    remedy = "see `dos ls` for what is in the store; only a LogSink keeps its output there"

    def __init__(self, region: str, sink: str) -> None:
        super().__init__(f"region {region!r} has no output of a sink {sink!r} in this store")


class SpecError(DosError):
    """A worker was handed a specification that it cannot run."""


class PeerLostError(DosError):
    """The link to another worker broke, or could not be made. The region resets."""

    def __init__(self, peer: int, why: str, *, remedy: str = "") -> None:
        super().__init__(f"worker {peer} is lost: {why}", remedy=remedy)
        self.peer = peer


class CircuitStoppedError(DosError):
    """The circuit of this worker met an error of its own; the process ends and another attempt begins."""


__all__ = [
    "CircuitStoppedError",
    "DeliveryError",
    "DirectoryError",
    "GraphError",
    "InputChangedError",
    "InputEncodingError",
    "InputGoneError",
    "InputListChangedError",
    "InputReadError",
    "LineTooLongError",
    "NoOutputError",
    "OperatorError",
    "OperatorFailure",
    "PeerLostError",
    "SchemaError",
    "SinkFencedError",
    "SinkOwnedError",
    "SinkWriteError",
    "SpecError",
    "nearest",
]

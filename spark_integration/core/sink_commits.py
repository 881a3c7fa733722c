"""The sink `dos`: what is committed once, and what becomes of a commit. Pure.

Rules of this file: values and one table. Who claims, writes and reads is in `writing/`.

Theory. What Spark writes at one time is a *unit*: a micro-batch of a query, or the whole of a batch write.
Its tasks prepare rows and nobody sees them; `commit` on the driver records one attempt of each partition, as
one batch of one producer of an input handle. That append is the commit: there all of it counts, or nothing
(`checkpoint/core/inputs.py`). The producer's batches are numbered, and the last one says by its *mark* whose
it is. So a commit first becomes the producer, which fences every other, and then looks:

- a micro-batch N of a query is batch N + 1 of its producer. Spark runs N again until its commit has returned,
  and begins N + 1 only then; so an older number was recorded before, and a later one leaves a hole: what lies
  in it was written to another store.
- a batch write takes the next number, or the one that the user gives it, and finds by its own id that it was
  committed already.

Abort decides nothing: what is not recorded was never there, and Spark may abort what it commits later.
"""

from enum import Enum, auto
from typing import Final

from checkpoint.core.staged import BatchMark, CommitUnit, WriteKind, decode_mark
from dos_protocol.errors import LocalProtocolError
from spark_integration.errors import OtherCheckpointError, OtherWriterError


class BatchOwner(Enum):
    """Who recorded the last batch of the producer."""

    NOBODY = auto()
    OURS = auto()
    ANOTHER_STREAM = auto()
    ANOTHER_JOB = auto()
    ANOTHER_PROGRAM = auto()


class BatchPlace(Enum):
    """Where the unit's number lies."""

    RECORDED = auto()
    """At or below the last."""
    NEXT = auto()
    BEYOND = auto()
    ANY = auto()
    """It has none: the next is meant."""


class CommitDecision(Enum):
    """What becomes of a commit."""

    APPEND = auto()
    DONE = auto()
    """It was recorded before; what was prepared now is forgotten."""
    REFUSE_WRITER = auto()
    """The producer is somebody else's."""
    REFUSE_HOLE = auto()
    """Batches before it are not here."""


_A, _D, _W, _H = (
    CommitDecision.APPEND,
    CommitDecision.DONE,
    CommitDecision.REFUSE_WRITER,
    CommitDecision.REFUSE_HOLE,
)
_STRANGERS: Final = {
    (kind, owner_of, place): _W
    for kind in WriteKind
    for owner_of in (BatchOwner.ANOTHER_STREAM, BatchOwner.ANOTHER_JOB, BatchOwner.ANOTHER_PROGRAM)
    for place in BatchPlace
}
TABLE: Final[dict[tuple[WriteKind, BatchOwner, BatchPlace], CommitDecision]] = _STRANGERS | {
    (WriteKind.STREAM, BatchOwner.NOBODY, BatchPlace.NEXT): _A,
    (WriteKind.STREAM, BatchOwner.NOBODY, BatchPlace.BEYOND): _H,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPlace.RECORDED): _D,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPlace.NEXT): _A,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPlace.BEYOND): _H,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPlace.ANY): _A,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPlace.NEXT): _A,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPlace.BEYOND): _H,
    (WriteKind.JOB, BatchOwner.OURS, BatchPlace.ANY): _D,
    (WriteKind.JOB, BatchOwner.OURS, BatchPlace.RECORDED): _D,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPlace.ANY): _A,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPlace.RECORDED): _D,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPlace.NEXT): _A,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPlace.BEYOND): _H,
}
"""What cannot be is not in it: nobody has no last batch, a stream is always numbered, and a batch write is
one batch.
"""


def judge_commit(unit: CommitUnit, last: int, mark: bytes, where: str) -> CommitDecision:
    """APPEND or DONE, when the producer's last batch is `last` (0: none) with that mark.

    Raises OtherWriterError, OtherCheckpointError, LocalProtocolError; nothing may be recorded then. where:
    the producer, for people.
    """
    told = decode_mark(mark)
    verdict = TABLE[unit.kind, _whose(unit, last, told), _place(unit, last)]
    if verdict is CommitDecision.REFUSE_WRITER:
        raise OtherWriterError(where, _named(told), f"{unit.kind} {unit.key}")
    if verdict is CommitDecision.REFUSE_HOLE:
        raise _hole(unit, last, where)
    return verdict


def _whose(unit: CommitUnit, last: int, mark: BatchMark | None) -> BatchOwner:
    if not last:
        return BatchOwner.NOBODY
    if mark is None:
        return BatchOwner.ANOTHER_PROGRAM
    if (mark.spark, mark.key) == (unit.kind, unit.key):
        return BatchOwner.OURS
    return BatchOwner.ANOTHER_STREAM if mark.spark is WriteKind.STREAM else BatchOwner.ANOTHER_JOB


def _place(unit: CommitUnit, last: int) -> BatchPlace:
    if unit.number is None:
        return BatchPlace.ANY
    if unit.number <= last:
        return BatchPlace.RECORDED
    return BatchPlace.NEXT if unit.number == last + 1 else BatchPlace.BEYOND


def _named(mark: BatchMark | None) -> str:
    return "another program" if mark is None else f"{mark.spark} {mark.key}"


def _hole(unit: CommitUnit, last: int, where: str) -> Exception:
    if unit.kind is WriteKind.JOB:
        return LocalProtocolError(
            f"{where}: batch {unit.number} cannot come after batch {last}",
            remedy="give the option 'batch' the number that follows, or leave it out",
        )
    assert unit.number is not None, "a stream is numbered"
    return OtherCheckpointError(where, unit.key, unit.number - 1, last - 1)

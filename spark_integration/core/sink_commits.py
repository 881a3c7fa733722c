"""Commits of the sink `dos`: what is committed exactly once, and what happens to a commit. Pure: no I/O.

What Spark writes at one time is a *unit*: a micro-batch of a query, or a whole batch write. Its tasks stage
rows, which no reader sees. `commit` on the driver records one attempt of each partition, as one batch of one
producer of an input handle. That append is the commit: it makes all of the unit visible, or nothing
(`checkpoint/core/records/inputs.py`). The batches of a producer are numbered, and the *mark* of the last one
names the query or write that recorded it. So a commit first becomes the producer, which fences every other
writer, and then reads the last batch:

- A micro-batch N of a query is batch N + 1 of its producer. Spark repeats N until its commit has returned,
  and begins N + 1 only then. A later number leaves a gap, whose micro-batches were written to another store.
- A batch write takes the next number, or the one that the user gives it. It recognizes by its own id that it
  was already committed."""

from enum import Enum, StrEnum, auto
from typing import Final

from checkpoint import BatchContent, BatchMark, CommitUnit, WriteKind, decode_mark
from dos_protocol.errors import LocalProtocolError
from spark_integration.errors import BatchPlannedAgainError, OtherCheckpointError, OtherWriterError


class RepeatedBatch(StrEnum):
    """What happens to a micro-batch whose number is recorded; the texts are those of the option."""

    COMPARE = "compare"
    """It is refused if its rows differ from those that are recorded."""
    KEEP = "keep"
    """What is recorded stays, whatever the rows are now."""


class BatchOwner(Enum):
    """Which writer recorded the last batch of the producer."""

    NOBODY = auto()
    OURS = auto()
    ANOTHER_STREAM = auto()
    ANOTHER_JOB = auto()
    ANOTHER_PROGRAM = auto()


class BatchPosition(Enum):
    """The position of the unit's number relative to the last batch."""

    RECORDED = auto()
    """At or below the last batch."""
    NEXT = auto()
    BEYOND = auto()
    ANY = auto()
    """The unit has no number and takes the next one."""


class CommitDecision(Enum):
    """What happens to a commit."""

    APPEND = auto()
    DONE = auto()
    """The unit was recorded before; what was staged now is dropped."""
    REFUSE_WRITER = auto()
    """The producer belongs to another writer."""
    REFUSE_HOLE = auto()
    """Batches before this one are missing here."""


_A, _D, _W, _H = (
    CommitDecision.APPEND,
    CommitDecision.DONE,
    CommitDecision.REFUSE_WRITER,
    CommitDecision.REFUSE_HOLE,
)
_OTHER_WRITERS: Final = {
    (kind, owner_of, position): _W
    for kind in WriteKind
    for owner_of in (BatchOwner.ANOTHER_STREAM, BatchOwner.ANOTHER_JOB, BatchOwner.ANOTHER_PROGRAM)
    for position in BatchPosition
}
TABLE: Final[dict[tuple[WriteKind, BatchOwner, BatchPosition], CommitDecision]] = _OTHER_WRITERS | {
    (WriteKind.STREAM, BatchOwner.NOBODY, BatchPosition.NEXT): _A,
    (WriteKind.STREAM, BatchOwner.NOBODY, BatchPosition.BEYOND): _H,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPosition.RECORDED): _D,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPosition.NEXT): _A,
    (WriteKind.STREAM, BatchOwner.OURS, BatchPosition.BEYOND): _H,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPosition.ANY): _A,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPosition.NEXT): _A,
    (WriteKind.JOB, BatchOwner.NOBODY, BatchPosition.BEYOND): _H,
    (WriteKind.JOB, BatchOwner.OURS, BatchPosition.ANY): _D,
    (WriteKind.JOB, BatchOwner.OURS, BatchPosition.RECORDED): _D,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPosition.ANY): _A,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPosition.RECORDED): _D,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPosition.NEXT): _A,
    (WriteKind.JOB, BatchOwner.ANOTHER_JOB, BatchPosition.BEYOND): _H,
}
"""Combinations that are missing cannot occur: without a last batch nothing is recorded, a micro-batch is
always numbered, and a batch write is one batch.
"""


def judge_commit(
    unit: CommitUnit,
    content: BatchContent,
    last: int,
    mark: bytes,
    producer: str,
    repeated: RepeatedBatch = RepeatedBatch.COMPARE,
) -> CommitDecision:
    """Return APPEND or DONE for a unit, given the producer's last batch (0: none) and its mark.

    Raises OtherWriterError, OtherCheckpointError, BatchPlannedAgainError, LocalProtocolError; nothing may be
    recorded then.
    """
    writer = decode_mark(mark)
    verdict = TABLE[unit.kind, _owner_of_last(unit, last, writer), _position_of(unit, last)]
    if verdict is CommitDecision.REFUSE_WRITER:
        raise OtherWriterError(producer, _named(writer), f"{unit.kind} {unit.key}")
    if verdict is CommitDecision.REFUSE_HOLE:
        raise _hole(unit, last, producer)
    if verdict is CommitDecision.DONE and unit.kind is WriteKind.STREAM and repeated is RepeatedBatch.COMPARE:
        assert unit.number is not None, "a stream is numbered"
        assert writer is not None, "it is ours"
        # Spark repeats only the last micro-batch, with the same rows. Otherwise its checkpoint lost its
        # newest batches, and it planned this number again: to answer "done" would lose the rows of now.
        if unit.number < last or content != writer.content:
            recorded = writer.content if unit.number == last else None
            raise _planned_again(producer, unit.number - 1, last - 1, recorded, content)
    return verdict


def _planned_again(
    producer: str, batch: int, last: int, recorded: BatchContent | None, now: BatchContent
) -> BatchPlannedAgainError:
    if recorded is None:
        found = f"micro-batches up to {last} are recorded in {producer}"
    elif recorded.rows == now.rows:
        found = f"{producer} has it with {recorded.rows} other rows"
    else:
        found = f"{producer} has it with {recorded.rows} rows, and now it has {now.rows}"
    return BatchPlannedAgainError(
        f"micro-batch {batch} was planned again, because Spark's checkpoint lost its newest batches: {found}"
    )


def _owner_of_last(unit: CommitUnit, last: int, mark: BatchMark | None) -> BatchOwner:
    if not last:
        return BatchOwner.NOBODY
    if mark is None:
        return BatchOwner.ANOTHER_PROGRAM
    if (mark.spark, mark.key) == (unit.kind, unit.key):
        return BatchOwner.OURS
    return BatchOwner.ANOTHER_STREAM if mark.spark is WriteKind.STREAM else BatchOwner.ANOTHER_JOB


def _position_of(unit: CommitUnit, last: int) -> BatchPosition:
    if unit.number is None:
        return BatchPosition.ANY
    if unit.number <= last:
        return BatchPosition.RECORDED
    return BatchPosition.NEXT if unit.number == last + 1 else BatchPosition.BEYOND


def _named(mark: BatchMark | None) -> str:
    return "another program" if mark is None else f"{mark.spark} {mark.key}"


def _hole(unit: CommitUnit, last: int, producer: str) -> Exception:
    if unit.kind is WriteKind.JOB:
        return LocalProtocolError(
            f"{producer}: batch {unit.number} cannot follow batch {last}",
            remedy="set the option 'batch' to the next number, or omit it",
        )
    assert unit.number is not None, "a stream is numbered"
    return OtherCheckpointError(producer, unit.key, unit.number - 1, last - 1)

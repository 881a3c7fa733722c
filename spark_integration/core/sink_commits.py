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

import re
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import LocalProtocolError
from spark_integration.errors import OtherCheckpointError, OtherWriterError


class Kind(StrEnum):
    """Of what Spark writes."""

    STREAM = "stream"
    JOB = "job"


class Unit(NamedTuple):
    """What is committed at one time. key: the query's id, or that of the batch write; number: of the batch
    that it becomes, from 1; None: the next.
    """

    kind: Kind
    key: str
    number: int | None


class Mark(msgspec.Struct, frozen=True):
    """What a batch that Spark wrote says of itself to whoever opens its producer."""

    spark: Kind
    key: str


_marks: "msgspec.json.Decoder[Mark]" = msgspec.json.Decoder(Mark)


def encode_mark(unit: Unit) -> bytes:
    """The mark of a unit's batch."""
    return msgspec.json.encode(Mark(unit.kind, unit.key))


def decode_mark(mark: bytes) -> Mark | None:
    """None for one that another program gave its batch."""
    try:
        return _marks.decode(mark)
    except (msgspec.DecodeError, RecursionError):
        return None


class Whose(Enum):
    """Who recorded the last batch of the producer."""

    NOBODY = auto()
    OURS = auto()
    ANOTHER_STREAM = auto()
    ANOTHER_JOB = auto()
    ANOTHER_PROGRAM = auto()


class Place(Enum):
    """Where the unit's number lies."""

    RECORDED = auto()
    """At or below the last."""
    NEXT = auto()
    BEYOND = auto()
    ANY = auto()
    """It has none: the next is meant."""


class Verdict(Enum):
    """What becomes of a commit."""

    APPEND = auto()
    DONE = auto()
    """It was recorded before; what was prepared now is forgotten."""
    REFUSE_WRITER = auto()
    """The producer is somebody else's."""
    REFUSE_HOLE = auto()
    """Batches before it are not here."""


_A, _D, _W, _H = Verdict.APPEND, Verdict.DONE, Verdict.REFUSE_WRITER, Verdict.REFUSE_HOLE
_STRANGERS: Final = {
    (kind, whose, place): _W
    for kind in Kind
    for whose in (Whose.ANOTHER_STREAM, Whose.ANOTHER_JOB, Whose.ANOTHER_PROGRAM)
    for place in Place
}
TABLE: Final[dict[tuple[Kind, Whose, Place], Verdict]] = _STRANGERS | {
    (Kind.STREAM, Whose.NOBODY, Place.NEXT): _A,
    (Kind.STREAM, Whose.NOBODY, Place.BEYOND): _H,
    (Kind.STREAM, Whose.OURS, Place.RECORDED): _D,
    (Kind.STREAM, Whose.OURS, Place.NEXT): _A,
    (Kind.STREAM, Whose.OURS, Place.BEYOND): _H,
    (Kind.JOB, Whose.NOBODY, Place.ANY): _A,
    (Kind.JOB, Whose.NOBODY, Place.NEXT): _A,
    (Kind.JOB, Whose.NOBODY, Place.BEYOND): _H,
    (Kind.JOB, Whose.OURS, Place.ANY): _D,
    (Kind.JOB, Whose.OURS, Place.RECORDED): _D,
    (Kind.JOB, Whose.ANOTHER_JOB, Place.ANY): _A,
    (Kind.JOB, Whose.ANOTHER_JOB, Place.RECORDED): _D,
    (Kind.JOB, Whose.ANOTHER_JOB, Place.NEXT): _A,
    (Kind.JOB, Whose.ANOTHER_JOB, Place.BEYOND): _H,
}
"""What cannot be is not in it: nobody has no last batch, a stream is always numbered, and a batch write is
one batch.
"""


def judge_commit(unit: Unit, last: int, mark: bytes, where: str) -> Verdict:
    """APPEND or DONE, when the producer's last batch is `last` (0: none) with that mark.

    Raises OtherWriterError, OtherCheckpointError, LocalProtocolError; nothing may be recorded then. where:
    the producer, for people.
    """
    told = decode_mark(mark)
    verdict = TABLE[unit.kind, _whose(unit, last, told), _place(unit, last)]
    if verdict is Verdict.REFUSE_WRITER:
        raise OtherWriterError(where, _named(told), f"{unit.kind} {unit.key}")
    if verdict is Verdict.REFUSE_HOLE:
        raise _hole(unit, last, where)
    return verdict


def _whose(unit: Unit, last: int, mark: Mark | None) -> Whose:
    if not last:
        return Whose.NOBODY
    if mark is None:
        return Whose.ANOTHER_PROGRAM
    if (mark.spark, mark.key) == (unit.kind, unit.key):
        return Whose.OURS
    return Whose.ANOTHER_STREAM if mark.spark is Kind.STREAM else Whose.ANOTHER_JOB


def _place(unit: Unit, last: int) -> Place:
    if unit.number is None:
        return Place.ANY
    if unit.number <= last:
        return Place.RECORDED
    return Place.NEXT if unit.number == last + 1 else Place.BEYOND


def _named(mark: Mark | None) -> str:
    return "another program" if mark is None else f"{mark.spark} {mark.key}"


def _hole(unit: Unit, last: int, where: str) -> Exception:
    if unit.kind is Kind.JOB:
        return LocalProtocolError(
            f"{where}: batch {unit.number} cannot come after batch {last}",
            remedy="give the option 'batch' the number that follows, or leave it out",
        )
    assert unit.number is not None, "a stream is numbered"
    return OtherCheckpointError(where, unit.key, unit.number - 1, last - 1)


# --- rows too many for a message lie in the store until they are recorded ---------------------------------

_STAGED: Final = re.compile(r"(?:b([0-9a-f]{16})|j([0-9a-f]{32}))\.[0-9a-f]{16}")


def staging_prefix(application: str, handle: str, producer: str) -> str:
    """How the directories begin in which the tasks of a producer put rows down."""
    return f"{application}.sink.{handle}.{producer}.p"


def staging_directory(application: str, handle: str, producer: str, partition: int) -> str:
    """Where a partition's tasks do. Its attempts claim it, each above the one before."""
    return f"{staging_prefix(application, handle, producer)}{partition:04d}"


def staged_name(unit: Unit, epoch: int) -> str:
    """The object of one attempt: no other ever has its name."""
    head = f"b{unit.number:016x}" if unit.kind is Kind.STREAM else f"j{unit.key}"
    return f"{head}.{epoch:016x}"


def is_orphan(name: str, unit: Unit, *, recorded: bool) -> bool:
    """Whether nobody will ever record what lies in a staged object, once `unit` has begun, or is recorded.

    Of a stream older batches are decided, so a zombie can only take away what is older than itself. A batch
    write has its producer for itself, so what others had put down there when it begins is left over.
    """
    found = _STAGED.fullmatch(name)
    if found is None:
        return False
    if unit.kind is Kind.JOB:
        return found[2] is not None and (found[2] == unit.key) == recorded
    assert unit.number is not None, "a stream is numbered"
    return found[1] is not None and int(found[1], 16) < unit.number + recorded

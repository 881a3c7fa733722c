"""Rows that are put down in the store before their batch is recorded: where they lie, and what becomes of
them. Pure.

Rules of this file: names and decisions. Who puts rows down, records and takes away is for others
(`spark_integration/writing/`, `checkpoint/maintenance/sweeping.py`).

Theory. What Spark writes at one time is a *unit*: a micro-batch of a query, or the whole of a batch write. It
becomes one batch of a producer of an input handle, recorded by one append. Rows that are too many for a
message are put down first, by each attempt of each partition in an object of its own, which no reader looks
at. Such an object is garbage as soon as nobody will record it any more:

- the producer's last batch is that of its unit, or a later one: what has a number at or below the last is
  never appended again (`inputs.judge_batch`);
- the handle is closed: nobody appends to it;
- somebody gives it up. A unit that is not recorded may be at any time, by a driver that is alive or comes
  back, and nothing tells for certain that it will not: that is for a person to say, by an age.

Whoever records reads what was put down first, and compares its digest. So a deletion that came too soon makes
a commit fail, and records nothing wrong and nothing less.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec


class WriteKind(StrEnum):
    """Of what Spark writes."""

    STREAM = "stream"
    JOB = "job"


class CommitUnit(NamedTuple):
    """What is committed at one time. key: the query's id, or that of the batch write; number: of the batch
    that it becomes, from 1; None: the next.
    """

    kind: WriteKind
    key: str
    number: int | None


class BatchMark(msgspec.Struct, frozen=True):
    """What a batch that Spark wrote says of itself to whoever opens its producer."""

    spark: WriteKind
    key: str


_marks: "msgspec.json.Decoder[BatchMark]" = msgspec.json.Decoder(BatchMark)


def encode_mark(unit: CommitUnit) -> bytes:
    """The mark of a unit's batch."""
    return msgspec.json.encode(BatchMark(unit.kind, unit.key))


def decode_mark(mark: bytes) -> BatchMark | None:
    """None for one that another program gave its batch."""
    try:
        return _marks.decode(mark)
    except (msgspec.DecodeError, RecursionError):
        return None


# --- names ------------------------------------------------------------------------------------------------

_STAGED: Final = re.compile(r"(?:b([0-9a-f]{16})|j([0-9a-f]{32}))\.[0-9a-f]{16}\.([0-9a-f]{12})")
_PARTITION: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)\.p[0-9]{4,}")


class StagedName(NamedTuple):
    """What the name of a staged object says. number: of the batch of a stream, else None; key: of a batch
    write, else ""; since_ms: when it was begun, by its writer's clock.
    """

    number: int | None
    key: str
    since_ms: int


def handle_prefix(application: str, handle: str) -> str:
    """How the directories begin in which rows for a handle are put down."""
    return f"{application}.sink.{handle}."


def staging_prefix(application: str, handle: str, producer: str) -> str:
    """Those of one producer."""
    return f"{handle_prefix(application, handle)}{producer}.p"


def staging_directory(application: str, handle: str, producer: str, partition: int) -> str:
    """Where the tasks of a partition put rows down. Its attempts claim it, each above the one before."""
    return f"{staging_prefix(application, handle, producer)}{partition:04d}"


def producers_with_staged(directories: Iterable[str], application: str, handle: str) -> dict[str, list[str]]:
    """Producer -> its directories, of those that begin with the handle's prefix."""
    prefix = handle_prefix(application, handle)
    found: dict[str, list[str]] = {}
    for name in sorted(directories):
        if name.startswith(prefix) and (told := _PARTITION.fullmatch(name, len(prefix))):
            found.setdefault(told[1], []).append(name)
    return found


def staged_name(unit: CommitUnit, epoch: int, since_ms: int) -> str:
    """The object of one attempt: no other ever has its name, for the epoch is its claim's."""
    head = f"b{unit.number:016x}" if unit.kind is WriteKind.STREAM else f"j{unit.key}"
    return f"{head}.{epoch:016x}.{since_ms:012x}"


def parse_staged(name: str) -> StagedName | None:
    """None for an object that is none of these."""
    found = _STAGED.fullmatch(name)
    if found is None:
        return None
    number = None if found[1] is None else int(found[1], 16)
    return StagedName(number, found[2] or "", int(found[3], 16))


# --- what becomes of them ---------------------------------------------------------------------------------


def is_orphan(name: str, unit: CommitUnit, *, recorded: bool) -> bool:
    """Whether nobody will ever record what lies in a staged object, once `unit` has begun, or is recorded.

    Of a stream older batches are decided, so a zombie can only take away what is older than itself. A batch
    write has its producer for itself, so what others had put down there when it begins is left over.
    """
    found = parse_staged(name)
    if found is None:
        return False
    if unit.kind is WriteKind.JOB:
        return found.number is None and (found.key == unit.key) == recorded
    assert unit.number is not None, "a stream is numbered"
    return found.number is not None and found.number < unit.number + recorded


class Decided(NamedTuple):
    """What is certain of a producer: its last batch (0: none) with its mark, and whether there can be a next.
    Once true it stays true.
    """

    last: int
    mark: bytes
    closed: bool


class StagedState(StrEnum):
    """What becomes of an object in a directory of staged rows."""

    RECORDED = "recorded"
    """Its unit is, or a later one: nobody looks at it any more."""
    CLOSED = "closed"
    """The handle is: its unit is never recorded."""
    GIVEN_UP = "given up"
    """Not recorded, and older than the age from which on it is given up."""
    OPEN = "undecided"
    """It may be recorded yet."""
    STRANGE = "not the sink's"


GARBAGE: Final = frozenset({StagedState.RECORDED, StagedState.CLOSED, StagedState.GIVEN_UP})


def staged_state_of(name: str, decided: Decided, now_ms: int, give_up_ms: int | None) -> StagedState:
    """Of one object. give_up_ms: from which age on what is not recorded is given up; None: never."""
    found = parse_staged(name)
    if found is None:
        return StagedState.STRANGE
    if decided.closed:
        return StagedState.CLOSED
    if _is_recorded(found, decided):
        return StagedState.RECORDED
    if give_up_ms is not None and now_ms - found.since_ms >= give_up_ms:
        return StagedState.GIVEN_UP
    return StagedState.OPEN


def _is_recorded(found: StagedName, decided: Decided) -> bool:
    """A batch write is known by the key of the last batch alone: an older one was followed by others."""
    if found.number is not None:
        return found.number <= decided.last
    mark = decode_mark(decided.mark) if decided.last else None
    return mark is not None and (mark.spark, mark.key) == (WriteKind.JOB, found.key)


def may_sweep(staged_states: Iterable[StagedState]) -> bool:
    """Whether a directory with such objects is swept: there is garbage, and nothing that is undecided.

    Who deletes must claim the directory, and that fences a task that is putting rows down there: what is
    undecided may be that task's.
    """
    there = set(staged_states)
    return bool(there & GARBAGE) and StagedState.OPEN not in there

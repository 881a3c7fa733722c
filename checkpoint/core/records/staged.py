"""Staged rows: stored before their batch is recorded. Names of the objects, and which of them are garbage.

Pure: names and decisions. `spark_integration/writing/` stages and records rows,
`checkpoint/maintenance/garbage.py` deletes them.

Theory. Spark commits one *unit* at a time: a micro-batch of a query, or a whole batch write. A unit becomes
one batch of a producer of an input handle, recorded by one append. Rows that are too many for a message are
staged first: each attempt of each partition writes an object of its own, which no reader reads.

Recording reads the staged rows first and compares their digest. So a deletion that came too early makes a
commit fail, and never records wrong or incomplete rows.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import MALFORMED_JSON


class WriteKind(StrEnum):
    """The kind of a Spark write. The texts are in marks and never change."""

    STREAM = "stream"
    JOB = "job"


class CommitUnit(NamedTuple):
    """The rows that Spark commits at one time."""

    kind: WriteKind
    key: str
    """The id of the query, or of the batch write."""
    number: int | None
    """The number of the batch that it becomes, from 1; None: the next one."""


class BatchContent(NamedTuple):
    """A batch's number of rows, and the sum of their hashes modulo 2^64, without columns that have no
    canonical bytes, and floating-point numbers, which may be added in another order when a batch is made
    again.
    """

    rows: int = 0
    digest: int = 0


NO_ROWS: Final = BatchContent()


class BatchMark(msgspec.Struct, frozen=True):
    """The mark of a batch that Spark wrote, returned when its producer is opened."""

    spark: WriteKind
    key: str
    rows: int
    digest: int

    @property
    def content(self) -> BatchContent:
        return BatchContent(self.rows, self.digest)


_marks: "msgspec.json.Decoder[BatchMark]" = msgspec.json.Decoder(BatchMark)


def encode_mark(unit: CommitUnit, content: BatchContent = NO_ROWS) -> bytes:
    """Return the mark of a unit's batch."""
    return msgspec.json.encode(BatchMark(unit.kind, unit.key, *content))


def decode_mark(mark: bytes) -> BatchMark | None:
    """Return the decoded mark, None for a mark of another program."""
    try:
        return _marks.decode(mark)
    except MALFORMED_JSON:
        return None


# --- names ------------------------------------------------------------------------------------------------

_STAGED: Final = re.compile(r"(?:b([0-9a-f]{16})|j([0-9a-f]{32}))\.[0-9a-f]{16}\.([0-9a-f]{12})")
_PARTITION: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)\.p[0-9]{4,}")


class StagedName(NamedTuple):
    """The fields in the name of a staged object."""

    number: int | None
    """The number of a stream's batch, None for a batch write."""
    key: str
    """The id of a batch write, empty for a stream."""
    since_ms: int
    """When the object was begun, by its writer's wall clock."""


def handle_prefix(application: str, handle: str) -> str:
    """Return the prefix of the directories with staged rows of a handle."""
    return f"{application}.sink.{handle}."


def staging_prefix(application: str, handle: str, producer: str) -> str:
    """Return the prefix of the directories with staged rows of one producer."""
    return f"{handle_prefix(application, handle)}{producer}.p"


def staging_directory(application: str, handle: str, producer: str, partition: int) -> str:
    """Return the directory in which the tasks of a partition stage rows; each attempt claims it above the one
    before.
    """
    return f"{staging_prefix(application, handle, producer)}{partition:04d}"


def producers_with_staged(directories: Iterable[str], application: str, handle: str) -> dict[str, list[str]]:
    """Return producer -> its directories with staged rows of the handle."""
    prefix = handle_prefix(application, handle)
    found: dict[str, list[str]] = {}
    for name in sorted(directories):
        if name.startswith(prefix) and (parsed := _PARTITION.fullmatch(name, len(prefix))):
            found.setdefault(parsed[1], []).append(name)
    return found


def staged_name(unit: CommitUnit, epoch: int, since_ms: int) -> str:
    """Return the name of one attempt's object. It is unique, because it contains the epoch of the claim."""
    head = f"b{unit.number:016x}" if unit.kind is WriteKind.STREAM else f"j{unit.key}"
    return f"{head}.{epoch:016x}.{since_ms:012x}"


def parse_staged(name: str) -> StagedName | None:
    """Return the fields of the name, None if it is not the name of a staged object."""
    found = _STAGED.fullmatch(name)
    if found is None:
        return None
    number = None if found[1] is None else int(found[1], 16)
    return StagedName(number, found[2] or "", int(found[3], 16))


# --- decisions --------------------------------------------------------------------------------------------


def is_orphan(name: str, unit: CommitUnit, *, recorded: bool) -> bool:
    """Return whether a staged object is never recorded, after `unit` began or, if `recorded`, was recorded.
    In a stream, older batches are then decided; a batch write has its producer to itself.
    """
    found = parse_staged(name)
    if found is None:
        return False
    if unit.kind is WriteKind.JOB:
        return found.number is None and (found.key == unit.key) == recorded
    assert unit.number is not None, "a stream is numbered"
    return found.number is not None and found.number < unit.number + recorded


class ProducerFacts(NamedTuple):
    """The certain facts about a producer. Once `closed` is true it stays true; `last` only rises."""

    last: int
    """The number of its last batch, 0 for none."""
    mark: bytes
    """The mark of its last batch."""
    closed: bool
    """Whether the handle is closed, so that no batch follows."""


class StagedState(StrEnum):
    """The state of an object in a directory of staged rows. The texts are printed and in JSON."""

    RECORDED = "recorded"
    """Its unit is recorded, or a later one: a batch up to the last is never appended again."""
    CLOSED = "closed"
    """The handle is closed: its unit is never recorded."""
    ABANDONED = "given up"
    """Not recorded, and at least as old as the age that a person gave."""
    PENDING = "undecided"
    """A driver that is alive or restarts may still record it: nothing proves that none will."""
    FOREIGN = "not the sink's"
    """Its name is not that of a staged object."""


GARBAGE: Final = frozenset({StagedState.RECORDED, StagedState.CLOSED, StagedState.ABANDONED})


def staged_state_of(name: str, facts: ProducerFacts, now_ms: int, abandon_ms: int | None) -> StagedState:
    """Return the state of one object. A pending one is abandoned from age `abandon_ms` on, None: never."""
    found = parse_staged(name)
    if found is None:
        return StagedState.FOREIGN
    if facts.closed:
        return StagedState.CLOSED
    if _is_recorded(found, facts):
        return StagedState.RECORDED
    if abandon_ms is not None and now_ms - found.since_ms >= abandon_ms:
        return StagedState.ABANDONED
    return StagedState.PENDING


def _is_recorded(found: StagedName, facts: ProducerFacts) -> bool:
    """Return whether an object's unit is recorded."""
    if found.number is not None:
        return found.number <= facts.last
    mark = decode_mark(facts.mark) if facts.last else None
    return mark is not None and (mark.spark, mark.key) == (WriteKind.JOB, found.key)


# Deletion claims the directory, which fences a task that stages rows there: its batch would fail.
def may_sweep(staged_states: Iterable[StagedState]) -> bool:
    """Return whether a directory with objects in these states is swept: some garbage, and nothing pending."""
    there = set(staged_states)
    return bool(there & GARBAGE) and StagedState.PENDING not in there

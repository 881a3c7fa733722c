"""The records of the workload, and the checker that compares what was acknowledged with what exists. Pure.

Every record is unique and describes itself: the epoch of its writer, its number in that epoch, its sequence
number (its position in the directory's whole history), a random payload, and a digest over all of that, which
the store does not compute. `test_checker.py` plants each violation:

    twice       acknowledged by two writers: each record has one
    lost        acknowledged, and not in the chain exactly as acknowledged
    duplicated  in the chain more than once
    reordered   in the chain after a record that was written later
    holes       numbers missing below a later one of the same epoch, or positions missing in the history
    damaged     in the chain, and different from what its writer made
    vanished    returned by a committed read, and not on the final chain
    diverged    a member's copy that differs from the chain within the chain's length
    behind      a member's copy that is shorter than the chain, after all had time to catch up
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from journal import Op, Record

CHAIN: Final = "J"
_MANIFEST: Final = ".coord"
_FIELDS: Final = struct.Struct(">QQQ")


def is_manifest(directory: str) -> bool:
    """Return whether a directory holds a manifest: its chain is not pipelined, so each record proves the one
    before, and readers decide differently what is committed (R9, R10).
    """
    return directory.endswith(_MANIFEST)


class DamagedRecordError(Exception):
    """A record that is not what its writer made."""


class WrittenRecord(NamedTuple):
    """One record, without its payload. Order is the order of history."""

    epoch: int
    number: int
    sequence: int
    digest: int

    @property
    def name(self) -> tuple[int, int]:
        """What no two records share."""
        return self.epoch, self.number


def digest_of(directory: str, epoch: int, number: int, sequence: int, payload: bytes) -> int:
    content = directory.encode() + _FIELDS.pack(epoch, number, sequence) + payload
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def make_record(
    directory: str, epoch: int, number: int, sequence: int, payload: bytes
) -> tuple[Record, WrittenRecord]:
    digest = digest_of(directory, epoch, number, sequence, payload)
    record = Record(Op.OUTPUT, tag=sequence, ints=(epoch, number, digest), strings=(payload,))
    return record, WrittenRecord(epoch, number, sequence, digest)


def read_entry(directory: str, record: Record) -> WrittenRecord:
    """Decode a record of the workload. Raises DamagedRecordError if it is damaged."""
    try:
        epoch, number, digest = record.ints
        (payload,) = record.strings
    except ValueError:
        raise DamagedRecordError(f"a record with {len(record.ints)} ints") from None
    if digest != digest_of(directory, epoch, number, record.tag, payload):
        raise DamagedRecordError(
            f"record {number} of epoch {epoch} in {directory}: its digest does not match"
        )
    return WrittenRecord(epoch, number, record.tag, digest)


EXAMPLES_MAX: Final = 20


@dataclass(slots=True)
class Verdict:
    """Counts over all directories. `examples`: the first violations, in words."""

    acknowledged: int = 0
    found: int = 0
    twice: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    holes: int = 0
    damaged: int = 0
    vanished: int = 0
    diverged: int = 0
    behind: int = 0
    copies: int = 0
    committed_reads: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not any(getattr(self, name) for name in VIOLATIONS)

    def note(self, text: str) -> None:
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


VIOLATIONS: Final = (
    "twice",
    "lost",
    "duplicated",
    "reordered",
    "holes",
    "damaged",
    "vanished",
    "diverged",
    "behind",
)
assert set(VIOLATIONS) <= {one.name for one in fields(Verdict)}


def judge_chain(
    verdict: Verdict,
    directory: str,
    acknowledged: Iterable[WrittenRecord],
    chain: Sequence[WrittenRecord | None],
) -> None:
    """One directory. `chain`: its records in order, None for a damaged one."""
    found = [entry for entry in chain if entry is not None]
    verdict.found += len(found)
    for index, entry in enumerate(chain):
        if entry is None:
            verdict.damaged += 1
            verdict.note(f"{directory}: record {index} of the chain is damaged")
    _judge_acknowledged(verdict, directory, acknowledged, found)
    _judge_order(verdict, directory, found)
    _judge_holes(verdict, directory, found)


def _judge_acknowledged(
    verdict: Verdict, directory: str, acknowledged: Iterable[WrittenRecord], found: Sequence[WrittenRecord]
) -> None:
    there = set(found)
    known: set[WrittenRecord] = set()
    for entry in acknowledged:
        verdict.acknowledged += 1
        if entry in known:
            verdict.twice += 1
            verdict.note(f"{directory}: acknowledged twice: {entry}")
        known.add(entry)
        if entry not in there:
            verdict.lost += 1
            verdict.note(f"{directory}: lost {entry}")


def _judge_order(verdict: Verdict, directory: str, found: Sequence[WrittenRecord]) -> None:
    seen: set[tuple[int, int]] = set()
    highest = (0, 0)
    for entry in found:
        if entry.name in seen:
            verdict.duplicated += 1
            verdict.note(f"{directory}: twice {entry}")
        elif entry.name < highest:
            verdict.reordered += 1
            verdict.note(f"{directory}: {entry} follows {highest}")
        seen.add(entry.name)
        highest = max(highest, entry.name)


def _judge_holes(verdict: Verdict, directory: str, found: Sequence[WrittenRecord]) -> None:
    numbers: dict[int, set[int]] = {}
    for entry in found:
        numbers.setdefault(entry.epoch, set()).add(entry.number)
    for epoch, there in numbers.items():
        missing = max(there) - len(there)
        if missing:
            verdict.holes += missing
            verdict.note(f"{directory}: {missing} numbers missing below {max(there)} of epoch {epoch}")
    positions = {entry.sequence for entry in found}
    if len(positions) != max(positions, default=0) or len(positions) != len({entry.name for entry in found}):
        verdict.holes += 1
        verdict.note(f"{directory}: {len(found)} records, {len(positions)} positions up to {max(positions)}")


def judge_member(
    verdict: Verdict, member: str, chain: Mapping[str, bytes], held: Mapping[str, bytes | None]
) -> None:
    """One member's copies of the segments of one chain. `held`: what its disk has, None for a copy that
    cannot be read whole."""
    for name, content in chain.items():
        copy = held.get(name, b"")
        verdict.copies += 1
        if copy is None:
            verdict.diverged += 1
            verdict.note(f"{member}: the copy of {name} is damaged")
        elif copy[: len(content)] != content[: len(copy)]:
            verdict.diverged += 1
            verdict.note(f"{member}: the copy of {name} differs from the chain")
        elif len(copy) < len(content):
            verdict.behind += 1
            verdict.note(f"{member}: {len(copy)} of {len(content)} bytes of {name}")

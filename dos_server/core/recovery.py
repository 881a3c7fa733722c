"""What to make of a file found at start-up: a decision table with letters.

A crash leaves, past what was synced, any mixture of whole extents, short ones, and sectors that were never
written and read as zeros. It never changes a byte that was synced, and never makes a non-zero byte that
nobody wrote. Damage to a disk does anything. The table tells the two apart, and when it cannot, it says
CORRUPT: another copy decides.

The walk goes from header to header and stops at logical offset x where the next extent is not whole. Then
four facts:

    remainder   what the file holds from there: nothing, only zeros, other bytes
    wound       of other bytes:
                TORN a crash can make it: the file ends inside the extent, or a sector of it is all zeros;
                ROTTEN it is all there and its digest is wrong;
                MISPLACED a good header for another offset, or of another chain: its link is not that of the
                header before it, nor of the first one the root that the mark says;
                UNKNOWN a good header of a newer version
    below       x is below the durable bound: the mark of the object, and every `durable` in good headers
                anywhere in the file, also after x
    poisoned    a sync failed before the restart: the page cache may show bytes that are not on disk

    letter  remainder  wound      below  poisoned  decision
    A       nothing    -          no     no        KEEP        the usual end
    B       zeros      -          no     no        CUT         size written, data not: zeros are no header
    C       bytes      TORN       no     no        COPY_CUT    torn tail, none of it ever acknowledged
    D       bytes      ROTTEN     any    no        QUARANTINE  a bit flipped: no crash does that
    E       bytes      MISPLACED  any    any       QUARANTINE  a block of another place or time
    F       bytes      UNKNOWN    any    any       QUARANTINE  from a newer server: not ours to judge
    G       nothing    -          yes    any       QUARANTINE  acknowledged bytes are gone: cut off
    H       zeros      -          yes    any       QUARANTINE  acknowledged bytes are gone: zeroed
    I       bytes      TORN       yes    any       QUARANTINE  acknowledged bytes are torn: a lying disk
    P       any        not E, F   no     yes       COPY_CUT    back to the mark, which precedes every answer
    Q       bytes      ROTTEN     yes    yes       QUARANTINE  as D
    R       an object whose mark says that it was found damaged before: QUARANTINE, whatever the table says.
            A second wound must not make the first one look like a crash
    N       a tail that is to be copied aside and cut, and no space for the copy: QUARANTINE, and not for
            ever: it is judged again when there is space (`tails`)

Rules of this file: the table alone. The facts are collected in `recovery_scan`, the decision is carried out
by the shell. A test enumerates every combination of facts and demands exactly one row.
"""

from enum import Enum
from typing import Final, NamedTuple


class Remainder(Enum):
    NOTHING = "nothing"
    ZEROS = "zeros"
    BYTES = "bytes"


class TailDamage(Enum):
    NONE = "none"
    TORN = "torn"
    ROTTEN = "rotten"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown version"


class RecoveryDecision(Enum):
    KEEP = "keep"
    CUT = "cut"
    COPY_CUT = "copy aside, then cut"
    QUARANTINE = "quarantine"


class ExtentFacts(NamedTuple):
    remainder: Remainder
    damage: TailDamage
    below: bool
    poisoned: bool


class RecoveryCase(NamedTuple):
    """One row: the sets of values it takes."""

    letter: str
    remainders: frozenset[Remainder]
    damages: frozenset[TailDamage]
    below: frozenset[bool]
    poisoned: frozenset[bool]
    decision: RecoveryDecision


def _case(
    letter: str,
    remainders: set[Remainder],
    damages: set[TailDamage],
    below: set[bool],
    poisoned: set[bool],
    decision: RecoveryDecision,
) -> RecoveryCase:
    return RecoveryCase(
        letter, frozenset(remainders), frozenset(damages), frozenset(below), frozenset(poisoned), decision
    )


_NO, _YES, _ANY = {False}, {True}, {False, True}
_NOTHING, _ZEROS, _BYTES = {Remainder.NOTHING}, {Remainder.ZEROS}, {Remainder.BYTES}

CASES: Final = (
    _case("A", _NOTHING, {TailDamage.NONE}, _NO, _NO, RecoveryDecision.KEEP),
    _case("B", _ZEROS, {TailDamage.NONE}, _NO, _NO, RecoveryDecision.CUT),
    _case("C", _BYTES, {TailDamage.TORN}, _NO, _NO, RecoveryDecision.COPY_CUT),
    _case("D", _BYTES, {TailDamage.ROTTEN}, _ANY, _NO, RecoveryDecision.QUARANTINE),
    _case("E", _BYTES, {TailDamage.MISPLACED}, _ANY, _ANY, RecoveryDecision.QUARANTINE),
    _case("F", _BYTES, {TailDamage.UNKNOWN}, _ANY, _ANY, RecoveryDecision.QUARANTINE),
    _case("G", _NOTHING, {TailDamage.NONE}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("H", _ZEROS, {TailDamage.NONE}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("I", _BYTES, {TailDamage.TORN}, _YES, _ANY, RecoveryDecision.QUARANTINE),
    _case("P", _NOTHING | _ZEROS, {TailDamage.NONE}, _NO, _YES, RecoveryDecision.COPY_CUT),
    _case("P", _BYTES, {TailDamage.TORN, TailDamage.ROTTEN}, _NO, _YES, RecoveryDecision.COPY_CUT),
    _case("Q", _BYTES, {TailDamage.ROTTEN}, _YES, _YES, RecoveryDecision.QUARANTINE),
)


def decide(facts: ExtentFacts) -> RecoveryCase:
    """The one row for the facts. A missing row is a bug of ours, and a test enumerates all combinations."""
    matches = [
        case
        for case in CASES
        if facts.remainder in case.remainders
        and facts.damage in case.damages
        and facts.below in case.below
        and facts.poisoned in case.poisoned
    ]
    assert len(matches) == 1, f"{len(matches)} rows for {facts}"
    return matches[0]


NO_ROOM: Final = "N"

ROTTEN_CASE: Final = next(case for case in CASES if case.letter == "D")
"""For damage that is found after the walk, while the digest is resumed."""

"""The decision table for an object file found at start-up.

A crash leaves, beyond the synced size, any mixture of whole extents, short extents, and sectors that were
never written and read as zeros. A crash never changes a synced byte, and never produces a nonzero byte that
was not written. Disk damage can do anything. The table distinguishes the two. Where it cannot, it decides
QUARANTINE: the object is reported CORRUPT and another member's copy decides.

The scan follows the headers and stops at logical offset x where the next extent is not whole. Four facts
result:

    remainder   what the file holds from there: nothing, only zeros, other bytes
    damage      the kind of damage, if the remainder holds other bytes:
                TORN       a crash can cause it: the file ends inside the extent, or a sector of it is zeros
                ROTTEN     the extent is complete and its digest is wrong
                MISPLACED  a valid header for another offset, or of another chain: its link does not match
                           the header before it, or, for the first one, the root in the mark
                UNKNOWN    a valid header of a newer version
    below       x is below the durable bound: the highest of the size in the object's mark and every
                `durable` in a valid header anywhere in the file, also after x
    poisoned    a sync failed before the restart: the page cache may hold bytes that are not on disk

    letter  remainder  damage     below  poisoned  decision
    A       nothing    -          no     no        KEEP        the usual end
    B       zeros      -          no     no        CUT         size written, data not: zeros are no header
    C       bytes      TORN       no     no        COPY_CUT    torn tail, none of it ever acknowledged
    D       bytes      ROTTEN     any    no        QUARANTINE  a flipped bit: no crash causes it
    E       bytes      MISPLACED  any    any       QUARANTINE  a block of another place or time
    F       bytes      UNKNOWN    any    any       QUARANTINE  from a newer server: cannot be judged here
    G       nothing    -          yes    any       QUARANTINE  acknowledged bytes are missing: cut off
    H       zeros      -          yes    any       QUARANTINE  acknowledged bytes are missing: zeroed
    I       bytes      TORN       yes    any       QUARANTINE  acknowledged bytes are torn: the disk lied
    P       any        not E, F   no     yes       COPY_CUT    back to the mark, which precedes every ack
    Q       bytes      ROTTEN     yes    yes       QUARANTINE  as D
    R       the mark says that the object was found damaged before: QUARANTINE, whatever the table says.
            Otherwise a second fault could make the first one look like a crash.
    N       a tail is to be copied aside and cut, but there is no space for the copy: QUARANTINE until
            there is space; then the object is judged again (`tails`)

Only the table is here. `recovery_scan` collects the facts, the shell carries out the decision. A test
enumerates every combination of facts and requires exactly one row.
"""

from enum import Enum
from typing import Final, NamedTuple


class Remainder(Enum):
    """What the file holds after the last whole extent."""

    NOTHING = "nothing"
    ZEROS = "zeros"
    BYTES = "bytes"


class TailDamage(Enum):
    """The kind of damage at the start of the remainder."""

    NONE = "none"
    TORN = "torn"
    ROTTEN = "rotten"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown version"


class RecoveryDecision(Enum):
    """What to do with the file."""

    KEEP = "keep"
    CUT = "cut"
    COPY_CUT = "copy aside, then cut"
    QUARANTINE = "quarantine"


class ExtentFacts(NamedTuple):
    """What the scan found; the columns of the table."""

    remainder: Remainder
    damage: TailDamage
    below: bool
    poisoned: bool


class RecoveryCase(NamedTuple):
    """One row of the table, with the set of values it covers in each column."""

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
    """Return the one row that matches the facts.

    All combinations are covered; a test enumerates them.
    """
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


NO_SPACE_LETTER: Final = "N"
"""The letter of an object whose torn tail waits for space."""

ROTTEN_CASE: Final = next(case for case in CASES if case.letter == "D")
"""For damage found after the scan, while the prefix digest is resumed."""

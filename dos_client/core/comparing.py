"""What the copies of one object are to each other. Pure: sizes and digests in, a verdict for each copy out.

Two sound copies *agree* when one is a prefix of the other: the longer one's prefix digest at the shorter
one's size is the shorter one's digest. Copies of one writer's history always agree, whatever their sizes: so
a copy that lags is no difference, and one that does not agree is.

The *line* of a copy is itself and all the copies that are prefixes of it. The line with the most copies is
the reference; when two contradicting lines have equally many, nothing here says which one counts.

Rules of this file: no opinion about what may be done; that is `repairing`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dos_protocol.vocabulary import ObjectInfo


class CopyState(Enum):
    """What one member's copy is."""

    EQUAL = "equal"
    BEHIND = "behind"
    """A prefix of the reference."""
    MISSING = "missing"
    DIFFERS = "differs"
    """Neither a prefix of the reference nor longer than it."""
    DAMAGED = "damaged"
    """Its server says so: corrupt or poisoned."""


@dataclass(frozen=True, slots=True)
class MemberCopy:
    """One member's copy: its durable size and the digest there. `exists` False: the member has no such
    object, which is a copy of size 0."""

    size: int = 0
    digest: int = 0
    damaged: bool = False
    exists: bool = True


ABSENT = MemberCopy(exists=False)


def copy_of(info: ObjectInfo | None) -> MemberCopy:
    """The copy that a server's entry tells of; without an entry, none."""
    if info is None:
        return ABSENT
    return MemberCopy(info.synced, info.digest, damaged=info.corrupt or info.poisoned)


Copies = Mapping[bytes, MemberCopy]
"""By server id; members that did not answer are not in it."""
Digests = Mapping[tuple[bytes, int], int]
"""(server id, size) -> the prefix digest of that member's copy at that size."""


@dataclass(frozen=True, slots=True)
class CopiesJudged:
    """`reference`: the longest copy of the line that most members hold, None where that is undecided or
    nothing is sound. `line`: who holds it, or a prefix of it."""

    verdicts: dict[bytes, CopyState]
    reference: MemberCopy | None
    line: frozenset[bytes]


def sound(copies: Copies) -> dict[bytes, MemberCopy]:
    """The copies that can be compared."""
    return {member: copy for member, copy in copies.items() if not copy.damaged}


def questions(copies: Copies) -> list[tuple[bytes, int]]:
    """Which prefix digests are needed to judge: of each sound copy at the sizes of the shorter ones."""
    found = sound(copies)
    sizes = sorted({copy.size for copy in found.values() if copy.size})
    return [(member, size) for member, copy in found.items() for size in sizes if size < copy.size]


def agree(copies: Copies, digests: Digests, one: bytes, other: bytes) -> bool:
    """Whether one of two sound copies is a prefix of the other."""
    short, long = sorted((one, other), key=lambda member: copies[member].size)
    size = copies[short].size
    if size == 0:
        return True
    if size == copies[long].size:
        return copies[short].digest == copies[long].digest
    return digests[long, size] == copies[short].digest


def judge(copies: Copies, digests: Digests) -> CopiesJudged:
    """What each copy is. `digests` answers all of `questions`."""
    found = sound(copies)
    lines = {
        head: frozenset(
            one
            for one, copy in found.items()
            if copy.size <= found[head].size and agree(copies, digests, one, head)
        )
        for head in found
    }
    most = max((len(line) for line in lines.values()), default=0)
    heads = [head for head, line in lines.items() if len(line) == most]
    best = max(heads, key=lambda head: (found[head].size, found[head].exists), default=None)
    decided = best is not None and all(head in lines[best] for head in heads)
    verdicts = {}
    for member, copy in copies.items():
        if copy.damaged:
            verdicts[member] = CopyState.DAMAGED
        elif best is not None and all(member in lines[head] for head in ([best] if decided else heads)):
            verdicts[member] = _on_the_line(copy, found[best])
        else:
            verdicts[member] = CopyState.DIFFERS
    if best is None or not decided:
        return CopiesJudged(verdicts, None, frozenset())
    return CopiesJudged(verdicts, found[best], lines[best])


def _on_the_line(copy: MemberCopy, reference: MemberCopy) -> CopyState:
    if not copy.exists and reference.exists:
        return CopyState.MISSING
    return CopyState.EQUAL if copy.size == reference.size else CopyState.BEHIND

"""Compare the copies of one object, and decide which may be replaced by a new one. Pure.

Two undamaged copies *agree* if one is a prefix of the other: the longer copy's prefix digest at the shorter
one's size equals the shorter one's digest. Copies of one writer's history always agree, whatever their sizes.
The *line* of a copy is the copy and all copies that are prefixes of it. The line with the most copies is the
reference. If two contradicting lines have equally many copies, nothing here decides which one counts.

A byte was acknowledged only if Qa members of each set held it. So of any N - Qa + 1 members *other* than the
member to repair, at least one holds each acknowledged byte that the repaired member held too. These members
*cover* it. The rules of repair follow:

    a sound copy      becomes longer, from a copy that begins with all of it. Nothing is deleted
    a damaged copy    becomes the longest copy of others that cover it, which all agree. The server
                      rejects it if that is less than it once had durable: a live writer may
                      count on that (docs/decisions/0012)
    a sound copy that others contradict
                      becomes theirs if the members with *other bytes there* cover it: then fewer
                      than Qa members ever held its content, which was never acknowledged and never
                      can be. Not for a segment: a segment has one writer, so one of the disks
                      went back to an older state

Every other repair is refused, and a person decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_client.core.quorum import Quorums
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import epoch_of_segment


class CopyState(Enum):
    EQUAL = "equal"
    BEHIND = "behind"
    """A prefix of the reference."""
    MISSING = "missing"
    DIFFERS = "differs"
    """Not a prefix of the reference, and not longer than it."""
    DAMAGED = "damaged"
    """Its server reports it as corrupt or poisoned."""


@dataclass(frozen=True, slots=True)
class MemberCopy:
    size: int = 0
    digest: int = 0
    damaged: bool = False
    exists: bool = True


ABSENT = MemberCopy(exists=False)


def copy_of(info: ObjectInfo | None) -> MemberCopy:
    if info is None:
        return ABSENT
    return MemberCopy(info.synced, info.digest, damaged=info.corrupt or info.poisoned)


Copies = Mapping[bytes, MemberCopy]
"""By server id. Members that did not answer are missing."""
Digests = Mapping[tuple[bytes, int], int]
"""(server id, size) -> prefix digest of that member's copy at that size."""


@dataclass(frozen=True, slots=True)
class CopiesJudged:
    """The verdicts on all copies of one object. `reference`: the longest copy of the line that most members
    hold; None if undecided. `line`: the members that hold it or a prefix.
    """

    verdicts: dict[bytes, CopyState]
    reference: MemberCopy | None
    line: frozenset[bytes]


def sound(copies: Copies) -> dict[bytes, MemberCopy]:
    return {member: copy for member, copy in copies.items() if not copy.damaged}


def needed_digests(copies: Copies) -> list[tuple[bytes, int]]:
    """Return which prefix digests `judge` needs: of each undamaged copy, at the sizes of the shorter ones."""
    undamaged = sound(copies)
    sizes = sorted({copy.size for copy in undamaged.values() if copy.size})
    return [(member, size) for member, copy in undamaged.items() for size in sizes if size < copy.size]


def agree(copies: Copies, digests: Digests, first: bytes, second: bytes) -> bool:
    """Return whether one of two undamaged copies is a prefix of the other."""
    short, long = sorted((first, second), key=lambda member: copies[member].size)
    size = copies[short].size
    if size == 0:
        return True
    if size == copies[long].size:
        return copies[short].digest == copies[long].digest
    return digests[long, size] == copies[short].digest


def judge(copies: Copies, digests: Digests) -> CopiesJudged:
    """Judge every copy. `digests` must answer all of `needed_digests`."""
    undamaged = sound(copies)
    lines = {
        head: frozenset(
            one
            for one, copy in undamaged.items()
            if copy.size <= undamaged[head].size and agree(copies, digests, one, head)
        )
        for head in undamaged
    }
    most = max((len(line) for line in lines.values()), default=0)
    heads = [head for head, line in lines.items() if len(line) == most]
    best = max(heads, key=lambda head: (undamaged[head].size, undamaged[head].exists), default=None)
    decided = best is not None and all(head in lines[best] for head in heads)
    verdicts = {}
    for member, copy in copies.items():
        if copy.damaged:
            verdicts[member] = CopyState.DAMAGED
        elif best is not None and all(member in lines[head] for head in ([best] if decided else heads)):
            verdicts[member] = _compare_with_reference(copy, undamaged[best])
        else:
            verdicts[member] = CopyState.DIFFERS
    if best is None or not decided:
        return CopiesJudged(verdicts, None, frozenset())
    return CopiesJudged(verdicts, undamaged[best], lines[best])


def _compare_with_reference(copy: MemberCopy, reference: MemberCopy) -> CopyState:
    if not copy.exists and reference.exists:
        return CopyState.MISSING
    return CopyState.EQUAL if copy.size == reference.size else CopyState.BEHIND


Claims = Mapping[bytes, tuple[int, bytes]]
"""By server id: the epoch and the writer id that a member holds."""


def epoch_granted_twice(claims: Claims, entries: Mapping[bytes, Mapping[str, ObjectInfo]]) -> int:
    """Return an epoch of a directory that two writers used; 0 if none is known. `entries`: by server id."""
    # That two members hold one epoch for two writers proves nothing: two writers may have contended, and only
    # one of them, or none, was granted it by enough members. But a writer begins a segment only after that.
    # So if the members of each writer have a part of a segment of that epoch that no member of the other has,
    # both were granted it: a disk went back to an older state (docs/decisions/0205).
    holders: dict[tuple[int, bytes], list[bytes]] = {}
    for member, claim in claims.items():
        holders.setdefault(claim, []).append(member)
    for claim, members in holders.items():
        others = [other for other in holders if other[0] == claim[0] and other != claim]
        for other in others:
            sides = [[entries[one] for one in side] for side in (members, holders[other])]
            if claim[0] and _has_own(claim[0], *sides) and _has_own(claim[0], *reversed(sides)):
                return claim[0]
    return 0


def _has_own(
    epoch: int, side: list[Mapping[str, ObjectInfo]], others: list[Mapping[str, ObjectInfo]]
) -> bool:
    """Return whether one side has a part of a segment of that epoch that the other one does not have."""
    for objects in side:
        for name, info in objects.items():
            if epoch_of_segment(name) != epoch or not info.synced:
                continue
            there = [one[name] for one in others if name in one]
            if not any(
                one.synced > info.synced or (one.synced == info.synced and one.digest == info.digest)
                for one in there
            ):
                return True
    return False


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Replace `old` by the copy `goal`, which each of `sources` holds. `overwrite`: what of `old` is not in
    `goal` was never acknowledged.
    """

    old: MemberCopy
    goal: MemberCopy
    sources: tuple[bytes, ...]
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class RepairRefused:
    reason: str


def plan(
    member: bytes, copies: Copies, digests: Digests, quorums: Quorums, *, one_writer: bool = False
) -> RepairPlan | RepairRefused | None:
    """Decide what to do with one member's copy; None: nothing. `one_writer`: the object is written under one
    epoch.
    """
    old = copies[member]
    others = {one: copy for one, copy in sound(copies).items() if one != member}
    if old.damaged:
        return _damaged(member, old, others, digests, quorums)
    everyone = others | {member: old}
    against = {one: copy for one, copy in others.items() if not agree(everyone, digests, one, member)}
    # The epoch was granted twice: a disk went back to an older state, and the number of members that ever
    # held the bytes is unknown. Overwriting could destroy acknowledged ones (docs/decisions/0205).
    if against and one_writer:
        return RepairRefused(f"copies of one segment contradict each other, {EPOCH_GRANTED_TWICE}")
    if against and quorums.cover(against, member):
        return _contradicted(old, against, digests)
    agreeing = {one: copy for one, copy in others.items() if one not in against}
    goal = _longest(agreeing)
    if goal is not None and (goal.size, goal.exists) > (old.size, old.exists):
        if not _one_line(agreeing, digests):
            return RepairRefused("the other copies contradict each other")
        return RepairPlan(old, goal, _holders(agreeing, goal))
    if against:
        return RepairRefused(
            f"{len(against)} copies contradict it: too few to prove that it was never acknowledged"
        )
    return None


EPOCH_GRANTED_TWICE: Final = (
    "so its epoch was granted twice: the disk of a member went back to an older state, and either copy may"
    " have been acknowledged; find that member, and replace it with `dos store replace`"
)


def _damaged(
    member: bytes, old: MemberCopy, others: dict[bytes, MemberCopy], digests: Digests, quorums: Quorums
) -> RepairPlan | RepairRefused:
    if not quorums.cover(others, member):
        return RepairRefused(
            f"{len(others)} other undamaged copies were found: too few to hold all acknowledged bytes"
        )
    if not _one_line(others, digests):
        return RepairRefused("the other copies contradict each other")
    goal = _longest(others)
    assert goal is not None, "no copies cover nothing"
    return RepairPlan(old, goal, _holders(others, goal))


def _contradicted(
    old: MemberCopy, against: dict[bytes, MemberCopy], digests: Digests
) -> RepairPlan | RepairRefused:
    if not _one_line(against, digests):
        return RepairRefused("the copies that contradict it contradict each other too")
    goal = _longest(against)
    assert goal is not None, "no copies cover nothing"
    return RepairPlan(old, goal, _holders(against, goal), overwrite=True)


def _one_line(copies: dict[bytes, MemberCopy], digests: Digests) -> bool:
    return all(agree(copies, digests, one, other) for one in copies for other in copies)


def _longest(copies: dict[bytes, MemberCopy]) -> MemberCopy | None:
    return max(copies.values(), key=lambda copy: (copy.size, copy.exists), default=None)


def _holders(copies: dict[bytes, MemberCopy], goal: MemberCopy) -> tuple[bytes, ...]:
    return tuple(sorted(one for one, copy in copies.items() if copy.size == goal.size and copy.exists))

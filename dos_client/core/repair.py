"""Decide whether a copy may be replaced by a new one, and by which. Pure: copies, digests and quorums in.

A byte was acknowledged only if Qa members of each set held it. So of any N - Qa + 1 members *other* than the
member to repair, at least one holds each acknowledged byte that the repaired member held too. These members
*cover* it. The rules follow:

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

How copies compare is decided in `comparing`.
"""

from dataclasses import dataclass
from typing import Final

from dos_client.core.comparing import Copies, Digests, MemberCopy, agree, sound
from dos_client.core.quorum import Quorums


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """A repair: replace `old` by the copy `goal`, which each of `sources` holds or has as a prefix.

    `overwrite`: the bytes of `old` that are not in `goal` were never acknowledged.
    """

    old: MemberCopy
    goal: MemberCopy
    sources: tuple[bytes, ...]
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class RepairRefused:
    """Why the copy may not be repaired."""

    reason: str


def plan(
    member: bytes, copies: Copies, digests: Digests, quorums: Quorums, *, one_writer: bool = False
) -> RepairPlan | RepairRefused | None:
    """Decide what to do with one member's copy; None: nothing. `copies` are those of the members that
    answered.

    one_writer: the object is written under one epoch only. If copies of it contradict each other, the epoch
    was granted twice. So a disk went back to an older state, and the number of members that ever held the
    bytes is unknown. Nothing is overwritten then (docs/decisions/0205).
    """
    old = copies[member]
    others = {one: copy for one, copy in sound(copies).items() if one != member}
    if old.damaged:
        return _damaged(member, old, others, digests, quorums)
    everyone = others | {member: old}
    against = {one: copy for one, copy in others.items() if not agree(everyone, digests, one, member)}
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

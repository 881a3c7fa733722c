"""Which members make a quorum. Pure: a store record in, yes or no and sizes out.

**Sets.** A record with N members "in" has one set: those. A record with a *joining* member has two, the old
one (the members "in") and the new one (the joining member in the place of the one it replaces), and every
quorum is a quorum in both. That is what makes replacement safe (docs/decisions/0010): whatever is
acknowledged while the new member joins holds in the set before and in the set after, whichever of the two
another client believes in.

The record says who is replaced by order: a joining member stands directly after the member whose place it
takes.
"""

from collections.abc import Collection, Mapping

from dos_protocol.store_record import Member, StoreRecord, claims_needed


def joining_member(record: StoreRecord) -> Member | None:
    """The member that joins, or None. Raises ValueError for a record that is no replacement of one by one."""
    joining = [index for index, member in enumerate(record.members) if member.state == "joining"]
    if not joining:
        return None
    if len(joining) > 1 or joining[0] == 0:
        raise ValueError("one member joins at a time, and it stands after the member it replaces")
    return record.members[joining[0]]


def replaced_member(record: StoreRecord) -> Member | None:
    """The member whose place the joining one takes, or None."""
    joining = joining_member(record)
    return None if joining is None else record.members[record.members.index(joining) - 1]


class Quorums:
    """The quorums of one record.

    Invariants: `sets` has one or two sets of equal size N; `ack_quorum` is Qa, `claims_needed` is F, in
    each set."""

    __slots__ = ("ack_quorum", "claims_needed", "members", "sets")

    def __init__(self, record: StoreRecord) -> None:
        old = frozenset(member.server_id for member in record.voters)
        self.sets: tuple[frozenset[bytes], ...] = (old,)
        joining, replaced = joining_member(record), replaced_member(record)
        if joining is not None and replaced is not None:
            self.sets = (old, old - {replaced.server_id} | {joining.server_id})
        self.ack_quorum = record.ack_quorum
        self.claims_needed = claims_needed(len(old), record.ack_quorum)
        self.members: frozenset[bytes] = frozenset().union(*self.sets)

    def watermark(self, sizes: Mapping[bytes, int]) -> int:
        """The size that a quorum has: the Qa-th highest in each set, and of those the lowest. Absent
        members have 0."""
        place = self.ack_quorum - 1
        if len(self.sets) == 1:
            return sorted([sizes.get(one, 0) for one in self.sets[0]], reverse=True)[place]
        return min(sorted([sizes.get(one, 0) for one in group], reverse=True)[place] for group in self.sets)

    def can_acknowledge(self, members: Collection[bytes]) -> bool:
        """Whether these members are enough to acknowledge: Qa in each set."""
        present = frozenset(members)
        return all(len(group & present) >= self.ack_quorum for group in self.sets)

    def can_take_over(self, members: Collection[bytes]) -> bool:
        """Whether claims on, or answers of, these members are enough: F in each set (R1)."""
        present = frozenset(members)
        return all(len(group & present) >= self.claims_needed for group in self.sets)

    def cover(self, members: Collection[bytes], without: bytes) -> bool:
        """Whether these members, leaving out `without`, hold between them every acknowledged byte, whatever
        that one held: N - Qa + 1 in each set."""
        present = frozenset(members) - {without}
        return all(len(group & present) > len(group) - self.ack_quorum for group in self.sets)

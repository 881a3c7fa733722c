"""Which members make a quorum. Pure: a store record in, yes or no and sizes out.

**Sets.** A record with N members "in" has one set: those. A record with a *joining* member has two, the old
one (the members "in") and the new one (the joining member in the place of the one it replaces), and every
quorum is a quorum in both. That is what makes replacement safe (docs/decisions/0010): whatever is
acknowledged while the new member joins holds in the set before and in the set after, whichever of the two
another client believes in.

The record says who is replaced by order: a joining member stands directly after the member whose place it
takes.

A record with an *adding* member has two sets too, the members "in" and those with the new one, and every
quorum is *all* of both. So whatever is acknowledged meanwhile is everywhere, and any quorum of the larger set
will find it, as will any of the smaller one (docs/decisions/0013).
"""

from collections.abc import Collection, Mapping, Sequence

from dos_protocol.store_record import Member, StoreRecord, claims_needed


def filled_member(record: StoreRecord) -> Member | None:
    """The member that joins or is being added, or None. Raises ValueError for a record that is no change of
    one by one."""
    filled = [index for index, member in enumerate(record.members) if member.state != "in"]
    if not filled:
        return None
    member = record.members[filled[0]]
    if len(filled) > 1 or (filled[0] == 0 and member.state == "joining") or not record.voters:
        raise ValueError("one member joins at a time, and it stands after the member it replaces")
    return member


def joining_member(record: StoreRecord) -> Member | None:
    """The member that joins in the place of another, or None. Raises as `filled_member`."""
    member = filled_member(record)
    return member if member is not None and member.state == "joining" else None


def replaced_member(record: StoreRecord) -> Member | None:
    """The member whose place the joining one takes, or None."""
    joining = joining_member(record)
    return None if joining is None else record.members[record.members.index(joining) - 1]


class Quorums:
    """The quorums of one record.

    Invariants: `sets` has one or two sets, the first is of the members that are in; `ack_quorum` is Qa in it,
    `claims_needed` is F, the most that any set needs."""

    __slots__ = ("_acks", "_claims", "_covers", "ack_quorum", "claims_needed", "members", "sets")

    def __init__(self, record: StoreRecord) -> None:
        old = frozenset(member.server_id for member in record.voters)
        filled, replaced = filled_member(record), replaced_member(record)
        self.sets: tuple[frozenset[bytes], ...] = (old,)
        self._acks: tuple[int, ...] = (record.ack_quorum,)
        self._claims: tuple[int, ...] = (claims_needed(len(old), record.ack_quorum),)
        if filled is not None and replaced is not None:
            self.sets = (old, old - {replaced.server_id} | {filled.server_id})
            self._acks, self._claims = self._acks * 2, self._claims * 2
        elif filled is not None:
            self.sets = (old, old | {filled.server_id})
            self._acks = self._claims = (len(old), len(old) + 1)
        before = record.ack_quorum
        self._covers = tuple(len(group) - before + 1 for group in self.sets)
        if filled is not None and replaced is None:
            self._covers = (len(old) - before + 1, 1)
        self.ack_quorum = self._acks[0]
        self.claims_needed = max(self._claims)
        self.members: frozenset[bytes] = frozenset().union(*self.sets)

    def watermark(self, sizes: Mapping[bytes, int]) -> int:
        """The size that a quorum has: the Qa-th highest in each set, and of those the lowest. Absent
        members have 0."""
        if len(self.sets) == 1:
            return sorted([sizes.get(one, 0) for one in self.sets[0]], reverse=True)[self.ack_quorum - 1]
        return min(
            sorted([sizes.get(one, 0) for one in group], reverse=True)[needed - 1]
            for group, needed in zip(self.sets, self._acks, strict=True)
        )

    def can_acknowledge(self, members: Collection[bytes]) -> bool:
        """Whether these members are enough to acknowledge: Qa in each set."""
        present = frozenset(members)
        return self._in_each(present, self._acks)

    def lacking(self, members: Collection[bytes]) -> int:
        """How many more members are needed to acknowledge, at least; 0 when these are enough."""
        present = frozenset(members)
        return max(
            0, *(acks - len(group & present) for group, acks in zip(self.sets, self._acks, strict=True))
        )

    def can_take_over(self, members: Collection[bytes]) -> bool:
        """Whether claims on, or answers of, these members are enough: F in each set (R1)."""
        present = frozenset(members)
        return self._in_each(present, self._claims)

    def cover(self, members: Collection[bytes], without: bytes = b"") -> bool:
        """Whether these members, leaving out `without`, hold between them every acknowledged byte, whatever
        that one held: N - Qa + 1 in each set. While one is added, of the members "in": what is acknowledged
        now is everywhere, but what was before it is on Qa of those alone."""
        return self._in_each(frozenset(members) - {without}, self._covers)

    def _in_each(self, present: frozenset[bytes], needed: Sequence[int]) -> bool:
        return all(len(group & present) >= least for group, least in zip(self.sets, needed, strict=True))

"""Which members form a quorum. Pure: a store record in, decisions and sizes out.

A record whose N members are all "in" has one set. A record with a change in progress has two sets:

    joining   the members "in", and the same with the joining member instead of the one it replaces.
              Every quorum is a quorum in both
    adding    the members "in", and the same with the new member. Every quorum is *all* of both

For a joining member, this makes replacement safe (docs/decisions/0010): whatever is acknowledged meanwhile
holds in the old set and in the new set, whichever of them another client uses. For an adding member, whatever
is acknowledged meanwhile is on every member, so that any quorum of the larger or the smaller set finds it
(docs/decisions/0013).

The order of the record tells who is replaced: a joining member directly follows the member that it replaces.

Store records are decided by the same quorums, with one exception. In a store of two members the first spare
is the *tie-breaker*: it holds no data, but counts as a third member where records are confirmed and decided.
So one member and the tie-breaker can decide that the other member is replaced (docs/decisions/0223).
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from dos_protocol.errors import DosError, ForbiddenError, UnauthorisedError
from dos_protocol.store_record import Member, StoreRecord, claims_needed


def filled_member(record: StoreRecord) -> Member | None:
    filled = [index for index, member in enumerate(record.members) if member.state != "in"]
    if not filled:
        return None
    member = record.members[filled[0]]
    if len(filled) > 1 or (filled[0] == 0 and member.state == "joining") or not record.voters:
        raise ValueError("only one member may join at a time, directly after the member it replaces")
    return member


def joining_member(record: StoreRecord) -> Member | None:
    """Return the member that replaces another one and is joining, or None. Raises as `filled_member`."""
    member = filled_member(record)
    return member if member is not None and member.state == "joining" else None


def replaced_member(record: StoreRecord) -> Member | None:
    joining = joining_member(record)
    return None if joining is None else record.members[record.members.index(joining) - 1]


def tie_breaker(record: StoreRecord) -> Member | None:
    """Return the spare that counts where records are decided: the first spare of two members that both
    acknowledge.
    """
    if len(record.members) == len(record.voters) == record.ack_quorum == 2 and record.spares:
        return record.spares[0]
    return None


def deciding_record(record: StoreRecord) -> StoreRecord:
    """Return the record whose quorums confirm this one and decide its successor: with the tie-breaker, if
    any.
    """
    third = tie_breaker(record)
    if third is None:
        return record
    return structs.replace(record, members=(*record.members, Member(third.server_id, third.address)))


class Quorums:
    """The quorums of one record.

    Invariants: `sets` has one or two sets, the first contains the members that are in. `ack_quorum` is Qa in
    that set. `claims_needed` is F, the largest number that any set needs.
    """

    __slots__ = (
        "_acks",
        "_claims",
        "_covers",
        "_first_acks",
        "ack_quorum",
        "claims_needed",
        "members",
        "sets",
    )

    def __init__(self, record: StoreRecord) -> None:
        old = frozenset(member.server_id for member in record.voters)
        filled, replaced = filled_member(record), replaced_member(record)
        self.sets: tuple[frozenset[bytes], ...] = (old,)
        self._acks: tuple[int, ...] = (record.ack_quorum,)
        self._claims: tuple[int, ...] = (claims_needed(len(old), record.ack_quorum),)
        if filled is not None and replaced is not None:
            # Both sets: what one of them alone acknowledges is lost for clients that use the other one.
            self.sets = (old, old - {replaced.server_id} | {filled.server_id})
            self._acks, self._claims = self._acks * 2, self._claims * 2
        elif filled is not None:
            self.sets = (old, old | {filled.server_id})
            # All of both: a quorum of the smaller store need not meet each quorum of the larger one.
            self._acks = self._claims = (len(old), len(old) + 1)
        before = self._first_acks = record.ack_quorum
        self._covers = tuple(len(group) - before + 1 for group in self.sets)
        if filled is not None and replaced is None:
            # new acknowledgements are on every member, but earlier ones are on Qa of the members "in" only
            self._covers = (len(old) - before + 1, 1)
        self.ack_quorum = self._acks[0]
        self.claims_needed = max(self._claims)
        self.members: frozenset[bytes] = frozenset().union(*self.sets)

    def watermark(self, sizes: Mapping[bytes, int]) -> int:
        """Return the size that a quorum has: of the Qa-th highest in each set, the lowest. A missing member
        has 0.
        """
        if len(self.sets) == 1:
            return sorted([sizes.get(one, 0) for one in self.sets[0]], reverse=True)[self.ack_quorum - 1]
        return min(
            sorted([sizes.get(one, 0) for one in group], reverse=True)[needed - 1]
            for group, needed in zip(self.sets, self._acks, strict=True)
        )

    def acknowledged_at_most(self, sizes: Mapping[bytes, int], known: Collection[bytes]) -> int:
        """Return the largest size that may have been acknowledged. An upper bound if F members are `known`:
        acknowledged bytes are then on one of them. Others are assumed to hold as much as any.
        """
        seen = max(sizes.values(), default=0)
        most = [sizes.get(one, 0) if one in known else seen for one in self.sets[0]]
        return sorted(most, reverse=True)[self._first_acks - 1]

    def can_acknowledge(self, members: Collection[bytes]) -> bool:
        """Return whether these members are enough to acknowledge: Qa in each set."""
        present = frozenset(members)
        return self._in_each(present, self._acks)

    def lacking(self, members: Collection[bytes]) -> int:
        """Return how many more members are needed to acknowledge, at least; 0 if these are enough."""
        present = frozenset(members)
        return max(
            0, *(acks - len(group & present) for group, acks in zip(self.sets, self._acks, strict=True))
        )

    def can_take_over(self, members: Collection[bytes]) -> bool:
        """Return whether claims on, or answers of, these members are enough: F in each set (R1)."""
        present = frozenset(members)
        return self._in_each(present, self._claims)

    def cover(self, members: Collection[bytes], without: bytes = b"") -> bool:
        """Return whether these members but `without` hold every acknowledged byte, whatever that one held."""
        return self._in_each(frozenset(members) - {without}, self._covers)

    def _in_each(self, present: frozenset[bytes], needed: Sequence[int]) -> bool:
        return all(len(group & present) >= least for group, least in zip(self.sets, needed, strict=True))


TokenRefusal = ForbiddenError | UnauthorisedError


def refusal_of_token(quorums: Quorums, errors: Mapping[bytes, DosError | None]) -> TokenRefusal | None:
    """Return the refusal of a member if so many members refuse the token that the others are not enough; or
    None.
    """
    refusals = {}
    for server_id, error in errors.items():
        for one in (error, None if error is None else error.__cause__):
            if isinstance(one, TokenRefusal):
                refusals[server_id] = one
    # One alone may have tokens that are older than those of the others.
    if not refusals or quorums.can_take_over(quorums.members - refusals.keys()):
        return None
    return next(iter(refusals.values()))

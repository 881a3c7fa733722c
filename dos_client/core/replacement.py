"""The next store record: of a replacement, an addition, a move, a spare, or a forced recovery. Pure.

Generation g+1 has the new member joining or adding, generation g+2 has it in. docs/decisions/0010 explains
why this order is safe. An address and the list of spares change in one generation: no quorum of data changes.

When too few members are left, there are three cases, by the members that answer as themselves:

    complete   at least F members, or one of two and the tie-breaker (`core.quorum`): nothing has to be
               forced, the ordinary commands work
    covered    fewer, but at least N - Qa + 1: each acknowledged byte is on one of them, so nothing is
               lost. The others are fewer than Qa, so they cannot acknowledge anything alone. A person
               must confirm that nobody continues to work with *them*
    exceeded   still fewer: acknowledged bytes may be lost, and the others, if they are alive, can
               continue without these

A *forced* record contains only the survivors. Its generation is a whole *era* above any generation seen,
because the lost members may know later ones. docs/decisions/0013 explains why nothing better is possible.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dos_client.core.membership import Membership, ServerAnswer
from dos_client.core.quorum import (
    Quorums,
    deciding_record,
    filled_member,
    joining_member,
    replaced_member,
    tie_breaker,
)
from dos_client.urls import REACHABLE, loopback_among
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum

GONE_SUFFIX = ".gone.invalid:1"
"""The address of a member whose successor has its address: the server id and this. No name under .invalid
resolves (RFC 6761)."""


class ReplacementStep(Enum):
    BEGIN = "decide the record in which the new member joins"
    FILL = "copy to the member that joins, then decide the record in which it is in"
    DONE = "nothing: the new member is in"


class ReplacementPlan(NamedTuple):
    """The next step. `record`: the record to decide now for BEGIN, otherwise the record in use."""

    step: ReplacementStep
    record: StoreRecord


def plan(
    record: StoreRecord, old: str, new_id: bytes, new_address: str, *, absent: bool = False
) -> ReplacementPlan:
    """Return the next step of replacing `old` (an address, or an id in hex) by the server `new_id`. Raises
    ValueError.
    """
    known = record.member(new_id)
    if known is not None and known.state == "in":
        if record.find(old) in (None, known):
            return ReplacementPlan(ReplacementStep.DONE, record)
        raise ValueError(f"the server at {new_address} is already a member")
    leaving = record.find(old)
    if known is not None and known.state == "adding" and leaving in (None, known):
        return ReplacementPlan(ReplacementStep.FILL, record)  # the old member left when the record was forced
    filled = filled_member(record)
    if filled is not None and filled.state == "adding":
        raise ValueError(f"{filled.address} is being added: only one change at a time")
    if leaving is None:
        raise ValueError(
            f"{old} is not a member; the members are {', '.join(one.address for one in record.members)}"
        )
    joining, replaced = joining_member(record), replaced_member(record)
    if joining is not None and leaving not in (replaced, joining):
        assert replaced is not None
        raise ValueError(
            f"{replaced.address} is being replaced by {joining.address}: only one replacement at a time"
        )
    if known is not None:
        return ReplacementPlan(ReplacementStep.FILL, record)
    target = replaced if replaced is not None else leaving
    # The old member does not answer, and every quorum of both would wait for it.
    if absent and tie_breaker(record) is not None:
        return ReplacementPlan(ReplacementStep.BEGIN, leave_out(record, target, new_id, new_address))
    return ReplacementPlan(ReplacementStep.BEGIN, begin(record, target, new_id, new_address))


def begin(record: StoreRecord, leaving: Member, new_id: bytes, new_address: str) -> StoreRecord:
    """Return the record in which a new member joins and replaces `leaving`. Drops another joining member."""
    members: list[Member] = []
    for member in record.members:
        if member.state != "in":
            continue
        has_new_address = member.address == new_address
        if has_new_address and member != leaving:
            raise ValueError(f"{new_address} is the address of member {id_text(member.server_id)}")
        address = id_text(member.server_id) + GONE_SUFFIX if has_new_address else member.address
        members.append(Member(member.server_id, address))
        if member == leaving:
            members.append(Member(new_id, new_address, "joining"))
    _check_reachable(new_address, [member for member in members if member != leaving])
    return _next(record, tuple(members))


def leave_out(record: StoreRecord, leaving: Member, new_id: bytes, new_address: str) -> StoreRecord:
    """Return the record of a store of two in which the other member continues, and a new one is added."""
    others = tuple(one for one in record.members if one != leaving)
    if new_address in {one.address for one in others}:
        raise ValueError(f"{new_address} is the address of member {id_text(others[0].server_id)}")
    # Every acknowledged byte is on the other member, because both acknowledge. From this record on, every
    # quorum needs the other member and the new one (docs/decisions/0223).
    members = (*others, Member(new_id, new_address, "adding"))
    _check_reachable(new_address, members)
    return _next(record, members, default_ack_quorum(len(others)))


def move(record: StoreRecord, addresses: Mapping[bytes, str]) -> StoreRecord:
    """Return the record with new addresses of members. Raises ValueError if two would have one address."""
    members = tuple(
        Member(one.server_id, addresses.get(one.server_id, one.address), one.state) for one in record.members
    )
    if len({one.address for one in members}) != len(members):
        raise ValueError(f"two members would have one address: {', '.join(one.address for one in members)}")
    for address in addresses.values():
        _check_reachable(address, members)
    return _next(record, members)


def with_spare(record: StoreRecord, server_id: bytes, address: str) -> StoreRecord:
    if record.names(server_id):
        raise ValueError(f"the server at {address} already is a member or a spare")
    if address in {one.address for one in (*record.members, *record.spares)}:
        raise ValueError(f"{address} is already the address of a member or a spare")
    spares = (*record.spares, Member(server_id, address, "spare"))
    _check_reachable(address, (*record.members, *spares))
    return StoreRecord(record.store_id, record.generation + 1, record.ack_quorum, record.members, spares)


def without_spare(record: StoreRecord, named: str) -> StoreRecord:
    spares = tuple(one for one in record.spares if named not in (one.address, id_text(one.server_id)))
    if spares == record.spares:
        known = ", ".join(one.address for one in record.spares) or "none"
        raise ValueError(f"{named} is not a spare; the spares: {known}")
    return StoreRecord(record.store_id, record.generation + 1, record.ack_quorum, record.members, spares)


def _next(record: StoreRecord, members: tuple[Member, ...], ack_quorum: int | None = None) -> StoreRecord:
    quorum = record.ack_quorum if ack_quorum is None else ack_quorum
    spares = record.spares_beside(members)
    return StoreRecord(record.store_id, record.generation + 1, quorum, members, spares)


def add(record: StoreRecord, new_id: bytes, new_address: str) -> StoreRecord:
    if filled_member(record) is not None:
        raise ValueError("only one change at a time")
    if new_address in {member.address for member in record.members}:
        raise ValueError(f"{new_address} is already the address of a member")
    members = (*record.members, Member(new_id, new_address, "adding"))
    _check_reachable(new_address, members)
    return _next(record, members)


def _check_reachable(new_address: str, members: Iterable[Member]) -> None:
    addresses = [member.address for member in members if not member.address.endswith(GONE_SUFFIX)]
    if alone := loopback_among(addresses):
        others = "the other members are" if alone == new_address else f"{new_address} is"
        raise ValueError(
            f"only its own machine can reach {alone}, and {others} on other machines: {REACHABLE}"
        )


def finish(record: StoreRecord) -> StoreRecord:
    """Return the record in which the filled member is in, and the one that it replaces is gone."""
    filled, replaced = filled_member(record), replaced_member(record)
    if filled is None:
        raise ValueError(f"no member joins in generation {record.generation}")
    members = tuple(Member(one.server_id, one.address) for one in record.members if one != replaced)
    quorum = record.ack_quorum
    # An ack quorum that was chosen is kept; a default one follows the size.
    if filled.state == "adding" and quorum == default_ack_quorum(len(record.voters)):
        quorum = default_ack_quorum(len(members))
    return _next(record, members, quorum)


GENERATIONS_PER_ERA: Final = 1 << 20


def era(generation: int) -> int:
    return generation // GENERATIONS_PER_ERA


@dataclass(frozen=True, slots=True)
class StoreSurvivors:
    """Which members of a store are left. `present`: members that are in and answer, with the address at which
    they do. `lost`: the others. `highest`: the highest generation seen.
    """

    record: StoreRecord
    present: tuple[Member, ...]
    lost: tuple[Member, ...]
    complete: bool
    covered: bool
    highest: int


def survivors(membership: Membership, answers: Iterable[ServerAnswer]) -> StoreSurvivors | None:
    """Evaluate the answers. Returns None if no server reports a record of one store."""
    listed = list(answers)
    record = membership.newest or membership.record
    if record is None:
        return None
    ours = {
        one.server_id: one.address
        for one in listed
        if one.record is not None and one.record.store_id == record.store_id and not one.rolled_back
    }
    present = tuple(
        Member(one.server_id, ours[one.server_id]) for one in record.voters if one.server_id in ours
    )
    generations = [
        one.record.generation
        for one in listed
        if one.record is not None and one.record.store_id == record.store_id
    ]
    quorums = Quorums(record)
    deciders = Quorums(deciding_record(record))
    return StoreSurvivors(
        record,
        present,
        tuple(one for one in record.members if one.server_id not in ours),
        deciders.can_take_over(ours),
        quorums.cover(ours),
        max(generations, default=record.generation),
    )


def forced(now: StoreSurvivors, adding: Member | None = None) -> StoreRecord:
    """Return the record of the survivors alone. `adding`: a member that is added at the same time, so that no
    byte is acknowledged by fewer members than there will be. Raises ValueError.
    """
    if not now.present:
        raise ValueError("no member answers, so the store cannot continue")
    if adding is not None and adding.address in {one.address for one in now.present}:
        raise ValueError(f"{adding.address} is the address of a member that answers")
    added = () if adding is None else (Member(adding.server_id, adding.address, "adding"),)
    members = (*now.present, *added)
    return StoreRecord(
        now.record.store_id,
        now.highest + GENERATIONS_PER_ERA,
        default_ack_quorum(len(now.present)),
        members,
        now.record.spares_beside(members),
    )

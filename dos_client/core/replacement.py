"""The records of a replacement and of an addition. Pure: decides which record comes next, or why none does.

Generation g+1 has the new member joining or adding, generation g+2 has it in. docs/decisions/0010 explains
why this order is safe.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from dos_client.core.quorum import filled_member, joining_member, replaced_member
from dos_client.urls import REACHABLE, loopback_among
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum

GONE_SUFFIX = ".gone.invalid:1"
"""The suffix of the address of a member whose successor has the same address. Nobody connects to it (RFC
6761: no name under .invalid ever resolves). The server id before it identifies the member.
"""


class ReplacementStep(Enum):
    """What a replacement has to do next."""

    BEGIN = "decide the record in which the new member joins"
    FILL = "copy to the member that joins, then decide the record in which it is in"
    DONE = "nothing: the new member is in"


class ReplacementPlan(NamedTuple):
    """The next step. `record`: the record to decide now for BEGIN, otherwise the record in use."""

    step: ReplacementStep
    record: StoreRecord


def plan(record: StoreRecord, old: str, new_id: bytes, new_address: str) -> ReplacementPlan:
    """Return the next step of replacing `old` (an address, or a server id in hex) by the server `new_id`.

    Raises ValueError with the reason if it is not possible.
    """
    known = record.member(new_id)
    if known is not None and known.state == "in":
        if _find(record, old) in (None, known):
            return ReplacementPlan(ReplacementStep.DONE, record)
        raise ValueError(f"the server at {new_address} is already a member")
    leaving = _find(record, old)
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
    return ReplacementPlan(ReplacementStep.BEGIN, begin(record, target, new_id, new_address))


def begin(record: StoreRecord, leaving: Member, new_id: bytes, new_address: str) -> StoreRecord:
    """Return the record in which a new member joins and replaces `leaving`. Another joining member is
    dropped.
    """
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
    return StoreRecord(record.store_id, record.generation + 1, record.ack_quorum, tuple(members))


def add(record: StoreRecord, new_id: bytes, new_address: str) -> StoreRecord:
    """Return the record in which one more member is being added."""
    if filled_member(record) is not None:
        raise ValueError("only one change at a time")
    if new_address in {member.address for member in record.members}:
        raise ValueError(f"{new_address} is already the address of a member")
    members = (*record.members, Member(new_id, new_address, "adding"))
    _check_reachable(new_address, members)
    return StoreRecord(record.store_id, record.generation + 1, record.ack_quorum, members)


def _check_reachable(new_address: str, members: Iterable[Member]) -> None:
    addresses = [member.address for member in members if not member.address.endswith(GONE_SUFFIX)]
    if alone := loopback_among(addresses):
        others = "the other members are" if alone == new_address else f"{new_address} is"
        raise ValueError(
            f"only its own machine can reach {alone}, and {others} on other machines: {REACHABLE}"
        )


def finish(record: StoreRecord) -> StoreRecord:
    """Return the record in which the filled member is in, and the member that it replaces, if any, is gone.

    If the store grows, an ack quorum that was chosen is kept. A default ack quorum follows the new size.
    """
    filled, replaced = filled_member(record), replaced_member(record)
    if filled is None:
        raise ValueError(f"no member joins in generation {record.generation}")
    members = tuple(Member(one.server_id, one.address) for one in record.members if one != replaced)
    quorum = record.ack_quorum
    if filled.state == "adding" and quorum == default_ack_quorum(len(record.voters)):
        quorum = default_ack_quorum(len(members))
    return StoreRecord(record.store_id, record.generation + 1, quorum, members)


def _find(record: StoreRecord, old: str) -> Member | None:
    for member in record.members:
        if old in (member.address, id_text(member.server_id)):
            return member
    return None

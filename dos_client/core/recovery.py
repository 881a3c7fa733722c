"""When too few members are left to go on by the rules: what is known, and the record that a person may force.
Pure.

Three cases, by who answers as the member it is:

    complete   F members are there: nothing has to be forced, the ordinary ways work
    covered    fewer, but N - Qa + 1: each acknowledged byte is on one of them. Nothing is lost; and the
               others are fewer than Qa, so that nothing can be acknowledged by them alone. What a person must
               vouch for is that nobody else goes on with *them*
    exceeded   fewer still: acknowledged bytes may be gone, and the others, if they live, can go on without
               these

A *forced* record holds the survivors alone. Its generation lies a whole *era* above any seen, because those
that are lost may know of later ones. Why that is all that can be done: docs/decisions/0013.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.core.membership import Membership, ServerAnswer
from dos_client.core.quorum import Quorums
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum

GENERATIONS_PER_ERA: Final = 1 << 20


def era(generation: int) -> int:
    """How often a record was forced before that generation."""
    return generation // GENERATIONS_PER_ERA


@dataclass(frozen=True, slots=True)
class StoreSurvivors:
    """Who is left of a store. `record`: the newest known; `present`: its members that are in and answer,
    where they answer; `lost`: the others, with one that joins or is being added and does not answer: others
    may wait for it; `highest`: the highest generation seen."""

    record: StoreRecord
    present: tuple[Member, ...]
    lost: tuple[Member, ...]
    complete: bool
    covered: bool
    highest: int


def standing(membership: Membership, answers: Iterable[ServerAnswer]) -> StoreSurvivors | None:
    """What the answers say; None when no server shows a record of one store."""
    found = list(answers)
    record = membership.newest or membership.record
    if record is None:
        return None
    ours = {
        one.server_id: one.address
        for one in found
        if one.record is not None and one.record.store_id == record.store_id and not one.rolled_back
    }
    present = tuple(
        Member(one.server_id, ours[one.server_id]) for one in record.voters if one.server_id in ours
    )
    generations = [
        one.record.generation
        for one in found
        if one.record is not None and one.record.store_id == record.store_id
    ]
    quorums = Quorums(record)
    return StoreSurvivors(
        record,
        present,
        tuple(one for one in record.members if one.server_id not in ours),
        quorums.can_take_over(ours),
        quorums.cover(ours),
        max(generations, default=record.generation),
    )


def forced(now: StoreSurvivors, adding: Member | None = None) -> StoreRecord:
    """The record of the survivors alone, at the addresses where they answer; and of one that is being added
    to them at once, so that no byte is acknowledged by fewer than there will be.

    Raises ValueError when nobody survives, or the new one stands where a survivor does."""
    if not now.present:
        raise ValueError("no member answers: there is nothing to go on with")
    if adding is not None and adding.address in {one.address for one in now.present}:
        raise ValueError(f"{adding.address} is the address of a member that is there")
    added = () if adding is None else (Member(adding.server_id, adding.address, "adding"),)
    return StoreRecord(
        now.record.store_id,
        now.highest + GENERATIONS_PER_ERA,
        default_ack_quorum(len(now.present)),
        (*now.present, *added),
    )

"""What is known when too few members are left to continue safely, and the record that a person may force.
Pure: no I/O.

There are three cases, by the members that answer as themselves:

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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.core.membership import Membership, ServerAnswer
from dos_client.core.quorum import Quorums, deciding_record
from dos_protocol.store_record import Member, StoreRecord, default_ack_quorum

GENERATIONS_PER_ERA: Final = 1 << 20


def era(generation: int) -> int:
    """Return how many times a record was forced before that generation."""
    return generation // GENERATIONS_PER_ERA


@dataclass(frozen=True, slots=True)
class StoreSurvivors:
    """Which members of a store are left.

    - `record`: the newest known record.
    - `present`: its members that are in and answer, with the address at which they answer.
    - `lost`: the others, including a joining or adding member that does not answer, because others may wait
      for it.
    - `highest`: the highest generation seen.
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
    """Return the record of the survivors alone, at the addresses where they answer.

    `adding`: a member that is added at the same time, so that no byte is acknowledged by fewer members than
    there will be. Raises ValueError if no member survives, or the new one has the address of a survivor.
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

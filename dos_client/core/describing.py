"""Describe the condition of each member from what servers reported. Pure: for people only, decides nothing.

A member is identified by its server id. At a member's address there may be the member, a wiped server, a
server of another store, or another member. A member may also answer at an address that is not in the record.
Only the member itself, at its own address and with the record in use, counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dos_client.core.membership import ROLLED_BACK, ServerAnswer
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord


class Condition(Enum):
    """The condition of a member."""

    THERE = "there"
    UNAVAILABLE = "unavailable"
    STALE = "has an older record"
    AHEAD = "has a newer record"
    WIPED = "wiped"
    """A server that is in no store answers at its address."""
    FOREIGN = "foreign"
    """A server of another store answers at its address."""
    SWAPPED = "another member stands at its address"
    ELSEWHERE = "answers at another address"
    LEFT = "a former member stands at its address"
    ROLLED_BACK = "rolled back"
    """Its disk is an older copy of itself. It counts as lost."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """The condition of one member.

    `generation`: of the record that it reported, 0 if it did not answer as itself. `detail`: an explanation.
    `refuses_appends`: its disk is full. It still counts for claims and reads.
    """

    member: Member
    condition: Condition
    generation: int = 0
    detail: str = ""
    refuses_appends: bool = False

    @property
    def there(self) -> bool:
        return self.condition is Condition.THERE

    @property
    def counts(self) -> bool:
        """Whether the member counts for acknowledgements and answers, as far as one read of its state can
        show.
        """
        return self.there and self.member.state == "in"


def describe(
    record: StoreRecord, answers: Sequence[ServerAnswer], errors: Mapping[str, str]
) -> list[MemberView]:
    """Describe every member of the record."""
    at_address = {answer.address: answer for answer in answers}
    return [_view(record, member, answers, at_address, errors) for member in record.members]


def rolled_back(view: MemberView) -> MemberView:
    """Return the view of a member whose disk was found to have gone back in time."""
    return MemberView(view.member, Condition.ROLLED_BACK, view.generation, ROLLED_BACK)


def same_server(answers: Sequence[ServerAnswer]) -> list[str]:
    """Return one line for each server that answers at several addresses."""
    addresses: dict[bytes, list[str]] = {}
    for answer in answers:
        addresses.setdefault(answer.server_id, []).append(answer.address)
    return [
        f"{' and '.join(sorted(names))} are one server ({id_text(server_id)}): it counts once"
        for server_id, names in sorted(addresses.items())
        if len(names) > 1
    ]


def _view(
    record: StoreRecord,
    member: Member,
    answers: Sequence[ServerAnswer],
    at_address: Mapping[str, ServerAnswer],
    errors: Mapping[str, str],
) -> MemberView:
    answer = at_address.get(member.address)
    elsewhere = [one for one in answers if one.server_id == member.server_id and one is not answer]
    if answer is not None and answer.server_id == member.server_id:
        return _view_of_itself(record, member, answer)
    at_other_address = f"it answers at {elsewhere[0].address}" if elsewhere else ""
    if answer is None:
        if elsewhere:
            return MemberView(member, Condition.ELSEWHERE, _generation(elsewhere[0]), at_other_address)
        return MemberView(member, Condition.UNAVAILABLE, detail=errors.get(member.address, "did not answer"))
    finding = f"server {id_text(answer.server_id)} answers there"
    if answer.record is None:
        condition, finding = Condition.WIPED, f"{finding}, in no store"
    elif answer.record.store_id != record.store_id:
        condition, finding = Condition.FOREIGN, f"{finding}, of store {id_text(answer.record.store_id)}"
    else:
        condition = Condition.SWAPPED if record.member(answer.server_id) is not None else Condition.LEFT
    return MemberView(member, condition, detail="; ".join(filter(None, [finding, at_other_address])))


def _view_of_itself(record: StoreRecord, member: Member, answer: ServerAnswer) -> MemberView:
    generation = _generation(answer)
    if answer.record is not None and answer.record.store_id != record.store_id:
        return MemberView(member, Condition.FOREIGN, detail="it now belongs to another store")
    if answer.rolled_back:
        return rolled_back(MemberView(member, Condition.THERE, generation))
    if answer.record == record:
        detail = "its disk is full: appends are refused" if answer.refuses_appends else ""
        return MemberView(member, Condition.THERE, generation, detail, answer.refuses_appends)
    if generation > record.generation:
        return MemberView(member, Condition.AHEAD, generation, f"generation {generation}")
    text = f"generation {generation}" if generation else "no record yet"
    return MemberView(member, Condition.STALE, generation, text)


def _generation(answer: ServerAnswer) -> int:
    return answer.record.generation if answer.record is not None else 0

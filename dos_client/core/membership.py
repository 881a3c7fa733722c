"""Decide which store record counts, from what servers answered. Pure: no I/O.

**Rule.** The *confirmed* record with the highest generation counts: `max(majority, N - Qa + 1)` of its own
members that are "in" report it; a tie-breaker counts as one of them (`core.quorum`). A server is identified
by its id alone. A joining member does not confirm.

**Helping.** A record is written to a server only after it was decided (docs/decisions/0010). So any client
that sees one may send it to the members that it names. That is how a store continues after `dos store
replace` was interrupted (P-10). Servers that it does not name learn that they are out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dos_client.core.quorum import Quorums, deciding_record
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.names import id_text
from dos_protocol.store_record import Member, StoreRecord, confirmations_needed


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The report of one server about itself. `record`: None: it is in no store. `rolled_back`: it confirms
    nothing.
    """

    address: str
    server_id: bytes
    record: StoreRecord | None
    rolled_back: bool = False
    refuses_appends: bool = False


ROLLED_BACK: Final = f"its disk went back in time: {VERDICTS[ErrorCode.ROLLED_BACK].remedy}"


@dataclass(frozen=True, slots=True)
class Membership:
    """The decision: the `record` that counts; the `newest` seen, confirmed or not (None if two claim that
    generation); the servers to `help` by sending it; `problems`, one line each.
    """

    record: StoreRecord | None
    newest: StoreRecord | None
    help: tuple[ServerAnswer, ...]
    problems: tuple[str, ...]


def decide(
    answers: Iterable[ServerAnswer], store_id: bytes | None = None, addresses: Collection[str] = ()
) -> Membership:
    """Evaluate the answers. With `store_id`, records of other stores are foreign; else the store is the one
    that the `addresses` mean.
    """
    every = list(answers)
    by_identity = _once_per_identity(every)
    problems: list[str] = []
    stores = {answer.record.store_id for answer in by_identity if answer.record is not None}
    if store_id is None and len(stores) > 1:
        store_id = _intended_store(by_identity, addresses or [answer.address for answer in every])
        if store_id is None:
            return Membership(None, None, (), (f"the servers belong to {len(stores)} different stores",))
    if store_id is None:
        store_id = next(iter(stores), None)
    records = [record for record in _records(by_identity) if record.store_id == store_id]
    confirmed = [record for record in records if is_confirmed(record, by_identity)]
    record = max(confirmed, key=lambda one: one.generation, default=None)
    newest = _newest(records, problems)
    problems += _problems(by_identity, newest or record, store_id)
    return Membership(record, newest, _servers_to_update(newest, record, by_identity), tuple(problems))


def _intended_store(answers: list[ServerAnswer], addresses: Collection[str]) -> bytes | None:
    """Return the store whose newest record names most of the requested addresses; None if undecided."""
    # A server of another store at the address of a member must not redirect clients to its store: its record
    # does not name the other addresses.
    newest: dict[bytes, StoreRecord] = {}
    for record in _records(answers):
        if record.store_id not in newest or record.generation > newest[record.store_id].generation:
            newest[record.store_id] = record
    named = {
        one: len({member.address for member in record.members} & set(addresses))
        for one, record in newest.items()
    }
    most = [one for one, count in named.items() if count == max(named.values())]
    return most[0] if len(most) == 1 else None


def is_confirmed(record: StoreRecord, answers: Iterable[ServerAnswer]) -> bool:
    """Return whether enough of the record's own members report exactly this record."""
    deciders = deciding_record(record)
    confirming = {
        answer.server_id
        for answer in answers
        if answer.record == record and _is_in(deciders, answer.server_id) and not answer.rolled_back
    }
    return len(confirming) >= confirmations_needed(len(deciders.voters), record.ack_quorum)


def _is_in(record: StoreRecord, server_id: bytes) -> bool:
    member = record.member(server_id)
    return member is not None and member.state == "in"


def _once_per_identity(answers: Iterable[ServerAnswer]) -> list[ServerAnswer]:
    newest: dict[bytes, ServerAnswer] = {}
    for answer in answers:
        before = newest.get(answer.server_id)
        if before is None or _generation(answer) > _generation(before):
            newest[answer.server_id] = answer
    return list(newest.values())


def _generation(answer: ServerAnswer) -> int:
    return answer.record.generation if answer.record is not None else 0


def _records(answers: Iterable[ServerAnswer]) -> list[StoreRecord]:
    records: list[StoreRecord] = []
    for answer in answers:
        if answer.record is not None and answer.record not in records and _understood(answer.record):
            records.append(answer.record)
    return records


def _understood(record: StoreRecord) -> bool:
    try:
        Quorums(record)
    except ValueError:
        return False
    return True


def _newest(records: list[StoreRecord], problems: list[str]) -> StoreRecord | None:
    if not records:
        return None
    highest = max(record.generation for record in records)
    newest = [record for record in records if record.generation == highest]
    if len(newest) > 1:
        problems.append(f"{len(newest)} different records claim generation {highest}")
        return None
    return newest[0]


def _servers_to_update(
    newest: StoreRecord | None, counts: StoreRecord | None, answers: Iterable[ServerAnswer]
) -> tuple[ServerAnswer, ...]:
    if newest is None:
        return ()
    return tuple(
        answer
        for answer in answers
        if _generation(answer) < newest.generation
        and (
            answer.record.store_id == newest.store_id
            if answer.record is not None
            else newest.names(answer.server_id)
        )
        and (newest.names(answer.server_id) or newest == counts)
    )


def _problems(answers: list[ServerAnswer], record: StoreRecord | None, store_id: bytes | None) -> list[str]:
    problems = []
    for answer in answers:
        if answer.record is None:
            if record is None or not record.names(answer.server_id):
                problems.append(f"{answer.address} is in no store (server id {answer.server_id.hex()})")
        elif answer.record.store_id != store_id:
            problems.append(f"{answer.address} belongs to another store, {answer.record.store_id.hex()}")
        elif record is not None and not record.names(answer.server_id):
            problems.append(f"{answer.address} is no longer a member (server id {answer.server_id.hex()})")
        elif answer.rolled_back:
            problems.append(f"{answer.address}: {ROLLED_BACK}")
    if record is not None:
        present = {answer.server_id for answer in answers}
        problems += [
            f"{member.address} (server id {member.server_id.hex()}) does not answer as itself"
            for member in record.members
            if member.server_id not in present
        ]
    return problems


class MemberAdmission(Enum):
    """The result of comparing a server with the member that is expected at its address."""

    ADMITTED = "it is the member, at this generation"
    NEWER_RECORD = "it has a newer record: read the membership again"
    OLDER_RECORD = "it has an older record, or none yet: send it this one"
    OTHER_SERVER = "another server answers at this address, or the member was wiped; it does not count"
    OTHER_STORE = "it belongs to another store; it does not count"


def admit(
    record: StoreRecord, expected_id: bytes, server_id: bytes, server_record: StoreRecord | None
) -> MemberAdmission:
    """Compare a server, its id and its record (None: it has none), with the member that is expected."""
    if server_record is not None and server_record.store_id != record.store_id:
        return MemberAdmission.OTHER_STORE
    if server_record is not None and server_record.generation > record.generation:
        return MemberAdmission.NEWER_RECORD
    if server_id != expected_id:
        return MemberAdmission.OTHER_SERVER
    if server_record != record:
        return MemberAdmission.OLDER_RECORD
    return MemberAdmission.ADMITTED


class Condition(Enum):
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
    """The condition of one member. `generation`: of its record, 0 if it did not answer as itself.
    `refuses_appends`: its disk is full; it still counts for claims and reads.
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
        return self.there and self.member.state == "in"


def describe(
    record: StoreRecord, answers: Sequence[ServerAnswer], errors: Mapping[str, str]
) -> list[MemberView]:
    at_address = {answer.address: answer for answer in answers}
    return [_view(record, member, answers, at_address, errors) for member in record.members]


def rolled_back(view: MemberView) -> MemberView:
    return MemberView(view.member, Condition.ROLLED_BACK, view.generation, ROLLED_BACK)


def same_server(answers: Sequence[ServerAnswer]) -> list[str]:
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

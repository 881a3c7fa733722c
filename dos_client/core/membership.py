"""Decide which store record counts, from what servers answered. Pure: no I/O.

**Rule.** Of the records that servers reported, the *confirmed* one with the highest generation counts. A
record is confirmed if `max(majority, N - Qa + 1)` of its own members that are "in" report it; a tie-breaker
counts as one of them (`core.quorum`). A server is
identified by its server id alone: a server with two addresses is one, a wiped server has a new id and is in
no record. A joining member does not confirm.

**Helping.** A record is written to a server only after it was decided (docs/decisions/0010). So any client
that sees one may send it to the members that it names and that have an older one of the same store, or none.
That is how a store continues automatically after `dos store replace` was interrupted (P-10). A record that
counts is also sent to servers of the store that it does not name. They learn that they are out, and report it
to clients that still use them.

Sending requests to the servers, and when, is not decided here.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.core.quorum import Quorums, deciding_record
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.store_record import StoreRecord, confirmations_needed


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What one server reported of itself: its id, its store record (None: it is in no store), whether its
    disk went back in time, in which case it confirms nothing, and whether its disk is full.
    """

    address: str
    server_id: bytes
    record: StoreRecord | None
    rolled_back: bool = False
    refuses_appends: bool = False


ROLLED_BACK: Final = f"its disk went back in time: {VERDICTS[ErrorCode.ROLLED_BACK].remedy}"


@dataclass(frozen=True, slots=True)
class Membership:
    """The decision.

    - `record`: the record that counts, or None.
    - `newest`: the record with the highest generation seen, confirmed or not; None if two different ones
      claim it.
    - `help`: the servers to which `newest` should be sent.
    - `problems`: one line each, for people.
    """

    record: StoreRecord | None
    newest: StoreRecord | None
    help: tuple[ServerAnswer, ...]
    problems: tuple[str, ...]


def decide(
    answers: Iterable[ServerAnswer], store_id: bytes | None = None, addresses: Collection[str] = ()
) -> Membership:
    """Evaluate the answers. With `store_id`, records of other stores are foreign.

    Otherwise the store is the one that they all belong to, or the one that the requested `addresses` mean.
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
    """Return the store whose newest record names most of the requested addresses; None if that is undecided.

    So a server of another store at the address of a member does not redirect clients to its store: its record
    does not name the other addresses.
    """
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
    """Return each different record once, without those that this release does not understand."""
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

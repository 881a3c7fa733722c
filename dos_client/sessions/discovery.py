"""Ask servers for their identity, and send store records to them, in short sessions with single servers."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import trio

from dos_client.core.membership import Membership, ServerAnswer, decide
from dos_client.limits import probe_grace_s, probe_timeout_s
from dos_client.sessions.connection import ANYBODY, ServerAccess, line_of, open_connection
from dos_protocol.errors import BrokenConnectionError, DosError, TlsRequiredError, UnauthorisedError
from dos_protocol.store_record import Member, StoreRecord
from dos_tls import TlsError, TlsTruncatedError

log: Final = logging.getLogger("dos.client")
_FINAL: Final = (UnauthorisedError, TlsRequiredError, TlsError)
"""A retry soon after does not help: a person must act."""


@dataclass(frozen=True, slots=True)
class ServerSurvey:
    """The answers of several servers, and the errors of the others by address. `refused`: errors that a retry
    does not change.
    """

    answers: tuple[ServerAnswer, ...]
    errors: dict[str, str]
    refused: dict[str, DosError] = field(default_factory=dict)

    @property
    def all_refuse(self) -> DosError | None:
        """The first error if no server answered and a retry does not help; otherwise None."""
        if self.answers or not self.errors or self.errors.keys() - self.refused.keys():
            return None
        return next(iter(self.refused.values()))

    def why_absent(self, spare: Member) -> str:
        """Return why a spare does not answer as itself at its address; "" if it does."""
        there = next((one for one in self.answers if one.address == spare.address), None)
        if there is None:
            return self.errors.get(spare.address, "it does not answer")
        return "" if there.server_id == spare.server_id else "another server answers at its address"

    def problems(self, membership: Membership) -> list[str]:
        # Most errors name the address.
        errors = (text if at in text else f"{at}: {text}" for at, text in self.errors.items())
        return [*errors, *membership.problems]


async def probe(
    address: str, access: ServerAccess = ANYBODY, *, timeout_s: float = probe_timeout_s
) -> ServerAnswer:
    with trio.move_on_after(timeout_s):
        async with open_connection(address, **access._asdict()) as connection:
            welcome = connection.welcome
            return ServerAnswer(
                address,
                connection.server_id,
                connection.record,
                welcome.rolled_back,
                welcome.refuses_appends,
            )
    raise BrokenConnectionError(
        f"{address} did not answer within {timeout_s:g} s",
        remedy="check that a DOS server listens there and that this host can reach it",
    )


async def survey(
    addresses: Iterable[str],
    access: ServerAccess = ANYBODY,
    *,
    patience_s: Callable[[Sequence[ServerAnswer]], float] = lambda _: inf,
    timeout_s: float = probe_timeout_s,
) -> ServerSurvey:
    """Ask several servers at once. Errors are in the result. `patience_s`: how many seconds the others get,
    called after each answer.
    """
    answers: list[ServerAnswer] = []
    errors = dict.fromkeys(addresses, "did not answer in time")
    refused: dict[str, DosError] = {}

    async def probe_one(address: str) -> None:
        try:
            answers.append(await probe(address, access, timeout_s=timeout_s))
            del errors[address]
        except DosError as error:
            errors[address] = line_of(error)
            if isinstance(error, _FINAL) and not isinstance(error, TlsTruncatedError):
                refused[address] = error
        scope = nursery.cancel_scope
        scope.deadline = min(scope.deadline, trio.current_time() + patience_s(answers))

    async with trio.open_nursery() as nursery:
        for address in list(errors):
            nursery.start_soon(probe_one, address)
    by_address = tuple(sorted(answers, key=lambda one: one.address))
    return ServerSurvey(by_address, dict(sorted(errors.items())), dict(sorted(refused.items())))


async def send_record(address: str, record: StoreRecord, access: ServerAccess = ANYBODY) -> None:
    """Send a record to one server, which stores it unless it has a newer one. Raises as `probe`."""
    with trio.move_on_after(probe_timeout_s):
        async with open_connection(address, **access._asdict()) as connection:
            await connection.configure(record)
            return
    raise BrokenConnectionError(f"{address} did not accept the store record within {probe_timeout_s:g} s")


async def find_membership(
    addresses: Iterable[str],
    access: ServerAccess = ANYBODY,
    *,
    store_id: bytes | None = None,
    hurry: bool = False,
    above: int | None = None,
    undecided_s: float = inf,
    timeout_s: float = probe_timeout_s,
) -> tuple[Membership, ServerSurvey]:
    """Find the record that counts. Follows the addresses in records, and sends the newest record to members
    that lack it.

    `hurry`: do not wait long for servers that are not needed; spares are asked only if the members do not
    decide. `above`: the same, and do not wait at all above this generation. `undecided_s`: how long to wait
    for a decision after each answer. `timeout_s`: how long each server gets.
    """
    hurry = hurry or above is not None
    requested = list(addresses)
    known = dict.fromkeys(requested)
    updated: set[tuple[str, int]] = set()
    silent: dict[str, str] = {}

    def patience_s(answers: Sequence[ServerAnswer]) -> float:
        record = decide(answers, store_id, requested).record
        if record is None:
            return undecided_s
        if not hurry:
            return inf
        return 0.0 if above is not None and record.generation > above else probe_grace_s

    while True:
        seen = await survey(
            [address for address in known if address not in silent],
            access,
            patience_s=patience_s,
            timeout_s=timeout_s,
        )
        seen = replace(seen, errors={**silent, **seen.errors})
        membership = decide(seen.answers, store_id, requested)
        named = {
            member.address
            for answer in seen.answers
            if answer.record
            for member in (answer.record.members if hurry and membership.record else _named(answer.record))
        }
        new = [address for address in sorted(named) if address not in known]
        known.update(dict.fromkeys(new))
        silent = seen.errors  # asked once: every further round would wait for them again
        if not await _update_servers(membership, updated, access) and not new:
            return membership, seen


def _named(record: StoreRecord) -> tuple[Member, ...]:
    return (*record.members, *record.spares)


async def _update_servers(
    membership: Membership, updated: set[tuple[str, int]], access: ServerAccess
) -> bool:
    newest, accepted = membership.newest, False
    for answer in membership.help:
        if newest is None or (answer.address, newest.generation) in updated:
            continue
        updated.add((answer.address, newest.generation))
        try:
            await send_record(answer.address, newest, access)
        except DosError as error:
            log.info("%s did not accept generation %d: %s", answer.address, newest.generation, error)
        else:
            log.info("%s now stores generation %d of its store record", answer.address, newest.generation)
            accepted = True
    return accepted

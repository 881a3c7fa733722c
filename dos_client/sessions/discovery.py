"""Asking servers who they are, and handing store records on.

Rules of this file: short sessions that speak to one server and to no store. What the answers mean is
decided in `core.membership`.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from dos_client.core.membership import Membership, ServerAnswer, decide
from dos_client.limits import probe_grace_s, probe_timeout_s
from dos_client.sessions.connection import open_connection
from dos_protocol.errors import BrokenConnectionError, DosError, UnauthorisedError
from dos_protocol.store_record import StoreRecord

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class ServerSurvey:
    """What servers said, by address, and the errors of those that said nothing; `refused`: those of them that
    do not take the token.
    """

    answers: tuple[ServerAnswer, ...]
    errors: dict[str, str]
    refused: frozenset[str] = frozenset()

    @property
    def nobody_takes_the_token(self) -> bool:
        """Asking again will not help."""
        return not self.answers and bool(self.errors) and self.refused >= self.errors.keys()

    def problems(self, membership: Membership) -> list[str]:
        """One line for each thing that is not as it should be."""
        return [*(f"{address}: {error}" for address, error in self.errors.items()), *membership.problems]


async def probe(address: str, *, token: bytes = b"", client: str = "") -> ServerAnswer:
    """Ask one server for its identity and record. Raises BrokenConnectionError, or RefusedError for a wrong
    token."""
    with trio.move_on_after(probe_timeout_s):
        async with open_connection(address, token=token, client=client) as connection:
            rolled_back = connection.welcome.rolled_back
            return ServerAnswer(address, connection.server_id, connection.record, rolled_back)
    raise BrokenConnectionError(
        f"{address} did not answer within {probe_timeout_s:g} s",
        remedy="check that a DOS server listens there and that this host reaches it",
    )


async def survey(
    addresses: Iterable[str],
    *,
    token: bytes = b"",
    client: str = "",
    enough: Callable[[Sequence[ServerAnswer]], bool] = lambda _: False,
) -> ServerSurvey:
    """Ask several servers at once. Never raises for one of them. Once the answers are `enough`, the others
    get only a moment more."""
    answers: list[ServerAnswer] = []
    errors = dict.fromkeys(addresses, "gave no answer in time")
    refused: set[str] = set()

    async def ask(address: str) -> None:
        try:
            answers.append(await probe(address, token=token, client=client))
            del errors[address]
        except DosError as error:
            errors[address] = str(error.args[0])
            if isinstance(error, UnauthorisedError):
                refused.add(address)
        if enough(answers):
            nursery.cancel_scope.deadline = min(
                nursery.cancel_scope.deadline, trio.current_time() + probe_grace_s
            )

    async with trio.open_nursery() as nursery:
        for address in list(errors):
            nursery.start_soon(ask, address)
    by_address = tuple(sorted(answers, key=lambda one: one.address))
    return ServerSurvey(by_address, dict(sorted(errors.items())), frozenset(refused))


async def hand_over(address: str, record: StoreRecord, *, token: bytes = b"", client: str = "") -> None:
    """Have one server keep the record. Raises what `probe` raises; a server that has a newer one refuses."""
    with trio.move_on_after(probe_timeout_s):
        async with open_connection(address, token=token, client=client) as connection:
            await connection.configure(record)
            return
    raise BrokenConnectionError(f"{address} did not take the store record within {probe_timeout_s:g} s")


async def find_membership(
    addresses: Iterable[str],
    *,
    token: bytes = b"",
    client: str = "",
    store_id: bytes | None = None,
    hurry: bool = False,
) -> tuple[Membership, ServerSurvey]:
    """Which record counts, after following addresses in records and helping members that hold older ones.

    `hurry`: do not wait long for servers that are not needed for that."""
    asked = list(addresses)
    known = dict.fromkeys(asked)
    helped: set[tuple[str, int]] = set()

    def confirmed(answers: Sequence[ServerAnswer]) -> bool:
        return hurry and decide(answers, store_id, asked).record is not None

    while True:
        seen = await survey(known, token=token, client=client, enough=confirmed)
        membership = decide(seen.answers, store_id, asked)
        named = {
            member.address for answer in seen.answers if answer.record for member in answer.record.members
        }
        news = [address for address in sorted(named) if address not in known]
        known.update(dict.fromkeys(news))
        if not await _help(membership, helped, token=token, client=client) and not news:
            return membership, seen


async def _help(membership: Membership, helped: set[tuple[str, int]], *, token: bytes, client: str) -> bool:
    """Hand the newest record on; whether any server took it."""
    newest, took = membership.newest, False
    for answer in membership.help:
        if newest is None or (answer.address, newest.generation) in helped:
            continue
        helped.add((answer.address, newest.generation))
        try:
            await hand_over(answer.address, newest, token=token, client=client)
        except DosError as error:
            log.info("%s does not take generation %d: %s", answer.address, newest.generation, error)
        else:
            log.info("%s now keeps generation %d of its store record", answer.address, newest.generation)
            took = True
    return took

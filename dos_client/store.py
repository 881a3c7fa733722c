"""Open a store, or a connection to a single server."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from dos_client import metrics, randomness
from dos_client.core.membership import Membership
from dos_client.errors import StoreNotReadyError
from dos_client.limits import observe_step_s, open_timeout_s, open_told_s
from dos_client.live_store import Store
from dos_client.membership.founding import all_refuse, init_store
from dos_client.randomness import backoff_s
from dos_client.repair.repairing import auto_repair, watch_for_damage
from dos_client.sessions.connection import ServerAccess
from dos_client.sessions.discovery import ServerSurvey, find_membership, probe
from dos_client.tasks import background_tasks
from dos_client.urls import DosUrl, parse_url
from dos_protocol.errors import LocalProtocolError
from dos_protocol.names import NO_ID
from dos_protocol.store_record import Member, StoreRecord

log: Final = logging.getLogger("dos.client")
__all__ = ["Store", "StoreNotReadyError", "connect", "init_store", "open_store"]


@asynccontextmanager
async def open_store(
    url: str | DosUrl,
    *,
    token: bytes = b"",
    client: str = "",
    located: Mapping[bytes, str] | None = None,
    record: StoreRecord | None = None,
) -> AsyncIterator[Store]:
    """Open the store that the servers of the URL belong to. On exit, all claims and sessions end.

    Members that are unavailable are retried in the background. `located`: addresses, by server id, of members
    that moved. `record`: the record that counts, if the caller has just found it. Raises StoreNotReadyError,
    which lists the problem of each server, if no record is confirmed within `open_timeout_s`.
    """
    parsed, access = parse_url(url), ServerAccess(token, client)
    found = record or await _find_record(parsed, access)
    async with _run_store(parsed, found, access, located or {}) as store:
        store.start(store.keep_membership)
        store.start(lambda: auto_repair(store))
        store.start(lambda: watch_for_damage(store))
        yield store


@asynccontextmanager
async def connect(url: str | DosUrl, *, token: bytes = b"", client: str = "") -> AsyncIterator[Store]:
    """Connect to one server, with the API of a store that has one member. Raises BrokenConnectionError,
    LocalProtocolError.
    """
    parsed = parse_url(url)
    if len(parsed.servers) != 1:
        raise LocalProtocolError(
            f"connect() takes one server, got {len(parsed.servers)}; use open_store() for several"
        )
    access = ServerAccess(token, client)
    answer = await probe(parsed.servers[0], access)
    alone = StoreRecord(NO_ID, 0, 1, (Member(answer.server_id, answer.address),))
    async with _run_store(parsed, alone, access, {}) as store:
        store.server_record = answer.record
        yield store


@asynccontextmanager
async def _run_store(
    url: DosUrl, record: StoreRecord, access: ServerAccess, located: Mapping[bytes, str]
) -> AsyncIterator[Store]:
    async with background_tasks() as nursery:
        store = Store(url, record, nursery, access, located)
        nursery.start_soon(_observe, store)
        yield store


async def _observe(store: Store) -> None:
    figures = metrics.StoreFigures()
    try:
        while True:
            await trio.sleep(observe_step_s)
            _publish_figures(store, figures)
    finally:
        _publish_figures(store, figures)
        figures.close()


def _publish_figures(store: Store, figures: metrics.StoreFigures) -> None:
    for claim in store.claims():
        claim.waits.inspect()
    store.counts.faulty_copies = store.damage.found
    figures.publish(store.counts, store.members(), sum(claim.waiting for claim in store.claims()))


async def _find_record(url: DosUrl, access: ServerAccess) -> StoreRecord:
    begun_s = trio.current_time()
    deadline = begun_s + open_timeout_s
    attempt, told = 0, False
    while True:
        membership, seen = await find_membership(url.servers, access, hurry=True)
        if membership.record is not None:
            return membership.record
        attempt += 1
        pause = backoff_s(attempt, randomness.jitter())
        hopeless = seen.all_refuse is not None or (membership.newest is None and not seen.errors)
        if hopeless or trio.current_time() + pause > deadline:
            raise _not_ready(url, membership, seen)
        # Servers that are being started may listen in a moment, and a wrong URL looks the same: a person who
        # waits learns the reason before the end.
        if not told and not seen.answers and trio.current_time() - begun_s >= open_told_s:
            told = True
            problems = "; ".join(seen.problems(membership))
            log.warning("no server of %s answers so far, trying for %g s: %s", url, open_timeout_s, problems)
        await trio.sleep(pause)


def _not_ready(url: DosUrl, membership: Membership, seen: ServerSurvey) -> StoreNotReadyError:
    if membership.newest is None and not seen.errors:
        return StoreNotReadyError(
            f"the servers of {url} are not a store",
            seen.problems(membership),
            remedy=f"create one: dos store init {url}",
        )
    if refusal := seen.all_refuse:
        return all_refuse(url, refusal, seen.problems(membership))
    if not seen.answers:
        return StoreNotReadyError(
            f"no server of {url} answers",
            seen.problems(membership),
            remedy="start them, or correct the URL",
        )
    return StoreNotReadyError(
        f"too few servers of {url} confirm a store record",
        seen.problems(membership),
        remedy="start the others",
    )

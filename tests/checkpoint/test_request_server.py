"""The driver's side of requests, on a store in memory: when it reads requests, and when it writes answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import Event
from checkpoint.core.region import RegionStatus, SavepointSettled
from checkpoint.requests import server as server_module
from checkpoint.requests.client import Reply, RequestClient
from checkpoint.requests.queue import write_records
from checkpoint.requests.server import RequestServer
from dos_client import Store, open_store
from dos_server.testing import memory_store
from tests.checkpoint.region_model import spec
from tests.checkpoint.request_harness import RUNNING

NEVER_S = 3600.0
SOON_S = 60.0
SETTLED = SavepointSettled("kept", 3)


class Region:
    """A region that runs, and does with a savepoint what the test wants."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make

    def post(self, event: Event) -> None:
        del event
        self._make()

    def status(self) -> RegionStatus:
        return RUNNING

    def held(self) -> int:
        return RUNNING.incarnation

    def last_progress(self) -> dict[str, Any] | None:
        return None


@asynccontextmanager
async def served(make: Callable[[RequestServer], None]) -> AsyncIterator[Store]:
    """A store in which a driver has answered before, so that objects of requests and of answers exist."""
    async with memory_store() as servers, open_store(servers.url) as store, trio.open_nursery() as nursery:
        server = RequestServer(store, replace(spec(), name="words"), Region(lambda: make(server)))
        nursery.start_soon(server.run)
        await asked(store, "status")
        yield store
        nursery.cancel_scope.cancel()


async def asked(store: Store, what: str, **fields: Any) -> Reply:
    with trio.fail_after(SOON_S):
        return await RequestClient(store, "words").send(what, **fields)


@pytest.mark.trio
async def test_a_request_is_read_when_it_is_there_and_not_at_the_next_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(lambda server: server.on_event(SETTLED)) as store:
        monkeypatch.setattr(limits, "requests_poll_s", NEVER_S)
        monkeypatch.setattr(limits, "answers_poll_s", NEVER_S)
        for _ in range(3):
            reply = await asked(store, "savepoint", name="kept")
            assert (reply.answer.verdict, reply.answer.result["checkpoint"]) == ("done", 3)


@pytest.mark.trio
async def test_an_outcome_that_comes_while_an_answer_is_written_is_written_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settles = list[RequestServer]()

    async def write(store: Store, directory: str, data: bytes) -> None:
        for server in settles:
            server.on_event(SETTLED)
        settles.clear()
        await write_records(store, directory, data)

    async with served(settles.append) as store:
        monkeypatch.setattr(limits, "requests_poll_s", NEVER_S)
        monkeypatch.setattr(limits, "outcome_wait_s", 0.0)
        monkeypatch.setattr(server_module, "write_records", write)
        assert (await asked(store, "savepoint", name="kept")).answer.verdict == "done"


@pytest.mark.trio
async def test_an_outcome_that_comes_soon_is_written_together_with_the_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes = list[bytes]()

    async def write(store: Store, directory: str, data: bytes) -> None:
        writes.append(data)
        await write_records(store, directory, data)

    def settle_soon(server: RequestServer) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(server.on_event, SETTLED)

    async with served(settle_soon) as store:
        monkeypatch.setattr(limits, "outcome_wait_s", NEVER_S)
        monkeypatch.setattr(server_module, "write_records", write)
        accepted = []
        with trio.fail_after(SOON_S):
            await RequestClient(store, "words").send("savepoint", name="kept", accepted=accepted.append)
        assert (len(writes), len(accepted)) == (1, 1)

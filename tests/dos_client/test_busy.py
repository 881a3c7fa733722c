"""A server at its limit of objects in use answers BUSY: clients wait, say why, and go on afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import QuorumUnavailableError, connect
from dos_protocol.limits import entries_max
from tests.dos_client.support import ThreadServer, content_of, new_writer, thread_servers, until

OBJECTS = 6

pytestmark = pytest.mark.trio


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadServer]:
    """Sessions may use one directory of so many objects, and another one only when it has fewer."""
    monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", entries_max + OBJECTS - 1)
    with thread_servers(tmp_path, 1) as (one,):
        yield one


async def test_a_claim_and_a_look_wait_until_the_server_has_room_and_say_what_for(
    server: ThreadServer,
) -> None:
    async with connect(server.url) as store, await store.claim("full", 1, new_writer()) as full:
        for number in range(OBJECTS):
            writer = full.open_object(f"o{number}")
            await writer.wait_synced(writer.append(b"x"))
        async with connect(server.url) as other:
            with pytest.raises(QuorumUnavailableError, match="another cannot be opened"):
                await other.inspect("another")
            granted = trio.Event()

            async def claim() -> None:
                async with await other.claim("another", 1, new_writer()) as late:
                    written = late.open_object("o")
                    await written.wait_synced(written.append(b"later"))
                granted.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim)
                await until(
                    lambda: any(
                        "cannot be opened" in link.error for one in other.claims() for link in one.links()
                    ),
                    "it says what it waits for",
                )
                attempts = [link.outage.attempts for one in other.claims() for link in one.links()]
                assert not granted.is_set()
                assert max(attempts) < 50, "it does not ask all the time"
                await full.aclose()
                with trio.fail_after(60):
                    await granted.wait()


async def test_an_append_that_would_make_an_object_too_many_is_made_when_there_is_room(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url) as store, await store.claim("d", 1, new_writer()) as claim:
        first = claim.open_object("first")
        await first.wait_synced(first.append(b"x"))
        monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", 1)
        second = claim.open_object("second")
        position = second.append(b"y")
        await until(lambda: "which is the limit" in claim.status().members[0].error, "it says why")
        monkeypatch.setattr("dos_server.core.tables.objects_in_use_max", 2 * entries_max)
        with trio.fail_after(60):
            await second.wait_synced(position)
            await first.wait_synced(first.append(b"goes on"))
        assert await content_of(server, "d", "second") == b"y"
        assert await content_of(server, "d", "first") == b"xgoes on"

"""O11: a claim automatically fills a member whose connection was broken."""

import os

import trio
from trio.testing import MockClock

from dos_client import open_store
from dos_server.testing import memory_store
from tests.shells.bugs import planted


async def one_goes_and_comes_back() -> str:
    """Write while a member is unavailable. Return the claim's status of that member a minute later."""
    async with (
        memory_store(seed=1) as servers,
        open_store(servers.url) as store,
        await store.claim("d", 1, os.urandom(16)) as claim,
    ):
        writer = claim.open_object("o")
        await writer.wait_synced(writer.append(b"before"))
        servers[0].crash()
        await writer.wait_synced(writer.append(b"meanwhile"))
        await servers[0].restart()
        await writer.wait_synced(writer.append(b"after"))
        with trio.move_on_after(60):
            while (member := store.members()[0]).state != "in sync":  # noqa: ASYNC110 - the client's own view
                await trio.sleep(0.1)
        return f"{member.address == servers[0].address} {member.state}"


def test_a_member_that_was_unavailable_is_brought_up() -> None:
    assert trio.run(one_goes_and_comes_back, clock=MockClock(autojump_threshold=0)) == "True in sync"


def test_it_is_noticed_when_it_is_not() -> None:
    with planted("a_link_that_broke_stays_so"):
        status = trio.run(one_goes_and_comes_back, clock=MockClock(autojump_threshold=0))
    assert status.startswith("True "), status
    assert "in sync" not in status

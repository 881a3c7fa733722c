"""Writers go on while servers are killed and stopped by signals. Real processes."""

import pytest
import trio

from dos_client import init_store
from dos_client.limits import waiting_after_s
from dos_protocol.errors import FencedError
from tests.dos_client.support import (
    claimed,
    content_of,
    has,
    record_of,
    until,
    url_of,
)
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.trio
Processes = list[ServerProcess]


@pytest.mark.process
async def test_kill_9_of_one_of_three_loses_nothing_and_stops_nothing(three_servers: Processes) -> None:
    # EVIDENCE-OF: P-1, P-5, P-10
    await init_store(url_of(three_servers))
    victim = three_servers[1]
    content, acknowledged = b"", []
    async with claimed(three_servers) as (store, claim):
        writer = claim.open_object("x")
        for number in range(3_000):
            content += record_of(number)
            writer.append(record_of(number))
            if number == 1_000:
                await trio.to_thread.run_sync(victim.kill)
            if number == 2_000:
                await trio.to_thread.run_sync(victim.restart)
            if number % 10 == 0:
                await writer.wait_synced(writer.size)
                acknowledged.append(writer.synced)
                assert not claim.waiting
        await writer.wait_synced(writer.size)
        for server in three_servers:
            await has(server, "d", "x", content)
        await until(
            lambda: all(one.state == "in sync" for one in store.members()), "the killed one is in sync"
        )
    assert acknowledged[-1] <= len(content)


@pytest.mark.process
async def test_kill_9_of_all_loses_nothing_acknowledged(three_servers: Processes) -> None:
    # EVIDENCE-OF: P-1
    await init_store(url_of(three_servers))
    async with claimed(three_servers) as (_, claim):
        writer = claim.open_object("x")
        content = b"".join(map(record_of, range(500)))
        for number in range(500):
            writer.append(record_of(number))
        await writer.wait_synced(writer.size // 2)
        acknowledged = writer.synced
        for server in three_servers:
            server.kill()
        for server in three_servers:
            await trio.to_thread.run_sync(server.restart)
        copies = [await content_of(server, "d", "x") for server in three_servers]
        assert sum(len(copy) >= acknowledged for copy in copies) >= 2
        assert all(content.startswith(copy) for copy in copies)
        await writer.wait_synced(writer.size)
        assert await content_of(three_servers[0], "d", "x") in (content, copies[0])


@pytest.mark.process
async def test_a_stopped_member_costs_the_others_nothing(three_servers: Processes) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three_servers))
    async with claimed(three_servers) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(record_of(0)))
        three_servers[2].pause()
        try:
            content = record_of(0)
            begin = trio.current_time()
            for number in range(1, 200):
                content += record_of(number)
                await writer.wait_synced(writer.append(record_of(number)))
            assert trio.current_time() - begin < 100, "each append waited for the one that stands still"
            assert not claim.waiting
            lagging = next(one for one in store.members() if one.address == three_servers[2].location)
            assert lagging.lag_bytes >= 190_000
        finally:
            three_servers[2].resume()
        await has(three_servers[2], "d", "x", content)


@pytest.mark.process
async def test_a_stopped_member_holds_up_no_opening_looking_or_claiming(three_servers: Processes) -> None:
    # EVIDENCE-OF: P-10
    await init_store(url_of(three_servers))
    three_servers[0].pause()
    try:
        begin = trio.current_time()
        async with claimed(three_servers) as (store, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"abc"))
            assert (await store.inspect("d")).reachable == 2
            assert await claim.read("x", 0, 9) == b"abc"
        assert trio.current_time() - begin < 3
    finally:
        three_servers[0].resume()


@pytest.mark.process
async def test_with_two_stopped_members_it_reports_that_it_waits(three_servers: Processes) -> None:
    await init_store(url_of(three_servers))
    async with claimed(three_servers) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a"))
        for server in three_servers[1:]:
            server.pause()
        try:
            size = writer.append(b"b")
            begin = trio.current_time()
            await until(lambda: claim.waiting, "waiting although both are connected")
            assert trio.current_time() - begin >= waiting_after_s - 0.5
        finally:
            for server in three_servers[1:]:
                server.resume()
        await writer.wait_synced(size)
        assert not claim.waiting


@pytest.mark.process
async def test_a_member_that_slept_through_a_take_over_does_not_help_the_older_writer(
    three_servers: Processes,
) -> None:
    # EVIDENCE-OF: P-4
    await init_store(url_of(three_servers))
    async with claimed(three_servers, epoch=1) as (_, old):
        zombie = old.open_object("x")
        await zombie.wait_synced(zombie.append(b"old"))
        three_servers[0].pause()
        async with claimed(three_servers[1:], epoch=2) as (_, new):
            fresh = new.open_object("y")
            await fresh.wait_synced(fresh.append(b"new"))
            three_servers[0].resume()
            with pytest.raises(FencedError):  # noqa: PT012 - the first or a later one
                while True:
                    await zombie.wait_synced(zombie.append(b"zombie"))
            assert zombie.synced == 3

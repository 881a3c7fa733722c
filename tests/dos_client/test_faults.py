"""Writers go on while servers are killed, stopped, wiped, cut off, and answers are lost.

Real processes where a signal matters, threads and proxies elsewhere. A killed server keeps port and data
directory.
"""

import shutil
from collections.abc import Awaitable, Callable

import pytest
import trio

from dos_client import init_store, open_store
from dos_client.core.claim import ClaimState
from dos_client.core.window import Chunk, append_head
from dos_client.limits import waiting_after_s, window_bytes_max
from dos_client.sessions.connection import open_connection
from dos_protocol.errors import FencedError
from tests.dos_client.support import (
    ThreadServer,
    caught_up,
    claimed,
    content_of,
    has,
    new_writer,
    until,
    url_of,
)
from tests.support.proxy import Way, proxies
from tests.support.servers import ServerProcess, three_servers  # noqa: F401

pytestmark = pytest.mark.trio
Processes = list[ServerProcess]
Threads = list[ThreadServer]


def record_of(number: int) -> bytes:
    """A record that is unlike every other, about 1000 bytes."""
    return b"%08d" % number * 125


@pytest.mark.process
async def test_kill_9_of_one_of_three_loses_nothing_and_stops_nothing(three_servers: Processes) -> None:  # noqa: F811
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
async def test_kill_9_of_all_loses_nothing_acknowledged(three_servers: Processes) -> None:  # noqa: F811
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
async def test_without_a_quorum_it_waits_and_continues_automatically(three_servers: Processes) -> None:  # noqa: F811
    # EVIDENCE-OF: P-10
    await init_store(url_of(three_servers))
    async with claimed(three_servers) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        for server in three_servers[:2]:
            await trio.to_thread.run_sync(server.kill)
        await until(lambda: claim.waiting, "the writer says that it waits")
        assert claim.state is ClaimState.WAITING
        size = writer.append(b" and after")
        await until(
            lambda: any("cannot connect" in one.error for one in store.members()), "the error is shown"
        )
        assert writer.synced == 6
        await caught_up(store)
        await trio.to_thread.run_sync(three_servers[0].restart)
        await writer.wait_synced(size)
        await claim.wait_quorum()
        assert not claim.waiting
        await has(three_servers[0], "d", "x", b"before and after")


@pytest.mark.process
async def test_a_stopped_member_costs_the_others_nothing(three_servers: Processes) -> None:  # noqa: F811
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
async def test_a_stopped_member_holds_up_no_opening_looking_or_claiming(three_servers: Processes) -> None:  # noqa: F811
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
async def test_with_two_stopped_members_it_reports_that_it_waits(three_servers: Processes) -> None:  # noqa: F811
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
    three_servers: Processes,  # noqa: F811
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


async def test_a_member_far_behind_the_window_is_filled_from_another(three: Threads) -> None:
    # EVIDENCE-OF: P-9, P-10
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"first"))
        for server in three:
            await has(server, "d", "x", b"first")
        await trio.to_thread.run_sync(three[2].kill)
        block = bytes(range(256)) * 256
        for _ in range(3 * window_bytes_max // len(block)):
            writer.append(block)
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        target = claim.targets["x"]
        assert target.window is not None
        assert target.window.retained_bytes <= window_bytes_max + 2_000_000, "memory is bounded"
        await trio.to_thread.run_sync(three[2].restart)
        await until(lambda: all(one.state == "in sync" for one in store.members()), "all in sync")
        await writer.wait_synced(writer.append(b"last"))
        await has(three[2], "d", "x", b"first" + block * (3 * window_bytes_max // len(block)) + b"last")


async def test_a_wiped_member_does_not_count(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"kept"))
        await trio.to_thread.run_sync(three[2].kill)
        shutil.rmtree(three[2].data)
        await trio.to_thread.run_sync(three[2].restart)
        await until(
            lambda: any("another server answers at this address" in one.error for one in store.members()),
            "the wiped one is recognised",
        )
        await trio.to_thread.run_sync(three[1].kill)
        size = writer.append(b"?")
        await until(lambda: claim.waiting, "one member and a wiped one are no quorum")
        assert writer.synced == 4
        assert await names_on(three[2]) == []
        await trio.to_thread.run_sync(three[1].restart)
        await writer.wait_synced(size)
    async with open_store(url_of(three)) as store:
        assert bytes.fromhex(three[2].server_id) not in (await store.inspect("d")).answers


async def names_on(server: ThreadServer) -> list[str]:
    async with open_connection(server.location) as connection:
        return [info.name for info in (await connection.open_directory("d")).entries]


async def test_a_lost_answer_leaves_exactly_one_copy(three: Threads) -> None:
    # EVIDENCE-OF: P-3, P-10
    async with proxies(three) as between:
        url = url_of(between)
        await init_store(url)
        async with claimed(three, url=url) as (_, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"one "))
            for proxy in between:
                proxy.lose(Way.TO_CLIENT)
            size = writer.append(b"two ")
            for server in three:
                await has(server, "d", "x", b"one two ")
            assert writer.synced == 4, "the servers have acknowledged, and nobody heard it"
            for proxy in between:
                proxy.heal()
            await writer.wait_synced(size)
            await writer.wait_synced(writer.append(b"three"))
            for server in three:
                await has(server, "d", "x", b"one two three")


async def test_a_request_lost_on_its_way_is_sent_again_once(three: Threads) -> None:
    # EVIDENCE-OF: P-3
    async with proxies(three) as between:
        url = url_of(between)
        await init_store(url)
        async with claimed(three, url=url) as (_, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"one "))
            for proxy in between:
                proxy.lose(Way.TO_SERVER)
            size = writer.append(b"two")
            await until(lambda: sum(any(c.torn for c in p.connections) for p in between) >= 2, "it is lost")
            for proxy in between:
                proxy.heal()
            await writer.wait_synced(size)
            for server in three:
                await has(server, "d", "x", b"one two")


async def test_connections_cut_all_the_time_leave_the_writers_bytes_in_order(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-3
    async with proxies(three) as between:
        url = url_of(between)
        await init_store(url)
        async with claimed(three, url=url) as (_, claim):
            writer, content = claim.open_object("x"), b""
            for number in range(2_000):
                content += record_of(number)
                writer.append(record_of(number))
                if number % 50 == 0:
                    between[number // 50 % 3].cut()
                    await trio.sleep(0.005)
            await writer.wait_synced(writer.size)
            for server in three:
                await has(server, "d", "x", content)


async def test_a_member_with_another_content_is_broken_and_never_counts(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    await put_behind_the_stores_back(three[2], "x", b"other")
    async with claimed(three, epoch=2) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"mine, longer than the other"))
        await until(lambda: any(one.state == "broken" for one in store.members()), "it is shown as broken")
        broken = next(one for one in store.members() if one.state == "broken")
        assert broken.address == three[2].location
        assert "d/x on this member" in broken.error
        await trio.to_thread.run_sync(three[1].kill)
        size = writer.append(b"?")
        await until(lambda: claim.waiting, "a broken copy makes no quorum")
        assert writer.synced < size
        assert await content_of(three[2], "d", "x") == b"other"
        await trio.to_thread.run_sync(three[1].restart)
        await writer.wait_synced(size)


async def put_behind_the_stores_back(server: ThreadServer, name: str, data: bytes) -> None:
    """Bytes of no writer of the store, as a server with a damaged history would hold them."""
    async with open_connection(server.location) as connection:
        await connection.claim("d", 1, new_writer())
        connection.on_durability_ack = lambda mark: synced.set() if mark.synced == len(data) else None
        synced = trio.Event()
        connection.post(append_head(name, 1, Chunk(0, 0, data)), data)
        await synced.wait()


async def test_a_shorter_copy_of_another_content_is_unmasked_by_another_member(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    await put_behind_the_stores_back(three[2], "x", b"other")
    await trio.to_thread.run_sync(three[2].kill)
    async with claimed(three, epoch=2) as (store, claim):
        writer = claim.open_object("x")
        for _ in range(3 * window_bytes_max // 65_536):
            writer.append(bytes(65_536))
            await writer.wait_room()
        await writer.wait_synced(writer.size)
        await trio.to_thread.run_sync(three[2].restart)
        await until(lambda: any(one.state == "broken" for one in store.members()), "it is shown as broken")
    assert await content_of(three[2], "d", "x") == b"other"


async def test_a_member_that_takes_nothing_for_a_while_falls_behind_and_catches_up(three: Threads) -> None:
    # EVIDENCE-OF: P-9, P-10
    async with proxies(three) as between:
        await init_store(url_of(between))
        async with claimed(three, url=url_of(between)) as (_, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"begin"))
            between[2].stall()
            block = bytes(range(256)) * 256
            for _ in range(4 * window_bytes_max // len(block)):
                writer.append(block)
                await writer.wait_room()
            await writer.wait_synced(writer.size)
            target = claim.targets["x"]
            assert target.window is not None
            assert target.window.base > target.sizes[bytes.fromhex(three[2].server_id)] + window_bytes_max
            between[2].heal()
            await writer.wait_synced(writer.append(b"end"))
            await has(three[2], "d", "x", b"begin" + block * (4 * window_bytes_max // len(block)) + b"end")


async def test_one_server_at_two_members_addresses_counts_once(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    async with proxies(three) as between:
        await init_store(url_of(between))
        async with claimed(three, url=url_of(between)) as (store, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"kept"))
            between[2].refuse()
            between[0].target = three[1].address
            for proxy in between:
                proxy.cut()
            size = writer.append(b"?")
            await has(three[1], "d", "x", b"kept?")
            await until(
                lambda: any("the record names" in one.error for one in store.members()), "it is recognised"
            )
            await until(lambda: claim.waiting, "one server is no quorum")
            assert writer.synced == 4
            between[2].heal()
            await writer.wait_synced(size)


async def test_whoever_waits_when_the_claim_is_lost_receives_it(three: Threads) -> None:
    # EVIDENCE-OF: P-4
    async with proxies(three) as between:
        await init_store(url_of(between))
        async with claimed(three, url=url_of(between)) as (_, old):
            writer = old.open_object("x")
            await writer.wait_synced(writer.append(b"kept"))
            for proxy in between:
                proxy.lose(Way.TO_SERVER)
            raised = []

            async def wait(call: Callable[[int], Awaitable[None]]) -> None:
                with pytest.raises(FencedError):
                    await call(9)
                raised.append(call)

            newer = new_writer()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, writer.wait_synced)
                nursery.start_soon(wait, writer.wait_received)
                writer.append(b"never")
                for server in three:
                    async with open_connection(server.location) as direct:
                        await direct.claim("d", 2, newer)
                for proxy in between:
                    proxy.cut()
                    proxy.heal()
                await until(lambda: len(raised) == 2, "both have heard it")
            assert writer.synced == 4


async def test_a_single_member_store_survives_its_servers_restart(alone: ThreadServer) -> None:
    # EVIDENCE-OF: P-1, P-10
    await init_store(alone.url)
    async with claimed([alone]) as (_, claim):
        writer = claim.open_object("x")
        content = b""
        for number in range(300):
            content += record_of(number)
            writer.append(record_of(number))
            if number == 100:
                await trio.to_thread.run_sync(alone.restart)
        await writer.wait_synced(writer.size)
        await has(alone, "d", "x", content)

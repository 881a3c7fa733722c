"""Writers go on while servers are wiped, cut off and fall behind, and while answers are lost.

Servers in threads and proxies. A stopped server keeps port and data directory.
"""

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio

from dos_client import init_store, open_store
from dos_client.core.window import Chunk, append_frame
from dos_client.limits import window_bytes_max
from dos_client.sessions.connection import open_connection
from dos_protocol.errors import FencedError
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    claimed,
    claimed_through_proxies,
    content_of,
    has,
    new_writer,
    record_of,
    until,
    url_of,
)
from tests.support.proxy import Proxy, Way
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.trio
Processes = list[ServerProcess]


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


@contextmanager
def losing(between: list[Proxy], way: Way) -> Iterator[None]:
    """Nothing gets through the proxies this way, until they are healed at the end."""
    for proxy in between:
        proxy.lose(way)
    yield
    for proxy in between:
        proxy.heal()


async def test_a_request_lost_on_its_way_is_sent_again_once(three: Threads) -> None:
    # EVIDENCE-OF: P-3
    async with claimed_through_proxies(three) as (between, _, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"one "))
        with losing(between, Way.TO_SERVER):
            size = writer.append(b"two")
            await until(lambda: sum(any(c.torn for c in p.connections) for p in between) >= 2, "it is lost")
        await writer.wait_synced(size)
        for server in three:
            await has(server, "d", "x", b"one two")


async def test_connections_cut_all_the_time_leave_the_writers_bytes_in_order(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-3
    async with claimed_through_proxies(three) as (between, _, claim):
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
        connection.post(*append_frame(name, 1, Chunk(0, 0, data)))
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
    async with claimed_through_proxies(three) as (between, _, claim):
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
    async with claimed_through_proxies(three) as (between, store, claim):
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
    async with claimed_through_proxies(three) as (between, _, old):
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

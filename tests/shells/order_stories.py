"""Stories for `orders.py`: servers and clients, and what must hold in any order."""

from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import trio

from dos_client import open_store
from dos_client.core.claim import ClaimState
from dos_client.membership.replacing import add_spare
from dos_client.sessions.connection import Connection, open_connection
from dos_protocol.errors import BrokenConnectionError, FencedError
from dos_server.memory.network import here
from journal import ChainWriter, Op, Record, inspect_chain, take_over
from tests.shells.ordered_store import ordered_hosts, ordered_store
from tests.shells.orders import Orders, Story
from tests.sim.store.clients import numbers_of

WRITER = bytes(15) + b"w"
SETTLED_S = 1.0
"""After this time, what a store does on its own has ended."""


# The server: writes, syncs, acks, connections, a power cut


def power(log_bytes: int = 0) -> Story:
    async def story(orders: Orders) -> None:
        """A connection is reset and the power fails, at any moment: what was acknowledged is there
        afterwards.
        """
        written: dict[str, bytes] = {"a": b"", "b": b""}
        acknowledged: dict[str, int] = {}
        async with ordered_store(orders, 1, log_bytes=log_bytes) as (server,):
            async with (
                open_store(server.url) as store,
                await store.claim("d", 1, WRITER) as claim,
                trio.open_nursery() as nursery,
            ):
                logs = [claim.open_object(name) for name in written]
                await trio.sleep(SETTLED_S)

                async def write(log: Any, number: int) -> None:
                    for step in range(3):
                        data = bytes([65 + step]) * (1 + 600 * number + step)
                        written[log.name] += data
                        size = log.append(data)
                        await orders.point(f"{log.name} continues")
                        if step == number:
                            await log.wait_synced(size)

                async def reset() -> None:
                    await orders.point("the connection is reset", late=True)
                    sockets = server.host.network.sockets
                    server.host.network.reset([one for one in sockets if one.host == "client"][-1])

                async def fail() -> None:
                    await orders.point("the power fails", late=True)
                    acknowledged.update({log.name: log.synced for log in logs})
                    server.power_cut()
                    nursery.cancel_scope.cancel()

                orders.begin()
                for number, log in enumerate(logs):
                    nursery.start_soon(write, log, number)
                nursery.start_soon(reset)
                nursery.start_soon(fail)
            await server.restart()
            async with open_store(server.url) as store:
                for name, size in acknowledged.items():
                    if size:
                        data = await store.read("d", name, 0, 1 << 20)
                        assert len(data) >= size, f"{name} was acknowledged up to {size}, and has {len(data)}"
                        assert written[name].startswith(data)

    return story


async def connections_reset(orders: Orders) -> None:
    """A connection is reset at any moment of a writer: it opens another one, and all is synced soon."""
    async with (
        ordered_store(orders, 1) as (server,),
        open_store(server.url) as store,
        await store.claim("d", 1, WRITER) as claim,
        trio.open_nursery() as nursery,
    ):
        logs = [claim.open_object(name) for name in "ab"]
        await trio.sleep(SETTLED_S)

        async def reset() -> None:
            await orders.point("the connection is reset", late=True)
            sockets = server.host.network.sockets
            server.host.network.reset([one for one in sockets if one.host == "client"][-1])

        orders.begin()
        nursery.start_soon(reset)
        began = trio.current_time()
        for number in range(3):
            for log in logs:
                log.append(bytes(500 + 500 * number))
                await orders.point("the writer continues")
        for log in logs:
            await log.wait_synced(log.size)
        assert trio.current_time() < began + 5


async def claims_and_power(orders: Orders) -> None:
    """A claim that was granted before the power failed holds afterwards."""
    granted: list[int] = []
    async with ordered_store(orders, 1) as (server,):
        async with open_store(server.url) as store, trio.open_nursery() as nursery:
            await trio.sleep(SETTLED_S)

            async def claim() -> None:
                for epoch in (1, 2):
                    async with await store.claim("d", epoch, WRITER):
                        granted.append(epoch)

            async def fail() -> None:
                await orders.point("the power fails", late=True)
                server.power_cut()
                nursery.cancel_scope.cancel()

            orders.begin()
            nursery.start_soon(claim)
            nursery.start_soon(fail)
        await server.restart()
        async with open_store(server.url) as store:
            assert (await store.inspect("d")).epoch_seen >= max(granted, default=0)


async def readers_leave(orders: Orders) -> None:
    """The connection of one of two readers is reset at any moment. The other reader gets every byte, and
    afterwards the server holds no memory for either.
    """
    content = bytes(range(200)) * 500
    async with ordered_store(orders, 1) as (server,), open_store(server.url) as store:
        async with await store.claim("d", 1, WRITER) as claim:
            log = claim.open_object("log")
            await log.wait_synced(log.append(content))
        await trio.sleep(SETTLED_S)
        whole: list[bool] = []

        async def get(connection: Connection, offset: int) -> None:
            found = await connection.get("log", offset, 20_000)
            whole.append(found == content[offset : offset + len(found)] != b"")

        async def read(name: str) -> None:
            here.set(name)
            try:
                async with open_connection(server.address, client=name) as connection:
                    await connection.open_directory("d")
                    async with trio.open_nursery() as nursery:
                        for number in range(3):
                            nursery.start_soon(get, connection, 20_000 * number)
            except* BrokenConnectionError:
                assert name == "one"

        async def reset() -> None:
            await orders.point("a connection is reset", late=True)
            network = server.host.network
            for socket in [one for one in network.sockets if one.host == "one"]:
                network.reset(socket)

        orders.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "one")
            nursery.start_soon(read, "two")
            nursery.start_soon(reset)
        await trio.sleep(SETTLED_S)
        assert all(whole)
        assert len(whole) >= 3
        held = server.host.server
        assert held is not None
        assert (held._reads._reserved_bytes, held._reads.waiting, held.outgoing.held) == (0, {}, 0)


# The client: acks that make room, records that change, take-overs


def burst(limit: int) -> Story:
    async def story(orders: Orders) -> None:
        """More is appended than may be in flight. All is sent at once, whenever acks come."""
        with mock.patch("dos_client.writing.claim.in_flight_bytes_max", limit):
            async with (
                ordered_store(orders) as servers,
                open_store(servers.url) as store,
                await store.claim("d", 1, WRITER) as claim,
            ):
                log = claim.open_object("log")
                await log.wait_synced(log.append(b"x"))
                await trio.sleep(SETTLED_S)
                orders.begin()
                began = trio.current_time()
                for number in range(4):
                    log.append(bytes(500 + 500 * number))
                    await orders.point("the writer continues", late=True)
                await log.wait_synced(log.size)
                assert trio.current_time() == began, "something was sent only when time had passed"

    return story


async def record_changes_under_a_writer(orders: Orders) -> None:
    """The record changes at any moment of a writer. It continues with sessions of the new one."""
    async with ordered_store(orders) as servers:
        network = servers[0].host.network
        async with (
            ordered_hosts(orders, ["spare"], network) as (spare,),
            open_store(servers.url) as store,
            await store.claim("d", 1, WRITER) as claim,
        ):
            log = claim.open_object("log")
            await log.wait_synced(log.append(b"hello"))
            await trio.sleep(SETTLED_S)
            orders.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(add_spare, servers.url, new=spare.address))
                for number in range(3):
                    log.append(bytes(500 + 500 * number))
                    await orders.point("the writer continues", late=True)
            await store.wait_generation(2)
            await log.wait_synced(log.size)
            await trio.sleep(SETTLED_S)
            assert claim.state is ClaimState.HELD
            assert await store.read("d", "log", 0, 1 << 20, committed=True) == b"hello" + bytes(3_000)


async def record_changes_during_an_inspection(orders: Orders) -> None:
    """A view is counted by the record that is in use when it is returned."""
    async with ordered_store(orders) as servers:
        network = servers[0].host.network
        async with ordered_hosts(orders, ["spare"], network) as (spare,), open_store(servers.url) as store:
            async with await store.claim("d", 1, WRITER) as claim:
                log = claim.open_object("log")
                await log.wait_synced(log.append(b"hello"))
            await trio.sleep(SETTLED_S)
            counted: list[int] = []
            answers = store._open_on_members

            async def noted(*args: Any) -> Any:
                counted.append(store.record.generation)
                return await answers(*args)

            store._open_on_members = noted  # type: ignore[method-assign]
            orders.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(add_spare, servers.url, new=spare.address))
                nursery.start_soon(store.wait_generation, 2)
                view = await store.inspect("d")
                assert counted[-1] == store.record.generation, "it counted answers by an older record"
                assert view.epoch_seen == 1


async def takes_over(orders: Orders) -> None:
    """A chain is taken over at any moment of its writer. What was acknowledged to one of them is found by the
    other one and by readers, in order, and the newer writer is not disturbed.
    """
    async with ordered_store(orders) as servers:
        acknowledged: list[int] = []
        started = trio.Event()

        async def process(name: str, epoch: int) -> None:
            here.set(name)
            with suppress(FencedError):
                async with (
                    open_store(servers.url, client=name) as store,
                    await store.claim("d", epoch, bytes([epoch]) * 16) as claim,
                ):
                    generation = store.record.generation
                    state = await take_over(claim, "state", generation=generation, wait_s=3.0)
                    found = await numbers_of(claim, state, None)
                    writer = await ChainWriter.open(claim, "state", state, generation)
                    assert [one for one in found if one in acknowledged] == acknowledged
                    started.set()
                    for number in range(10 * epoch, 10 * epoch + 4):
                        writer.append(Record(Op.OUTPUT, number))
                        await writer.wait_synced()
                        acknowledged.append(number)
                    await trio.sleep(5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(process, "old", 1)
            await started.wait()
            orders.begin()
            nursery.start_soon(process, "new", 2)
        async with open_store(servers.url) as store:
            numbers = await numbers_of(store, await inspect_chain(store, "d", "state"), "d")
        assert [one for one in numbers if one in acknowledged] == acknowledged
        assert acknowledged == sorted(acknowledged)
        assert acknowledged[-4:] == [20, 21, 22, 23]

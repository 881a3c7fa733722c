"""Stories for `orders.py`: servers, clients, sinks, readers, and what must hold in any order."""

from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
import trio

from checkpoint.chains.consumer_register import read_register
from checkpoint.chains.output_log import OutputLog
from checkpoint.core.consumers import output_register, query_need
from checkpoint.core.outputs import OutputTime, Publish
from checkpoint.core.region import worker_directory
from dataflow.merging.merge import Merge
from dataflow.merging.order import MergeOrder, ReplicaPlace
from dataflow.merging.replica_stream import ReplicaStream
from dataflow.operators.base import OperatorContext
from dataflow.schema import parse_schema
from dos_client import open_store
from dos_client.core.claim import ClaimState
from dos_client.membership.spares import add_spare
from dos_protocol.errors import FencedError
from dos_server.memory.network import here
from journal import ChainWriter, Op, Record, inspect_chain, take_over
from tests.dataflow.test_two_phase_sink import Output, Place, Sink
from tests.shells.ordered_store import ordered_hosts, ordered_store
from tests.shells.orders import Orders, Story
from tests.sim.store.writer import numbers_of

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


# The client: acks that make room, records that change, take-overs


def burst(limit: int) -> Story:
    async def story(orders: Orders) -> None:
        """More is appended than may be in flight. All is sent at once, whenever acks come."""
        with mock.patch("dos_client.writing.copies.in_flight_bytes_max", limit):
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


# A sink of two phases: the circuit's thread votes while others make durable and show


async def votes_and_commits(orders: Orders) -> None:
    """Whenever the worker ends: what the last committed checkpoint covers is visible afterwards, and no row
    twice.
    """

    class Ordered(Output):
        def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
            orders.block("stages")
            super().stage(transaction, batch)

        def prepare(self, transaction: str) -> None:
            orders.block("prepares")
            super().prepare(transaction)
            orders.block("has prepared")

        def commit(self, transaction: str) -> None:
            orders.block("shows")
            super().commit(transaction)
            orders.block("has shown")

    def context(incarnation: int) -> OperatorContext:
        return OperatorContext(
            "r", "out", 0, 1, bytes(16), (pa.schema([("id", pa.int64())]),), None, incarnation
        )

    place = Place()
    writer = Sink(place, Ordered).open(context(1))
    writer._lock = orders.lock("the output")  # type: ignore[assignment]
    writer._names = orders.lock("the names")  # type: ignore[assignment]
    await orders.thread("reset", lambda: writer.reset_to(None))
    votes: dict[int, Any] = {}
    voted = {number: trio.Event() for number in (1, 2, 3)}
    committed: tuple[int, Any] = (0, None)

    def circuit() -> None:
        for number, event in voted.items():
            orders.block("the next barrier", may=lambda before=number - 1: committed[0] >= before)
            writer.process(pa.record_batch({"id": [number]}))
            votes[number] = writer.prepare(number)
            trio.from_thread.run_sync(event.set)

    async def checkpoints() -> None:
        nonlocal committed
        for number, event in voted.items():
            await event.wait()
            await orders.thread("sync", writer.sync)
            vote = await orders.thread("vote", partial(writer.voted, votes[number]))
            await orders.point("the checkpoint is committed")
            committed = (number, vote)
            nursery.start_soon(orders.thread, f"publish {number}", partial(writer.publish, number))

    async def ends() -> None:
        await orders.point("the worker ends", late=True)
        number, vote = committed
        left = deepcopy(place)
        again = Sink(left).open(context(2))
        again.reset_to(vote)
        again.publish(number)
        assert sorted(left.visible()) == list(range(1, number + 1))

    orders.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orders.thread, "circuit", circuit)
        nursery.start_soon(checkpoints)
        nursery.start_soon(ends)


# A reader of replicas: what it acknowledges is deleted


async def reads_a_replica(orders: Orders) -> None:
    """A row that the reader has not recorded is still needed, as the register of the replica says."""
    schema, region = parse_schema("at timestamp, n bigint"), "r"

    def rows(number: int) -> bytes:
        sink = pa.BufferOutputStream()
        row = {"at": datetime.fromtimestamp(number, UTC), "n": number}
        with pa.ipc.new_stream(sink, schema) as out:
            out.write_batch(pa.RecordBatch.from_pylist([row], schema))
        return bytes(sink.getvalue())

    with mock.patch("checkpoint.limits.query_publish_s", 0.05):
        async with (
            ordered_store(orders, 1) as (server,),
            open_store(server.url) as store,
            await store.claim(worker_directory(region, 0), 1, WRITER) as claim,
        ):
            log = await OutputLog.open(
                claim, "out", Publish.STEP, after_step=0, at=None, generation=1, workers=1
            )
            ends: dict[int, int] = {}
            place = ReplicaPlace("a", server.url, region, "out")
            merge = Merge(MergeOrder((place,), schema, ("at",)))
            recorded = -1

            async def write() -> None:
                for step in range(1, 5):
                    at = OutputTime(step * 1_000_000, step * 1_000_000)
                    await log.append("out", step, 1, step, rows(step), {}, at)
                    ends[at.high] = (await log.synced(step)).size

            async def read() -> None:
                nonlocal recorded
                while recorded < 4_000_000:
                    _, mark = await merge.next()
                    await orders.point("the rows are recorded")
                    recorded = mark
                    merge.recorded(mark)

            async def look() -> None:
                while recorded < 4_000_000:
                    await orders.point("the register is read", late=True)
                    register = await read_register(store, output_register(region, "out"))
                    for query in register.queries.values():
                        needs = query_need(query, "w0000")
                        lost = [high for high, end in ends.items() if high > recorded and end <= needs]
                        assert not lost, f"{lost} are not recorded, and may be deleted"
                    await trio.sleep(0.05)

            connect = partial(open_store, server.url)
            await write()
            orders.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ReplicaStream(place, merge, connect, consumer="c").run)
                nursery.start_soon(read)
                nursery.start_soon(orders.time_passes, 0.06, 8)
                await look()
                nursery.cancel_scope.cancel()

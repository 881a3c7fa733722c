"""Stories for `orders.py`: the coordinator of a region, its sinks, and readers of its output."""

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import trio

from checkpoint.chains.consumer_register import read_register
from checkpoint.chains.output_log import OutputLog
from checkpoint.coordinator.shell import RegionShell, before_claim, listening, run_region
from checkpoint.core.coordination.vocabulary import CheckpointWanted, WorkerEnded
from checkpoint.core.links.messages import (
    Committed,
    Counters,
    RequestCheckpoint,
    Restore,
    Restored,
    ToCoordinator,
    Vote,
)
from checkpoint.core.records.consumers import output_register, query_need
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.records.outputs import OutputTime, Publish
from checkpoint.core.region import CheckpointCommitted, RegionEvent, RegionSpec, worker_directory
from checkpoint.errors import OrphanedError, StaleIncarnationError, StoppedError
from checkpoint.participant import Participant, ParticipantSpec, open_participant
from checkpoint.runtime import replace_runtime
from dataflow.merging.merge import Merge, MergeOrder, ReplicaPlace, ReplicaStream
from dataflow.operators.base import OperatorContext
from dataflow.schema import parse_schema
from dos_client import open_store
from dos_protocol.errors import BrokenConnectionError
from dos_server.memory.network import here
from journal import Position
from tests.checkpoint.manifest_samples import notes
from tests.dataflow.test_two_phase_sink import Output, Place, Sink
from tests.shells.order_stories import WRITER
from tests.shells.ordered_store import ordered_store
from tests.shells.orders import Orders
from tests.shells.region.process import Surroundings

_WORKERS = 2
_COMMITS = 3


class _Process:
    """An attempt of a worker: it restores, votes, and hears of commits. Its syncs are points."""

    def __init__(self, region: "_Region", worker: int, attempt: int) -> None:
        self.region, self.worker, self.attempt = region, worker, attempt
        self.name = f"w{worker}.{attempt}"
        self.scope = trio.CancelScope()
        self.step = 0
        self._scopes: list[trio.CancelScope] = []

    async def run(self) -> None:
        here.set(self.name)
        region = self.region
        spec = ParticipantSpec(
            job=region.spec.name,
            worker=self.worker,
            attempt=self.attempt,
            coordinator=region.address,
            job_key=region.spec.job_key,
        )
        why = "killed"
        with self.scope:
            try:
                async with (
                    open_participant(spec, counters=lambda: Counters(step=self.step + 1)) as control,
                    trio.open_nursery() as nursery,
                ):
                    await control.join(exchange_host=self.name, exchange_port=1)
                    await self._serve(control, nursery)
            except* (StoppedError, OrphanedError, BrokenConnectionError):
                why = ""
        region.ended(self, why)

    async def _serve(self, control: Participant, nursery: trio.Nursery) -> None:
        while True:
            await self.region.orders.point(f"{self.name} looks for an order")
            order = await control.next_order()
            if isinstance(order, Restore):
                for scope in self._scopes:
                    scope.cancel()
                self._scopes.clear()
                self.step = 0 if order.restore is None else order.restore.step
                nursery.start_soon(self._restored, control, self._scope())
            elif isinstance(order, RequestCheckpoint):
                nursery.start_soon(self._vote, control, order, self._scope())
            elif isinstance(order, Committed):
                self.region.heard(order)

    def _scope(self) -> trio.CancelScope:
        """Return a scope that ends with the incarnation."""
        self._scopes.append(trio.CancelScope())
        return self._scopes[-1]

    async def _restored(self, control: Participant, scope: trio.CancelScope) -> None:
        with scope:
            await self.region.orders.point(f"{self.name} has restored")
            await self._report(control, Restored(last_step=self.step))

    async def _vote(self, control: Participant, order: RequestCheckpoint, scope: trio.CancelScope) -> None:
        with scope:
            self.step += 1
            at = Position(order.incarnation, self.step, 0)
            part = WorkerCheckpoint(state=at, steps=at)
            await self.region.orders.point(f"{self.name} has synced")
            self.region.votes.setdefault((order.incarnation, order.checkpoint), {})[self.worker] = part
            vote = Vote(checkpoint=order.checkpoint, step=part.state.size, positions=part)
            await self._report(control, vote)

    async def _report(self, control: Participant, message: ToCoordinator) -> None:
        try:
            await control.report(message)
        except StaleIncarnationError:  # the next order is a Restore
            await trio.sleep_forever()


class _Region:
    """The driver's side, its launcher, the oracle. `votes`: (incarnation, checkpoint) -> worker -> part."""

    standbys = 0

    def __init__(self, orders: Orders, store_url: str, nursery: trio.Nursery) -> None:
        self.orders = orders
        self.spec = RegionSpec(
            name="r",
            workers=_WORKERS,
            store_url=store_url,
            job_key=bytes(32),
            operators=notes(o="o"),
            checkpoint_interval_s=0.2,
            listen_host="driver",
        )
        self.shell = RegionShell(self.spec, self.observe)
        self.address = ("", 0)
        self.votes: dict[tuple[int, int], dict[int, WorkerCheckpoint]] = {}
        self.committed: dict[int, int] = {}
        """Checkpoint -> its incarnation."""
        self.running: dict[int, _Process] = {}
        self.moved = trio.Event()
        self._nursery = nursery

    def observe(self, event: RegionEvent) -> None:
        if isinstance(event, CheckpointCommitted):
            checkpoint = self.shell.last_checkpoint()
            assert checkpoint is not None
            assert checkpoint.workers == self.votes.get((checkpoint.incarnation, checkpoint.number)), (
                "not the votes of its incarnation"
            )
            assert set(checkpoint.workers) == set(range(_WORKERS))
            assert checkpoint.number > max(self.committed, default=0)
            self.committed[checkpoint.number] = checkpoint.incarnation
            self.moved.set()
            self.moved = trio.Event()

    def heard(self, order: Committed) -> None:
        assert self.committed.get(order.checkpoint) == order.incarnation, (
            "a worker hears of a commit that is none"
        )

    # The launcher

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        self.running[worker] = process = _Process(self, worker, attempt)
        self._nursery.start_soon(process.run)

    def cancel(self, worker: int, attempt: int) -> None:
        process = self.running.get(worker)
        if process is not None and process.attempt == attempt:
            process.scope.cancel()

    def ended(self, process: _Process, why: str) -> None:
        self.shell.post(WorkerEnded(process.worker, process.attempt, why or None))

    async def wait_commits(self, more: int) -> None:
        wanted = len(self.committed) + more
        while len(self.committed) < wanted:
            await self.moved.wait()


class _Surroundings(Surroundings):
    """The environment of its processes. What a thread does is a point."""

    def __init__(self, orders: Orders, network: Any) -> None:
        super().__init__(network, Random(1))
        self._orders = orders

    async def in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        await self._orders.point("a thread ends")
        return call(*args)


async def votes_and_resets(orders: Orders) -> None:
    """A worker dies, and a link breaks, at any moment of votes and commits; later, the power of the store
    fails. Each checkpoint has the votes of one incarnation. Workers receive Committed only after the commit.
    More checkpoints follow soon. A committed one is found after the power is back.
    """
    async with ordered_store(orders, 1) as (server,):
        network: Any = server.host.network
        replace_runtime(_Surroundings(orders, network))
        async with trio.open_nursery() as nursery:
            region = _Region(orders, server.url, nursery)
            here.set("driver")

            async def dies() -> None:
                await orders.point("a worker dies", late=True)
                process = region.running[0]
                process.scope.cancel()
                network.process_died(process.name)

            async def breaks() -> None:
                await orders.point("a link breaks", late=True)
                links = [one for one in network.sockets if one.host.startswith("w1.")]
                if links:
                    network.reset(links[-1])

            async def drive() -> None:
                async with listening(region.spec, region.shell) as region.address:
                    await run_region(region.spec, region.shell, region)

            nursery.start_soon(drive)
            await region.wait_commits(1)
            orders.begin()
            region.shell.post(CheckpointWanted())
            nursery.start_soon(dies)
            nursery.start_soon(breaks)
            with trio.fail_after(60):
                await region.wait_commits(_COMMITS)
            region.shell.post(CheckpointWanted())
            await orders.point("the power fails", late=True)
            server.power_cut()
            nursery.cancel_scope.cancel()
        await server.restart()
        async with open_store(server.url) as store:
            seen = (await before_claim(store, region.spec)).seen
            assert seen is not None
            assert seen.number >= max(region.committed)


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

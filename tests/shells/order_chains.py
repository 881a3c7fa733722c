"""Stories for `orders.py`: two workers of a region open their chains, and something fails meanwhile.

Each has a state chain, a steps chain, the chain of an operator's files, and an output log of each kind. What
they find must be that of the checkpoint; after a failure nothing stays open, and the next incarnation finds
the same.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, cast
from unittest import mock

import msgspec
import pytest
import trio

from checkpoint import Restore, WorkerCheckpoint, worker_directory
from checkpoint.chains.chain_store import TakenChain
from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import StepsLog
from checkpoint.core.records.layout import even_layout
from dataflow import Graph, InputSource, LogSink
from dataflow.worker.circuit_thread import Inbox
from dataflow.worker.failures import first_error
from dataflow.worker.layout_change import CopiedState
from dataflow.worker.link_thread import LinkIncarnation, claimed
from dataflow.worker.messages import Shared
from dataflow.worker.spec import WorkerSpec
from dos_client import Claim, Store, open_store
from dos_client.core.claim import ClaimState
from dos_protocol.errors import BrokenConnectionError, FencedError
from dos_server.memory.network import here
from journal import NO_FLOOR, ChainWriter
from journal.writer import WriterState
from tests.checkpoint.manifest_samples import a_checkpoint
from tests.dataflow.filing import Filing
from tests.shells.order_stories import WRITER
from tests.shells.ordered_store import ordered_store
from tests.shells.orders import Orders, Story

_REGION: Final = "r"
_WORKERS: Final = (0, 1)
_CHAINS: Final = {"state", "steps", "files-own", "out-each", "out-whole"}


def _graph() -> Graph:
    graph = Graph("chains")
    rows = graph.source("rows", InputSource("rows", Filing.needs))
    rows.sink("each", LogSink(publish="step"))
    rows.apply("own", Filing()).sink("whole", LogSink())
    return graph


async def _write(store: Store, worker: int) -> WorkerCheckpoint:
    """Write the chains of a first incarnation, which has more than its checkpoint 1, at step 2."""
    async with await store.claim(worker_directory(_REGION, worker), 1, WRITER) as claim:
        state = await StateStore.open(claim, version=0, at=None, generation=1)
        state_at = await state.commit(1, [("own", b"of the checkpoint")])
        await state.commit(2, [("own", b"of none")])
        steps = await StepsLog.open(claim, after_step=0, generation=1)
        for step in (1, 2, 3):
            steps.record(step, 0, {})
        steps_at = await steps.synced(2)
        await steps.synced(3)
        files = await DirectoryStore.open(claim, "own", at=None, generation=1)
        files_at = await files.synced(files.checkpoint(1, 2, 0))
        sinks = {}
        for name, sink in (("each", LogSink(publish="step")), ("whole", LogSink())):
            log = await OutputLog.open(
                claim, name, sink.publish, after_step=0, at=None, generation=1, workers=len(_WORKERS)
            )
            for step in (1, 2, 3):
                await log.append(name, step, 0, step, b"", {})
            sinks[name] = msgspec.to_builtins(await log.synced(2))
            await log.synced(3)
        directories = {"own": files_at.position}
        return WorkerCheckpoint(state=state_at, steps=steps_at, sinks=sinks, directories=directories)


class _Opened:
    """What happens to the chains of all workers. It checks what holds at each moment."""

    def __init__(self) -> None:
        self.begun: dict[bytes, set[str]] = {}
        """Writer of a claim -> the chains that it takes over."""
        self.open: dict[bytes, set[str]] = {}
        self.writers: list[ChainWriter] = []
        self.claims: list[Claim] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        take, opening, made, collect = TakenChain.take, TakenChain.open, ChainWriter.__init__, Claim.collect

        async def taken(claim: Claim, chain: str, **fields: Any) -> TakenChain:
            self.begun.setdefault(claim.writer_id, set()).add(chain)
            return await take(claim, chain, **fields)

        async def opened(one: TakenChain, *args: Any, **fields: Any) -> ChainWriter:
            writer = await opening(one, *args, **fields)
            of = cast("Claim", one.claim).writer_id
            assert self.begun[of] == _CHAINS, f"{one.state.chain} was opened before others were begun"
            self.open.setdefault(of, set()).add(one.state.chain)
            return writer

        def writes(writer: ChainWriter, *args: Any, **fields: Any) -> None:
            made(writer, *args, **fields)
            self.writers.append(writer)

        def collects(claim: Claim, garbage: Any) -> None:
            assert self.open[claim.writer_id] == _CHAINS, "it deletes before all chains are open"
            collect(claim, garbage)

        with (
            mock.patch.object(TakenChain, "take", taken),
            mock.patch.object(TakenChain, "open", opened),
            mock.patch.object(ChainWriter, "__init__", writes),
            mock.patch.object(Claim, "collect", collects),
        ):
            yield

    def nothing_is_left(self) -> None:
        assert {one._state for one in self.writers} <= {WriterState.CLOSED}, "a chain stayed open"
        assert {one.state for one in self.claims} <= {ClaimState.CLOSED, ClaimState.LOST}


class _Region:
    """Two workers, of which each is a client of its own."""

    def __init__(self, stores: dict[int, Store], parts: dict[int, WorkerCheckpoint]) -> None:
        self.opened = _Opened()
        self._graph = _graph()
        self._stores = stores
        self._checkpoint = a_checkpoint(
            number=1, step=2, incarnation=1, parent=0, workers=parts, layout=even_layout(len(_WORKERS))
        )

    async def open(self, worker: int, epoch: int) -> None:
        """Open the chains of a worker, check what they have, and close them."""
        here.set(f"w{worker}")
        floors = dict.fromkeys(sorted(_CHAINS), NO_FLOOR)
        order = Restore(
            job=_REGION,
            incarnation=epoch,
            epoch=epoch,
            checkpoint=1,
            worker=worker,
            restore=self._checkpoint,
            peers=(),
            layout=even_layout(len(_WORKERS)),
            floors=floors,
        )
        spec = WorkerSpec(
            region=_REGION,
            worker=worker,
            attempt=1,
            coordinator=("driver", 1),
            job_key=b"",
            graph=self._graph,
            store_url="",
        )
        store = self._stores[worker]
        links = LinkIncarnation(
            spec, order, cast("Any", None), store, inbox=Inbox(), shared=Shared(), copies=CopiedState()
        )
        links._part = self._checkpoint.workers[worker]
        async with AsyncExitStack() as stack:
            claim = await stack.enter_async_context(claimed(store, order))
            self.opened.claims.append(claim)
            journals = await links._open_chains(claim, stack)
            assert journals.last_step == 3
            async with aclosing(journals.blocks()) as blocks:
                assert [data async for _, _, data in blocks] == [b"of the checkpoint"]
            assert {name: log.last_step for name, log in links._outputs._logs.items()} == {
                "each": 3,
                "whole": 2,
            }
            own = links._directories._stores["own"]
            assert own.replayed_bytes == self._checkpoint.workers[worker].directories["own"].size


@asynccontextmanager
async def _region(orders: Orders) -> AsyncIterator[tuple[_Region, Store]]:
    """Run a region whose chains are written, and another client."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(ordered_store(orders, 1))
        stores = {}
        for worker in _WORKERS:
            here.set(f"w{worker}")
            stores[worker] = await stack.enter_async_context(open_store(servers.url, client=f"w{worker}"))
        here.set("other")
        other = await stack.enter_async_context(open_store(servers.url, client="other"))
        region = _Region(stores, {worker: await _write(other, worker) for worker in _WORKERS})
        with region.opened.watching():
            yield region, other


async def _open_again(region: _Region) -> None:
    region.opened.nothing_is_left()
    async with trio.open_nursery() as nursery:
        for worker in _WORKERS:
            nursery.start_soon(region.open, worker, 4)
    region.opened.nothing_is_left()


async def opens_while_another_claims(orders: Orders) -> None:
    """Another process claims one of two workers at any moment of their openings."""
    async with _region(orders) as (region, other):

        async def opens(worker: int) -> None:
            try:
                await region.open(worker, 2)
            except Exception as error:
                if not isinstance(first_error(error), FencedError) or worker:
                    raise

        async def claims() -> None:
            await orders.point("another process claims", late=True)
            async with await other.claim(worker_directory(_REGION, 0), 3, bytes(15) + b"o"):
                pass

        orders.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claims)
            for worker in _WORKERS:
                nursery.start_soon(opens, worker)
        await _open_again(region)


def opens_while_one_fails(failing: str) -> Story:
    async def story(orders: Orders) -> None:
        """One chain of one of two workers cannot be taken over, which shows at any moment."""
        async with _region(orders) as (region, _):
            take = TakenChain.take

            async def taken(claim: Claim, chain: str, **fields: Any) -> TakenChain:
                taking = take(claim, chain, **fields)
                if chain == failing and claim.directory == worker_directory(_REGION, 0) and claim.epoch == 2:
                    with suppress(BrokenConnectionError):
                        await taking
                    await orders.point(f"{chain} fails", late=True)
                    raise BrokenConnectionError("planted")
                return await taking

            async def fails() -> None:
                with (
                    mock.patch.object(TakenChain, "take", taken),
                    pytest.raises(ExceptionGroup) as failed,
                ):
                    await region.open(0, 2)
                assert first_error(failed.value).args[0] == "planted"

            orders.begin()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails)
                nursery.start_soon(region.open, 1, 2)
            await _open_again(region)

    return story

"""What regions, producers and programs leave in a store, written here without any of them: for tests of the
source.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import trio

from checkpoint.core.layout import even_layout
from checkpoint.core.manifest import Cut, WorkerCut
from checkpoint.core.outputs import Output, OutputHead, Publish, encode_output, output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.manifest_log import cut_record
from dataflow.blocking import open_producer
from dos_client.blocking import BlockingStore
from dos_client.writing.claim import Claim
from journal import ORIGIN, ChainWriter, Op, Position, Record, take_over

_NOTHING = [Record(Op.MARK, ints=(0,))]
Rows = Sequence[Mapping[str, Any]]


def arrow(rows: Rows, schema: pa.Schema) -> bytes:
    """An Arrow stream; b"" without rows."""
    if not rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(list(rows), schema))
    return sink.getvalue().to_pybytes()


def write_steps(
    store: BlockingStore,
    region: str,
    sink: str,
    worker: int,
    steps: Mapping[int, Rows],
    schema: pa.Schema,
    *,
    publish: Publish = Publish.STEP,
    epoch: int = 1,
    back_to: Position | None = None,
    trims: str = "",
    time_ms: int = 1_000,
) -> list[Position]:
    """A segment of a worker's output log, with a step for each; where each step ended. `time_ms` times the
    step is when it was written; `trims`: a segment before it that is not needed any more, and goes.
    """

    async def write() -> list[Position]:
        async with await store.store.claim(
            worker_directory(region, worker), epoch, bytes([epoch]) * 16
        ) as claim:
            writer = await _writer(claim, output_chain(sink), back_to, snapshot=bool(trims))
            ends = []
            async with writer:
                for step, rows in steps.items():
                    head = OutputHead(sink=sink, publish=publish)
                    ints, strings = encode_output(
                        Output(step, step * time_ms, len(rows), 0, head, arrow(rows, schema))
                    )
                    ends.append(writer.append(Record(Op.OUTPUT, ints=ints, strings=strings)))
                for end in ends:
                    await writer.wait_synced(end)
                if trims:
                    await _taken_away(claim, trims)
            return ends

    return store.portal.call(write)


async def _writer(claim: Claim, chain_name: str, at: Position | None, *, snapshot: bool) -> ChainWriter:
    generation = claim.store.record.generation
    chain = await take_over(claim, chain_name, at=at, generation=generation)
    return await ChainWriter.open(
        claim, chain_name, chain, generation, snapshot=_NOTHING if snapshot else None
    )


def write_cuts(store: BlockingStore, region: str, sink: str, cuts: Iterable[Mapping[int, Position]]) -> None:
    """The region's manifest: of each cut where the sink of each worker stood."""

    async def write() -> None:
        async with await store.store.claim(coordinator_directory(region), 1, b"c" * 16) as claim:
            chain = await take_over(claim, MANIFEST_CHAIN, generation=store.record.generation)
            writer = await ChainWriter.open(
                claim, MANIFEST_CHAIN, chain, store.record.generation, pipelined=False
            )
            async with writer:
                for number, ends in enumerate(cuts, 1):
                    workers = {
                        worker: WorkerCut(
                            state=Position(1, 0, 0),
                            steps=Position(1, 0, 0),
                            sinks={sink: msgspec.to_builtins(end)},
                        )
                        for worker, end in ends.items()
                    }
                    cut = Cut(
                        cut=number,
                        step=number,
                        incarnation=1,
                        final=False,
                        wall_time_ms=0,
                        workers=workers,
                        layout=even_layout(len(workers)),
                        fingerprint="f",
                        operators={},
                        parent=number - 1,
                    )
                    await writer.wait_synced(writer.append(cut_record(cut)))

    store.portal.call(write)


def write_batches(
    store: BlockingStore,
    application: str,
    handle: str,
    producer: str,
    batches: Iterable[Rows],
    schema: pa.Schema,
) -> None:
    """Batches of a producer, each recorded."""
    with open_producer(store, application, handle, producer, schema) as writer:
        for rows in batches:
            writer.wait_recorded(writer.send(rows))


def write_objects(
    store: BlockingStore, directory: str, objects: Mapping[str, bytes], *, epoch: int = 1
) -> None:
    """Objects of a directory, written by one claim, appended to if they are there."""
    with store.claim(directory, epoch, bytes([epoch]) * 16) as claim:
        for name, data in objects.items():
            writer = claim.open_object(name)
            writer.wait_synced(writer.append(data))


def take_away(store: BlockingStore, directory: str, name: str, *, epoch: int) -> None:
    """Delete an object from every member."""

    async def take() -> None:
        async with await store.store.claim(directory, epoch, bytes([epoch]) * 16) as claim:
            await _taken_away(claim, name)

    store.portal.call(take)


async def _taken_away(claim: Claim, name: str) -> None:
    """As a writer does with what nobody needs any more."""
    claim.collect(lambda one: one == name)
    while any(  # noqa: ASYNC110
        name in objects for objects in (await claim.store.look(claim.directory)).answers.values()
    ):
        await trio.sleep(0.01)  # nobody tells that an object went


def lines(rows: Rows) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


__all__ = [
    "ORIGIN",
    "arrow",
    "lines",
    "take_away",
    "write_batches",
    "write_cuts",
    "write_objects",
    "write_steps",
]

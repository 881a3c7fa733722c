"""Writes what regions, producers and programs store, without any of them, for tests of the source."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import trio

from checkpoint import OperatorNote
from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.chains.manifest_log import checkpoint_record
from checkpoint.chains.state_blocks import block_schema, encode_block, make_block
from checkpoint.chains.state_store import StateStore
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import Checkpoint, SplitPosition, WorkerCheckpoint
from checkpoint.core.records.outputs import Output, OutputHead, Publish, encode_output, output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.key_hash import hash_keys
from dataflow.blocking import open_producer
from dos_client.blocking import BlockingObjectWriter, BlockingStore
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
    line: int = 0,
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
                    head = OutputHead(sink=sink, publish=publish, line=line, workers=1)
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


def write_checkpoints(
    store: BlockingStore,
    region: str,
    sink: str,
    checkpoints: Iterable[Mapping[int, Position]],
    *,
    states: Sequence[Mapping[int, Position]] = (),
    operators: Mapping[str, str] | None = None,
    retain: int = 2,
    files: Mapping[str, Sequence[Position]] | None = None,
) -> None:
    """Write the region's manifest: the positions of each worker's sink and state in each checkpoint.
    `operators`: name -> kind. `retain`: how many checkpoints are retained. `files`: operator -> positions of
    its directory.
    """
    kept = files or {}

    async def write() -> None:
        async with await store.store.claim(coordinator_directory(region), 1, b"c" * 16) as claim:
            chain = await take_over(claim, MANIFEST_CHAIN, generation=store.record.generation)
            writer = await ChainWriter.open(
                claim, MANIFEST_CHAIN, chain, store.record.generation, pipelined=False
            )
            async with writer:
                for number, ends in enumerate(checkpoints, 1):
                    workers = {
                        worker: WorkerCheckpoint(
                            state=states[number - 1][worker] if states else Position(1, 0, 0),
                            steps=Position(1, 0, 0),
                            sinks={sink: msgspec.to_builtins(end)},
                            sources={"lines": {f"part{worker}": SplitPosition(10 * number)}},
                            directories={name: at[number - 1] for name, at in kept.items()},
                            floors={output_chain(sink): (1, 0)},
                        )
                        for worker, end in ends.items()
                    }
                    checkpoint = Checkpoint(
                        number=number,
                        step=number,
                        incarnation=max((at.epoch for at in states[number - 1].values()), default=1)
                        if states
                        else 1,
                        final=False,
                        wall_time_ms=1000 * number,
                        workers=workers,
                        layout=even_layout(len(workers)),
                        operators={name: OperatorNote(kind=kind) for name, kind in (operators or {}).items()},
                        parent=number - 1,
                        retained=tuple(range(max(number - retain + 1, 1), number + 1)),
                        irrevocable={},
                    )
                    await writer.wait_synced(writer.append(checkpoint_record(checkpoint)))

    store.portal.call(write)


Changes = Mapping[str, Mapping[str, int | None]]
"""operator -> {key: value, None for deleted}"""
STATE = block_schema(
    pa.schema([("word", pa.string())]), pa.schema([("count", pa.int64()), ("_seen", pa.int64())])
)


def state_of(changes: Mapping[str, int | None], schema: pa.Schema = STATE) -> list[bytes]:
    """Encoded blocks of a table of counts."""
    keys = pa.array(list(changes), pa.string())
    values = [pa.array(list(changes.values()), pa.int64())] * (len(schema) - 3)
    dead = np.array([value is None for value in changes.values()])
    return encode_block(make_block(schema, [keys], hash_keys([keys]), values, dead))


def write_state(
    store: BlockingStore,
    region: str,
    worker: int,
    checkpoints: Sequence[Changes],
    *,
    epoch: int = 1,
    at: tuple[int, Position] | None = None,
    snapshots: Mapping[int, Changes] | None = None,
    schema: pa.Schema = STATE,
) -> list[Position]:
    """Write a worker's state: the changes of each checkpoint, from number 1 or from the checkpoint and
    position `at` on, and a snapshot after each checkpoint in `snapshots`. Return the end of each checkpoint.
    """
    first = 1 if at is None else at[0] + 1

    async def write() -> list[Position]:
        async with await store.store.claim(
            worker_directory(region, worker), epoch, bytes([epoch]) * 16
        ) as claim:
            state = await StateStore.open(
                claim,
                version=first - 1,
                at=None if at is None else at[1],
                generation=store.record.generation,
            )
            ends = []
            for checkpoint, changes in enumerate(checkpoints, first):
                blocks = [(name, data) for name, rows in changes.items() for data in state_of(rows, schema)]
                ends.append(await state.commit(checkpoint, blocks))
                for name, rows in (snapshots or {}).get(checkpoint, {}).items():
                    await state.snapshot([(name, data) for data in state_of(rows, schema)])
            await state.aclose()
            return ends

    return store.portal.call(write)


def write_directory(
    store: BlockingStore, region: str, worker: int, operator: str, checkpoints: int
) -> list[Position]:
    """Write an operator's files: a line more in each checkpoint, and one after all. Return the positions."""

    async def write() -> list[Position]:
        async with await store.store.claim(worker_directory(region, worker), 1, b"d" * 16) as claim:
            directory = await DirectoryStore.open(
                claim, operator, at=None, generation=store.record.generation
            )
            ends = []
            for checkpoint in range(1, checkpoints + 1):
                await directory.append([Record(Op.WRITE, ints=(checkpoint - 1,), strings=(b"log", b"x"))])
                ends.append(
                    (
                        await directory.synced(directory.checkpoint(checkpoint, 10 * checkpoint, checkpoint))
                    ).position
                )
            await directory.aclose()
            return ends

    return store.portal.call(write)


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
            there = max((has[name].synced for has in claim.answers.values() if name in has), default=0)
            if there:
                held = claim.read(name, 0, there)
                opened = store.portal.call_sync(claim.claim.resume_object, name, 0, 0, held)
                writer = BlockingObjectWriter(store.portal, opened)
            else:
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
        name in objects for objects in (await claim.store.inspect(claim.directory)).answers.values()
    ):
        await trio.sleep(0.01)  # nobody tells that an object went


def pretended(directory: Path, name: str, version: str) -> Path:
    """A directory that, first on the path, makes a distribution look like another version."""
    there = directory / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    there.parent.mkdir(parents=True)
    there.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return directory


def lines(rows: Rows) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


__all__ = [
    "ORIGIN",
    "STATE",
    "arrow",
    "lines",
    "pretended",
    "take_away",
    "write_batches",
    "write_checkpoints",
    "write_objects",
    "write_state",
    "write_steps",
]

"""The data that `./run bench spark` reads: the output of a region, JSON lines, and a journal, on three real
servers.

The bytes are written as a region, a producer or a journal writes them, without Spark.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint.chains.output_log import OutputLog  # noqa: E402
from checkpoint.core.records.outputs import Publish  # noqa: E402
from checkpoint.core.region import worker_directory  # noqa: E402
from dos_client import init_store, open_store  # noqa: E402
from journal import ChainWriter, Op, Record, take_over  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

SERVERS: Final = 3
WORKERS: Final = 2
ROW: Final = "key string, number long"
SCHEMA: Final = pa.schema([("key", pa.string()), ("number", pa.int64())])
STEP_ROWS: Final = 50_000
"""About the number of rows that a worker at full speed emits in a step; also the size of a prebuilt batch."""
REGION: Final = "rows"
SINK: Final = "out"
LINES: Final = "lines"
JOURNALS: Final = "journals"
CHAIN: Final = "records"
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_WRITER: Final = b"benchmark-writer"
_KEYS: Final = 100_000
_SEED: Final = 8


def block_of(rows: int) -> pa.RecordBatch:
    """Return a batch of `rows` rows. Its content is the same in every call."""
    rng = np.random.default_rng(_SEED)
    keys = [f"k{key:07}" for key in rng.integers(0, _KEYS, rows)]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(rng.integers(0, 1 << 40, rows))], schema=SCHEMA
    )


def json_of(block: pa.RecordBatch) -> bytes:
    """Return the same rows as JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in block.to_pylist())


def arrow_of(block: pa.RecordBatch) -> bytes:
    """Return the same rows as the Arrow stream that a sink writes into its log."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    return sink.getvalue().to_pybytes()


@contextmanager
def running_store(folder: Path) -> Iterator[str]:
    """Run a store of three servers on this machine while the block runs. Yields its URL."""
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(SERVERS)]
        url = url_of(servers)
        trio.run(init_store, url)
        yield url


def write_output(url: str, steps: int, block: pa.RecordBatch) -> None:
    """Write the output of `steps` steps of each worker of the region, one block per step."""
    data = arrow_of(block)

    async def write() -> None:
        async with open_store(url) as store:
            for worker in range(WORKERS):
                async with await store.claim(worker_directory(REGION, worker), 1, _WRITER) as claim:
                    log = await OutputLog.open(
                        claim,
                        SINK,
                        Publish.STEP,
                        after_step=0,
                        at=None,
                        generation=store.record.generation,
                        workers=WORKERS,
                    )
                    for step in range(1, steps + 1):
                        await log.append(SINK, step, block.num_rows, step, data, {})
                    await log.synced(steps)
                    await log.aclose()

    trio.run(write)


def write_objects(url: str, names: Sequence[str], data: bytes, times: int) -> None:
    """Write objects that contain `data` `times` times each, in the directory LINES."""

    async def write() -> None:
        async with open_store(url) as store, await store.claim(LINES, 1, _WRITER) as claim:
            for name in names:
                writer = claim.open_object(name)
                for _ in range(times):
                    writer.append(data)
                    await writer.wait_room()
                await writer.wait_synced(len(data) * times)

    trio.run(write)


def write_files(folder: Path, names: Sequence[str], data: bytes, times: int) -> None:
    """Write the same content as files."""
    folder.mkdir()
    for name in names:
        with (folder / name).open("wb") as file:
            for _ in range(times):
                file.write(data)


def write_journal(url: str, total_bytes: int, record_bytes: int) -> int:
    """Write a chain of about `total_bytes`, in segments of 64 MiB. Returns the number of WRITE records."""
    data = os.urandom(record_bytes - 60)
    count = total_bytes // record_bytes

    async def write() -> None:
        async with open_store(url) as store, await store.claim(JOURNALS, 1, _WRITER) as claim:
            generation = store.record.generation
            chain = await take_over(claim, CHAIN, generation=generation)
            async with await ChainWriter.open(claim, CHAIN, chain, generation) as writer:
                begin = writer.end.size
                for number in range(count):
                    if writer.end.size - begin > SEGMENT_BYTES:
                        await writer.roll()
                        begin = writer.end.size
                    writer.append(Record(Op.WRITE, number % 100, (number * len(data),), (b"/a/file", data)))
                    await writer.wait_room()
                await writer.wait_synced()

    trio.run(write)
    return count

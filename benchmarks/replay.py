"""Measure the replay of a journal of 4 KiB records in one process: from a file, and from a server twice.

python benchmarks/replay.py [--megabytes 200] [--record 4096] [--pairs 5] [--folder DIR] [--json]

Replay means: the bytes are read, both checksums of every record are verified, its fields are decoded, and
the record is applied to a state (bytes written to each of 100 paths).

file the decoder alone on a file in the page cache, as `dos journal verify` reads it restore what a worker
does during a reset: claim, take over at a position, read the chain over loopback, verify all digests, open
a segment there. The chain was written through a store of one server reader what `dos journal dump URL`
does: inspect the chain, which scans the newest segment for its last whole record, then read. So the bytes
are sent twice

Medians are reported; the three run alternately. Exit code 0; 1 if the replay of the file is below `--aim`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from dos_client.store import init_store, open_store
from journal import ChainState, ChainWriter, Op, Position, Record, inspect_chain, read_batches, take_over
from journal.core.record import RecordDecoder, encode_v1
from journal.ports import ClaimPort, StorePort

ROOT = Path(__file__).parent.parent
CHUNK_BYTES = 4 * 1024 * 1024
PATHS = [f"/w/file-{number:02}".encode() for number in range(100)]


@contextmanager
def running_server(data: Path) -> Iterator[str]:
    """Run a server. Yields its URL."""
    command = [sys.executable, "-m", "dos_cli", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        match = re.search(r"at ([\d.]+:\d+),", process.stdout.readline())
        assert match is not None, "the server did not start"
        yield f"dos://{match[1]}"
    finally:
        process.terminate()
        process.wait(30)


def records(total: int, record_bytes: int) -> Iterator[Record]:
    """Return writes to files for a journal of `total` bytes, in records of about `record_bytes`."""
    data = os.urandom(record_bytes - 24 - 8 - 3 * 8 - len(PATHS[0]))
    for number in range(total // record_bytes):
        yield Record(Op.WRITE, number, (number * len(data),), (PATHS[number % len(PATHS)], data))


def apply(state: dict[bytes, int], record: Record) -> None:
    if record.op is Op.WRITE:
        path, data = record.strings
        state[path] = max(state.get(path, 0), record.ints[0] + len(data))


def replay_file(path: Path) -> tuple[int, dict[bytes, int]]:
    """Return the number of records and the state of a journal file."""
    decoder, state, count = RecordDecoder(), dict[bytes, int](), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            for _, record in decoder.feed(chunk):
                apply(state, record)
                count += 1
    if (torn := decoder.finish()) is not None:
        raise torn
    return count, state


async def write_chain(url: str, total: int, record_bytes: int) -> Position:
    await init_store(url)
    async with open_store(url) as store, await store.claim("bench", 1, os.urandom(16)) as claim:
        writer = await ChainWriter.open(claim, "J", None, store.record.generation)
        for record in records(total, record_bytes):
            writer.append(record)
            await writer.wait_room()
        await writer.wait_synced()
        return writer.end


async def read_all(
    reader: ClaimPort | StorePort, chain: ChainState, directory: str | None
) -> tuple[int, dict[bytes, int]]:
    state, count = dict[bytes, int](), 0
    async for batch in read_batches(reader, chain, directory=directory):
        for _, record in batch:
            apply(state, record)
            count += 1
    return count, state


async def restore(url: str, epoch: int, at: Position) -> tuple[int, dict[bytes, int]]:
    """Return the number of records and the state of the chain, taken over at its end."""
    async with open_store(url) as store, await store.claim("bench", epoch, os.urandom(16)) as claim:
        chain = await take_over(claim, "J", at=at, generation=1)
        found = await read_all(claim, chain, None)
        await ChainWriter.open(claim, "J", chain, 1)
        return found


async def inspect_and_read(url: str) -> tuple[int, dict[bytes, int]]:
    """Return the number of records and the state of the chain, read without a claim."""
    async with open_store(url) as store:
        return await read_all(store, await inspect_chain(store, "bench", "J"), "bench")


def timed(work: Callable[[], tuple[int, dict[bytes, int]]], total: int) -> dict[str, float]:
    begin = time.perf_counter()
    count, state = work()
    seconds = time.perf_counter() - begin
    assert len(state) == len(PATHS), "every path was written"
    return {"mb_per_s": total / seconds / 1e6, "records_per_s": count / seconds}


def measure(options: argparse.Namespace) -> list[dict[str, float]]:
    total = options.megabytes * 1_000_000
    pairs = []
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        running_server(Path(folder, "server")) as url,
    ):
        path = Path(folder, "bench.journal")
        with path.open("wb") as file:
            file.writelines(map(encode_v1, records(total, options.record)))
        end = trio.run(write_chain, url, total, options.record)
        for number in range(options.pairs):
            figures = timed(lambda: replay_file(path), total)
            ways = {
                "reader": lambda: trio.run(inspect_and_read, url),
                "restore": lambda epoch=number + 2: trio.run(restore, url, epoch, end),
            }
            for name, way in ways.items():
                figures |= {f"{name}_{key}": value for key, value in timed(way, total).items()}
            pairs.append(figures)
            if not options.json:
                print(shown(figures), flush=True)
    return pairs


def shown(figures: dict[str, float]) -> str:
    return (
        f"file {figures['mb_per_s']:.0f} MB/s ({figures['records_per_s']:,.0f} records/s), "
        f"restore {figures['restore_mb_per_s']:.0f} MB/s, reader {figures['reader_mb_per_s']:.0f} MB/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--record", type=int, default=4096, help="bytes of one record in total")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="folder for the journals"
    )
    parser.add_argument("--aim", type=float, default=100.0, help="MB/s from the file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pairs = measure(options)
    median = {key: statistics.median(pair[key] for pair in pairs) for key in pairs[0]}
    if options.json:
        print(
            json.dumps({"name": "replay", "megabytes": options.megabytes, "median": median, "pairs": pairs})
        )
    else:
        print(f"median: {shown(median)}; aim: {options.aim:.0f} MB/s from the file")
    return 0 if median["mb_per_s"] >= options.aim else 1


if __name__ == "__main__":
    sys.exit(main())

"""Measure the time from the SIGKILL of a writer to the next writer's first acknowledged record, on three
servers of which two must acknowledge.

python benchmarks/take_over.py [--megabytes 10,200] [--segment-mb 16] [--rounds 5] [--json]

A writer process writes a chain of records of 4 KiB, and continues, record by record, until it is killed.
The next writer is a running process without any state. It opens the store, inspects the chain, claims,
takes the chain over (R1 to R7), opens its segment, and waits until one record is acknowledged. The time
does not include the detection of the first writer's death, the start of a process, and the replay of the
state. It is measured with all servers running, with one killed and with one stopped before, and also with
the whole chain in one segment, because the newest segment is read completely. Every round has its own
chain.
"""

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio
from store_stream import running_servers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import Store, init_store, open_store  # noqa: E402
from journal import ChainWriter, Op, Record, take_over  # noqa: E402

CHAIN = "state"
RECORD = Record(Op.STATE_BLOCK, ints=(1,), strings=(b"operator", os.urandom(4_000)))
PARTS = ("open_store_ms", "take_over_ms", "first_record_ms", "total_ms")


async def next_writer(store: Store, directory: str) -> ChainWriter:
    """Inspect, claim, take over and open the chain. Its start record is acknowledged then."""
    view = await store.inspect(directory)
    claim = await store.claim(directory, view.epoch_seen + 1, secrets.token_bytes(16))
    generation = store.record.generation
    state = await take_over(claim, CHAIN, generation=generation)
    return await ChainWriter.open(claim, CHAIN, state, generation)


async def write_for_ever(url: str, directory: str, total: int, segment_bytes: int) -> None:
    """Write until killed. Prints a line when the chain has the requested length."""
    async with open_store(url, client="take_over") as store:
        writer = await next_writer(store, directory)
        begun = 0
        while writer.end.size < total:
            writer.append(RECORD)
            await writer.wait_room()
            if writer.end.size - begun >= segment_bytes:
                await writer.roll()
                begun = writer.end.size
        await writer.wait_synced()
        print("ready", flush=True)
        while True:
            await writer.wait_synced(writer.append(RECORD))


@contextmanager
def writing(url: str, directory: str, megabytes: int, segment_mb: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run that writer as a process."""
    command = [sys.executable, __file__, "--writer", url, directory, str(megabytes), str(segment_mb)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", "the writer did not start"
            yield process
        finally:
            process.kill()


async def measure_once(url: str, directory: str) -> dict[str, float]:
    """Return the milliseconds from now to the next writer's first acknowledged record."""
    begun = time.perf_counter()
    async with open_store(url, client="take_over") as store:
        opened = time.perf_counter()
        writer = await next_writer(store, directory)
        taken = time.perf_counter()
        await writer.wait_synced(writer.append(RECORD))
        done = time.perf_counter()
    spans = (opened - begun, taken - opened, done - taken, done - begun)
    return dict(zip(PARTS, (1_000 * span for span in spans), strict=True))


def measure(url: str, megabytes: int, segment_mb: int, rounds: int) -> list[dict[str, float]]:
    """Kill and replace a writer several times, each time on another chain."""
    found = []
    for number in range(rounds):
        directory = f"bench{number}"
        with writing(url, directory, megabytes, segment_mb) as process:
            process.kill()
            found.append(trio.run(measure_once, url, directory))
    return found


def summary(found: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        part: {"p50": statistics.median(one[part] for one in found), "max": max(one[part] for one in found)}
        for part in PARTS
    }


def measure_chain(folder: Path, megabytes: int, segment_mb: int, rounds: int) -> dict[str, dict[str, object]]:
    """Measure all states of the servers, for chains of one length."""
    cases: dict[str, dict[str, object]] = {}
    for name, sent in (
        ("all running", None),
        ("one stopped", signal.SIGSTOP),
        ("one killed", signal.SIGKILL),
    ):
        with tempfile.TemporaryDirectory(dir=folder) as data, running_servers(Path(data), 3) as (url, pids):
            trio.run(init_store, url)
            trio.run(make_chains, url, rounds)
            try:
                if sent is not None:
                    os.kill(pids[2], sent)
                cases[name] = summary(measure(url, megabytes, segment_mb, rounds))
            finally:
                if sent is signal.SIGSTOP:
                    os.kill(pids[2], signal.SIGCONT)
    return cases


async def make_chains(url: str, rounds: int) -> None:
    """Create the journals while all members run: all must answer when a journal is created (R16)."""
    async with open_store(url, client="take_over") as store:
        for number in range(rounds):
            await next_writer(store, f"bench{number}")


def print_case(what: str, case: dict[str, dict[str, float]]) -> None:
    total = case["total_ms"]
    parts = ", ".join(f"{part.removesuffix('_ms')} {case[part]['p50']:.0f}" for part in PARTS[:-1])
    print(f"{what:<44} p50 {total['p50']:>6.0f} ms   max {total['max']:>6.0f} ms   ({parts})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", default="10,200", help="lengths of the chain")
    parser.add_argument("--segment-mb", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--writer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        url, directory, megabytes, segment_mb = options.writer
        trio.run(write_for_ever, url, directory, int(megabytes) * 1_000_000, int(segment_mb) * 1_000_000)
    lengths = [int(one) for one in options.megabytes.split(",")]
    plans = [(length, options.segment_mb) for length in lengths] + [(max(lengths), max(lengths) + 1)]
    results = []
    for megabytes, segment_mb in dict.fromkeys(plans):
        cases = measure_chain(options.folder, megabytes, segment_mb, options.rounds)
        results.append({"megabytes": megabytes, "segment_mb": segment_mb, "cases": cases})
        for name, case in cases.items() if not options.json else ():
            print_case(f"{megabytes} MB, segments of {segment_mb} MB, {name}", case)
    if options.json:
        print(json.dumps({"rounds": options.rounds, "results": results}))


if __name__ == "__main__":
    main()

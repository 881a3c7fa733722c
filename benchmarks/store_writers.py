"""Measure many writers of a store of three, acknowledged by two: servers with a group log, and without one.

python benchmarks/store_writers.py [--pairs 3] [--appends 200] [--rounds 30] [--folder DIR] [--json]

- *writers*: 64 writers, each with a directory of its own, append 1 KiB and wait until it is durable. -
*checkpoint*: 2 or 100 workers append a record of 4 KiB at the same moment, as at a barrier. It ends when
all records are durable: the sync phase of a checkpoint.

One process has all writers, so the rate is limited by the client, too. Runs with and without a log
alternate (A B A B). The figures are medians.
"""

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from store_stream import running_servers

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dos_client import ObjectWriter, init_store, open_store  # noqa: E402

WRITERS = 64
WORKERS = (2, 100)
BLOCK, STATE = os.urandom(1_024), os.urandom(4_096)
Figures = dict[str, float]


async def append_each(writer: ObjectWriter, data: bytes, count: int, times: list[float]) -> None:
    """Append and wait, so many times. The milliseconds of each go to `times`."""
    for _ in range(count):
        begin = time.perf_counter()
        await writer.wait_synced(writer.append(data))
        times.append(1_000 * (time.perf_counter() - begin))


async def all_at_once(writers: list[ObjectWriter], data: bytes, count: int) -> tuple[float, list[float]]:
    """Return the seconds until all writers have made so many appends, and the milliseconds of each append."""
    times: list[float] = []
    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(append_each, writer, data, count, times)
    return time.perf_counter() - begin, times


async def measure(url: str, appends: int, rounds: int) -> Figures:
    """Measure one store."""
    await init_store(url)
    async with open_store(url, client="store_writers") as store, AsyncExitStack() as stack:
        writers = []
        for number in range(max(WRITERS, *WORKERS)):
            claim = await store.claim(f"bench.w{number:04d}", 1, secrets.token_bytes(16))
            writers.append((await stack.enter_async_context(claim)).open_object("records"))
        await all_at_once(writers, BLOCK, 5)
        seconds, times = await all_at_once(writers[:WRITERS], BLOCK, appends)
        cuts = statistics.quantiles(times, n=100)
        found = {"rate": len(times) / seconds, "p50_ms": cuts[49], "p99_ms": cuts[98]}
        for count in WORKERS:
            phases = [1_000 * (await all_at_once(writers[:count], STATE, 1))[0] for _ in range(rounds)]
            found[f"checkpoint_{count}_ms"] = statistics.median(phases)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--appends", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {"log": [], "without": []}
    for _ in range(options.pairs):
        for case, more in (("log", ()), ("without", ("--group-log", "0"))):
            with (
                tempfile.TemporaryDirectory(dir=options.folder) as data,
                running_servers(Path(data), 3, *more) as (url, _),
            ):
                found[case].append(trio.run(measure, url, options.appends, options.rounds))
                print(case, found[case][-1], file=sys.stderr, flush=True)
    medians = {case: over(runs, statistics.median) for case, runs in found.items()}
    if options.json:
        print(json.dumps(medians))
    else:
        for case, figures in medians.items():
            print(f"{case:<8}", "   ".join(f"{key} {value:,.1f}" for key, value in figures.items()))


def over(runs: list[Figures], of: Callable[[list[float]], float]) -> Figures:
    """Return the figures of all runs as one."""
    return {key: of([run[key] for run in runs]) for key in runs[0]}


if __name__ == "__main__":
    main()

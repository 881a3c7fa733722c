"""Measure checkpoints, recovery and latency of a region with real servers, real workers, input handles and an
output log.

    benchmarks/checkpoint_region.py checkpoint KEYS CHECKPOINTS [--standby PROCESSES]
    benchmarks/checkpoint_region.py recovery KEYS ROUNDS
    benchmarks/checkpoint_region.py latency SECONDS

A region of two worker processes uses three servers; everything counts only after it is on two disks. The
region counts keys that two producers write into the store, and a reader follows the output log
(`observed_region.py`).

checkpoint    with KEYS keys, 1 % of them changed: from the request of a checkpoint to its commit
recovery      from the SIGKILL of a worker (alternately) until output of input that was sent after it is
              visible
latency       from before a batch is sent until the reader has the output of its step (`step`), and until a
              checkpoint with that step is committed (`checkpoint`); at a tenth of the maximum rate.
              `starting`, with --rate: of the batches before that, while a stand-by starts. Timelines
              of all batches and of the slowest 1 % by step: the medians of their phases, and how many of them
              overlap a checkpoint, a long sync of a server, and a long garbage collection of any process
                  store    until the batch is on the quorum
                  begin    until the last worker has begun its step
                  show     until the reader has the output of both workers

Checkpoints are taken for at most 60 s. Prints one line of JSON.
"""

import argparse
import gc
import json
import os
import random
import runpy
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from observed_region import (  # noqa: E402
    POLL_S,
    PRODUCERS,
    WORKERS,
    ObservedRegion,
    SentBatch,
    with_region,
)

from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

CHECKPOINTS_S_MAX = 60.0
"""No further checkpoint is requested after this time."""
PART_ROWS = 50_000
TOP_BATCH_ROWS = 5_000
TOP_UNSEEN_MAX = 8
PACE_S = 0.02
CHANGED = 0.01
SETTLE_S = 4.0
"""After the region runs, or a recovery: a stand-by has then imported everything, beside the workers."""
RECOVERY_ROWS_PER_S = 5_000
LATENCY_KEYS = 10_000
LONG_S_MIN = {"sync": 0.02, "collection": 0.005}
"""A shorter sync or garbage collection explains no tail."""


def word(number: int) -> str:
    return f"k{number:07d}"


async def preload(region: ObservedRegion, keys: int) -> None:
    for begin in range(0, keys, PART_ROWS):
        producer = PRODUCERS[begin // PART_ROWS % 2]
        await region.send(producer, [word(n) for n in range(begin, min(begin + PART_ROWS, keys))])
    await region.all_seen()


async def checkpoints(region: ObservedRegion, keys: int, rounds: int) -> dict[str, Any]:
    """Take checkpoints of a state of `keys` keys, 1 % of which changed since the previous checkpoint."""
    await region.checkpoint()
    rng, seconds, phases = random.Random(1), [], []
    begun = time.perf_counter()
    for _ in range(rounds):
        changed = rng.sample(range(keys), int(keys * CHANGED))
        for producer, part in zip(PRODUCERS, (changed[::2], changed[1::2]), strict=True):
            await region.send(producer, [word(n) for n in part])
        await region.all_seen()
        committed = await region.checkpoint()
        seconds.append(committed.seconds)
        phases.append(committed.phases_s)
        if time.perf_counter() - begun > CHECKPOINTS_S_MAX:
            break
    middle = sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2]
    return {
        "keys": keys,
        "changed": int(keys * CHANGED),
        "checkpoints": len(seconds),
        "median_s": round(statistics.median(seconds), 4),
        "max_s": round(max(seconds), 4),
        "phases_s": {name: round(value, 4) for name, value in phases[middle].items()},
    }


async def paced(region: ObservedRegion, keys: int, rows_per_s: float, until: Any) -> None:
    """Send at this rate: a batch every 20 ms, from the producers alternately."""
    rng, begun, sent_rows, turn = random.Random(2), time.perf_counter(), 0, 0
    while not until():
        due = int((time.perf_counter() - begun) * rows_per_s) - sent_rows
        if due > 0:
            await region.send(PRODUCERS[turn % 2], [word(rng.randrange(keys)) for _ in range(due)])
            sent_rows, turn = sent_rows + due, turn + 1
        await trio.sleep(PACE_S)


async def recoveries(region: ObservedRegion, keys: int, rounds: int) -> list[dict[str, Any]]:
    """Kill the workers alternately, while input arrives at a constant rate."""
    found, over = [], trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paced, region, keys, RECOVERY_ROWS_PER_S, over.is_set)
        for number in range(rounds):
            before = len(region.events.checkpoints)
            settled = time.perf_counter() + SETTLE_S
            await region.until(
                lambda before=before, settled=settled: (
                    len(region.events.checkpoints) >= before + 2 and time.perf_counter() > settled
                )
            )
            resets = len(region.events.resets)
            os.kill(region.control.status.workers[number % WORKERS].pid, signal.SIGKILL)
            killed = time.perf_counter()
            await region.until(
                lambda killed=killed: any(sent.time > killed for sent in reversed(region.output.seen[-500:]))
            )
            visible = next(sent.seen for sent in region.output.seen if sent.time > killed)
            await region.until(lambda resets=resets: len(region.events.resets) > resets)
            running, reset = region.events.resets[-1]
            noticed = next(when for when in region.events.lost if when > killed) - killed
            phases = {"notice": noticed, **reset.phases_s, "first output": visible - running}
            found.append(
                {
                    "seconds": round(visible - killed, 4),
                    "phases_s": {name: round(value, 4) for name, value in phases.items()},
                }
            )
        over.set()
    await region.all_seen()
    return found


async def top_rate(region: ObservedRegion, seconds: float) -> float:
    """Return the rows per second that become visible if the producers send as fast as possible."""
    rng, begun, before = random.Random(3), time.perf_counter(), region.output.rows
    batch = [word(rng.randrange(LATENCY_KEYS)) for _ in range(TOP_BATCH_ROWS)]
    turn = 0
    while time.perf_counter() - begun < seconds:
        if len(region.output.unseen) < TOP_UNSEEN_MAX:
            await region.send(PRODUCERS[turn % 2], batch)
            turn += 1
        else:
            await trio.sleep(POLL_S)
    rate = (region.output.rows - before) / (time.perf_counter() - begun)
    await region.all_seen()
    return rate


class Pauses:
    """The syncs of the servers and the garbage collections of all processes, as (from, until) in seconds of
    `time.perf_counter`. Every process that is started after this object notes its own
    (`pauses/sitecustomize.py`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pauses"
        self._folder.mkdir()
        os.environ["DOS_BENCH_PAUSES"] = str(self._folder)
        paths = [str(Path(__file__).parent / "pauses"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        runpy.run_path(str(Path(__file__).parent / "pauses/sitecustomize.py"))

    def between(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Return the pauses that overlap a time, by kind."""
        found: dict[str, list[tuple[float, float]]] = {"sync": [], "collection": []}
        for file in self._folder.iterdir():
            for line in file.read_text().splitlines():
                kind, begun, ended = line.split()
                if float(begun) < end and begin < float(ended):
                    found[kind].append((float(begun), float(ended)))
        return found


def timeline(region: ObservedRegion, sent: list[SentBatch], pauses: Pauses) -> dict[str, Any]:
    """Return the medians of the phases of these batches, and the share of those that overlap something."""
    found = pauses.between(sent[0].time, max(one.seen for one in sent))
    kinds = {"checkpoint": [(when - one.seconds, when) for when, one in region.events.checkpoints]}
    kinds |= {
        f"long {kind}": [(a, b) for a, b in times if b - a > LONG_S_MIN[kind]]
        for kind, times in found.items()
    }
    phases = [
        {"store": one.stored - one.time, "begin": at - one.stored, "show": one.seen - at}
        for one in sent
        if (at := region.divided.get(one.step)) is not None
    ]
    return {
        "phases_ms": {
            name: round(1000 * statistics.median(phase[name] for phase in phases), 1) for name in phases[0]
        },
        "overlap": {
            name: round(
                sum(any(a < one.seen and one.time < b for a, b in times) for one in sent) / len(sent), 2
            )
            for name, times in kinds.items()
        },
    }


async def sent_at(region: ObservedRegion, seconds: float, rate: float) -> list[SentBatch]:
    """Send at this rate, and return the batches after all are visible."""
    first, end = len(region.output.seen), time.perf_counter() + seconds
    await paced(region, LATENCY_KEYS, rate, lambda: time.perf_counter() > end)
    await region.all_seen()
    return sorted(region.output.seen[first:], key=lambda one: one.time)


async def latencies(region: ObservedRegion, seconds: float, rate: float, pauses: Pauses) -> dict[str, Any]:
    """Measure the latency of batches that are sent at this rate, until their step is visible and until their
    checkpoint is committed.
    """
    sent = await sent_at(region, seconds, rate)
    last = max(one.step for one in sent)
    await region.until(lambda: any(one.step >= last for _, one in region.events.checkpoints))
    committed = [(when, one.step) for when, one in region.events.checkpoints]
    by_checkpoint = [next(when for when, step in committed if step >= one.step) - one.time for one in sent]
    slowest = sorted(sent, key=lambda one: one.time - one.seen)[: max(1, len(sent) // 100)]
    syncs = pauses.between(sent[0].time, sent[0].time + seconds)["sync"]
    return {
        "all": timeline(region, sent, pauses),
        "slowest": timeline(region, sorted(slowest, key=lambda one: one.time), pauses),
        "steps_per_s": round(len({one.step for one in sent}) / seconds, 1),
        "syncs_per_s": round(len(syncs) / seconds),
        "sync": percentiles([ended - begun for begun, ended in syncs]),
        "rows_per_s": round(sum(one.rows for one in sent) / seconds),
        "batches": len(sent),
        "step": percentiles([one.seen - one.time for one in sent]),
        "checkpoint": percentiles(by_checkpoint),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    points = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(points[49] * 1000, 1), "p99_ms": round(points[98] * 1000, 1)}


async def measure(folder: Path, url: str, pauses: Pauses, options: argparse.Namespace) -> dict[str, Any]:
    async def latency(region: ObservedRegion) -> dict[str, Any]:
        await preload(region, LATENCY_KEYS)
        # A collection of this process, with all that it has imported, stops the reader for 0.1 s: that would
        # be measured instead of the region.
        gc.collect()
        gc.freeze()
        if options.rate is None:
            rate = await top_rate(region, max(min(options.seconds, 10.0), SETTLE_S)) / 10
            return await latencies(region, options.seconds, rate, pauses)
        starting = await sent_at(region, SETTLE_S, options.rate)
        found = await latencies(region, options.seconds, options.rate, pauses)
        return {**found, "starting": percentiles([one.seen - one.time for one in starting])}

    async def recovery(region: ObservedRegion) -> dict[str, Any]:
        await preload(region, options.keys)
        return {"rounds": await recoveries(region, options.keys, options.rounds)}

    async def checkpoint(region: ObservedRegion) -> dict[str, Any]:
        await preload(region, options.keys)
        return await checkpoints(region, options.keys, options.checkpoints)

    work, interval_s = {
        "latency": (latency, 1.0),
        "checkpoint": (checkpoint, 3_600.0),
        "recovery": (recovery, 1.0),
    }[options.part]
    found: dict[str, Any] = await with_region(folder, url, options.part, interval_s, options.standby, work)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    latency = parts.add_parser("latency")
    latency.add_argument("seconds", type=float)
    latency.add_argument(
        "--rate", type=float, metavar="ROWS_PER_S", help="default: a tenth of the maximum rate"
    )
    for name, count in (("checkpoint", "checkpoints"), ("recovery", "rounds")):
        part = parts.add_parser(name)
        part.add_argument("keys", type=int)
        part.add_argument(count, type=int)
    for part in parts.choices.values():
        part.add_argument("--standby", type=int, default=1, metavar="PROCESSES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        pauses = Pauses(folder)
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        figures = trio.run(measure, folder, url, pauses, options)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

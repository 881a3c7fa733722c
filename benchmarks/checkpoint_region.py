"""Checkpoints, recovery and latency of a region: real servers, real workers, input handles, an output log.

    benchmarks/checkpoint_region.py checkpoint KEYS CUTS [--standby PROCESSES]
    benchmarks/checkpoint_region.py recovery KEYS ROUNDS
    benchmarks/checkpoint_region.py latency SECONDS

A region of two worker processes over three servers; everything is on two disks before it counts. It counts
keys; two producers write them into the store, and a reader follows the output log.

checkpoint    with that number of keys, 1 % of them changed: from the request of a cut to its commit
recovery      from the SIGKILL of a worker (alternately) until output is visible of input sent after it
latency       from before a batch is sent until the reader has the output of its step (`step`), and until a
              cut with that step is committed (`cut`); at a tenth of the top rate

Cuts are made for 60 s at most. Prints one line of JSON.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint.core.outputs import decode_output, output_chain  # noqa: E402
from checkpoint.core.region import (  # noqa: E402
    CutCommitted,
    RegionEvent,
    RegionState,
    ResetReport,
    WorkerLost,
    worker_directory,
)
from dataflow import Graph, InputSource, LogSink, Producer, open_producer  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import Store, init_store, open_store  # noqa: E402
from dos_client.errors import QuorumUnavailableError  # noqa: E402
from journal import ChainFollower, ChainWatch, Op  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

SCHEMA = "word string"
WORKERS = 2
PRODUCERS = ("producer-0", "producer-1")
"""Each is read by another worker."""
CAP_S = 60.0
"""So long a part may measure."""
WAIT_S_MAX = 600.0
"""A wait that is longer has gone wrong."""
PART_ROWS = 50_000
TOP_BATCH_ROWS = 5_000
TOP_UNSEEN_MAX = 8
PACE_S = 0.02
LOOK_S = 0.002
FOLLOW_S = 0.02
"""A reader hears at once what a log that it knows has got, and looks so often for one that was begun anew."""
CHANGED = 0.01
SETTLE_S = 4.0
"""Between a recovery and the next kill: then a process stands by again."""
RECOVERY_ROWS_PER_S = 5_000
LATENCY_KEYS = 10_000


@dataclass(slots=True)
class Sent:
    """A batch, from before it was sent."""

    time: float
    producer: str
    position: int
    rows: int
    seen: float = 0.0
    step: int = 0


@dataclass
class Shown:
    """What a reader of the output has seen: a step counts when both workers' logs have shown it."""

    unseen: deque[Sent] = field(default_factory=deque)
    seen: list[Sent] = field(default_factory=list)
    step: int = 0
    rows: int = 0
    _steps: list[dict[int, dict[str, int]]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])

    def take(self, worker: int, step: int, inputs: dict[str, dict[str, int]]) -> None:
        """One worker's output of a step."""
        self._steps[worker][step] = inputs.get("words", {})
        while all(self.step + 1 in steps for steps in self._steps):
            self.step += 1
            positions = {k: v for steps in self._steps for k, v in steps.pop(self.step).items()}
            self._see(positions)

    def _see(self, positions: dict[str, int]) -> None:
        now = time.perf_counter()
        still: deque[Sent] = deque()
        for sent in self.unseen:
            if sent.position <= positions.get(sent.producer, 0):
                sent.seen, sent.step = now, self.step
                self.seen.append(sent)
                self.rows += sent.rows
            else:
                still.append(sent)
        self.unseen = still


class Region:
    """A region at work, its producers and its reader."""

    def __init__(self, store: Store, control: RegionHandle, cuts: "Cuts", name: str) -> None:
        self.store, self.control, self.cuts, self.name = store, control, cuts, name
        self.shown = Shown()
        self.producers: dict[str, Producer] = {}

    async def follow(self, worker: int) -> None:
        """One worker's output log, as it grows; through resets too."""
        follower = ChainFollower(self.store, worker_directory(self.name, worker), output_chain("shown"))
        watch = ChainWatch(self.store, follower)
        while True:
            with suppress(QuorumUnavailableError):  # a busy machine: it is asked again
                async with aclosing(follower.poll()) as records:
                    async for at, record in records:
                        if record.op is Op.OUTPUT:
                            output = decode_output(record.ints, record.strings, where="output", at=at)
                            self.shown.take(worker, output.step, output.head.inputs)
            await watch.wait(FOLLOW_S)

    async def send(self, producer: str, words: Sequence[str]) -> Sent:
        begun = time.perf_counter()
        table = pa.table({"word": words})
        await self.producers[producer].send(table)
        sent = Sent(begun, producer, self.producers[producer].last.position, len(words))
        self.shown.unseen.append(sent)
        return sent

    async def until(self, condition: Any) -> None:
        with trio.fail_after(WAIT_S_MAX):
            while not condition():
                if self.control.status.state.is_end:
                    raise RuntimeError(f"the region ended: {self.control.exception()}")
                await trio.sleep(LOOK_S)

    async def all_seen(self) -> None:
        await self.until(lambda: not self.shown.unseen)

    async def cut(self) -> CutCommitted:
        """A cut now, and what the region says of it."""
        number = await trio.to_thread.run_sync(self.control.checkpoint, WAIT_S_MAX)
        await self.until(lambda: self.cuts.made[-1][1].cut >= number)
        return next(cut for _, cut in self.cuts.made if cut.cut == number)


class Cuts:
    """What the region says, with the time."""

    def __init__(self) -> None:
        self.made: list[tuple[float, CutCommitted]] = []
        self.resets: list[tuple[float, ResetReport]] = []
        self.lost: list[float] = []
        self.changed = threading.Event()

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, CutCommitted):
            self.made.append((time.perf_counter(), event))
        elif isinstance(event, ResetReport):
            self.resets.append((time.perf_counter(), event))
        elif isinstance(event, WorkerLost):
            self.lost.append(time.perf_counter())


def word(number: int) -> str:
    return f"k{number:07d}"


async def preload(region: Region, keys: int) -> None:
    for begin in range(0, keys, PART_ROWS):
        producer = PRODUCERS[begin // PART_ROWS % 2]
        await region.send(producer, [word(n) for n in range(begin, min(begin + PART_ROWS, keys))])
    await region.all_seen()


async def checkpoints(region: Region, keys: int, rounds: int) -> dict[str, Any]:
    """Cuts of a state of so many keys, of which one in a hundred changed since the cut before."""
    await region.cut()
    rng, seconds, phases = random.Random(1), [], []
    begun = time.perf_counter()
    for _ in range(rounds):
        changed = rng.sample(range(keys), int(keys * CHANGED))
        for producer, part in zip(PRODUCERS, (changed[::2], changed[1::2]), strict=True):
            await region.send(producer, [word(n) for n in part])
        await region.all_seen()
        cut = await region.cut()
        seconds.append(cut.seconds)
        phases.append(cut.phases_s)
        if time.perf_counter() - begun > CAP_S:
            break
    middle = sorted(range(len(seconds)), key=seconds.__getitem__)[len(seconds) // 2]
    return {
        "keys": keys,
        "changed": int(keys * CHANGED),
        "cuts": len(seconds),
        "median_s": round(statistics.median(seconds), 4),
        "max_s": round(max(seconds), 4),
        "phases_s": {name: round(value, 4) for name, value in phases[middle].items()},
    }


async def paced(region: Region, keys: int, rows_per_s: float, until: Any) -> None:
    """Both producers in turn, a batch each 20 ms, as many rows as the rate wants."""
    rng, begun, sent_rows, turn = random.Random(2), time.perf_counter(), 0, 0
    while not until():
        due = int((time.perf_counter() - begun) * rows_per_s) - sent_rows
        if due > 0:
            await region.send(PRODUCERS[turn % 2], [word(rng.randrange(keys)) for _ in range(due)])
            sent_rows, turn = sent_rows + due, turn + 1
        await trio.sleep(PACE_S)


async def recoveries(region: Region, keys: int, rounds: int) -> list[dict[str, Any]]:
    """Kill the workers in turn, while input comes at a steady pace."""
    found, over = [], trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paced, region, keys, RECOVERY_ROWS_PER_S, over.is_set)
        for number in range(rounds):
            cuts = len(region.cuts.made)
            settled = time.perf_counter() + SETTLE_S
            await region.until(
                lambda cuts=cuts, settled=settled: (
                    len(region.cuts.made) >= cuts + 2 and time.perf_counter() > settled
                )
            )
            resets = len(region.cuts.resets)
            os.kill(region.control.status.workers[number % WORKERS].pid, signal.SIGKILL)
            killed = time.perf_counter()
            await region.until(
                lambda killed=killed: any(sent.time > killed for sent in reversed(region.shown.seen[-500:]))
            )
            shown = next(sent.seen for sent in region.shown.seen if sent.time > killed)
            await region.until(lambda resets=resets: len(region.cuts.resets) > resets)
            running, reset = region.cuts.resets[-1]
            noticed = next(when for when in region.cuts.lost if when > killed) - killed
            phases = {"notice": noticed, **reset.phases_s, "first output": shown - running}
            found.append(
                {
                    "seconds": round(shown - killed, 4),
                    "phases_s": {name: round(value, 4) for name, value in phases.items()},
                }
            )
        over.set()
    await region.all_seen()
    return found


async def top_rate(region: Region, seconds: float) -> float:
    """Rows a second that become visible when producers send all that is taken."""
    rng, begun, before = random.Random(3), time.perf_counter(), region.shown.rows
    batch = [word(rng.randrange(LATENCY_KEYS)) for _ in range(TOP_BATCH_ROWS)]
    turn = 0
    while time.perf_counter() - begun < seconds:
        if len(region.shown.unseen) < TOP_UNSEEN_MAX:
            await region.send(PRODUCERS[turn % 2], batch)
            turn += 1
        else:
            await trio.sleep(LOOK_S)
    rate = (region.shown.rows - before) / (time.perf_counter() - begun)
    await region.all_seen()
    return rate


async def latencies(region: Region, seconds: float, rate: float) -> dict[str, Any]:
    """By step and by cut, of batches sent at that rate."""
    first = len(region.shown.seen)
    end = time.perf_counter() + seconds
    await paced(region, LATENCY_KEYS, rate, lambda: time.perf_counter() > end)
    await region.all_seen()
    last = max(sent.step for sent in region.shown.seen)
    await region.until(lambda: any(cut.step >= last for _, cut in region.cuts.made))
    sent = region.shown.seen[first:]
    committed = [(when, cut.step) for when, cut in region.cuts.made]
    by_cut = [next(when for when, step in committed if step >= one.step) - one.time for one in sent]
    return {
        "rows_per_s": round(sum(one.rows for one in sent) / seconds),
        "batches": len(sent),
        "step": percentiles([one.seen - one.time for one in sent]),
        "cut": percentiles(by_cut),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": round(cuts[49] * 1000, 1), "p99_ms": round(cuts[98] * 1000, 1)}


@contextmanager
def running(
    folder: Path, url: str, name: str, interval_s: float, standby: int
) -> Iterator[tuple[RegionHandle, Cuts]]:
    graph = Graph(name)
    words = graph.source("words", InputSource("words", SCHEMA))
    words.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish="step"))
    cuts = Cuts()
    control = run_local(
        graph,
        name=name,
        workers=WORKERS,
        store=url,
        on_event=cuts,
        logs=folder / f"logs-{name}",
        scratch=folder / f"scratch-{name}",
        checkpoint_interval=interval_s,
        standby=standby,
    )
    assert isinstance(control, RegionHandle)
    try:
        yield control, cuts
    finally:
        control.stop()
        control.wait(CAP_S)


async def with_region(folder: Path, url: str, name: str, interval_s: float, standby: int, work: Any) -> Any:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url, client="benchmark"))
        producers = {
            one: await stack.enter_async_context(open_producer(store, name, "words", one, SCHEMA))
            for one in PRODUCERS
        }
        control, cuts = stack.enter_context(running(folder, url, name, interval_s, standby))
        region = Region(store, control, cuts, name)
        region.producers = producers
        await region.until(lambda: control.status.state is RegionState.RUNNING)
        nursery = await stack.enter_async_context(trio.open_nursery())
        for worker in range(WORKERS):
            nursery.start_soon(region.follow, worker)
        found = await work(region)
        nursery.cancel_scope.cancel()
        return found


async def measure(folder: Path, url: str, options: argparse.Namespace) -> dict[str, Any]:
    async def quickness(region: Region) -> dict[str, Any]:
        await preload(region, LATENCY_KEYS)
        rate = options.rate or await top_rate(region, min(options.seconds, 10.0)) / 10
        return await latencies(region, options.seconds, rate)

    async def state(region: Region) -> dict[str, Any]:
        await preload(region, options.keys)
        return {"rounds": await recoveries(region, options.keys, options.rounds)}

    async def large(region: Region) -> dict[str, Any]:
        await preload(region, options.keys)
        return await checkpoints(region, options.keys, options.cuts)

    work, interval_s = {
        "latency": (quickness, 1.0),
        "checkpoint": (large, 3_600.0),
        "recovery": (state, 1.0),
    }[options.part]
    found: dict[str, Any] = await with_region(folder, url, options.part, interval_s, options.standby, work)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    latency = parts.add_parser("latency")
    latency.add_argument("seconds", type=float)
    latency.add_argument("--rate", type=float, metavar="ROWS_PER_S", help="else a tenth of the top rate")
    for name, count in (("checkpoint", "cuts"), ("recovery", "rounds")):
        part = parts.add_parser(name)
        part.add_argument("keys", type=int)
        part.add_argument(count, type=int)
    for part in parts.choices.values():
        part.add_argument("--standby", type=int, default=1, metavar="PROCESSES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)]
        url = url_of(servers)
        trio.run(init_store, url)
        figures = trio.run(measure, folder, url, options)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

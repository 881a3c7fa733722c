"""A region that a benchmark observes: real servers and workers, its producers, a reader of its output, and
its events with their times.

The region counts words that two producers write into the store. A reader follows the output log, which is
published by step. `checkpoint_region.py` decides what is measured.
"""

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

from checkpoint.chains.steps_log import STEPS_CHAIN
from checkpoint.core.records.divisions import decode_division
from checkpoint.core.records.outputs import decode_output, output_chain
from checkpoint.core.region import (
    CheckpointCommitted,
    RegionEvent,
    RegionState,
    ResetReport,
    WorkerLost,
    worker_directory,
)
from dataflow import Graph, InputSource, LogSink, Producer, open_producer
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dos_client import Store, open_store
from dos_client.errors import QuorumUnavailableError
from journal import ChainFollower, ChainWatch, Op, Position, Record

SCHEMA = "word string"
WORKERS = 2
PRODUCERS = ("producer-0", "producer-1")
"""Each is read by another worker."""
END_S_MAX = 60.0
"""The maximum duration of a region's end."""
WAIT_S_MAX = 600.0
"""A longer wait is an error."""
POLL_S = 0.002
FOLLOW_S = 0.02
"""How often the reader polls for a new output log. It is notified of changes of a log that it knows."""


@dataclass(slots=True)
class SentBatch:
    """A batch, with the time before it was sent. `stored`: when it was on the quorum. `seen`: when its output
    was visible, as of `step`.
    """

    time: float
    producer: str
    position: int
    rows: int
    stored: float
    seen: float = 0.0
    step: int = 0


@dataclass
class VisibleOutput:
    """What a reader of the output has seen. A step counts after the logs of both workers contain it."""

    unseen: deque[SentBatch] = field(default_factory=deque)
    seen: list[SentBatch] = field(default_factory=list)
    step: int = 0
    rows: int = 0
    _steps: list[dict[int, dict[str, int]]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])

    def take(self, worker: int, step: int, inputs: dict[str, dict[str, int]]) -> None:
        """Add one worker's output of a step."""
        self._steps[worker][step] = inputs.get("words", {})
        while all(self.step + 1 in steps for steps in self._steps):
            self.step += 1
            positions = {k: v for steps in self._steps for k, v in steps.pop(self.step).items()}
            self._see(positions)

    def _see(self, positions: dict[str, int]) -> None:
        now = time.perf_counter()
        still: deque[SentBatch] = deque()
        for sent in self.unseen:
            if sent.position <= positions.get(sent.producer, 0):
                sent.seen, sent.step = now, self.step
                self.seen.append(sent)
                self.rows += sent.rows
            else:
                still.append(sent)
        self.unseen = still


class ObservedRegion:
    """A running region, its producers and the reader of its output."""

    def __init__(self, store: Store, control: RegionHandle, events: "RegionEvents", name: str) -> None:
        self.store, self.control, self.events, self.name = store, control, events, name
        self.output = VisibleOutput()
        self.divided: dict[int, float] = {}
        """Step -> when the last worker began it, in the time of `time.perf_counter`."""
        self.producers: dict[str, Producer] = {}

    async def follow_steps(self, worker: int) -> None:
        """Note when one worker has begun each step, from its chain of input divisions."""
        began = time.time() - time.perf_counter()
        async for _, record in self._records(worker, STEPS_CHAIN):
            if record.op is Op.DIVISION:
                division = decode_division(record.ints, record.strings)
                at = max(self.divided.get(division.step, 0.0), division.time_ms / 1000 - began)
                self.divided[division.step] = at

    async def follow(self, worker: int) -> None:
        """Follow one worker's output log as it grows, also across resets."""
        async for at, record in self._records(worker, output_chain("shown")):
            if record.op is Op.OUTPUT:
                output = decode_output(record.ints, record.strings, where="output", at=at)
                self.output.take(worker, output.step, output.head.inputs)

    async def _records(self, worker: int, chain: str) -> AsyncGenerator[tuple[Position, Record]]:
        """Yield the records of a chain as it grows."""
        follower = ChainFollower(self.store, worker_directory(self.name, worker), chain)
        watch = ChainWatch(self.store, follower)
        while True:
            with suppress(QuorumUnavailableError):  # a busy machine; the next poll tries again
                async with aclosing(follower.poll()) as records:
                    async for found in records:
                        yield found
            await watch.wait(FOLLOW_S)

    async def send(self, producer: str, words: Sequence[str]) -> SentBatch:
        begun = time.perf_counter()
        table = pa.table({"word": words})
        await self.producers[producer].send(table)
        at = self.producers[producer].last.position
        sent = SentBatch(begun, producer, at, len(words), time.perf_counter())
        self.output.unseen.append(sent)
        return sent

    async def until(self, condition: Any) -> None:
        with trio.fail_after(WAIT_S_MAX):
            while not condition():
                if self.control.status.state.is_end:
                    raise RuntimeError(f"the region ended: {self.control.exception()}")
                await trio.sleep(POLL_S)

    async def all_seen(self) -> None:
        await self.until(lambda: not self.output.unseen)

    async def checkpoint(self) -> CheckpointCommitted:
        """Request a checkpoint, wait for it, and return the event of its commit."""
        number = await trio.to_thread.run_sync(self.control.checkpoint, WAIT_S_MAX)
        await self.until(lambda: any(one.checkpoint >= number for _, one in self.events.checkpoints))
        return next(one for _, one in self.events.checkpoints if one.checkpoint == number)


class RegionEvents:
    """The events of a region, with their times."""

    def __init__(self) -> None:
        self.checkpoints: list[tuple[float, CheckpointCommitted]] = []
        self.resets: list[tuple[float, ResetReport]] = []
        self.lost: list[float] = []
        self.changed = threading.Event()

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, CheckpointCommitted):
            self.checkpoints.append((time.perf_counter(), event))
        elif isinstance(event, ResetReport):
            self.resets.append((time.perf_counter(), event))
        elif isinstance(event, WorkerLost):
            self.lost.append(time.perf_counter())


@contextmanager
def running(
    folder: Path, url: str, name: str, interval_s: float, standby: int
) -> Iterator[tuple[RegionHandle, RegionEvents]]:
    """Run the word count as a region. Yields its handle and its events."""
    graph = Graph(name)
    words = graph.source("words", InputSource("words", SCHEMA))
    words.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish="step"))
    events = RegionEvents()
    control = run_local(
        graph,
        name=name,
        workers=WORKERS,
        store=url,
        on_event=events,
        logs=folder / f"logs-{name}",
        scratch=folder / f"scratch-{name}",
        checkpoint_interval=interval_s,
        standby=standby,
    )
    assert isinstance(control, RegionHandle)
    try:
        yield control, events
    finally:
        control.stop()
        control.wait(END_S_MAX)


async def with_region(folder: Path, url: str, name: str, interval_s: float, standby: int, work: Any) -> Any:
    """Run the region and return the result of `work(region)`."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url, client="benchmark"))
        producers = {
            one: await stack.enter_async_context(open_producer(store, name, "words", one, SCHEMA))
            for one in PRODUCERS
        }
        control, events = stack.enter_context(running(folder, url, name, interval_s, standby))
        region = ObservedRegion(store, control, events, name)
        region.producers = producers
        await region.until(lambda: control.status.state is RegionState.RUNNING)
        nursery = await stack.enter_async_context(trio.open_nursery())
        for worker in range(WORKERS):
            nursery.start_soon(region.follow, worker)
            nursery.start_soon(region.follow_steps, worker)
        found = await work(region)
        nursery.cancel_scope.cancel()
        return found

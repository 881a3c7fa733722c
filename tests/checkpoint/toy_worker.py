"""The smallest true worker: counts numbers by key over an exchange, on the checkpoint package alone.

Worker w reads the numbers w * SPAN, w * SPAN + 1, ... in steps of random size (so that only a recorded
division makes a replay exact), sends each to the worker that owns its key, and keeps a count for each key.
Its one output, written when the final checkpoint is committed, is its counts.
"""

import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import trio

from checkpoint.chains.state_blocks import block_schema, encode_block, make_block
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import StepsLog
from checkpoint.core.links.barrier import Alignment
from checkpoint.core.links.frames import ChannelFrame, FrameFlag, FrameType, job_digest
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    Committed,
    Counters,
    Failed,
    Finished,
    Pause,
    Paused,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Vote,
)
from checkpoint.core.records.manifest import SplitPosition, WorkerCheckpoint
from checkpoint.core.region import worker_directory
from checkpoint.errors import LinkClosedError, OrphanedError, StaleIncarnationError, StoppedError
from checkpoint.key_hash import hash_keys
from checkpoint.link import connect_link, serve_links
from checkpoint.participant import ParticipantSpec, open_participant
from dos_client import open_store
from dos_protocol.errors import BrokenConnectionError, FencedError
from journal import Scratch

SPAN = 1_000_000
KEYS = 97
SCHEMA = block_schema(pa.schema([("key", pa.int64())]), pa.schema([("count", pa.int64())]))


class ToySpec(msgspec.Struct, kw_only=True):
    """The arguments of a toy worker, as JSON."""

    region: str
    worker: int
    workers: int
    attempt: int
    coordinator: tuple[str, int]
    key: str
    store: str
    numbers: int
    """How many this worker reads in all."""
    out: str
    scratch: str
    pace_s: float = 0.005
    fail_at: int = 0
    """Raise like user code at this number, 0 never."""


class Incarnation:
    """One incarnation."""

    def __init__(self, toy, order):
        self.toy, self.order, self.number = toy, order, order.incarnation
        checkpoint = order.restore
        self.after = checkpoint.step if checkpoint else 0
        self.position = checkpoint.workers[toy.spec.worker].sources["n"]["n"].position if checkpoint else 0
        self.alignment = Alignment(
            toy.spec.workers, first_step=self.after + 1, last_checkpoint=order.checkpoint
        )
        self.step = self.after
        self.counts: dict[int, int] = {}
        self.changed: set[int] = set()
        self.requested: RequestCheckpoint | None = None
        self.paused = False
        self.links = {}
        self.moved = trio.Event()
        self.started: trio.Event = trio.Event()
        self.replay_until = 0

    def wake(self):
        self.moved.set()
        self.moved = trio.Event()

    async def restore(self):
        toy, spec = self.toy, self.toy.spec
        began = time.monotonic()
        directory = worker_directory(spec.region, spec.worker)
        self.claim = await toy.store.claim(directory, self.number, os.urandom(16))
        generation = toy.store.record.generation
        scratch = Scratch(Path(spec.scratch))
        checkpoint = self.order.restore
        part = checkpoint.workers[spec.worker] if checkpoint else None
        self.state = await StateStore.open(
            self.claim,
            version=self.order.checkpoint,
            at=part.state if part else None,
            generation=generation,
            scratch=scratch,
        )
        self.steps = await StepsLog.open(
            self.claim, after_step=self.after, generation=generation, scratch=scratch
        )
        for block in (await self.state.load()).values():
            keys, counts = block.column("key").to_pylist(), block.column("count").to_pylist()
            self.counts = dict(zip(keys, counts, strict=True))
        for index, peer in enumerate(self.order.peers):
            hello = LinkHello(
                role="exchange",
                job=spec.region,
                worker=spec.worker,
                attempt=spec.attempt,
                incarnation=self.number,
            )
            self.links[index] = await connect_link(
                peer.host, peer.port, key=bytes.fromhex(spec.key), hello=hello
            )
        await toy.control.report(
            Restored(
                last_step=self.steps.last_step,
                replayed_bytes=self.state.replayed_bytes + self.steps.replayed_bytes,
                seconds=time.monotonic() - began,
            )
        )

    async def run(self):
        """Restore, wait for START, then step after step."""
        try:
            await self.restore()
            await self.started.wait()
            recorded = {d.step: d for d in self.steps.divisions(self.after, self.replay_until)}
            while True:
                await self.wait_for_work()
                await self.end_step(recorded.get(self.step + 1))
                await self.finish_step()
        except (BrokenConnectionError, LinkClosedError) as error:
            await self.report("peer", message=str(error))
        except FencedError as error:
            await self.report("fenced", message=str(error), epoch_held=error.epoch_held)

    async def report(self, kind, **fields):
        try:
            if self.number == self.toy.control.incarnation:
                await self.toy.control.report(Failed(kind=kind, **fields))
        except StaleIncarnationError:
            pass

    async def wait_for_work(self):
        while (
            (self.exhausted or self.paused)
            and self.requested is None
            and self.alignment.first_sight() is None
        ):
            await self.moved.wait()

    @property
    def exhausted(self):
        return self.position >= self.toy.spec.numbers

    async def end_step(self, division):
        """Divide, record, send everything of the step and its end."""
        spec, self.step = self.toy.spec, self.step + 1
        await trio.sleep(spec.pace_s)
        if division is not None:
            begin, end = division.sources["n"]["n"]
        else:
            taken = 0 if self.paused else random.randint(1, 200)
            begin, end = self.position, min(self.position + taken, spec.numbers)
            self.steps.record(self.step, time.time_ns() // 10**6, {"n": {"n": (begin, end)}})
        assert begin == self.position, "a replay continues at the checkpoint"
        if spec.fail_at and begin <= spec.fail_at < end:
            await self.report(
                "operator", operator="toy", position=f"n[{spec.fail_at}]", message="ValueError: bad"
            )
        self.position = end
        numbers = [spec.worker * SPAN + number for number in range(begin, end)]
        requested, self.requested = self.requested, None
        for index, link in self.links.items():
            mine = [number for number in numbers if number % KEYS % spec.workers == index]
            frames = [self.frame(FrameType.DATA, seq=0, payload=msgspec.json.encode(mine))] if mine else []
            end_frame = self.frame(
                FrameType.STEP_END,
                seq=len(frames),
                checkpoint=requested.checkpoint if requested else 0,
                flags=FrameFlag.FINAL if requested and requested.final else 0,
            )
            await link.send_many([*frames, end_frame])

    def frame(self, kind, **fields):
        spec = self.toy.spec
        job = job_digest(spec.region)
        return ChannelFrame(
            kind, sender=spec.worker, job=job, sender_epoch=self.number, step=self.step, **fields
        )

    async def finish_step(self):
        """Wait for everybody's end, count, and vote if a checkpoint is here."""
        while (done := self.alignment.take()) is None:
            await self.moved.wait()
        for payload in done.items:
            for number in msgspec.json.decode(payload):
                key = number % KEYS
                self.counts[key] = self.counts.get(key, 0) + 1
                self.changed.add(key)
        if done.checkpoint:
            await self.vote(done)

    async def vote(self, done):
        keys = pa.array(sorted(self.changed), pa.int64())
        values = pa.array([self.counts[key] for key in sorted(self.changed)], pa.int64())
        block = make_block(SCHEMA, [keys], hash_keys([keys]), [values])
        self.changed.clear()
        state = await self.state.commit(done.checkpoint, [("counts", data) for data in encode_block(block)])
        steps = await self.steps.synced(done.step)
        sources = {"n": {"n": SplitPosition(self.position, 0, self.exhausted)}}
        positions = WorkerCheckpoint(state=state, steps=steps, sources=sources)
        try:
            await self.toy.control.report(
                Vote(checkpoint=done.checkpoint, step=done.step, positions=positions)
            )
        except StaleIncarnationError:
            return

    def receive(self, frame):
        if frame.type is FrameType.DATA:
            self.alignment.data(frame.sender, frame.step, frame.seq, frame.payload)
        elif frame.type is FrameType.STEP_END:
            final = bool(frame.flags & FrameFlag.FINAL)
            self.alignment.step_end(
                frame.sender, frame.step, frame.seq, checkpoint=frame.checkpoint, final=final
            )
        self.wake()

    async def close(self):
        for link in self.links.values():
            await link.aclose()
        if hasattr(self, "claim"):
            await self.claim.aclose()


class Toy:
    """The process: takes orders, runs one life at a time."""

    def __init__(self, spec):
        self.spec = spec
        self.incarnation: Incarnation | None = None
        self.born = trio.Event()

    def counters(self):
        incarnation = self.incarnation
        if incarnation is None:
            return Counters()
        waiting = hasattr(incarnation, "claim") and incarnation.claim.waiting
        return Counters(
            step=incarnation.step,
            rows_in=incarnation.position,
            exhausted=incarnation.exhausted,
            waiting_for_store=waiting,
        )

    async def exchange(self, link):
        """Frames of a peer; those of an incarnation that is not ours are waited for or dropped."""
        while self.incarnation is None or self.incarnation.number < link.hello.incarnation:
            await self.born.wait()
        incarnation = self.incarnation
        try:
            while incarnation is self.incarnation and incarnation.number == link.hello.incarnation:
                incarnation.receive(await link.receive())
        except (LinkClosedError, BrokenConnectionError) as error:
            await incarnation.report("peer", peer=link.hello.worker, message=str(error))

    async def run(self):
        spec = self.spec
        key = bytes.fromhex(spec.key)
        who = ParticipantSpec(
            job=spec.region,
            worker=spec.worker,
            attempt=spec.attempt,
            coordinator=spec.coordinator,
            job_key=key,
        )
        async with (
            open_store(spec.store) as self.store,
            open_participant(who, counters=self.counters) as self.control,
            trio.open_nursery() as nursery,
        ):
            serve = partial(serve_links, self.exchange, job=spec.region, key=key)
            host, port = await nursery.start(serve)
            await self.control.join(exchange_host=host, exchange_port=port, scratch=spec.scratch)
            try:
                await self.obey(nursery)
            except (StoppedError, OrphanedError) as error:
                print(f"worker {spec.worker}: {error}", file=sys.stderr, flush=True)
            nursery.cancel_scope.cancel()

    async def obey(self, nursery):
        scope = trio.CancelScope()
        while True:
            order = await self.control.next_order()
            if isinstance(order, Restore):
                scope.cancel()
                if self.incarnation is not None:
                    await self.incarnation.close()
                self.incarnation, scope = Incarnation(self, order), trio.CancelScope()
                nursery.start_soon(self.live, self.incarnation, scope)
                self.born.set()
                self.born = trio.Event()
            elif isinstance(order, Start):
                self.incarnation.replay_until = order.replay_until_step
                self.incarnation.started.set()
            elif isinstance(order, RequestCheckpoint):
                self.incarnation.requested = order
                self.incarnation.wake()
            elif isinstance(order, Pause):
                self.incarnation.paused = order.pause > 0
                self.incarnation.wake()
                if order.pause:
                    step = max(self.incarnation.step, self.incarnation.replay_until)
                    await self.control.report(Paused(pause=order.pause, step=step, counters=self.counters()))
            elif isinstance(order, Committed) and order.final:
                out = Path(self.spec.out) / f"w{self.spec.worker}.json"
                out.write_text(json.dumps(self.incarnation.counts))
                await self.control.report(Finished())

    @staticmethod
    async def live(incarnation, scope):
        with scope:
            await incarnation.run()


def expected(workers, numbers):
    """What all counts are together."""
    found = np.zeros(KEYS, np.int64)
    for worker in range(workers):
        found += np.bincount(np.arange(worker * SPAN, worker * SPAN + numbers) % KEYS, minlength=KEYS)
    return {key: int(count) for key, count in enumerate(found)}


def total(out: Path):
    """What the workers wrote, together."""
    found: dict[int, int] = {}
    for path in sorted(out.glob("w*.json")):
        for key, count in json.loads(path.read_text()).items():
            assert int(key) not in found, "two workers own one key"
            found[int(key)] = count
    return dict(sorted(found.items()))


def run_toy(spec: ToySpec, log: str) -> None:
    """The whole life of a worker process; what it says goes to the log."""
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    trio.run(Toy(spec).run)

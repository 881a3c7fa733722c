"""A region of two workers with one output log each, that is restored again and again, on a store in memory:
real manifests and logs. The oracle knows the steps of every line of history.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from checkpoint.chains.manifest_log import ManifestLog
from checkpoint.chains.output_log import OutputLog
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
)
from checkpoint.core.records.lines import ended_after, restored
from checkpoint.core.records.manifest import Checkpoint, retained_with
from checkpoint.core.records.outputs import OutputDecision, Publish, output_chain
from checkpoint.core.region import worker_directory
from dos_protocol.errors import FencedError
from journal import ORIGIN, Position
from tests.checkpoint.manifest_samples import notes, numbered_checkpoint, worker_checkpoint
from tests.checkpoint.savepoint_model import taken_over
from tests.checkpoint.trim_model import Store

REGION, SINK = "region", "shown"
CHAIN = output_chain(SINK)
WORKERS = (0, 1)
COLUMNS = pa.schema([("row", pa.string())])


def row_of(line: int, step: int, worker: int) -> str:
    """The one row of a step. Its length does not depend on the line: sizes of two lines meet."""
    return f"{line:03d}/{step:03d}/w{worker:04d}"


def arrow(row: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COLUMNS) as writer:
        writer.write_table(pa.table({"row": [row]}))
    return sink.getvalue().to_pybytes()


class InterruptedStore(Store):
    """Calls `meanwhile` before each request of a reader: what happens while it reads."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def inspect(self, directory, members=None):  # type: ignore[no-untyped-def]
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
            self.meanwhile = happens
        return await super().inspect(directory, members)


class RestoredOutputModel:
    """The region. `history`: line -> the line on which each of its steps was made, from step 1 on."""

    def __init__(self, publish: Publish, rng: random.Random, *, removes: bool = False) -> None:
        self.removes = removes
        self.publish, self.rng, self.store = publish, rng, InterruptedStore()
        self.history: dict[int, list[int]] = {0: []}
        self.at_checkpoint: dict[int, list[int]] = {}
        """Checkpoint -> the history up to it."""
        self.logs: dict[int, OutputLog] = {}
        self.made = dict.fromkeys(WORKERS, 0)
        """Worker -> its last step."""
        self.started: set[OutputLog | None] = set()
        """The logs of the last workers that all had opened theirs."""
        self.opened: set[int] = set()
        """The workers that have opened their logs after the last checkpoint was read."""
        self.strays: list[OutputLog] = []
        """Logs whose sink was removed. Their processes may still run."""
        self.manifest: ManifestLog | None = None
        self.events: list[Any] = []

    @property
    def line(self) -> int:
        return self.checkpoint.line if self.checkpoint is not None else 0

    @property
    def is_removed(self) -> bool:
        """Whether the graph has the sink no more."""
        return self.checkpoint is not None and SINK in self.checkpoint.ended

    async def open(self) -> None:
        """A driver takes over; its workers open their logs later, one by one."""
        self.manifest, opened = await taken_over(self.manifest, self.store, REGION, self.events)
        self.kept, self.incarnation, self.checkpoint = opened.kept, opened.incarnation, opened.last_checkpoint
        self.opened = set()

    async def open_worker(self, worker: int) -> None:
        if worker in self.opened:
            return
        checkpoint, after = self.checkpoint, 0 if self.checkpoint is None else self.checkpoint.step
        if self.is_removed:
            self.opened.add(worker)
            self.made[worker] = after
            return
        claim = await self.store.claim(worker_directory(REGION, worker), self.incarnation)
        at = None if checkpoint is None else msgspec.convert(checkpoint.workers[worker].sinks[SINK], Position)
        self.logs[worker] = await OutputLog.open(
            claim,
            SINK,
            self.publish,
            after_step=after,
            at=at,
            generation=1,
            line=self.line,
            rewound=checkpoint is not None and checkpoint.rewound,
            workers=len(WORKERS),
        )
        self.made[worker] = after
        self.opened.add(worker)
        if len(self.opened) == len(WORKERS):
            self.started = set(self.logs.values())
            if checkpoint is not None and checkpoint.rewound:
                await self.commit()  # no step runs before

    async def make(self, worker: int) -> None:
        """A step of one worker, by the process that has its log: that of an earlier line, too."""
        log = self.logs.get(worker)
        if log not in self.started:
            return
        step, line = self.made[worker] + 1, int(log._history or 0)
        if worker in self.opened and step > min(self.made.values()) + 3:
            return  # it waits for the others
        try:
            if log.judge(step, step) is OutputDecision.APPEND:
                await log.append(SINK, step, 1, step, arrow(row_of(line, step, worker)), {})
                await log.synced(step)
        except FencedError:
            return
        self.made[worker] = step
        history = self.history[line]
        if step > len(history):
            history.append(line)

    async def commit(self) -> None:
        """A checkpoint, of the step that all workers reach."""
        if len(self.opened) < len(WORKERS):
            return
        if self.is_removed:
            await self.vote_without_sink()
            return
        if self.checkpoint is None or not self.checkpoint.rewound:
            await self.make(0)
        while len(set(self.made.values())) > 1:
            await self.make(min(WORKERS, key=lambda worker: self.made[worker]))
        number, step = self.kept[-1].number + 1 if self.kept else 1, self.made[0]
        workers = {}
        for worker in WORKERS:
            end = await self.logs[worker].synced(step)
            sinks = {SINK: msgspec.to_builtins(end)}
            workers[worker] = worker_checkpoint(self.incarnation, sinks=sinks, floors={CHAIN: (1, 0)})
        last = self.kept[-1] if self.kept else None
        record = numbered_checkpoint(
            number,
            incarnation=self.incarnation,
            parent=number - 1,
            step=step,
            workers=workers,
            operators=notes(count="count", **{SINK: "sink"}),
            retained=retained_with(self.kept, number, 4),
            line=self.line,
            rewinds=() if last is None else last.rewinds,
        )
        self.at_checkpoint[number] = self.history[self.line][:step]
        await self._append(record)

    async def vote_without_sink(self) -> None:
        """A checkpoint of a graph without the sink. Workers do not open its log."""
        last = self.kept[-1] if self.kept else None
        if last is None or (last.rewound and not self.is_removed):
            return
        number, stored = last.number + 1, {"count"}
        record = numbered_checkpoint(
            number,
            incarnation=self.incarnation,
            step=last.step,
            workers={worker: worker_checkpoint(self.incarnation) for worker in WORKERS},
            ended=ended_after(last, stored, number),
            retained=retained_with(self.kept, number, 4),
            line=self.line,
            rewinds=last.rewinds,
        )
        self.at_checkpoint[number] = self.history[self.line][: last.step]
        self.history[self.line] = list(self.at_checkpoint[number])
        await self._append(record)

    async def remove(self) -> None:
        """The sink is removed. Its log stays as it is, also what is above the checkpoint, or comes there."""
        if self.is_removed or len(self.opened) < len(WORKERS):
            return
        await self.make_all()  # nothing is shown after its last checkpoint
        await self.commit()
        self.strays, self.logs, self.started = list(self.logs.values()), {}, set()
        await self.vote_without_sink()

    async def stray(self) -> None:
        """A process whose log has ended writes to it, what is not visible."""
        for log in self.strays if self.publish is Publish.CHECKPOINT else ():
            with suppress(FencedError):
                step, line = log.last_step + 1, int(log._history or 0)
                await log.append(SINK, step, 1, step, arrow(row_of(line, step, 9)), {})
                await log.synced(step)

    async def restore(self, target: Checkpoint) -> None:
        """The record of a restore. The workers still run on the line before, until they are opened."""
        assert self.manifest is not None
        record = restored(self.kept, target, self.incarnation)
        self.at_checkpoint[record.number] = list(self.at_checkpoint[target.number])
        self.history[record.line] = list(self.at_checkpoint[target.number])
        await self._append(record)
        await self.open()

    async def _append(self, record: Checkpoint) -> None:
        assert self.manifest is not None
        await self.manifest.append(AppendCheckpoint(record))
        assert isinstance(self.events[-1], CheckpointAppended), self.events[-1]
        self.kept, self.checkpoint = self.manifest._kept, record

    async def happen(self) -> None:
        """Something happens to the region."""
        rng = self.rng
        choices = {"make": 12, "open worker": 6, "commit": 4, "restore": 2, "open": 1}
        if self.removes:
            choices |= {"remove": 1, "stray": 1}
        choice = rng.choices(list(choices), list(choices.values()))[0]
        if choice == "make":
            for _ in range(rng.choice([1, 3, 8])):
                await self.make(rng.choice(WORKERS))
        elif choice == "open worker":
            await self.open_worker(rng.choice(WORKERS))
        elif choice == "commit":
            await self.commit()
        elif choice == "restore" and self.kept:
            await self.restore(rng.choice(self.kept))
        elif choice == "open":
            await self.open()
        elif choice == "remove":
            await self.remove()
        elif choice == "stray":
            await self.stray()

    async def is_read(self, poll: Callable[[], Awaitable[None]]) -> None:
        """A reader polls, while something happens or nothing."""

        async def meanwhile() -> None:
            for _ in range(self.rng.choice((0, 0, 1, 12))):
                await self.happen()

        self.store.meanwhile = meanwhile if self.rng.random() < 0.5 else None
        try:
            await poll()
        finally:
            self.store.meanwhile = None

    async def settle(self) -> None:
        """All workers run, and everything that was made is committed."""
        for worker in WORKERS:
            await self.open_worker(worker)
        await self.make_all()
        await self.commit()

    async def make_all(self) -> None:
        """All workers make what any of them has made."""
        while not self.is_removed and min(self.made.values()) < len(self.history[self.line]):
            await self.make(min(WORKERS, key=lambda worker: self.made[worker]))

    def rows(self, line: int) -> list[list[str]]:
        """The rows of each step of a line."""
        made = enumerate(self.history[line], 1)
        return [[row_of(by, step, worker) for worker in WORKERS] for step, by in made]


__all__ = ["COLUMNS", "ORIGIN", "REGION", "SINK", "WORKERS", "RestoredOutputModel"]

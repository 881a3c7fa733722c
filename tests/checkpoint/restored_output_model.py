"""A region of two workers with one output log each, that is restored again and again, and of which the second
one leaves and joins again, on a store in memory: real manifests and logs. The oracle knows the steps of every
line of history.
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
from checkpoint.core.records.manifest import Checkpoint, RetiredWorker, retained_with
from checkpoint.core.records.outputs import OutputDecision, Publish, output_chain
from checkpoint.core.region import worker_directory
from dos_protocol.errors import ClosedError, FencedError
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
    """The region. `history`: line -> the line on which each of its steps was made, from step 1 on. removes:
    its sink is removed at times. scales: its second worker leaves at times, and joins again.
    """

    def __init__(
        self, publish: Publish, rng: random.Random, *, removes: bool = False, scales: bool = False
    ) -> None:
        self.removes, self.scales = removes, scales
        self.layout: tuple[int, ...] = WORKERS[: rng.choice((1, 2))] if scales else WORKERS
        """The workers of this incarnation. If the last checkpoint has others, its first checkpoint begins the
        layout."""
        self.made_by: dict[tuple[int, int], tuple[int, ...]] = {}
        """Line on which it was made, step -> its workers."""
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

    @property
    def begins(self) -> bool:
        """Whether a line or a layout begins with the last checkpoint: the next one comes before any step."""
        last = self.checkpoint
        return last is not None and (last.rewound or sorted(last.workers) != list(self.layout))

    @property
    def is_open(self) -> bool:
        """Whether all workers have opened their logs."""
        return len(self.opened) == len(self.layout)

    @property
    def present(self) -> dict[int, int]:
        """Worker -> its last step, of the workers of this incarnation."""
        return {worker: self.made[worker] for worker in self.layout}

    async def open(self, layout: tuple[int, ...] | None = None) -> None:
        """A driver takes over; its workers open their logs later, one by one. layout: None for the workers of
        the last checkpoint.
        """
        self.manifest, opened = await taken_over(self.manifest, self.store, REGION, self.events)
        self.kept, self.incarnation, self.checkpoint = opened.kept, opened.incarnation, opened.last_checkpoint
        if self.checkpoint is not None:
            self.layout = layout or tuple(sorted(self.checkpoint.workers))
        self.opened = set()

    async def open_worker(self, worker: int) -> None:
        if worker in self.opened or worker not in self.layout:
            return
        checkpoint, after = self.checkpoint, 0 if self.checkpoint is None else self.checkpoint.step
        if self.is_removed:
            self.opened.add(worker)
            self.made[worker] = after
            return
        claim = await self.store.claim(worker_directory(REGION, worker), self.incarnation)
        part = None if checkpoint is None else checkpoint.outputs().get(worker)
        at = None if part is None else msgspec.convert(part.sinks[SINK], Position)
        joins = checkpoint is not None and worker not in checkpoint.workers
        self.logs[worker] = await OutputLog.open(
            claim,
            SINK,
            self.publish,
            after_step=after,
            at=at,
            generation=1,
            line=self.line,
            rewound=joins or (checkpoint is not None and checkpoint.rewound),
            workers=len(self.layout),
        )
        if joins:
            await self.logs[worker].begin_after(SINK, after)
        self.made[worker] = after
        self.opened.add(worker)
        if self.is_open:
            self.started = {self.logs[one] for one in self.layout}
            if self.begins:
                await self.commit()  # no step runs before

    async def make(self, worker: int) -> None:
        """A step of one worker, by the process that has its log: that of an earlier line, too."""
        log = self.logs.get(worker)
        if log not in self.started:
            return
        step, line = self.made[worker] + 1, int(log._history or 0)
        if worker in self.opened and step > min(self.present.values()) + 3:
            return  # it waits for the others
        try:
            if log.judge(step, step) is OutputDecision.APPEND:
                await log.append(SINK, step, 1, step, arrow(row_of(line, step, worker)), {})
                await log.synced(step)
        except (FencedError, ClosedError):  # closed: it was fenced before
            return
        self.made[worker] = step
        history = self.history[line]
        if step > len(history):
            history.append(line)
            self.made_by[line, step] = WORKERS[: log._workers]

    async def commit(self) -> None:
        """A checkpoint, of the step that all workers reach."""
        if not self.is_open:
            return
        if self.is_removed:
            await self.vote_without_sink()
            return
        if not self.begins:
            await self.make(0)
        while len(set(self.present.values())) > 1:
            await self.make(min(self.present, key=self.present.__getitem__))
        number, step = self.kept[-1].number + 1 if self.kept else 1, self.made[0]
        workers = {}
        for worker in self.layout:
            end = await self.logs[worker].synced(step)
            sinks = {SINK: msgspec.to_builtins(end)}
            workers[worker] = worker_checkpoint(self.incarnation, sinks=sinks, floors={CHAIN: (1, 0)})
        last = self.kept[-1] if self.kept else None
        former = {} if last is None else {**last.retired, **last.workers}
        record = numbered_checkpoint(
            number,
            incarnation=self.incarnation,
            parent=number - 1,
            step=step,
            workers=workers,
            retired={
                worker: RetiredWorker(sinks=part.sinks, floors=part.floors)
                for worker, part in former.items()
                if worker not in workers
            },
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
        if self.is_removed or not self.is_open:
            return
        await self.make_all()  # nothing is shown after its last checkpoint
        await self.commit()
        self.strays, self.logs, self.started = list(self.logs.values()), {}, set()
        await self.vote_without_sink()

    async def scale(self) -> None:
        """The second worker leaves or joins: the region pauses with a checkpoint, and a driver continues it
        with other workers. Until the first checkpoint of these, it may give the change up, or begin again.
        """
        if self.begins:
            await self.open(self.rng.choice([None, self.layout]))
        elif self.is_open:
            await self.make_all()
            await self.commit()
            self.started = set()
            await self.open(WORKERS if len(self.layout) == 1 else WORKERS[:1])

    async def stray(self) -> None:
        """A process whose log has ended writes to it, what is not visible."""
        for log in self.strays if self.publish is Publish.CHECKPOINT else ():
            with suppress(FencedError, ClosedError):
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
        if self.scales:
            choices |= {"scale": 8 if self.begins else 3}
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
        elif choice == "scale":
            await self.scale()
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
        while not self.is_removed and min(self.present.values()) < len(self.history[self.line]):
            await self.make(min(self.present, key=self.present.__getitem__))

    def rows(self, line: int) -> list[list[str]]:
        """The rows of each step of a line."""
        made = enumerate(self.history[line], 1)
        return [[row_of(by, step, worker) for worker in self.made_by[by, step]] for step, by in made]

    def rows_by(self, worker: int, line: int) -> dict[int, str]:
        """Step of a line -> its row of one worker."""
        made = enumerate(self.history[line], 1)
        return {step: row_of(by, step, worker) for step, by in made if worker in self.made_by[by, step]}


__all__ = ["COLUMNS", "ORIGIN", "REGION", "SINK", "WORKERS", "RestoredOutputModel"]

"""The output logs of a worker in one incarnation, as `dataflow.worker.journals`: appended to, voted, trimmed.

The real logs (`OutputLog`), planner and trimmer. Only logs that are published by checkpoint: their output is
appended as soon as it is made. A region whose sinks are all files has none.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.chains.consumer_register import Trimmer, TrimPlanner
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import split_of
from checkpoint.core.links.messages import Restore
from checkpoint.core.records.consumers import output_register
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.records.outputs import OutputDecision, output_chain
from checkpoint.core.region import worker_directory
from dataflow.sinks.log import LogSink
from dataflow.worker.journals import FloorCollector, log_part
from dataflow.worker.messages import OutputMade
from dos_protocol.errors import ClosedError, DosError, FencedError
from journal import NO_FLOOR, Floor, Position
from tests.sim.engine.environment import Process, Signal
from tests.sim.regions.claiming import RegionClaim

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker

TRIM_S = 10.0
"""Virtual seconds between two steps of trimming."""


class SimLock:
    """A lock of the coroutines of one process, in place of `trio.Lock`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held = False
        self._released = Signal()

    async def __aenter__(self) -> None:
        while self._held:
            await self._process.wait(self._released)
        self._held = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        self._released.set()


class LogOutputs:
    """The logs. Call `open`, then run `tasks`."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        specs = worker.region.plan_for(worker).specs
        self._sinks = {name: spec for name, spec in specs.items() if isinstance(spec, LogSink)}
        self._logs: dict[str, OutputLog] = {}
        self._trimmers: dict[str, Trimmer] = {}
        self._made: deque[OutputMade] = deque()
        self._changed = Signal()
        self._handled: dict[str, int] = {}
        """Sink -> the last step that was appended or discarded."""

    async def open(
        self,
        claim: RegionClaim,
        order: Restore,
        part: WorkerCheckpoint | None,
        collecting: FloorCollector,
        *,
        joins: bool,
    ) -> None:
        """Open every log at its position."""
        worker = self._worker
        after = 0 if order.restore is None else order.restore.step
        for name, spec in self._sinks.items():
            prepared = None if part is None else part.sinks.get(name)
            log = self._logs[name] = await OutputLog.open(
                claim,
                name,
                spec.publish,
                after_step=after,
                at=None if prepared is None else msgspec.convert(prepared, Position),
                generation=worker.region.store.generation,
                released=order.floors.get(output_chain(name), NO_FLOOR),
                line=0 if order.restore is None else order.restore.line,
                rewound=joins or (order.restore is not None and order.restore.rewound),
                workers=len(order.layout.workers),
            )
            log._appending = SimLock(worker)  # type: ignore[assignment]
            if joins:
                await log.begin_after(name, after, spec.time_in(prepared))
            self._handled[name] = after
            planner = TrimPlanner(
                worker.region.store_for(worker), output_register(worker.region.spec.name, name), spec.rule
            )
            self._trimmers[name] = log.trimmer(planner, partial(collecting.permit, output_chain(name)))
        self._collecting = collecting

    def take(self, message: OutputMade) -> None:
        """Queue the output of a step."""
        self._made.append(message)
        self._changed.set()

    def tasks(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return the tasks to run; none without logs."""
        return [self._append_all, self._trim_all] if self._logs else []

    async def _append_all(self) -> None:
        while True:
            while not self._made:
                await self._worker.wait(self._changed)
            made = self._made.popleft()
            log = self._logs[made.sink]
            if log.judge(made.step, made.digest) is OutputDecision.APPEND:
                ends = {
                    name: {split: at.position for split, at in splits.items()}
                    for name, splits in made.inputs.items()
                }
                await log.append(
                    made.sink, made.step, made.rows, made.digest, made.data, ends, time=made.time
                )
            self._handled[made.sink] = made.step
            self._changed.set()

    async def _trim_all(self) -> None:
        worker = self._worker
        directory = worker_directory(worker.region.spec.name, worker.index)
        while True:
            await worker.sleep(TRIM_S)
            for name, trimmer in self._trimmers.items():
                allowed = self._collecting.released.get(output_chain(name), NO_FLOOR)
                try:
                    await self._logs[name].trim(trimmer, directory, split_of(worker.index), allowed)
                except (FencedError, ClosedError):
                    raise
                except DosError:  # what is needed is unknown now, so nothing more is deleted
                    worker.region.saw("an output is not trimmed now")

    async def synced(self, step: int, prepared: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Floor]]:
        """Wait until the output up to a step is synced; return the positions and floors of a vote."""
        positions = {}
        for name, log in self._logs.items():
            while self._handled[name] < step:
                await self._worker.wait(self._changed)
            positions[name] = log_part(await log.synced(step), prepared[name])
        return positions, {output_chain(name): log.vote_floor for name, log in self._logs.items()}

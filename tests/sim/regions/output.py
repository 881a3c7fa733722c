"""The output of a region: the parts of its file sinks, on the disks of its workers' machines.

It has the files and locks; the real `FileWriter` writes and truncates. The lock of a part ensures that one
process writes it at a time; another one waits for the lock.
"""

from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa

from checkpoint.chains.consumer_register import Trimmer, TrimPlanner
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.output_reading import split_of
from checkpoint.core.links.messages import Restore
from checkpoint.core.records.consumers import output_register
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint
from checkpoint.core.records.outputs import OutputDecision, output_chain
from checkpoint.core.region import worker_directory
from dataflow.errors import SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.files import FileWriter, check_text_columns, part_name
from dataflow.sinks.log import LogSink
from dataflow.worker.journals import FloorCollector, log_part
from dataflow.worker.messages import OutputMade
from dos_protocol.errors import ClosedError, DosError, FencedError
from dos_server.disk import replace_file
from journal import NO_FLOOR, Floor, Position
from tests.sim.engine.disk import SimDisk
from tests.sim.engine.environment import Process, Signal
from tests.sim.regions.claiming import RegionClaim

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker


class Holder(Protocol):
    """A process that may have a part locked."""

    alive: bool


class Output:
    """All parts of all sinks. One disk for each worker."""

    def __init__(self, workers: int) -> None:
        self.disks = [SimDisk() for _ in range(workers)]
        self.holders: dict[int, Holder] = {}
        """The process that has the parts of a worker locked, until it ends."""

    def free_for(self, worker: int, process: Holder) -> bool:
        """Return whether that process may write the worker's parts now."""
        holder = self.holders.get(worker)
        return holder is None or holder is process or not holder.alive

    def content(self, worker: int, sink: str) -> bytes:
        """Return a part as readers see it."""
        return self.disks[worker].content(f"{sink}-{part_name(worker)}") or b""

    def durable_bytes(self, worker: int, sink: str) -> int:
        """Return the size of a part that at least remains after a power cut."""
        disk = self.disks[worker]
        handle = disk.open(f"{sink}-{part_name(worker)}", create=True)
        try:
            node, _ = disk._node(handle)
            return min([len(node.stable), *(position for position, _ in node.unsynced)])
        finally:
            disk.close(handle)

    def rows(self, sink: str) -> list[list[str]]:
        """Return the rows of all parts."""
        return [row for worker in range(len(self.disks)) for row in rows_of(self.content(worker, sink))]

    def upto(self, checkpoint: Checkpoint, worker: int, sink: str) -> list[list[str]]:
        """Return the rows of a worker's part up to a checkpoint."""
        prepared = checkpoint.outputs()[worker].sinks.get(sink)  # none in a fork that begins
        size: int = prepared["size"] if prepared else 0
        return rows_of(self.content(worker, sink)[:size])


def rows_of(text: bytes) -> list[list[str]]:
    """Return the values of each row."""
    return [line.split("\t") for line in text.decode().split("\n") if line]


def counts_of(rows: list[list[str]]) -> Counter[str]:
    """Return the last count of each word."""
    return Counter({word: int(count) for word, count in rows})


class Part:
    """One file of one process, with the interface `dataflow.sinks.files.PartPort`."""

    def __init__(
        self, output: Output, worker: int, sink: str, process: Holder, *, is_heir: bool = False
    ) -> None:
        """is_heir: the process completes the part of a worker that has left, and gives it free again."""
        self._is_heir = is_heir
        self.name = part_name(worker)
        self.full_path = f"{sink}-{self.name}"
        self._output = output
        self._worker = worker
        self._process = process
        self._disk = output.disks[worker]
        self._handle = -1

    def open(self, owner: bytes) -> None:
        del owner
        if self._handle >= 0:
            return
        if not self._output.free_for(self._worker, self._process):
            raise SinkWriteError(f"output {self.full_path!r} is still locked by another process")
        self._output.holders[self._worker] = self._process
        self._handle = self._disk.open(self.full_path, create=True)
        self._disk.sync_folder("")

    def incarnation(self) -> int:
        return int(self._disk.content(f"{self.full_path}.incarnation") or b"0")

    def set_incarnation(self, number: int) -> None:
        replace_file(self._disk, "", f"{self.full_path}.incarnation", str(number).encode())

    def size(self) -> int:
        return self._disk.size(self._handle)

    def read(self, position: int, count: int) -> bytes:
        return self._disk.read(self._handle, position, count)

    def write(self, position: int, data: memoryview) -> int:
        assert self._output.holders[self._worker] is self._process, (
            "a process writes only parts that it has locked"
        )
        self._disk.write(self._handle, position, [bytes(data)])
        return len(data)

    def truncate(self, size: int) -> None:
        self._disk.cut(self._handle, size)
        self._disk.sync(self._handle)

    def set_aside(self, checkpoint: int) -> None:
        raise NotImplementedError(f"no run accepts that output is lost, as of checkpoint {checkpoint}")

    def sync(self) -> None:
        if self._handle < 0:
            raise SinkWriteError(f"output {self.full_path!r} was closed before it was synced")
        self._disk.sync(self._handle)

    def close(self) -> None:
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
            if self._is_heir and self._output.holders.get(self._worker) is self._process:
                del self._output.holders[self._worker]


class RegionSink(SinkSpec):
    """The description of a sink whose parts are made by `part_of(worker)`."""

    def __init__(self, part_of: Callable[[int], Part]) -> None:
        self._part_of = part_of

    def check_input(self, schema: pa.Schema) -> None:
        check_text_columns(schema)

    def open(self, context: OperatorContext) -> FileWriter:
        return FileWriter(context, self._part_of(context.worker))


Vote = dict[str, Any]
"""What a checkpoint contains of a part: `file`, `size`, `digest`."""


# --- in output logs ---------------------------------------------------------------------------------------


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

"""The output of a region: the parts of its file sinks, on the disks of its workers' machines.

It has the files and locks; the real `FileWriter` writes and truncates. The lock of a part ensures that one
process writes it at a time; another one waits for the lock.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from checkpoint.core.records.manifest import Checkpoint
from dataflow.errors import SinkWriteError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.files import FileWriter, check_text_columns, part_name
from dos_server.disk import replace_file
from tests.sim.engine.disk import SimDisk


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

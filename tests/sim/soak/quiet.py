"""Parts of the simulator that keep nothing of the past, for runs of any length."""

from typing import TYPE_CHECKING, Any

from checkpoint.core.links.messages import ToWorker, Vote
from checkpoint.core.records.manifest import Checkpoint
from dataflow.sinks.files import part_name
from tests.sim.engine.disk import SimDisk
from tests.sim.engine.trace import Trace
from tests.sim.history import History, ViolationError
from tests.sim.oracles.store import Bench
from tests.sim.regions.output import Holder
from tests.sim.store.machine import Machine
from tests.sim.store.server import ReportedSizes

if TYPE_CHECKING:
    from tests.sim.soak.region import SoakRegion

WINDOW_BYTES = 192 * 1024
"""What a file of the output keeps: more than a reset reads (docs/decisions/0224)."""


class NoTrace(Trace):
    """A trace without lines and without a digest."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self.step = _ignore

    def note(self, now: float, who: str, what: str) -> None:
        self.say(now, who, what)


def _ignore(_: float) -> None:
    """Record nothing."""


class NoHistory(History):
    """A history of events that are counted and not kept."""

    def __init__(self) -> None:
        super().__init__(Bench(()))

    def wrote(self, directory: str, name: str, offset: int, data: bytes) -> None:
        """Record nothing."""


class _NoSizes(ReportedSizes):
    """Sizes that are never used, because no oracle runs."""

    def __setitem__(self, key: tuple[str, str], value: int) -> None:
        """Record nothing."""


class CountingBench(Bench):
    """Counts the requests of a machine's clients."""

    def __init__(self) -> None:
        super().__init__(())
        self.requests = 0

    def request_received(self, *_: Any) -> None:
        self.requests += 1

    def served(self, *_: Any) -> None:
        """Record nothing."""


class CountingDisk(SimDisk):
    """A disk that counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def read(self, handle: int, position: int, count: int) -> bytes:
        data = super().read(handle, position, count)
        self.read_bytes += len(data)
        return data


class SoakMachine(Machine):
    """A machine whose records of the past are empty."""

    disk: CountingDisk
    bench: CountingBench

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.bench = CountingBench()
        self.reported = _NoSizes()

    def _new_disk(self) -> None:
        self.disk = CountingDisk()
        self.disk.sometimes = self.env.sometimes

    def platters(self) -> dict[str, tuple[int, int]]:
        """Return directory -> bytes and number of files on stable storage. The empty name: the files beside
        the directories.
        """
        found: dict[str, tuple[int, int]] = {}

        def visit(folder: Any, path: str) -> None:
            for name, node in folder.stable.items():
                if hasattr(node, "seen") and isinstance(node.seen, dict):
                    visit(node, f"{path}/{name}" if path else name)
                else:
                    size, count = found.get(path, (0, 0))
                    found[path] = size + len(node.stable), count + 1

        visit(self.disk.root, "")
        return found

    @property
    def open_files(self) -> int:
        return len(self.disk._handles)


class TailFile:
    """A file of the output that keeps its last bytes. The rows before them are checked and forgotten: one
    producer numbers them, so the numbers of a worker's part increase.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = 0
        self._tail = bytearray()
        self._last = 0
        self.rows = 0
        self.sum = 0

    @property
    def size(self) -> int:
        return self._begin + len(self._tail)

    def read(self, position: int, count: int) -> bytes:
        if position < self._begin:
            raise ViolationError("O7", f"{self._label}: byte {position} is read, of {self.size}")
        return bytes(self._tail[position - self._begin : position - self._begin + count])

    def write(self, position: int, data: memoryview) -> int:
        at = position - self._begin
        self._tail[at : at + len(data)] = data
        if len(self._tail) > 2 * WINDOW_BYTES:
            self._forget(self._tail.rfind(b"\n", 0, len(self._tail) - WINDOW_BYTES) + 1)
        return len(data)

    def truncate(self, size: int) -> None:
        if size < self._begin:
            raise ViolationError("O7", f"{self._label}: truncated to {size}, of {self.size}")
        del self._tail[size - self._begin :]

    def _forget(self, count: int) -> None:
        for line in bytes(self._tail[:count]).splitlines():
            number = int(line.split(b"\t")[1])
            if number <= self._last:
                raise ViolationError("O8", f"{self._label}: row {number} after row {self._last}")
            self._last = number
            self.rows += 1
            self.sum += number
        del self._tail[:count]
        self._begin += count

    def finish(self) -> None:
        """Check the remaining rows too."""
        self._forget(len(self._tail))


class TailOutput:
    """The output files of the region's workers, as `tests.sim.regions.output.Output`."""

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self.files: dict[str, TailFile] = {}
        self.incarnations: dict[str, int] = {}

    def free_for(self, worker: int, process: Holder) -> bool:
        """Return whether that process may write the worker's parts now."""
        holder = self.holders.get(worker)
        return holder is None or holder is process or not holder.alive


class TailPart:
    """One file of one process, with the interface `dataflow.sinks.files.PartPort`."""

    def __init__(self, output: TailOutput, worker: int, sink: str, process: Holder) -> None:
        self.name = part_name(worker)
        self.full_path = f"{sink}-{self.name}"
        self._output, self._worker, self._process = output, worker, process
        self._file = output.files.setdefault(self.full_path, TailFile(self.full_path))

    def open(self, owner: bytes) -> None:
        del owner
        self._output.holders[self._worker] = self._process

    def incarnation(self) -> int:
        return self._output.incarnations.get(self.full_path, 0)

    def set_incarnation(self, number: int) -> None:
        self._output.incarnations[self.full_path] = number

    def size(self) -> int:
        return self._file.size

    def read(self, position: int, count: int) -> bytes:
        return self._file.read(position, count)

    def write(self, position: int, data: memoryview) -> int:
        assert self._output.holders[self._worker] is self._process, "only the holder writes"
        return self._file.write(position, data)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        """Nothing: these machines do not lose their power."""

    def close(self) -> None:
        """Nothing is open."""


class Commits:
    """The record of a region (`tests.sim.regions.record`) that keeps only the last of everything."""

    def __init__(self, region: "SoakRegion") -> None:
        self._region = region
        self.count = 0
        self.last: Checkpoint | None = None
        self.opened: dict[int, Checkpoint | None] = {0: None}

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is committed."""
        if self.last is not None and checkpoint.number <= self.last.number:
            raise ViolationError(
                "O7", f"checkpoint {checkpoint.number} is committed after {self.last.number}"
            )
        self.last = checkpoint
        self.count += 1
        self._region.committed()

    def started(self, incarnation: int, last: Checkpoint | None) -> None:
        self.opened = {incarnation: last}

    def voted(self, worker: int, incarnation: int, vote: Vote) -> None:
        """Record nothing."""

    def sent(self, message: ToWorker) -> None:
        """Record nothing."""

    def appended(self, checkpoint: Checkpoint, workers: int) -> None:
        """Record nothing."""

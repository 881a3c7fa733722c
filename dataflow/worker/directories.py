"""The directories of a worker's operators in one incarnation: restored, recorded, and durable before a vote.

`PostedChanges` runs on the circuit thread; everything else is trio, without user code. On the worker's
machine the files are in `directories/REGION.wNNNN.STORE/INCARNATION/OPERATOR` of the scratch directory, so
several workers and regions can share one. Files of other incarnations are removed and never read. Without a
scratch directory they are in a temporary one, which its process locks.
"""

import fcntl
import logging
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import trio

from checkpoint import Restore, Rolling, WorkerCheckpoint
from checkpoint.chains.directory_store import DirectoryStore, FilesAt, directory_chain, rebuild_files
from checkpoint.errors import ManifestError
from checkpoint.runtime import runtime
from dataflow import limits
from dataflow.graph.plan import GraphPlan
from dataflow.sinks.base import SinkSpec
from dataflow.state.operator_directory import Handover
from dataflow.worker.layout_change import LayoutChange
from dataflow.worker.messages import DirectoryBegun, DirectoryCheckpoint, FilesChanged, OfDirectories, Post
from journal import Floor, Position, Record, Scratch
from journal.files.directory import snapshot_of
from journal.ports import ClaimPort, StorePort

logger = logging.getLogger("dos.dataflow")


class PostedChanges:
    """A `dataflow.state.operator_directory.ChangeLog`, on the circuit thread, for one directory."""

    def __init__(self, incarnation: int, operator: str, handover: Handover, post: Post) -> None:
        self._incarnation = incarnation
        self._operator = operator
        self._handover = handover
        self._post = post
        self._records: list[Record] = []
        self._record_bytes = 0

    @property
    def snapshot_due(self) -> bool:
        return self._handover.snapshot_due

    def record(self, record: Record) -> None:
        self._records.append(record)
        self._record_bytes += sum(map(len, record.strings)) + limits.directory_record_bytes
        if self._record_bytes >= limits.directory_batch_bytes:
            self.flush()

    def flush(self) -> None:
        if not self._records:
            return
        records, size = tuple(self._records), self._record_bytes
        self._records.clear()
        self._record_bytes = 0
        self._handover.reserve(size)  # before the message: blocks the circuit, so queued changes stay bounded
        self._post(FilesChanged(self._incarnation, self._operator, records, size))

    def begin(self, sizes: Mapping[str, int], copy: Path) -> None:
        self._post(DirectoryBegun(self._incarnation, self._operator, dict(sizes), copy))

    def checkpoint(self, checkpoint: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        self.flush()
        self._post(
            DirectoryCheckpoint(self._incarnation, self._operator, checkpoint, step, dict(sizes), copy)
        )


_TEMPORARY: Final = "dos-directories-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_directory(owner: object) -> Path:
    """Return a new temporary directory. It is removed with `owner`, at the end of this process, or by a later
    call in any process once this one was killed. Raises OSError.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        _remove_unlocked(left)
    while True:
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
        try:
            held = os.open(path, _FOLDER)
        except FileNotFoundError:
            continue  # another process removed it: it was not locked yet
        fcntl.flock(held, fcntl.LOCK_EX)  # waits for a process that is just removing it
        if path.is_dir():
            weakref.finalize(owner, _remove_held, path, held)
            return path
        os.close(held)


def _remove_held(path: Path, held: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(held)


def _remove_unlocked(path: Path) -> None:
    """Remove a directory whose process is dead: the kernel has released its lock."""
    try:
        held = os.open(path, _FOLDER)
    except OSError:
        return  # it is gone, or belongs to another user
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass  # its process lives
    finally:
        os.close(held)


class DirectoriesAtCheckpoint(NamedTuple):
    """The positions and floors of all directories at a checkpoint, for the vote."""

    positions: dict[str, Position]
    floors: dict[str, Floor]


class FormerFiles(NamedTuple):
    """Where the files are at the checkpoint that is restored, if they are not in this worker's own chains."""

    store: StorePort
    region: str
    workers: Mapping[int, Mapping[str, Position]]
    """Worker -> operator -> its position."""
    uids: Mapping[str, str]
    """Operator -> the name under which its files are stored."""
    divides: bool
    """Whether the operator divides the files of all workers anew."""

    @classmethod
    def of(
        cls,
        store: StorePort,
        order: Restore,
        change: LayoutChange | None,
        graph: GraphPlan,
        uids: Mapping[str, str],
    ) -> "FormerFiles | None":
        """Return where they are, by an order with the names of the graph: of all workers in another layout,
        of this worker in a fork; None: in its own chains.
        """
        if order.restore is None or change is None or not (change.moves or change.forks):
            return None
        region = order.restore.chains_of(order.job)
        # A sink's files are its output, which is empty in a fork.
        begins = {name for name, spec in graph.specs.items() if change.forks and isinstance(spec, SinkSpec)}
        workers = {
            one: {name: at for name, at in part.directories.items() if name not in begins}
            for one, part in order.restore.workers.items()
            if change.moves or one == order.worker
        }
        return cls(store, region, workers, uids, change.moves)

    async def rebuild(self, operator: str, root: Path) -> dict[int, Path]:
        """Write the files of an operator below `root`, and return worker -> its files. Raises as
        `rebuild_files`.
        """
        paths = {worker: root / str(worker) for worker, of in sorted(self.workers.items()) if operator in of}
        for worker, path in paths.items():
            at = self.workers[worker][operator]
            await rebuild_files(self.store, self.region, worker, self.uids[operator], at=at, path=path)
        return paths


class Directories:
    """All operator directories of a worker. Call `open`, run `record_all` in a task, `rebuild`; always
    `aclose`.
    """

    # Changes arrive as messages in the order in which they were made, and checkpoints among them: a position
    # covers exactly the changes before the checkpoint, however far the circuit has continued.
    def __init__(
        self, graph: GraphPlan, name: str, incarnation: int, scratch_dir: str, uids: Mapping[str, str]
    ) -> None:
        """name: the worker's directory in the store. uids: operator -> the name under which its files are
        stored.
        """
        self._uids = uids
        self._name = name
        self._operators = [name for name, spec in graph.specs.items() if spec.keeps_files]
        self._incarnation = incarnation
        self._scratch_dir = scratch_dir
        self._stores: dict[str, DirectoryStore] = {}
        self._handovers: dict[str, Handover] = {}
        self._checkpoints: dict[int, dict[str, FilesAt]] = {}
        self._to_record, self._changes = trio.open_memory_channel[OfDirectories](math.inf)
        self._checkpoint_arrived = trio.Event()

    @property
    def replayed_bytes(self) -> int:
        return sum(store.replayed_bytes for store in self._stores.values())

    async def open(
        self,
        claim: ClaimPort,
        part: WorkerCheckpoint | None,
        *,
        generation: int,
        scratch: Scratch | None,
        rolling: Rolling,
    ) -> None:
        """Open every chain at the checkpoint that `part` belongs to; None: at the beginning. Raises
        ManifestError if the checkpoint has no position for an operator, and as `DirectoryStore.open`, in a
        group.
        """
        self._name = f"{self._name}.{claim.store.record.store_id.hex()}"
        for name in self._operators:
            if part is not None and name not in part.directories:
                raise ManifestError(f"the checkpoint has no position for the files of operator {name!r}")

        async def open_one(name: str) -> None:
            self._stores[name] = await DirectoryStore.open(
                claim,
                self._uids[name],
                at=None if part is None else part.directories[name],
                generation=generation,
                scratch=scratch,
                rolling=rolling,
            )

        async with trio.open_nursery() as opening:
            for name in self._operators:
                opening.start_soon(open_one, name)

    async def rebuild(self, former: FormerFiles | None = None) -> dict[str, Handover]:
        """Write the files and return operator -> handover. former: files of other workers, to begin with.
        Raises as `DirectoryStore.rebuild` and `rebuild_files`.
        """
        if not self._operators:
            return {}
        root = await runtime().in_thread(self._make_root)
        for name, store in self._stores.items():
            sources = None
            if former is not None:
                sources = await former.rebuild(name, root / f".{name}.former") or None
            if sources is None:
                await store.rebuild(root / name)
            divides = former is None or former.divides
            handover = Handover(root / name, limits.directory_bytes_ahead, sources, divides=divides)
            handover.snapshot_due = store.snapshot_due
            self._handovers[name] = handover
        return dict(self._handovers)

    def _make_root(self) -> Path:
        """Return an empty directory for this incarnation only. Raises OSError."""
        if not self._scratch_dir:
            return temporary_directory(self)
        root = Path(self._scratch_dir, "directories", self._name, str(self._incarnation))
        root.parent.mkdir(parents=True, exist_ok=True)
        for other in root.parent.iterdir():
            shutil.rmtree(other, onerror=_log_not_removed)
        root.mkdir()
        return root

    # --- from the circuit ---------------------------------------------------------------------------------

    def take(self, message: OfDirectories) -> None:
        """Queue a change or a checkpoint. Never blocks."""
        self._to_record.send_nowait(message)

    async def record_all(self) -> None:
        """Append the queued changes, in order. Raises FencedError."""
        async for message in self._changes:
            store, handover = self._stores[message.operator], self._handovers[message.operator]
            if isinstance(message, FilesChanged):
                await store.append(message.records)
                handover.release(message.size)  # after the append: only then the bytes are in the chain
                continue
            if isinstance(message, DirectoryBegun):
                # What the chain has before stays for the checkpoints that need it.
                await self._snapshot(store, message.copy, message.sizes)
                continue
            at = store.checkpoint(message.checkpoint, message.step, sum(message.sizes.values()))
            self._checkpoints.setdefault(message.checkpoint, {})[message.operator] = at
            self._checkpoint_arrived.set()
            self._checkpoint_arrived = trio.Event()
            if message.copy is not None:
                await self._snapshot(store, message.copy, message.sizes)
            handover.snapshot_due = store.snapshot_due

    async def _snapshot(self, store: DirectoryStore, copy: Path, sizes: Mapping[str, int]) -> None:
        try:
            await store.snapshot(lambda: snapshot_of(copy, sizes))
        finally:
            with trio.CancelScope(shield=True):
                await runtime().in_thread(shutil.rmtree, copy, True)  # noqa: FBT003 - ignore_errors

    # --- a vote -------------------------------------------------------------------------------------------

    async def synced(self, checkpoint: int) -> DirectoriesAtCheckpoint:
        """Wait until all changes before the checkpoint are synced on the quorum. Raises FencedError."""
        while len(self._checkpoints.get(checkpoint, {})) < len(self._operators):
            await self._checkpoint_arrived.wait()
        files = self._checkpoints.pop(checkpoint, {})
        for name, at in files.items():
            await self._stores[name].synced(at)
        return DirectoriesAtCheckpoint(
            {name: at.position for name, at in files.items()},
            {directory_chain(self._uids[name]): at.floor for name, at in files.items()},
        )

    async def aclose(self) -> None:
        """Release callers that wait for room, and stop appending."""
        for handover in self._handovers.values():
            handover.close()
        for store in self._stores.values():
            await store.aclose()


def _log_not_removed(_: object, path: str, why: object) -> None:
    """Log a failed removal. A superseded attempt may still write there; the next incarnation tries again."""
    logger.warning("could not remove files of an earlier incarnation at %s: %s", path, why)

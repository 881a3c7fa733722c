"""The directories of operators in a trial (`trial.py`): real files and records, with lists as chains.

What a region stores is kept in memory and truncated at a crash. The files are rebuilt in a separate directory
for each incarnation, as on a worker. They are deleted with the trial.
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dataflow.graph.builder import GraphPlan
from dataflow.state.directory_handover import Handover
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.worker.circuit import Circuit
from journal import Record
from journal.files.changing import snapshot_of
from journal.files.rebuilding import Rebuilding


@dataclass
class KeptChanges:
    """The chain of one directory (`dataflow.state.operator_directory.ChangeLog`)."""

    records: list[Record] = field(default_factory=list)
    checkpoint_at: int = 0
    """The number of records in the checkpoint that was taken last."""
    committed: int = 0
    """The number of records in the committed checkpoint."""
    snapshot_due: bool = False

    def record(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> None:
        """Nothing is held back."""

    def begin(self, sizes: Mapping[str, int], copy: Path) -> None:
        self.records[:] = snapshot_of(copy, sizes)
        shutil.rmtree(copy)

    def checkpoint(self, checkpoint: int, step: int, sizes: Mapping[str, int], copy: Path | None) -> None:
        del checkpoint, step
        if copy is not None:
            self.records[:] = snapshot_of(copy, sizes)
            shutil.rmtree(copy)
        self.checkpoint_at = len(self.records)

    def crash(self) -> None:
        """Discard what no committed checkpoint holds."""
        del self.records[self.committed :]


class TrialDirectories:
    """The directories of all workers."""

    def __init__(self) -> None:
        self._logs: dict[tuple[int, str], KeptChanges] = {}
        self._former: dict[tuple[int, str], KeptChanges] | None = None
        """While the number of workers changes: those of the workers before."""
        self._open: dict[tuple[int, str], OperatorDirectory] = {}
        self._root: Path | None = None
        self._incarnation = 0

    def begin_incarnation(self) -> None:
        """Begin an incarnation at the committed checkpoint; later changes are discarded."""
        self._incarnation += 1
        self._open.clear()
        for log in self._logs.values():
            log.crash()

    def begin_move(self) -> None:
        """Go to another number of workers: operators make their files from those at the checkpoint."""
        for log in self._logs.values():
            log.crash()
        self._former, self._logs = self._logs, {}

    def end_move(self, *, succeeded: bool) -> None:
        """End what `begin_move` began. Without success the former files are the files again."""
        if not succeeded and self._former is not None:
            self._logs = self._former
        self._former = None

    def hand_to(self, circuit: Circuit, plan: GraphPlan, worker: int) -> None:
        """Rebuild the files of a worker's operators and hand them over."""
        for name, spec in plan.specs.items():
            if spec.keeps_files:
                log = self._logs.setdefault((worker, name), KeptChanges())
                path = self._root_directory() / str(self._incarnation) / str(worker) / name
                if self._former is None:
                    _rebuild(path, log)
                else:
                    sources = {one: log for (one, operator), log in self._former.items() if operator == name}
                    paths = {one: path.with_name(f".{name}.former") / str(one) for one in sorted(sources)}
                    for one, copy in paths.items():
                        _rebuild(copy, sources[one])
                    circuit.begin_directory(name, Handover(path, 0, paths), log)
                self._open[worker, name] = OperatorDirectory(path, log)
                circuit.hand_directory(name, self._open[worker, name])

    def _root_directory(self) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="dos-trial-"))
            weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        return self._root

    def request_snapshots(self, *, due: bool) -> None:
        """Set whether the next checkpoint includes all files."""
        for log in self._logs.values():
            log.snapshot_due = due

    def commit(self) -> None:
        """Commit the checkpoint that was taken last."""
        for log in self._logs.values():
            log.committed = log.checkpoint_at

    def operators(self) -> list[str]:
        """Return the operators with files."""
        return sorted({name for _, name in self._logs})

    def files(self, operator: str, worker: int) -> dict[str, bytes]:
        """Return the files as plain reading sees them. Raises KeyError."""
        root = self._open[worker, operator].path
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


def _rebuild(path: Path, log: KeptChanges) -> None:
    with Rebuilding(path) as rebuilding:
        rebuilding.replay.take((number, record) for number, record in enumerate(log.records, 1))
        rebuilding.put()

"""The directories of a sink whose files are in the store, in a check of that sink (`sink_check`)."""

import shutil
import tempfile
import weakref
from pathlib import Path

from dataflow.sinks.base import SinkWriter
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.testing.directories import KeptChanges
from journal import Record
from journal.files.rebuilding import Rebuilding


class SinkDirectories:
    """Real files and records, with lists as chains.

    The list of a superseded worker is its own, because a chain refuses changes of a superseded worker.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, OperatorDirectory, KeptChanges]] = {}
        """Worker -> newest incarnation, its directory and its changes."""
        self._checkpoints: dict[tuple[int, int], list[Record]] = {}
        """(worker, checkpoint) -> the changes up to there."""
        self._root: Path | None = None
        self._built = 0

    def hand_to(self, writer: SinkWriter, worker: int, incarnation: int, checkpoint: int) -> None:
        """Rebuild the files of a checkpoint, 0: of the beginning, and hand them to a writer."""
        log = KeptChanges(list(self._checkpoints.get((worker, checkpoint), ())))
        directory = OperatorDirectory(self._rebuilt(log.records), log)
        writer.take_directory(directory)
        if incarnation >= self._open.get(worker, (0,))[0]:
            self._open[worker] = (incarnation, directory, log)

    def checkpoint(self, worker: int, number: int) -> None:
        """Take the files of a worker into a checkpoint. No effect for a sink that keeps none."""
        if worker in self._open:
            _, directory, log = self._open[worker]
            log.snapshot_due = number % 2 == 0
            directory.checkpoint(number, number)
            self._checkpoints[worker, number] = list(log.records)

    def at(self, workers: int, checkpoint: int) -> list[Path]:
        """Return the files of each worker as of a committed checkpoint, as a reader restores them."""
        return [self._rebuilt(self._checkpoints.get((worker, checkpoint), [])) for worker in range(workers)]

    def _rebuilt(self, records: list[Record]) -> Path:
        if self._root is None:
            self._root = Path(tempfile.mkdtemp(prefix="dos-sink-check-"))
            weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        self._built += 1
        path = self._root / str(self._built)
        with Rebuilding(path) as rebuilding:
            rebuilding.replay.take(enumerate(records, 1))
            rebuilding.put()
        return path


__all__ = ["SinkDirectories"]

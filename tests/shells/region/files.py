"""An operator of a region that keeps files, and what must be true of them at every checkpoint.

The files are real, in a directory of each worker that is deleted with it.
"""

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from checkpoint.core.records.manifest import Checkpoint
from dataflow import RuntimeContext, UserOperator
from dataflow.state.operator_directory import OperatorDirectory
from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.shells.region.audit import Auditor
    from tests.shells.region.region import ShellRegion

KEEPER = "keeper"


class Keeper(UserOperator):
    """Writes each row to a file, and the number of rows of its word to another one; emits the rows
    unchanged."""

    keeps_files = True
    files: OperatorDirectory

    def open(self, ctx: RuntimeContext) -> None:
        self.files = ctx.directory()

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for word, number in zip(*(batch.column(name).to_pylist() for name in ("word", "id")), strict=True):
            self.files.append("rows", f"{word}\t{number}\n".encode())
            count = self.files.path / "counts" / word
            before = int.from_bytes(count.read_bytes()) if count.exists() else 0
            self.files.write_at(f"counts/{word}", 0, (before + 1).to_bytes(8))
        return batch


def check_files(region: "ShellRegion", audit: "Auditor") -> None:
    """O7: check that the files of a checkpoint contain the rows that the sink received up to it. Raises
    ViolationError."""
    checkpoints = {checkpoint.number: checkpoint for checkpoint in audit.checkpoints}
    for (number, worker), files in audit.files.items():
        _check(region, checkpoints[number], worker, files)


def _check(region: "ShellRegion", checkpoint: Checkpoint, worker: int, files: dict[str, bytes]) -> None:
    output = Counter(map(tuple, region.output.upto(checkpoint, worker, "rows")))
    written = Counter(tuple(line.split("\t")) for line in files.get("rows", b"").decode().splitlines())
    counts = {name: int.from_bytes(data) for name, data in files.items() if name != "rows"}
    expected = Counter(f"counts/{word}" for word, _ in output.elements())
    if written != output or counts != expected:
        raise ViolationError(
            "O7",
            f"checkpoint {checkpoint.number} restores worker {worker} with {written.total()} rows in"
            f" files, counts {counts};"
            f" its output has {output.total()}",
        )

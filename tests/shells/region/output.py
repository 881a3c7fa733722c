"""The output of a region: files on the disks of its workers' machines, and logs in the store.

The files are those of the simulator, written by real writers; logs are read with the code that users use.
"""

from checkpoint.core.records.manifest import Checkpoint
from dataflow.outputs import StepRows
from tests.sim.regions.output import Output


class ShellOutput(Output):
    """The output of one region. `logs`: for each log sink, its steps as they were last read."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.logs: dict[str, list[StepRows]] = {}

    def rows(self, sink: str) -> list[list[str]]:
        if sink not in self.logs:
            return super().rows(sink)
        return [
            row for step in self.logs[sink] for worker in sorted(step.parts) for row in of_step(step, worker)
        ]

    def upto(self, checkpoint: Checkpoint, worker: int, sink: str) -> list[list[str]]:
        if sink not in self.logs:
            return super().upto(checkpoint, worker, sink)
        return [
            row for step in self.logs[sink] if step.step <= checkpoint.step for row in of_step(step, worker)
        ]

    def open_files(self) -> list[str]:
        """Return the paths of the open files."""
        return sorted(path for disk in self.disks for _, path in disk._handles.values())


def of_step(step: StepRows, worker: int) -> list[list[str]]:
    """Return one worker's rows of a step."""
    table = step.parts[worker]
    if table is None:
        return []
    columns = [column.to_pylist() for column in table.columns]
    return [[str(value) for value in row] for row in zip(*columns, strict=True)]

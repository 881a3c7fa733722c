"""How much a worker reads at once: batches that take a function tens of milliseconds, also the first one."""

from pathlib import Path

import pyarrow as pa
import pytest

from checkpoint.core.records.layout import even_layout
from dataflow import CallSink, FileSource, Graph
from dataflow.limits import WorkerLimits, batch_bytes_max
from dataflow.worker.circuit import Circuit
from dataflow.worker.circuit_thread import StepInput
from dataflow.worker.messages import Shared
from dataflow.worker.spec import Clock


class Worked(Clock):
    """A clock that moves when a function works."""

    now = 0.0

    def seconds(self) -> float:  # type: ignore[override]
        return self.now


class Steps:
    """A process that reads a file with a function that needs `row_s` for each row."""

    def __init__(self, folder: Path, row_s: float) -> None:
        (folder / "lines").write_text("23 bytes in every line\n" * 300_000)
        self.shared, self.clock, self.batches = Shared(), Worked(), list[int]()

        def works(batch: pa.RecordBatch) -> pa.Array:
            self.batches.append(batch.num_rows)
            self.clock.now += row_s * batch.num_rows
            return batch.column("line")

        graph = Graph("working")
        lines = graph.source("lines", FileSource([folder / "lines"]))
        lines.map("works", works, takes="batch").sink("out", CallSink(list))
        self._plan = graph.plan()

    def first_step_s(self) -> float:
        """Start an incarnation, and return how long its first step takes."""
        circuit = Circuit(
            self._plan, region="r", worker=0, workers=1, store_id=bytes(16), layout=even_layout(1)
        )
        self.batches.clear()
        begin = self.clock.now
        StepInput(circuit, WorkerLimits(), self.shared, self.clock, 0).fill(1)
        circuit.close()
        return self.clock.now - begin


@pytest.mark.parametrize("row_s", [1.2e-3, 3e-3])
def test_the_first_batch_of_a_process_is_short_whatever_its_function_costs(
    row_s: float, tmp_path: Path
) -> None:
    """It was of 64 KiB: 2.7 s and 8 s without any output, after each start, reset and take-over."""
    steps = Steps(tmp_path, row_s)
    assert steps.first_step_s() < 0.6


def test_what_was_learned_outlives_an_incarnation(tmp_path: Path) -> None:
    steps = Steps(tmp_path, 1e-6)
    steps.first_step_s()
    assert sorted(steps.batches[:5]) == steps.batches[:5], "it grows at once"
    largest = max(steps.batches)
    steps.first_step_s()
    assert steps.batches[0] >= largest
    assert 23 * steps.batches[0] > batch_bytes_max / 2

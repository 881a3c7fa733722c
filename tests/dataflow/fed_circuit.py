"""One worker's circuit that reads an input handle step by step, and the rows and pieces that it is given."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa

from checkpoint.core.records.divisions import Division
from checkpoint.core.records.inputs import InputPiece
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.manifest import SplitPosition
from dataflow import CallSink, Count, Graph, InputSource, Tumbling
from dataflow.core.event_time import is_time
from dataflow.limits import WorkerLimits
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchBuffer, PrefetchedReader
from dataflow.worker.circuit import Circuit
from dataflow.worker.circuit_thread import StepInput
from dataflow.worker.messages import Shared
from dataflow.worker.spec import Clock
from tests.dataflow.test_windows_in_regions import EPOCH, SIZE

SCHEMA = "at timestamp, key string"


def row(second: int) -> dict[str, Any]:
    return {"at": EPOCH + timedelta(seconds=second), "key": "k"}


def a_piece(split: str, number: int, rows: list[dict[str, Any]], *, last: bool = True) -> InputPiece:
    batch = pa.RecordBatch.from_pylist(rows, parse_schema(SCHEMA))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return InputPiece(split, number - 1, number, number, len(rows), bytes(sink.getvalue()), last)


class FedCircuit:
    """One worker's circuit that reads an input handle, a step at a time, as the runtime has it do."""

    def __init__(
        self, idle_after: timedelta | None = None, entry: str = "", keeps: Callable[[Any], bool] | None = None
    ) -> None:
        """keeps: a filter above `event_time`."""
        graph = Graph("g")
        rows = graph.source("rows", InputSource("rows", SCHEMA, entry=entry))
        if keeps is not None:
            rows = rows.filter("kept", keeps)
        lateness = None if entry else timedelta(0)
        timed = rows.event_time("timed", "at", lateness=lateness, idle_after=idle_after, marks=bool(entry))
        timed.key_by("by_key", "key").aggregate(
            "counts", Tumbling("at", timedelta(seconds=SIZE)), n=Count()
        ).sink("out", CallSink(print))
        self._plan = graph.plan()
        self.now = 0.0
        self.buffer = PrefetchBuffer()
        self.open({})

    def open(self, positions: Mapping[str, Mapping[str, SplitPosition]]) -> None:
        self.circuit = Circuit(
            self._plan, region="r", worker=0, workers=1, store_id=bytes(16), layout=even_layout(1)
        )
        reader = self.circuit.sources["rows"]
        assert isinstance(reader, PrefetchedReader)
        reader.reset_to(positions.get("rows", {}))
        reader.attach(self.buffer)
        self.circuit.time.restore(positions)
        self.step_number = 0
        limits = WorkerLimits(step_bytes_max=4096, batch_bytes_max=4096)
        self.shared = Shared()
        self.reading = StepInput(self.circuit, limits, self.shared, clock_of(self), 0)

    def step(self, recorded: Division | None = None) -> tuple[int, dict[str, Any]]:
        """The watermark in seconds that the step sends (or one of those that are no time), its division."""
        self.step_number += 1
        if recorded is None:
            self.reading.fill(self.step_number)
        else:
            self.reading.replay(self.step_number, recorded)
        taken, now = self.reading.take_division(recorded)
        self.circuit.end_sources(self.step_number, now)
        taken |= self.circuit.time.division(self.step_number)
        watermark = self.circuit.time.to_send(self.step_number, 0)
        return ((watermark + 1) // 1_000_000 if is_time(watermark) else watermark), taken

    def held_by(self) -> str:
        """What holds the watermark back, in words."""
        return self.circuit.time.held["timed"].text()

    def positions(self) -> dict[str, dict[str, SplitPosition]]:
        """As a checkpoint holds them."""
        found = {"rows": self.circuit.sources["rows"].positions(), **self.circuit.time.positions()}
        assert all(
            at.position >= 0 and 0 <= at.digest < 1 << 64 for part in found.values() for at in part.values()
        )
        return found


def clock_of(of: FedCircuit) -> Clock:
    class At(Clock):
        def seconds(self) -> float:
            return of.now

    return At()

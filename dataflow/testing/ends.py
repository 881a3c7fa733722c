"""Stand-ins for sources and sinks in a trial (`trial.py`): sources that are fed, sinks that keep their
rows.

They use no files and no store; between them runs the real circuit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from checkpoint import SplitPosition
from dataflow.core.event_time import UNKNOWN, Watermark, further
from dataflow.operators.base import OperatorContext, OperatorSpec
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sources.base import Positions, SourceBatch, SourceDivision, SourceReader, SourceSpec


def stand_in(spec: OperatorSpec, schema: pa.Schema | None) -> OperatorSpec:
    """Return what a trial runs for an operator: itself, unless it is a source or a sink."""
    if isinstance(spec, SourceSpec):
        return TrialSource(schema)
    return TrialSink() if isinstance(spec, SinkSpec) else spec


@dataclass(frozen=True, slots=True)
class TrialSource(SourceSpec):
    schema: pa.Schema

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        del inputs
        return self.schema

    def open(self, context: OperatorContext) -> "TrialReader":
        del context
        return TrialReader()


class TrialReader(SourceReader):
    """A source that reads nothing: the trial feeds its circuit."""

    exhausted = False

    def reset_to(self, positions: Mapping[str, SplitPosition]) -> None:
        """There are no positions."""

    def read(self, bytes_max: int) -> SourceBatch | None:
        del bytes_max
        return None

    def replay(self, division: SourceDivision) -> list[SourceBatch]:
        del division
        return []

    def take_division(self) -> SourceDivision:
        return {}

    def positions(self) -> Positions:
        return {}

    def describe(self, source: SourceBatch, row: int | None) -> str:
        del source
        return "the rows given" if row is None else f"row {row} of those given"


@dataclass(frozen=True, slots=True)
class TrialSink(SinkSpec):
    def open(self, context: OperatorContext) -> "TrialWriter":
        del context
        return TrialWriter()


@dataclass(slots=True)
class TrialWriter(SinkWriter):
    batches: list[pa.RecordBatch] = field(default_factory=list)
    watermark: Watermark = UNKNOWN
    """The watermark of its rows after the newest step."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self.batches.append(batch)
        return ()

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        del index
        self.watermark = further(self.watermark, watermark)
        return ()

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches since the last call."""
        batches, self.batches = self.batches, []
        return batches

    def prepare(self, checkpoint: int) -> None:
        del checkpoint

    def sync(self) -> None:
        """Nothing is written."""

    def reset_to(self, prepared: Any | None) -> None:
        """A crash opens new writers."""

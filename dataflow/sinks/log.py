"""A sink into the store itself: an output log per worker, read by anyone who reaches the store.

Rules of this file: rows in, one Arrow stream a step out. Where that is written, and when it may be seen, is
`checkpoint.core.outputs`' and the link thread's.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from checkpoint.core.outputs import Publish
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, kind_of
from dataflow.core.delivery import Delivery
from dataflow.errors import DeliveryError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dos_protocol.digests import digest64


@dataclass(frozen=True, slots=True, init=False)
class LogSink(SinkSpec):
    """Keeps the output in the store, under the region's name: `dataflow.read_output` gives it back.

        LogSink(publish="step")

    publish: "cut" shows the output of a step when a cut that covers it is committed; "step" as soon as the
    division of its input is durable at every worker, which is sooner, and asks that all before the sink give
    the same for the same input. A replay that makes other rows than were shown stops the region.
    """

    publish: Publish

    def __init__(self, *, publish: str = "cut") -> None:
        if publish not in tuple(Publish):
            known = " or ".join(repr(str(one)) for one in Publish)
            raise SchemaError(f"publish is {known}, not {publish!r}")
        object.__setattr__(self, "publish", Publish(publish))

    def check_input(self, schema: pa.Schema) -> None:
        """With publish="step", columns must be of types that can be compared. Raises SchemaError."""
        if self.publish is not Publish.STEP:
            return
        for field in schema:
            try:
                kind_of(field.type)
            except UnsupportedKeyTypeError as error:
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, which is not compared after a replay; use"
                    ' publish="checkpoint", or give a column of a plain type'
                ) from error

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """A log that shows steps compares what is made again, and at-most-once makes nothing again."""
        if wanted == "at-most-once" and self.publish is Publish.STEP:
            text = 'with publish="step" compares what a replay gives, of which there is none'
            raise DeliveryError(text, remedy='use LogSink(publish="checkpoint")')
        return SinkSpec.delivers(self, wanted)

    def open(self, context: OperatorContext) -> "LogWriter":
        return LogWriter(context.inputs[0], compared=self.publish is Publish.STEP)


class StepOutput(NamedTuple):
    """What one step gave: `data` is an Arrow stream of one batch, b"" without rows."""

    rows: int
    digest: int
    data: bytes


class LogWriter(SinkWriter):
    """Collects the rows of a step. Steps ended are taken by `take_step`, in order."""

    def __init__(self, schema: pa.Schema, *, compared: bool) -> None:
        self._schema = schema
        self._compared = compared
        self._batches: list[pa.RecordBatch] = []
        self._ended: deque[StepOutput] = deque()

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._batches.append(batch)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches = []
        self._ended.append(self._output(table) if table.num_rows else StepOutput(0, 0, b""))
        return ()

    def take_step(self) -> StepOutput:
        """The oldest step that was ended and not taken."""
        return self._ended.popleft()

    def _output(self, table: pa.Table) -> StepOutput:
        digest = 0
        if self._compared:
            digest = digest64(hash_keys(table.columns).astype(">u8").tobytes())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_table(table.combine_chunks())
        return StepOutput(table.num_rows, digest, sink.getvalue().to_pybytes())

    def prepare(self, cut: int) -> Any:
        """The link thread says where the log ends."""
        del cut

    def sync(self) -> None:
        """The link thread waits for the log, not here."""

    def reset_to(self, prepared: Any | None) -> None:
        """The link thread opens the log where the cut says."""
        del prepared
        self.reset()

    def reset(self) -> None:
        self._batches = []
        self._ended.clear()

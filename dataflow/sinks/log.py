"""A sink into the store itself: an output log per worker, which any client of the store can read.

This file converts rows to one Arrow stream per step. `checkpoint.core.outputs` and the link thread decide
where a stream is written and when it becomes visible.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from checkpoint import Publish, RetentionRule
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, kind_of
from dataflow.core.delivery import Delivery
from dataflow.errors import DeliveryError, SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dos_protocol.digests import digest64

_PUBLISH: Final = {"step": Publish.STEP, "checkpoint": Publish.CUT}
"""The values of the parameter `publish`. Stored records keep the name "cut"."""
_RETAIN: Final = ("all", "unread")


@dataclass(frozen=True, slots=True, init=False)
class LogSink(SinkSpec):
    """Stores the output in the store, under the region's name; `dataflow.read_output` reads it.

        LogSink(publish="step")

    publish: "checkpoint" makes the output of a step visible when a checkpoint that covers it is committed.
    "step" makes it visible as soon as the step's input division is durable at every worker, which is sooner,
    but requires all upstream operators to be deterministic. A replay whose rows differ from visible ones
    stops the region.

    retain: "all" deletes nothing unless a limit is set. "unread" deletes what every registered consumer (a
    region that reads with `LogSource`) has read, once there is one. max_bytes, max_age: of each worker's log,
    keep the newest bytes, and rows younger than this many seconds; what exceeds a limit is deleted even if a
    consumer needs it. `dos output retain` replaces all three.

    Raises SchemaError.
    """

    publish: Publish
    rule: RetentionRule

    @property
    def shows_steps(self) -> bool:
        return self.publish is Publish.STEP

    @property
    def unchecked_place(self) -> str:
        return ""  # its destination belongs to the region

    def __init__(
        self,
        *,
        publish: str = "checkpoint",
        retain: str = "all",
        max_bytes: int | None = None,
        max_age: float | None = None,
    ) -> None:
        if publish not in _PUBLISH:
            known = " or ".join(map(repr, _PUBLISH))
            raise SchemaError(f"publish must be {known}, not {publish!r}")
        object.__setattr__(self, "publish", _PUBLISH[publish])
        if retain not in _RETAIN:
            raise SchemaError(f"retain must be {' or '.join(map(repr, _RETAIN))}, not {retain!r}")
        for name, value in (("max_bytes", max_bytes), ("max_age", max_age)):
            if value is not None and not 0 < value < float("inf"):
                raise SchemaError(f"{name} must be above 0, got {value}")
        rule = RetentionRule(by_consumers=retain == "unread", bytes_max=max_bytes, age_max_s=max_age)
        object.__setattr__(self, "rule", rule)

    def check_input(self, schema: pa.Schema) -> None:
        """Require columns of comparable types if publish="step". Raises SchemaError."""
        if self.publish is not Publish.STEP:
            return
        for field in schema:
            try:
                kind_of(field.type)
            except UnsupportedKeyTypeError as error:
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, which cannot be compared after a replay; use"
                    ' publish="checkpoint", or convert the column to a plain type'
                ) from error

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Raise DeliveryError for at-most-once if publish="step".

        With publish="step" the log compares replayed rows, and at-most-once replays nothing.
        """
        if wanted == "at-most-once" and self.publish is Publish.STEP:
            text = 'with publish="step" compares the rows of a replay, and at-most-once has none'
            raise DeliveryError(text, remedy='use LogSink(publish="checkpoint")')
        return SinkSpec.delivers(self, wanted)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # readers merge the logs of all replicas

    def open(self, context: OperatorContext) -> "LogWriter":
        return LogWriter(context.inputs[0], compared=self.publish is Publish.STEP)


class StepOutput(NamedTuple):
    """The output of one step. `data` is an Arrow stream of one batch, b"" if there are no rows."""

    rows: int
    digest: int
    data: bytes


class LogWriter(SinkWriter):
    """Collects the rows of a step. `take_step` returns the ended steps, in order."""

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
        """Remove and return the oldest ended step."""
        return self._ended.popleft()

    def _output(self, table: pa.Table) -> StepOutput:
        digest = 0
        if self._compared:
            digest = digest64(hash_keys(table.columns).astype(">u8").tobytes())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            writer.write_table(table.combine_chunks())
        return StepOutput(table.num_rows, digest, sink.getvalue().to_pybytes())

    def prepare(self, checkpoint: int) -> Any:
        """Return nothing: the link thread records the end of the log."""
        del checkpoint

    def sync(self) -> None:
        """Do nothing: the link thread waits for the log."""

    def reset_to(self, prepared: Any | None) -> None:
        """Discard pending rows; the link thread opens the log at the position in the checkpoint."""
        del prepared
        self._batches = []
        self._ended.clear()

"""A sink into the store itself: an output log per worker, which any client of the store can read."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from checkpoint import OutputTime, Publish, RetentionRule, limits
from checkpoint.errors import RecordTooLargeError, UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, kind_of
from dataflow.core.event_time import IDLE, Watermark, further, is_time
from dataflow.core.regions import Delivery
from dataflow.errors import DeliveryError, SchemaError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.operators.event_time import latest_times
from dataflow.sinks.base import SinkSpec, SinkWriter
from dos_protocol.digests import digest64

_RETAIN: Final = ("all", "unread")


@dataclass(frozen=True, slots=True, init=False)
class LogSink(SinkSpec):
    """Stores the output in the store, under the region's name; `dataflow.read_output` reads it.

        LogSink(publish="step")

    publish: "checkpoint" makes the output of a step visible when a checkpoint that covers it is committed.
    "step" makes it visible as soon as the step's input division is durable at every worker, but requires all
    upstream operators to be deterministic: a replay whose rows differ from visible ones stops the region.

    retain: "all" deletes nothing unless a limit is set. "unread" deletes what every registered consumer (a
    region that reads with `LogSource`) has read, once there is one. In a region that a query drives
    (`through`), "all" is as "unread", and the query, which has the rows in its own sink, is a consumer.
    max_bytes, max_age: of each worker's log, keep the newest bytes, and rows younger than this many seconds;
    what exceeds a limit is deleted even if a consumer needs it. `dos output retain` replaces all three.

    time: the column with the event time of the rows; of several, the later one counts. Readers then learn how
    far the output is (its *mark*), and replicas of the region can be merged. A row that is not later than
    every mark before it stops the region. Raises SchemaError.
    """

    columns_stay: ClassVar[Literal["all", "old", "none"]] = "old"
    publish: Publish
    rule: RetentionRule
    time: tuple[str, ...]

    @property
    def leaves_rows(self) -> bool:
        return False  # they are in the store

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
        time: str | Sequence[str] = (),
    ) -> None:
        object.__setattr__(self, "time", (time,) if isinstance(time, str) else tuple(time))
        if publish not in list(Publish):
            known = " or ".join(repr(one.value) for one in Publish)
            raise SchemaError(f"publish must be {known}, not {publish!r}")
        object.__setattr__(self, "publish", Publish(publish))
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

    def detail(self) -> str:
        publish = "publish step" if self.shows_steps else ""
        time = f"time {', '.join(self.time)}" if self.time else ""
        return " ".join(filter(None, ("LogSink", publish, time)))

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Raise DeliveryError for at-most-once, which replays nothing, if publish="step", which compares
        replays.
        """
        if wanted == "at-most-once" and self.publish is Publish.STEP:
            text = 'with publish="step" compares the rows of a replay, and at-most-once has none'
            raise DeliveryError(text, remedy='use LogSink(publish="checkpoint")')
        return SinkSpec.delivers(self, wanted)

    def time_in(self, prepared: Any | None) -> OutputTime | None:
        """Return how far event time is in what a checkpoint stores of this sink; None without times."""
        if not self.time:
            return None
        return OutputTime() if prepared is None else msgspec.convert(prepared, OutputTime)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # readers merge the logs of all replicas

    def open(self, context: OperatorContext) -> "LogWriter":
        return LogWriter(self, context.inputs[0])


class StepOutput(NamedTuple):
    """The output of one step. `data` is an Arrow stream of one batch, b"" if there are no rows."""

    rows: int
    digest: int
    data: bytes
    time: OutputTime | None = None


class LogWriter(SinkWriter):
    """Collects the rows of a step. `take_step` returns the ended steps, in order."""

    may_repeat: ClassVar[bool] = True

    def __init__(self, spec: LogSink, schema: pa.Schema) -> None:
        self._spec = spec
        self._schema = schema
        self._time = spec.time_in(None)
        self._batches: list[pa.RecordBatch] = []
        self._ended: deque[StepOutput] = deque()

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        if self._time is not None:
            self._time = self._after(batch, self._time)
        self._batches.append(batch)
        return ()

    def _after(self, batch: pa.RecordBatch, time: OutputTime) -> OutputTime:
        """Return how far event time is after rows. Raises UserFault for one not later than the last mark."""
        times = latest_times(batch, self._spec.time)
        if (first := int(times.min())) <= time.mark:
            named = " and ".join(map(repr, self._spec.time))
            raise UserFault(
                f"the time of a row, in column {named}, is {np.datetime64(first, 'us')}, and the sink has"
                f" promised that all rows after {np.datetime64(time.mark, 'us')} are later",
                row=int(times.argmin()),
                remedy="name a column that is never before the watermark of its rows: of a window the"
                " column with its end, of a join both times, time=('a', 'b')",
            )
        return OutputTime(time.mark, max(time.high, int(times.max())))

    def counters(self) -> dict[str, int]:
        """Return the mark, once there is one."""
        known = self._time is not None and is_time(self._time.mark)
        return {"mark_us": self._time.mark} if known and self._time else {}

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        del index
        if self._time is not None:
            self._time = OutputTime(further(self._time.mark, watermark), self._time.high)
            idle = watermark == IDLE  # another worker gets all rows, as long as the layout is this one
            shown = OutputTime(IDLE, self._time.high) if idle else self._time
            self._ended[-1] = self._ended[-1]._replace(time=shown)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches = []
        made = self._output(table) if table.num_rows else StepOutput(0, 0, b"")
        self._ended.append(made._replace(time=self._time))
        return ()

    def take_step(self) -> StepOutput:
        """Remove and return the oldest ended step."""
        return self._ended.popleft()

    def _output(self, table: pa.Table) -> StepOutput:
        digest = 0
        if self._spec.publish is Publish.STEP:  # compared with what a replay makes
            digest = digest64(hash_keys(table.columns).astype(">u8").tobytes())
        large = table.nbytes > limits.output_step_plain_bytes_max
        options = pa.ipc.IpcWriteOptions(compression="zstd" if large else None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=options) as writer:
            writer.write_table(table.combine_chunks())
        data = sink.getvalue()
        if data.size > limits.output_step_bytes_max:
            raise RecordTooLargeError(
                f"a step has {table.num_rows:,} rows here, {data.size / (1 << 20):.1f} MiB when compressed,"
                f" and a LogSink stores at most {limits.output_step_bytes_max >> 20} MiB of a worker's step",
                remedy="run the region with more workers: it continues from its last checkpoint. If many"
                " windows end together, a ParquetSink has no such limit",
            )
        return StepOutput(table.num_rows, digest, data.to_pybytes())

    def prepare(self, checkpoint: int) -> Any:
        """Return how far event time is. The link thread adds the end of the log."""
        del checkpoint
        return msgspec.to_builtins(self._time)

    def sync(self) -> None:
        """Do nothing: the link thread waits for the log."""

    def reset_to(self, prepared: Any | None) -> None:
        """Discard pending rows; the link thread opens the log at the position in the checkpoint."""
        self._time = self._spec.time_in(prepared)
        self._batches = []
        self._ended.clear()

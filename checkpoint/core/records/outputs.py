"""Output by step: the records of an output log, and whether the output of a step is appended or discarded.

Pure: values and decisions. `output_log.py` keeps the chain that holds the records.

Theory (distributed-dbsp, "Output"). If the log has the output of steps first..last, then the output of

| step | is |
|---|---|
| before first | discarded: it was in the log and was deleted |
| first..last | made again by a replay: compared and discarded |
| last + 1 | appended |
| after last + 1 | refused: it would leave a gap |
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

import msgspec

from checkpoint.errors import OutputDiffersError
from dos_protocol.errors import MALFORMED_JSON, CorruptDataError, LocalProtocolError
from journal import Position

OUTPUT_CHAIN_PREFIX: Final = "out-"


# The sink determines when output becomes visible:
#
# - `publish="step"`: as soon as it is in the log. It is appended only when the input division of that step is
#   durable on every worker ("Input/output synchronization"), so that a reset makes the same output again.
#   Such a log is never rolled back.
# - `publish="checkpoint"`: when a committed checkpoint covers it. The log is rolled back with the state,
#   so it needs no determinism.
class Publish(StrEnum):
    """When the output of a step becomes visible. The texts are in records and never change."""

    STEP = "step"
    CHECKPOINT = "checkpoint"


def output_chain(sink: str) -> str:
    """Return the name of the chain of a sink's output on one worker."""
    return f"{OUTPUT_CHAIN_PREFIX}{sink}"


BEFORE_ALL: Final = -(1 << 63)
"""A time before that of any row."""


class OutputTime(msgspec.Struct, frozen=True):
    """How far event time is on one worker's log just after a step. mark: all later rows have later times;
    BEFORE_ALL + 1: no row comes here, in this layout. high: no row so far has a later time.
    """

    mark: int = BEFORE_ALL
    high: int = BEFORE_ALL


# One record: op OUTPUT, ints = [step, wall clock ms, rows, digest], strings = [JSON of OutputHead, Arrow IPC
# stream]. Every step of the region has one, even without rows, so that a reader knows how far it has read.
class OutputHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a record that describes its rows."""

    sink: str
    publish: Publish
    inputs: dict[str, dict[str, int]] = {}
    """Source -> split -> how far this worker had read it at the end of the step, in the source's own unit.

    The output of a step corresponds to the inputs of all workers.
    """
    begins: bool = False
    """Set in a record without rows, which is no step: the worker joins the region after this step. The steps
    since the log's last one, if there are any, were made by other workers.
    """
    line: int = 0
    """The line of history to which the step belongs (`core/records/lines.py`)."""
    time: OutputTime | None = None
    """Set if the sink names the time of its rows. Every record has it, so trimming loses none."""
    workers: int
    """How many workers made this step: its rows are on the logs of the workers 0 to workers - 1. A reader has
    the whole step when it has the records of all of them."""


class Output(NamedTuple):
    """The rows that one worker's sink received in one step."""

    step: int
    time_ms: int
    """Wall clock when it was appended; for people."""
    rows: int
    digest: int
    """The digest of the rows in order, independent of batches; 0: not compared."""
    head: OutputHead
    data: bytes
    """An Arrow IPC stream with the sink's columns; empty without rows."""


class OutputRecord(NamedTuple):
    """The arguments of the journal record of an output, whose op is OUTPUT."""

    ints: tuple[int, int, int, int]
    strings: tuple[bytes, bytes]


_decoder: "msgspec.json.Decoder[OutputHead]" = msgspec.json.Decoder(OutputHead)


def encode_output(output: Output) -> OutputRecord:
    """Return the record of an output."""
    ints = (output.step, output.time_ms, output.rows, output.digest)
    return OutputRecord(ints, (msgspec.json.encode(output.head), output.data))


def decode_output(ints: Iterable[int], strings: Sequence[bytes], *, where: str, at: int) -> Output:
    """Return the output in the record that ends at `at` of the chain `where`. Raises CorruptDataError."""
    numbers = tuple(ints)
    if len(numbers) != 4 or len(strings) != 2:
        found = f"{len(numbers)} ints and {len(strings)} strings"
        raise CorruptDataError(where, at, "an output of 4 ints and 2 strings", found)
    try:
        head = _decoder.decode(strings[0])
    except MALFORMED_JSON as error:
        raise CorruptDataError(where, at, "the JSON head of an output", str(error)) from error
    step, time_ms, rows, digest = numbers
    if bool(rows) != bool(strings[1]):
        raise CorruptDataError(where, at, "data if and only if there are rows", f"{rows} rows")
    return Output(step, time_ms, rows, digest, head, strings[1])


class BatchOutput:
    """Which output of a log the batches of a query may still read: that of the last two, and of those that
    were processed in the last `kept_s` seconds. All of it, as long as this has not seen enough batches.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._needed_from = 0
        self._ends: deque[tuple[int, float]] = deque()
        """(size of the log at the end of a batch, when its checkpoint was committed), in order."""

    def processed(self, end: int, now: float) -> None:
        """Note that the checkpoint of a batch is committed, whose output ends at this size of the log."""
        self._ends.append((end, now))

    def needed_from(self, now: float) -> int:
        """Return the size of the log from which on it is needed."""
        # The output of a batch begins at the end of the one before.
        while len(self._ends) > 2 and now - self._ends[1][1] >= self._kept_s:
            self._needed_from = self._ends.popleft()[0]
        return self._needed_from


class OutputDecision(Enum):
    """The decision about the output of a step."""

    DISCARD = auto()
    """The log has it, or had it before it was deleted."""
    APPEND = auto()


class OutputSequence:
    """The steps whose output one log holds, without a gap, up to `last`. after: the step of the restored
    checkpoint.
    """

    def __init__(self, sink: str, after: int) -> None:
        self.sink = sink
        self.last = after
        self._kept: dict[int, tuple[int, Position]] = {}

    def add(self, step: int, digest: int, end: Position) -> None:
        """Note that the log has this step, up to `end`. Raises LocalProtocolError for a gap."""
        if step <= self.last and not self._kept:
            return
        if step != self.last + 1:
            raise LocalProtocolError(
                f"output of step {step} cannot follow step {self.last} in {self.sink!r}: steps have no gaps"
            )
        self._kept[step] = (digest, end)
        self.last = step

    def judge(self, step: int, digest: int) -> OutputDecision:
        """Return what to do with the output of a step. Raises OutputDiffersError, LocalProtocolError for a
        gap.
        """
        if step == self.last + 1:
            return OutputDecision.APPEND
        if step > self.last:
            raise LocalProtocolError(
                f"output of step {step} cannot follow step {self.last} in {self.sink!r}: steps have no gaps"
            )
        known = self._kept.get(step)
        if known is not None and known[0] != digest:
            raise OutputDiffersError(self.sink, step, known[0], digest)
        return OutputDecision.DISCARD

    def end_of(self, step: int) -> Position | None:
        """Return the position just after the output of a step, None if it is unknown or forgotten."""
        known = self._kept.get(step)
        return known[1] if known is not None else None

    def forget(self, until: int) -> None:
        """Drop the steps up to `until`: this incarnation voted for them and does not make them again."""
        self._kept = {step: known for step, known in self._kept.items() if step > until}

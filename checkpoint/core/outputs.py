"""Output by step: what a record of an output log holds, and what becomes of the output of a step.

Rules of this file: values and decisions; the chain that holds the records is `output_log.py`'s.

Theory (distributed-dbsp, "Output"). The output of steps first..last is in the log. The output of an older
step is there already or was deleted: it is discarded. One within is made again by a replay: it is compared
and discarded. The next is appended; a later one would leave a hole and is refused. What is *shown* depends
on the sink: `publish="step"` shows a step as soon as it is in the log, and puts it there only when the
division of that step is durable at every worker ("Input/output synchronization"), so that a reset makes the
same output again; such a log is never rolled back. `publish="checkpoint"` shows what a committed cut covers; its
log is rolled back with the state, and so needs no determinism.

One record: op OUTPUT, ints = [step, wall clock ms, rows, digest], strings = [JSON of OutputHead, Arrow IPC
stream]. Every step that the region made has one, also without rows: so a reader knows how far it has seen.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

import msgspec

from checkpoint.errors import OutputDiffersError
from dos_protocol.errors import CorruptDataError, LocalProtocolError
from journal.core.position import Position

OUTPUT_CHAIN_PREFIX: Final = "out-"


class Publish(StrEnum):
    """When readers see the output of a step. The texts are in records: they never change."""

    STEP = "step"
    CUT = "cut"


def output_chain(sink: str) -> str:
    """The name of the chain of a sink's output on one worker."""
    return f"{OUTPUT_CHAIN_PREFIX}{sink}"


class OutputHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader of a record should know. inputs: source -> split -> how far this worker had read it when
    the step ended, in the source's own unit; the output of a step corresponds to those of all workers.
    """

    sink: str
    publish: Publish
    inputs: dict[str, dict[str, int]] = {}


class Output(NamedTuple):
    """What one worker's sink was given in one step."""

    step: int
    time_ms: int
    """Wall clock when it was put into the log; for people."""
    rows: int
    digest: int
    """Of the rows in their order, whatever batches they came in; 0: not to be compared."""
    head: OutputHead
    data: bytes
    """An Arrow IPC stream with the sink's columns; b"" without rows."""


class OutputRecord(NamedTuple):
    """The arguments of the journal record of an output; op is OUTPUT."""

    ints: tuple[int, int, int, int]
    strings: tuple[bytes, bytes]


_decoder: "msgspec.json.Decoder[OutputHead]" = msgspec.json.Decoder(OutputHead)


def encode_output(output: Output) -> OutputRecord:
    """The record of an output."""
    ints = (output.step, output.time_ms, output.rows, output.digest)
    return OutputRecord(ints, (msgspec.json.encode(output.head), output.data))


def decode_output(ints: Iterable[int], strings: Sequence[bytes], *, where: str, at: int) -> Output:
    """The output in a record that ends at byte `at` of the chain `where`. Raises CorruptDataError: it passed
    its checksum, so its writer was wrong.
    """
    numbers = tuple(ints)
    if len(numbers) != 4 or len(strings) != 2:
        found = f"{len(numbers)} ints and {len(strings)} strings"
        raise CorruptDataError(where, at, "an output of 4 ints and 2 strings", found)
    try:
        head = _decoder.decode(strings[0])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise CorruptDataError(where, at, "the JSON head of an output", str(error)) from error
    step, time_ms, rows, digest = numbers
    if bool(rows) != bool(strings[1]):
        raise CorruptDataError(where, at, "data if and only if there are rows", f"{rows} rows")
    return Output(step, time_ms, rows, digest, head, strings[1])


class OutputDecision(Enum):
    """What becomes of the output of a step."""

    DISCARD = auto()
    """The log has it, or had it."""
    APPEND = auto()


class OutputSequence:
    """The steps whose output one log holds. Invariant: `last` is the highest; those kept follow one another.

    after: the step of the cut that was restored: nothing up to it will be made again.
    """

    def __init__(self, sink: str, after: int) -> None:
        self.sink = sink
        self.last = after
        self._kept: dict[int, tuple[int, Position]] = {}

    def add(self, step: int, digest: int, end: Position) -> None:
        """The log has this step; `end` is the position just past it. Steps at or below `after` are passed
        over. Raises LocalProtocolError for a hole.
        """
        if step <= self.last and not self._kept:
            return
        if step != self.last + 1:
            raise LocalProtocolError(
                f"output of step {step} follows that of step {self.last} in {self.sink!r}"
            )
        self._kept[step] = (digest, end)
        self.last = step

    def judge(self, step: int, digest: int) -> OutputDecision:
        """What to do with the output of a step that was made (again). Raises OutputDiffersError for other
        rows than the log has, LocalProtocolError for a step that leaves a hole.
        """
        if step == self.last + 1:
            return OutputDecision.APPEND
        if step > self.last:
            raise LocalProtocolError(
                f"output of step {step} comes after that of step {self.last}: {self.sink!r}"
            )
        known = self._kept.get(step)
        if known is not None and known[0] != digest:
            raise OutputDiffersError(self.sink, step, known[0], digest)
        return OutputDecision.DISCARD

    def end_of(self, step: int) -> Position | None:
        """The position just past the output of a step; None if it is not known (any more)."""
        known = self._kept.get(step)
        return known[1] if known is not None else None

    def forget(self, until: int) -> None:
        """Steps up to `until` are in a cut that was voted for: this incarnation does not make them again."""
        self._kept = {step: known for step, known in self._kept.items() if step > until}

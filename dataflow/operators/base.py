"""What every operator is: a description that travels, and a running instance that holds state.

Rules of this file: two base classes and no operator. A *spec* is immutable, picklable and says names,
schemas and keys; it is made where the user builds the graph. An *operator* is opened from it on a worker and
never leaves that worker.

The life of an operator in a step n: `process` for each batch, in an order that a replay repeats; `end_step`
when all of them are in; `on_punctuation` when event time has moved by then, in a graph that has it. At a cut,
after that: `drain` (finish, flush, emit what is left), then `checkpoint` of each state table (hand over what
changed since the last cut). After a failure: `reset` (forget everything), then `restore` for each stored
block, oldest first. In any case, before the first step, `restored`. Data never refers to a worker or a clock:
same input, same output.

An operator may have side outputs (`OperatorSpec.side_output_schemas`): what it puts there is taken after each call.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import pyarrow as pa

from checkpoint.chains.state_blocks import DELETED_COLUMN, slices
from checkpoint.key_hash import HASH_COLUMN
from dataflow.core.delivery import Delivery
from dataflow.core.event_time import Watermark
from dataflow.core.plan import OperatorKind
from dataflow.schema import RESERVED_COLUMNS, schema_text

if TYPE_CHECKING:  # it tells faults by this file's `UserFault`
    from dataflow.state.operator_directory import OperatorDirectory

WEIGHT_COLUMN: Final = "_weight"
assert {HASH_COLUMN, WEIGHT_COLUMN, DELETED_COLUMN} <= RESERVED_COLUMNS


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Where an operator runs. `store_id` tells one store's regions from another's of the same name."""

    region: str
    operator: str
    worker: int
    workers: int
    store_id: bytes
    inputs: tuple[pa.Schema, ...]
    output: pa.Schema | None
    incarnation: int = 0
    """Of the region; what it puts outside may be written by no earlier one any more. 0: no region runs it."""
    triggers_cuts: bool = False
    """Whether a source is to ask for cuts at the places it finds fit."""
    broadcast: Mapping[Any, Any] | None = None
    """The control table that it reads, if it was given one."""
    scratch: str = ""
    """A directory on the worker's machine for what need not last; '': the one for temporary files."""
    delivery: Delivery | None = None
    """What the region promises of its sinks, None: the best that each can."""


class UserFault(Exception):  # noqa: N818 - not an error of ours: it carries the user's
    """A user function raised or returned nonsense; the circuit adds the operator's name and the position.

    `row` is the index in the batch, if one row is to blame; `__cause__` is the user's exception, if there
    was one.
    """

    def __init__(self, message: str, *, row: int | None = None, remedy: str = "") -> None:
        super().__init__(message)
        self.row = row
        self.remedy = remedy


class StateTable(Protocol):
    """State that lives in blocks. `tables` of an operator gives it a name."""

    def checkpoint(self) -> pa.RecordBatch:
        """What changed since the last cut, sorted by `_hash`; from here on it counts as handed over."""
        ...

    def snapshot(self) -> pa.RecordBatch:
        """All of the state, sorted by `_hash`, without tombstones. Does not change what counts as handed
        over.
        """
        ...

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        """The same in several blocks of bounded size: nothing may change meanwhile. A table that may be large
        makes each of them when it is asked for.
        """
        yield from slices(self.snapshot())

    def restore(self, block: pa.RecordBatch) -> None:
        """Take one stored block on top of what is there. Later blocks win."""
        ...


class Operator:
    """A running operator. The base keeps nothing; a stateless one only overrides `process`."""

    def restored(self) -> None:
        """All stored blocks are in, or there are none; the operators above were told before. Comes once."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Take one batch of the step; what it returns goes on at once."""
        raise NotImplementedError

    def process_of(self, index: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """The same, of an operator with several inputs."""
        assert index == 0
        return self.process(batch)

    def end_step(self) -> Sequence[pa.RecordBatch]:
        """All batches of the step are in. What it returns still belongs to the step."""
        return ()

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        """After `end_step`: all later rows of input `index` have event times above `watermark`. What it returns
        still belongs to the step. Marks may come twice, and smaller than before.
        """
        del watermark, index
        return ()

    def passes_on(self, watermark: Watermark) -> Watermark:
        """What is promised of the output, when `watermark` is promised of the inputs."""
        return watermark

    def take_directory(self, directory: "OperatorDirectory") -> None:
        """Its files, as of the cut; before `restored`. Only an operator that keeps files gets some."""
        raise NotImplementedError(f"{type(self).__name__} keeps no files: {directory.path}")

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        """What has come on a side output since the last call."""
        del port
        return ()

    def lost_on(self, port: str) -> dict[str, int]:
        """What is lost if nobody takes that side output: a counter that ends with "_rows_dropped", counted
        since the region began. Only for outputs that the operator has of itself, not for the user's.
        """
        del port
        return {}

    def tables(self) -> "Mapping[str, StateTable]":
        """Its state: what is appended to the operator's name (nothing, or "~" and a word) -> a table."""
        return {}

    @property
    def wants_snapshot(self) -> bool:
        """Whether the next cut had better be followed by all of the state: what is stored is out of date."""
        return False

    def drain(self) -> Sequence[pa.RecordBatch]:
        """A cut follows: finish what came before it. What it returns is before the cut too."""
        return ()

    def reset(self) -> None:
        """Forget everything: the instance is as newly opened."""

    def counters(self) -> dict[str, int]:
        """Numbers for people."""
        return {}

    def close(self) -> None:
        """Let go of files and locks. Not a cut: nothing is made durable by it."""


class StatefulOperator(Operator, StateTable):
    """An operator that is its own, only state table (`checkpoint.chains.state_blocks`). One whose state is a table
    that it holds says so in `tables`.
    """

    @abstractmethod
    def checkpoint(self) -> pa.RecordBatch:
        """As of `StateTable`."""

    @abstractmethod
    def snapshot(self) -> pa.RecordBatch:
        """As of `StateTable`."""

    @abstractmethod
    def restore(self, block: pa.RecordBatch) -> None:
        """As of `StateTable`."""

    def tables(self) -> Mapping[str, StateTable]:
        return {"": self}


class OperatorSpec(ABC):
    """The description of an operator: everything but its name, inputs and state."""

    kind: ClassVar[OperatorKind]
    deterministic: bool = True
    """Whether it gives the same for the same input. Where not, nothing below it may be shown by step."""
    broadcast: str | None = None
    """The name of the control table that it reads."""
    accepts_weights: ClassVar[bool] = False
    """Whether equal rows may come as one row with `_weight` (and only the columns in `needed_columns`)."""

    needs_time: ClassVar[bool] = False
    """Whether it waits for event time: an `event_time` must be above it on every way."""

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        """Its side outputs: port -> columns."""
        del inputs
        return {}

    @abstractmethod
    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Columns of the output for these inputs, None for a sink. Raises SchemaError if they do not fit."""

    @abstractmethod
    def open(self, context: OperatorContext) -> Operator:
        """A running instance, without state."""

    @property
    def keeps_files(self) -> bool:
        """Whether it has a directory (`dataflow.state.operator_directory`), which is cut and restored with its worker."""
        return False

    def detail(self) -> str:
        """What beside kind, inputs and schema changes the meaning of its state; part of the fingerprint."""
        return ""

    def earlier(self) -> "Sequence[OperatorSpec]":
        """Itself, as it was when its state had another schema: it takes over what those stored."""
        return ()

    def describe(self, inputs: Sequence[str], output: pa.Schema | None) -> str:
        """Canonical text for the fingerprint, without user code: mending a function keeps the state."""
        parts = [self.kind.value, f"from ({', '.join(inputs)})"]
        if self.detail():
            parts.append(self.detail())
        if output is not None:
            parts.append(f"gives ({schema_text(output)})")
        return " ".join(parts)


__all__ = [
    "DELETED_COLUMN",
    "HASH_COLUMN",
    "WEIGHT_COLUMN",
    "Operator",
    "OperatorContext",
    "OperatorSpec",
    "StateTable",
    "StatefulOperator",
    "UserFault",
]

"""The base classes of operators: an immutable *spec* that describes an operator, and a running *instance*.

A spec is picklable; an operator is opened from it on a worker and never leaves that worker. After a failure
the instance is closed, and a new one is opened and restored. The output of an operator must not depend on the
worker or on a clock: the same input gives the same output.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import pyarrow as pa

from checkpoint import DeclaredState, OutputIdentity, ResultNote
from checkpoint.chains.state_blocks import DELETED_COLUMN
from checkpoint.key_hash import HASH_COLUMN
from dataflow.core.event_time import Watermark
from dataflow.core.plan import OperatorKind
from dataflow.core.regions import Delivery, ReplicaProblem
from dataflow.errors import OperatorError
from dataflow.schema import RESERVED_COLUMNS
from dataflow.state.base import StateTable
from dataflow.state.given_rows import GivenRows
from dataflow.state.key_index import WEIGHT_COLUMN
from dataflow.state.operator_directory import OperatorDirectory

assert {HASH_COLUMN, WEIGHT_COLUMN, DELETED_COLUMN} <= RESERVED_COLUMNS


Emit: TypeAlias = Literal["final", "updates", "table"]
"""`final`: each result once, when no row can change it. `updates`: at the end of a micro-batch, the new
result of each group that changed in it. `table`: at the end of a micro-batch, the results of all groups.
"""


AtCheckpoint: TypeAlias = Literal["stored", "tables", "whole"]


def set_fields(spec: object, **values: object) -> None:
    """Set fields of a frozen dataclass that is being made."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The environment of one operator instance. `store_id` distinguishes regions of one name in different
    stores.
    """

    region: str
    operator: str
    worker: int
    workers: int
    store_id: bytes
    inputs: tuple[pa.Schema, ...]
    output: pa.Schema | None
    incarnation: int = 0
    """Of the region, 0 outside of one. A sink must fence earlier incarnations off its external output."""
    triggers_checkpoints: bool = False
    """Whether a source requests checkpoints at positions that it chooses."""
    broadcast: Mapping[Any, Any] | None = None
    """The broadcast table that the operator reads, or None."""
    scratch: str = ""
    """Directory on the worker's machine for temporary data; '' is that for temporary files."""
    delivery: Delivery | None = None
    """The delivery guarantee of the region's sinks; None: the strongest that each sink supports."""
    checkpoint: int = 0
    """The number of the checkpoint from which this incarnation of the region continues; 0: the beginning."""
    owns_key: Callable[[Sequence[Any]], bool] | None = field(default=None, compare=False)
    """Whether the rows of a key, given as its values, come to this instance; None: its stream has no key."""
    owner: OutputIdentity | None = None
    """As which sinks own output outside of the store; None: this region and its own store."""
    by_batches: bool = False
    """Whether the micro-batches of a query feed the region: `end_batch` does not follow every step then."""
    uid: str = ""
    """Under which name sinks own output outside of the store; "": that of the operator."""
    result_uids: Mapping[str, str] = field(default_factory=dict)
    """Result of an aggregation -> what identifies it in stored blocks, if that is not its name."""
    waits: Callable[[str], None] = field(default=lambda _: None, compare=False)
    """Shows in the status of the region what the operator waits for outside of it; "": it continues."""


class Operator:
    """A running operator. The base class has no state; a stateless operator overrides only `process`. The
    circuit calls:

    | when | call |
    |---|---|
    | first, on a worker that waits to take its region over | `open_ahead`, perhaps long before the rest |
    | then, if there is a checkpoint | `restore` of each state table, per stored block, oldest first |
    | before the first step | `restored`, once, after all stored blocks, if any, were restored |
    | for each batch of a step | `process`, in an order that a replay repeats |
    | when all batches of the step have arrived | `end_step`, then `on_punctuation` if event time advanced |
    | between these two, in the last step of a micro-batch | `end_batch` |
    | at a checkpoint, after the step | `drain` (finish and emit the rest), `checkpoint` of each state table |
    """

    may_repeat: ClassVar[bool] = True
    """Whether `process_of` may be called again after it has raised, with parts of the batch, to find the row
    that caused it. False if a call has an effect outside of the worker, or a state whose owner is user code.
    """
    at_checkpoint: ClassVar[AtCheckpoint] = "stored"
    """What the next incarnation may take from an instance that has done nothing since a checkpoint:

    - "stored": nothing, because user code may have changed its state since; the state is read again
    - "tables": the content of its state tables, in a new instance
    - "whole": the instance, if it keeps nothing else, and neither the number of workers nor a broadcast table
      matters to it
    """
    passes_rows: bool = False
    """Whether a batch of as many rows as the given one has its rows in their order, each on its own."""

    def open_ahead(self) -> None:
        """Do what may take long and needs no state. A worker that is ordered to restore at once does not
        call it.
        """

    def restored(self) -> None:
        """Complete the restore: once, after all stored blocks, and after all upstream operators."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Process one batch of the step. Return the output batches, which are passed on immediately."""
        raise NotImplementedError

    def process_of(self, index: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Process one batch of input `index`, for an operator with several inputs."""
        assert index == 0
        return self.process(batch)

    def end_step(self) -> Sequence[pa.RecordBatch]:
        """Finish the step: all of its batches have arrived. The returned batches still belong to it."""
        return ()

    def end_batch(self) -> Sequence[pa.RecordBatch]:
        """Finish the micro-batch of the query that drives the region, after `end_step` of the step that its
        record commits; in any other region after each `end_step`. The returned batches belong to the step.
        """
        return ()

    def forbid_late_rows(self) -> None:
        # Called once, before the first row, in a replica: another replica may have counted the row.
        """Raise UserFault from now on for a row whose time is not above the watermark of its input."""

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        """Advance event time, after `end_step`: all later rows of input `index` are above `watermark`. The
        returned batches still belong to the step. The same watermark may come twice, and a later one may be
        smaller.
        """
        del watermark, index
        return ()

    def passes_on(self, watermark: Watermark) -> Watermark:
        """Return the watermark of the output when the watermark of the inputs is `watermark`."""
        return watermark

    def take_directory(self, directory: OperatorDirectory) -> None:
        """Receive the files as of the checkpoint, before `restored`, if the spec has `keeps_files`."""
        raise NotImplementedError(f"{type(self).__name__} keeps no files: {directory.path}")

    def redistribute_directory(self, sources: Mapping[int, Path], target: Path) -> None:
        """Make its files in `target` from those of all former workers, before `take_directory`
        (`check_moves`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not move its files to {target}: {sources}")

    def take_checkpoint_request(self) -> bool:
        """Return whether it requested a checkpoint since the last call. See `OperatorSpec.can_trigger`."""
        return False

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        """Remove and return the rows put on a side output since the last call."""
        del port
        return ()

    def lost_on(self, port: str) -> dict[str, int]:
        """Return the counters of rows that are lost if no stream consumes this side output, since the region
        started. The name of a row counter ends with "_rows_dropped". Only for built-in side outputs.
        """
        del port
        return {}

    def tables(self) -> "Mapping[str, StateTable]":
        """Return the state tables. The key is appended to the operator's name: "" or "~" and a word."""
        return {}

    @property
    def wants_snapshot(self) -> bool:
        """Whether the next checkpoint needs a snapshot, because the stored state is in an outdated format."""
        return False

    def drain(self) -> Sequence[pa.RecordBatch]:
        """Finish all work that belongs before the coming checkpoint. The returned batches are part of it."""
        return ()

    def counters(self) -> dict[str, int]:
        """Return statistics for display."""
        return {}

    def close(self) -> None:
        """Release files and locks. Not a checkpoint: nothing becomes durable."""


class StatefulOperator(Operator, StateTable):
    """An operator that is its only state table. One that owns its tables overrides `tables` instead."""

    @abstractmethod
    def checkpoint(self) -> pa.RecordBatch:
        """Return the changes since the last checkpoint; see `StateTable.checkpoint`."""

    @abstractmethod
    def snapshot(self) -> pa.RecordBatch:
        """Return the whole state; see `StateTable.snapshot`."""

    @abstractmethod
    def restore(self, block: pa.RecordBatch) -> None:
        """Apply one stored block; see `StateTable.restore`."""

    def tables(self) -> Mapping[str, StateTable]:
        return {"": self}


class OperatorSpec(ABC):
    """The description of an operator: everything except its name, inputs and state."""

    kind: ClassVar[OperatorKind]
    deterministic: bool = True
    """Whether the same input always gives the same output. Otherwise no sink downstream may publish per step.
    """
    broadcast: str | None = None
    """Name of the broadcast table that it reads."""
    accepts_weights: ClassVar[bool] = False
    """Whether equal rows may arrive as one with a `_weight` column (and only `needed_columns`)."""
    columns_stay: ClassVar[Literal["all", "old", "none"]] = "all"
    """Which columns of a source or a sink stay when its graph changes. "old": it may gain nullable ones,
    because readers fit rows of other versions (`schema_fit.py`). "none": nothing of its rows is stored."""
    not_edited: ClassVar[str] = "it keeps no state"
    """Why a person cannot write rows into its state; "": `edited` has their rules."""

    @property
    def emit(self) -> Emit:
        """Which of its results it emits, and when."""
        return "final"

    @property
    def needs_time(self) -> bool:
        """Whether it waits for event time: every path from a source must then contain an `event_time`."""
        return False

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        """Return its side outputs: port -> columns."""
        del inputs
        return {}

    @abstractmethod
    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema | None:
        """Return the output columns for these inputs, None for a sink. Raises SchemaError."""

    @abstractmethod
    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        """Return why replicas of this operator may emit other rows (also for `deterministic`); None if not.
        inputs: as for `output_schema`.
        """

    @abstractmethod
    def open(self, context: OperatorContext) -> Operator:
        """Return a running instance without state."""

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        """Return the value columns of rows that a person writes into its table. watermark: the highest one on
        any worker. Raises EditRefusedError for rows that it could not have.
        """
        raise NotImplementedError(f"{self.not_edited}: {rows.operator} of {context.region} at {watermark}")

    @property
    def keeps_files(self) -> bool:
        """Whether it has a directory that is checkpointed and restored with its worker."""
        return False

    def check_moves(self, name: str) -> None:
        """Raise OperatorError if another number of workers could not take over its state. name: its name."""
        if self.keeps_files:
            raise OperatorError(
                name,
                "another number of workers",
                "it keeps files, which do not move to other workers",
                remedy="keep the number of workers of a region that has it",
            )

    @property
    def can_trigger(self) -> bool:
        """Whether it may request checkpoints: a source with trigger="operator"; an operator of the user."""
        return False

    def host_path(self) -> str:
        """Return a path on the hosts of workers on which it depends, "" for none. A run on a cluster refuses
        it, unless the program confirmed it with `local=True`.
        """
        return ""

    def detail(self) -> str:
        """Return what else changes the meaning of what is stored of it: settings, without user code. Of a
        source or sink its place, without what may change there, such as a password.
        """
        return ""

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        """Return for each input the columns on which what it stores depends, unless it is stateless. By
        default all of them, as an operator needs that stores rows.
        """
        return inputs

    def results(self, inputs: Sequence[pa.Schema]) -> tuple[ResultNote, ...]:
        """Return the results of an aggregation, each of which has columns of its own in the state."""
        del inputs
        return ()

    def declared_states(self) -> tuple[DeclaredState, ...]:
        """Return the state that it declares, and after it the others that it takes over; () for none."""
        return ()


__all__ = [
    "DELETED_COLUMN",
    "HASH_COLUMN",
    "WEIGHT_COLUMN",
    "Operator",
    "OperatorContext",
    "OperatorSpec",
    "ReplicaProblem",
    "StateTable",
    "StatefulOperator",
]

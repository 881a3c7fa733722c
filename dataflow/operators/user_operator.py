"""The base class of operators that users write, with defaults that do nothing; `apply.py` runs them.

A checkpoint calls an operator twice: `drain`, after all rows before the checkpoint have arrived, and then
`checkpoint`. A reset calls `reset`, after all upstream operators were reset (consistent-regions).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias

import pyarrow as pa

from dataflow.errors import OperatorFailure, SchemaError
from dataflow.state.migration import Migration
from dataflow.state.operator_directory import OperatorDirectory

Made: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[Any] | None"
"""Rows: a batch, a table, or any number of dicts, tuples in the order of the columns or, for a schema of one
column, values.
"""
Columns: TypeAlias = "str | pa.Schema"
"""A schema as a DDL string ("word string, n bigint") or an Arrow schema."""
Redistribution: TypeAlias = 'Literal["split", "union"] | Callable[..., Made] | None'
"""What happens to the state of an operator when a region continues with another number of workers."""
NO_SIDE_OUTPUTS: Final[Mapping[str, Columns]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The environment of an operator: its name, its worker's number and their count, its input columns."""

    operator: str
    worker: int
    workers: int
    columns: pa.Schema
    inputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The columns of each input by name, if there are several. `columns` are those of the first."""
    _get_directory: Callable[[], OperatorDirectory] | None = field(default=None, repr=False, compare=False)
    _request_checkpoint: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    _owns_key: Callable[[Sequence[Any]], bool] | None = field(default=None, repr=False, compare=False)

    def owns(self, *key: Any) -> bool:
        """Return whether the rows of a key come to this copy. `key`: the values of the key columns, in order.
        Raises SchemaError if the stream of the operator has no key, or the values are none of its keys.
        """
        if self._owns_key is None:
            raise SchemaError(f"operator {self.operator!r}: its stream has no key; put a key_by before it")
        return self._owns_key(key)

    def request_checkpoint(self) -> None:
        """Request a checkpoint, which contains at least the current step with all rows processed so far. It
        is taken as soon as possible; some of the rows after the current ones may be in it. Raises SchemaError
        if the operator does not declare `requests_checkpoints`, and OperatorFailure outside of a worker.
        """
        if self._request_checkpoint is None:
            raise OperatorFailure(
                f"operator {self.operator!r}: request_checkpoint() is available only on a worker"
            )
        self._request_checkpoint()

    def directory(self) -> OperatorDirectory:
        """Return the directory of this copy of the operator, as of the checkpoint; always the same object.
        Raises DosError before `open` and for an operator that keeps no files
        (`UserOperator.keeps_files`), and OperatorFailure outside of a worker.
        """
        if self._get_directory is None:
            raise OperatorFailure(f"operator {self.operator!r}: directory() is available only on a worker")
        return self._get_directory()


class UserOperator:
    """An operator of your own; `stream.apply("name", YourOperator())` adds it to a graph.

        class Longest(UserOperator):
            needs = "line string"
            schema = "line string"
            state = "line string"
            line = ""

            def process(self, batch):
                for line in batch.column("line").to_pylist():
                    if len(line) > len(self.line):
                        self.line = line
                        yield line

            def checkpoint(self):
                return [self.line]

            def reset(self, state):
                self.line = state.column("line")[0].as_py()

        lines.apply("longest", Longest())

    Every worker runs a copy (`copy.deepcopy`) of the instance given to the graph, on one thread. On a keyed
    stream all rows of one key go to the same copy. Wrong declarations are reported before anything runs, by
    operator and column. An exception in a method stops the region and names the operator; an
    `OperatorFailure` resets the region. The state of the last committed checkpoint is kept in both cases.
    """

    needs: "ClassVar[Columns | Mapping[str, Columns]]" = ""
    """Columns that its input must have, with their types; the input may have more. For several inputs: input
    name -> columns (`graph.apply`). These attributes may be set in `__init__` if they depend on its
    arguments.
    """
    schema: "ClassVar[Columns | None]" = None
    """Columns of its output; None: those of its input."""
    state: "ClassVar[Columns | None]" = None
    """Columns of the rows that `checkpoint` returns and `reset` receives; None: no state."""
    state_version: ClassVar[int] = 1
    """Increment it when the columns of the state or their meaning change; `migrations` convert older states.
    """
    migrations: "ClassVar[Sequence[Migration]]" = ()
    """`Migration(version, state, function)` for each older version that may be in a checkpoint."""
    redistribute: "ClassVar[Redistribution]" = None
    """What happens to its state when a region continues with another number of workers; None: that is
    refused.

    - "split": every worker gets the rows whose key, in the columns `split_by`, belongs to it.
    - "union": every worker gets the rows of all.
    - a method `redistribute(self, states, worker, workers)`, which returns the rows of worker number `worker`
      of `workers`. `states`: the rows of each former worker that had a state, by its id, as a
      pyarrow.RecordBatch. It is called before `open`, and again after a failure: the same arguments must give
      the same rows.
    """
    split_by: "ClassVar[Sequence[str]]" = ()
    """The columns of the state for `redistribute = "split"`. To find the state where its keyed rows are, name
    the key columns of the stream, in the same order and of the same types.
    """
    side_outputs: ClassVar[Mapping[str, Columns]] = NO_SIDE_OUTPUTS
    """Name -> columns. `emit` puts rows there; `stream.side_output(name, port)` reads them."""
    keeps_files: ClassVar[bool] = False
    """Whether it keeps files. The context given to `open` then has a `directory()`, a journaled directory for
    each copy. After a failure the files are those of the last checkpoint, on any machine.
    """
    requests_checkpoints: ClassVar[bool] = False
    """Whether it calls `request_checkpoint` of the context given to `open`. A region with trigger="operator"
    needs such an operator, or a source of files.
    """
    deterministic: ClassVar[bool] = True
    """Whether it returns the same rows for the same rows in the same order, regardless of batches and
    checkpoints. If not, state and output are still exactly-once, but no sink downstream may publish per step.
    """
    replica_consistent: ClassVar[bool] = False
    """Whether the same rows in any order, division into steps and among copies, and with any calls of
    `on_punctuation` in between that keep what they promise, make it return the same rows. Such an operator
    returns rows for one row alone, or for all rows up to the time of `on_punctuation`, never for "the rows so
    far". An operator in a region with replicas at several sites must declare it.
    """
    _emit_to_port: "Callable[[str, Any], None] | None" = None

    def open(self, ctx: RuntimeContext) -> None:
        """Prepare before any other call: connect, load a model. May set attributes that cannot be copied."""

    def process(self, batch: pa.RecordBatch) -> Made:
        """Process rows. Rows that it returns or yields are passed on immediately."""
        raise NotImplementedError

    def process_of(self, name: str, batch: pa.RecordBatch) -> Made:
        """Process rows of the input `name`, if there are several: all of the first in `needs`, then the
        second ...
        """
        del name
        return self.process(batch)

    def on_punctuation(self, ts: datetime) -> Made:
        """Handle an advance of event time: all later rows have event times above `ts`, in UTC; `datetime.max`
        when all sources have ended. Rows with times up to `ts` are late downstream.
        """

    def on_punctuation_of(self, name: str, ts: datetime) -> Made:
        """Handle an advance of event time of the input `name` alone, just before `on_punctuation`, which
        receives the minimum of their watermarks, when it advanced.
        """

    def drain(self) -> Made:
        """Finish all work that belongs before the coming checkpoint. Only an operator with `deterministic =
        False` may return rows, because they depend on when checkpoints are taken.
        """

    def checkpoint(self) -> Made:
        """Return the whole state as rows of the columns in `state`, right after `drain`, without changing it.
        A row that equals the one at its position in the previous checkpoint is not written again.
        """

    def reset(self, state: pa.RecordBatch) -> None:
        """Restore the state from rows of `checkpoint`, after `open`. Not called at the region's very
        beginning.
        """

    def redistribute_directory(self, sources: Mapping[int, Path], target: Path, ctx: RuntimeContext) -> None:
        """Make the files of this copy when the region continues with another number of workers.

        `sources`: former worker -> a copy of its files at the checkpoint, deleted afterwards. `target`: an
        empty directory; the regular files that are there at the end are the files of this copy.
        `ctx.owns(*key)` tells which keys come to this copy. Called before `open`, without `ctx.directory()`,
        and again after a failure: the same arguments must give the same files. A class that does not define
        it keeps its number of workers.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` acquired. Nothing is stored. Not called when a process dies."""

    def emit(self, port: str, rows: Any) -> None:
        """Put a row, a batch or a table on the side output `port`, in `process`, `on_punctuation` and
        `drain`. Raises SchemaError for an unknown port and elsewhere.
        """
        if self._emit_to_port is None:
            raise OperatorFailure(f"{type(self).__name__}.emit is available only on a worker")
        self._emit_to_port(port, rows)


__all__ = ["NO_SIDE_OUTPUTS", "Columns", "Made", "RuntimeContext", "UserOperator"]

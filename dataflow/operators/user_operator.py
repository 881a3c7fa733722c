"""The base class of operators that users write.

Rules of this file: what a user sees, with defaults that do nothing. How it is run is `apply.py`'s.

Theory (consistent-regions: "Establishing a consistent state", "Resetting to a consistent state"). At a cut an
operator is told twice: `drain`, when all rows before the cut are in, and behind it `checkpoint`. After a
failure it is told once, `reset`, and only when all operators above it have been.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa

from dataflow.errors import OperatorFailure
from dataflow.state.migration import Migration
from dataflow.state.operator_directory import OperatorDirectory

Made: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[Any] | None"
"""Rows: a batch, a table, or any number of rows, each a dict by column name, a tuple in the order of the
columns or, for a schema of one column, the value.
"""
Columns: TypeAlias = "str | pa.Schema"
"""A schema as a DDL string ("word string, n bigint"), or Arrow's."""
NO_SIDE_OUTPUTS: Final[Mapping[str, Columns]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """Where an operator runs: its name, one of how many workers (from 0), and the columns that come."""

    operator: str
    worker: int
    workers: int
    columns: pa.Schema
    inputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    """Of an operator with several inputs: the columns of each, by name. `columns` are those of the first."""
    _ask: Callable[[], OperatorDirectory] | None = field(default=None, repr=False, compare=False)

    def directory(self) -> OperatorDirectory:
        """The files of this copy of the operator, as they were at the cut; see `UserOperator.keeps_files`.

        The same each time it is asked for. Raises DirectoryError for an operator that keeps none, and before
        `open`; OperatorFailure elsewhere than on a worker.
        """
        if self._ask is None:
            raise OperatorFailure(f"operator {self.operator!r}: directory() works on a worker only")
        return self._ask()


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

    Every worker runs a copy (`copy.deepcopy`) of the instance that the graph was given, on one thread. Rows
    of one key meet in one copy on a keyed stream. What is wrong with the declarations is told before anything
    runs, by operator and column. What a method raises stops the region and names the operator, or resets
    it (`OperatorFailure`); the state of the last committed cut is what stays.
    """

    needs: "ClassVar[Columns | Mapping[str, Columns]]" = ""
    """Columns that its input must have, with their types; more may come. Of an operator with several inputs:
    the name of each -> its columns; `graph.apply("name", YourOperator(), left=stream, right=other)` adds it.
    All of these may be set in `__init__` instead, where they depend on its arguments.
    """
    schema: "ClassVar[Columns | None]" = None
    """Columns of what it gives; None: those of its input."""
    state: "ClassVar[Columns | None]" = None
    """Columns of what `checkpoint` gives and `reset` gets; None: it keeps nothing."""
    state_version: ClassVar[int] = 1
    """Count it up when the columns of the state change, or what they mean; `migrations` lead there."""
    migrations: "ClassVar[Sequence[Migration]]" = ()
    """`Migration(version, state, function)` for each older version that may lie in a cut: the function makes
    one row of the next version from one of that, both as dicts.
    """
    side_outputs: ClassVar[Mapping[str, Columns]] = NO_SIDE_OUTPUTS
    """Its side outputs: name -> columns. `emit` puts rows there; `stream.side_output(name, port)` takes them."""
    keeps_files: ClassVar[bool] = False
    """Whether it keeps files: `open` may ask its argument for `directory()` then, a journaled directory of
    each copy's own. What is written there in `open`, `reset`, `process`, `on_punctuation` and `drain` is part
    of the next cut; after a failure the files are those of the last one, on whatever machine.
    """
    deterministic: ClassVar[bool] = True
    """Whether it gives the same rows whenever it gets the same rows in the same order, however they are cut
    into batches and wherever cuts are. If not (it asks a clock, a service, chance), state and output stay
    exactly-once; only nothing below it may be shown by step.
    """
    _put: "Callable[[str, Any], None] | None" = None

    def open(self, place: RuntimeContext) -> None:
        """On its worker, before anything else: connect, load a model. It may keep what cannot be copied."""

    def process(self, batch: pa.RecordBatch) -> Made:
        """Rows came. What it returns or yields goes on at once."""
        raise NotImplementedError

    def process_of(self, name: str, batch: pa.RecordBatch) -> Made:
        """Rows of the input `name` came; to be written where there are several inputs. Of one step, all rows
        of the first input come before those of the second, and so on, in the order of `needs`.
        """
        del name
        return self.process(batch)

    def on_punctuation(self, ts: datetime) -> Made:
        """All later rows have event times above `ts` (in UTC; `datetime.max` when all sources are at their
        end). Called at the end of a step in which that moved. Rows with times up to `ts` are late below it.
        """

    def on_punctuation_of(self, name: str, ts: datetime) -> Made:
        """The same of the input `name` alone, just before. Where there are several inputs, `on_punctuation`
        is told the smallest of theirs, when that moved: all later rows, of whatever input, are above it.
        """

    def drain(self) -> Made:
        """A cut follows: finish what came before it. Rows that it gives depend on where cuts are, so only an
        operator with `deterministic = False` may give some.
        """

    def checkpoint(self) -> Made:
        """All of its state, as rows of the columns in `state`; right after `drain`. It changes nothing. What
        is as in the cut before, at the same place, is not written again.
        """

    def reset(self, state: pa.RecordBatch) -> None:
        """Stand where `checkpoint` gave these rows. Called after `open`, when the region is at a cut; when it
        is at its beginning, nothing is called, and the copy is as it was made.
        """

    def close(self) -> None:
        """Let go of what `open` took. No cut: nothing is kept by it. Not called when a process dies."""

    def emit(self, port: str, rows: Any) -> None:
        """Put one row on the side output `port`, or a batch or table of them. From `process`,
        `on_punctuation` and `drain`. Raises SchemaError for an unknown port, and for another moment.
        """
        if self._put is None:
            raise OperatorFailure(f"{type(self).__name__}.emit works on a worker only")
        self._put(port, rows)


__all__ = ["NO_SIDE_OUTPUTS", "Columns", "Made", "RuntimeContext", "UserOperator"]

"""map, flat_map and filter: user functions of rows (simple) or of batches (fast)."""

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault, nearest
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem
from dataflow.schema import check_schema, parse_schema
from dataflow.values.columns import column_of
from dataflow.values.python_rows import (
    FAULTS,
    OnFrames,
    batch_of_result,
    batch_of_rows,
    end_forked_child,
    listed,
    rows_of,
    several,
)
from dos_monitoring import adopting_log_fields
from dos_protocol.errors import text_of


def side_outputs_of(declared: "Mapping[str, str | pa.Schema] | None") -> dict[str, pa.Schema]:
    """Parse the declaration of side outputs. Raises SchemaError, which names the output."""
    schemas = {}
    for port, columns in (declared or {}).items():
        if not isinstance(port, str) or not port:
            raise SchemaError(f"a side output needs a non-empty name, not {port!r}; write {{'bad': ...}}")
        try:
            schemas[port] = parse_schema(columns)
        except SchemaError as error:
            raise SchemaError(f"side output {port!r}: {error}") from None
    return schemas


def declared_side_outputs(
    declared: "Mapping[str, str | pa.Schema] | None",
) -> tuple[tuple[str, pa.Schema], ...]:
    """Parse the declaration of side outputs into the form that specs hold. Raises SchemaError."""
    return tuple(side_outputs_of(declared).items())


class _ThreadRows(threading.local):
    """The side output rows of one thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.pending: dict[str, list[tuple[int, Any]]] = {}
        """Port -> (index of the call, rows)."""
        self.batches: dict[str, list[pa.RecordBatch]] = {}


class Emitter:
    """What the user's function receives: `emitter(port, row)`, or a batch or table. Raises SchemaError for an
    undeclared port. Rows of one thread keep their order. `by_row`: the function is called once per row.
    """

    def __init__(self, schemas: Mapping[str, pa.Schema], *, by_row: bool = False) -> None:
        self._schemas = schemas
        self._by_row = by_row
        self._waiting = _ThreadRows()

    def called(self) -> None:
        """Count one call of the user's function, which follows."""
        self._waiting.calls += 1

    def __call__(self, port: str, rows: Any) -> None:
        if port not in self._schemas:
            known = ", ".join(map(repr, self._schemas)) or "none"
            raise SchemaError(
                f"there is no side output {port!r}{nearest(port, self._schemas)}; declared are {known}"
            )
        self._waiting.pending.setdefault(port, []).append((self._waiting.calls - 1, rows))

    def settle(self) -> None:
        """Convert the rows of this thread to batches of the declared columns. Raises UserFault."""
        given, self._waiting.pending = self._waiting.pending, {}
        self._waiting.calls = 0
        for port, rows in given.items():
            try:
                made = _batches(rows, self._schemas[port])
            except UserFault as fault:
                row = fault.row if self._by_row else None
                raise UserFault(f"side output {port!r}: {fault}", row=row, remedy=fault.remedy) from fault
            self._waiting.batches.setdefault(port, []).extend(made)

    def take(self, port: str) -> list[pa.RecordBatch]:
        """Remove and return the settled batches of this thread."""
        return self._waiting.batches.pop(port, [])


def _batches(emitted: Sequence[tuple[int, Any]], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    alone: list[tuple[int, Any]] = []
    for call, given in emitted:
        if isinstance(given, (pa.RecordBatch, pa.Table)):
            batches += [*_of_rows(alone, schema), batch_of_result(given, schema)]
            alone = []
        else:
            alone.append((call, given))
    return [batch for batch in [*batches, *_of_rows(alone, schema)] if batch.num_rows]


def _of_rows(rows: Sequence[tuple[int, Any]], schema: pa.Schema) -> list[pa.RecordBatch]:
    return [batch_of_rows([row for _, row in rows], [call for call, _ in rows], schema)] if rows else []


_SliceOutput: TypeAlias = "tuple[Sequence[pa.RecordBatch], Mapping[str, Sequence[pa.RecordBatch]]]"
"""The output of a slice, and its side outputs."""


class ThreadedOperator(Operator):
    """Runs a stateless operator on slices of each batch, on `threads` threads: for functions that wait or
    release the GIL. Its `process` must be safe to call from several threads at once.

    Raises the fault of the first slice that has one, with the row counted from the beginning of the batch.
    After a fault, slices that have not started are cancelled, and running slices are waited for.
    """

    # Results are passed on in the order of the rows, however threads were scheduled, so a replay gives the
    # same output. `process` returns when the whole batch is done: a checkpoint never separates a row from its
    # result ("their threads' work is theirs to drain").
    def __init__(self, inner: Operator, *, name: str, threads: int, ports: Sequence[str] = ()) -> None:
        """`ports`: its side outputs. `take_side_output` returns what the calling thread has emitted there."""
        self._inner = inner
        self._name = name
        self._side_outputs: dict[str, list[pa.RecordBatch]] = {port: [] for port in ports}
        self._threads = threads
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix=f"operator {name}", initializer=adopting_log_fields()
        )

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        rows = max(1, -(-batch.num_rows // (self._threads * limits.slices_per_thread)))
        begins = range(0, batch.num_rows, rows)
        futures = [self._pool.submit(self._slice, batch.slice(begin, rows)) for begin in begins]
        made: list[pa.RecordBatch] = []
        try:
            for begin, future in zip(begins, futures, strict=True):
                parts, side_outputs = _result(future, begin)
                made += parts
                for port, waiting in self._side_outputs.items():
                    waiting += side_outputs[port]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return made

    def _slice(self, batch: pa.RecordBatch) -> _SliceOutput:
        process = os.getpid()
        made = self._inner.process(batch)
        if os.getpid() != process:
            end_forked_child(self._name)
        return made, {port: self._inner.take_side_output(port) for port in self._side_outputs}

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        made, self._side_outputs[port] = self._side_outputs[port], []
        return made

    def counters(self) -> dict[str, int]:
        return self._inner.counters()

    def close(self) -> None:
        self._pool.shutdown()
        self._inner.close()


def _result(future: "Future[_SliceOutput]", begin: int) -> _SliceOutput:
    try:
        return future.result()
    except UserFault as fault:
        if fault.row is not None:
            fault.row += begin
        raise


NOT_DETERMINISTIC: Final = ReplicaProblem(
    "is not deterministic: it may return other rows for the same rows",
    "use clocks, services and random numbers before the entry of the rows, or after the exit",
)
Takes: TypeAlias = Literal["row", "batch", "pandas"]
UserFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FunctionSpec(OperatorSpec):
    """The common part of map, flat_map and filter.

    | `takes` | argument | map | flat_map | filter |
    |---|---|---|---|---|
    | "row" | a dict of the columns | a row | any number of rows | a truth value |
    | "batch" | a `pa.RecordBatch`, never empty | columns | columns, or None for no rows | a boolean array |
    | "pandas" | a DataFrame | a DataFrame | a DataFrame, or None for no rows | a boolean Series |

    Columns are a `RecordBatch`, a `pa.Table`, a dict of arrays or, for a schema of one column, an array or a
    Series. A row is a dict by column name, a tuple in the order of the columns or, for a schema of one
    column, the value. Values of another type are converted if no value changes by that (`values/`). With a
    broadcast table, the table is the second argument; with side outputs, the last is `emit(port, row)`.
    """

    kind: ClassVar[OperatorKind]
    function: UserFunction
    takes: Takes = "row"
    _: KW_ONLY
    deterministic: bool = True
    replica_consistent: bool | None = None
    """Whether the rows that the function returns for a row depend on that row alone. None: if takes="row"."""
    threads: int = 1
    broadcast: str | None = None
    side_outputs: tuple[tuple[str, pa.Schema], ...] = ()
    """Port and columns of each side output."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SchemaError(f"{self.kind.value} needs a function, not {type(self.function).__name__}")
        if self.takes not in ("row", "batch", "pandas"):
            raise SchemaError(f"takes must be 'row', 'batch' or 'pandas', not {self.takes!r}")
        if not 1 <= self.threads <= limits.operator_threads_max:
            raise SchemaError(f"threads must be 1 to {limits.operator_threads_max}, not {self.threads}")

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if not self.deterministic:
            return NOT_DETERMINISTIC
        if self.replica_consistent or (self.replica_consistent is None and self.takes == "row"):
            return None
        return ReplicaProblem(
            "has a function of batches, which may depend on which rows are in one batch",
            'use takes="row"; or declare replica_consistent=True, if what it returns for a row depends on'
            " that row alone",
        )

    def open(self, context: OperatorContext) -> Operator:
        function = OnFrames(self.function) if self.takes == "pandas" else self.function
        emitter = Emitter(dict(self.side_outputs), by_row=self.takes == "row") if self.side_outputs else None
        if context.broadcast is not None or emitter is not None:
            function = _WithArguments(function, context.broadcast, emitter)
        operator = self.open_one(context, function)
        if emitter is not None:
            operator = _Emitting(operator, emitter)
        if self.threads == 1:
            return operator
        ports = [port for port, _ in self.side_outputs]
        return ThreadedOperator(operator, name=context.operator, threads=self.threads, ports=ports)

    @abstractmethod
    def open_one(self, context: OperatorContext, function: UserFunction) -> Operator:
        """Return the operator that one thread runs. `function` takes a row or batch only."""

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        del inputs
        return dict(self.side_outputs)

    def detail(self) -> str:
        return "" if self.broadcast is None else f"control ({self.broadcast})"


@dataclass(frozen=True, slots=True)
class MapSpec(FunctionSpec):
    """One row in, one row out."""

    kind: ClassVar[OperatorKind] = OperatorKind.MAP
    schema: pa.Schema | None = None
    """None: the schema of the input."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0] if self.schema is None else check_schema(self.schema)

    def open_one(self, context: OperatorContext, function: UserFunction) -> Operator:
        assert context.output is not None
        if self.takes != "row":
            return _BatchFunction(function, context.output, same_rows=self.kind is OperatorKind.MAP)
        return _RowFunction(function, context.output, many=self.kind is OperatorKind.FLAT_MAP)


@dataclass(frozen=True, slots=True)
class FlatMapSpec(MapSpec):
    """One row in, any number of rows out."""

    kind: ClassVar[OperatorKind] = OperatorKind.FLAT_MAP


@dataclass(frozen=True, slots=True)
class FilterSpec(FunctionSpec):
    """Passes on the rows for which the function returns true."""

    kind: ClassVar[OperatorKind] = OperatorKind.FILTER

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open_one(self, context: OperatorContext, function: UserFunction) -> Operator:
        del context
        return _RowFilter(function) if self.takes == "row" else _BatchFilter(function)


@dataclass(frozen=True, slots=True)
class _WithArguments:
    """Adds arguments after the row or batch: the broadcast table, then the emitter of side outputs."""

    function: UserFunction
    table: Mapping[Any, Any] | None
    emitter: Emitter | None

    def __call__(self, given: Any) -> Any:
        more = [] if self.table is None else [self.table]
        if self.emitter is None:
            return self.function(given, *more)
        self.emitter.called()
        return self.function(given, *more, self.emitter)


class _Emitting(Operator):
    """Wraps an operator whose function writes side outputs."""

    def __init__(self, inner: Operator, emitter: Emitter) -> None:
        self.passes_rows = inner.passes_rows
        self._inner = inner
        self._emitter = emitter

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        made = self._inner.process(batch)
        self._emitter.settle()
        return made

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        return self._emitter.take(port)


class _RowFunction(Operator):
    def __init__(self, function: UserFunction, schema: pa.Schema, *, many: bool) -> None:
        self._function = function
        self._schema = schema
        self._many = many
        self.passes_rows = not many

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        rows: list[Any] = []
        sources: list[int] = []
        for index, row in enumerate(rows_of(batch)):
            try:
                result = self._function(row)
                made = [*several(result)] if self._many else [result]
            except FAULTS as error:
                raise _fault(error, index, batch) from error
            rows += made
            sources += [index] * len(made)
        return [batch_of_rows(rows, sources, self._schema)] if rows else []


def _fault(error: BaseException, index: int, batch: pa.RecordBatch) -> UserFault:
    """Return what a function of rows raised, with a remedy if it took a row for something else."""
    remedy, names = "", batch.schema.names
    if isinstance(error, KeyError) and error.args and error.args[0] not in names:
        key = error.args[0]
        similar = nearest(key, names) if isinstance(key, str) else ""
        remedy = f"the columns of the row are {', '.join(map(repr, names))}{similar}"
    elif isinstance(error, AttributeError) and isinstance(error.obj, dict):
        remedy = f"a row is a dict of its columns {', '.join(map(repr, names))}: write row[{error.name!r}]"
    return UserFault(text_of(error), row=index, remedy=remedy)


class _BatchFunction(Operator):
    def __init__(self, function: UserFunction, schema: pa.Schema, *, same_rows: bool) -> None:
        self._function = function
        self._schema = schema
        self._same_rows = same_rows
        self.passes_rows = same_rows

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        try:
            result = self._function(batch)
        except UserFault:
            raise
        except FAULTS as error:
            raise UserFault(text_of(error)) from error
        if (result is None or (isinstance(result, dict) and not result)) and not self._same_rows:
            return []  # no rows, as for a function of rows; a DataFrame without columns, as in Spark
        try:
            made = batch_of_result(result, self._schema)
        except UserFault as fault:
            if not self._same_rows:
                fault.row = None  # it is a row of the result
            raise
        if self._same_rows and made.num_rows != batch.num_rows:
            raise UserFault(
                f"a map must return one row for each; it got {batch.num_rows} and returned {made.num_rows}",
                remedy="use flat_map or filter to change the number of rows",
            )
        return [made] if made.num_rows else []


class _RowFilter(Operator):
    passes_rows = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        keep = []
        for index, row in enumerate(rows_of(batch)):
            try:
                keep.append(bool(self._function(row)))
            except FAULTS as error:
                raise _fault(error, index, batch) from error
        kept = batch.filter(pa.array(keep, pa.bool_()))
        return [kept] if kept.num_rows else []


class _BatchFilter(Operator):
    passes_rows = True

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        try:
            mask = self._function(batch)
        except UserFault:
            raise
        except FAULTS as error:
            raise UserFault(text_of(error)) from error
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if not isinstance(mask, pa.Array):
            mask = column_of(listed(mask, "filter"), pa.field("filter", pa.bool_()))
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise UserFault(
                f"a batch filter returns one boolean for each of {batch.num_rows} rows, not {len(mask)} "
                f"of {mask.type}"
            )
        kept = batch.filter(pc.fill_null(mask, fill_value=False))
        return [kept] if kept.num_rows else []

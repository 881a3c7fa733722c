"""map, flat_map and filter: user functions on rows (easy) or on batches (fast).

Rules of this file: the only place that calls user functions. What a function may return is checked here,
once, and a fault is told as `UserFault` with the row to blame where there is one.

A row function takes a dict of the columns. It returns one row (map), any number of rows (flat_map) or a
truth value (filter); a row is a dict by column name, a tuple in order of the columns, or, for a schema of
one column, the value. A batch function takes a `pa.RecordBatch` and returns what the schema says as a
`RecordBatch`, `Table`, a dict of arrays or, for a schema of one column, an array; for a filter a boolean
array. A pandas function takes and returns a DataFrame, or a Series where a batch function may return an
array. Columns of another type are cast if nothing is lost by it. With a control table, that is the second
argument of all of them.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dataflow import limits
from dataflow.core.plan import Kind
from dataflow.errors import SchemaError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, UserFault
from dataflow.operators.frames import OnFrames
from dataflow.operators.threads import ThreadedOperator
from dataflow.schema import check_schema

FAULTS = (Exception, SystemExit)
"""What a user function may raise that is told as its fault; `sys.exit()` in it must not end a worker in
silence.
"""

Takes: TypeAlias = Literal["row", "batch", "pandas"]
UserFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FunctionSpec(OperatorSpec):
    """What map, flat_map and filter share."""

    kind: ClassVar[Kind]
    function: UserFunction
    takes: Takes = "row"
    _: KW_ONLY
    deterministic: bool = True
    threads: int = 1
    control: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SchemaError(f"a {self.kind.value} takes a function, not {type(self.function).__name__}")
        if self.takes not in ("row", "batch", "pandas"):
            raise SchemaError(f"takes is 'row', 'batch' or 'pandas', not {self.takes!r}")
        if not 1 <= self.threads <= limits.operator_threads_max:
            raise SchemaError(f"threads is 1 to {limits.operator_threads_max}, not {self.threads}")

    def open(self, context: OperatorContext) -> Operator:
        operator = self.open_one(context)
        if self.threads == 1:
            return operator
        return ThreadedOperator(operator, name=context.operator, threads=self.threads)

    @abstractmethod
    def open_one(self, context: OperatorContext) -> Operator:
        """The operator that one thread runs."""

    def bound(self, context: OperatorContext) -> UserFunction:
        """The user's function of a row or batch alone."""
        function = OnFrames(self.function) if self.takes == "pandas" else self.function
        return function if context.control is None else _WithControl(function, context.control)

    def detail(self) -> str:
        return "" if self.control is None else f"control ({self.control})"


@dataclass(frozen=True, slots=True)
class MapSpec(FunctionSpec):
    """One row in, one row out."""

    kind: ClassVar[Kind] = Kind.MAP
    schema: pa.Schema | None = None
    """None: the schema of the input."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0] if self.schema is None else check_schema(self.schema)

    def open_one(self, context: OperatorContext) -> Operator:
        assert context.output is not None
        if self.takes != "row":
            return _BatchFunction(self.bound(context), context.output, same_rows=self.kind is Kind.MAP)
        return _RowFunction(self.bound(context), context.output, many=self.kind is Kind.FLAT_MAP)


@dataclass(frozen=True, slots=True)
class FlatMapSpec(MapSpec):
    """One row in, any number of rows out."""

    kind: ClassVar[Kind] = Kind.FLAT_MAP


@dataclass(frozen=True, slots=True)
class FilterSpec(FunctionSpec):
    """Keeps the rows for which the function says yes."""

    kind: ClassVar[Kind] = Kind.FILTER

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def open_one(self, context: OperatorContext) -> Operator:
        function = self.bound(context)
        return _RowFilter(function) if self.takes == "row" else _BatchFilter(function)


@dataclass(frozen=True, slots=True)
class _WithControl:
    function: UserFunction
    table: Mapping[Any, Any]

    def __call__(self, given: Any) -> Any:
        return self.function(given, self.table)


def say(error: BaseException) -> str:
    """What a user function raised."""
    return f"{type(error).__name__}: {error}"


class _RowFunction(Operator):
    def __init__(self, function: UserFunction, schema: pa.Schema, *, many: bool) -> None:
        self._function = function
        self._schema = schema
        self._many = many

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        rows: list[Any] = []
        sources: list[int] = []
        for index, row in enumerate(batch.to_pylist()):
            try:
                result = self._function(row)
                made = [*several(result)] if self._many else [result]
            except FAULTS as error:
                raise UserFault(say(error), row=index) from error
            rows += made
            sources += [index] * len(made)
        return [batch_of_rows(rows, sources, self._schema)] if rows else []


def several(result: Any) -> Iterable[Any]:
    """The rows that a function returned or yields. Raises TypeError for one alone."""
    if result is None:
        return ()
    if isinstance(result, (str, bytes, Mapping)):
        raise TypeError(
            f"a flat_map function returns or yields rows; it returned one {type(result).__name__}, wrap "
            "it in a list"
        )
    rows: Iterable[Any] = result
    return rows


def batch_of_rows(rows: Sequence[Any], sources: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as users give them, each made of the row `sources` says. Raises UserFault."""
    columns: list[list[Any]] = [[] for _ in schema]
    for row, source in zip(rows, sources, strict=True):
        for column, value in zip(columns, _values(row, source, schema), strict=True):
            column.append(value)
    arrays = [_array_of(values, sources, field) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _values(row: Any, source: int, schema: pa.Schema) -> Sequence[Any]:
    names = schema.names
    if isinstance(row, Mapping):
        if set(row) != set(names):
            raise UserFault(
                f"a row has the columns {', '.join(map(repr, row))}; the schema says "
                f"{', '.join(map(repr, names))}",
                row=source,
            )
        return [row[name] for name in names]
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise UserFault(
                f"a row has {len(row)} values; the schema has {len(names)} columns: {', '.join(names)}",
                row=source,
            )
        return row
    if len(names) != 1:
        raise UserFault(
            f"a row is a dict or a tuple of {len(names)} values ({', '.join(names)}), not "
            f"{type(row).__name__}",
            row=source,
        )
    return (row,)


def _array_of(values: list[Any], sources: Sequence[int], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for value, source in zip(values, sources, strict=True):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise UserFault(
                    f"column {field.name!r} is {field.type} and a value is {type(value).__name__} "
                    f"{value!r:.80}",
                    row=source,
                ) from error
        raise UserFault(f"column {field.name!r}: {error}") from error


class _BatchFunction(Operator):
    def __init__(self, function: UserFunction, schema: pa.Schema, *, same_rows: bool) -> None:
        self._function = function
        self._schema = schema
        self._same_rows = same_rows

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        try:
            result = self._function(batch)
        except FAULTS as error:
            raise UserFault(say(error)) from error
        made = _batch_of_result(result, self._schema)
        if self._same_rows and made.num_rows != batch.num_rows:
            raise UserFault(
                f"a map gives one row for each; it took {batch.num_rows} and gave {made.num_rows}",
                remedy="use flat_map or filter to change the number of rows",
            )
        return [made] if made.num_rows else []


def _batch_of_result(result: Any, schema: pa.Schema) -> pa.RecordBatch:
    if isinstance(result, pa.RecordBatch) and result.schema.equals(schema):
        return result
    columns = _columns_of_result(result, schema)
    arrays = []
    for field, column in zip(schema, columns, strict=True):
        try:
            array = (
                column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column, field.type)
            )
            if not array.type.equals(field.type):
                array = array.cast(field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserFault(f"column {field.name!r} does not become {field.type}: {error}") from error
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, ValueError) as error:
        raise UserFault(f"the columns do not make a batch: {error}") from error


def _columns_of_result(result: Any, schema: pa.Schema) -> Sequence[Any]:
    names = schema.names
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        given: Mapping[str, Any] = dict(zip(result.schema.names, result.columns, strict=True))
    elif isinstance(result, Mapping):
        given = result
    elif isinstance(result, (pa.Array, pa.ChunkedArray)) and len(names) == 1:
        return (result,)
    else:
        raise UserFault(
            f"a batch function returns a RecordBatch with the columns {', '.join(names)}, not "
            f"{type(result).__name__}"
        )
    if set(given) != set(names):
        raise UserFault(
            f"it returned the columns {', '.join(map(repr, given))}; the schema says "
            f"{', '.join(map(repr, names))}"
        )
    return [given[name] for name in names]


class _RowFilter(Operator):
    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        keep = []
        for index, row in enumerate(batch.to_pylist()):
            try:
                keep.append(bool(self._function(row)))
            except FAULTS as error:
                raise UserFault(say(error), row=index) from error
        kept = batch.filter(pa.array(keep, pa.bool_()))
        return [kept] if kept.num_rows else []


class _BatchFilter(Operator):
    def __init__(self, function: UserFunction) -> None:
        self._function = function

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        try:
            mask = self._function(batch)
        except FAULTS as error:
            raise UserFault(say(error)) from error
        if isinstance(mask, pa.ChunkedArray):
            mask = mask.combine_chunks()
        if not isinstance(mask, pa.Array):
            try:
                mask = pa.array(mask)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise UserFault(f"a batch filter returns a boolean array: {error}") from error
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise UserFault(
                f"a batch filter returns one boolean for each of {batch.num_rows} rows, not {len(mask)} "
                f"of {mask.type}"
            )
        kept = batch.filter(pc.fill_null(mask, fill_value=False))
        return [kept] if kept.num_rows else []

"""A stateful call of a frame, divided: what Spark computes before the region, its operators in the graph of
the region, and what Spark computes on their output.

`divided` makes an `Aggregation` of `groupBy(...).agg(...)`, `deduplicated` a `Deduplication`,
`applied_with_state` and `transformed` a `GroupFunction`. How an aggregation is divided is decided in
`core/dividing.py`. Here Columns are read and made, Spark is asked for types and windows, and the result is
compared with Spark's own (the shadow) before anything starts: names and types must be equal.

In a batch the region has one window for each key, which is over when the input ends. So the output has one
row for each key. On a stream the output mode is `emit=` of the operator.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType, TimestampType

from dataflow import (
    ApproxDistinct,
    Count,
    GraphError,
    InputSource,
    LogSink,
    Max,
    Mean,
    Min,
    Sliding,
    Sum,
    Tumbling,
)
from dataflow.errors import SchemaError
from dataflow.graph.builder import Graph, KeyedStream, Stream
from dataflow.operators.aggregates import Aggregate
from dataflow.operators.spark_functions import ProcessorTakes, state_columns
from dataflow.operators.windows import START, STOP, Selection, Window
from dataflow.schema import parse_schema, quoted
from spark_integration.catalyst import Catalyst, all_of, plain_columns
from spark_integration.core.dividing import (
    Argument,
    Columns,
    DividedCall,
    Expression,
    ExpressionKind,
    Form,
    FrameError,
    Key,
    Result,
    aggregate_calls,
    call_name,
    divide,
    text_of,
    typed_arguments,
)
from spark_integration.expressions import Expressions
from spark_integration.sessions import is_connect, need_own_session
from spark_integration.spark_api import arrow_schema, spark_schema

TIME: Final = "#time"
ALL: Final = "#all"
"""The key of an aggregation without keys. Names with # cannot be confused with those of users."""
WINDOW: Final = "#window"
INPUT: Final = "input"
OUTPUT: Final = "out"
WATERMARK: Final = "spark.watermarkDelayMs"
"""The metadata of a column with a watermark: Spark has parsed the interval."""
Mode: TypeAlias = Literal["append", "update", "complete"]
"""The output mode of a stream."""
_OTHER_REGION: Final = "make a region of its own for it: dos.frame(first.df())"
_BATCH_LATENESS: Final = timedelta(days=4_000_000)
"""Longer than from the year 1 to 9999: in a batch no row is late, and windows are over at its end."""
MICROSECOND: Final = timedelta(microseconds=1)
_BATCH_WINDOW: Final = timedelta(days=1)
_AGGREGATES: Final[dict[str, Any]] = {
    "ApproxDistinct": ApproxDistinct, "Max": Max, "Mean": Mean, "Min": Min, "Sum": Sum
}  # fmt: skip


def expressions_of(spark: SparkSession) -> Expressions:
    """Return the reader for this kind of session."""
    if is_connect(spark):
        from spark_integration.connect import ConnectExpressions  # needs packages that may not be installed

        return ConnectExpressions(spark)
    return Catalyst(spark)


class WindowShape(NamedTuple):
    """The windows that `window(...)` of Spark assigns, in microseconds."""

    size: int
    slide: int
    offset: int

    def windows(self, instant: int) -> set[tuple[int, int]]:
        newest = (instant - self.offset) // self.slide * self.slide + self.offset
        starts = range(newest, instant - self.size, -self.slide)
        return {(start, start + self.size) for start in starts}


@dataclass(frozen=True)
class StatefulCall(ABC):
    """A call that a region computes. `name`: of its operator; `inputs`: the rows that it gets, by name: a
    DataFrame of Spark, which is carried to the region, or the output of a call below it; `shadow`: what Spark
    makes of the call.
    """

    emits_updates: ClassVar[bool] = False
    """Whether the output modes "update" and "complete" emit a group again when it changes."""
    name: str
    inputs: "Mapping[str, DataFrame | Between]"
    shadow: DataFrame

    def named(self, name: str) -> Self:
        return replace(self, name=name)

    @property
    def before(self) -> dict[str, DataFrame]:
        """The rows of the region: source -> what Spark computes before it."""
        found: dict[str, DataFrame] = {}
        for name, rows in self.inputs.items():
            found |= rows.call.before if isinstance(rows, Between) else {name: rows}
        return found

    @property
    def below(self) -> "list[StatefulCall]":
        """The calls below this one in the same region, the lowest first."""
        given = [rows.call for rows in self.inputs.values() if isinstance(rows, Between)]
        return [call for one in given for call in (*one.below, one)]

    def graph(self, name: str, mode: Mode | None) -> Graph:
        """Return the graph of a region. mode: of a stream; None in a batch. Raises FrameError if the call
        needs a watermark in this mode and there is none, or if two calls have one name; GraphError,
        SchemaError.
        """
        names = [call.name for call in (*self.below, self)]
        if twice := [one for one in names if names.count(one) > 1]:
            raise FrameError(
                f"two calls would be named {twice[0]!r}", remedy='call .named("...") on one of them'
            )
        graph = Graph(name)
        self.stream(graph, mode).sink(OUTPUT, LogSink(publish="checkpoint"))
        return graph

    def stream(self, graph: Graph, mode: Mode | None) -> Stream:
        """Add the sources and the operators of this call to a graph; return the output. Raises as `graph`."""
        return self.add(
            {
                name: rows.stream(graph, mode) if isinstance(rows, Between) else _source(graph, name, rows)
                for name, rows in self.inputs.items()
            },
            mode,
        )

    @abstractmethod
    def add(self, inputs: Mapping[str, Stream], mode: Mode | None) -> Stream:
        """Add the operators of this call to the graph of its inputs. Return the output. Raises as `graph`."""

    @abstractmethod
    def after(self, rows: DataFrame) -> DataFrame:
        """Return the result: Spark computes it on the output of the region."""

    @abstractmethod
    def describe(self) -> str:
        """Return lines with the name of the operator, its keys and its state."""

    @property
    def event_time(self) -> str | None:
        """The column of its output, no window, by which a call above it may group windows."""
        return None

    def plain_columns(self) -> list[str | None] | None:
        """Return for each column of the shadow the column of the region's output that has its values:
        `WINDOW` for the window, None for one that Spark computes after the region. None: no call may be above
        it.
        """
        return None

    def empty_output(self) -> DataFrame:
        """Return the output of a region without rows. Raises FrameError if no region has such an operator."""
        # Of a stream, "complete" has the columns of all modes, and needs no watermark.
        mode: Mode | None = "complete" if self.shadow.isStreaming else None
        graph = Graph("check")
        try:
            # The calls below have been checked: of their output the columns are enough.
            inputs = {
                name: rows.alone(graph, name) if isinstance(rows, Between) else _source(graph, name, rows)
                for name, rows in self.inputs.items()
            }
            self.add(inputs, mode).sink(OUTPUT, LogSink(publish="checkpoint"))
            plan = graph.plan()
        except (GraphError, SchemaError) as error:
            raise FrameError(f"{self.name} cannot be computed by a region: {error}") from error
        columns = plan.schemas[self.name]
        assert columns is not None, "an operator with a sink has columns"
        return self.shadow.sparkSession.createDataFrame([], spark_schema(columns))

    def _delay_of(self, column: str) -> timedelta | None:
        """Return the delay of the watermark of a column of the only input; None without one."""
        return delay_of(self.inputs[INPUT].schema[column])


def delay_of(field: StructField) -> timedelta | None:
    """Return the delay of the watermark of a column; None without one."""
    found = field.metadata.get(WATERMARK)
    return None if found is None else timedelta(milliseconds=int(found))


def timed_as_spark(rows: Stream, name: str, time: str, delay: timedelta) -> Stream:
    """Give a stream the event time of a column: as in Spark a row at the watermark is late."""
    lateness = max(delay - MICROSECOND, timedelta(0))
    return rows.event_time(name, time, lateness=lateness, max_ahead=None)


def _timed_in_batch(rows: Stream, name: str) -> Stream:
    return rows.event_time(name, TIME, lateness=_BATCH_LATENESS, max_ahead=None)


@dataclass(frozen=True)
class Between:
    """Rows of a call below, in the same region. `schema`: theirs, with Spark's metadata; `selection`: what
    lies between: their columns, of those of the output of that call.
    """

    call: StatefulCall
    schema: StructType
    selection: Selection

    def stream(self, graph: Graph, mode: Mode | None) -> Stream:
        if self.call.emits_updates and mode not in (None, "append"):
            # Its rows are new values of groups, which a call above would count again.
            raise FrameError(
                f"{self.call.name} has another call above it, and would have new values of its groups in the"
                f" output mode {mode!r}",
                remedy='use the output mode "append"',
            )
        rows = self.call.stream(graph, mode)
        if isinstance(self.call, GroupFunction) and self.call.emitted_time is not None:
            # As in Spark, its result has rows without a time, which are in no window.
            present = partial(_is_present, self.call.emitted_time)
            rows = rows.filter(f"{self.call.name}.timed", present, takes="batch")
        return rows.map(
            f"{self.call.name}.columns", self.selection, schema=arrow_schema(self.schema), takes="batch"
        )

    def alone(self, graph: Graph, name: str) -> Stream:
        """Return rows with these columns and event time, as if there were no call below."""
        rows = _source(graph, name, self)
        if TIME not in self.schema.names:
            return rows
        return _timed_in_batch(rows, f"{name}.time")


def _is_present(column: str, batch: pa.RecordBatch) -> pa.Array:
    return batch.column(column).is_valid()


def _source(graph: Graph, name: str, rows: DataFrame | Between) -> Stream:
    return graph.source(name, InputSource(name, rows.schema))


@dataclass(frozen=True)
class Aggregation(StatefulCall):
    """A `groupBy(...).agg(...)`."""

    emits_updates: ClassVar[bool] = True
    division: DividedCall
    shape: WindowShape | None

    def add(self, inputs: Mapping[str, Stream], mode: Mode | None) -> Stream:
        rows = inputs[INPUT]
        lateness = _BATCH_LATENESS if mode is None else self._delay(mode)
        if lateness is not None and not self.below:  # through calls below the watermark comes with the rows
            rows = rows.event_time(f"{self.name}.time", TIME, lateness=lateness, max_ahead=None)
        keys = [key.name for key in self.division.plain_keys] or [ALL]
        keyed = rows.key_by(f"{self.name}.key", *keys)
        window = Tumbling(TIME, _BATCH_WINDOW) if mode is None and self.shape is None else self._window()
        aggregates = _aggregates(self.division)
        return keyed.aggregate(self.name, window, emit=self._emit(mode), **aggregates)

    def _emit(self, mode: Mode | None) -> Literal["final", "updates", "table"]:
        if mode is None or mode == "append":
            return "final"
        # Spark has the row of an aggregation without keys in each micro-batch, also if no row has come.
        return "table" if mode == "complete" or not self.division.keys else "updates"

    def _delay(self, mode: Mode) -> timedelta | None:
        """Return the delay of the watermark that the windows of a stream need. Raises FrameError."""
        if mode == "complete":
            return None  # no row is late, and no window ends
        for key in self.division.plain_keys:
            if self._delay_of(key.name) is not None:
                raise FrameError(
                    f"the key {key.name!r} has a watermark, by which Spark would forget keys",
                    remedy="group by a window(...) of it, or call withWatermark on another column",
                )
        delay = None if self.shape is None else self._delay_of(TIME)
        if mode == "append" and delay is None:
            raise FrameError(
                f"{self.name} has no window of a column with a watermark",
                remedy="group by window(...) of a column with withWatermark",
            )
        return delay

    def _window(self) -> Window | None:
        if self.shape is None:
            return None
        size, slide, offset = (timedelta(microseconds=value) for value in self.shape)
        return Tumbling(TIME, size, offset) if size == slide else Sliding(TIME, size, slide, offset)

    def after(self, rows: DataFrame) -> DataFrame:
        return _after(self.division, rows, self.shadow.schema)

    def plain_columns(self) -> list[str | None] | None:
        if not self.division.keys:
            return None  # Spark makes its row if there is none
        window = self.division.window
        return [
            None
            if one.expression.kind is not ExpressionKind.STATE
            else WINDOW
            if window is not None and one.expression.name == window.name
            else one.expression.name
            for one in self.division.results
        ]

    def describe(self) -> str:
        keys = ", ".join(key.name for key in self.division.plain_keys) or "none"
        state = ", ".join(f"{name} = {one}" for name, one in _aggregates(self.division).items())
        windows = f"\n  window  {self._window()}" if self.shape is not None else ""
        return f"aggregate {self.name}\n  key     {keys}{windows}\n  state   {state}"


@dataclass(frozen=True)
class Deduplication(StatefulCall):
    """A `dropDuplicates(...)`. `keys`: names of columns; `time`: that of them which has a watermark.
    `within`: `dropDuplicatesWithinWatermark(...)`, whose time need not be a key.
    """

    keys: tuple[str, ...]
    time: str | None
    within: bool = False

    def add(self, inputs: Mapping[str, Stream], mode: Mode | None) -> Stream:
        rows = inputs[INPUT]
        window: Tumbling | None = None
        within: timedelta | None = None
        if mode is None and not self.below:
            rows = _timed_in_batch(rows, f"{self.name}.time")
        delay = None if mode is None or self.time is None else self._delay_of(self.time)
        if self.time is not None and delay is not None:
            # Spark forgets a key whose time is at or below the watermark, which has whole milliseconds. A
            # window here is over when the watermark reaches its last microsecond.
            rows = timed_as_spark(rows, f"{self.name}.time", self.time, delay)
            window = Tumbling(self.time, timedelta(milliseconds=1), MICROSECOND)
            within = delay if self.within else None
        return rows.key_by(f"{self.name}.key", *self.keys).dedup(self.name, window, within=within)

    def after(self, rows: DataFrame) -> DataFrame:
        return columns_as(rows, self.shadow.columns, self.shadow.schema)

    @property
    def event_time(self) -> str | None:
        return self.time

    def plain_columns(self) -> list[str | None]:
        return list(self.shadow.columns)

    def describe(self) -> str:
        within = f"\n  within  the delay of {self.time!r}" if self.within else ""
        return f"dedup {self.name}\n  key     {', '.join(self.keys)}{within}"


@dataclass(frozen=True)
class GroupFunction(StatefulCall):
    """A `groupBy(...).applyInPandasWithState(...)` or `transformWithState...(...)`. `keys`: names of columns;
    `time`: the column of event time, if the function has timers; `call`: adds the operator to a keyed stream;
    `state`: its columns; `emitted_time`: the column of its result that has the watermark.
    """

    keys: tuple[str, ...]
    time: str | None
    call: Callable[..., Stream]
    state: pa.Schema
    emitted_time: str | None = None

    def add(self, inputs: Mapping[str, Stream], mode: Mode | None) -> Stream:
        rows = inputs[INPUT]
        if mode is None:
            rows = _timed_in_batch(rows, f"{self.name}.time")
        elif self.time is not None:
            delay = self._delay_of(self.time)
            assert delay is not None, "the column has a watermark"
            rows = timed_as_spark(rows, f"{self.name}.time", self.time, delay)
        # Without event time no row is late, also if the clock of the driver, which is its time, went back.
        keyed = rows.key_by(f"{self.name}.key", *self.keys)
        calls = "group" if mode is None else "batch"
        return self.call(keyed, self.name, time=self.time or TIME, calls=calls, clock=TIME)

    def after(self, rows: DataFrame) -> DataFrame:
        return columns_as(rows, self.shadow.columns, self.shadow.schema)

    @property
    def event_time(self) -> str | None:
        return self.emitted_time

    def plain_columns(self) -> list[str | None] | None:
        return None if self.emitted_time is None else list(self.shadow.columns)

    def describe(self) -> str:
        state = ", ".join(f"{field.name} {field.type}" for field in self.state)
        time = "" if self.time is None else f"\n  time    {self.time}"
        return f"transform {self.name}\n  key     {', '.join(self.keys)}{time}\n  state   {state}"


def applied_with_state(
    df: DataFrame,
    keys: Sequence[Column],
    shadow: DataFrame,
    function: Callable[..., Any],
    state: StructType,
    mode: str,
    timeout: str,
) -> GroupFunction:
    """Return `applyInPandasWithState`. shadow: the same call on Spark's DataFrame. Raises FrameError, and in
    a batch what Spark raises.
    """
    if not shadow.isStreaming:
        need_own_session(shadow.sparkSession, "applyInPandasWithState of a batch")
        given: Any = shadow
        given._jdf.queryExecution().sparkPlan()  # noqa: SLF001  # Spark refuses it here
        raise FrameError("applyInPandasWithState is for streams", remedy="use applyInPandas of Spark")
    call = partial(
        KeyedStream.apply_in_pandas_with_state,
        func=function,
        outputStructType=shadow.schema,
        stateStructType=state,
        outputMode=mode,
        timeoutConf=timeout,
    )
    return _of_groups(df, keys, shadow, call, timers=timeout == "EventTimeTimeout", state=parse_schema(state))


def transformed(
    df: DataFrame,
    keys: Sequence[Column],
    shadow: DataFrame,
    processor: Any,
    mode: str,
    time_mode: str,
    takes: ProcessorTakes,
) -> GroupFunction:
    """Return `transformWithState` (takes="row") or `transformWithStateInPandas` ("pandas"). shadow: the same
    call on Spark's DataFrame; the column of its result that has a watermark is eventTimeColumnName. Raises
    FrameError.
    """
    timers = time_mode.lower() == "eventtime"
    emitted_time = next((field.name for field in shadow.schema if WATERMARK in field.metadata), None)
    if emitted_time is not None and not timers:
        # Without event time no row is late for the function: what it emits for a late one would be.
        raise FrameError(
            f"eventTimeColumnName={emitted_time!r} needs a watermark: the time mode {time_mode!r} has none",
            remedy='use the time mode "EventTime"',
        )
    if timers and not shadow.isStreaming:
        raise FrameError("a batch has no timers", remedy='use the time mode "None", or a stream')
    try:
        state = state_columns(processor, timers=timers)
    except SchemaError as error:
        raise FrameError(
            f"the processor cannot run in a region: {error}",
            remedy="leave out what needs processing time (ttlDurationMs); use timers of event time",
        ) from error
    call = partial(
        KeyedStream.transform_with_state,
        processor=processor,
        outputStructType=shadow.schema,
        outputMode=mode,
        timeMode=time_mode,
        eventTimeColumnName=emitted_time or "",
        takes=takes,
    )
    made = _of_groups(df, keys, shadow, call, timers=timers, state=state)
    return replace(made, emitted_time=emitted_time)


def _of_groups(
    df: DataFrame,
    keys: Sequence[Column],
    shadow: DataFrame,
    call: "partial[Stream]",
    *,
    timers: bool,
    state: pa.Schema,
) -> GroupFunction:
    columns = columns_of(df)
    if TIME in columns.names:
        raise FrameError(f"the DataFrame has a column {TIME!r}", remedy="rename it before")
    refuse_ambiguous(columns)
    names = _key_names(df, keys, columns)
    timed = [field.name for field in df.schema if WATERMARK in field.metadata]
    if timers and len(timed) != 1:
        raise FrameError(
            f"timers of event time need one column with a watermark, and {len(timed)} columns have one",
            remedy="call withWatermark before groupBy, and keep its column",
        )
    # The processing time: constant in a micro-batch, and the same when it is repeated.
    before = df.withColumn(TIME, F.current_timestamp())
    call = partial(call, time_zone=df.sparkSession.conf.get("spark.sql.session.timeZone"))
    name = call_name("transform", names)
    made = GroupFunction(name, {INPUT: before}, shadow, names, timed[0] if timers else None, call, state)
    check_columns(name, made.after(made.empty_output()), shadow)
    return made


def _key_names(df: DataFrame, keys: Sequence[Column], columns: Columns) -> tuple[str, ...]:
    """Return the names of keys, which are columns: Spark takes no others for functions of groups."""
    expressions = expressions_of(df.sparkSession)
    read = [expressions.read(one) for one in keys]
    plain = [one.parts for one in read if one.kind is ExpressionKind.COLUMN]
    names = tuple(columns.spelled(name) for name, *field in plain if not field)
    if not names or len({*names}) < len(keys) or not {*names} <= {*columns.names}:
        raise FrameError(
            "functions of groups need keys that are different columns", remedy="add a column before"
        )
    fields = [df.schema[name] for name in names]
    refuse_collations(fields)
    for field in fields:
        if isinstance(field.dataType, (ArrayType, StructType)):
            raise FrameError(f"the key {field.name!r} of a function is nested", remedy="group by its parts")
    return names


def deduplicated(
    df: DataFrame,
    subset: Sequence[str] | None,
    shadow: DataFrame,
    below: StatefulCall | None = None,
    *,
    within: bool = False,
) -> Deduplication:
    """Return `df.dropDuplicates(subset)`, or `within` the watermark. shadow: the same call on Spark's
    DataFrame. below: the call of the same region of whose result `df` was made. Raises FrameError.
    """
    columns = columns_of(df)
    refuse_ambiguous(columns)
    keys = columns.names if subset is None else tuple(dict.fromkeys(map(columns.spelled, subset)))
    refuse_collations([df.schema[one] for one in keys])
    timed = [one for one in (columns.names if within else keys) if WATERMARK in df.schema[one].metadata]
    if len(timed) > 1:
        raise FrameError(
            f"duplicates are found by several columns with a watermark ({', '.join(timed)})",
            remedy="use one of them",
        )
    name = call_name("dedup", keys if subset is not None else ())
    rows: DataFrame | Between
    if within:
        refuse_below("dropDuplicatesWithinWatermark", below)
    if isinstance(below, GroupFunction):
        refuse_below("dropDuplicates", below)
    if below is not None:
        rows = _between(df, below)
    else:
        # In a batch a call above it waits for the end, which is one of event time.
        rows = df if df.isStreaming else df.withColumn(TIME, F.timestamp_micros(F.lit(0)))
    call = Deduplication(name, {INPUT: rows}, shadow, keys, timed[0] if timed else None, within)
    check_columns(name, call.after(call.empty_output()), shadow)
    return call


def columns_of(df: DataFrame) -> Columns:
    sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    return Columns(tuple(df.columns), sensitive)


def refuse_ambiguous(columns: Columns, what: str = "the DataFrame") -> None:
    if columns.ambiguous():
        raise FrameError(
            f"{what} has several columns named {min(columns.ambiguous())!r}",
            remedy="rename one before, for example with toDF",
        )


def refuse_below(name: str, below: StatefulCall | None) -> None:
    """Raise FrameError for a call that cannot be above another one in a region."""
    if below is not None:
        raise FrameError(f"{name} after {below.name}", remedy=_OTHER_REGION)


def refuse_collations(keys: Sequence[StructField]) -> None:
    """Keys of a region are equal if their bytes are; with a collation 'a' may equal 'A' in Spark."""
    for field in keys:
        if " collate " in field.dataType.simpleString().lower():
            raise FrameError(f"the key {field.name!r} has a collation", remedy='cast it to "string"')


def columns_as(rows: DataFrame, columns: Sequence[str], shadow: StructType) -> DataFrame:
    """Return these columns as those that Spark makes of a call. The result of a region has no watermark of
    Spark.
    """
    made = []
    for column, field in zip(columns, shadow.fields, strict=True):
        metadata = {key: value for key, value in field.metadata.items() if key != WATERMARK}
        made.append(F.col(quoted(column)).alias(field.name, metadata=metadata))
    return rows.select(*made)


def divided(
    df: DataFrame,
    keys: Sequence[Column],
    results: Sequence[Column],
    shadow: DataFrame,
    below: StatefulCall | None = None,
) -> Aggregation:
    """Divide an aggregation of `df`. shadow: the same call on Spark's own DataFrame. below: the call of the
    same region from which `df` was made. Raises FrameError.
    """
    spark = df.sparkSession
    expressions = expressions_of(spark)
    fields = shadow.schema.fields
    if len(fields) != len(keys) + len(results):
        raise FrameError(
            f"the aggregation has {len(keys)} keys and {len(results)} results, but Spark makes {len(fields)}"
            " columns of it",
            remedy="write each result as an expression of its own, without a star; and leave"
            " spark.sql.retainGroupColumns as it is",
        )
    columns = columns_of(df)
    given_keys = [expressions.read(one) for one in keys]
    given_results = [expressions.read(one) for one in results]
    refuse_collations(fields[: len(keys)])
    calls = aggregate_calls(given_keys, given_results, columns)
    typed = [one for call in calls for one in typed_arguments(call)]
    found = df.select(*[expressions.column(one).alias(str(index)) for index, one in enumerate(typed)]).schema
    division = divide(
        [Result(field.name, one) for field, one in zip(fields, given_keys, strict=False)],
        [Result(field.name, one) for field, one in zip(fields[len(keys) :], given_results, strict=True)],
        columns,
        {one: field.dataType.simpleString() for one, field in zip(typed, found, strict=True)},
    )
    shape = None if division.window is None else _shape(df, expressions, division.window.expression)
    before: DataFrame | Between
    if below is not None:
        zeros = [] if division.plain_keys else [StructField(ALL, IntegerType(), nullable=False)]
        if shape is None and not shadow.isStreaming:
            zeros.append(StructField(TIME, TimestampType(), nullable=False))
        before = _between(df.select(*_plain(expressions, division, below)), below, zeros)
    else:
        before = df.select(*_before(df, expressions, division, shadow))
        if shape is not None:
            before = before.where(F.col(TIME).isNotNull())  # as Spark: a row without a time is in no window
    size = None if shape is None else shape.size
    name = call_name("aggregate", [key.name for key in division.plain_keys], size)
    aggregation = Aggregation(name, {INPUT: before}, shadow, division, shape)
    check_columns(name, aggregation.after(aggregation.empty_output()), shadow)
    return aggregation


def check_columns(name: str, result: DataFrame, shadow: DataFrame) -> None:
    """Raise FrameError unless the result has the names and types that Spark makes. Nothing is run."""
    made, expected = (
        [(f.name, f.dataType.simpleString()) for f in s] for s in (result.schema, shadow.schema)
    )
    if made != expected:
        raise FrameError(
            f"{name} would have the columns {made}, but Spark makes {expected}",
            remedy="cast the arguments to the types of Spark's result, or aggregate on frame.df()",
        )


def _aggregates(division: DividedCall) -> dict[str, Aggregate]:
    aggregates: dict[str, Aggregate] = {
        one.name: Count() if one.argument is None else _aggregate(one.aggregate, one.argument)
        for one in division.partials
    }
    return aggregates or {"count(*)": Count()}  # of results that are functions of the keys alone


def _aggregate(aggregate: str, argument: str) -> Aggregate:
    if aggregate == "Count":
        return Count(argument)
    made: Aggregate = _AGGREGATES[aggregate](argument)
    return made


# --- before the region --------------------------------------------------------------------------------------


def _before(
    df: DataFrame, expressions: Expressions, division: DividedCall, shadow: DataFrame
) -> list[Column]:
    columns = [expressions.column(key.expression).alias(key.name) for key in division.plain_keys]
    if not columns:
        columns = [F.lit(0).alias(ALL)]
    columns += [_argument(expressions, one).alias(one.name) for one in division.arguments]
    if division.window is None and shadow.isStreaming:
        return columns
    return [*columns, _time(df, expressions, division.window, shadow.schema).alias(TIME)]


def _time(df: DataFrame, expressions: Expressions, window: Key | None, shadow: StructType) -> Column:
    if window is None:
        return F.timestamp_micros(F.lit(0))
    time = expressions.column(window.expression.children[0])
    kind: Any = shadow[window.name].dataType
    given, used = df.select(time).schema[0].dataType, kind["start"].dataType
    # A cast would remove the metadata of a watermark.
    return time if given == used or isinstance(given, StructType) else time.cast(used)


def _argument(expressions: Expressions, argument: Argument) -> Column:
    values = [expressions.column(one) for one in argument.values]
    if argument.form is Form.PRESENT:
        column, condition = F.lit(1), all_of([one.isNotNull() for one in values])
    elif argument.form is Form.TRUE:
        column, condition = F.lit(1), all_of(values)
    else:
        column, condition = values[0], None
        if argument.form is Form.DOUBLE:
            column = column.cast("double")
    if argument.where is not None:
        where = expressions.column(argument.where)
        condition = where if condition is None else condition & where
    return column if condition is None else F.when(condition, column)


def _shape(df: DataFrame, expressions: Expressions, window: Expression) -> WindowShape:
    """Read the windows off the rows that Spark itself makes. Raises as `shape_of`.

    No interval is parsed: Spark has two syntaxes, and defaults.
    """

    def windows(instants: list[int]) -> dict[int, set[tuple[int, int]]]:
        """Return the windows of each time."""
        listed = F.array(*[F.lit(one).cast("bigint") for one in instants])
        times = df.sparkSession.range(0, 1, 1, 1).select(F.explode(listed).alias("instant"))
        times = times.withColumn(TIME, F.timestamp_micros("instant"))
        state = Expression(ExpressionKind.STATE, TIME)
        own = expressions.column(replace(window, children=(state, *window.children[1:])))
        rows = times.select("instant", own.alias("w"))
        rows = rows.select("instant", F.unix_micros("w.start"), F.unix_micros("w.end"))
        found: dict[int, set[tuple[int, int]]] = {one: set() for one in instants}
        for instant, start, stop in rows.collect():
            found[instant].add((start, stop))
        return found

    return shape_of(windows, text_of(window, Columns(())))


def shape_of(windows: Callable[[list[int]], dict[int, set[tuple[int, int]]]], text: str) -> WindowShape:
    """Return the shape of windows. windows: returns those of each time. Raises FrameError unless the shape
    has the same windows at other times, which are drawn at random.
    """
    ((start, stop), *_) = windows([0])[0] or {(0, 0)}
    size = stop - start
    # Three times cover the starts of three sizes without a gap: at least two windows, also if the slide is
    # nearly the size and each time is in one window only.
    near = windows([0, size, 2 * size])
    starts = sorted({begin for each in near.values() for begin, _ in each})
    slide = min((after - before for before, after in pairwise(starts)), default=size)
    shape = WindowShape(size, slide, start % slide if slide else 0)
    rng = random.Random(text)  # noqa: S311  # the same instants in each run
    checked = [rng.randrange(-(2**50), 2**51) for _ in range(20)]
    if size <= 0 or slide <= 0 or windows(checked) != {one: shape.windows(one) for one in checked}:
        raise FrameError(f"the windows of {text} are not regular", remedy="use windows of a fixed size")
    return shape


# --- between two calls of a region --------------------------------------------------------------------------


def _plain(expressions: Expressions, division: DividedCall, below: StatefulCall) -> list[Column]:
    """Return the columns of an aggregation above another call. Raises FrameError if one is computed."""
    columns = [expressions.column(key.expression).alias(key.name) for key in division.plain_keys]
    for one in division.arguments:
        value, *more = one.values
        if more or one.where is not None or one.form not in (Form.VALUE, Form.PRESENT):
            raise _is_computed(one.name, below)
        columns.append(expressions.column(value).alias(one.name))  # Count(column) counts where it is present
    if division.window is not None:
        time = division.window.expression.children[0]
        if time.kind is ExpressionKind.CALL and time.name == "window_time":
            time = time.children[0]  # `window` of a window uses its time, too
        columns.append(expressions.column(time).alias(TIME))
    return columns


def _is_computed(name: str, below: StatefulCall) -> FrameError:
    return FrameError(
        f"{name!r} is computed between {below.name} and a stateful call above it; in one region only plain"
        " columns lie there, and window(...) of a window",
        remedy=_OTHER_REGION,
    )


def _between(given: DataFrame, below: StatefulCall, zeros: Sequence[StructField] = ()) -> Between:
    """Return these columns as rows of the region. zeros: columns more, of zeros. Raises FrameError unless
    they are plain ones of the result of the call below; `TIME` is its window or its event time.
    """
    need_own_session(given.sparkSession, f"a stateful call above {below.name}")
    try:
        positions = plain_columns(given, below.shadow)
    except FrameError as error:
        raise FrameError(f"{error} ({below.name} and the next one)", remedy=_OTHER_REGION) from None
    columns = below.plain_columns()
    if columns is None:
        raise FrameError(
            f"a stateful call above {below.name} would be in the same region", remedy=_OTHER_REGION
        )
    fields = list(given.schema.fields)
    selected, window_time, behind_us, stream = [], None, 0, given.isStreaming
    for index, (field, position) in enumerate(zip(fields, positions, strict=True)):
        found = None if position is None else columns[position]
        if found is None:
            raise _is_computed(field.name, below)
        if field.name == TIME and stream and found is not None and found == below.event_time:
            # The watermark of duplicates, and of functions, is 1 microsecond above that of windows.
            behind_us = 1
        elif (field.name == TIME) != (found == WINDOW):
            is_window = found == WINDOW
            used = f"its window {field.name!r}" if is_window else "window(...) of a time that is no window"
            raise FrameError(
                f"a stateful call above {below.name} uses {used}",
                remedy=f"group by window(...) of its window, or {_OTHER_REGION}",
            )
        if found != WINDOW:
            selected.append((field.name, found))
            continue
        kind: Any = field.dataType
        fields[index] = StructField(TIME, kind["start"].dataType, metadata=field.metadata)
        window_time = TIME
    made = arrow_schema(StructType(list(zeros)))
    selection = Selection(
        tuple(selected), window_time, tuple((one.name, one.type) for one in made), behind_us
    )
    return Between(below, StructType([*fields, *zeros]), selection)


# --- after the region ---------------------------------------------------------------------------------------


def _after(division: DividedCall, rows: DataFrame, shadow: StructType) -> DataFrame:
    spark = rows.sparkSession
    expressions = expressions_of(spark)
    if not division.keys:
        # Spark has a row also if there was no input.
        # By position: PySpark's mapInArrow takes a column `a.b` for the field b of a.
        numbered = rows.coalesce(1).toDF(*map(str, range(len(rows.columns))))
        rows = numbered.mapInArrow(_AtLeastOneRow(arrow_schema(rows.schema)), rows.schema)
    guard = ALL if not division.plain_keys else division.plain_keys[0].name
    state = [F.col(quoted(key.name)).alias(_hidden(key.name)) for key in division.plain_keys]
    if division.window is not None:
        both = F.struct(F.col(START).alias("start"), F.col(STOP).alias("end"))
        state.append(both.alias(_hidden(division.window.name)))
    for one in division.partials:
        column = F.col(quoted(one.name))
        if not division.keys and one.aggregate in ("Count", "ApproxDistinct"):
            column = F.coalesce(column, F.lit(0).cast("bigint"))
        state.append(column.alias(_hidden(one.name)))
    rows = rows.select(*state, F.col(quoted(guard)).alias(ALL))
    results = [expressions.column(_with_hidden(one.expression)).alias(one.name) for one in division.results]
    # A column that is no aggregate beside them: Spark refuses an aggregate function that was not recognized,
    # instead of aggregating the output of the region.
    rows = rows.select(*results, F.col(quoted(ALL)).alias(ALL))
    names = [str(index) for index in range(len(results))]
    return columns_as(rows.toDF(*names, ALL), names, shadow)


@dataclass(frozen=True)
class _AtLeastOneRow:
    """A function of `mapInArrow`: all rows, or one of nulls if there are none."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch.rename_columns(self.schema.names)
        if not rows:
            nulls = [pa.nulls(1, one.type) for one in self.schema]
            yield pa.RecordBatch.from_arrays(nulls, schema=self.schema)


def _hidden(name: str) -> str:
    """Return the name under which expressions after the region use a column of its output: no name in them
    that Spark resolves (of an earlier result, `sum(v)`) can mean that column.
    """
    return f"#state {name}"


def _with_hidden(expression: Expression) -> Expression:
    if expression.kind is ExpressionKind.STATE:
        return replace(expression, name=_hidden(expression.name))
    return replace(expression, children=tuple(_with_hidden(one) for one in expression.children))

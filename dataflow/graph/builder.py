"""Build a graph of named sources, operators and sinks: `Graph`, and the streams between them.

    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource(["a.txt", "b.txt"]))
    words = lines.flat_map("words", lambda row: row["line"].split(), schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink("out"))

`Graph.plan` checks a graph as a whole before anything starts. The graph is sent to every worker, and each
makes the same plan from it. State is found by operator name: renaming an operator disconnects it from its
state. `parts_of` divides a graph that is not one region into parts that run separately.
"""

import html
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, Self

import pyarrow as pa

from checkpoint import (
    Begin,
    Checkpoint,
    GraphChange,
    GraphOptions,
    OutputIdentity,
    compare,
    continued_regions,
)
from dataflow.core.plan import (
    KIND_RULES,
    NodeSpec,
    OperatorKind,
    carries_updates,
    find_problems,
    make_plan,
    update_problems,
)
from dataflow.core.regions import (
    ANNOTATION,
    Annotation,
    Autonomous,
    Consistent,
    Region,
    choose_regions,
    region_options,
)
from dataflow.errors import GraphError, SchemaError
from dataflow.graph.checks import (
    check_replica,
    complete_first_problems,
    find_lags,
    find_schemas,
    is_replica,
    publish_by_step_problems,
    reads_of_sinks,
    region_problems,
    shared_key_problems,
    sink_deliveries,
    time_problems,
)
from dataflow.graph.pictures import FORMS, explain, svg
from dataflow.graph.plan import GraphPlan, operator_notes
from dataflow.operators.aggregates import Aggregate, AggregateSpec, CountSpec, check_emit
from dataflow.operators.apply import apply_spec, inputs_of
from dataflow.operators.base import Emit, OperatorSpec
from dataflow.operators.broadcast_state import BroadcastSpec, BroadcastStateSpec
from dataflow.operators.dedup import DedupSpec, WindowDedupSpec
from dataflow.operators.event_time import EventTimeSpec, OnAhead, OnNullKey, OnNullTime
from dataflow.operators.functions import (
    FilterSpec,
    FlatMapSpec,
    FunctionSpec,
    MapSpec,
    Takes,
    UserFunction,
    declared_side_outputs,
)
from dataflow.operators.join import JoinSpec
from dataflow.operators.map_state import MapStateSpec, OnRow, OnTimer
from dataflow.operators.routing import KeyBySpec, SideOutputSpec, UnionSpec
from dataflow.operators.sorting import SortSpec, TopKSpec
from dataflow.operators.spark_functions import (
    CallsPer,
    GroupStateSpec,
    ProcessorSpec,
    ProcessorTakes,
    check_calls,
    check_mode,
    check_time_mode,
    state_columns,
)
from dataflow.operators.user_operator import UserOperator
from dataflow.operators.windows import CountWindow, CountWindowSpec, Tumbling, Window, WindowSpec
from dataflow.schema import parse_schema
from dataflow.sinks.base import OutputOwner, SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec
from dataflow.sources.stored import LogSource
from dataflow.state.key_states import StateLocation
from dataflow.state.migration import Migration, parse_state
from dos_protocol.errors import DosError

_SHOWN_MAX: Final = 8
"""So many operators are in the `repr` of a graph."""


@dataclass(slots=True)
class Node:
    """One recorded operator. Inputs are nodes, or names of operators added later (`Graph.stream`)."""

    name: str
    spec: OperatorSpec
    inputs: "tuple[Node | str, ...]"


@dataclass(frozen=True, slots=True)
class BroadcastTable:
    """A broadcast table, returned by `graph.broadcast_table` and accepted by operators as `broadcast=`."""

    graph: "Graph"
    name: str


@dataclass(frozen=True, slots=True, repr=False)
class Stream:
    """The output of an operator. Every method adds one named operator and returns its output."""

    graph: "Graph"
    node: Node | str

    def __repr__(self) -> str:
        name = self.node if isinstance(self.node, str) else self.node.name
        return f"<{type(self).__name__} {name!r} of graph {self.graph.name!r}>"

    def map(
        self,
        name: str,
        function: UserFunction,
        *,
        schema: "str | pa.Schema | None" = None,
        takes: Takes = "row",
        deterministic: bool = True,
        replica_consistent: bool | None = None,
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Return one row for each row. `schema` describes the result; by default it is that of the input.

            orders.map("reduced", lambda row: {**row, "price": row["price"] * 0.9})
            lines.map("lengths", lambda batch: pc.utf8_length(batch["line"]), schema="n int", takes="batch")

        takes: "row", a dict of the columns, for a dict, a tuple or, for one column, a value. "batch", a
        `pa.RecordBatch`, for one with the same number of rows (or a table, a dict of arrays, an array).
        "pandas", the same with a DataFrame, whose columns are Arrow-backed. deterministic=False: the function
        may return other rows for the same input (a clock, a service, random numbers). State and output stay
        exactly-once, but no sink below may publish by step. replica_consistent: for a region with replicas,
        whether the result for a row depends on that row alone, not on others in its batch; None: True if
        takes="row". threads: how many threads call the function at once, for a thread-safe one that waits or
        releases the GIL; results keep the order of the rows. broadcast: a table that the function gets as its
        second argument (`graph.broadcast_table`). side_outputs: name -> columns; the function gets
        `emit(port, row)` as its last argument, which writes a row, a batch or a table, and
        `stream.side_output(name, port)` reads it.

            def checked(row, emit):
                if row["price"] < 0:
                    emit("odd", (row["item"],))
                return row

            checked_orders = orders.map("checked", checked, side_outputs={"odd": "item string"})
            odd = checked_orders.side_output("odd", "odd")
        """
        columns = None if schema is None else parse_schema(schema)
        spec = MapSpec(
            function,
            takes,
            columns,
            deterministic=deterministic,
            replica_consistent=replica_consistent,
            threads=threads,
        )
        return self._then_function(name, spec, broadcast, side_outputs)

    def flat_map(
        self,
        name: str,
        function: UserFunction,
        *,
        schema: "str | pa.Schema",
        takes: Takes = "row",
        deterministic: bool = True,
        replica_consistent: bool | None = None,
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Return any number of rows for each row: the function returns or yields them. Otherwise as `map`.

        Example:

            lines.flat_map("words", lambda row: row["line"].split(), schema="word string")
        """
        columns = parse_schema(schema)
        spec = FlatMapSpec(
            function,
            takes,
            columns,
            deterministic=deterministic,
            replica_consistent=replica_consistent,
            threads=threads,
        )
        return self._then_function(name, spec, broadcast, side_outputs)

    def filter(
        self,
        name: str,
        function: UserFunction,
        *,
        takes: Takes = "row",
        deterministic: bool = True,
        replica_consistent: bool | None = None,
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Keep the rows for which the function returns True; one of batches returns a boolean array.
        Otherwise as `map`.

            orders.filter("dear", lambda row: row["price"] > 10)
            orders.filter("tea", lambda batch: pc.equal(batch["item"], "tea"), takes="batch")
        """
        spec = FilterSpec(
            function,
            takes,
            deterministic=deterministic,
            replica_consistent=replica_consistent,
            threads=threads,
        )
        return self._then_function(name, spec, broadcast, side_outputs)

    def union(self, name: str, *others: "Stream") -> "Stream":
        """Merge this stream with others of the same schema.

        Example:

            orders.union("all", prices)
        """
        return self.graph.union(name, self, *others)

    def key_by(self, name: str, *columns: str, on_null: OnNullKey = "group") -> "KeyedStream":
        """Route rows with the same values in `columns` to the same worker.

        on_null: of rows with a null in one of them. "group": null is a key that equals itself, as in SQL's
        GROUP BY; a join does not match on it. "error": the region stops. "drop": they are dropped and
        counted. "side": they go to the side output "null".

            orders.key_by("by_item_and_time", "item", "at").count("counts")
            orders.key_by("by_known_item", "item", on_null="drop").count("known")
        """
        stream = self._then(name, KeyBySpec(tuple(columns), on_null))
        return KeyedStream(stream.graph, stream.node)

    def event_time(
        self,
        name: str,
        column: str,
        *,
        lateness: timedelta | None = None,
        punctuation: str | None = None,
        idle_after: timedelta | None = None,
        on_null: OnNullTime = "error",
        marks: bool = False,
        max_ahead: timedelta | None = timedelta(days=1),
        on_ahead: OnAhead = "error",
    ) -> "Stream":
        """Declare the timestamp `column` as the event time of the rows, and generate watermarks from it.

        The watermark is the minimum over all splits (files, producers, ...) that are not read to their end.
        lateness: no row is more than this behind the latest row before it in its split. punctuation: a column
        of timestamps, null in most rows; a value promises that all later rows of its split have larger times.
        A row that breaks either promise is late. idle_after: a split without rows for so long is ignored
        until one arrives, which may be late; None: a silent split holds the watermark back. marks: the
        watermark is what the entry points promise that gave the rows their times (`InputSource(...,
        entry=...)`). on_null: of rows with a null in `column`: "error" stops the region, "drop" drops and
        counts them, "side" is the side output "null". max_ahead: how far times (with punctuation, the
        promises) may be ahead of the clock, because one row from the future would make all others late; None:
        any time; unused with marks. on_ahead: of rows beyond it, likewise; "side" is the side output "ahead".

            sent = graph.source("sent", InputSource("sent", "at timestamp, all_before timestamp"))
            sent.event_time("by_promise", "at", lateness=timedelta(minutes=1))
            sent.event_time("by_rows", "at", punctuation="all_before")
        """
        return self._then(
            name,
            EventTimeSpec(column, lateness, punctuation, idle_after, on_null, marks, max_ahead, on_ahead),
        )

    def sort(self, name: str, time: str) -> "Stream":
        """Emit rows in event-time order as the watermark passes them; equal times in the order of all
        columns. Each worker orders its own rows. Late rows go to the side output "late".

            orders.sort("in_order", "at")
        """
        return self._then(name, SortSpec(time))

    def apply(self, name: str, operator: UserOperator) -> "Stream":
        """Add an operator of your own (`UserOperator`).

        On a keyed stream, all rows of a key reach the same instance. For several inputs use `graph.apply`.

            class Loud(UserOperator):
                needs = schema = "line string"

                def process(self, batch):
                    return [line.upper() for line in batch.column("line").to_pylist()]

            lines.apply("loud", Loud())
        """
        return self._then(name, apply_spec(operator))

    def side_output(self, name: str, port: str) -> "Stream":
        """Return a side output of the operator that made this stream: "late" for rows that arrived too late;
        "null" and "ahead" if on_null="side" or on_ahead="side"; or one that a function or operator declares.

            in_order = orders.sort("in_order", "at")
            in_order.side_output("late", "late").sink("late_out", CallSink(print))
        """
        return self._then(name, SideOutputSpec(port))

    def sink(self, name: str, sink: SinkSpec) -> None:
        """Write the stream to a sink.

        Example:

            orders.sink("archive", ParquetSink("archive"))
        """
        _check_end(sink, SinkSpec, f"sink {name!r} takes a sink, such as LogSink()")
        self._then(name, sink)

    def annotate(self, annotation: Annotation) -> "Stream":
        """Declare that the operator that made this stream starts a consistent region or is autonomous.

        Example:

            logs = graph.source("logs", FileSource("logs/*.txt")).annotate(consistent(period=5))
        """
        self.graph.annotate(self.node if isinstance(self.node, str) else self.node.name, annotation)
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with a remedy if a keyed method is called on a stream that is not keyed."""
        if name.startswith("_") or not hasattr(KeyedStream, name):
            raise AttributeError(f"a stream has no method {name!r}")
        maker = self.node if isinstance(self.node, str) else self.node.name
        raise AttributeError(
            f"{name} needs a keyed stream, and the output of {maker!r} has no keys: key_by must come directly"
            f" before it; write .key_by(NAME, COLUMN, ...).{name}(...), and filter or map before key_by"
        )

    def _then_function(
        self,
        name: str,
        spec: FunctionSpec,
        broadcast: "BroadcastTable | None",
        side_outputs: "Mapping[str, str | pa.Schema] | None",
    ) -> "Stream":
        table, ports = self._table(broadcast), declared_side_outputs(side_outputs)
        return self._then(name, replace(spec, broadcast=table, side_outputs=ports))

    def _table(self, broadcast: "BroadcastTable | None") -> str | None:
        if broadcast is None:
            return None
        if not isinstance(broadcast, BroadcastTable) or broadcast.graph is not self.graph:
            problem = f"broadcast= takes a table from graph.broadcast_table of this graph, not {broadcast!r}"
            raise GraphError(self.graph.name, (problem,))
        return broadcast.name

    def _then(self, name: str, spec: OperatorSpec) -> "Stream":
        return self.graph._add(name, spec, (self,))  # noqa: SLF001 - a graph and its streams are one class for users


class KeyedStream(Stream):
    """A stream whose rows of one key are all on one worker, as keyed operators require."""

    __slots__ = ()

    def _keys(self) -> tuple[str, ...]:
        if isinstance(self.node, Node) and isinstance(self.node.spec, KeyBySpec):
            return self.node.spec.keys
        return ()

    def _with(self, other: Self, name: str, spec: OperatorSpec) -> Stream:
        return self.graph._add(name, spec, (self, other))  # noqa: SLF001 - as in `Stream`

    def count(self, name: str) -> Stream:
        """Count the rows of each key: (key columns, count bigint), once a step for each key in it.

        Example:

            by_item.count("counts")
        """
        return self._then(name, CountSpec(self._keys()))

    def aggregate(
        self,
        name: str,
        window: Window | CountWindow | None = None,
        /,
        *,
        emit: Emit | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Compute aggregates of the rows of each key (`dataflow.operators.aggregates`).

            by_item.aggregate("sold", orders=Count(), income=Sum("price"))
            by_item.aggregate("hourly", Tumbling("at", timedelta(hours=1)), orders=Count())
            by_item.aggregate("smooth", CountWindow("at", 3, slide=1), mean=Mean("price"))

        Without a window: over all rows so far: (key columns, aggregates by name). With a window: over its
        rows: (key columns, window_start, window_end, aggregates). With a CountWindow: over that many rows of
        the key in event-time order: (key columns, window_number, aggregates). Late rows go to the side output
        "late".

        emit: "final", the default with a window: each window once, when it is over. "updates", the default
        without one: at the end of a micro-batch (of a query, `through`; without one of a step) a row for each
        group that changed in it. "table": at the end of a micro-batch a row for every group; only with a
        query. Raises SchemaError for a mode that the aggregate does not have.
        """
        listed = tuple(aggregates.items())
        if window is None:
            return self._then(name, AggregateSpec(self._keys(), listed, emit or "updates"))
        if isinstance(window, CountWindow):
            check_emit(emit or "final", ("final",), "a count window is emitted once, when it is full")
            return self._then(name, CountWindowSpec(self._keys(), window, listed))
        return self._then(name, WindowSpec(self._keys(), window, listed, emit or "final"))

    def dedup(
        self, name: str, window: Tumbling | None = None, /, *, within: timedelta | None = None
    ) -> Stream:
        """Emit the first row of each key when it arrives.

        With a window: of each key in each window; the key is forgotten when the window closes, and later rows
        go to the side output "late". Which of several rows of a key is first depends on the order of arrival:
        use all columns that distinguish rows as the key.

            by_item.dedup("items")
            by_item.dedup("items_of_a_day", Tumbling("at", timedelta(days=1)))

        within: the first row of each key, whatever its window, and no other one until this long after the end
        of the window of that first row. Then the key is forgotten. Raises SchemaError without a window.

            by_item.dedup("recent_items", Tumbling("at", timedelta(seconds=1)), within=timedelta(hours=1))
        """
        if window is None and within is None:
            return self._then(name, DedupSpec(self._keys()))
        if window is None:
            raise SchemaError("dedup with within= needs a window: Tumbling('at', timedelta(seconds=1))")
        return self._then(name, WindowDedupSpec(self._keys(), window, within))

    def join(
        self,
        name: str,
        right: Self,
        *,
        times: tuple[str, str],
        within: timedelta,
        suffix: str = "_right",
        one_watermark: bool = False,
    ) -> Stream:
        """Join with `right`: all pairs of rows with the same key whose times are less than `within` apart.

        times: the time columns of both streams. The result has the columns of this stream, then those of the
        other without its key; `suffix` is appended to names that both have. Late rows go to the side outputs
        "late" and "late_right". one_watermark: a row of either stream is late by the smaller watermark of
        both, in whole milliseconds, as in Spark.

            right = prices.key_by("prices_by_item", "item")
            by_item.join("near", right, times=("at", "at"), within=timedelta(minutes=30), suffix="_now")
        """
        spec = JoinSpec((self._keys(), right._keys()), times, within, suffix, one_watermark)
        return self._with(right, name, spec)

    def top_k(self, name: str, window: Tumbling, k: int, *, by: str) -> Stream:
        """Emit the `k` rows with the largest `by` of each key in each window, when it closes, largest first;
        equal rows in the order of all columns, nulls last. Late rows go to the side output "late".

            by_item.top_k("dearest", Tumbling("at", timedelta(days=1)), 3, by="price")
        """
        return self._then(name, TopKSpec(self._keys(), window, k, by))

    def map_state(
        self,
        name: str,
        on_row: OnRow,
        *,
        time: str,
        schema: "str | pa.Schema",
        state: "str | pa.Schema",
        on_timer: OnTimer | None = None,
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> Stream:
        """Call functions that keep state for each key.

        `on_row(row, state)` is called for each row, in event-time order; `on_timer(key, time, state)` after
        the watermark has passed `state.timer`, a datetime or None, which both may set. Both return or yield
        rows of `schema`. `state.value` is a dict with the columns of the schema `state`, initially None; the
        state is deleted when it is None again and no timer is set. Late rows go to the side output "late".

        state_version, migrations: for changes of the schema `state` (`Migration`). side_outputs: name ->
        columns; both functions get `emit(port, row)` as last argument. ttl: how long a value is kept after
        the last call for its key, in event time. state_on: "memory"; or "disk", that of each worker, for
        values that do not fit into memory.

            def on_row(row, state):
                state.value = {"n": (state.value["n"] if state.value else 0) + 1}
                state.timer = row["at"] + timedelta(minutes=30)

            def on_timer(key, time, state):
                yield key["item"], state.value["n"]
                state.value = None

            state, rows = "n bigint", "item string, n bigint"
            by_item.map_state("visits", on_row, on_timer=on_timer, time="at", state=state, schema=rows)
        """
        spec = MapStateSpec(
            self._keys(),
            time,
            on_row,
            on_timer,
            parse_schema(schema),
            parse_state(state),
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            side_outputs=declared_side_outputs(side_outputs),
        )
        return self._then(name, spec)

    def apply_in_pandas_with_state(
        self,
        name: str,
        func: Callable[..., Any],
        outputStructType: Any,  # noqa: N803 - these are Spark's names
        stateStructType: Any,  # noqa: N803
        outputMode: str,  # noqa: N803
        timeoutConf: str = "NoTimeout",  # noqa: N803
        *,
        time: str,
        calls: CallsPer = "row",
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
        time_zone: str = "UTC",
        clock: str | None = None,
    ) -> Stream:
        """Call a function written for Spark's `applyInPandasWithState`, unchanged, with (key, DataFrames,
        GroupState) for each row, in event-time order, and after a timeout. calls="group": for all rows of a
        key that a step releases; "batch": for all rows of a key in a micro-batch, when it ends. docs/state.md
        has the difference, and what is not supported. `time_zone`: of the times that the function sees; in
        Spark that of the session. clock: a column with the processing time, which the function gets from its
        GroupState, and not in its rows. The other arguments are those of `map_state`.

            def numbered(key, frames, state):
                n = (state.get[0] if state.exists else 0) + sum(map(len, frames))
                state.update((n,))
                yield pd.DataFrame({"item": [key[0]], "n": [n]})

            columns, state = "item string, n bigint", "n bigint"
            by_item.apply_in_pandas_with_state("numbered", numbered, columns, state, "append", time="at")
        """
        check_mode(outputMode)
        check_calls(calls, ttl)
        spec = GroupStateSpec(
            self._keys(),
            time,
            func,
            None,
            parse_schema(outputStructType),
            parse_schema(stateStructType),
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            timeout=timeoutConf,
            time_zone=time_zone,
            clock=clock,
            grouped=calls == "group",
            per_batch=calls == "batch",
        )
        return self._then(name, spec)

    def transform_with_state(
        self,
        name: str,
        processor: Any,
        outputStructType: Any,  # noqa: N803 - these are Spark's names
        outputMode: str,  # noqa: N803
        timeMode: str,  # noqa: N803
        *,
        time: str,
        eventTimeColumnName: str = "",  # noqa: N803
        takes: ProcessorTakes = "row",
        calls: CallsPer = "row",
        state_version: int = 1,
        migrations: Sequence[Migration] = (),
        ttl: timedelta | None = None,
        state_on: StateLocation = "memory",
        time_zone: str = "UTC",
        clock: str | None = None,
    ) -> Stream:
        """Run a `StatefulProcessor` written for Spark's `transformWithState` (takes="pandas":
        `transformWithStateInPandas`), unchanged. `handleInputRows` is called for each row, in event-time
        order, `handleExpiredTimer` after a timer has passed. calls="group": for all rows of a key that a step
        releases; "batch": for all rows of a key in a micro-batch, when it ends. docs/state.md has the
        difference, and what is not supported. `time_zone`: of the times that it sees; in Spark that of the
        session. clock: a column with the processing time, which it gets from TimerValues, and not in its
        rows. eventTimeColumnName: as in Spark, a timestamp column of the output with the event time of
        operators below; an emitted time that is not above the watermark ends the region with an error. The
        other arguments are those of `map_state`.

            class Numbered:  # a StatefulProcessor, where Spark is installed
                def init(self, handle):
                    self.n = handle.getValueState("n", "n bigint")

                def handleInputRows(self, key, rows, timerValues):
                    n = (self.n.get()[0] if self.n.exists() else 0) + sum(1 for _ in rows)
                    self.n.update((n,))
                    yield key[0], n

            columns = "item string, n bigint"
            by_item.transform_with_state("numbered", Numbered(), columns, "append", "none", time="at")
        """
        check_mode(outputMode)
        check_calls(calls, ttl)
        timers = check_time_mode(timeMode)
        columns = state_columns(processor, timers=timers)
        spec = ProcessorSpec(
            self._keys(),
            time,
            processor.handleInputRows,
            None,
            parse_schema(outputStructType),
            columns,
            state_version=state_version,
            migrations=tuple(migrations),
            ttl=ttl,
            state_on=state_on,
            processor=processor,
            takes=takes,
            timers=timers,
            time_zone=time_zone,
            clock=clock,
            grouped=calls == "group",
            per_batch=calls == "batch",
            emitted_time=eventTimeColumnName or None,
        )
        return self._then(name, spec)


class Graph:
    """A dataflow under construction. `name` is a display name; the region has its own name.

    Example:

        graph = Graph("words")
        words = graph.source("words", InputSource("words", "word string"))
        words.key_by("by_word", "word").count("counts").sink("out", CallSink(print))
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise GraphError(str(name), ("a graph needs a name; write Graph('wordcount')",))
        self.name = name
        self._nodes: list[Node] = []
        self._annotations: dict[str, Annotation] = {}

    def __repr__(self) -> str:
        names = [node.name or "?" for node in self._nodes]
        more = f" ... {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        return f"<Graph {self.name!r}: {' '.join(names[:_SHOWN_MAX]) or 'empty'}{more}>"

    def _repr_html_(self) -> str:
        """Draw it in a notebook; a graph that cannot run yet is shown with its problems."""
        try:
            picture = svg(self.plan())
        except DosError as error:
            picture = f"<pre>{html.escape(str(error))}</pre>"
        return f'<b>{html.escape(self.name)}</b><div style="overflow-x: auto">{picture}</div>'

    def source(self, name: str, source: SourceSpec) -> "Stream":
        """Add a source and return the stream of its rows.

        Example:

            logs = graph.source("logs", FileSource("logs", watch=True))
        """
        _check_end(source, SourceSpec, f'source {name!r} takes a source, such as FileSource("logs/*.txt")')
        return self._add(name, source, ())

    def stream(self, name: str) -> "Stream":
        """Return the output of the operator `name`, which may be added later.

        Example:

            graph.stream("dear").sink("dear_out", CallSink(print))
            orders.filter("dear", lambda row: row["price"] > 10)
        """
        return Stream(self, name)

    def sink(self, name: str, sink: SinkSpec, *streams: "Stream") -> None:
        """Write a stream to a sink. The same as `stream.sink(name, sink)`.

        Example:

            graph.sink("archive", ParquetSink("archive"), orders)
        """
        _check_end(sink, SinkSpec, f"sink {name!r} takes a sink, such as LogSink()")
        self._add(name, sink, streams)

    def union(self, name: str, *streams: "Stream") -> "Stream":
        """Merge several streams of the same schema. The same as `first.union(name, *others)`.

        Example:

            graph.union("all", orders, prices)
        """
        return self._add(name, UnionSpec(), streams)

    def apply(self, name: str, operator: UserOperator, /, **inputs: "Stream") -> "Stream":
        """Add an operator of your own that has several named inputs (`UserOperator.needs`); `stream.apply` is
        for one.

            class Tagged(UserOperator):
                needs = {"orders": "item string", "prices": "item string"}
                schema = "item string, came_from string"

                def process_of(self, name, batch):
                    return [(item, name) for item in batch.column("item").to_pylist()]

            graph.apply("tagged", Tagged(), orders=by_item, prices=prices.key_by("prices_by_item", "item"))

        Either all inputs are keyed, by columns of the same types, or none is. If they are, all rows of a key
        reach the same instance. Raises SchemaError and GraphError.
        """
        spec = apply_spec(operator, tuple(inputs))
        return self._add(name, spec, [inputs[one] for one in inputs_of(operator)])

    def broadcast_table(
        self, name: str, stream: "Stream", *keys: str, complete_first: bool = False
    ) -> "BroadcastTable":
        """Keep the last row of each key of a stream as a broadcast table, complete on every worker.

            newest = graph.broadcast_table("newest", prices, "item")

            def priced(row, newest):
                return {**row, "price": newest[row["item"]]["price"] if row["item"] in newest else None}

            orders.map("priced", priced, broadcast=newest)

        The table is a read-only mapping from the value of the key column (a tuple if there are several) to a
        dict of the other columns. A row whose other columns are all null deletes its key. Rows of a step take
        effect in the next step, on all workers; so the stream may be computed from the output of operators
        that read the table. Each step begins after the previous one has ended.

        complete_first: for a table from bounded sources. The sources whose rows reach a reader of the table
        wait until the whole table is in effect on all workers. A source of the table that never ends blocks
        them forever.
        """
        rows = self._add(f"{name}.rows", BroadcastSpec(), (stream,))
        self._add(name, BroadcastStateSpec(keys, complete_first), (rows,))
        return BroadcastTable(self, name)

    @classmethod
    def of(cls, name: str, nodes: Iterable[Node], annotations: "Mapping[str, Annotation]") -> "Graph":
        """Return a graph of the given operators.

        Example:

            nodes, _ = graph.nodes()
            copy = Graph.of("copy", nodes, {})
        """
        graph = cls(name)
        graph._nodes = list(nodes)
        graph._annotations = dict(annotations)
        return graph

    def nodes(self) -> tuple[list[Node], list[NodeSpec]]:
        """Return the operators in the order in which they were added, and the same as the plan checks see
        them.

            recorded, checked = graph.nodes()
        """
        return list(self._nodes), self._node_specs()

    @property
    def annotations(self) -> "dict[str, Annotation]":
        """The annotations that were declared, by the name of the operator."""
        return dict(self._annotations)

    def annotate(self, name: str, annotation: Annotation) -> None:
        """Declare that the operator `name`, which may be added later, starts a consistent region or is
        autonomous. The same as `stream.annotate(annotation)`, and also usable for a sink.

            graph.annotate("lines", consistent(period=5))
        """
        if type(annotation) not in (Consistent, Autonomous):
            problem = f"an annotation is consistent(...) or autonomous, not {annotation!r}"
            raise GraphError(self.name, (problem,))
        recorded = self._annotations.setdefault(name, annotation)
        if recorded != annotation:
            problem = f"operator {name!r} is annotated as {recorded} and as {annotation}; keep one"
            raise GraphError(self.name, (problem,))

    def explain(self) -> None:
        """Print the regions of this graph, their operators, and the logs between them. Raises GraphError as
        `run`.

            graph.explain()
        """
        logs = logs_between(parts_of(self, "NAME"))
        plan = self.plan()
        print(explain(self.name, plan.plan, plan.choice, sink_deliveries(plan.choice, plan.specs), logs))

    def diagram(self, form: Literal["mermaid", "dot", "svg"] = "mermaid") -> str:
        """Return a diagram of this graph as text: operators, regions, exchanges, side outputs, tables.
        GitHub, GitLab and JupyterLab draw Mermaid in Markdown; Graphviz draws DOT; browsers draw SVG, as a
        notebook does with a graph that is the last value of a cell. Raises GraphError as `plan` does,
        ValueError for another form.

            print(graph.diagram())
        """
        if form not in FORMS:
            raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
        return FORMS[form](self.plan())

    def compare(
        self,
        before: "Graph",
        *,
        drop_state: Sequence[str] = (),
        new_aggregates: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
        rewired: Sequence[str] = (),
        removed: Mapping[str, SinkSpec | None] | None = None,
        begins: Mapping[str, Begin] | None = None,
        bootstrap: tuple[str, Mapping[str, Any]] | None = None,
    ) -> GraphChange:
        """Return what this graph changes in a region that ran the graph `before`, and for each operator that
        does not fit, why its state cannot be continued; `str` is a text of some lines. The options are those
        of `run`. Reads no store, and starts nothing. Raises GraphError as `plan`; TypeError, ValueError as
        `run`.

            print(graph.compare(before, drop_state=("longest",)))
        """
        given = {"drop_state": drop_state, "new_aggregates": new_aggregates, "renamed": renamed}
        more = {"rewired": rewired, "removed": removed, "begins": begins, "bootstrap": bootstrap}
        options, plan = GraphOptions.of({**given, **more}), self.plan()
        options.check_names(plan.operators, plan.stored()["endless"])
        return compare(before.plan().operators, plan.operators, options=options)

    def plan(self) -> GraphPlan:
        """Check the graph and return its plan. Starts nothing. Raises GraphError with all problems found,
        ReplicaError if it has a `LogSink(time=...)` and is not replica consistent.

            columns = graph.plan().schemas["orders"]
        """
        specs = self._node_specs()
        problems = find_problems(specs)
        if problems:
            raise GraphError(self.name, tuple(problems))
        choice = choose_regions(specs, self._annotated(specs))
        if choice.problems:
            raise GraphError(self.name, choice.problems)
        described = [node.spec for node in self._nodes]
        by_name = {node.name: node.spec for node in self._nodes}
        replica = is_replica(by_name)  # `check_replica` refuses operators that are not deterministic
        unfit = [] if replica else publish_by_step_problems(specs, described)
        unfit += time_problems(specs, described)
        reads = reads_of_sinks(specs, described)
        unfit += update_problems(specs, reads)
        unfit += region_problems(choice, by_name)
        if unfit:
            raise GraphError(self.name, tuple(unfit))
        schemas = find_schemas(self.name, specs, described)
        unfit = shared_key_problems(specs, described, schemas)
        if unfit:
            raise GraphError(self.name, tuple(unfit))
        plan = make_plan(specs)
        updates = carries_updates(specs, reads)
        graph_plan = GraphPlan(
            self.name,
            plan,
            by_name,
            schemas,
            operator_notes(plan, by_name, schemas, updates),
            choice,
            updates,
            find_lags(specs, described),
            replica,
        )
        if unfit := complete_first_problems(graph_plan):
            raise GraphError(self.name, tuple(unfit))
        if replica:
            check_replica(graph_plan)
        return graph_plan

    def _annotated(self, specs: Sequence[NodeSpec]) -> dict[int, Annotation]:
        """Index -> the annotation of the operator: given by name, or carried by its class or function."""
        unknown = [name for name in self._annotations if all(spec.name != name for spec in specs)]
        if unknown:
            known = ", ".join(sorted(repr(spec.name) for spec in specs))
            problem = (
                f"annotations name unknown operators: {', '.join(map(repr, unknown))}; known are {known}"
            )
            raise GraphError(self.name, (problem,))
        annotations = {}
        for index, node in enumerate(self._nodes):
            user_code = getattr(node.spec, "function", getattr(node.spec, "operator", node.spec))
            carried = getattr(user_code, ANNOTATION, None)
            annotation = self._annotations.get(node.name, carried)
            if annotation is not None:
                annotations[index] = annotation
        return annotations

    def _add(self, name: str, spec: OperatorSpec, inputs: Sequence[object]) -> "Stream":
        """Add an operator that reads these streams. The methods of streams call it. Raises GraphError."""
        above = []
        for stream in inputs:
            if not isinstance(stream, Stream):
                problem = f"{spec.kind.value} {name!r} takes streams, not {stream!r:.80}; see graph.source"
                raise GraphError(self.name, (problem,))
            if stream.graph is not self:
                other = stream.graph.name
                raise GraphError(
                    self.name,
                    (f"{spec.kind.value} {name!r} takes a stream of graph {other!r}; use one graph",),
                )
            above.append(stream.node)
        node = Node(name if isinstance(name, str) else "", spec, tuple(above))
        self._nodes.append(node)
        return Stream(self, node)

    def _node_specs(self) -> list[NodeSpec]:
        by_name = {node.name: index for index, node in reversed([*enumerate(self._nodes)])}
        by_node = {id(node): index for index, node in enumerate(self._nodes)}
        specs = []
        for node in self._nodes:
            known, unknown = [], []
            for source in node.inputs:
                if isinstance(source, Node):
                    known.append(by_node[id(source)])
                elif source in by_name:
                    known.append(by_name[source])
                else:
                    unknown.append(source)
            table = node.spec.broadcast
            broadcast_tables = () if table is None else (by_name[table],)
            kind, updates = node.spec.kind, node.spec.emit != "final"
            found = NodeSpec(node.name, kind, tuple(known), tuple(unknown), broadcast_tables, updates)
            specs.append(found)
        return specs


logger = logging.getLogger("dos.dataflow")

BRIDGE_SUFFIX = ".leaves"
"""The sink through which OPERATOR's output leaves its region is named OPERATOR.leaves."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """A part that runs separately, with a coordinator, a manifest and workers of its own: a consistent
    region, or connected operators outside of any (`settings` is None then). Its name is APPLICATION.OPERATOR,
    after its first operator. Output of a region for operators outside goes through an output log in the
    store, which shows only what committed checkpoints cover: a reset of the region repeats nothing.
    """

    name: str
    graph: Graph
    settings: Consistent | None
    reads: tuple[str, ...] = ()
    """The parts whose output it reads."""


def _check_end(given: object, kind: type, takes: str) -> None:
    """Raise TypeError if what was given for a source or a sink is none. takes: what is needed."""
    if not isinstance(given, kind):
        raise TypeError(f"{takes}, got {type(given).__name__} {given!r:.80}")


def part_options(part: GraphPart) -> dict[str, Any]:
    """Return the options of a part as fields of `checkpoint.core.region.RegionSpec`."""
    return (
        {"without_checkpoints": True}
        if part.settings is None
        else region_options(part.graph.plan().the_region())
    )


def check_places(
    part: GraphPart,
    store_id: bytes,
    identity: OutputIdentity | None = None,
    uids: Mapping[str, str] = MappingProxyType({}),
    removed: Mapping[str, str] = MappingProxyType({}),
    *,
    specs: Mapping[str, SinkSpec | None] = MappingProxyType({}),
) -> None:
    """Raise an error, before any worker starts, if a source cannot be read, or if the target of a sink holds
    output of another run (SinkOwnedError) or cannot be written. identity: the owner in the region's last
    checkpoint; None: the region itself. uids: as `Checkpoint.uids`. removed: sink that the graph gives up ->
    its uid; specs: with the specification of each. Workers check places that the driver cannot read.
    """
    owner = identity or OutputIdentity(region=part.name, store=store_id.hex())
    ends = [(name, specs[name], uid) for name, uid in removed.items()]
    here = [(node.name, node.spec, uids.get(node.name, node.name)) for node in part.graph.nodes()[0]]
    for name, spec, uid in [*ends, *here]:
        try:
            if isinstance(spec, SinkSpec):
                spec.check_place(OutputOwner(owner.region, owner.store, uid))
            elif isinstance(spec, SourceSpec):
                spec.check_access()
        except DosError:
            raise
        except Exception as error:
            logger.info("%r: the driver cannot read its place: %s", name, error)


def parts_of(
    graph: Graph, application: str, names: Mapping[str, str] = MappingProxyType({})
) -> list[GraphPart]:
    """Return the parts of `application`, regions first. A graph that is one region is one part of that name.
    names: of a part that has another name than its first operator gives it. Raises GraphError, as
    `Graph.plan` for the graph and each part, or if it cannot be divided; BadNameError.
    """
    plan = graph.plan()
    regions, outside = plan.choice.regions, plan.choice.outside
    nodes, specs = graph.nodes()
    if len(regions) == 1 and not outside:
        only_part = GraphPart(application, graph, plan.the_region())
        _check_logs(graph.name, nodes, {node.name: only_part.name for node in nodes})
        return [only_part]
    groups: list[tuple[tuple[str, ...], Region | None]] = [(region.members, region) for region in regions]
    groups += [(members, None) for members in _connected(specs, outside)]
    begun = {members[0]: f"{application}.{members[0]}" for members, _ in groups}
    owner = {
        member: names.get(name := begun[members[0]], name) for members, _ in groups for member in members
    }
    _check_logs(graph.name, nodes, owner)
    _check_outside(graph.name, nodes, outside)
    problems = tuple(dict.fromkeys(_edge_problems(specs, owner)))
    if problems:
        raise GraphError(graph.name, problems)
    parts = [_part(nodes, specs, members, region, owner, plan.schemas) for members, region in groups]
    _check_circles(graph.name, {part.name: set(part.reads) for part in parts})
    for part in parts:
        part.graph.plan()  # the part has other sources than the whole graph
        part_options(part)
    return parts


def parts_named(
    graph: Graph, application: str, regions: Mapping[str, Checkpoint], options: GraphOptions | None = None
) -> list[GraphPart]:
    """Return the parts of an application under the names of the regions that they continue. regions: the last
    checkpoints of those in the store. Raises as `parts_of`, and GraphChangeRefusedError.
    """
    parts = parts_of(graph, application)
    if len(parts) == 1:
        return parts
    operators = {part.name: part.graph.plan().operators for part in parts if part.settings is not None}
    names = continued_regions(application, operators, regions, options or GraphOptions())
    return parts_of(graph, application, names) if names else parts


def logs_between(parts: Sequence[GraphPart]) -> list[tuple[str, str, str]]:
    """Return the output logs between parts: (operator or sink, the part that writes, the part that reads)."""
    names = {part.name for part in parts}
    return [
        (node.spec.sink.removesuffix(BRIDGE_SUFFIX), str(node.spec.region), part.name)
        for part in parts
        for node in part.graph.nodes()[0]
        if isinstance(node.spec, LogSource) and node.spec.region in names
    ]


def _part(
    nodes: Sequence[Node],
    specs: Sequence[NodeSpec],
    members: Sequence[str],
    region: Region | None,
    owner: Mapping[str, str],
    schemas: "Mapping[str, pa.Schema | None]",
) -> GraphPart:
    name = owner[members[0]]
    copies: dict[str, Node] = {}
    entries: list[str] = []
    reads: set[str] = set()
    for index, spec in enumerate(specs):
        node = nodes[index]
        if node.name not in members:
            continue
        inputs: list[Node | str] = []
        for source in spec.inputs:
            above = nodes[source].name
            if above not in members and above not in copies:
                schema = schemas[above]
                assert schema is not None, "what has consumers has columns"
                reads.add(owner[above])
                entries.append(above)
                bridge = LogSource(above + BRIDGE_SUFFIX, schema).of_region(owner[above])
                copies[above] = Node(above, bridge, ())
            inputs.append(above)
        operator = node.spec
        if isinstance(operator, LogSource) and operator.region is None:
            operator = operator.of_region(owner[operator.sink])
        if isinstance(operator, LogSource) and operator.region in owner.values():
            reads.add(str(operator.region))
        copies[node.name] = Node(node.name, operator, tuple(inputs))
    for leaving in _leaving(nodes, specs, members):
        copies[leaving + BRIDGE_SUFFIX] = Node(
            leaving + BRIDGE_SUFFIX, LogSink(publish="checkpoint"), (leaving,)
        )
    settings = None if region is None else region.settings
    annotations: dict[str, Annotation] = {}
    if region is not None:  # it begins at the logs that it reads, and they are in this graph
        annotations |= dict.fromkeys([*region.starts, *entries], replace(region.settings, own_region=False))
    return GraphPart(name, Graph.of(name, copies.values(), annotations), settings, tuple(sorted(reads)))


def _leaving(nodes: Sequence[Node], specs: Sequence[NodeSpec], members: Sequence[str]) -> list[str]:
    names = {
        nodes[source].name
        for index, spec in enumerate(specs)
        if nodes[index].name not in members
        for source in spec.inputs
        if nodes[source].name in members
    }
    return sorted(names)


def _connected(specs: Sequence[NodeSpec], outside: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the connected groups of operators outside of any region, each in the order of `outside`."""
    group = {name: name for name in outside}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for spec in specs:
        for source in (*spec.inputs, *spec.broadcast_tables):
            if spec.name in group and specs[source].name in group:
                group[root(spec.name)] = root(specs[source].name)
    roots = dict.fromkeys(root(name) for name in outside)
    return [tuple(name for name in outside if root(name) == one) for one in roots]


def _check_logs(graph: str, nodes: Sequence[Node], owner: Mapping[str, str]) -> None:
    """Check that every log that is read exists and belongs to another region."""
    sinks = {node.name: node.spec for node in nodes if isinstance(node.spec, LogSink)}
    problems = []
    for node in nodes:
        source = node.spec
        if not isinstance(source, LogSource) or source.region not in (None, *owner.values()):
            continue
        if source.sink not in sinks:
            problems.append(
                f"source {node.name!r} reads the log of sink {source.sink!r}, and no LogSink of this graph"
                " has that name; correct the name, or pass region=... for a log of another graph"
            )
        elif owner[source.sink] == owner[node.name]:
            problems.append(
                f"source {node.name!r} reads the log of sink {source.sink!r}, which is in the same region: it"
                " would wait for itself; annotate both as consistent(...), so that they are two regions"
            )
        elif source.region not in (None, owner[source.sink]):
            problems.append(f"source {node.name!r}: sink {source.sink!r} belongs to {owner[source.sink]!r}")
    if problems:
        raise GraphError(graph, tuple(problems))


def _check_outside(graph: str, nodes: Sequence[Node], outside: Sequence[str]) -> None:
    problems = []
    for node in nodes:
        if node.name in outside and isinstance(node.spec, SourceSpec) and not node.spec.runs_outside:
            problems.append(
                f"source {node.name!r} is outside of any consistent region, and after a failure it would"
                " be read again from its beginning; annotate it as consistent(...), or read an input handle"
            )
        if node.name in outside and isinstance(node.spec, SinkSpec) and not node.spec.runs_outside:
            problems.append(
                f"sink {node.name!r} is outside of any consistent region, and publishes its output at"
                " checkpoints, which it has none of; annotate it as consistent(...), or use a CallSink"
            )
    if problems:
        raise GraphError(graph, tuple(problems))


def _edge_problems(specs: Sequence[NodeSpec], owner: Mapping[str, str]) -> Iterator[str]:
    """Yield problems of edges that a log between two parts cannot replace, and of ambiguous names."""
    for spec in specs:
        name, mine = spec.name, owner[spec.name]
        for table in (specs[index].name for index in spec.broadcast_tables):
            if owner[table] != mine:
                yield f"{name!r} reads broadcast table {table!r}, which is not in the same region"
        for above, kind in ((specs[index].name, specs[index].kind) for index in spec.inputs):
            by_key = KIND_RULES[spec.kind].needs_key or (
                spec.kind is OperatorKind.APPLY and kind is OperatorKind.KEY_BY
            )
            if owner[above] != mine and by_key:
                yield f"{name!r} needs rows by key, and {above!r} is in another region; put a key_by between"
        if name.endswith(BRIDGE_SUFFIX):
            yield f"operator {name!r}: names that end with {BRIDGE_SUFFIX!r} are reserved; rename it"
        if mine.endswith(".in"):
            yield f"{name!r} names its region, but '.in' at the end is reserved for inputs; rename it"


def _check_circles(graph: str, reads: dict[str, set[str]]) -> None:
    while ready := [name for name, others in reads.items() if not others & set(reads)]:
        for name in ready:
            del reads[name]
    if reads:
        listed = ", ".join(sorted(reads))
        problem = f"regions {listed} read each other's output in a cycle, so none could ever end; break it"
        raise GraphError(graph, (problem,))

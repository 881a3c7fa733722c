"""Streams: the output of an operator, with one method for each operator that can follow it.

Each method adds one operator. The operators themselves are in `operators/`. `graph/builder.py` checks and
plans the graph. Methods that only a keyed stream has are in `keyed.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, Protocol, Self

import pyarrow as pa

from dataflow.core.regions import Annotation
from dataflow.errors import GraphError
from dataflow.graph.keyed import KeyedOperators
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import OperatorSpec
from dataflow.operators.emitting import declared_side_outputs
from dataflow.operators.event_time import EventTimeSpec, OnAhead
from dataflow.operators.functions import FilterSpec, FlatMapSpec, MapSpec, Takes, UserFunction
from dataflow.operators.nulls import OnNullKey, OnNullTime
from dataflow.operators.routing import KeyBySpec
from dataflow.operators.side_output import SideOutputSpec
from dataflow.operators.sort import SortSpec
from dataflow.operators.user_operator import UserOperator
from dataflow.schema import parse_schema
from dataflow.sinks.base import SinkSpec


@dataclass(slots=True)
class Node:
    """One recorded operator. Inputs are nodes, or names of operators added later (`Graph.stream`)."""

    name: str
    spec: OperatorSpec
    inputs: "tuple[Node | str, ...]"


class GraphOfStreams(Protocol):
    """The graph to which a stream belongs (`builder.Graph`)."""

    name: str

    def _add(self, name: str, spec: OperatorSpec, inputs: "Sequence[Stream]") -> "Stream": ...

    def union(self, name: str, *streams: "Stream") -> "Stream": ...

    def annotate(self, name: str, annotation: Annotation) -> None: ...


@dataclass(frozen=True, slots=True)
class BroadcastTable:
    """A broadcast table, returned by `graph.broadcast_table` and accepted by operators as `broadcast=`."""

    graph: "GraphOfStreams"
    name: str


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of an operator. Every method adds one named operator and returns its output."""

    graph: "GraphOfStreams"
    node: Node | str

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

        takes="row": the function gets a dict of the columns and returns a dict, a tuple or, for one column, a
        value. takes="batch": it gets a `pa.RecordBatch` and returns one with the same number of rows (or a
        table, a dict of arrays, an array). takes="pandas": the same with a DataFrame, whose columns are
        Arrow-backed.

        deterministic=False: the function may return other rows for the same input, because it reads a clock,
        calls a service or uses random numbers. State and output stay exactly-once, but no sink below it may
        publish by step.

        replica_consistent: for a region with replicas at several sites, whether what the function returns for
        a row depends on that row alone, not on others in its batch. None: True if takes="row".

        threads: how many threads call the function at once, for a function that waits or releases the GIL. It
        must be thread-safe. The results keep the order of the rows.

        broadcast: a broadcast table that the function gets as its second argument (`graph.broadcast_table`).

        side_outputs: side outputs, name -> columns; `stream.side_output(name, port)` returns one as a stream.
        The function gets `emit(port, row)` as its last argument, which writes a row, a batch or a table to a
        side output.

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
            broadcast=self._table(broadcast),
            side_outputs=declared_side_outputs(side_outputs),
        )
        return self._then(name, spec)

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
            broadcast=self._table(broadcast),
            side_outputs=declared_side_outputs(side_outputs),
        )
        return self._then(name, spec)

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
        """Keep the rows for which the function returns True. A batch function returns a boolean array.

        The other arguments are those of `map`.

            orders.filter("dear", lambda row: row["price"] > 10)
            orders.filter("tea", lambda batch: pc.equal(batch["item"], "tea"), takes="batch")
        """
        return self._then(
            name,
            FilterSpec(
                function,
                takes,
                deterministic=deterministic,
                replica_consistent=replica_consistent,
                threads=threads,
                broadcast=self._table(broadcast),
                side_outputs=declared_side_outputs(side_outputs),
            ),
        )

    def union(self, name: str, *others: "Stream") -> "Stream":
        """Merge this stream with others of the same schema.

        Example:

            orders.union("all", prices)
        """
        return self.graph.union(name, self, *others)

    def key_by(self, name: str, *columns: str, on_null: OnNullKey = "group") -> "KeyedStream":
        """Route rows with the same values in `columns` to the same worker.

        on_null: how rows with a null in one of these columns are handled. "group": null is an ordinary key
        that equals itself, as in SQL's GROUP BY; a join does not match on it, as in SQL. "error": the region
        stops. "drop": the rows are dropped and counted. "side": the rows go to the side output "null".

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

        lateness: the maximum delay. No row is more than this behind the latest row before it in its split.
        punctuation: a column of timestamps, null in most rows. A non-null value promises that all later rows
        of its split have larger times. A row that breaks either promise is late.
        idle_after: a split of which all rows were read, and none arrived here for this long, is ignored until
        one arrives, which may be late. None: a silent split holds the watermark back.
        marks: the watermark is what the entry points promise that gave the rows their times
        (`InputSource(..., entry=...)`); it does not follow from rows.
        on_null: how rows with a null in `column` are handled. "error": the region stops. "drop": they are
        dropped and counted. "side": they go to the side output "null".
        max_ahead: how far times may be ahead of the clock (with punctuation, the promises), because one row
        from the future would make all others late; None: any time. Unused with marks. on_ahead: how rows
        beyond it are handled: "error", "drop", or "side", the side output "ahead".

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
        columns.

        Each worker orders its own rows. Late rows go to the side output "late".

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
        """Return a side output of the operator that made this stream.

        Ports: "late" for rows that arrived too late; "null" for rows without a key or time if on_null="side";
        "ahead" for rows from the future if on_ahead="side"; or one that a function or operator declares.

            in_order = orders.sort("in_order", "at")
            in_order.side_output("late", "late").sink("late_out", CallSink(print))
        """
        return self._then(name, SideOutputSpec(port))

    def sink(self, name: str, sink: SinkSpec) -> None:
        """Write the stream to a sink.

        Example:

            orders.sink("archive", ParquetSink("archive"))
        """
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
        if name.startswith("_") or not hasattr(KeyedOperators, name):
            raise AttributeError(f"a stream has no method {name!r}")
        maker = self.node if isinstance(self.node, str) else self.node.name
        raise AttributeError(
            f"{name} needs a keyed stream, and the output of {maker!r} has no keys: key_by must come directly"
            f" before it; write .key_by(NAME, COLUMN, ...).{name}(...), and filter or map before key_by"
        )

    def _table(self, broadcast: "BroadcastTable | None") -> str | None:
        if broadcast is None:
            return None
        if not isinstance(broadcast, BroadcastTable) or broadcast.graph is not self.graph:
            problem = f"broadcast= takes a table from graph.broadcast_table of this graph, not {broadcast!r}"
            raise GraphError(self.graph.name, (problem,))
        return broadcast.name

    def _then(self, name: str, spec: OperatorSpec) -> "Stream":
        return self.graph._add(name, spec, (self,))  # noqa: SLF001 - a graph and its streams are one class for users


class KeyedStream(Stream, KeyedOperators[Stream]):
    """A stream whose rows of one key are all on one worker, as keyed operators require."""

    __slots__ = ()

    def _keys(self) -> tuple[str, ...]:
        if isinstance(self.node, Node) and isinstance(self.node.spec, KeyBySpec):
            return self.node.spec.keys
        return ()

    def _with(self, other: Self, name: str, spec: OperatorSpec) -> Stream:
        return self.graph._add(name, spec, (self, other))  # noqa: SLF001 - as in `Stream`


__all__ = ["BroadcastTable", "KeyedStream", "Node", "Stream"]

"""What users hold while they build a graph: the output of an operator, and the methods that add the next one.

Rules of this file: one operator for each method; what it does is in `operators/`, what all of them together
make of a graph is `graph/builder.py`'s. The methods that only a keyed stream has are in `keyed.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from dataflow.core.regions import Annotation
from dataflow.errors import GraphError
from dataflow.graph.keyed import KeyedOperators
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import OperatorSpec
from dataflow.operators.emitting import declared_side_outputs
from dataflow.operators.event_time import EventTimeSpec
from dataflow.operators.functions import FilterSpec, FlatMapSpec, MapSpec, Takes, UserFunction
from dataflow.operators.key_by import KeyBySpec
from dataflow.operators.nulls import OnNullKey, OnNullTime
from dataflow.operators.side_output import SideOutputSpec
from dataflow.operators.sort import SortSpec
from dataflow.operators.user_operator import UserOperator
from dataflow.schema import parse_schema
from dataflow.sinks.base import SinkSpec

if TYPE_CHECKING:
    from dataflow.graph.builder import Graph


@dataclass(slots=True)
class Node:
    """One operator as recorded. Inputs are nodes, or the names of operators given later (`Graph.stream`)."""

    name: str
    spec: OperatorSpec
    inputs: "tuple[Node | str, ...]"


@dataclass(frozen=True, slots=True)
class BroadcastTable:
    """What `Graph.broadcast` gives; operators take it as `broadcast=`."""

    graph: "Graph"
    name: str


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of an operator. Every method adds one operator by name and returns its output."""

    graph: "Graph"
    node: Node | str

    def map(
        self,
        name: str,
        function: UserFunction,
        *,
        schema: "str | pa.Schema | None" = None,
        takes: Takes = "row",
        deterministic: bool = True,
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """One row for each row. `schema` of the result; without it that of the input.

            orders.map("reduced", lambda row: {**row, "price": row["price"] * 0.9})
            lines.map("lengths", lambda batch: pc.utf8_length(batch["line"]), schema="n int", takes="batch")

        takes="row": the function gets a dict of the columns and returns a dict, a tuple or (one column) a
        value. takes="batch": it gets a `pa.RecordBatch` and returns one of as many rows (or a table, a dict
        of arrays, an array). takes="pandas": the same with a DataFrame, whose columns are Arrow-backed.

        deterministic=False: it may give other rows for the same input (it asks a clock, a service, chance).
        State and output stay exactly-once; only nothing below it may be shown by step.

        threads: how many threads call the function at once, for one that waits for something, or lets go of
        the interpreter. Its results keep the order of the rows. It must be safe to call from several threads.

        control: a table that the function gets as its second argument (`Graph.broadcast`).

        side_outputs: side outputs, name -> columns; `stream.side_output(name, port)` takes one. The function
        gets, as its last argument, `emit(port, row)`, which puts a row there, or a batch or table of them.

            def checked(row, emit):
                if row["price"] < 0:
                    emit("odd", (row["item"],))
                return row

            odd = orders.map("checked", checked, side_outputs={"odd": "item string"}).side_output("odd",
            "odd")
        """
        columns = None if schema is None else parse_schema(schema)
        spec = MapSpec(
            function,
            takes,
            columns,
            deterministic=deterministic,
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
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Any number of rows for each row: the function returns or yields them. As `map` otherwise.

        Example:

            lines.flat_map("words", lambda row: row["line"].split(), schema="word string")
        """
        columns = parse_schema(schema)
        spec = FlatMapSpec(
            function,
            takes,
            columns,
            deterministic=deterministic,
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
        threads: int = 1,
        broadcast: "BroadcastTable | None" = None,
        side_outputs: "Mapping[str, str | pa.Schema] | None" = None,
    ) -> "Stream":
        """Only rows for which the function says yes; a batch function returns a boolean array. As `map`
        otherwise.

            orders.filter("dear", lambda row: row["price"] > 10)
            orders.filter("tea", lambda batch: pc.equal(batch["item"], "tea"), takes="batch")
        """
        return self._then(
            name,
            FilterSpec(
                function,
                takes,
                deterministic=deterministic,
                threads=threads,
                broadcast=self._table(broadcast),
                side_outputs=declared_side_outputs(side_outputs),
            ),
        )

    def union(self, name: str, *others: "Stream") -> "Stream":
        """This stream and others of the same schema as one.

        Example:

            orders.union("all", prices)
        """
        return self.graph.union(name, self, *others)

    def key_by(self, name: str, *columns: str, on_null: OnNullKey = "group") -> "KeyedStream":
        """Rows with the same values in `columns` meet on one worker.

        on_null: what becomes of rows in which one of these is null. "group": null is a key like any other and
        equal to itself, as in SQL's GROUP BY; a join matches nothing on it, as SQL's does. "error": the
        region stops. "drop": they are dropped and counted. "side": they are on the side output "null".

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
    ) -> "Stream":
        """The same rows; `column`, a timestamp, is their event time, and from here on it moves. The watermark
        is the least over all splits (files, producers, ...) that are not read to their end.

        lateness: a promise, that no row is more than this behind the latest one before it in its split.
        punctuation: a column of timestamps, null in most rows; where it is not, it promises that all later
        rows of its split have larger times. A row that breaks the promise is late.
        idle_after: a split that gives nothing for so long, though all of it was read, does not count until
        it gives rows again; these may be late. None: a silent split holds event time back.
        on_null: what becomes of rows in which `column` is null. "error": the region stops. "drop": they are
        dropped and counted. "side": they are on the side output "null".

            sent = graph.source("sent", InputSource("sent", "at timestamp, all_before timestamp"))
            sent.event_time("by_promise", "at", lateness=timedelta(minutes=1))
            sent.event_time("by_rows", "at", punctuation="all_before")
        """
        return self._then(name, EventTimeSpec(column, lateness, punctuation, idle_after, on_null))

    def sort(self, name: str, time: str) -> "Stream":
        """The same rows in the order of their event time, those of one time in the order of all columns, as
        far as event time is. Each worker gives its own in order. Late rows are on the side output "late".

            orders.sort("in_order", "at")
        """
        return self._then(name, SortSpec(time))

    def apply(self, name: str, operator: UserOperator) -> "Stream":
        """What an operator of your own gives (`UserOperator`). On a keyed stream, all rows of a key come to
        one copy of it. One that has several inputs: `graph.apply`.

            class Loud(UserOperator):
                needs = schema = "line string"

                def process(self, batch):
                    return [line.upper() for line in batch.column("line").to_pylist()]

            lines.apply("loud", Loud())
        """
        return self._then(name, apply_spec(operator))

    def side_output(self, name: str, port: str) -> "Stream":
        """A side output of the operator before: "late", the rows that came too late for it; "null", those
        without a key or time, where on_null="side"; or one that a user function or operator declares.

            in_order = orders.sort("in_order", "at")
            in_order.side_output("late", "late").sink("late_out", CallSink(print))
        """
        return self._then(name, SideOutputSpec(port))

    def sink(self, name: str, sink: SinkSpec) -> None:
        """Write the stream out.

        Example:

            orders.sink("archive", ParquetSink("archive"))
        """
        self._then(name, sink)

    def annotate(self, annotation: Annotation) -> "Stream":
        """Say that the operator whose output this is starts a consistent region, or is autonomous.

        Example:

            logs = graph.source("logs", FileSource("logs/*.txt")).annotate(consistent(period=5))
        """
        self.graph.annotate(self.node if isinstance(self.node, str) else self.node.name, annotation)
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Only for names that are not there. A keyed method on a stream whose keys an operator gave up."""
        if name.startswith("_") or not hasattr(KeyedOperators, name):
            raise AttributeError(f"a stream has no method {name!r}")
        made = self.node if isinstance(self.node, str) else self.node.name
        raise AttributeError(
            f"{name} needs a keyed stream, and the output of {made!r} has no keys: key_by must come directly"
            f" before it; write .key_by(NAME, COLUMN, ...).{name}(...), and filter or map before key_by"
        )

    def _table(self, broadcast: "BroadcastTable | None") -> str | None:
        if broadcast is None:
            return None
        if not isinstance(broadcast, BroadcastTable) or broadcast.graph is not self.graph:
            problem = f"control is a table that graph.broadcast_table of this graph gave, not {broadcast!r}"
            raise GraphError(self.graph.name, (problem,))
        return broadcast.name

    def _then(self, name: str, spec: OperatorSpec) -> "Stream":
        return self.graph._add(name, spec, (self,))  # noqa: SLF001 - one class in two halves


class KeyedStream(Stream, KeyedOperators):
    """A stream whose rows of one key are on one worker: what keyed operators need."""

    __slots__ = ()

    def _keys(self) -> tuple[str, ...]:
        if isinstance(self.node, Node) and isinstance(self.node.spec, KeyBySpec):
            return self.node.spec.keys
        return ()

    def _with(self, other: "KeyedStream", name: str, spec: OperatorSpec) -> Stream:
        return self.graph._add(name, spec, (self, other))  # noqa: SLF001 - as in `Stream`


__all__ = ["BroadcastTable", "KeyedStream", "Node", "Stream"]

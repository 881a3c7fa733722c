"""Build a graph of named sources, operators and sinks.

`Graph.plan` checks it as a whole before anything starts.

    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource(["a.txt", "b.txt"]))
    words = lines.flat_map("words", lambda row: row["line"].split(), schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink("out"))

This module only records what the user calls; `core/plan.py` checks it, and `plan()` combines the two. Most
methods are on streams: `stream.py`, and `keyed.py` for keyed streams. The graph is sent to every worker, and
each worker makes the same plan from it.

State is found by operator name after a restart: renaming an operator disconnects it from its state.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from checkpoint import fingerprint
from dataflow.core.plan import NodeSpec, find_problems, make_plan
from dataflow.core.regions import ANNOTATION, Annotation, Autonomous, Consistent, choose_regions
from dataflow.core.updates import carries_updates, update_problems
from dataflow.errors import GraphError
from dataflow.graph.checks import (
    complete_first_problems,
    publish_by_step_problems,
    reads_of_sinks,
    region_problems,
    shared_key_problems,
    sink_deliveries,
    time_problems,
)
from dataflow.graph.explaining import explain
from dataflow.graph.operator_schemas import find_schemas
from dataflow.graph.parts import logs_between, parts_of
from dataflow.graph.pictures import FORMS
from dataflow.graph.plan import GraphPlan
from dataflow.graph.replica_checks import check_replica, is_replica
from dataflow.graph.stream import BroadcastTable, Node, Stream
from dataflow.graph.watermark_lags import find_lags
from dataflow.operators.apply import apply_spec
from dataflow.operators.base import OperatorSpec
from dataflow.operators.broadcast_state import BroadcastSpec, BroadcastStateSpec
from dataflow.operators.multiple_inputs import inputs_of
from dataflow.operators.union import UnionSpec
from dataflow.operators.user_operator import UserOperator
from dataflow.sinks.base import SinkSpec
from dataflow.sources.base import SourceSpec


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
        return f"<Graph {self.name!r}: {' '.join(node.name or '?' for node in self._nodes)}>"

    def source(self, name: str, source: SourceSpec) -> "Stream":
        """Add a source and return the stream of its rows.

        Example:

            logs = graph.source("logs", DirectorySource("logs"))
        """
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
        self._add(name, sink, streams)

    def union(self, name: str, *streams: "Stream") -> "Stream":
        """Merge several streams of the same schema. The same as `first.union(name, *others)`.

        Example:

            graph.union("all", orders, prices)
        """
        return self._add(name, UnionSpec(), streams)

    def apply(self, name: str, operator: UserOperator, /, **inputs: "Stream") -> "Stream":
        """Add an operator of your own that has several named inputs (`UserOperator.needs`).

            class Tagged(UserOperator):
                needs = {"orders": "item string", "prices": "item string"}
                schema = "item string, came_from string"

                def process_of(self, name, batch):
                    return [(item, name) for item in batch.column("item").to_pylist()]

            graph.apply("tagged", Tagged(), orders=by_item, prices=prices.key_by("prices_by_item", "item"))

        Either all inputs are keyed, by columns of the same types, or none is. If they are keyed, all rows of
        a key reach the same instance. For an operator with one unnamed input use `stream.apply`. Raises
        SchemaError and GraphError.
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

        An operator with `broadcast=` passes the table to its function as the second argument: a read-only
        mapping from the value of the key column (a tuple if there are several) to a dict of the other
        columns. A row whose other columns are all null deletes its key. Rows that arrive in a step take
        effect in the next step, on all workers; so the stream may be computed from the output of operators
        that read the table. With a broadcast table each step begins after the previous one has ended.

        complete_first: for a table from bounded sources. The sources whose rows reach a reader of the table
        are not read until the sources of the table are read to their end and the whole table is in effect on
        all workers. A source of the table that never ends blocks them forever.
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

        Example:

            recorded, checked = graph.nodes()
        """
        return list(self._nodes), self._node_specs()

    def annotate(self, name: str, annotation: Annotation) -> None:
        """Declare that the operator `name` starts a consistent region or is autonomous.

        The operator may be added later. The same as `stream.annotate(annotation)`, and also usable for a
        sink.

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
        """Print the regions of this graph, their operators, and the logs between them.

        Checks what `run` checks of a graph, and raises the same GraphError.

        Example:

            graph.explain()
        """
        logs = logs_between(parts_of(self, "NAME"))
        plan = self.plan()
        print(explain(self.name, plan.plan, plan.choice, sink_deliveries(plan.choice, plan.specs), logs))

    def diagram(self, form: Literal["mermaid", "dot"] = "mermaid") -> str:
        """Return a diagram of this graph as text: operators, regions, exchanges, side outputs, tables.

        GitHub, GitLab and JupyterLab draw Mermaid in Markdown; Graphviz draws DOT (`dot -Tsvg`). Raises
        GraphError as `plan` does, ValueError for another form.

            print(graph.diagram())
        """
        if form not in FORMS:
            raise ValueError(f"form must be {' or '.join(map(repr, FORMS))}, got {form!r}")
        return FORMS[form](self.plan())

    def plan(self) -> GraphPlan:
        """Check the graph and return its plan. Starts nothing. Raises GraphError with all problems found.

        A graph with a `LogSink(time=...)` is that of a replica, and must be replica consistent: ReplicaError.

        Example:

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
        operators, older = {}, {}
        for node, spec in zip(self._nodes, specs, strict=True):
            inputs = [(specs[i].name, schemas[specs[i].name]) for i in spec.inputs]
            schema = schemas[node.name]
            operators[node.name] = node.spec.describe(inputs, schema)
            older[node.name] = tuple(past.describe(inputs, schema) for past in node.spec.earlier())
        graph_plan = GraphPlan(
            self.name,
            plan,
            by_name,
            schemas,
            operators,
            fingerprint(operators),
            older,
            choice,
            carries_updates(specs, reads),
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
            specs.append(NodeSpec(node.name, node.spec.kind, tuple(known), tuple(unknown), broadcast_tables))
        return specs


__all__ = ["Graph", "GraphPlan"]

"""A graph that passed every check, as workers run it. Made by `Graph.plan`."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataflow.core.complete_first import PendingTables, find_waiting
from dataflow.core.delivery import Delivery
from dataflow.core.plan import CircuitPlan, OperatorKind
from dataflow.core.regions import Choice, Consistent
from dataflow.errors import GraphError
from dataflow.operators.base import OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.sources.base import SourceSpec


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A graph that passed every check: what workers run and what the manifest carries."""

    name: str
    plan: CircuitPlan
    specs: dict[str, OperatorSpec]
    schemas: dict[str, pa.Schema | None]
    """Output columns of each operator, None for a sink."""
    operators: dict[str, str]
    """Name -> canonical description, for the fingerprint."""
    fingerprint: str
    older_operators: dict[str, tuple[str, ...]]
    """Name -> earlier descriptions whose state it takes over, by its migrations."""
    choice: Choice
    """Which operators are in which region."""
    updates: frozenset[str]
    """Operators whose output carries updates: only the last row of a key is a result."""
    lags: dict[str, tuple[int, ...]]
    """Operator -> how far the times that it works with may be behind the watermark of each input, in
    microseconds: its own watermark is held back by that.
    """

    def stored(self) -> dict[str, Any]:
        """What a `RegionSpec` says of the graph: which state it writes, and which it takes."""
        return {
            "operators": self.operators,
            "graph_fingerprint": self.fingerprint,
            "older_operators": self.older_operators,
        }

    def the_region(self) -> Consistent:
        """The settings of the one region that this graph is. Raises GraphError if it is something else: more
        than one region, or operators outside, do not run yet.
        """
        regions, outside = self.choice.regions, self.choice.outside
        if len(regions) != 1 or outside:
            apart = f", with {', '.join(map(repr, outside))} outside" if outside else ""
            count = f"{len(regions)} consistent region{'' if len(regions) == 1 else 's'}"
            problem = (
                f"it has {count}{apart}, and is to be one region;"
                " `dataflow.graph.parts.parts_of` takes it apart"
            )
            raise GraphError(self.name, (problem,))
        sources = {name: spec for name, spec in self.specs.items() if isinstance(spec, SourceSpec)}
        if self.triggers_cuts and not any(spec.can_trigger for spec in sources.values()):
            problem = (
                "trigger='operator' needs a source that asks for cuts, as FileSource does after each file,"
                f" and {', '.join(map(repr, sources))} never will; use trigger='periodic'"
            )
            raise GraphError(self.name, (problem,))
        return regions[0].settings

    @property
    def waiting(self) -> PendingTables:
        """Which sources wait until a control table is complete."""
        tables = self.specs.items()
        first = [
            name for name, spec in tables if isinstance(spec, BroadcastStateSpec) and spec.complete_first
        ]
        return find_waiting(self.plan.nodes, first)

    @property
    def delivery(self) -> Delivery | None:
        """What the one region that this graph is promises of its sinks. None: their best; and outside."""
        return self.choice.regions[0].settings.delivery if len(self.choice.regions) == 1 else None

    @property
    def triggers_cuts(self) -> bool:
        """Whether start operators ask for cuts, rather than time."""
        return any(region.settings.trigger == "operator" for region in self.choice.regions)

    @property
    def has_event_time(self) -> bool:
        """Whether punctuations travel through it."""
        return any(node.kind is OperatorKind.EVENT_TIME for node in self.plan.nodes)

    def inputs_of(self, name: str) -> tuple[pa.Schema, ...]:
        """Columns of each input, in order."""
        schemas = [self.schemas[source] for source in self.plan.node(name).inputs]
        return tuple(schema for schema in schemas if schema is not None)


__all__ = ["GraphPlan", "OperatorKind"]

"""A graph that passed every check, as workers run it. `Graph.plan` creates it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from checkpoint import NOT_NULL, STATELESS, OperatorNote, ResultNote, fingerprint
from dataflow.core.plan import CircuitPlan, OperatorKind, PendingTables, find_waiting
from dataflow.core.regions import Choice, Consistent, Delivery
from dataflow.errors import GraphError, OperatorError
from dataflow.limits import peer_silent_s
from dataflow.operators.base import OperatorSpec
from dataflow.operators.broadcast_state import BroadcastStateSpec
from dataflow.schema import schema_text
from dataflow.sinks.base import SinkSpec
from dataflow.sources.base import SourceSpec
from dataflow.sources.batches import BatchSource


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A checked graph: what workers run and what the manifest stores."""

    name: str
    plan: CircuitPlan
    specs: dict[str, OperatorSpec]
    schemas: dict[str, pa.Schema | None]
    """Output columns of each operator, None for a sink."""
    operators: dict[str, OperatorNote]
    """What checkpoints store of it."""
    choice: Choice
    """The region of each operator."""
    updates: frozenset[str]
    """Operators whose output carries updates: only the last row of a key is a result."""
    lags: dict[str, tuple[int, ...]]
    """Operator -> for each input, by how many microseconds its watermark is held back there (`find_lags`)."""

    is_replica: bool = False
    """Whether its region may run at several sites, so that it must not depend on the order of its rows."""

    def stored(self) -> dict[str, Any]:
        """Return the fields of a `RegionSpec` about the graph: the state that it writes and can restore."""
        return {
            "operators": self.operators,
            "endless": {
                name: why
                for name, spec in self.specs.items()
                if isinstance(spec, SourceSpec) and (why := spec.why_endless())
            },
            "keeps_graph": (
                "its replicas at other sites run the former graph: stop all of them, and give the"
                " region a new name"
                if self.is_replica
                else ""
            ),
            "keeps_workers": self._keeps_workers(),
            "shows_steps": self.shows_steps,
            "irrevocable": self._irrevocable(),
            "unchecked_places": self._unchecked_places(),
            "resets_because": self._resets_because(),
        }

    @property
    def fingerprint(self) -> str:
        """Text that differs for two graphs that differ, but for the code of their functions."""
        return fingerprint(self.operators)

    @property
    def shows_steps(self) -> bool:
        """Whether output of a step may be visible for good before a checkpoint covers it."""
        sinks = [spec for spec in self.specs.values() if isinstance(spec, SinkSpec)]
        return self.delivery == "at-most-once" or any(spec.shows_steps for spec in sinks)

    @property
    def keeps_files(self) -> bool:
        """Whether an operator or a sink has a directory."""
        return any(spec.keeps_files for spec in self.specs.values())

    @property
    def fed_by_batches(self) -> tuple[str, ...]:
        """The sources that batches of a query feed: all, or none, by their channel in a share."""
        fed = {spec.channel: name for name, spec in self.specs.items() if isinstance(spec, BatchSource)}
        return tuple(fed[channel] for channel in sorted(fed))

    def check_has_query(self) -> None:
        """Raise GraphError if it needs the micro-batches of a query, and none drives it."""
        tables = [name for name, spec in self.specs.items() if spec.emit == "table"]
        if tables and not self.fed_by_batches:
            problem = (
                f"{tables[0]!r} has emit='table', all groups at the end of each micro-batch, and no query"
                " drives this graph; pass a stream to dos.through, or use emit='updates'"
            )
            raise GraphError(self.name, (problem,))

    def _unchecked_places(self) -> dict[str, str]:
        """Return sink -> why it is not noticed that another region writes to the same place."""
        sinks = {name: spec for name, spec in self.specs.items() if isinstance(spec, SinkSpec)}
        return {name: spec.unchecked_place for name, spec in sinks.items() if spec.unchecked_place}

    def _irrevocable(self) -> dict[str, str]:
        """Return sink -> why a restore to an older checkpoint cannot take its rows back."""
        sinks = {name: spec for name, spec in self.specs.items() if isinstance(spec, SinkSpec)}
        reasons = {name: spec.irrevocable(self.delivery) for name, spec in sinks.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def _resets_because(self) -> str:
        """Return why local recovery is not possible, empty if it is."""
        for name, spec in self.specs.items():
            if not spec.deterministic:
                return f"operator {name!r} may return other rows when it runs again"
            if isinstance(spec, BroadcastStateSpec) and self.delivery == "at-most-once":
                return f"broadcast table {name!r} would lack rows on one worker with at-most-once delivery"
        return ""

    def _keeps_workers(self) -> str:
        """Return why the number of workers cannot change, empty if it can."""
        for name, spec in self.specs.items():
            try:
                spec.check_moves(name)
            except OperatorError as error:
                return f"{name!r} has no rule for it: {error.cause} ({error.remedy})"
        return ""

    @property
    def silence_timeout(self) -> float:
        """For how many seconds a peer's host may be silent: the setting of the region, if it is one."""
        return self.choice.regions[0].settings.silence_timeout if self.choice.regions else peer_silent_s

    def the_region(self) -> Consistent:
        """Return the settings of the graph's only region. Raises GraphError for several regions."""
        regions, outside = self.choice.regions, self.choice.outside
        if len(regions) != 1 or outside:
            outside_text = f", with {', '.join(map(repr, outside))} outside" if outside else ""
            count = f"{len(regions)} consistent region{'' if len(regions) == 1 else 's'}"
            problem = (
                f"it has {count}{outside_text}, expected one region;"
                " divide it with `dataflow.graph.builder.parts_of`"
            )
            raise GraphError(self.name, (problem,))
        if self.triggers_checkpoints and not any(spec.can_trigger for spec in self.specs.values()):
            sources = [name for name, spec in self.specs.items() if isinstance(spec, SourceSpec)]
            problem = (
                "trigger='operator' needs an operator that requests checkpoints, as a FileSource"
                " does after each file, or one of your own with requests_checkpoints = True,"
                f" and {', '.join(map(repr, sources))} never does; use trigger='periodic'"
            )
            raise GraphError(self.name, (problem,))
        return regions[0].settings

    @property
    def waiting(self) -> PendingTables:
        """Which sources wait until a broadcast table is complete."""
        tables = self.specs.items()
        first = [
            name for name, spec in tables if isinstance(spec, BroadcastStateSpec) and spec.complete_first
        ]
        return find_waiting(self.plan.nodes, first)

    @property
    def delivery(self) -> Delivery | None:
        """The delivery of the graph's only region; None: each sink's default, and outside of regions."""
        return self.choice.regions[0].settings.delivery if len(self.choice.regions) == 1 else None

    @property
    def triggers_checkpoints(self) -> bool:
        """Whether start operators trigger checkpoints, instead of a period."""
        return any(region.settings.trigger == "operator" for region in self.choice.regions)

    @property
    def has_event_time(self) -> bool:
        """Whether watermarks flow through it."""
        return any(node.kind is OperatorKind.EVENT_TIME for node in self.plan.nodes)

    def operators_above(self, name: str) -> tuple[str, ...]:
        """Return the operator and all those whose rows reach it."""
        return _operators_above(self.plan, name)

    def sources_above(self, name: str) -> tuple[str, ...]:
        """Return the sources whose rows reach an operator."""
        return _sources_above(self.plan, name)

    def inputs_of(self, name: str) -> tuple[pa.Schema, ...]:
        """Return the columns of each input, in order."""
        schemas = [self.schemas[source] for source in self.plan.node(name).inputs]
        return tuple(schema for schema in schemas if schema is not None)


def _operators_above(plan: CircuitPlan, name: str) -> tuple[str, ...]:
    todo, seen = [name], {name: None}
    while todo:
        above = [one for one in plan.node(todo.pop()).inputs if one not in seen]
        todo += above
        seen.update(dict.fromkeys(above))
    return tuple(seen)


def _sources_above(plan: CircuitPlan, name: str) -> tuple[str, ...]:
    above = _operators_above(plan, name)
    return tuple(one for one in above if plan.node(one).kind is OperatorKind.SOURCE)


def operator_notes(
    plan: CircuitPlan,
    specs: Mapping[str, OperatorSpec],
    schemas: Mapping[str, pa.Schema | None],
    updates: Collection[str],
) -> dict[str, OperatorNote]:
    """Return what checkpoints store of a graph. schemas: the columns of each operator's output. updates:
    operators whose output carries changes.
    """
    notes = {}
    for name, spec in specs.items():
        inputs, kind, output = plan.node(name).inputs, spec.kind.value, schemas[name]
        stored: list[str] = []
        results: tuple[ResultNote, ...] = ()
        single: tuple[str, ...] = ()
        if kind not in STATELESS:
            columns = [schema for one in inputs if (schema := schemas[one]) is not None]
            # An operator that was made for rows keeps too little of them for changes: its results would stay.
            changes = ["changes" if one in updates else "" for one in inputs]
            texts = [schema_text(one) for one in spec.stored_columns(columns)]
            if spec.columns_stay == "old":
                texts = []
                single = tuple(_column_text(field) for field in (columns[0] if output is None else output))
            if any(changes):  # it may store no columns, and its own state is of these rows
                texts += [""] * (len(changes) - len(texts))
            stored = [f"{change} {text}".strip() for change, text in zip(changes, texts, strict=False)]
            results = spec.results(columns)
        declared = spec.declared_states()
        notes[name] = OperatorNote(
            kind=kind,
            inputs=inputs,
            lineage=tuple(tuple(sorted(_sources_above(plan, one))) for one in inputs),
            stored=tuple(stored),
            detail=spec.detail(),
            state=declared[0] if declared else None,
            takes=declared[1:],
            results=results,
            columns=single,
            gives="" if output is None or spec.columns_stay == "none" else schema_text(output),
            removed_with=type(spec).__name__ if isinstance(spec, SinkSpec) and spec.leaves_rows else "",
        )
    return notes


def _column_text(field: pa.Field) -> str:
    return f"{schema_text(pa.schema([field]))}{'' if field.nullable else NOT_NULL}"


__all__ = ["GraphPlan", "OperatorKind", "operator_notes"]

"""Event time in one worker's circuit: the mark of every operator at the end of each step under way.

Rules of this file: marks by step and name; no rows. What marks are is `core/event_time.py`'s, what an
operator does with them its own. Without an `event_time` in the graph nothing happens here, nothing is sent.

Theory (docs/decisions/0120, 0190). A step is the interval of punctuations: marks move at the end of a step
only. An `event_time` runs in stage 0, and rows reach it with the name of their split. Its mark is the least
over the splits that count; which do is known to the sources alone, and changes with time, so the mark is
recorded with the step's division, and a replay takes it from there. Marks of exchanges come in with the
step's markers, one from each sender. So a replay of the same steps sees the same marks.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from checkpoint import Division, Sources, SplitPosition
from dataflow.core.event_time import END, IDLE, UNKNOWN, SourceTime, Watermark, further, held_back, together
from dataflow.core.plan import NodePlan, OperatorKind
from dataflow.graph.plan import GraphPlan
from dataflow.operators.base import Operator
from dataflow.operators.event_time import EventTimeOperator
from dataflow.operators.nulls import NullRule
from dataflow.sources.base import Positions, SourceBatch

ONE_SPLIT: Final = SourceTime(caught_up_holds=False)
"""Of a source of which nothing is known: its event time is that of the latest row."""


class StepTime(NamedTuple):
    """What is known of the sources at the end of a step."""

    sources: Mapping[str, SourceTime]
    idle: frozenset[str] = frozenset()
    """Sources of which nothing was ever read."""
    recorded: Division | None = None
    """Of a step that is replayed."""

    def watermark_of(self, source: str) -> Watermark:
        """The mark of a source; that of its rows is known to an `event_time` alone."""
        return END if self.sources[source].at_end else IDLE if source in self.idle else UNKNOWN


class CircuitTime:
    """See the top of this file. `operators`: those of the circuit, by name."""

    def __init__(self, graph: GraphPlan, operators: Mapping[str, Operator]) -> None:
        self._waiting = graph.waiting
        self._incomplete = set(self._waiting.made_from)
        self._told_complete: set[str] = set()
        self._at_end: dict[int, frozenset[str]] = {}
        """Step -> the sources that are at their end here."""
        self.flows = graph.has_event_time or bool(self._incomplete)
        """Whether marks are sent and heard at all."""
        self._operators = operators
        self._lags = graph.lags
        self._timing = {
            node.name: one
            for node in graph.plan.nodes
            if isinstance(one := operators.get(node.name), EventTimeOperator)
        }
        self._counting = [
            (node.stage, one)
            for node in graph.plan.nodes
            if isinstance(one := operators.get(node.name), NullRule)
        ]
        """What may be ahead of the checkpoint, with its stage: it remembers each step."""
        self._sources = {name: _sources_above(graph, name) for name in self._timing}
        """An `event_time` -> the sources whose rows it gets."""
        self._exchanges = {node.exchange: node.name for node in graph.plan.nodes if node.exchange is not None}
        self._last = graph.plan.stages[-1].index
        self._watermarks: dict[int, dict[str, Watermark]] = defaultdict(dict)
        self._to_send: dict[int, dict[int, Watermark]] = defaultdict(dict)
        self._now: dict[int, StepTime] = {}
        self._fed: dict[tuple[str, str], bool] = {}
        """Source and split that gave rows in this step -> whether the last of them ended a unit."""

    # --- splits ---------------------------------------------------------------------------------------------

    @property
    def idle_after_s(self) -> float | None:
        """The shortest time after which a silent split does not count, None: it always does."""
        given = [one.idle_after_s for one in self._timing.values() if one.idle_after_s is not None]
        return min(given, default=None)

    def reached_by(self, source: str) -> "Callable[[str], Watermark] | None":
        """The watermark of a split of this source, for whoever reads it; None: no event time is taken from
        it.
        """
        timing = [one for name, one in self._timing.items() if source in self._sources[name]]
        if not timing:
            return None
        return lambda split: min(one.splits.reached(source, split) for one in timing)

    def coming(self, name: str, source: str, split: str) -> None:
        """The rows that the operator `name` is given next are of this split."""
        if (timing := self._timing.get(name)) is not None:
            timing.rows_of = source, split

    def fed(self, source: str, batch: SourceBatch) -> None:
        """A batch of a source went through stage 0; a union holds its rows until the end of the step."""
        if self.flows:
            self._fed[source, batch.split] = batch.ends_unit
            if batch.ends_unit:
                self._units_ended(source, batch.split)

    def _units_ended(self, source: str, split: str) -> None:
        for name, timing in self._timing.items():
            if source in self._sources[name]:
                timing.splits.unit_ended(source, split)

    def positions(self) -> dict[str, Positions]:
        """What a checkpoint holds of the splits: `event_time` -> SOURCE/SPLIT -> its watermark as position,
        and as digest that of the unit which is being read; both counted from UNKNOWN, so never negative.
        """
        return {
            name: {
                split: SplitPosition(promised - UNKNOWN, coming - UNKNOWN)
                for split, (promised, coming) in timing.splits.stored().items()
            }
            for name, timing in self._timing.items()
        }

    def restore(self, positions: Mapping[str, Mapping[str, SplitPosition]]) -> None:
        """Stand where a checkpoint says. One of an older version knows nothing of splits: event time stays
        where it was until each has given a row.
        """
        for name, timing in self._timing.items():
            stored = positions.get(name, {}).items()
            timing.splits.restore(
                {split: (at.position + UNKNOWN, at.digest + UNKNOWN) for split, at in stored}
            )

    # --- marks ----------------------------------------------------------------------------------------------

    def sources(self, step: int, now: StepTime) -> None:
        """The step has all its rows: how far each source is."""
        if not self.flows:
            return
        self._now[step] = now
        self._at_end[step] = frozenset(name for name, time in now.sources.items() if time.at_end)
        for name in now.sources:
            self._watermarks[step][name] = now.watermark_of(name)

    def heard(self, step: int, watermarks: Mapping[int, Sequence[Watermark]]) -> None:
        """What all senders said of the channels of a stage."""
        for channel, said in watermarks.items():
            if channel in self._exchanges:
                name = self._exchanges[channel]
                self._watermarks[step][name] = together(said)
                if self._watermarks[step][name] == END:
                    self._incomplete.discard(name)

    def inputs(self, step: int, node: NodePlan) -> list[Watermark]:
        """The marks of an operator's inputs."""
        watermarks = [self._watermarks[step].get(name, UNKNOWN) for name in node.inputs]
        return [
            held_back(watermark, lag)
            for watermark, lag in zip(watermarks, self._lags[node.name], strict=True)
        ]

    def passed(self, step: int, node: NodePlan) -> None:
        """The operator has seen all rows of the step: how far its output is."""
        if not self.flows:
            return
        if node.name in self._timing:
            watermark = self._least(step, node.name)
        elif node.name in self._waiting.made_from:
            watermark = self._completeness(step, node.name)
        else:
            watermark = (
                together(self.inputs(step, node))
                if node.inputs
                else self._watermarks[step].get(node.name, IDLE)
            )
        if node.exchange is not None:
            self._to_send[step][node.exchange] = watermark
        else:
            self._watermarks[step][node.name] = self._operators[node.name].passes_on(watermark)

    def _least(self, step: int, name: str) -> Watermark:
        """The mark of an `event_time`: as the division has it, or as the splits are now."""
        now, timing = self._now.get(step, StepTime({})), self._timing[name]
        for (source, split), ends_unit in self._fed.items():
            if ends_unit and source in self._sources[name]:
                timing.splits.unit_ended(source, split)
        if now.recorded is not None:
            part = now.recorded.sources.get(name, {}).get("")
            return self._as_before_0190(now, name) if part is None else part[2]
        states = [(source, now.sources.get(source, ONE_SPLIT)) for source in self._sources[name]]
        return together(timing.splits.of_source(*state, timing.idle_after_s) for state in states)

    def _as_before_0190(self, now: StepTime, name: str) -> Watermark:
        """The rule when divisions did not hold the mark: the largest of all splits."""
        timing = self._timing[name]
        given = together(map(now.watermark_of, self._sources[name]))
        newest = [timing.splits.newest(source) for source in self._sources[name]]
        own = further(timing.watermark, max(newest, default=UNKNOWN))
        return given if given == END or own == UNKNOWN else own

    def division(self, step: int) -> Sources:
        """What the division of a step says of event time: an `event_time` -> its mark."""
        return {name: {"": (0, 0, self._watermarks[step][name])} for name in self._timing}

    def to_send(self, step: int, channel: int) -> Watermark:
        """The mark that ends a step on a channel, once."""
        waiting = self._to_send[step]
        watermark = waiting.pop(channel, IDLE)
        if not waiting:
            del self._to_send[step]
        return watermark

    def stage_over(self, step: int, stage: int) -> None:
        """A stage has run; what nobody asks for any more goes."""
        for own, operator in self._counting:
            if stage == own:
                operator.remember(step)
            if stage == self._last:
                operator.forget(step)
        if stage == 0:
            self._now.pop(step, None)
            self._fed.clear()
        if stage == self._last:
            self._watermarks.pop(step, None)
            self._at_end.pop(step, None)

    def cut_at(self, step: int) -> None:
        """The state as of the end of this step is asked for next."""
        for _, operator in self._counting:
            operator.look_at(step)

    # --- control tables that are to be complete first ------------------------------------------------------

    @property
    def held(self) -> Collection[str]:
        """The sources of which nothing is to be read yet. It changes between steps only, in the same step on
        all workers.
        """
        return [name for name, tables in self._waiting.held.items() if tables & self._incomplete]

    def has_end_to_tell(self, exhausted: Collection[str]) -> bool:
        """Whether others wait for a step of this worker, which says that the sources of a table are at their
        end.
        """
        untold = self._incomplete - self._told_complete
        return any(self._waiting.made_from[table] <= frozenset(exhausted) for table in untold)

    def _completeness(self, step: int, broadcast: str) -> Watermark:
        """What goes to all workers behind the rows of such a table, in the place of an event time, which no
        table has. Not the mark of its input: a source that is idle does not hold that back.
        """
        if not self._waiting.made_from[broadcast] <= self._at_end[step]:
            return UNKNOWN
        self._told_complete.add(broadcast)
        return END


def _sources_above(graph: GraphPlan, name: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    todo = [name]
    while todo:
        node = graph.plan.node(todo.pop())
        if node.kind is OperatorKind.SOURCE:
            found[node.name] = None
        todo += node.inputs
    return tuple(found)

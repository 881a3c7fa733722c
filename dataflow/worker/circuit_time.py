"""Event time in one worker's circuit: the watermark of every operator at the end of each step in progress.

Watermarks by step and operator name; no rows. `core/event_time.py` defines watermarks; operators decide what
to do with them. Without an `event_time` in the graph nothing is computed and nothing is sent.

1. Watermarks advance only at the end of a step (docs/decisions/0120, 0190).
2. An `event_time` runs in stage 0, and gets rows with the name of their split. Its watermark is the minimum
   over the splits that count. Only the sources know these splits, and they change over time; so the watermark
   is recorded with the input division of the step, and a replay reads it from there.
3. The watermark of an exchange arrives with the step's markers, one from each sender. So a replay of the same
   steps sees the same watermarks.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from checkpoint import Division, EventTime, OriginMark, Sources, SplitPosition
from dataflow.core.event_time import (
    END,
    IDLE,
    UNKNOWN,
    HeldWatermark,
    InputMarks,
    SourceTime,
    Watermark,
    combined,
    held_back,
    is_time,
    least,
)
from dataflow.core.plan import NodePlan
from dataflow.graph.plan import GraphPlan
from dataflow.operators.base import Operator
from dataflow.operators.event_time import EventTimeOperator, NullRule
from dataflow.sources.base import Positions, SourceBatch

ONE_SPLIT: Final = SourceTime(caught_up_holds=False)
"""For a source without any information: its event time is that of its latest row."""


class StepTime(NamedTuple):
    """What is known of the sources at the end of a step."""

    sources: Mapping[str, SourceTime]
    idle: frozenset[str] = frozenset()
    """Sources of which nothing was ever read."""
    recorded: Division | None = None
    """The recorded division of a replayed step."""
    seconds: float = 0.0
    """Now, by a clock that never goes back: for how long splits are silent."""

    def watermark_of(self, source: str) -> Watermark:
        """Return the watermark of a source. Only an `event_time` knows the times of its rows."""
        return END if self.sources[source].at_end else IDLE if source in self.idle else UNKNOWN


class CircuitTime:
    """The watermarks of one worker. `operators`: the operators of the circuit by name."""

    def __init__(self, graph: GraphPlan, operators: Mapping[str, Operator]) -> None:
        self._waiting = graph.waiting
        self._incomplete = set(self._waiting.made_from)
        self._reported_complete: set[str] = set()
        self._at_end: dict[int, frozenset[str]] = {}
        """Step -> the sources that are at their end on this worker."""
        self.flows = graph.has_event_time or bool(self._incomplete)
        """Whether watermarks are sent and received at all."""
        self._operators = operators
        for operator in operators.values() if graph.is_replica else ():
            operator.forbid_late_rows()
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
        """Stage and operator of each counter of nulls.

        Stage 0 may be ahead of a checkpoint, so each step is remembered.
        """
        self._sources = {name: graph.sources_above(name) for name in self._timing}
        """An `event_time` -> the sources whose rows it gets."""
        self._exchanges = {node.exchange: node.name for node in graph.plan.nodes if node.exchange is not None}
        self._last = graph.plan.stages[-1].index
        self._watermarks: dict[int, dict[str, Watermark]] = defaultdict(dict)
        self._to_send: dict[int, dict[int, Watermark]] = defaultdict(dict)
        self._now: dict[int, StepTime] = {}
        self.held: dict[str, HeldWatermark] = {}
        """`event_time` -> what holds its watermark since the last step that was not replayed."""
        self._fed: dict[tuple[str, str], bool] = {}
        """(source, split) with rows in this step -> whether the last of them ended a unit."""

    def step_begins(self, time_ms: int) -> None:
        """Note the recorded time of the step whose rows follow, which is the clock of `max_ahead`."""
        for timing in self._timing.values():
            timing.now_us = time_ms * 1000

    # --- splits ---------------------------------------------------------------------------------------------

    def idle_in(self, seconds: float) -> float | None:
        """Return the seconds until the next silent split is ignored, None if there is none."""
        waits = [
            one.splits.silent_in(seconds, one.idle_after_s)
            for one in self._timing.values()
            if one.idle_after_s is not None
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def waits_for(self, source: str) -> set[str]:
        """Return the splits that hold event time back only while more of their rows wait to be read."""
        return {split for one in self._timed_from(source) for split in one.splits.waits_for.get(source, ())}

    def reached_by(self, source: str) -> "Callable[[str], Watermark] | None":
        """Return a function from a split of this source to its watermark; None if no event time uses it."""
        if not (timing := self._timed_from(source)):
            return None
        return lambda split: min(one.splits.reached(source, split) for one in timing)

    def coming(self, name: str, source: str, split: str) -> None:
        """Note that the next rows for the operator `name` are of this split."""
        if (timing := self._timing.get(name)) is not None:
            timing.rows_of = source, split

    def fed(self, source: str, batch: SourceBatch) -> None:
        """Note that a batch of a source passed stage 0. A union holds its rows until the end of the step."""
        if self.flows:
            for split, mark in batch.marks:
                self._marked(source, split, mark)
            self._fed[source, batch.split] = batch.ends_unit
            for timing in self._timed_from(source):
                timing.splits.read(source, batch.split)
                if batch.ends_unit:
                    timing.splits.unit_ended(source, batch.split)

    def _timed_from(self, source: str) -> list[EventTimeOperator]:
        return [one for name, one in self._timing.items() if source in self._sources[name]]

    def _marked(self, source: str, split: str, mark: OriginMark) -> None:
        for timing in self._timed_from(source):
            if isinstance(timing.splits, InputMarks):
                timing.splits.marked(source, split, mark.mark, origin=mark.origin, version=mark.version)

    def positions(self) -> dict[str, Positions]:
        """Return the splits' watermarks for a checkpoint: `event_time` -> SOURCE/SPLIT -> position.

        The position is the watermark; the digest is the watermark of the unit that is being read. Both are
        counted from UNKNOWN, so they are never negative.
        """
        return {
            name: {
                split: SplitPosition(promised - UNKNOWN, coming - UNKNOWN)
                for split, (promised, coming) in timing.splits.stored().items()
            }
            for name, timing in self._timing.items()
        }

    def restore(self, positions: Mapping[str, Mapping[str, SplitPosition]]) -> None:
        """Restore `positions` of a checkpoint.

        A checkpoint of an older version has no splits: the watermark stays where it was until each has
        yielded a row.
        """
        for name, timing in self._timing.items():
            stored = positions.get(name, {}).items()
            timing.splits.restore(
                {split: (at.position + UNKNOWN, at.digest + UNKNOWN) for split, at in stored}
            )

    # --- watermarks -----------------------------------------------------------------------------------------

    def sources(self, step: int, now: StepTime) -> None:
        """Note how far each source is, after the step has all its rows."""
        if not self.flows:
            return
        self._now[step] = now
        self._at_end[step] = frozenset(name for name, time in now.sources.items() if time.at_end)
        for name in now.sources:
            self._watermarks[step][name] = now.watermark_of(name)

    def received(self, step: int, watermarks: Mapping[int, Sequence[Watermark]]) -> None:
        """Take the watermarks of all senders on the channels of a stage."""
        for channel, watermarks_of_channel in watermarks.items():
            if channel in self._exchanges:
                name = self._exchanges[channel]
                self._watermarks[step][name] = combined(watermarks_of_channel)
                if self._watermarks[step][name] == END:
                    self._incomplete.discard(name)

    def inputs(self, step: int, node: NodePlan) -> list[Watermark]:
        """Return the watermarks of an operator's inputs."""
        watermarks = [self._watermarks[step].get(name, UNKNOWN) for name in node.inputs]
        return [
            held_back(watermark, lag)
            for watermark, lag in zip(watermarks, self._lags[node.name], strict=True)
        ]

    def passed(self, step: int, node: NodePlan) -> None:
        """Compute the output watermark of an operator that has seen all rows of the step."""
        if not self.flows:
            return
        if node.name in self._timing:
            watermark = self._least(step, node.name)
        elif node.name in self._waiting.made_from:
            watermark = self._completeness(step, node.name)
        else:
            watermark = (
                combined(self.inputs(step, node))
                if node.inputs
                else self._watermarks[step].get(node.name, IDLE)
            )
        if node.exchange is not None:
            self._to_send[step][node.exchange] = watermark
        else:
            self._watermarks[step][node.name] = self._operators[node.name].passes_on(watermark)

    def _least(self, step: int, name: str) -> Watermark:
        """Return the watermark of an `event_time`, from the recorded division or from the current splits."""
        now, timing = self._now.get(step, StepTime({})), self._timing[name]
        for (source, split), ends_unit in self._fed.items():
            if ends_unit and source in self._sources[name]:
                timing.splits.unit_ended(source, split)
        self.held.pop(name, None)
        if now.recorded is not None:
            return now.recorded.sources[name][""][2]
        held = [
            timing.splits.of_source(
                source,
                now.sources.get(source, ONE_SPLIT),
                seconds=now.seconds,
                idle_after_s=timing.idle_after_s,
            )
            for source in self._sources[name]
        ]
        self.held[name] = least(held)
        return self.held[name].watermark

    def reports(self) -> dict[str, EventTime]:
        """Return `event_time` -> how far it is, and what holds it; none that holds nothing back."""
        return {
            name: EventTime(at if is_time(at := self._timing[name].watermark) else None, held.text())
            for name, held in self.held.items()
            if held.watermark not in (END, IDLE)
        }

    def division(self, step: int) -> Sources:
        """Return what the division of a step records: `event_time` -> its watermark."""
        return {name: {"": (0, 0, self._watermarks[step][name])} for name in self._timing}

    def to_send(self, step: int, channel: int) -> Watermark:
        """Return the watermark that ends a step on a channel, and forget it."""
        waiting = self._to_send[step]
        watermark = waiting.pop(channel, IDLE)
        if not waiting:
            del self._to_send[step]
        return watermark

    def stage_over(self, step: int, stage: int) -> None:
        """Note that a stage has run; drop what is no longer needed."""
        for own, operator in self._counting:
            if stage == own:
                operator.remember(step)
            if stage == self._last:
                operator.forget(step)
        if stage == 0:
            self._now.pop(step, None)
            self._fed.clear()
            for timing in self._timing.values():
                timing.splits.step_over()
        if stage == self._last:
            self._watermarks.pop(step, None)
            self._at_end.pop(step, None)

    def checkpoint_at(self, step: int) -> None:
        """Prepare the state as of the end of this step for a checkpoint."""
        for _, operator in self._counting:
            operator.select_step(step)

    # --- broadcast tables with complete_first --------------------------------------------------------------

    @property
    def held_sources(self) -> Collection[str]:
        """The sources that must not be read yet.

        Changes only between steps, in the same step on all workers.
        """
        return [name for name, tables in self._waiting.waits_for.items() if tables & self._incomplete]

    def has_end_to_report(self, exhausted: Collection[str]) -> bool:
        """Whether other workers need a step of this one, which announces that the sources of a table are at
        their end.
        """
        unreported = self._incomplete - self._reported_complete
        return any(self._waiting.made_from[table] <= frozenset(exhausted) for table in unreported)

    def _completeness(self, step: int, broadcast: str) -> Watermark:
        """Return END if the table is complete here, otherwise UNKNOWN. It is sent instead of an event time.

        A table has no event time. The watermark of its input is not used, because an idle source does not
        hold that back.
        """
        if not self._waiting.made_from[broadcast] <= self._at_end[step]:
            return UNKNOWN
        self._reported_complete.add(broadcast)
        return END

"""Event time in one worker's circuit: the mark of every operator at the end of each step under way.

Rules of this file: marks by step and name; no rows. What marks are is `core/event_time.py`'s, what an
operator does with them its own. Without an `event_time` in the graph nothing happens here, nothing is sent.

Theory (docs/decisions/0120). A step is the interval of punctuations: marks move at the end of a step only.
Those of sources are recorded with the step's division or follow from it; those of exchanges come in with
the step's markers, one from each sender. So a replay of the same steps sees the same marks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dataflow.core.event_time import IDLE, UNKNOWN, Mark, together
from dataflow.core.plan import NodePlan
from dataflow.graph_plan import GraphPlan
from dataflow.operators.base import Operator
from dataflow.operators.event_time import EventTimeOperator


class CircuitTime:
    """See the top of this file. `operators`: those of the circuit, by name."""

    def __init__(self, graph: GraphPlan, operators: Mapping[str, Operator]) -> None:
        self.flows = graph.has_event_time
        """Whether marks are sent and heard at all."""
        self._operators = operators
        self._assigning = [
            (node.stage, one)
            for node in graph.plan.nodes
            if isinstance(one := operators.get(node.name), EventTimeOperator)
        ]
        self._exchanges = {node.exchange: node.name for node in graph.plan.nodes if node.exchange is not None}
        self._last = graph.plan.stages[-1].index
        self._marks: dict[int, dict[str, Mark]] = defaultdict(dict)
        self._to_send: dict[int, dict[int, Mark]] = defaultdict(dict)

    def sources(self, step: int, marks: Mapping[str, Mark]) -> None:
        """How far each source is at the end of a step."""
        if self.flows:
            self._marks[step].update(marks)

    def heard(self, step: int, marks: Mapping[int, Sequence[Mark]]) -> None:
        """What all senders said of the channels of a stage."""
        for channel, said in marks.items():
            if channel in self._exchanges:
                self._marks[step][self._exchanges[channel]] = together(said)

    def inputs(self, step: int, node: NodePlan) -> list[Mark]:
        """The marks of an operator's inputs."""
        return [self._marks[step].get(name, UNKNOWN) for name in node.inputs]

    def passed(self, step: int, node: NodePlan) -> None:
        """The operator has seen all rows of the step: how far its output is."""
        if not self.flows:
            return
        mark = together(self.inputs(step, node)) if node.inputs else self._marks[step].get(node.name, IDLE)
        if node.exchange is not None:
            self._to_send[step][node.exchange] = mark
        else:
            self._marks[step][node.name] = self._operators[node.name].passes_on(mark)

    def to_send(self, step: int, channel: int) -> Mark:
        """The mark that ends a step on a channel, once."""
        waiting = self._to_send[step]
        mark = waiting.pop(channel, IDLE)
        if not waiting:
            del self._to_send[step]
        return mark

    def stage_over(self, step: int, stage: int) -> None:
        """A stage has run; what nobody asks for any more goes."""
        for runs_in, operator in self._assigning:
            if runs_in == stage:
                operator.remember(step)
            if stage == self._last:
                operator.forget(step)
        if stage == self._last:
            self._marks.pop(step, None)

    def cut_at(self, step: int) -> None:
        """The state as of the end of this step is asked for next."""
        for _, operator in self._assigning:
            operator.look_at(step)

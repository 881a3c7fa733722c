"""How far the time columns of a stream may be behind its watermark, computed from the operators above it.

A window emits its result when its last microsecond has passed: `window_end` is above the watermark then, and
`window_start` is behind it by the size of the window. The same holds for the pairs of a join and for rows
that a `top_k` held. An operator that uses such a column as its time holds its watermark back by this lag
(`CircuitTime.inputs`); otherwise these rows would be late there. An `event_time` starts over without lag.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from dataflow.core.plan import NodeSpec, OperatorKind, in_order
from dataflow.operators.base import OperatorSpec
from dataflow.operators.count_windows import CountWindowSpec
from dataflow.operators.event_time import EventTimeSpec, micros_of
from dataflow.operators.join import JoinSpec
from dataflow.operators.map_state import MapStateSpec
from dataflow.operators.sort import SortSpec
from dataflow.operators.sorting import TopKSpec
from dataflow.operators.window_assignment import START, STOP
from dataflow.operators.windows import WindowSpec

Lags: TypeAlias = Mapping[str, int]
"""Column -> microseconds; "" stands for any other column."""

_KEEPS: Final = frozenset(
    {
        OperatorKind.FILTER,
        OperatorKind.KEY_BY,
        OperatorKind.BROADCAST,
        OperatorKind.SIDE,
        OperatorKind.DEDUP,
        OperatorKind.WINDOW_DEDUP,
    }
)
"""Operators that pass rows on unchanged, in the step in which they arrived."""


def find_lags(nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]) -> dict[str, tuple[int, ...]]:
    """Return operator -> for each input, by how much its watermark is held back there, in microseconds."""
    lags_of: dict[int, Lags] = {}
    held_back: dict[str, tuple[int, ...]] = {}
    for index in in_order(nodes):
        node, spec = nodes[index], specs[index]
        inputs = [lags_of.get(above, {}) for above in node.inputs]
        times = _times(spec, len(inputs))
        input_lags = [_lag(lags, time) if time else 0 for lags, time in zip(inputs, times, strict=True)]
        if node.kind is OperatorKind.APPLY and spec.needs_time:  # the columns that it uses are unknown
            input_lags = [_worst([lags]) for lags in inputs]
        held_back[node.name] = tuple(input_lags)
        lags_of[index] = _output(node, spec, inputs)
    return held_back


def _times(spec: OperatorSpec, inputs: int) -> tuple[str, ...]:
    """Return the time column of each input, "" for none."""
    if isinstance(spec, JoinSpec):
        return spec.times
    if isinstance(spec, (SortSpec, MapStateSpec)):
        return (spec.time,)
    if isinstance(spec, (WindowSpec, CountWindowSpec, TopKSpec)):
        return (spec.window.time,)
    window = getattr(spec, "window", None)  # of a dedup
    return (window.time,) if window is not None else ("",) * inputs


def _output(node: NodeSpec, spec: OperatorSpec, inputs: Sequence[Lags]) -> Lags:
    worst = _worst(inputs)
    if isinstance(spec, EventTimeSpec) or not inputs:
        return {}
    if node.kind in _KEEPS:
        return inputs[0]
    if node.kind is OperatorKind.UNION:
        names = {name for lags in inputs for name in lags}
        return {name: max(_lag(lags, name) for lags in inputs) for name in names}
    if isinstance(spec, WindowSpec):
        size = micros_of(spec.window.size, "size")
        return {START: size - 1, STOP: 0, "": size + worst}
    if isinstance(spec, TopKSpec):
        return {"": micros_of(spec.window.size, "size") + worst}
    if isinstance(spec, JoinSpec):
        return {"": micros_of(spec.within, "within") + worst}
    if isinstance(spec, SortSpec):
        return {spec.time: 0, "": worst and worst + 1}
    return {"": worst and worst + 1}


def _lag(lags: Lags, column: str) -> int:
    return lags.get(column, lags.get("", 0))


def _worst(inputs: Sequence[Lags]) -> int:
    return max((lag for lags in inputs for lag in lags.values()), default=0)


__all__ = ["find_lags"]

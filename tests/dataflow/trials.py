"""What tests of operators share: the same rows in any order, cut into steps and batches anyhow, with
checkpoints and crashes anywhere.

Replica consistency (replication-transparency, definition 2): streams are consistent if they hold the same
rows whatever their order; an operator keeps that if from consistent inputs it makes consistent outputs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from dataflow import Graph
from dataflow.errors import OperatorError
from dataflow.testing import Trial

Row = dict[str, Any]
Step = dict[str, list[list[Row]]]
"""Source -> batches of rows."""

SCHEMA = "at timestamp, key string, x double"
BEGIN = datetime(2024, 5, 1, 12, tzinfo=ZoneInfo("UTC"))


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def row(number: float, key: str = "a", x: float | None = 1.0) -> Row:
    return {"at": second(number), "key": key, "x": x}


def together(lefts: Sequence[Step], rights: Sequence[Step]) -> list[Step]:
    """Steps of two sources."""
    count = max(len(lefts), len(rights))
    return [{**dict(*lefts[at : at + 1]), **dict(*rights[at : at + 1])} for at in range(count)]


@st.composite
def cut_into_batches(draw: st.DrawFn, rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in their order, as batches of one row and more."""
    ends = sorted(draw(st.sets(st.integers(1, max(len(rows) - 1, 1)), max_size=4)))
    bounds = [0, *(end for end in ends if end < len(rows)), len(rows)]
    return [list(rows[begin:end]) for begin, end in pairwise(bounds) if begin < end]


@st.composite
def arrangements(draw: st.DrawFn, inputs: Mapping[str, Sequence[Row]], *, steps_max: int = 4) -> list[Step]:
    """The rows of each source in any order, dealt to steps, cut into batches."""
    steps: list[Step] = [{} for _ in range(draw(st.integers(1, steps_max)))]
    for source, rows in inputs.items():
        dealt: list[list[Row]] = [[] for _ in steps]
        for row in draw(st.permutations(list(rows))):
            dealt[draw(st.integers(0, len(steps) - 1))].append(row)
        for step, part in zip(steps, dealt, strict=True):
            step[source] = draw(cut_into_batches(part))
    return steps


@st.composite
def reordered(draw: st.DrawFn, steps: Sequence[Step]) -> list[Step]:
    """The same rows in the same steps, in another order and other batches."""
    return [{name: draw(_reshuffled(batches)) for name, batches in step.items()} for step in steps]


@st.composite
def _reshuffled(draw: st.DrawFn, batches: list[list[Row]]) -> list[list[Row]]:
    rows = draw(st.permutations([row for batch in batches for row in batch]))
    made: list[list[Row]] = draw(cut_into_batches(rows))
    return made


@st.composite
def timely(
    draw: st.DrawFn, source: str, rows: Sequence[Row], time: str, unit: timedelta = timedelta(seconds=1)
) -> tuple[list[Step], timedelta]:
    """The rows somewhat in the order of time, dealt to steps, and how far the latest of them is behind: with
    that lateness no row is late, whichever worker reads it, and windows are over before the end.
    """
    jitter = st.sampled_from([0, 0, 0, 1, 3, 30])
    ordered = sorted(rows, key=lambda row: row[time] + draw(jitter) * unit)
    steps: list[Step] = []
    lateness = timedelta(0)
    newest = None
    for batch in draw(cut_into_batches(ordered)):
        steps.append({source: draw(cut_into_batches(batch))})
        if newest is not None:
            lateness = max([lateness, *(newest - row[time] for row in batch)])
        newest = max([row[time] for row in batch] + ([] if newest is None else [newest]))
    return steps, lateness


def play(graph: Graph, steps: Sequence[Step], *, workers: int = 1, end: bool = False) -> Trial:
    """All steps, without trouble. `end`: and one more, after which nothing comes."""
    trial = Trial(graph, workers=workers)
    for step in steps:
        trial.step(step)
    if end:
        trial.step({}, end=True)
    return trial


def play_with_trouble(
    graph: Graph, steps: Sequence[Step], data: st.DataObject, *, end: bool = False
) -> Trial:
    """All steps on one to three workers, with checkpoints at some of them and crashes after some. After some
    crashes another number of workers continues, if every operator says what that does with its state."""
    if end:
        steps = [*steps, {}]
    trial = Trial(graph, workers=data.draw(st.integers(1, 3), label="workers"))
    crashes = data.draw(st.integers(0, 3), label="crashes")
    at = 0
    moves, stored = True, False
    while at < len(steps):
        checkpoint = data.draw(
            st.sampled_from(["", "checkpoint", "snapshot"]), label=f"checkpoint at step {at + 1}"
        )
        over = end and at == len(steps) - 1
        trial.step(steps[at], checkpoint=bool(checkpoint), snapshot=checkpoint == "snapshot", end=over)
        at += 1
        stored = stored or bool(checkpoint)
        if crashes and data.draw(st.booleans(), label="crash"):
            crashes -= 1
            may_move = moves and stored
            workers = data.draw(st.integers(0, 4), label="workers from now on") if may_move else 0
            try:
                at = trial.rescale(workers) if workers else trial.crash()
            except OperatorError:  # one of them does not say it
                moves, at = False, trial.crash()
    return trial


def multiset(rows: Sequence[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    """Rows without an order; NaN is equal to itself."""
    return Counter(tuple((name, repr(value)) for name, value in row.items()) for row in rows)

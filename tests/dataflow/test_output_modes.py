"""Output modes of aggregates (`emit=`): which results they emit, once in a micro-batch, at its end."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from checkpoint.errors import GraphChangeRefusedError
from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    SchemaError,
    Sliding,
    Sum,
    Tumbling,
    UserOperator,
)
from dataflow.errors import OperatorError
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from dataflow.schema import parse_schema
from dataflow.sources.batches import BatchSource
from dataflow.testing import Trial
from tests.dataflow.driven_region import DrivenRegion
from tests.dataflow.trials import SCHEMA, Row, row, second

LATENESS, SIZE, SLIDE = 5, 10, 4
WINDOWS = {
    "tumbling": Tumbling("at", timedelta(seconds=SIZE)),
    "sliding": Sliding("at", timedelta(seconds=SIZE), timedelta(seconds=SLIDE)),
}
SMALL_STEPS = WorkerLimits(step_bytes_max=64, batch_bytes_max=64)
"""One or two rows, so that a batch has several steps."""


def all_modes() -> Graph:
    """A sink for each mode with and without windows; behind updates another exchange."""
    graph = Graph("modes")
    rows = graph.source("rows", BatchSource(parse_schema(SCHEMA)))
    timed = rows.event_time("timed", "at", lateness=timedelta(seconds=LATENESS), max_ahead=None).key_by(
        "by_key", "key"
    )
    for emit in ("updates", "table"):
        timed.aggregate(f"keys_{emit}", emit=emit, n=Count(), x=Sum("x")).sink(emit, LogSink())
        for name, window in WINDOWS.items():
            made = timed.aggregate(f"{name}_{emit}", window, emit=emit, n=Count())
            made.key_by(f"{name}_{emit}_again", "n").sink(f"{name}_{emit}_out", LogSink())
    return graph


class Oracle:
    """What the sinks of `all_modes` get in each batch."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.newest: float | None = None
        self.windows: dict[str, Counter[tuple[str, float]]] = {}

    def batch(self, rows: Sequence[tuple[float, str]]) -> dict[str, Counter[Any]]:
        for _, key in rows:
            self.keys[key] += 1
            self.sums[key] += 1
        found = {"updates": Counter((key, self.keys[key]) for key in {key for _, key in rows})}
        found["table"] = Counter(self.keys.items())
        for name, slide in (("tumbling", SIZE), ("sliding", SLIDE)):
            for emit in ("updates", "table"):
                counts, touched = self.windows.setdefault(f"{name}_{emit}", Counter()), set()
                for at, key in rows:
                    for begin in range(int(at) - SIZE + 1, int(at) + 1):
                        closed = self.newest is not None and begin + SIZE <= self.newest - LATENESS
                        if begin % slide == 0 and not (closed and emit == "updates"):
                            counts[key, begin] += 1
                            touched.add((key, begin))
                shown = touched if emit == "updates" else counts.keys()
                found[f"{name}_{emit}_out"] = Counter((*one, counts[one]) for one in shown)
        self.newest = max(
            [at for at, _ in rows] + ([] if self.newest is None else [self.newest]), default=None
        )
        return found


def as_counted(output: Mapping[str, Sequence[Row]]) -> dict[str, Counter[Any]]:
    found = {
        name: Counter((row["key"], row["n"]) for row in output.get(name, ())) for name in ("updates", "table")
    }
    for name in WINDOWS:
        for emit in ("updates", "table"):
            rows = output.get(f"{name}_{emit}_out", ())
            starts = [(row["window_start"] - second(0)).total_seconds() for row in rows]
            found[f"{name}_{emit}_out"] = Counter(
                (row["key"], start, row["n"]) for row, start in zip(rows, starts, strict=True)
            )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_each_group_is_emitted_once_in_a_batch_whatever_its_steps_and_between_batches_nothing(
    seed: int,
) -> None:
    rng = random.Random(seed)
    region = DrivenRegion(all_modes(), 1 + seed % 3, rng.randrange, SMALL_STEPS)
    oracle, time = Oracle(), 100.0
    for _ in range(5):
        time += rng.randrange(12)
        given = [(time + rng.randrange(-9, 9), rng.choice("abcdef")) for _ in range(rng.randrange(9))]
        resets = [rng.randrange(80) for _ in range(rng.randrange(2))]
        output = region.batch({"rows": [row(at, key) for at, key in given]}, resets_after=resets)
        assert as_counted(output) == oracle.batch(given)
        if rng.random() < 0.4:
            region.savepoint()
        if rng.random() < 0.4:
            region.rescale(rng.randint(1, 3))
        if rng.random() < 0.3:
            region.restore()
    region.close()


def test_the_rows_of_a_batch_have_an_order_that_does_not_depend_on_its_steps() -> None:
    given = [row(at % 37, "abcdefgh"[at % 8]) for at in range(60)]
    outputs = []
    for seed in range(2):
        region = DrivenRegion(all_modes(), 1, random.Random(seed).randrange, SMALL_STEPS)
        outputs.append(region.batch({"rows": random.Random(seed).sample(given, len(given))}))
        region.close()
    assert outputs[0] == outputs[1]
    assert all(outputs[0].values())


class CountsCheckpoints(UserOperator):
    """Returns a row at each checkpoint, also at one between two batches."""

    deterministic = False
    schema = SCHEMA

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def drain(self) -> list[Row]:
        return [row(0, "drained")]


@pytest.mark.parametrize("emit", ["updates", "table"])
def test_a_group_that_a_savepoint_changes_is_refused_if_a_restart_would_forget_it(emit: Any) -> None:
    graph = Graph("drained")
    rows = graph.source("rows", BatchSource(parse_schema(SCHEMA))).apply("drains", CountsCheckpoints())
    rows.key_by("by_key", "key").aggregate("counts", emit=emit, n=Count()).sink("out", LogSink())
    region = DrivenRegion(graph, 1, random.Random(1).randrange)
    assert [one["n"] for one in region.batch({"rows": [row(1)]})["out"]] == [1, 1]
    if emit == "updates":
        with pytest.raises(OperatorError, match=r"'counts' failed .* records no micro-batch.*from drain\(\)"):
            region.savepoint()
    else:
        region.savepoint()
        region.restore()
        output = region.batch({"rows": [row(1)]})["out"]
        assert {one["key"]: one["n"] for one in output} == {"a": 2, "drained": 3}
    region.close()


# --- without a query ----------------------------------------------------------------------------------------


def windowed(emit: Any, *, timed: bool = True) -> Graph:
    graph = Graph("windowed")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    if timed:
        rows = rows.event_time("timed", "at", lateness=timedelta(0))
    made = rows.key_by("by_key", "key").aggregate("made", WINDOWS["tumbling"], emit=emit, n=Count())
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def taken(trial: Trial) -> list[tuple[str, float, int]]:
    return [
        (one["key"], (one["window_start"] - second(0)).total_seconds(), one["n"]) for one in trial.rows("out")
    ]


def test_without_a_query_a_step_is_a_batch_and_a_window_that_is_over_leaves_the_state() -> None:
    trial = Trial(windowed("updates"))
    trial.step({"rows": [row(1), row(2), row(3, "b")]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(4), row(12)]})
    assert sorted(taken(trial)[:2]) == [("a", 0, 2), ("b", 0, 1)]
    assert taken(trial)[2:] == [("a", 0, 3), ("a", 10, 1)]
    assert trial.counters()[0]["made"]["windows"] == 1
    trial.step({"rows": [row(5)]})
    trial.step({"rows": [row(13), row(40)]}, checkpoint=True)  # the window of 13 changes and is over at once
    assert taken(trial)[4:] == [("a", 10, 2), ("a", 40, 1)]
    assert trial.rows("late_out") == [row(5)]
    trial.step({}, end=True)
    assert len(taken(trial)) == 6, "no window is emitted again because it is over"


@pytest.mark.parametrize("timed", [False, True])
def test_a_table_has_all_windows_and_no_row_is_late(timed: bool) -> None:
    trial = Trial(windowed("table", timed=timed), workers=2)
    trial.step({"rows": [[row(1)], [row(50)]]}, checkpoint=True)
    trial.rescale(1)
    trial.step({"rows": [row(2)]})
    assert sorted(taken(trial)[:2]) == [("a", 0, 1), ("a", 50, 1)]
    assert taken(trial)[2:] == [("a", 0, 2), ("a", 50, 1)]
    assert trial.rows("late_out") == []


def test_a_table_needs_a_query() -> None:
    with pytest.raises(GraphError, match=r"'made' has emit='table', .*; pass a stream to dos.through"):
        run_local(windowed("table"), store="dos://127.0.0.1:1")
    windowed("updates").plan().check_has_query()
    all_modes().plan().check_has_query()


@pytest.mark.parametrize(
    ("window", "emit", "words"),
    [
        (None, "final", "'updates' or 'table' here, not 'final'; a result without a window is never final"),
        (None, "changes", "not 'changes'; changes with their former rows are not made yet"),
        (None, "all", "emit must be 'updates' or 'table' here, not 'all'"),
        (WINDOWS["sliding"], "complete", "'final' or 'updates' or 'table' here, not 'complete'"),
        (WINDOWS["sliding"], "changes", "not 'changes'; changes with their former rows are not made yet"),
        (CountWindow("at", 2), "updates", "'final' here, not 'updates'; a count window is emitted once"),
        (None, Count(), "is an option, and no result may have its name; rename Count()"),
    ],
)
def test_a_mode_that_an_aggregate_does_not_have_is_refused_where_it_is_written(
    window: Any, emit: Any, words: str
) -> None:
    keyed = Graph("g").source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError) as caught:
        keyed.aggregate("made", window, emit=emit, n=Count())
    assert words in str(caught.value)


@pytest.mark.parametrize("emit", ["updates", "table"])
def test_windows_that_are_emitted_again_are_updates(emit: Any) -> None:
    graph = windowed(emit)
    assert graph.plan().updates == {"made"}
    assert windowed("final").plan().updates == set()
    below = graph.stream("made").key_by("again", "key").aggregate("sums", n=Sum("n"))
    below.sink("sums_out", CallSink(print))
    with pytest.raises(GraphError, match=r"window 'made' above it emits updates.* and emit=\"final\""):
        graph.plan()


def test_another_mode_is_another_state() -> None:
    trial = Trial(windowed("final"))
    trial.step({"rows": [row(1)]}, checkpoint=True)
    with pytest.raises(GraphChangeRefusedError, match="made"):
        trial.go_on_with(windowed("updates"))

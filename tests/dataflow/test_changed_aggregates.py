"""Aggregations whose list of aggregates changes: a result that is kept is of all rows, and one that comes is
of those after it, whatever other results of its name have left in stored blocks.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final

import pytest

from checkpoint import born_with
from checkpoint.chains.state_blocks import decode_block, newest_rows, stored_names
from checkpoint.errors import GraphChangeRefusedError
from dataflow import (
    ApproxDistinct,
    Count,
    CountWindow,
    Graph,
    InputSource,
    LogSink,
    Max,
    Mean,
    Min,
    Sliding,
    Sum,
    Tumbling,
)
from dataflow.editing import as_table, edited_tables
from dataflow.operators.aggregates import Aggregate
from dataflow.testing import Trial

COLUMNS: Final = {
    "n": "bigint",
    "x": "double",
    "d": "decimal(10,2)",
    "text": "string",
    "one": "int",
}
HOUR: Final = timedelta(hours=1)
WINDOWS: Final[dict[str, Any]] = {
    "none": None,
    "tumbling": Tumbling("at", HOUR),
    "sliding": Sliding("at", 2 * HOUR, slide=HOUR),
    "count": CountWindow("at", 8, slide=4),
}
LASTING: Final[dict[str, Aggregate]] = {
    "texts": Count("text"),
    "sum": Sum("n"),
    "mean": Mean("x"),
    "max_d": Max("d"),
    "min_text": Min("text"),
}
LATER: Final[dict[str, Aggregate]] = {
    "rows": Count("one"),
    "sum_x": Sum("x"),
    "sum_d": Sum("d"),
    "mean_d": Mean("d"),
    "min_n": Min("n"),
    "max_text": Max("text"),
    "distinct": ApproxDistinct("n"),
}
ROWS: Final = 40
"""Of each of the graphs, which follow each other."""
GRAPHS: Final[tuple[dict[str, Aggregate], ...]] = (
    {"back": Sum("n"), **LASTING, "other": Min("n")},
    {**LATER, **LASTING, "other": Min("n")},
    {**LASTING, "back": Sum("n"), "other": Max("n"), **LATER},
)
"""`back` goes, and comes again. `other` is another one at last. The order changes."""
OPTIONS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"new_aggregates": [f"agg:{name}" for name in LATER], "drop_state": ["agg:back"]},
    {"new_aggregates": ["agg:back"], "drop_state": ["agg:other"]},
)
BEGINS: Final[tuple[dict[str, int], ...]] = (
    {},
    dict.fromkeys(LATER, ROWS),
    {**dict.fromkeys(LATER, ROWS), "back": 2 * ROWS, "other": 2 * ROWS},
)
"""For each graph, result -> the first row that it has, if that is not the first of all."""

WAITING: Final = 10
"""How many rows a count window has not counted when the graph changes: it counts them for all results."""
BEGUN: Final = (0, ROWS, 2 * ROWS, ROWS - WAITING, 2 * ROWS - WAITING)


def row(number: int) -> dict[str, Any]:
    """Return a row, whose columns are there once more for each graph, null in the rows before that."""
    values = {
        "n": number - 50,
        "x": number / 4,
        "d": Decimal(number) / 4,
        "text": f"t{number:04}" if number % 3 else None,
        "one": 1,
    }
    begun = {
        f"{name}_{begin}": value if number >= begin else None
        for begin in BEGUN
        for name, value in values.items()
    }
    # One time in each step: only rows of the last step wait for event time when the graph changes.
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=50 * (number // 10))
    return {"at": at, "key": "abc"[number % 3], **values, **begun}


def graph_of(aggregates: Mapping[str, Aggregate], window: str = "none") -> Graph:
    """Return a graph whose sink has the results as text, so that its columns do not depend on them."""
    graph = Graph("g")
    ends = ["", *(f"_{begin}" for begin in BEGUN)]
    begun = ", ".join(f"{name}{end} {kind}" for end in ends for name, kind in COLUMNS.items())
    rows = graph.source("rows", InputSource("rows", f"at timestamp, key string, {begun}"))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    over = [] if WINDOWS[window] is None else [WINDOWS[window]]
    made = timed.key_by("by_key", "key").aggregate("agg", *over, **aggregates)
    made.map("text", as_text, schema="text string").sink("out", LogSink())
    return graph


def as_text(row: dict[str, Any]) -> tuple[str]:
    return (json.dumps(row, default=str, sort_keys=True),)


def feed(trial: Trial, first: int, *, checkpoint: bool, snapshot: bool = False) -> None:
    for begin in range(first, first + ROWS, 10):
        last = begin + 10 == first + ROWS
        rows = [[row(number)] for number in range(begin, begin + 10)]
        trial.step({"rows": rows}, checkpoint=checkpoint and last, snapshot=snapshot and last)


def emitted(trial: Trial, after: int) -> list[str]:
    return sorted(one["text"] for one in trial.rows("out")[after:])


@cache
def expected(graph: int, window: str) -> list[str]:
    """What a graph makes, by one that never changes, of columns that are null before a result began."""
    waiting = WAITING if window == "count" else 0
    aggregates = {
        name: replace(one, column=f"{one.column}_{max(BEGINS[graph].get(name, 0) - waiting, 0)}")  # type: ignore[type-var]
        for name, one in GRAPHS[graph].items()
    }
    trial = Trial(graph_of(aggregates, window), workers=2)
    for before in range(graph):
        feed(trial, before * ROWS, checkpoint=False)
    rows = len(trial.rows("out"))
    feed(trial, graph * ROWS, checkpoint=False)
    return emitted(trial, rows)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("how", ["blocks", "snapshots", "rescaled"])
def test_a_result_that_comes_is_of_the_rows_after_it_and_the_others_are_of_all(window: str, how: str) -> None:
    trial = Trial(graph_of(GRAPHS[0], window), workers=2)
    for number, aggregates in enumerate(GRAPHS):
        if number:
            trial.go_on_with(graph_of(aggregates, window), **OPTIONS[number])
            trial.go_on_with(graph_of(aggregates, window), **OPTIONS[number])
        if how == "rescaled" and number:
            trial.rescale(1 + 2 * (number % 2))
        before = len(trial.rows("out"))
        feed(trial, number * ROWS, checkpoint=True, snapshot=how == "snapshots")
        found = emitted(trial, before)
        assert found, "results are compared"
        assert found == expected(number, window)
        trial.crash()


@pytest.mark.parametrize("window", WINDOWS)
def test_the_checkpoint_after_a_change_has_all_keys_with_the_present_columns(window: str) -> None:
    """So what folds blocks needs no neutral values, and a later change finds no column of a former one."""
    trial = Trial(graph_of(GRAPHS[0], window))
    feed(trial, 0, checkpoint=True)
    trial.go_on_with(graph_of(GRAPHS[1], window), **OPTIONS[1])
    before = len(trial._blocks[0])
    trial.step({}, checkpoint=True)
    former, present = (
        [decode_block(data) for operator, data in part if operator == "agg"]
        for part in (trial._blocks[0][:before], trial._blocks[0][before:])
    )
    (again,) = present
    assert set(again.column("key").to_pylist()) == {*"abc"}
    assert "back" not in again.schema.names
    folded = newest_rows([*former, again])
    assert folded.equals(newest_rows([again])), "all rows are of the last block"
    assert folded.column("rows").to_pylist() == [0] * folded.num_rows
    assert set(stored_names(folded.schema)) > {f"{born_with('trial', 1)}rows", "sum"}
    trial.crash()
    before = len(trial._blocks[0])
    trial.step({}, checkpoint=True)
    assert all(operator != "agg" for operator, _ in trial._blocks[0][before:]), "only once"


def test_rows_that_a_person_writes_have_the_uids_of_results() -> None:
    plan, given = graph_of(GRAPHS[1]).plan(), as_table("agg", [])
    (edited,) = edited_tables(plan, "region", {"agg": given}, {"agg:rows": "_1f-rows"}).values()
    assert {"_1f-rows", "sum"} < stored_names(edited.schema).keys()
    assert "rows" in edited.schema.names


def test_a_result_may_have_another_name() -> None:
    trial = Trial(graph_of({"n": Count(), "sum": Sum("n"), "other": Sum("x")}), workers=2)
    feed(trial, 0, checkpoint=True)
    renamed = {"agg:sum": "agg:total"}
    # The name that it had is that of another result now.
    after = {"total": Sum("n"), "n": Count(), "other": Sum("x")}
    trial.go_on_with(graph_of(after), renamed=renamed)
    feed(trial, ROWS, checkpoint=True)
    after["sum"] = Sum("x")
    trial.go_on_with(graph_of(after), renamed=renamed, new_aggregates=["agg:sum"])
    feed(trial, 2 * ROWS, checkpoint=True)
    last = {one["key"]: one for one in map(json.loads, (one["text"] for one in trial.rows("out")))}
    of_a = [row(number) for number in range(0, 3 * ROWS, 3)]
    assert last["a"]["total"] == sum(one["n"] for one in of_a)
    assert last["a"]["sum"] == sum(one["x"] for one in of_a if one["n"] >= 2 * ROWS - 50)


def test_a_list_of_aggregates_that_changes_is_refused_unless_each_is_named() -> None:
    trial = Trial(graph_of(GRAPHS[0]))
    feed(trial, 0, checkpoint=True)
    for option in OPTIONS[1]:
        given = {name: names for name, names in OPTIONS[1].items() if name != option}
        with pytest.raises(GraphChangeRefusedError, match=f"{option}="):
            trial.go_on_with(graph_of(GRAPHS[1]), **given)
    trial.go_on_with(graph_of(GRAPHS[0]))

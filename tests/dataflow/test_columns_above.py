"""A map above an operator adds a column: whether its state can continue is what its stored tables say.

`operator_notes.json` has the notes of these operators. A checkpoint stores them, and another text of one is
another graph: regions of former programs would be refused. So a change of the file is a change of the format.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pytest

from checkpoint.core.graph_change import OperatorNote, compare
from dataflow import Count, CountWindow, Graph, InputSource, KeyedStream, LogSink, Stream, Sum, Tumbling
from dataflow.graph.plan import GraphPlan, operator_notes
from dataflow.operators.base import OperatorContext
from tests.dataflow.every_kind import GRAPHS, graph_of

COLUMNS: Final = "at timestamp, item string, price bigint"
MINUTE: Final = timedelta(minutes=1)
BY_MINUTE: Final = Tumbling("at", MINUTE)
STORE_ID: Final = bytes(16)
NOTES: Final = Path(__file__).with_name("operator_notes.json")

KEYED: Final[dict[str, Callable[[KeyedStream], Stream]]] = {
    "count": lambda by: by.count("op"),
    "aggregate": lambda by: by.aggregate("op", n=Count(), s=Sum("price")),
    "dedup": lambda by: by.dedup("op"),
    "window": lambda by: by.aggregate("op", BY_MINUTE, n=Count()),
    "window dedup": lambda by: by.dedup("op", BY_MINUTE),
    "count window": lambda by: by.aggregate("op", CountWindow("at", 3), n=Count()),
    "top k": lambda by: by.top_k("op", BY_MINUTE, 2, by="price"),
    "map state": lambda by: by.map_state(
        "op", lambda row, state: [], time="at", state="n bigint", schema="item string"
    ),
}

WITH_COLUMNS_OF_THE_INPUT: Final = {
    "count": set(),
    "aggregate": set(),
    "dedup": set(),
    "window": set(),
    "window dedup": set(),
    "count window": {"~rows"},
    "top k": {""},
    "map state": {"~rows"},
    "join": {"~left"},
    "sort": {""},
}
"""Kind of operator -> its tables that store rows of its input, so that another column is another table."""


def timed(graph: Graph, name: str, above: str = "") -> Stream:
    rows = graph.source(name, InputSource(name, COLUMNS))
    if above == "column":
        rows = rows.map("more", lambda row: {**row, "x": 1}, schema=f"{COLUMNS}, x bigint")
    elif above == "filter":
        rows = rows.filter("cheap", lambda row: row["price"] < 10)
    return rows.event_time(f"timed_{name}", "at", lateness=MINUTE)


@cache
def plan(kind: str, above: str = "") -> GraphPlan:
    """Return a graph with one operator of the kind. above: "column", which a map adds, or "filter"."""
    graph = Graph("g")
    rows = timed(graph, "orders", above)
    if kind == "sort":
        made = rows.sort("op", "at")
    elif kind == "join":
        prices = timed(graph, "prices").key_by("by_price", "item")
        made = rows.key_by("by", "item").join("op", prices, times=("at", "at"), within=MINUTE)
    else:
        made = KEYED[kind](rows.key_by("by", "item"))
    # So the columns of the sink are the same in any case.
    made.map("narrow", lambda row: {"item": ""}, schema="item string").sink("out", LogSink())
    return graph.plan()


def stored(plan: GraphPlan, operator: str) -> dict[str, pa.Schema]:
    """Return table -> columns of its blocks, of a real operator."""
    spec = plan.specs[operator]
    context = OperatorContext(
        "region",
        operator,
        0,
        1,
        STORE_ID,
        plan.inputs_of(operator),
        plan.schemas[operator],
        owns_key=lambda key: True,
    )
    return {name: table.snapshot().schema for name, table in spec.open(context).tables().items()}


@pytest.mark.parametrize("kind", WITH_COLUMNS_OF_THE_INPUT)
def test_a_state_continues_below_another_column_unless_it_stores_rows(kind: str) -> None:
    before, after = plan(kind), plan(kind, "column")
    former, present = stored(before, "op"), stored(after, "op")
    assert former.keys() == present.keys()
    changed = {table for table in former if former[table] != present[table]}
    assert changed == WITH_COLUMNS_OF_THE_INPUT[kind]
    change = compare(before.operators, after.operators)
    assert {name for name, _ in change.refused} == ({"op"} if changed else set())
    assert "timed_orders" in change.kept, "a clock stores no rows"
    assert stored(before, "timed_orders") == stored(after, "timed_orders")


@pytest.mark.parametrize("kind", WITH_COLUMNS_OF_THE_INPUT)
def test_every_state_continues_below_a_filter_that_comes_or_goes(kind: str) -> None:
    before, after = plan(kind), plan(kind, "filter")
    for one, two in ((before, after), (after, before)):
        change = compare(one.operators, two.operators)
        assert change.refused == ()
        assert {"op", "timed_orders", "orders", "out"} <= set(change.kept)
    assert stored(before, "op") == stored(after, "op")


@pytest.mark.parametrize("spec", [one for one in GRAPHS if "Source" not in one])
def test_what_was_made_of_rows_does_not_continue_with_changes(spec: str, tmp_path: Path) -> None:
    """Changes replace rows: what an operator keeps of rows is too little for them, or means something else.
    Also of kinds that take no changes today.
    """
    whole = graph_of(spec, tmp_path).plan()

    def with_changes(updates: set[str]) -> dict[str, OperatorNote]:
        return operator_notes(whole.plan, whole.specs, whole.schemas, updates)

    inputs = whole.operators["made"].inputs
    for above in () if whole.operators["made"].is_stateless else inputs:
        rows, changes = with_changes(set()), with_changes({above})
        for change in (compare(rows, changes), compare(changes, rows)):
            assert "made" in [name for name, _ in change.refused]
        if len(inputs) > 1:  # which one is it?
            others = with_changes({*inputs} - {above})
            assert "made" in [name for name, _ in compare(changes, others).refused]


def test_the_notes_of_operators_are_those_of_former_programs(pytestconfig: pytest.Config) -> None:
    made = {
        kind: {
            name: msgspec.to_builtins(note)
            for name, note in plan(kind).operators.items()
            if not note.is_stateless
        }
        for kind in WITH_COLUMNS_OF_THE_INPUT
    }
    if pytestconfig.getoption("--rewrite"):
        NOTES.write_text(f"{json.dumps(made, indent=1, sort_keys=True)}\n", encoding="utf-8")
    kept = msgspec.json.decode(NOTES.read_bytes(), type=dict[str, dict[str, OperatorNote]])
    found = msgspec.convert(made, dict[str, dict[str, OperatorNote]])
    assert found == kept, "other notes: regions of former programs would be refused"

"""What users call has an example in its docstring, and the example runs: it makes a graph that passes all
checks and takes rows.

The examples know a graph of a shop (`shop`): `graph`, its streams `lines`, `orders` and `prices`, the orders
by key as `by_item`, and all that `dataflow` exports.
"""

import ast
import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dataflow
from dataflow import CallSink, Graph, InputSource
from dataflow.core.plan import KIND_RULES
from dataflow.operators.aggregates import Aggregate
from dataflow.operators.base import OperatorSpec
from dataflow.testing import Trial


def exported(*kinds: type) -> dict[str, type]:
    """The classes of these kinds that users make instances of."""
    there = {name: getattr(dataflow, name) for name in dataflow.__all__}  # imported on first use
    found = {name: kind for name, kind in there.items() if inspect.isclass(kind)}
    return {
        name: one for name, one in found.items() if issubclass(one, kinds) and not inspect.isabstract(one)
    }


MADE = exported(OperatorSpec) | {
    name: getattr(dataflow, name) for name in ("CountWindow", "Sliding", "Tumbling")
}
CALLED: dict[str, Any] = {
    f"{kind.__name__}.{name}": method
    for kind in (Graph, dataflow.Stream, dataflow.KeyedStream)
    for name, method in inspect.getmembers(kind, callable)
    if not name.startswith("_")
}
SHOWN: dict[str, Any] = {
    **CALLED,
    **exported(Aggregate),
    "Graph": Graph,
    "UserOperator": dataflow.UserOperator,
    "consistent": dataflow.consistent,
}


def example_of(shown: Any) -> str:
    """The lines of its docstring that are indented."""
    lines = inspect.cleandoc(shown.__doc__ or "").splitlines()
    return inspect.cleandoc("\n".join(line for line in lines if line.startswith("    ") or not line))


@pytest.mark.parametrize("name", MADE)
def test_a_source_sink_or_window_shows_how_it_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    example = example_of(MADE[name])
    assert example.startswith(f"{name}("), f"{name} has no example"
    for statement in ast.parse(example).body:
        made = eval(ast.unparse(statement), {**vars(dataflow), "timedelta": timedelta})
        assert isinstance(made, MADE[name])


def shop() -> dict[str, Any]:
    """The names that examples know."""
    graph = Graph("shop")
    lines = graph.source("lines", InputSource("lines", "line string"))
    timed = {}
    for name in ("orders", "prices"):
        rows = graph.source(f"{name}_read", InputSource(name, "at timestamp, item string, price double"))
        timed[name] = rows.event_time(name, "at", lateness=timedelta(minutes=1))
    by_item = timed["orders"].key_by("by_item", "item")
    modules = {"pa": pa, "pc": pc, "pd": pd, "timedelta": timedelta, "CallSink": CallSink}
    return {
        **vars(dataflow),
        **modules,
        **timed,
        "graph": graph,
        "before": graph,
        "lines": lines,
        "by_item": by_item,
    }


def finish(graph: Graph) -> None:
    """A sink for each output that goes nowhere."""
    recorded, checked = graph.nodes()
    used = {index for node in checked for index in node.inputs}
    for index, node in enumerate(checked):
        if KIND_RULES[node.kind].has_output and index not in used:
            graph.stream(recorded[index].name).sink(f"{recorded[index].name}_shown", CallSink(print))


def run(graph: Graph) -> None:
    """Some rows for each source that wants such rows, with a crash between them."""
    nine = datetime(2026, 5, 1, 9, tzinfo=UTC)
    plan = graph.plan()
    rows: dict[str, list[dict[str, Any]]] = {
        "line": [{"line": "some words"}, {"line": ""}],
        "at, item, price": [
            {"at": nine + timedelta(minutes=n), "item": item, "price": n - 1.0}
            for n in range(4)
            for item in ("tea", "ale")
        ],
    }
    given = {
        node.name: rows[columns]
        for node in plan.plan.nodes
        if not node.inputs
        and (schema := plan.schemas[node.name]) is not None
        and (columns := ", ".join(schema.names)) in rows
    }
    trial = Trial(graph)
    trial.step(given, checkpoint=True)
    trial.crash()
    trial.step(given)
    trial.step({}, end=True)


@pytest.mark.parametrize("name", SHOWN)
def test_what_users_call_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_text("some words\n")
    monkeypatch.chdir(tmp_path)
    example = example_of(SHOWN[name])
    called = f".{name.rpartition('.')[2]}(" if name in CALLED else name
    assert called in example, f"{name} has no example that shows it"
    names = shop()
    if name in ("Graph.compare", "Graph.explain", "Graph.diagram", "Graph.plan"):
        finish(names["graph"])
    exec(compile(example, f"the example of {name}", "exec"), names)
    finish(names["graph"])
    run(names["graph"])

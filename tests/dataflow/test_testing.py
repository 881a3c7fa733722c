"""`dataflow.testing`: what a user's test sees."""

from pathlib import Path

import pytest

from dataflow import CallSink, Graph, GraphError, InputSource
from dataflow.errors import OperatorError, SchemaError
from dataflow.testing import Trial


def sold() -> Graph:
    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.key_by("by_item", "item").count("counts").sink("sold", CallSink(print))
    return graph


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_crash_takes_state_and_output_back_to_the_last_cut(workers: int, snapshot: bool) -> None:
    trial = Trial(sold(), workers=workers)
    tea = [{"item": "tea", "price": 3}]
    trial.step({"orders": tea}, cut=True, snapshot=snapshot)
    trial.step({"orders": [tea, tea]})
    assert trial.rows("sold")[-1] == {"item": "tea", "count": 3}
    assert trial.crash() == 1
    assert trial.rows("sold") == [{"item": "tea", "count": 1}]
    trial.step({"orders": tea})
    assert trial.rows("sold")[-1] == {"item": "tea", "count": 2}


def test_without_a_cut_a_crash_takes_all_back() -> None:
    trial = Trial(sold())
    trial.step({"orders": [{"item": "tea", "price": 3}]})
    assert trial.crash() == 0
    assert trial.rows("sold") == []


def test_rows_may_be_tables_and_are_checked_against_the_source() -> None:
    trial = Trial(sold())
    trial.step({"orders": [{"item": "tea", "price": 3}]})
    with pytest.raises(SchemaError, match=r"is no source of this graph; it has 'orders'"):
        trial.step({"order": []})
    with pytest.raises(SchemaError, match="the source gives"):
        trial.step({"orders": trial.table("sold")})


def test_a_fault_of_a_function_says_which_row() -> None:
    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.map("halves", lambda row: row["price"] // 0, schema="n bigint").sink("out", CallSink(print))
    trial = Trial(graph)
    with pytest.raises(OperatorError, match="row 0 of those given: ZeroDivisionError"):
        trial.step({"orders": [{"item": "tea", "price": 3}]})


def test_a_graph_that_cannot_run_is_refused_here_too() -> None:
    with pytest.raises(GraphError):
        Trial(Graph("nothing"))


def test_the_example_of_the_manual_runs() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    text = manual.partition("<!-- example: trial -->\n```python\n")[2].partition("```")[0]
    exec(compile(text, "docs/testing.md", "exec"), {"__name__": "example"})

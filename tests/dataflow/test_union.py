"""union (replication-transparency IV-D): every row of every input, once, whatever the order."""

from hypothesis import given
from hypothesis import strategies as st

from dataflow import CallSink, Graph, InputSource
from dataflow.testing import Trial
from tests.dataflow.trials import arrangements, multiset, play_with_trouble

_rows = st.lists(
    st.builds(lambda at, item: {"at": at, "item": item}, st.integers(0, 3), st.text("ab", max_size=2)),
    max_size=12,
)


def both() -> Graph:
    graph = Graph("both")
    first = graph.source("first", InputSource("first", "at bigint, item string"))
    second = graph.source("second", InputSource("second", "at bigint, item string"))
    first.union("both", second).sink("out", CallSink(print))
    return graph


@given(first=_rows, second=_rows, data=st.data())
def test_a_union_gives_every_row_once_in_any_order(
    first: list[dict], second: list[dict], data: st.DataObject
) -> None:
    steps = data.draw(arrangements({"first": first, "second": second}))
    trial = play_with_trouble(both(), steps, data)
    assert multiset(trial.rows("out")) == multiset(first + second)


def test_within_a_step_the_inputs_come_in_the_order_of_their_names_in_the_graph() -> None:
    trial = Trial(both())
    trial.step({"second": [{"at": 1, "item": "b"}], "first": [{"at": 1, "item": "a"}]})
    trial.step({"second": [{"at": 2, "item": "b"}]})
    assert [row["item"] for row in trial.rows("out")] == ["a", "b", "b"]

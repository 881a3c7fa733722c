"""apply with several inputs: whatever the order of arrival, and told by input and column when it is wrong."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource, RuntimeContext, SchemaError, UserOperator
from dataflow.errors import OperatorError
from dataflow.testing import CRASH, Trial, assert_crash_safe
from tests.dataflow.trials import Row, Step, multiset, play_with_trouble, second, timely, together

ORDERS, PRICES = "at timestamp, item string, n bigint", "at timestamp, what string, price double"


class Priced(UserOperator):
    """To each order the last price of its item up to its time."""

    needs = {"orders": ORDERS, "prices": PRICES}  # noqa: RUF012 - as users write it
    schema = "at timestamp, item string, n bigint, price double"
    state = "at timestamp, item string, n bigint, price double"
    side_outputs = {"told": "input string, at timestamp"}  # noqa: RUF012

    def __init__(self) -> None:
        self.orders: list[Row] = []
        self.prices: list[Row] = []

    def process_of(self, name: str, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        if name == "orders":
            self.orders += rows
        else:
            self.prices += [{"at": one["at"], "item": one["what"], "price": one["price"]} for one in rows]

    def on_punctuation_of(self, name: str, ts: datetime) -> None:
        self.emit("told", (name, ts))

    def on_punctuation(self, ts: datetime) -> Iterator[Row]:
        self.emit("told", ("all", ts))
        ready = [one for one in self.orders if one["at"] <= ts]
        self.orders = [one for one in self.orders if one["at"] > ts]
        for order in ready:
            yield {**order, "price": price_of(order, self.prices)}
        newest: dict[str, Row] = {}
        for one in sorted((one for one in self.prices if one["at"] <= ts), key=_newness):
            newest[one["item"]] = one
        self.prices = [*newest.values(), *(one for one in self.prices if one["at"] > ts)]

    def checkpoint(self) -> list[Row]:
        orders = [{**one, "price": None} for one in self.orders]
        return orders + [{**one, "n": None} for one in self.prices]

    def reset(self, state: pa.RecordBatch) -> None:
        for one in state.to_pylist():
            (self.orders if one["price"] is None else self.prices).append(one)


def _newness(price: Row) -> tuple[datetime, float]:
    return price["at"], price["price"]


def price_of(order: Row, prices: list[Row]) -> float | None:
    known = [one for one in prices if one["item"] == order["item"] and one["at"] <= order["at"]]
    return max(known, key=_newness)["price"] if known else None


def pricing(orders: timedelta, prices: timedelta) -> Graph:
    graph = Graph("pricing")
    ordered = graph.source("orders", InputSource("orders", ORDERS))
    priced = graph.source("prices", InputSource("prices", PRICES))
    by_item = ordered.event_time("orders_timed", "at", lateness=orders).key_by("by_item", "item")
    by_what = priced.event_time("prices_timed", "at", lateness=prices).key_by("by_what", "what")
    made = graph.apply("priced", Priced(), prices=by_what, orders=by_item)
    made.side_output("told", "told").sink("told_out", CallSink(print))
    in_order = made.sort("in_order", "at")
    in_order.sink("out", CallSink(print))
    in_order.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def order(number: float, item: str = "tea", n: int = 1) -> Row:
    return {"at": second(number), "item": item, "n": n}


def price(number: float, what: str = "tea", price: float = 2.5) -> Row:
    return {"at": second(number), "what": what, "price": price}


_times, _items = st.integers(0, 40), st.sampled_from(["tea", "ale"])
_orders = st.lists(st.builds(order, _times, _items, st.integers(0, 3)), max_size=10)
_prices = st.lists(st.builds(price, _times, _items, st.sampled_from([1.0, 2.0, 3.0])), max_size=10)


@settings(max_examples=40)
@given(orders=_orders, prices=_prices, data=st.data())
def test_the_rows_are_the_same_in_any_order_of_arrival_the_checkpoints_and_the_crashes(
    orders: list[Row], prices: list[Row], data: st.DataObject
) -> None:
    order_steps, late_order = data.draw(timely("orders", orders, "at"))
    price_steps, late_price = data.draw(timely("prices", prices, "at"))
    swapped: list[Step] = [dict(reversed(step.items())) for step in together(order_steps, price_steps)]
    trial = play_with_trouble(pricing(late_order, late_price), swapped, data, end=True)
    known = [{**one, "item": one["what"]} for one in prices]
    expected = [{**one, "price": price_of(one, known)} for one in orders]
    assert multiset(trial.rows("out")) == multiset(expected)
    assert trial.rows("late_out") == [], "it gave rows that were late below: more was promised than it knew"


def test_a_crash_at_any_row_of_any_input_changes_nothing() -> None:
    graph = pricing(timedelta(seconds=3), timedelta(seconds=3))
    orders = [order(1), order(4, "ale"), order(3), order(9)]
    prices = [price(0), price(5, "ale"), price(2, price=3.0)]
    assert_crash_safe(graph, {"orders": orders, "prices": prices})
    trial = assert_crash_safe(graph, {"orders": [*orders[:2], CRASH, *orders[2:]], "prices": prices})
    assert sorted((one["at"], one["price"]) for one in trial.rows("out")) == [
        (second(1), 2.5),
        (second(3), 3.0),
        (second(4), None),
        (second(9), 3.0),
    ]


def test_each_input_has_a_time_of_its_own_and_the_smallest_is_that_of_all() -> None:
    trial = Trial(pricing(timedelta(0), timedelta(0)))
    micro = timedelta(microseconds=1)

    def told() -> list[tuple[str, datetime]]:
        return [(one["input"], one["at"] + micro) for one in trial.rows("told_out")]

    trial.step({"orders": [order(5), order(9)]})
    assert told() == [("orders", second(9))], "an input on which nothing came holds the others up"
    assert trial.rows("out") == []
    trial.step({"prices": [price(4)]}, checkpoint=True)
    assert told()[1:] == [("prices", second(4)), ("all", second(4))]
    trial.crash()
    trial.step({})
    assert len(told()) == 3, "what was reported before the checkpoint is not reported again"
    trial.step({"orders": [order(20)], "prices": [price(12), price(9.5, price=7.0)]})
    assert told()[3:] == [("orders", second(20)), ("prices", second(12)), ("all", second(12))]
    assert trial.rows("out") == [{**order(5), "price": 2.5}, {**order(9), "price": 2.5}]
    assert trial.rows("late_out") == []


class Says(UserOperator):
    """Gives what came, with the input: in this order."""

    needs = {"left": "n bigint", "right": "n bigint"}  # noqa: RUF012
    schema = "input string, n bigint"

    def open(self, place: RuntimeContext) -> None:
        assert list(place.inputs) == ["left", "right"]
        assert place.columns == place.inputs["left"]

    def process_of(self, name: str, batch: pa.RecordBatch) -> list[tuple[str, int]]:
        return [(name, n) for n in batch.column("n").to_pylist()]


def two(graph: Graph, columns: str = "n bigint") -> list[Any]:
    return [graph.source(name, InputSource(name, columns)) for name in ("a", "b")]


def test_of_one_step_the_inputs_come_one_after_the_other_however_they_were_read() -> None:
    graph = Graph("said")
    a, b = two(graph)
    graph.apply("says", Says(), left=b, right=a).sink("out", CallSink(print))
    batches: list[Mapping[str, Any]] = [
        {"a": [[{"n": 1}], [{"n": 2}]], "b": [[{"n": 3}], [{"n": 4}]]},
        {"b": [[{"n": 3}, {"n": 4}]], "a": [[{"n": 1}, {"n": 2}]]},
    ]
    for step in batches:
        trial = Trial(graph)
        trial.step(step)
        assert [(one["input"], one["n"]) for one in trial.rows("out")] == [
            ("left", 3),
            ("left", 4),
            ("right", 1),
            ("right", 2),
        ]


def test_a_stream_may_be_several_inputs_and_process_takes_what_is_not_told_apart() -> None:
    class Same(UserOperator):
        needs = {"left": "", "right": "n bigint"}  # noqa: RUF012
        schema = "n bigint"

        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

    graph = Graph("twice")
    a, _ = two(graph)
    graph.stream("b").sink("b_out", CallSink(print))
    graph.apply("same", Same(), left=a, right=a).sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"a": [{"n": 1}, {"n": 2}]})
    assert [one["n"] for one in trial.rows("out")] == [1, 2, 1, 2]


def test_what_process_raises_names_the_input() -> None:
    class Fails(Says):
        def process_of(self, name: str, batch: pa.RecordBatch) -> list[Any]:
            return [1 // (name == "left")]

    graph = Graph("fails")
    a, b = two(graph)
    graph.apply("fails", Fails(), left=a, right=b).sink("out", CallSink(print))
    trial = Trial(graph)
    with pytest.raises(OperatorError, match="'fails' failed at the end of step 1: process of input 'right'"):
        trial.step({"b": [{"n": 1}]})


# --- errors are raised before anything runs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "given", "words"),
    [
        (Says(), ["left", "rihgt"], r"Says has no input 'rihgt' \(did you mean 'right'\?\), it has 'left', "),
        (Says(), ["left"], r"Says also needs input 'right'; write graph\.apply\('name', Says\(\), left="),
        (Says(), ["left", "right", "more"], "Says has no input 'more'"),
        (type("One", (Says,), {"needs": "n bigint"})(), ["left"], r"does not name its input; write stream\."),
        (type("None_", (Says,), {"needs": {}})(), [], "must name its inputs in needs"),
        (type("Odd", (Says,), {"needs": {"left": "", 2: ""}})(), ["left"], r"\('left', 2\) are not names"),
    ],
)
def test_inputs_are_given_by_the_names_that_they_have(
    operator: UserOperator, given: list[str], words: str
) -> None:
    graph = Graph("g")
    a, _ = two(graph)
    with pytest.raises(SchemaError, match=words):
        graph.apply("own", operator, **dict.fromkeys(given, a))


def test_one_stream_is_not_two() -> None:
    a, _ = two(Graph("g"))
    with pytest.raises(SchemaError, match="Says has inputs 'left', 'right', got one stream; write graph"):
        a.apply("own", Says())


def test_what_is_no_stream_is_reported() -> None:
    graph = Graph("g")
    a, _ = two(graph)
    with pytest.raises(GraphError, match="apply 'own' takes streams, not 'b'"):
        graph.apply("own", Says(), left=a, right="b")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            {"needs": {"left": "n bigint", "right": "nn bigint"}},
            r"input 'right': it needs column 'nn' \(did you mean 'n'\?\), but its input has n",
        ),
        ({"needs": {"left": "n string", "right": ""}}, "input 'left': it needs column 'n' as string, but"),
        ({"needs": {"left": "n number", "right": ""}}, "input 'left': needs: schema 'n number'"),
        ({"schema": None}, "Own has several inputs and declares no output columns"),
        ({"on_punctuation_of": lambda self, name, ts: None}, "needs event time, and gets none"),
    ],
)
def test_what_does_not_fit_is_told_by_operator_input_and_column(declared: dict[str, Any], words: str) -> None:
    graph = Graph("g")
    a, b = two(graph)
    made = graph.apply("own", type("Own", (Says,), declared)(), left=a, right=b)
    made.sink("out", CallSink(print))
    with pytest.raises(GraphError, match=f"apply 'own':? .*{words}"):
        graph.plan()


def test_inputs_are_keyed_alike_or_not_at_all() -> None:
    graph = Graph("g")
    a, b = two(graph)
    a.key_by("by_n", "n")
    graph.apply("own", Says(), left=graph.stream("by_n"), right=b).sink("out", CallSink(print))
    with pytest.raises(GraphError, match=r"apply 'own' has keyed inputs \('by_n'\) and .*\('b'\), so"):
        graph.plan()
    graph = Graph("g")
    a, b = two(graph, "n bigint, s string")
    made = graph.apply("own", Says(), left=a.key_by("by_n", "n"), right=b.key_by("by_s", "s"))
    made.sink("out", CallSink(print))
    with pytest.raises(GraphError, match=r"apply 'own': .*of the same types, not \(bigint\) and \(string"):
        graph.plan()

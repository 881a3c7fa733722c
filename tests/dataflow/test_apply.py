"""apply: operators that users write, the same whatever happens, and told by name when they are wrong."""

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    RuntimeContext,
    SchemaError,
    UserOperator,
)
from dataflow.errors import OperatorError
from dataflow.operators.apply import _changed_rows
from dataflow.testing import CRASH, Trial, assert_crash_safe
from tests.dataflow.trials import (
    Row,
    Step,
    arrangements,
    multiset,
    play_with_trouble,
    row,
    second,
    timely,
    together,
)
from tests.dataflow.user_operators import Flushes, Seen, graph_of


@settings(max_examples=40)
@given(words=st.lists(st.sampled_from(["a", "b", "c", "xa", "xb"]), max_size=20), data=st.data())
def test_rows_and_side_outputs_are_those_of_a_run_without_trouble(
    words: list[str], data: st.DataObject
) -> None:
    steps = data.draw(arrangements({"rows": [{"word": word} for word in words]}))
    trial = play_with_trouble(graph_of(Seen(), side_outputs=True), steps, data)
    counts = Counter(word for word in words if word[0] != "x")
    expected = [{"word": word, "n": n + 1} for word, count in counts.items() for n in range(count)]
    assert multiset(trial.rows("out")) == multiset(expected)
    crossed = [{"word": word} for word in words if word[0] == "x"]
    assert multiset(trial.rows("crossed_out")) == multiset(crossed)
    assert multiset(trial.rows("batches_out")) == multiset([{"word": word} for word in words])


class Holds(UserOperator):
    """Holds rows until event time has passed them; all kinds of state columns."""

    schema = "key string, at timestamp"
    state = "at timestamp, key string, more array<double>, value double"

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def process(self, batch: pa.RecordBatch) -> None:
        for one in batch.to_pylist():
            self.rows.append({**one, "more": [one["value"]]})

    def on_punctuation(self, ts: datetime) -> list[Any]:
        passed = sorted((one for one in self.rows if one["at"] <= ts), key=lambda one: one["at"])
        self.rows = [one for one in self.rows if one["at"] > ts]
        return [(one["key"], one["at"]) for one in passed]

    def checkpoint(self) -> pa.Table:
        return pa.Table.from_pylist(
            self.rows,
            pa.schema(
                [
                    ("at", pa.timestamp("us", "UTC")),
                    ("key", pa.string()),
                    ("more", pa.list_(pa.float64())),
                    ("value", pa.float64()),
                ]
            ),
        )

    def reset(self, state: pa.RecordBatch) -> None:
        self.rows = state.to_pylist()


def timed(operator: UserOperator, lateness: timedelta) -> Graph:
    graph = Graph("timed")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, value double"))
    held = rows.event_time("timed", "at", lateness=lateness).apply("holds", operator)
    held.sort("sorted", "at").sink("out", CallSink(print))
    return graph


def valued(number: int, key: str) -> Row:
    return {"at": second(number), "key": key, "value": 1.0}


@settings(max_examples=40)
@given(
    rows=st.lists(st.builds(valued, st.integers(0, 60), st.sampled_from("ab")), max_size=20),
    data=st.data(),
)
def test_punctuations_come_once_and_what_waits_for_them_is_state(
    rows: list[Row], data: st.DataObject
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    trial = play_with_trouble(timed(Holds(), lateness), steps, data, end=True)
    assert multiset(trial.rows("out")) == multiset([{"key": one["key"], "at": one["at"]} for one in rows])


def test_an_operator_is_notified_in_the_order_of_the_paper() -> None:
    calls: list[str] = []

    class Tells(UserOperator):
        state = "n bigint"

        def __init__(self, name: str) -> None:
            self.name = name

        def __deepcopy__(self, memo: Any) -> "Tells":
            return Tells(self.name)

        def open(self, place: RuntimeContext) -> None:
            assert (place.operator, place.workers) == (self.name, 1)
            calls.append(f"open {self.name}")

        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            calls.append(f"process {self.name}")
            return batch

        def on_punctuation(self, ts: datetime) -> None:
            calls.append(f"punctuation {self.name} {(ts - second(0)).total_seconds():.6f}")

        def drain(self) -> None:
            calls.append(f"drain {self.name}")

        def checkpoint(self) -> list[int]:
            calls.append(f"checkpoint {self.name}")
            return [7]

        def reset(self, state: pa.RecordBatch) -> None:
            calls.append(f"reset {self.name} {state.to_pylist()}")

        def close(self) -> None:
            calls.append(f"close {self.name}")

    graph = Graph("told")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, x double"))
    one = rows.event_time("timed", "at", lateness=timedelta(0)).apply("upper", Tells("upper"))
    one.apply("lower", Tells("lower")).sink("out", CallSink(print))
    trial = Trial(graph)
    assert calls == ["open upper", "open lower"]
    trial.crash()  # before the first checkpoint: there is nothing to reset to
    assert calls[2:] == ["close upper", "close lower", "open upper", "open lower"]
    calls.clear()
    trial.step({"rows": [row(5)]}, checkpoint=True)
    assert calls == [
        "process upper",
        "process lower",
        "punctuation upper 4.999999",
        "drain upper",
        "punctuation lower 4.999999",
        "drain lower",
        "checkpoint upper",
        "checkpoint lower",
    ]
    calls.clear()
    trial.crash()
    assert calls == [
        "close upper",
        "close lower",
        "open upper",
        "reset upper [{'n': 7}]",
        "open lower",
        "reset lower [{'n': 7}]",
    ]
    calls.clear()
    trial.step({"rows": [row(5)]})  # event time does not move: nothing is said again
    assert calls == ["process upper", "process lower"]


def test_what_drain_gives_is_before_the_checkpoint_and_a_state_without_rows_is_one() -> None:
    trial = Trial(graph_of(Flushes()))
    trial.step({"rows": [{"word": "a"}]})
    assert trial.rows("out") == []
    trial.step({}, checkpoint=True)
    assert trial.rows("out") == [{"word": "a"}]
    trial.crash()  # to a state of no rows: not to that of a new copy, which has one
    trial.step({"rows": [{"word": "b"}, {"word": "c"}]})
    assert trial.rows("out") == [{"word": "a"}]
    trial.step({}, checkpoint=True, snapshot=True)
    assert trial.crash() == 4
    assert [one["word"] for one in trial.rows("out")] == ["a", "b", "c"]


def test_rows_of_a_drain_need_the_declaration() -> None:
    class Wrong(Flushes):
        deterministic = True

    trial = Trial(graph_of(Wrong()))
    with pytest.raises(OperatorError, match="'own' failed at the end of step 1: drain returned 1 rows"):
        trial.step({"rows": [{"word": "a"}]}, checkpoint=True)


def test_a_checkpoint_writes_what_changed() -> None:
    from dataflow.operators.apply import OwnState
    from dataflow.state.migration import StateHistory

    schema = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.int64()))])
    rows: list[tuple[Any, Any]] = []
    state = OwnState(
        StateHistory(schema),
        lambda _: pa.RecordBatch.from_pylist([dict(zip("ab", r, strict=True)) for r in rows], schema),
        lambda states, _: states[0],
    )
    changes = [
        ([(1.0, [1]), (0.0, None), (None, [])], [-1, 0, 1, 2]),
        ([(1.0, [1]), (-0.0, None), (None, [2])], [1, 2]),
        ([(1.0, [1])], [1, 2]),
        ([(float("nan"), [1]), (2.0, None)], [0, 1]),
        ([(float("nan"), [1]), (2.0, None)], []),
        ([], [0, 1]),
    ]
    blocks = []
    for made, changed in changes:
        rows[:] = made
        block = state.checkpoint()
        blocks.append(block)
        assert sorted(block.column("_row").to_pylist()) == changed
        again = OwnState(
            StateHistory(schema),
            lambda _: pa.RecordBatch.from_pylist([], schema),
            lambda states, _: states[0],
        )
        for one in blocks:
            again.restore(one)
        found = again.take_restored()
        assert found is not None
        assert repr(found.to_pylist()) == repr([dict(zip("ab", r, strict=True)) for r in made])


def test_a_row_of_state_has_changed_where_any_column_has_also_behind_lists() -> None:
    schema = pa.schema([("more", pa.list_(pa.int64())), ("value", pa.float64()), ("n", pa.int64())])

    def batch(*rows: tuple[list[int], float | None, int | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(schema.names, one, strict=True)) for one in rows], schema)

    before = batch(([1], 1.0, 1), ([1], 0.0, None), ([1], math.nan, 1), ([1], 1.0, 1), ([1], None, 1))
    after = batch(([1], 2.0, 1), ([1], -0.0, None), ([1], math.nan, 1), ([2], 1.0, 1), ([1], None, 2))
    assert _changed_rows(before, after) == [0, 1, 3, 4]


# --- what a user's operator declares ------------------------------------------------------------------------


class Plain(UserOperator):
    def process(self, batch: pa.RecordBatch) -> Any:
        return batch


def _of(**declared: Any) -> UserOperator:
    made: UserOperator = type("Own", (Plain,), declared)()
    return made


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (
            _of(needs="wort string"),
            r"it needs column 'wort' \(did you mean 'word'\?\), but its input has word",
        ),
        (_of(needs="word bigint"), "it needs column 'word' as bigint, but its input has it as string"),
        (_of(schema="n number"), "schema: schema 'n number': 'number' is no type"),
        (_of(state="n bigint"), r"Own declares a state but has no checkpoint\(\)"),
        (_of(checkpoint=lambda self: []), r"Own has checkpoint\(\) but declares no state"),
        (
            _of(state="_row bigint", checkpoint=lambda self: [], reset=lambda self, state: None),
            "state: column names of a state must differ",
        ),
        (_of(side_outputs={"bad": "_hash string"}), "side output 'bad': column '_hash' is reserved"),
        (_of(lock=threading.Lock(), __deepcopy__=lambda self, memo: 1 // 0), r"make such things in open\(\)"),
        (UserOperator(), r"UserOperator has no process\(self, batch\); define it"),
        (
            _of(on_punctuation=lambda self, ts: None),
            " needs event time, and gets none",
        ),
    ],
)
def test_declarations_that_do_not_fit_are_reported_before_anything_runs(
    operator: UserOperator, words: str
) -> None:
    with pytest.raises(GraphError, match=f"apply 'own':?.*{words}"):
        graph_of(operator).plan()


def test_a_class_is_no_operator() -> None:
    with pytest.raises(SchemaError, match=r"not the class Plain; write stream\.apply"):
        graph_of(Plain)  # type: ignore[arg-type]


def test_an_unknown_side_output_is_told_with_the_nearest() -> None:
    graph = Graph("g")
    made = graph.source("rows", InputSource("rows", "word string")).apply("own", Seen())
    made.sink("out", CallSink(print))
    made.side_output("other", "crosed").sink("other_out", CallSink(print))
    with pytest.raises(GraphError, match=r"no side output 'crosed' \(did you mean 'crossed'\?\); it has"):
        graph.plan()


def test_what_is_not_deterministic_may_not_be_published_by_step() -> None:
    graph = Graph("g")
    made = graph.source("rows", InputSource("rows", "word string")).apply("own", Flushes())
    made.sink("out", LogSink(publish="step"))
    with pytest.raises(GraphError, match="'own' above it is not deterministic"):
        graph.plan()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"process": lambda self, batch: [{"n": 1}]}, "process: a row has the columns 'n'"),
        ({"process": lambda self, batch: {"word": "a"}}, "process: .*wrap it in a list"),
        ({"process": lambda self, batch: batch.to_pandas()}, "process: it returned a DataFrame"),
        ({"process": lambda self, batch: [1 // 0]}, "process: ZeroDivisionError"),
        (
            {"process": lambda self, batch: self.emit("bda", "a")},
            r"no side output 'bda' \(did you mean 'bad'\?\)",
        ),
        (
            {"process": lambda self, batch: self.emit("bad", {"w": "a"})},
            "process: side output 'bad': a row has the columns 'w'; the schema says 'word'",
        ),
        ({"checkpoint": lambda self: [("a", 2)]}, "checkpoint: a row has 2 values"),
        ({"checkpoint": lambda self: [object()]}, "checkpoint: column 'n' is bigint, .* given object"),
        (
            {"checkpoint": lambda self: self.emit("bad", "a")},
            "emit may be called only in process, on_punctuation",
        ),
    ],
)
def test_what_a_method_gives_is_held_to_what_was_declared(methods: dict[str, Any], words: str) -> None:
    declared = {
        "state": "n bigint",
        "side_outputs": {"bad": "word string"},
        "checkpoint": lambda self: [],
        "reset": lambda self, state: None,
    }
    trial = Trial(graph_of(_of(**{**declared, **methods})))
    with pytest.raises(OperatorError, match=f"operator 'own' failed at .*{words}"):
        trial.step({"rows": [{"word": "a"}]}, checkpoint=True)


def test_an_open_that_fails_is_told_by_name() -> None:
    with pytest.raises(OperatorError, match="operator 'own' failed at its start: open: KeyError"):
        Trial(graph_of(_of(open=lambda self, place: {}["x"])))


# --- apply with several inputs ------------------------------------------------------------------------------


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

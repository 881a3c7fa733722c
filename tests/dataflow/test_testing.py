"""`dataflow.testing`: what a user's test sees."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from dataflow import CallSink, Count, Graph, GraphError, InputSource, Max, Tumbling, UserOperator
from dataflow.errors import OperatorError, SchemaError
from dataflow.testing import CRASH, Trial, assert_crash_safe
from tests.support.examples import run_example


def sold() -> Graph:
    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.key_by("by_item", "item").count("counts").sink("sold", CallSink(print))
    return graph


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_crash_takes_state_and_output_back_to_the_last_checkpoint(workers: int, snapshot: bool) -> None:
    trial = Trial(sold(), workers=workers)
    tea = [{"item": "tea", "price": 3}]
    trial.step({"orders": tea}, checkpoint=True, snapshot=snapshot)
    trial.step({"orders": [tea, tea]})
    assert trial.rows("sold")[-1] == {"item": "tea", "count": 3}
    assert trial.crash() == 1
    assert trial.rows("sold") == [{"item": "tea", "count": 1}]
    trial.step({"orders": tea})
    assert trial.rows("sold")[-1] == {"item": "tea", "count": 2}


def test_without_a_checkpoint_a_crash_takes_all_back() -> None:
    trial = Trial(sold())
    trial.step({"orders": [{"item": "tea", "price": 3}]})
    assert trial.crash() == 0
    assert trial.rows("sold") == []


def test_rows_may_be_tables_and_are_checked_against_the_source() -> None:
    trial = Trial(sold())
    trial.step({"orders": [{"item": "tea", "price": 3}]})
    with pytest.raises(SchemaError, match=r"is no source of this graph; it has 'orders'"):
        trial.step({"order": []})
    with pytest.raises(SchemaError, match="the source has columns"):
        trial.step({"orders": trial.table("sold")})


class Sizes(UserOperator):
    """Gives the number of rows of each batch that it is called with."""

    schema = "n bigint"

    def process(self, batch: pa.RecordBatch) -> Iterator[int]:
        yield batch.num_rows


@pytest.mark.parametrize("workers", [1, 3])
def test_no_function_and_no_operator_is_called_with_an_empty_batch(workers: int) -> None:
    sizes: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch.slice(0, 0)

    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.apply("sizes", Sizes()).sink("sizes_out", CallSink(print))
    noted = orders.flat_map("noted", note, takes="batch", schema="item string, price bigint")
    noted.flat_map("again", note, takes="batch", schema="item string, price bigint").sink(
        "out", CallSink(print)
    )
    trial = Trial(graph, workers=workers)
    trial.step({"orders": []})
    trial.step({"orders": [[], [{"item": "tea", "price": 3}], []]})
    assert sizes == [1]
    assert trial.rows("sizes_out") == [{"n": 1}]


def test_a_fault_of_a_function_names_the_row() -> None:
    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.map("halves", lambda row: row["price"] // 0, schema="n bigint").sink("out", CallSink(print))
    trial = Trial(graph)
    with pytest.raises(OperatorError, match="row 0 of those given: ZeroDivisionError"):
        trial.step({"orders": [{"item": "tea", "price": 3}]})


def test_a_graph_that_cannot_run_is_refused_here_too() -> None:
    with pytest.raises(GraphError):
        Trial(Graph("nothing"))


@pytest.mark.parametrize("name", ["trial", "crash"])
def test_the_example_of_the_manual_runs(name: str) -> None:
    run_example("docs/testing.md", name)


class Total(UserOperator):
    """The sum of all prices so far; `forgets`: with the bug that it is no state."""

    schema = "total bigint"
    state = "total bigint"

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets
        self.total = 0

    def process(self, batch: pa.RecordBatch) -> Iterator[int]:
        for price in batch.column("price").to_pylist():
            self.total += price
            yield self.total

    def checkpoint(self) -> list[int]:
        return [0 if self.forgets else self.total]

    def reset(self, state: pa.RecordBatch) -> None:
        self.total = state.column("total")[0].as_py()


def total(*, forgets: bool = False) -> Graph:
    graph = Graph("shop")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.key_by("by_item", "item").apply("total", Total(forgets=forgets)).sink("out", CallSink(print))
    orders.sink("all", CallSink(print))
    return graph


ORDERS = [{"item": "tea", "price": price} for price in range(1, 8)]


@pytest.mark.parametrize("mark", [None, 0, 3, 7])
def test_what_survives_a_crash_anywhere_passes(mark: int | None) -> None:
    marked = ORDERS if mark is None else [*ORDERS[:mark], CRASH, *ORDERS[mark:]]
    trial = assert_crash_safe(total(), {"orders": marked})
    assert trial.rows("out")[-1] == {"total": 28}
    assert trial.rows("all") == ORDERS


def test_what_a_crash_changes_is_told_with_crash_sink_and_rows() -> None:
    graph = total(forgets=True)
    assert_crash_safe(
        graph, {"orders": [*ORDERS[:3], CRASH, *ORDERS[3:]]}
    )  # before the first checkpoint nothing is lost
    words = (
        "with a crash before row 6 of source 'orders', sink 'out' got other rows than without;"
        " missing: {'total': 15}, {'total': 21}, {'total': 28}; too many: {'total': 11}, {'total': 18},"
        " {'total': 5}."
    )
    with pytest.raises(AssertionError, match=re.escape(words)):
        assert_crash_safe(graph, {"orders": [*ORDERS[:6], CRASH, ORDERS[6]]})
    with pytest.raises(AssertionError, match="with a crash before row 4 of source 'orders', sink 'out'"):
        assert_crash_safe(graph, {"orders": ORDERS})
    with pytest.raises(AssertionError, match="row 1 of source 'orders' and row 5 of source 'orders'"):
        assert_crash_safe(graph, {"orders": [ORDERS[0], CRASH, *ORDERS[1:5], CRASH, *ORDERS[5:]]})


def test_a_crash_comes_in_the_middle_of_a_step() -> None:
    seen: list[int] = []
    graph = Graph("seen")
    orders = graph.source("orders", InputSource("orders", "item string, price bigint"))
    orders.map("see", lambda row: seen.append(row["price"]) or row).sink("out", CallSink(print))
    assert_crash_safe(
        graph, {"orders": [*ORDERS[:5], CRASH, *ORDERS[5:]]}, rows_per_step=4, steps_per_checkpoint=1
    )
    assert seen == [*range(1, 8), *range(1, 6), *range(5, 8)]


def test_splits_are_read_in_several_orders_and_each_must_give_the_same() -> None:
    schema = "at timestamp, key string"
    rows = [{"at": datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC), "key": "k"} for second in range(0, 40, 4)]
    graph = Graph("timed")
    timed = graph.source("rows", InputSource("rows", schema)).event_time("timed", "at", lateness=timedelta(0))
    counts = timed.key_by("by_key", "key").aggregate("c", Tumbling("at", timedelta(seconds=10)), n=Count())
    counts.sink("out", CallSink(print))
    trial = assert_crash_safe(graph, {"rows": [*rows[:5], CRASH, *rows[5:]]}, splits=3)
    assert sum(row["n"] for row in trial.rows("out")) == len(rows)
    assert_crash_safe(graph, {"rows": rows[:4]}, splits=2)
    graph = Graph("untimed")
    keyed = graph.source("rows", InputSource("rows", "n bigint, key string")).key_by("by_key", "key")
    keyed.aggregate("most", n=Max("n")).sink("out", CallSink(print))
    numbers = [{"n": 7 * number % 10, "key": "k"} for number in range(9)]
    with pytest.raises(AssertionError, match="with the splits of each source read from the first"):
        assert_crash_safe(graph, {"rows": [*numbers, CRASH]}, splits=3)

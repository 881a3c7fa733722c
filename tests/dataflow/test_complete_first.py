"""Control tables with `complete_first`: every row finds the whole table, whatever is lost and read again."""

import random
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    Stream,
    consistent,
)
from dataflow.limits import WorkerLimits
from dataflow.testing import Trial, assert_crash_safe
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files
from tests.dataflow.test_region_processes import finished, hurry, hurry_of, kill, running, unhurried
from tests.dataflow.trials import Row, Step, arrangements, play_with_trouble

PRICES = "item string, price bigint"
NINE = datetime(2026, 5, 1, 9, tzinfo=UTC)


def parsed(row: Row) -> list[tuple[str, int]]:
    item, price = row["line"].split("=")
    return [(item, int(price))]


def priced(row: Row, prices: Any) -> tuple[str, int]:
    return row["line"], prices[row["line"]]["price"]  # KeyError if the table is not complete


def shop(prices: Stream, orders: Stream, *, behind: bool = False) -> Stream:
    """Each order and its price. behind: both come through an exchange."""
    if behind:
        prices, orders = prices.key_by("prices_by", "item"), orders.key_by("orders_by", "line")
    table = prices.graph.broadcast_table("prices", prices, "item", complete_first=True)
    return orders.map("priced", priced, schema="item string, price bigint", broadcast=table)


def of_files(prices: list[Path], orders: list[Path], *, behind: bool = False, slowly: Any = None) -> Graph:
    graph = Graph("shop")
    rows = graph.source("price_files", FileSource(prices))
    if slowly is not None:
        rows = rows.flat_map("slowly", slowly, schema="line string", takes="batch")
    parsed_rows = rows.flat_map("parsed", parsed, schema=PRICES)
    shop(parsed_rows, graph.source("order_files", FileSource(orders)), behind=behind)
    return graph


def texts(rng: random.Random, files: int, items: int) -> tuple[list[str], list[str]]:
    """The last line of an item is its price: it is in the last file that any worker reads."""
    prices = ["".join(f"i{n}={n}\n" for n in range(items) if n % files == part) for part in range(files)]
    orders = ["".join(f"i{rng.randrange(items)}\n" for _ in range(60)) for _ in range(3)]
    return prices, orders


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("workers", "files"), [(1, 1), (2, 1), (2, 5), (3, 2)])
def test_every_row_finds_its_value_with_any_resets(
    workers: int, files: int, behind: bool, tmp_path: Path
) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        prices, orders = texts(rng, files, 200)
        (tmp_path / f"p{seed}").mkdir()
        (tmp_path / f"o{seed}").mkdir()
        graph = of_files(
            write_files(tmp_path / f"p{seed}", prices),
            write_files(tmp_path / f"o{seed}", orders),
            behind=behind,
        )
        graph.stream("priced").sink("shown", LogSink(publish="step"))
        small = WorkerLimits(step_bytes_max=64, batch_bytes_max=64)
        region = OneThreadRegion(graph, workers, rng.randrange, small)
        region.run_with_trouble(rng, rounds=8, turns=80)
        found = [
            (row["item"], row["price"])
            for side in region.sides
            for output in side.shown
            for row in rows_shown([output])
        ]
        lines = [line for text in orders for line in text.split()]
        assert sorted(found) == sorted((line, int(line[1:])) for line in lines), f"seed {seed}"


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_every_row_finds_its_value_though_a_worker_is_killed(shared_store: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    prices, orders = texts(rng, 3, 20_000)
    (tmp_path / "p").mkdir()
    (tmp_path / "o").mkdir()
    out = tmp_path / "out"
    slowly = partial(unhurried, hurry_of(out))
    graph = of_files(
        write_files(tmp_path / "p", prices), write_files(tmp_path / "o", orders), behind=True, slowly=slowly
    )
    graph.stream("priced").sink("out", FileSink(out))
    small = WorkerLimits(step_bytes_max=4096, batch_bytes_max=4096)
    with running(graph, shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.checkpoints(2)  # in the middle of the prices
        kill(control, 0, wipe=True)
        hurry(out)
        assert finished(control), control.status
        assert control.status.incarnation == 2
    found = sorted((item, int(price)) for _, (item, price) in rows_of(out))
    assert found == sorted((line, int(line[1:])) for text in orders for line in text.split())


def of_inputs() -> Graph:
    graph = Graph("shop")
    prices = graph.source("prices_read", InputSource("prices", PRICES))
    orders = graph.source("orders", InputSource("orders", "at timestamp, line string"))
    timed = orders.event_time("timed", "at", lateness=timedelta(0))
    shop(prices, timed.sort("sorted", "at")).sink("out", CallSink(print))
    return graph


_inputs = st.fixed_dictionaries(
    {
        "prices_read": st.just([{"item": f"i{n}", "price": n} for n in range(4)]),
        "orders": st.lists(
            st.builds(
                lambda s, n: {"at": NINE + timedelta(seconds=s), "line": f"i{n}"},
                st.integers(0, 9),
                st.integers(0, 3),
            ),
            max_size=8,
        ),
    }
)


@settings(max_examples=50)
@given(data=st.data(), inputs=_inputs)
def test_rows_wait_in_a_trial_too_and_none_of_them_is_late(data: st.DataObject, inputs: Any) -> None:
    steps: list[Step] = data.draw(arrangements(inputs))
    trial = play_with_trouble(of_inputs(), steps, data, end=True)
    expected = sorted((row["line"], int(row["line"][1:])) for row in inputs["orders"])
    assert sorted((row["item"], row["price"]) for row in trial.rows("out")) == expected


def test_a_trial_gives_the_rows_that_waited_in_the_step_after_the_table_is_complete() -> None:
    graph = Graph("shop")
    prices = graph.source("prices_read", InputSource("prices", PRICES))
    shop(prices, graph.source("orders", InputSource("orders", "line string"))).sink("out", CallSink(print))
    orders = [{"line": "i1"}, {"line": "i2"}]
    trial = Trial(graph, workers=2, splits={"prices_read": ["a", "b"]})
    first, second = {"a": [{"item": "i1", "price": 1}]}, {"b": [{"item": "i2", "price": 2}]}
    trial.step({"prices_read": first, "orders": orders}, done={"prices_read": "a"})
    assert trial.rows("out") == []
    trial.step({"prices_read": second}, done={"prices_read": "b"})
    assert trial.rows("out") == []
    trial.step({})
    assert [row["price"] for row in trial.rows("out")] == [1, 2]
    rows = [{"item": "i1", "price": 1}, {"item": "i2", "price": 2}]
    assert_crash_safe(graph, {"prices_read": rows, "orders": orders}, splits=2)


def two() -> tuple[Graph, Stream, Stream]:
    graph = Graph("g")
    return graph, graph.source("a", FileSource(["a.txt"])), graph.source("b", FileSource(["b.txt"]))


def problem_of(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        graph.plan()
    return str(caught.value)


def with_table(row: Row, table: Any) -> Row:
    del table
    return row


def test_tables_that_would_wait_for_themselves_are_refused() -> None:
    graph, a, b = two()
    table = graph.broadcast_table("table", a.union("both", b), "line", complete_first=True)
    a.map("read", with_table, broadcast=table).sink("out", FileSink("out"))
    b.sink("rest", FileSink("rest"))
    said = problem_of(graph)
    assert "source 'a' waits until broadcast table 'table' is complete (complete_first=True), and the" in said
    assert "source 'b'" not in said
    graph, a, b = two()
    first = graph.broadcast_table("first", graph.stream("a_read"), "line", complete_first=True)
    second = graph.broadcast_table("second", graph.stream("b_read"), "line", complete_first=True)
    a.map("a_read", with_table, broadcast=second)
    b.map("b_read", with_table, broadcast=first)
    said = problem_of(graph)
    assert "source 'a' waits until broadcast table 'second' is complete" in said
    assert "source 'b' waits until broadcast table 'first' is complete" in said


def test_a_table_may_wait_for_another() -> None:
    graph, a, b = two()
    first = graph.broadcast_table("first", a, "line", complete_first=True)
    second = graph.broadcast_table(
        "second", b.map("b_read", with_table, broadcast=first), "line", complete_first=True
    )
    c = graph.source("c", FileSource(["c.txt"]))
    c.map("c_read", with_table, broadcast=second).sink("out", FileSink("out"))
    waiting = graph.plan().waiting
    assert waiting.waits_for == {"b": {"first.rows"}, "c": {"second.rows"}}


def test_where_a_failure_loses_rows_no_table_can_be_complete() -> None:
    graph, a, b = two()
    table = graph.broadcast_table("table", a, "line", complete_first=True)
    b.map("read", with_table, broadcast=table).sink("out", CallSink(print))
    for stream in (a, b):
        stream.annotate(consistent(delivery="at-most-once"))
    assert "broadcast table 'table' with complete_first is in a region with" in problem_of(graph)

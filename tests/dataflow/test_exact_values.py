"""Sums of decimals, and extremes of decimals and text: exact, in any order, also over a crash."""

from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Graph,
    GraphError,
    InputSource,
    KeyedStream,
    Max,
    Mean,
    Min,
    OperatorError,
    Sum,
)
from dataflow.schema import type_text
from dataflow.testing import Trial

decimals = st.none() | st.integers(-(10**20) + 1, 10**20 - 1).map(lambda units: Decimal(units).scaleb(-4))
values = st.lists(st.tuples(st.sampled_from("ab"), decimals, st.none() | st.text(max_size=4)), max_size=12)


def graph_of(price: str = "decimal(20, 4)", **aggregates: Any) -> Graph:
    graph = Graph("exact")
    rows = graph.source("rows", InputSource("rows", f"key string, price {price}, name string"))
    rows.key_by("by_key", "key").aggregate("made", **aggregates).sink("out", CallSink(print))
    return graph


def last_of_each(trial: Trial) -> dict[str, tuple[Any, ...]]:
    return {row.pop("key"): tuple(row.values()) for row in trial.rows("out")}


def extreme(found: list[Any], best: Any, by: Any = None) -> Any:
    return best(found, key=by) if found else None


def half_up(number: Fraction) -> int:
    """The nearest integer; a tie goes away from zero."""
    size = floor(abs(number) + Fraction(1, 2))
    return size if number >= 0 else -size


def utf8(text: str) -> bytes:
    return text.encode()


@given(values, st.integers(0, 12))
def test_they_are_those_of_python_in_any_steps_and_after_a_crash(
    rows: list[tuple[str, Decimal | None, str | None]], at: int
) -> None:
    aggregates = {"total": Sum("price"), "mean": Mean("price"), "low": Min("price"), "high": Max("price")}
    texts = {"first": Min("name"), "last": Max("name")}
    trial = Trial(graph_of(**aggregates, **texts))
    made = [{"key": key, "price": price, "name": name} for key, price, name in rows]
    trial.step({"rows": made[:at]}, checkpoint=True)
    trial.step({"rows": made[at:]})
    trial.crash()
    trial.step({"rows": made[at:]})
    truth = {}
    for key in {row[0] for row in rows}:
        prices = [price for one, price, _ in rows if one == key and price is not None]
        names = [name for one, _, name in rows if one == key and name is not None]
        # Units of the scale: a sum of Decimals is rounded to the digits of a context.
        units = sum(int(price * 10_000) for price in prices)
        total = Decimal(units).scaleb(-4) if prices else None
        truth[key] = (
            total,
            Decimal(half_up(Fraction(units * 10**4, len(prices)))).scaleb(-8) if prices else None,
            extreme(prices, min),
            extreme(prices, max),
            extreme(names, min, utf8),
            extreme(names, max, utf8),
        )
    assert last_of_each(trial) == truth


def test_a_decimal_sum_may_be_too_large_on_its_way_but_not_at_the_end() -> None:
    largest = Decimal(10**38 - 1)
    rows = [{"key": "a", "price": price, "name": None} for price in (largest, Decimal(1), Decimal(-1))]
    trial = Trial(graph_of("decimal(38, 0)", total=Sum("price")))
    trial.step({"rows": rows})
    assert last_of_each(trial) == {"a": (largest,)}
    with pytest.raises(OperatorError, match=r"the sum 'total' does not fit decimal\(38,0\)"):
        trial.step({"rows": rows[1:2]})


def test_a_mean_of_decimals_has_the_type_of_spark_and_stops_where_it_does_not_fit() -> None:
    for price, mean in (("decimal(38,10)", "decimal(38,14)"), ("decimal(1,0)", "decimal(5,4)")):
        schema = graph_of(price, mean=Mean("price")).plan().schemas["made"]
        assert schema is not None
        assert type_text(schema.field("mean").type) == mean
    largest = Decimal(10**38 - 1)
    trial = Trial(graph_of("decimal(38, 0)", mean=Mean("price")))
    with pytest.raises(OperatorError, match=r"the mean 'mean' does not fit decimal\(38,4\)"):
        trial.step({"rows": [{"key": "a", "price": largest, "name": None}]})


def test_a_mean_of_integers_does_not_overflow_where_their_sum_would() -> None:
    trial = Trial(graph_of("bigint", mean=Mean("price")))
    trial.step({"rows": [{"key": "a", "price": 9 * 10**18, "name": None}] * 2}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [{"key": "a", "price": 9 * 10**18, "name": None}]})
    assert last_of_each(trial) == {"a": (9e18,)}


def test_a_sum_of_text_and_an_extreme_of_lists_are_refused() -> None:
    with pytest.raises(
        GraphError, match=r"Max takes a column of numbers, decimals, dates, .* 'price' is array<binary>"
    ):
        graph_of("array<binary>", high=Max("price")).plan()
    with pytest.raises(GraphError, match="Sum takes a column of integers"):
        graph_of(total=Sum("name")).plan()


def test_an_operator_between_key_by_and_a_keyed_method_is_reported_of() -> None:
    graph = Graph("shop")
    keyed = graph.source("rows", InputSource("rows", "key string")).key_by("by_key", "key")
    assert isinstance(keyed, KeyedStream)
    with pytest.raises(
        AttributeError, match=r"aggregate needs a keyed stream, and the output of 'few' has no k"
    ):
        keyed.filter("few", bool).aggregate("made", n=Sum("key"))  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="a stream has no method 'agregate'"):
        keyed.filter("fewer", bool).agregate("made")  # type: ignore[attr-defined]
